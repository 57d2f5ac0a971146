/* fetch: chunks of KV that a layer's heads wait for, head by head, over a cache whose chunks come and go
 * (cache/kv_tier.h).
 *
 * A job is the chunks of one KV head of one row or item: they are begun in order, as early as there are slots, waited
 * for, attended to, and released.  Thread: the engine's.
 */
#ifndef LOAM_ATTENTION_FETCH_H
#define LOAM_ATTENTION_FETCH_H

#include "attention/attention.h"
#include "attention/choice.h"
#include "attention/list_buffer.h"
#include "cache/kv_tier.h"
#include "platform/trace.h"

struct fetch_job {
    struct kv_fetch request;
    size_t index; /* of the operation's item, or among the rows that chose */
};

struct fetch {
    struct fetch_job *jobs; /* owned; [capacity] */
    size_t capacity, count, begun, done;
    size_t layer_index; /* that attends; the requests name the layer whose KV it is */
    /* Owned; [chunks_capacity] each: what the jobs of a choice borrow. */
    uint32_t *chunks;
    uint8_t *blocks; /* of each chunk those of 8 tokens that are chosen, a bit each */
    size_t chunks_capacity, chunks_used;
};

struct fetch_options {
    size_t jobs;   /* heads of all rows that are fetched for together */
    size_t chunks; /* that their lists lie in, at most; all of a head's need no list */
};
uint64_t fetch_bytes(const struct fetch_options *options);
enum status fetch_init(struct fetch *fetch, const struct fetch_options *options, struct error *error)
    STATUS_CHECKED;
void fetch_deinit(struct fetch *fetch); /* zeroed is allowed */

/* Releases what is not done, and forgets it all. */
void fetch_drop(struct fetch *fetch);
/* All chunks that rows [first, end) lie in. */
void fetch_add_range(struct fetch *fetch, struct kv_sequence *sequence, size_t index, size_t kv_head,
                     uint64_t first, uint64_t end);
/* The chunks of every list of a choice, and of each the blocks that the list has rows in; sequences: of the items that
 * its rows are of.  lists: rows that a head's buffer has are left out; NULL: there are no buffers.  stays: what is read
 * is soon wanted again.  STATUS_MEMORY: more chunks than there is memory for. */
enum status fetch_add_choice(struct fetch *fetch, struct choice *choice, struct kv_sequence *const *sequences,
                             struct list_buffers *lists, bool stays, struct error *error) STATUS_CHECKED;

/* Begins what there are slots for; no more once so many chunks are being read.  Only for the job that attends next it
 * waits for work of the device that reads slots. */
void fetch_begin(struct fetch *fetch, size_t chunks_max);
/* The same for a layer that is to come, and waits for no such work. */
void fetch_begin_ahead(struct fetch *fetch, size_t chunks_max);
/* The same beside computing, where what has arrived does not count: the disk has so many to read, and no more. */
void fetch_keep_busy(struct fetch *fetch, size_t chunks_max);
/* All of what is not done is in memory; the same of the jobs before `end`, which were begun. */
bool fetch_has_arrived(struct fetch *fetch);
bool fetch_have_arrived(struct fetch *fetch, size_t end);
/* Chunks of the jobs before `end` that memory did not hold. */
uint64_t fetch_missed(const struct fetch *fetch, size_t end);
/* Waits for the oldest job.  *end: behind the jobs [fetch->done, *end) of its index that are in memory. */
enum status fetch_wait(struct fetch *fetch, struct trace *trace, size_t *end, struct error *error)
    STATUS_CHECKED;
/* What was begun of jobs behind the oldest gives its slots back, to be begun again. */
void fetch_yield(struct fetch *fetch);
/* Jobs before `end` are done, or are with the ticket (kv_fetch_release_after). */
void fetch_release(struct fetch *fetch, size_t end, struct ticket ticket);

/* Plans every chunk that the layer's items see, head by head. */
void fetch_add_everything(struct fetch *fetch, const struct attention_layer *layer);
/* The same chunks of every head of the layer's one item, borrowed. */
void fetch_add_chunks(struct fetch *fetch, const struct attention_layer *layer, const uint32_t *chunks,
                      size_t count);

#endif
