/* prefetch_gate: whether prefetching a layer's choice is worth its reads (InfiniGen and CLO section 4 prefetch always;
 * how well that works differs by model and layer: in the first layers the residual stream still turns).
 *
 * A prefetched chunk that is used saves a wait, one that is not used costs a request and a slot.  Both are averaged
 * over a layer's last prefetches; where too few are used the gate closes, and opens for one try after a while, as
 * queries may have come to be more alike.  A prefetch that is still being read when its layer comes makes that layer
 * wait for all of it.  So a prefetch may read as much as the disk was seen to read in time: less after each one that
 * was late, more after each one that was not.  Where that is next to nothing the disk has no time to spare, and the
 * gate closes as well.  What is attended to never depends on the gate.  Thread: the owner's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct prefetch_gate {
    float read, used; /* chunks a prefetch, averages */
    float chunks_max; /* what a prefetch may read */
    unsigned tries;   /* prefetches that were added, up to those that the averages look back at */
    unsigned pause;   /* steps until the next try */
};

/* What became of a prefetch: chunks that were read for it, how many of them were used, and whether reads were still
 * under way when its layer wanted to choose. */
struct prefetch_outcome {
    size_t read, used;
    bool late;
};

void prefetch_gate_init(struct prefetch_gate *gate);
/* Whether to prefetch now.  Ask once a step. */
bool prefetch_gate_opens(struct prefetch_gate *gate);
size_t prefetch_gate_chunks(const struct prefetch_gate *gate);
void prefetch_gate_add(struct prefetch_gate *gate, const struct prefetch_outcome *outcome);
