/* What the files of this folder share about a cache and its sequences. */
#pragma once

#include "cache/columns.h"
#include "cache/kv_cache.h"
#include "cache/page_fractions.h"
#include "cache/page_table.h"
#include "cache/slab.h"

struct kv_tier;
struct sequence_pages;
struct kv_watch;

/* Who owns chunks that come and go (kv_tier.c).  The cache calls it, and knows nothing of it; a cache whose slab holds
 * everything has none. */
struct kv_chunk_owner {
    enum status (*create)(struct kv_cache *cache, struct error *error); /* destroy follows a failure too */
    void (*destroy)(struct kv_cache *cache);
    /* Divides what is left of the budget into slots, after the key index has changed.  STATUS_MEMORY: too little. */
    enum status (*divide)(struct kv_cache *cache, struct error *error);
    bool (*is_divided)(const struct kv_cache *cache);
    uint64_t (*used_bytes)(const struct kv_cache *cache);
    void (*give_back)(struct kv_cache *cache);                             /* memory of chunks, when there are none */
    enum status (*add)(struct kv_sequence *sequence, struct error *error); /* remove follows a failure too */
    void (*remove)(struct kv_sequence *sequence);
    /* Of layers that slide: no row to come sees the chunk. */
    void (*drop)(struct kv_sequence *sequence, uint64_t chunk);
    /* Forgets tokens from token_count on, those behind the length too, which layers have stored of a batch that did not
     * end; the sequence's length is still the old one. */
    void (*truncate)(struct kv_sequence *sequence, uint64_t token_count);
};

struct kv_cache {
    struct device *device; /* borrowed */
    struct kv_cache_config config;
    struct kv_layout layouts[KV_GROUPS_MAX];
    /* By group: [layer of it][column][kv head] chunks, MEMORY_DEVICE or, with rows_in_host, _SHARED; none with a
     * tier.  first_slots: owned; [layer]: its first in its slab */
    struct slab slabs[KV_GROUPS_MAX];
    uint64_t *first_slots;
    struct slab near; /* of the first near_layers layers, MEMORY_DEVICE; or none */
    /* Blocks of the layers from key_index_layer_first on (key_index_block), MEMORY_DEVICE, or with a tier whose RAM has
     * them (kv_key_index_is_in_ram) MEMORY_SHARED; or none. */
    struct slab key_index;
    /* By group; POOL_ROWS, POOL_QUANTIZED: of its slab, or the owner's; POOL_NEAR_ROWS: near; POOL_OTHER: of
     * key_index */
    struct kv_pools pools[KV_GROUPS_MAX];
    struct columns columns;        /* of layers that do not slide */
    struct columns window_columns; /* of layers that slide, numbered apart (kv_windows.h) */
    uint64_t generations;          /* the last one that was given (kv_sequence_generation) */
    uint64_t maps, watch_until_ns; /* maps that were read; until when sequences are watched for the next (kv_watch.h) */
    size_t sequence_count;
    struct kv_sequence *sequences;      /* all that live, a list */
    const struct kv_chunk_owner *owner; /* NULL: every chunk is in the slab */
    struct kv_tier *tier;               /* the owner's */
};

/* With key_index_on_disk: blocks of layer layer_end - 1 (0: of none) are there, from chunk chunk_first on. */
struct key_index_place {
    size_t layer_end;
    uint64_t chunk_first;
};

/* Blocks of the key index of the chunk that grows, which are not on disk yet. */
struct open_blocks {
    uint8_t *blocks;  /* owned, chunks behind it; [layer][kv head][key_index_bytes] */
    uint64_t *chunks; /* [layer]: which chunk that is */
};

/* What a sequence has of layers that slide. */
struct window_columns {
    /* Behind columns; [column_capacity]: a chunk's column and 1, or, with an owner, 1; 0: it has none; NULL: no layer
     * slides */
    uint32_t *columns;
    uint64_t end;                           /* no chunk from here on has one */
    uint64_t kept[KV_WINDOW_SNAPSHOTS + 1]; /* ascending; [kept_count], and room for one more */
    size_t kept_count;
    struct kv_snapshot_plan plan;
};

struct kv_sequence {
    struct kv_cache *cache; /* borrowed */
    struct kv_sequence *next, *previous;
    size_t index;    /* kv_sequence_index */
    uint64_t length; /* tokens stored */
    uint64_t generation, answer;
    uint64_t column_count, column_capacity;
    uint64_t *columns;           /* owned; [column_capacity] */
    struct page_table chunks;    /* [layer][kv head][column_capacity] */
    struct page_table quantized; /* the same for chunks in 4 bits (kv_tier.h); or none */
    /* The same for the blocks beside them; or none.  With key_index_on_disk [place][kv head][column_capacity], and: */
    struct page_table key_index;
    struct open_blocks open;
    struct key_index_place places[KV_KEY_INDEX_PLACES];
    struct sequence_pages *pages; /* the chunk owner's */
    struct inputs *inputs;        /* owned; NULL: none are kept */
    struct kv_state *state;       /* owned; NULL: no layer has one */
    struct window_columns windows;
    struct kv_watch *watch; /* owned, one block of memory (kv_watch.h); NULL: nobody looks */
};

/* Where a chunk's rows are. */
static inline uint32_t kv_chunk_place(const struct kv_sequence *sequence, size_t layer, size_t head, uint64_t chunk) {
    return page_table_place(&sequence->chunks, kv_lane(&sequence->cache->config, layer, head), chunk);
}
static inline bool kv_has_quantized(const struct kv_sequence *sequence) { return sequence->quantized.places != NULL; }
static inline bool kv_has_key_index(const struct kv_sequence *sequence) { return sequence->key_index.places != NULL; }

/* Where the key index is, if not on disk. */
static inline bool kv_key_index_is_in_ram(const struct kv_cache_config *config) {
    return config->key_index_on_disk || !config->device_has_memory;
}

/* With key_index_on_disk: layers whose blocks are in memory at once. */
static inline size_t kv_key_index_places(const struct kv_cache_config *config) {
    return config->key_index_places != 0 ? config->key_index_places : KV_KEY_INDEX_PLACES;
}

/* The place in memory of a layer's blocks of the key index; without key_index_on_disk each layer has its own. */
static inline size_t kv_key_index_place(const struct kv_cache_config *config, size_t layer) {
    return config->key_index_on_disk ? (layer - config->key_index_layer_first) % kv_key_index_places(config) : layer;
}

/* The first of a layer's lanes of the key index. */
static inline size_t kv_key_index_lane(const struct kv_sequence *sequence, size_t layer) {
    const struct kv_cache_config *config = &sequence->cache->config;
    return config->key_index_on_disk ? kv_key_index_place(config, layer) * kv_heads_max(config)
                                     : kv_lane(config, layer, 0);
}

/* A head's blocks of KEY_INDEX_RUN columns are neighbours, because one head after another is scored.  With the blocks
 * of all heads of a column together, 1,152 bytes in every 9,216, each block of a head lies in another page, which
 * misses the TLB where the host of a virtual machine has small pages.  A document has runs of as many chunks, of all
 * heads: they come by one copy. */
enum { KEY_INDEX_RUN = 16 };

/* A chunk's block of the key index. */
static inline struct span kv_key_index_block(const struct kv_sequence *sequence, size_t layer, size_t head,
                                             uint64_t chunk) {
    const uint32_t place = page_table_place(&sequence->key_index, kv_key_index_lane(sequence, layer) + head, chunk);
    return kv_pools_chunk(&sequence->cache->pools[0], place); /* of the key index, which all groups have */
}
/* The blocks of the 16 chunks from that one on lie as in a document, [KV head][16] of each layer. */
bool kv_key_index_run_is_whole(const struct kv_sequence *sequence, uint64_t chunk);

/* Of a group's chunks. */
void kv_group_layout(const struct kv_cache_config *config, size_t group, struct kv_layout *layout);

/* Where a chunk of a column lies in the slabs, which have it. */
static inline uint32_t kv_slab_place(const struct kv_cache *cache, size_t layer, uint64_t column, size_t head) {
    const struct kv_cache_config *config = &cache->config;
    return place_make(layer < config->near_layers ? POOL_NEAR_ROWS : POOL_ROWS,
                      cache->first_slots[layer] + column * kv_heads(config, layer) + head);
}
/* Columns that there are; and of these, how many only a sequence takes that must no longer share one
 * (kv_sequence_own_column): one for each, and another for the moment of a second cut. */
static inline uint64_t kv_spare_columns(const struct kv_cache_config *config) {
    return config->pooled_tokens > 0 ? 2 * config->sequence_capacity : 0;
}
static inline uint64_t kv_column_count(const struct kv_cache_config *config) {
    const uint64_t tokens = config->pooled_tokens > 0 ? config->pooled_tokens : config->token_capacity;
    return kv_chunks_of(tokens) + kv_spare_columns(config);
}

/* Blocks of the key index in memory; and bytes of the tables of a sequence of so many chunks, with the blocks that
 * grow. */
uint64_t kv_key_index_blocks(const struct kv_cache_config *config);
uint64_t kv_sequence_table_bytes(const struct kv_cache_config *config, uint64_t chunk_count);

/* ---- kv_windows.c ---- */

/* The rows of a column, of layers that slide or of the others. */
void kv_copy_chunks(struct kv_cache *cache, struct stream *stream, bool slides, uint64_t to, uint64_t from);

/* Where layers slide; the first one also where none does: */
void kv_windows_deinit(struct kv_sequence *sequence);
/* Rows [length, end) are about to be stored.  May be called again for the same ones. */
void kv_windows_begin(struct kv_sequence *sequence, uint64_t end);
/* It is so long from now on; before sequence->length is. */
void kv_windows_set_length(struct kv_sequence *sequence, uint64_t length);
/* The most tokens, up to length, that it may be made shorter to. */
uint64_t kv_windows_longest(const struct kv_sequence *sequence, uint64_t length);
/* Before a chunk's rows change: it has them alone. */
enum status kv_windows_own(struct kv_sequence *sequence, uint64_t chunk, struct stream *stream, struct error *error)
    STATUS_CHECKED;
/* Whether it has the chunk; of those before its length what the windows of the next row and of its snapshots see. */
bool kv_windows_has(const struct kv_sequence *sequence, uint64_t chunk);
/* Whether a row behind a planned snapshot that is not reached yet sees it. */
bool kv_windows_plan_sees(const struct kv_sequence *sequence, uint64_t chunk);
/* With an owner: a sequence without tokens gets token_count of them, cut out of others that may be cut back to
 * `positions`, ascending. */
void kv_windows_open(struct kv_sequence *sequence, const uint64_t *positions, size_t count, uint64_t token_count);
/* For a sequence without tokens: what the row behind token_count ones of `other` sees, until one of both changes it
 * (kv_windows_own). */
void kv_windows_share(struct kv_sequence *sequence, const struct kv_sequence *other, uint64_t token_count);

/* For a sequence without columns: the first column_count columns of `other`, which both then have.  What lies in them
 * stays as it is as long as both have them. */
void kv_sequence_share_columns(struct kv_sequence *sequence, const struct kv_sequence *other, uint64_t column_count);
/* Of a sequence without tokens. */
void kv_sequence_drop_columns(struct kv_sequence *sequence);
/* Before what lies in a column changes: one of its own, with the same blocks, and the same chunks if they are in the
 * slab.  STATUS_MEMORY: there is no free column. */
enum status kv_sequence_own_column(struct kv_sequence *sequence, uint64_t index, struct stream *stream,
                                   struct error *error) STATUS_CHECKED;

/* A cache whose chunks are the owner's. */
enum status kv_cache_create_owned(struct kv_cache **cache, struct device *device, const struct kv_cache_config *config,
                                  const struct kv_chunk_owner *owner, struct error *error) STATUS_CHECKED;
