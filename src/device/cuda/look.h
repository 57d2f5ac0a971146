/* look: what a list looks into. */
#pragma once

#include "device/cuda/attention_rows.h"
#include "device/cuda/kernels_look.h"

/* Of the whole chunks [first, last) the best, `picks` of them, and those that its candidates begin and end in: tokens
 * [begin, end) of those chunks, one behind the other.  picks 0: all. */
struct look {
    uint32_t first, last, picks, begin, end;
};
DEVICE struct look look_of(const struct cuda_list &list, uint64_t looked) {
    const uint32_t chunk = ATTENTION_CHUNK;
    struct look look = {(list.begin + chunk - 1) / chunk, list.end / chunk, 0, list.begin, list.end};
    if (looked == 0 || list.end - list.begin <= LOOK_FROM * list.picks) return look;
    look.picks = (LOOK_TIMES * list.picks + chunk - 1) / chunk;
    look.begin = list.begin % chunk;
    look.end = (look.picks + (look.begin != 0)) * chunk + list.end % chunk;
    return look;
}
