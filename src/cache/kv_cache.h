/* kv_cache: the chunks of every sequence, in one slab under a budget.
 *
 * Chunks (64 tokens of one KV head of one layer, kernels/attention/kv_layout.h) come from a slab in the device's
 * memory, or in the host's where that is too small (rows_in_host), for each group of layers (cache/kv_groups.h), whose
 * chunks are of one size.  All layers and heads store the same positions, so the unit of allocation is a column: the
 * chunks of every layer and KV head for the same 64 tokens.  In a slab the columns of a layer lie together,
 * [layer][column][kv head]: a sequence that grew alone is one stream per layer, and its first tokens touch little more
 * memory than they need.
 *
 * A sequence holds the numbers of its columns, in order, and for every layer and KV head the places of its chunks
 * (cache/page_table.h), of which the device has a copy (what struct kv_view shows to attention).  These tables are as
 * long as the sequence may become, and take memory only where they are used.  Nothing is allocated after create:
 * reserve and set_length only move columns between the free list and the tables.
 *
 *   1  Every column is in exactly one place: the fresh end of the slab, the free list, or a sequence, or several that
 *      share it (kv_sequence_share; of a tier kv_tier.h).
 *   2  used columns <= sum over sequences of ceil(reserved tokens / 64) <= columns of the slab; equal where nothing is
 *      shared.
 *   3  length <= 64 * columns of the sequence: no stored token is without memory.
 *   4  reserve takes all the columns it needs or none.
 *   5  Rows of a column that several share do not change: who is about to store others gets a copy first.
 *   6  Bytes of a column just taken may be those of a sequence that is gone; nobody reads rows at or
 *      beyond a sequence's length before it has written them.
 *
 * What selection keeps beside a chunk lies in a slab of its own, cut into the same columns: a block per chunk,
 * taken and given back with it, so that it is tiered and saved with the chunk and read without it.
 *
 * In a cache of kv_tier_create (cache/kv_tier.h) chunks come and go: one that is not in RAM is PLACE_NOWHERE, columns
 * are key index alone, and invariant 3 holds for memory and disk together.  With key_index_on_disk the slab has the
 * blocks of key_index_places layers, which the layers use in turns.
 *
 * The slab is never exceeded: a sequence that does not fit gets STATUS_FULL from kv_sequence_reserve,
 * before any work.  Thread: the engine's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "cache/kv_groups.h"
#include "cache/kv_state.h"
#include "cache/kv_windows.h"
#include "device/device.h"
#include "platform/io_queue.h"

struct kv_cache;
struct kv_sequence;

/* Among a few sampled clean slots with chunks that were fetched for choices, a slot that is wanted evicts: */
enum kv_eviction {
    KV_EVICT_FREQUENCY_ADMITTED, /* the one used least, or what was just fetched, unless it was used more (TinyLFU) */
    KV_EVICT_LFU,                /* the one used least (PQCache) */
    KV_EVICT_LRU,                /* the one used longest ago (RetroInfer) */
};

struct kv_cache_config {
    size_t layer_count;   /* that store KV */
    size_t kv_head_count; /* of every layer */
    size_t k_dimension, v_dimension;
    /* Borrowed; where layers differ: the three fields above then say nothing.  Its layers behind the first layer_count
     * attend to the KV of others, which their index stands for where KV is read.  Not with mixes_pages.  NULL: all
     * are alike, one group. */
    const struct kv_groups *groups;
    enum kv_type k_type, v_type;
    /* Borrowed; of these layers a sequence has what its windows see, where a batch appends batch_tokens of it at most.
     * Not with rows_in_host.  NULL: of all layers it has everything. */
    const struct kv_windows *windows;
    size_t batch_tokens;
    /* Floats of the state of layers that have no K and V (a group without heads), and slots of a sequence for them
     * (cache/kv_state.h); with host_bytes, of scratch_bytes, or the device's.  0: there are no such layers. */
    size_t state_floats, state_slots;
    /* MEMORY_DEVICE is not RAM: with host_bytes, kv_tier_device_bytes are no part of these. */
    bool device_has_memory;
    /* The slab is in MEMORY_SHARED, which the device reads too, and the key index in its own.  Not with host_bytes. */
    bool rows_in_host;
    /* With rows_in_host: the rows of the first so many layers are in the device's memory all the same.  They attend to
     * all of them in every step.  0 where layers differ. */
    size_t near_layers;
    uint64_t token_capacity;  /* tokens over all sequences that the slab must hold; rounded up to chunks */
    size_t sequence_capacity; /* sequences alive at once */
    /* With host_bytes: so many of these tokens have memory for key index, which sequences take as they grow
     * (STATUS_FULL when it is used up); 0: all. */
    uint64_t pooled_tokens;
    /* Beside every chunk of the layers from key_index_layer_first on lies a block of so many bytes (a multiple of
     * 64) for selection; 0: none. */
    size_t key_index_bytes, key_index_layer_first;
    /* With host_bytes: the blocks of full chunks lie in their documents alone.  In memory are those of the layer that
     * chooses and of the next one, and each layer's growing chunk (kv_key_index.c). */
    bool key_index_on_disk;
    /* 1, where memory has no room for the next layer's blocks: then nothing is chosen a layer ahead.  0: both. */
    size_t key_index_places;
    /* Building a block reads those of chunks before it, back to a multiple of so many; 0, 1: of none. */
    size_t key_index_group;
    /* RAM for KV and all that belongs to it, beyond which chunks live on disk (cache/kv_tier.h); 0: the slab holds
     * everything.  buffer_bytes of it are the caller's own, for writing behind (0: there is no disk), and
     * scratch_bytes, for choosing; block_tokens: most rows of a sequence
     * that a step appends. */
    uint64_t host_bytes, buffer_bytes, scratch_bytes;
    /* Of scratch_bytes: rows of lists, which are copied out of chunks (attention/list_buffer.h) */
    uint64_t list_bytes;
    size_t block_tokens;
    uint64_t chosen_tokens; /* most rows that a KV head chooses, if it chooses; 0: all that there are */
    /* Of the first layers so many are wanted in RAM whole, as long as host_bytes holds them (kv_tier.h). */
    size_t resident_layers;
    /* Full chunks are rounded to what 4 bits hold (kernels/codec) and lie so on disk; F16 only, and with host_bytes. */
    bool quantized_pages;
    /* With quantized_pages: only a fraction of them is quantized, the others stay rows (kv_sequence_set_fractions). */
    bool mixes_pages;
    enum kv_eviction eviction; /* with host_bytes */
    /* With host_bytes: what the disk reads in the time of one more request.  As many bytes between two wanted parts of
     * a page are read as well.  0: KV_READ_GAP_BYTES. */
    uint64_t read_gap_bytes;
    enum io_backend backend;
};

/* Of the disk in decision 0030. */
enum { KV_READ_GAP_BYTES = 8192 };

enum { KV_KEY_INDEX_PLACES = 2 }; /* at most */

/* Chunks that the first token_count tokens of a head lie in. */
static inline uint64_t kv_chunks_of(uint64_t token_count) {
    return token_count / KV_CHUNK_TOKENS + (token_count % KV_CHUNK_TOKENS != 0);
}

static inline size_t kv_group_count(const struct kv_cache_config *config) {
    return config->groups != NULL ? config->groups->group_count : 1;
}
static inline size_t kv_group_of(const struct kv_cache_config *config, size_t layer) {
    return config->groups != NULL ? config->groups->of_layer[layer] : 0;
}
static inline struct kv_group kv_group_at(const struct kv_cache_config *config, size_t group) {
    if (config->groups != NULL) return config->groups->list[group];
    return (struct kv_group){{config->kv_head_count, config->k_dimension, config->v_dimension}, config->layer_count};
}
/* Whether a sequence has of the layer what its windows see. */
static inline bool kv_slides(const struct kv_cache_config *config, size_t layer) {
    return config->windows != NULL && config->windows->slides[layer];
}
/* KV heads of a layer; the most of any layer; of all layers. */
static inline size_t kv_heads(const struct kv_cache_config *config, size_t layer) {
    return kv_layer_heads(config->groups, config->kv_head_count, layer);
}
static inline size_t kv_heads_max(const struct kv_cache_config *config) {
    return config->groups != NULL ? kv_groups_heads_max(config->groups) : config->kv_head_count;
}
/* A head's lane; layer may be layer_count. */
static inline size_t kv_lane(const struct kv_cache_config *config, size_t layer, size_t kv_head) {
    return kv_layer_lane(config->groups, config->kv_head_count, layer, kv_head);
}
static inline size_t kv_lane_count(const struct kv_cache_config *config) {
    return kv_lane(config, config->layer_count, 0);
}
struct kv_lane_place {
    size_t layer, kv_head;
};
static inline struct kv_lane_place kv_lane_place(const struct kv_cache_config *config, size_t lane) {
    if (config->groups == NULL)
        return (struct kv_lane_place){lane / config->kv_head_count, lane % config->kv_head_count};
    const size_t layer = kv_groups_layer(config->groups, lane);
    return (struct kv_lane_place){layer, lane - config->groups->lane_first[layer]};
}

/* With host_bytes 0: the slab holds everything.  Else kv_tier_create makes it. */
enum status kv_cache_create(struct kv_cache **cache, struct device *device, const struct kv_cache_config *config,
                            struct error *error) STATUS_CHECKED;
void kv_cache_destroy(struct kv_cache *cache);
/* Bytes of K, V and key index of one token over all layers, chunk layout included; UINT64_MAX: they do not fit. */
uint64_t kv_cache_bytes_per_token(const struct kv_cache_config *config);
/* The same of a sequence of token_count tokens, of layers that slide what it may have at most; and the most tokens
 * whose bytes these are. */
uint64_t kv_cache_sequence_bytes(const struct kv_cache_config *config, uint64_t token_count);
uint64_t kv_cache_fitting_tokens(const struct kv_cache_config *config, uint64_t bytes);
size_t kv_cache_chunk_bytes_max(const struct kv_cache_config *config); /* of a layer's chunk, at most */
/* Another kind of key index: the blocks of the sequences that live must be built anew.  Views become invalid.  When
 * it fails there is no key index (key_index_bytes is 0). */
enum status kv_cache_set_key_index(struct kv_cache *cache, size_t key_index_bytes, size_t key_index_layer_first,
                                   struct error *error) STATUS_CHECKED;
/* Of a cache without sequences: the memory that there was KV in goes back to the system. */
void kv_cache_give_back(struct kv_cache *cache);
uint64_t kv_cache_used_bytes(const struct kv_cache *cache); /* states of its sequences with it */
/* Of one sequence's states: as much memory as its slots, of which those that were never used take none. */
static inline uint64_t kv_states_bytes(const struct kv_cache_config *config) {
    return config->state_slots * (uint64_t)config->state_floats * sizeof(float);
}
/* Of the page tables of a sequence of so many chunks, in MEMORY_DEVICE. */
uint64_t kv_sequence_device_table_bytes(const struct kv_cache_config *config, uint64_t chunk_count);
uint64_t kv_cache_used_device_bytes(const struct kv_cache *cache); /* of those, in MEMORY_DEVICE */

/* Of a layer's chunks. */
const struct kv_layout *kv_cache_layer_layout(const struct kv_cache *cache, size_t layer_index);
/* Of all chunks, of a cache whose layers with K and V are alike. */
const struct kv_layout *kv_cache_layout(const struct kv_cache *cache);
const struct kv_layout *kv_sequence_layer_layout(const struct kv_sequence *sequence, size_t layer_index);
/* The layer whose KV a layer attends to. */
size_t kv_sequence_source_layer(const struct kv_sequence *sequence, size_t layer_index);
const struct kv_cache_config *kv_cache_get_config(const struct kv_cache *cache); /* with the key index of now */

/* token_capacity: what the sequence may become at most (more than the slab holds is cut to that).
 * STATUS_FULL: as many sequences live as the cache was made for.  Destroy before the cache. */
enum status kv_sequence_create(struct kv_sequence **sequence, struct kv_cache *cache, uint64_t token_capacity,
                               struct error *error) STATUS_CHECKED;
void kv_sequence_destroy(struct kv_sequence *sequence);
/* Of layers that have one; NULL: none has. */
struct kv_state *kv_sequence_state(const struct kv_sequence *sequence);
/* Makes room for tokens [0, token_count); STATUS_FULL names the bytes needed and free, and nothing has
 * changed.  Room that is already there is kept. */
enum status kv_sequence_reserve(struct kv_sequence *sequence, uint64_t token_count, struct error *error) STATUS_CHECKED;
/* Before rows [length, end), which are reserved, are stored: the chunks of layers that slide have a place, and so have
 * states up to state_end.  May be called again for the same rows. */
void kv_sequence_begin_rows(struct kv_sequence *sequence, uint64_t state_end, uint64_t end);
/* Lengths that it may be cut back to, at most, where that is not any; 0: it may be cut to any.  Between two of a prompt
 * should lie snapshot_step tokens at least. */
size_t kv_sequence_snapshots(const struct kv_sequence *sequence);
uint64_t kv_sequence_snapshot_step(const struct kv_sequence *sequence);
/* kv_snapshots_plan, of as many as there may be at most. */
void kv_sequence_plan_snapshots(struct kv_sequence *sequence, const uint64_t *positions, size_t count, uint64_t turn);
/* Tokens stored; set by the engine after a step, to at most what is reserved. */
uint64_t kv_sequence_length(const struct kv_sequence *sequence);
void kv_sequence_set_length(struct kv_sequence *sequence,
                            uint64_t token_count); /* shorter than now gives columns back */
/* The most tokens, up to token_count, that it may be made shorter to. */
uint64_t kv_sequence_cut_of(const struct kv_sequence *sequence, uint64_t token_count);
/* For an empty sequence, of a cache whose slab holds everything: the first token_count tokens of `other`, which goes
 * on.  Both then have the columns of full chunks; of the chunk behind them the rows are copied, and its key index is to
 * be built.  Neither has inputs (cache/inputs.h); `other` may be cut to token_count.  STATUS_FULL as
 * kv_sequence_reserve: nothing has changed. */
enum status kv_sequence_share(struct kv_sequence *sequence, const struct kv_sequence *other, uint64_t token_count,
                              struct stream *stream, struct error *error) STATUS_CHECKED;
/* Before rows are appended: the chunk that grows is not shared any more, where a cut has made it grow again.  Nothing
 * with a tier, which sees to it at the cut.  STATUS_MEMORY: there is no free column. */
enum status kv_sequence_own_tail(struct kv_sequence *sequence, struct stream *stream, struct error *error)
    STATUS_CHECKED;
/* A number that no other sequence of the cache has or had, and that is another one after every set_length that did not
 * add tokens: as long as it stays, all that was ever known of the sequence's first tokens is true. */
uint64_t kv_sequence_generation(const struct kv_sequence *sequence);
/* The same, but that it stays after a step that failed and left the length as it was: the step is done again with the
 * same token.  Another one when the sequence is made shorter, and when somebody says that what follows is another
 * answer. */
uint64_t kv_sequence_answer(const struct kv_sequence *sequence);
void kv_sequence_begin_answer(struct kv_sequence *sequence);
/* Below the cache's sequence_capacity; no other sequence that lives has it, but one that lived may have had it. */
size_t kv_sequence_index(const struct kv_sequence *sequence);
/* For operations that follow on the stream, until places change: when the sequence is reserved, shortened or destroyed,
 * and with a tier when chunks come or go.  The view itself stays the same until the sequence is destroyed, or the key
 * index changes; kv_sequence_update brings its tables up to date. */
struct kv_view kv_sequence_view(struct kv_sequence *sequence, struct stream *stream, size_t layer_index);
void kv_sequence_update(struct kv_sequence *sequence, struct stream *stream, size_t layer_index);
/* The same by operations that are on the stream already and take what is written here (update_places), of one of the
 * tables that the view names: of chunks, or of those in 4 bits, where it has them.  [1 + every place of the layer]. */
void kv_sequence_write_update(struct kv_sequence *sequence, size_t layer_index, bool quantized,
                              struct place_delta *written);
/* The same of chunks, for a step that has failed, whose attention reads something nevertheless: a chunk that is nowhere
 * is said to be where the one of `position` is, until the next update. */
void kv_sequence_write_cover(struct kv_sequence *sequence, size_t layer_index, uint64_t position,
                             struct place_delta *written);
/* The device's copy of the whole table that such an operation changes; none: the sequence has no such table. */
struct span kv_sequence_table(const struct kv_sequence *sequence, bool quantized);
/* The host's own table of where the rows of a KV head are now, [chunk]; PLACE_NOWHERE: they are not in memory. */
const uint32_t *kv_sequence_places(const struct kv_sequence *sequence, size_t layer_index, size_t kv_head);
/* A chunk's rows in the device's memory, or with a tier in the host's; NULL: they are not in memory. */
struct span kv_sequence_chunk(const struct kv_sequence *sequence, size_t layer_index, size_t kv_head, uint64_t chunk);
