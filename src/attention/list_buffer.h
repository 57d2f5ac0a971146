/* list_buffer: the rows of the list that a KV head attended to last, side by side in RAM (CLO, 4.2: the cache buffer).
 *
 * Where KV is in tiers, a slot holds a chunk of 64 tokens, of which a list of single tokens wants a few.  A head with a
 * buffer fetches those rows of its next list alone that the last one did not have; it copies them into the places of
 * rows that are not wanted any more, and attends to the buffer.  A list that is kept (reuse.h) reads and copies nothing
 * but the newest row.
 *
 *   1  Attention to a buffer is attention to the chunks, bit for bit: the same rows in the order of the list.
 *   2  A buffer is of the rows that are there: it is forgotten when its sequence is cut, when a step of it fails, or
 *      when it is another one (kv_sequence_generation).
 *   3  What has a buffer is decided once for a head, in the order in which heads come, as many as there is memory for.
 *      It never changes what is chosen.
 *
 * Rows only: a chunk in 4 bits is one piece.  The heads of one choice are of sequences that are all different.
 * Thread: the engine's. */
#pragma once

#include "base/counter.h"
#include "base/status.h"
#include "cache/kv_groups.h"
#include "device/device.h"

struct kv_sequence;
struct list_buffers;
struct list_buffer;

struct list_buffer_shape {
    size_t layer_count, kv_head_count, sequence_capacity; /* kv_head_count: the most of any layer */
    const struct kv_groups *groups;                       /* borrowed; NULL: all layers are alike */
    size_t layer_first;                                   /* heads of layers before it have none: their chunks stay */
    uint64_t list_rows;                                   /* of a KV head's list, at most */
    size_t chunk_bytes;                                   /* the most of any layer */
    uint64_t bytes;                                       /* of all buffers, at most */
    /* [lane], borrowed, of KV: those that attend to it have none either, in any layer; NULL: all may */
    const bool *stays;
};
/* RAM for a head's buffer, and beside those of the heads. */
uint64_t list_buffer_head_bytes(uint64_t list_rows, size_t chunk_bytes);
uint64_t list_buffer_table_bytes(const struct list_buffer_shape *shape);
/* *buffers NULL: there is no memory for a head of every sequence. */
enum status list_buffers_create(struct list_buffers **buffers, struct device *device,
                                const struct list_buffer_shape *shape, struct error *error) STATUS_CHECKED;
void list_buffers_destroy(struct list_buffers *buffers); /* NULL is allowed */

/* The buffer of a head for a list; NULL: it has none, or the list is longer than it may be. */
struct list_buffer *list_buffers_of(struct list_buffers *buffers, const struct kv_sequence *sequence,
                                    size_t layer_index, size_t kv_head, const struct row_list *list);
/* Those rows of a list that it lacks, [*count]; valid until the next call. */
const uint32_t *list_buffer_missing(struct list_buffers *buffers, const struct list_buffer *buffer,
                                    const struct row_list *list, size_t *count);
/* It holds the list from now on.  The missing rows are copied from the KV head's chunks, as its layer's view has them:
 * places, [chunk], host memory, of which those in the host's memory are read that a missing row lies in. */
void list_buffer_fill(struct list_buffers *buffers, struct list_buffer *buffer, const struct row_list *list,
                      const struct kv_view *view, const uint32_t *places);
/* The rows of the list that it holds, in its order, as they lie in the buffer. */
struct row_list list_buffer_rows(const struct list_buffer *buffer);
/* Some buffers of a layer, each as a KV head, for operations that follow on the stream, until the next such view. */
struct kv_view list_buffers_view(struct list_buffers *buffers, struct stream *stream, const struct kv_layout *layout,
                                 const struct list_buffer *const *shown, size_t count);

struct list_buffer_counts {
    uint64_t heads;        /* that may have a buffer */
    uint64_t kept, copied; /* rows that lists found in their buffers, and that were copied there */
};
extern const struct counter_table list_buffer_counters;
struct list_buffer_counts list_buffers_counts(const struct list_buffers *buffers); /* NULL: zeros */
void list_buffers_reset_counts(struct list_buffers *buffers);                      /* NULL is allowed */
