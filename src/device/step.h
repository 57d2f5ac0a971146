/* step: what differs from one step of a sequence to the next, as operations read it in the device's memory when they
 * run.  Read by the host and by the kernels of every device. */
#pragma once

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
    /* Where lists are kept from step to step (device.h, compare_labels).  Above 0, kept_count: the list of a step
     * before is taken once more, so many rows of it and those from window_begin on; it was chosen `age` tokens ago. */
    uint32_t use; /* enum label_use */
    uint32_t kept_count, window_begin, age;
};

/* What becomes of a KV head's label, the queries of its group that its list was chosen by, and of the list. */
enum label_use {
    LABEL_STAYS,    /* both; nothing is chosen by it */
    LABEL_REPLACED, /* by the queries of the row, and by what they choose */
    LABEL_COMPARED, /* replaced as well where they are not alike, and where the list is too old */
};

/* The list that a KV head holds, without its window. */
struct step_kept {
    uint64_t position;             /* of the row that chose it */
    uint32_t count, candidate_end; /* rows, 0: none; where its window began */
};

/* What became of KV heads that looked, summed. */
struct step_reuse {
    uint64_t hits, misses;
    uint64_t rows, age_sum, age_max; /* of the lists of hits */
    uint64_t chosen_rows, scored;    /* of hits: what the lists would have had, and the candidates of their scores */
};
