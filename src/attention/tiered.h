/* tiered: attention over KV of which only a part is in RAM (cache/kv_tier.h).
 *
 * A layer of a step is jobs, one per sequence and KV head: bring the chunks that the head attends to, compute its
 * partials, release them.  All jobs of a layer are begun as early as there are slots; heads whose chunks are here are
 * computed while those of others are on their way, and where every layer attends to everything the next layer's
 * are begun as well (the layer-ahead prefetch of FlexGen).  Each head's result is that of dense_attend or
 * select_attend bit for bit: ranges and their order follow from lengths alone.
 *
 * Where layers choose, the next layer's choice is guessed by a guess of its queries while the disk has this layer's
 * reads to do, and those chunks are read while this layer computes (InfiniGen's speculation as a prefetch; CLO section
 * 4).  It changes what is in memory when the next layer chooses, never what it chooses.  Guesses are begun when all
 * that this layer waits for has come: a disk may tell of what is done only when it has nothing more to do.
 *
 * A selection that scans reads all keys, or is to do so for comparison: heads choose and attend as their chunks come.
 *
 *   tiered_begin_layer    room for the layer's new rows
 *   tiered_attend         its attention
 *   tiered_end_layer      chunks that are full go to the disk behind the computation
 *
 * Several rows of a sequence that choose go in parts of a few rows, as many as there are lists for: what they need of
 * RAM is counted in the cache's budget (tiered_bytes).
 *
 * A failure of the tier (disk, checksum, no room) inside tiered_attend is returned by tiered_end_layer; what was
 * computed is not to be used.  Thread: the engine's.
 */
#ifndef LOAM_ATTENTION_TIERED_H
#define LOAM_ATTENTION_TIERED_H

#include "attention/select.h"
#include "cache/kv_tier.h"
#include "platform/trace.h"

struct tiered;

struct tiered_options {
    size_t kv_head_count;
    size_t sequence_capacity; /* sequences of a step */
    uint64_t context_size;    /* tokens of one */
    uint64_t kept_most;       /* that a row chooses; 0: none does (select_options_kept_most) */
    bool
        looks_ahead; /* to the next layer's choice; a selection that scans (select.h) brings all of its chunks */
};
/* Of lists of chosen rows, of their chunks and of jobs: all that it will hold, lists of `select` included. */
uint64_t tiered_bytes(const struct tiered_options *options);
/* select: whose lists are made; NULL: there is no choice. */
enum status tiered_create(struct tiered **tiered, struct device *device, struct kv_cache *cache,
                          struct select *select, const struct tiered_options *options, struct error *error)
    STATUS_CHECKED;
void tiered_destroy(struct tiered *tiered); /* NULL is allowed */
/* Choices and waits are shown in it (platform/trace.h); borrowed, NULL: no more. */
void tiered_set_trace(struct tiered *tiered, struct trace *trace);
/* items: rows and positions; sequences [item_count]. */
enum status tiered_begin_layer(struct tiered *tiered, size_t layer_index,
                               struct kv_sequence *const *sequences, const struct attend_item *items,
                               size_t item_count, struct error *error) STATUS_CHECKED;
/* Guesses the queries of the layer that follows: *guess is the operation that it will be, with its items' views, of one
 * row each, valid until the layer has attended.  false: none is to be guessed. */
typedef bool tiered_guess(void *context, struct attend_operation *guess);
/* sequences: [operation->item_count].  select NULL or rules NULL: everything is attended to.  guess: asked at most
 * once, in decode steps; NULL: nothing is guessed. */
void tiered_attend(struct tiered *tiered, struct stream *stream, size_t layer_index,
                   const struct attend_operation *operation, struct kv_sequence *const *sequences,
                   struct select *select, const struct select_rule *const *rules, tiered_guess *guess,
                   void *guess_context);
enum status tiered_end_layer(struct tiered *tiered, size_t layer_index, struct kv_sequence *const *sequences,
                             const struct attend_item *items, size_t item_count, struct error *error)
    STATUS_CHECKED;
/* No chunk is pinned afterwards: to be called when a step has failed or is over. */
void tiered_end_step(struct tiered *tiered);

#endif
