/* tiered: the loop over KV of which only a part is in RAM (cache/kv_tier.h): fetch, attend, release.
 *
 * A layer is a list of jobs, one for each row or sequence and KV head.  All jobs of a layer are begun as early as there
 * are slots.  Heads whose chunks are in memory attend while the chunks of others are on their way, and meanwhile the
 * next layer's chunks are prefetched.  Each head's result is that of attention over KV in memory, bit for bit: ranges
 * and their order follow from lengths alone.
 *
 * With a selection that scans (it needs all keys, or reads them to be compared) heads choose and attend as chunks come.
 * Thread: the engine's.
 */
#pragma once

#include "attention/attention.h"
#include "attention/fetch.h"
#include "attention/prefetch.h"
#include "attention/rebuild.h"
#include "cache/unit_cache.h"

struct tiered {
    struct device *device;  /* borrowed */
    struct kv_cache *cache; /* borrowed */
    struct trace *trace;    /* borrowed; NULL: none */
    size_t row_capacity;    /* rows or items that attend together */
    bool prefetches;
    struct fetch now; /* the layer's */
    struct prefetch prefetch;
    struct rebuild *rebuild;    /* owned; NULL: everything is read */
    struct list_buffers *lists; /* owned; NULL: heads attend to chunks */
    /* Owned; [kv_head_count]: of heads that attend together, buffers and their rows. */
    const struct list_buffer **list_shown;
    struct row_list *list_rows;
};

/* The most rows or items that attend together. */
size_t tiered_row_capacity(const struct attention_options *options);
uint64_t tiered_bytes(const struct attention_options *options);
enum status tiered_create(struct tiered **tiered, struct device *device, const struct attention_options *options,
                          struct error *error) STATUS_CHECKED;
void tiered_destroy(struct tiered *tiered); /* NULL is allowed */
enum status tiered_create_lists(struct tiered *tiered, const struct attention_options *options, uint64_t bytes,
                                struct error *error) STATUS_CHECKED;

/* Gets slots for a layer's new rows; writes full chunks to the disk. */
enum status tiered_open_rows(struct tiered *tiered, const struct attention_rows *rows, struct error *error)
    STATUS_CHECKED;
enum status tiered_write_rows(struct tiered *tiered, const struct attention_rows *rows, struct error *error)
    STATUS_CHECKED;
void tiered_end_step(struct tiered *tiered);

/* Attends to everything.  prefetches: the next layer will attend to everything, too, so its chunks are read ahead. */
enum status tiered_attend_everything(struct tiered *tiered, struct stream *stream, const struct attention_layer *layer,
                                     bool prefetches, struct error *error) STATUS_CHECKED;
/* The layer keeps a state: what the next one is expected to want is chosen, and its reads begin. */
enum status tiered_expect(struct tiered *tiered, struct stream *stream, const struct select *select,
                          const struct attention_layer *layer, struct error *error) STATUS_CHECKED;

/* A layer's rows, and what they choose by. */
struct tiered_choice {
    struct select *select;
    const struct attention_layer *layer;
    struct choice *choice; /* of the layer's rows; of tiered_scan: filled head by head */
    bool stays;            /* rows of the same layer come that want much of the same chunks */
    /* Of a device that has slots for units of these rows; NULL: it reads chunks where they lie in RAM. */
    struct unit_cache *units;
    const struct unit_lists *unit_lists; /* with units: of all rows of the choice and their KV heads */
};
/* The same, where each head, when all of its chunks are here, chooses and attends to its choice. */
enum status tiered_scan(struct tiered *tiered, struct stream *stream, const struct tiered_choice *chosen,
                        struct error *error) STATUS_CHECKED;
/* Attention to the lists of the choice. */
enum status tiered_attend_choice(struct tiered *tiered, struct stream *stream, const struct tiered_choice *chosen,
                                 struct error *error) STATUS_CHECKED;
