/* unit_cache: slots of the device's memory above KV that lies in the host's, all of it or what a step lists.  They
 * hold units of 8 tokens (device.h, unit_slots).  Each KV head of a layer that chooses has its own, for each sequence:
 * one that is whole has as many as there are units, so that it reads each unit once; all others have the same number,
 * but for those that were to be whole and are not, which have more, up to half as many again.  Where a fraction of a
 * layer's chunks is in 4 bits, slots for that fraction of a head's tokens hold a chunk each (decision 0124).
 *
 * There are slots for sequence_capacity sequences.  A sequence has those that its generation had before; a new
 * generation takes the ones that were used longest ago, and begins with empty slots, so nothing of what was cut off is
 * ever read.  Thread: the engine's. */
#pragma once

#include "base/status.h"
#include "cache/kv_cache.h"

struct unit_cache;

struct unit_cache_layer {
    size_t kv_head_count;
    size_t block_bytes; /* of a unit; 0: the layer has no slots */
    size_t q4_bytes;    /* of a chunk in 4 bits; 0: it has none, and the rest has no meaning */
    unsigned q4_of_16;  /* the fraction that is expected, but for the first chunk if that stays rows */
    bool first_is_rows;
};
struct unit_cache_options {
    const struct unit_cache_layer *layers; /* [layer_count], borrowed until it is made */
    size_t layer_count;
    uint64_t context_size;    /* tokens of a sequence */
    size_t sequence_capacity; /* of a step */
    uint64_t bytes;           /* of the device's memory, never exceeded */
    /* Lanes (KV heads of all layers, one's behind another's) that are to be whole, the most important one first, none
     * twice, of layers with slots; borrowed until it is made.  As many are as leave the others three lists. */
    const uint32_t *whole;
    size_t whole_count, list_units; /* the latter: of a head's longest list */
};
/* *cache NULL: the bytes hold no unit of each KV head. */
enum status unit_cache_create(struct unit_cache **cache, struct device *device,
                              const struct unit_cache_options *options, struct error *error) STATUS_CHECKED;
void unit_cache_destroy(struct unit_cache *cache);             /* NULL allowed */
size_t unit_cache_whole_count(const struct unit_cache *cache); /* heads that are; NULL: 0 */
uint64_t unit_cache_bytes(const struct unit_cache *cache);     /* of the device's memory, that it has; NULL: 0 */
uint64_t unit_cache_tokens(const struct unit_cache *cache); /* of a sequence, that each KV head has slots for as rows */

/* Every layer's slots of these sequences are ready for what follows on the stream: those of a new generation are
 * empty. places: out, [count], or NULL: which of the sequence_capacity ones each has, as long as no other sequence
 * is shown. At most sequence_capacity. */
void unit_cache_show(struct unit_cache *cache, struct stream *stream, const uint64_t *generations, size_t count,
                     uint64_t *places);
/* Units of a layer's lists, of items each of a sequence of its own. */
struct unit_lists {
    size_t layer_index, item_first, item_count; /* item_first: of the layer's, at most sequence_capacity */
    const struct rows_item *items;              /* [item_count]; lists of all KV heads of the layer */
    const uint64_t *generations;                /* [item_count] */
    size_t head_first, head_count;              /* of which heads */
    struct step_lists at;
    struct span missing; /* out, in place of bringing them (fetch of device.h); or none */
};
/* Brings them into slots, by the stream: fetch of device.h. */
void unit_cache_fetch(struct unit_cache *cache, struct stream *stream, const struct unit_lists *lists);
/* Of the sequences that were shown or fetched for since the last end.  is_lost: attention may not have brought what was
 * fetched, so their slots are empty when they are used next. */
void unit_cache_end_step(struct unit_cache *cache, bool is_lost);
/* Of a list's places, in contexts of so many tokens. */
size_t unit_cache_place_stride(uint64_t context_size);
/* Where attend_rows finds what was fetched: of the layer's items, uint64_t [item][KV head of the layer][*stride]. */
struct span unit_cache_places(const struct unit_cache *cache, size_t *stride);
/* What was counted since it was made; waits for the stream. */
enum status unit_cache_counts(struct unit_cache *cache, struct stream *stream, struct fetch_counts *counts,
                              struct error *error) STATUS_CHECKED;
