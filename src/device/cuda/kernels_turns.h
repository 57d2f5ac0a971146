/* kernels_turns: the parameters of the kernels around the host's turn in a recorded step (host_turn of device.h). */
#pragma once

#include "device/cuda/kernels.h"

/* update_places_written: as update_places, of what the host wrote.  deltas: struct cuda_place_delta [1 + count] in
 * pinned memory; the first one's index says how many follow, `count` at most.  Grid {ceil(count / 256)}. */
struct cuda_written_places_args {
    uint64_t table, deltas;
    uint32_t count, reserved;
};

/* unit_missing: 1 for each unit of a list that unit_fetch would read from the host's pools, or find nowhere; else 0.
 * Nothing changes.  Grid {kv_head_count}, 512 threads. */
struct cuda_missing_args {
    struct cuda_fetch_args fetch;
    uint64_t missing; /* uint8_t [kv head][list_stride] in pinned memory */
};

/* labels_tell: as labels_compare, of limits that come from pinned memory in place of `limits`; what they become is left
 * in both, the former for the host.  Grid and threads as there. */
struct cuda_told_args {
    struct cuda_labels_args labels;
    uint64_t told; /* struct step_list [item][kv head] */
};

/* unit_missing_q4: the same of unit_fetch_q4. */
struct cuda_missing_q4_args {
    struct cuda_fetch_q4_args fetch;
    uint64_t missing;
};
