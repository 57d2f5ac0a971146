/* step: what differs from one step of a sequence to the next, as operations read it in the device's memory when they
 * run.  Read by the host and by the kernels of every device. */
#ifndef LOAM_DEVICE_STEP_H
#define LOAM_DEVICE_STEP_H

#include <stdint.h>

struct step_row {
    uint64_t position;
    uint32_t token; /* checked by the caller */
    uint32_t item;  /* of the operation's items, that the row is of */
};

/* The list of a KV head of a row that chooses (device.h, select_item), in tokens. */
struct step_list {
    uint32_t count; /* rows of the list */
    uint32_t candidate_begin, candidate_end, picks;
};

#endif
