/* fetch: chunks of KV that a layer's heads wait for, head by head, over a cache whose chunks come and go
 * (cache/kv_tier.h).
 *
 * A job is the chunks of one KV head of one row or item: they are begun in order, as early as there are slots, waited
 * for, attended to, and released.  Thread: the engine's.
 */
#pragma once

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
    struct fetch_job *jobs; /* [capacity]; owned, and with it: */
    size_t capacity, count, begun, done;
    size_t layer_index; /* that attends; the requests name the layer whose KV it is */
    /* [chunks_capacity] each: what the jobs of a choice borrow. */
    uint32_t *chunks;
    uint8_t *blocks; /* of each chunk those of 8 tokens that are chosen, a bit each */
    size_t chunks_capacity, chunks_used;
};

struct fetch_options {
    size_t jobs;   /* the most heads, over all rows, whose chunks are fetched together */
    size_t chunks; /* the most chunks that their lists lie in; all chunks of a head need no list */
};
uint64_t fetch_bytes(const struct fetch_options *options);
enum status fetch_init(struct fetch *fetch, const struct fetch_options *options, struct error *error) STATUS_CHECKED;
void fetch_deinit(struct fetch *fetch); /* zeroed is allowed */

/* Releases what is not done, and forgets it all. */
void fetch_drop(struct fetch *fetch);
/* Adds jobs of the chunks of every list of a choice, with the blocks that a list has rows in.  sequences: those of the
 * items that the choice's rows are of.  lists: rows that a head's buffer has are left out; NULL: there are no buffers.
 * stays: what is read is soon wanted again.  STATUS_MEMORY: more chunks than there is memory for. */
enum status fetch_add_choice(struct fetch *fetch, struct choice *choice, struct kv_sequence *const *sequences,
                             struct list_buffers *lists, bool stays, struct error *error) STATUS_CHECKED;

/* A job of the chunks that a list lies in, or of those that units of it lie in which are missing. */
struct fetch_list {
    struct kv_sequence *sequence;
    size_t index, kv_head;
    const uint32_t *rows; /* [count], ascending */
    size_t count;
    const uint8_t *missing; /* of each KV_BLOCK_TOKENS of the rows, whether they are wanted; NULL: all are */
    bool stays;
};
void fetch_add_list(struct fetch *fetch, const struct fetch_list *list);

/* Begins the jobs that there are slots for, until chunks_max chunks are being read.  It waits for work of the device
 * that reads slots only for the job that attends next. */
void fetch_begin(struct fetch *fetch, size_t chunks_max);
/* The same for a coming layer, without waiting for the device. */
void fetch_begin_ahead(struct fetch *fetch, size_t chunks_max);
/* The same beside computing: what has arrived does not count, so that the disk always has chunks_max chunks to read. */
void fetch_keep_busy(struct fetch *fetch, size_t chunks_max);
/* Whether the chunks of all jobs that are not done are in memory; of the jobs before `end`, which were begun. */
bool fetch_has_arrived(struct fetch *fetch);
bool fetch_have_arrived(struct fetch *fetch, size_t end);
/* Chunks of the jobs before `end` that memory did not hold. */
uint64_t fetch_missed(const struct fetch *fetch, size_t end);
/* Waits for the oldest job.  Jobs [fetch->done, *end) are those of its index that are in memory. */
enum status fetch_wait(struct fetch *fetch, struct trace *trace, size_t *end, struct error *error) STATUS_CHECKED;
/* Gives back the slots of begun jobs behind the oldest; they are begun again later. */
void fetch_yield(struct fetch *fetch);
/* Ends the jobs before `end`, now or when the ticket is done (kv_fetch_release_after). */
void fetch_release(struct fetch *fetch, size_t end, struct ticket ticket);

/* Plans every chunk that the layer's items see, head by head. */
void fetch_add_everything(struct fetch *fetch, const struct attention_layer *layer);
/* The same chunks of every head of the layer's one item, borrowed. */
void fetch_add_chunks(struct fetch *fetch, const struct attention_layer *layer, const uint32_t *chunks, size_t count);
