/* kv_watch: what the chunks of a sequence are doing, for people who look (docs/server.md, the map).
 *
 * A sequence is watched from the first kv_sequence_read_map on, or from its next prompt where maps of another sequence
 * are being read, until nobody has read any for KV_WATCH_SECONDS.  Meanwhile the places where chunks are chosen and
 * fetched note here, by chunk, layer and KV head, how many of its rows the last token attended to, and whether it was
 * read for it.  Of a sequence that nobody watches they look at one pointer.  Where chunks lie is not noted: a map reads
 * it from the tables when it is asked for.
 *
 * What is noted changes nothing that is computed.  Its memory is beside the cache's budget: two bytes a chunk.
 * Thread: the engine's. */
#pragma once

#include "base/counter.h"
#include "cache/kv_cache.h"

enum { KV_WATCH_SECONDS = 3, KV_MAP_COLUMNS_MAX = 512 };
/* The changes of a map as JSON. */
enum { KV_MAP_CHANGES_BYTES = 14 << 10 };

/* ---- noted by attention and by the tier ---- */

/* A token begins: its step is the one that is noted.  position of the token. */
void kv_watch_begin_step(struct kv_sequence *sequence, uint64_t position);
/* A prompt begins: what it attends to is not noted, what is read for it is. */
void kv_watch_begin_prompt(struct kv_sequence *sequence);
/* The token's row attends to the listed rows of a KV head, [count]; or to rows [first, end). */
void kv_watch_list(struct kv_sequence *sequence, size_t layer, size_t kv_head, const uint32_t *listed, size_t count);
void kv_watch_range(struct kv_sequence *sequence, size_t layer, size_t kv_head, uint64_t first, uint64_t end);

/* ---- a map ---- */

struct kv_watch_counts {
    uint64_t rows, visible; /* (token, KV head, layer) triples attended to, and that there were */
    uint64_t hits, misses;  /* as in struct kv_tier_statistics, of this sequence alone */
    uint64_t prefetched, prefetch_hits;
    uint64_t read_bytes;
};
extern const struct counter_table kv_watch_counters;

/* What a cell says of its chunks, those of one layer and KV head.  Six bits; in kv_map.cells a character of base64's
 * alphabet. */
enum {
    KV_CELL_RAM = 3, /* mask: 0 none of them is in RAM, 1 some, 2 at least half, 3 all */
    KV_CELL_ROWS_SHIFT = 2,
    KV_CELL_ROWS = 3 << KV_CELL_ROWS_SHIFT, /* mask: the last token attended to none of its rows, 1 some, 2, 3 */
    KV_CELL_READ = 1 << 4,                  /* some were read from disk for the last token, or since the prompt began */
    KV_CELL_SAVED = 1 << 5,                 /* all that are complete are on disk, or on their way there */
};

/* Cells [first, first + count). */
struct kv_map_run {
    size_t first, count;
};

/* Over all layers and KV heads.  saved: on disk, or on their way. */
struct kv_map_chunks {
    uint64_t all, in_ram, saved, only_saved, read, attended;
};

struct kv_map {
    uint64_t token_count;                 /* stored */
    uint64_t chunk_count;                 /* of a KV head; with those that are being computed */
    uint64_t column_count, column_chunks; /* a cell is of column_chunks chunks: a power of two */
    char *cells;                          /* owned; [layer][kv head][column_count], and a zero behind the last */
    struct kv_map_chunks chunks;
    bool has_token;                 /* a step was noted: */
    uint64_t position;              /* of its token */
    struct kv_watch_counts token;   /* of it, or of the prompt that is being computed */
    struct kv_watch_counts watched; /* since the watch began, with the token */
    uint64_t watched_tokens;
    uint64_t number; /* of this map, from 1 on, among all of the cache */
    /* With since: the cells that changed, as far as they fit.  A change that does not comes with a later map, which
     * begins behind those of this one, so that none waits for ever. */
    bool has_changes;
    struct kv_map_run *runs; /* owned; [run_count] */
    size_t run_count;
    uint64_t late_count; /* cells that whoever reads these changes does not have yet */
};

/* At most KV_MAP_COLUMNS_MAX columns.  Begins the watch, or goes on with it.  since: the number of the watch's last
 * map, for its changes; any other number: all cells.  kv_map_deinit follows a failure too. */
enum status kv_sequence_read_map(struct kv_sequence *sequence, uint64_t since, struct kv_map *map, struct error *error)
    STATUS_CHECKED;
void kv_map_deinit(struct kv_map *map);
bool kv_sequence_is_watched(const struct kv_sequence *sequence);
