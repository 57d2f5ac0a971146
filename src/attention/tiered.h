/* tiered: the loop over KV of which only a part is in RAM (cache/kv_tier.h): fetch, attend, release.
 *
 * A layer is jobs, one per row or sequence and KV head.  All jobs of a layer are begun as early as there are slots;
 * heads whose chunks are here are computed while those of others are on their way, and meanwhile the next layer's are
 * prefetched.  Each head's result is that of attention over KV in memory bit for bit: ranges and their order follow
 * from lengths alone.
 *
 * A selection that scans reads all keys, or is to do so for comparison: heads choose and attend as their chunks come.
 * Thread: the engine's.
 */
#ifndef LOAM_ATTENTION_TIERED_H
#define LOAM_ATTENTION_TIERED_H

#include "attention/attention.h"
#include "attention/fetch.h"
#include "attention/prefetch.h"
#include "attention/rebuild.h"

struct tiered {
    struct device *device;  /* borrowed */
    struct kv_cache *cache; /* borrowed */
    struct trace *trace;    /* borrowed; NULL: none */
    size_t row_capacity;    /* rows or items whose heads are fetched for together */
    bool prefetches;
    struct fetch now; /* the layer's */
    struct prefetch prefetch;
    struct rebuild *rebuild;    /* owned; NULL: everything is read */
    struct list_buffers *lists; /* owned; NULL: heads attend to chunks */
    /* Owned; [kv_head_count]: of heads that attend together, buffers and their rows. */
    const struct list_buffer **list_shown;
    struct row_list *list_rows;
};

/* Rows or items that are attended to together, at most. */
size_t tiered_row_capacity(const struct attention_options *options);
uint64_t tiered_bytes(const struct attention_options *options);
enum status tiered_create(struct tiered **tiered, struct device *device,
                          const struct attention_options *options, struct error *error) STATUS_CHECKED;
void tiered_destroy(struct tiered *tiered); /* NULL is allowed */
enum status tiered_create_lists(struct tiered *tiered, const struct attention_options *options,
                                uint64_t bytes, struct error *error) STATUS_CHECKED;

/* Slots for a layer's new rows; and what is full goes to the disk. */
enum status tiered_open_rows(struct tiered *tiered, const struct attention_rows *rows, struct error *error)
    STATUS_CHECKED;
enum status tiered_write_rows(struct tiered *tiered, const struct attention_rows *rows, struct error *error)
    STATUS_CHECKED;
void tiered_end_step(struct tiered *tiered);

/* Attention to everything; prefetches: the next layer is certain to do so too. */
enum status tiered_attend_everything(struct tiered *tiered, struct stream *stream,
                                     const struct attention_layer *layer, bool prefetches,
                                     struct error *error) STATUS_CHECKED;
/* A layer's rows, and what they choose by. */
struct tiered_choice {
    struct select *select;
    const struct attention_layer *layer;
    struct choice *choice; /* of the layer's rows; of tiered_scan: filled head by head */
    bool stays;            /* rows of the same layer come that want much of the same chunks */
};
/* The same, where each head, when all of its chunks are here, chooses and attends to its choice. */
enum status tiered_scan(struct tiered *tiered, struct stream *stream, const struct tiered_choice *chosen,
                        struct error *error) STATUS_CHECKED;
/* Attention to the lists of the choice. */
enum status tiered_attend_choice(struct tiered *tiered, struct stream *stream,
                                 const struct tiered_choice *chosen, struct error *error) STATUS_CHECKED;

#endif
