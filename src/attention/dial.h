/* dial: how many tokens each KV head picks, so that what it leaves out stays below options.loss (--loss).
 *
 * A head's picks of a step follow from the estimates of its steps before (receipt.h), by the query head of its group
 * that left out most, smoothed: above the target more are picked in the next step, below it fewer, more slowly.  The
 * target is DIAL_MARGIN of what was asked for: estimates are of a sample, and a query wants more than the one before it
 * at times.
 *
 *   1  What a head picks depends on its own sequence's rows alone, in their order: not on the batch, on threads, on
 *      what is in memory or on time.
 *   2  A sequence that is cut, is another one, or answers something else (kv_sequence_answer) begins anew, at
 *      DIAL_FIRST of its context.
 *   3  A step that failed, and is done again, counts once, and picks what it picked.
 *
 * Thread: the engine's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "cache/kv_groups.h"
#include "device/device.h"

#define DIAL_MARGIN 0.7
#define DIAL_FIRST  0.5 /* of the candidates, before anything is known */

struct dial;
struct kv_sequence;

struct dial_shape {
    size_t layer_count, kv_head_count, sequence_capacity;
    const struct kv_groups *groups; /* borrowed; NULL: all layers have kv_head_count KV heads */
    double loss;                    /* above 0 */
};
uint64_t dial_bytes(const struct dial_shape *shape); /* that it takes */
enum status dial_create(struct dial **dial, const struct dial_shape *shape, struct error *error) STATUS_CHECKED;
void dial_destroy(struct dial *dial); /* NULL allowed */

/* Where a sequence's state is, for the two below; valid until another one asks. */
size_t dial_slot(struct dial *dial, const struct kv_sequence *sequence);
/* A KV head that chooses among so many candidates. */
struct dial_choice {
    size_t slot, layer_index, kv_head;
    uint64_t position, candidates; /* of its row */
};
/* How many it picks, in whole units.  Rows of a sequence ask in their order, those of a pass before any is added. */
uint64_t dial_picks(struct dial *dial, const struct dial_choice *choice, uint64_t unit);
/* What the group's heads then left out. */
void dial_add(struct dial *dial, const struct dial_choice *choice, const struct mass_estimate *estimates, size_t group);
