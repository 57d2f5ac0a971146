#include <stdlib.h>
#include <string.h>

#include "cache/kv_tier_internal.h"
#include "cache/kv_watch_internal.h"
#include "platform/clock.h"

static const uint64_t watch_ns = UINT64_C(1000000000) * KV_WATCH_SECONDS;

#define ROW(UNIT, MEMBER, NAME, HELP) COUNTER_ROW(TOTAL, UNIT, struct kv_watch_counts, MEMBER, NAME, HELP)
static const struct counter counter_rows[] = {
    ROW(ITEMS, rows, "attended_rows", "Rows of KV attended to."),
    ROW(ITEMS, visible, "visible_rows", "Of so many."),
    ROW(BYTES, read_bytes, "read_bytes", "Pages read from disk."),
    ROW(ITEMS, hits, "hits", "Chunks attended to that were in memory."),
    ROW(ITEMS, misses, "misses", "Chunks attended to that were read."),
    ROW(ITEMS, prefetched, "prefetched", "Chunks read before they were chosen."),
    ROW(ITEMS, prefetch_hits, "prefetch_hits", "Of these, chunks that were then chosen."),
};
#undef ROW
const struct counter_table kv_watch_counters = COUNTER_TABLE("", struct kv_watch_counts, counter_rows);

/* Lines of a map: each layer has as many as the one with the most KV heads. */
static size_t map_lines(const struct kv_cache_config *config) { return config->layer_count * kv_heads_max(config); }

static enum status watch_begin(struct kv_sequence *sequence, struct error *error) {
    const struct kv_cache_config *config = &sequence->cache->config;
    struct kv_watch *watch = sequence->watch;
    const size_t capacity = (size_t)sequence->column_capacity;
    if (watch != NULL && watch->chunk_capacity != capacity) {
        free(watch);
        sequence->watch = watch = NULL;
    }
    if (watch == NULL) {
        const size_t lanes = kv_lane_count(config);
        watch = calloc(1, sizeof *watch + 2 * lanes * capacity + map_lines(config) * KV_MAP_COLUMNS_MAX);
        if (watch == NULL)
            return error_set(error, STATUS_MEMORY, "no memory for a map of %zu chunks", lanes * capacity);
        watch->lane_count = lanes;
        watch->chunk_capacity = capacity;
        watch->rows = (uint8_t *)(watch + 1);
        watch->read = watch->rows + lanes * capacity;
        watch->cells = (char *)(watch->read + lanes * capacity);
        sequence->watch = watch;
    }
    return STATUS_OK;
}

/* ---- noted ---- */

/* What was noted of the last token is over; NULL: nobody looks, or not any more. */
static struct kv_watch *next_token(struct kv_sequence *sequence) {
    struct kv_watch *watch = sequence->watch;
    if (watch == NULL) return NULL;
    if (clock_ns() > sequence->cache->watch_until_ns) {
        free(watch);
        sequence->watch = NULL;
        return NULL;
    }
    counters_add(&kv_watch_counters, &watch->before, &watch->token);
    watch->token = (struct kv_watch_counts){0};
    memset(watch->rows, 0, watch->lane_count * watch->chunk_capacity);
    memset(watch->read, 0, watch->lane_count * watch->chunk_capacity);
    return watch;
}

void kv_watch_begin_step(struct kv_sequence *sequence, uint64_t position) {
    struct kv_watch *watch = next_token(sequence);
    if (watch == NULL) return;
    watch->in_step = watch->has_token = true;
    watch->position = position;
    watch->token_count++;
}

void kv_watch_begin_prompt(struct kv_sequence *sequence) {
    const uint64_t until_ns = sequence->cache->watch_until_ns;
    struct error ignored; /* without memory it is not watched */
    if (until_ns == 0) return;
    const bool is_looked_at = clock_ns() <= until_ns;
    if (sequence->watch == NULL && is_looked_at) (void)!watch_begin(sequence, &ignored);
    if (sequence->watch == NULL || (is_looked_at && !sequence->watch->in_step)) return; /* its next slice */
    struct kv_watch *watch = next_token(sequence);
    if (watch != NULL) watch->in_step = watch->has_token = false;
}

/* Of the KV that the layer attends to. */
static size_t lane_of(const struct kv_sequence *sequence, size_t layer, size_t kv_head) {
    return kv_lane(&sequence->cache->config, kv_sequence_source_layer(sequence, layer), kv_head);
}

void kv_watch_list(struct kv_sequence *sequence, size_t layer, size_t kv_head, const uint32_t *listed, size_t count) {
    struct kv_watch *watch = sequence->watch;
    if (watch == NULL || !watch->in_step) return;
    uint8_t *rows = watch->rows + lane_of(sequence, layer, kv_head) * watch->chunk_capacity;
    for (size_t i = 0; i < count; i++)
        if (listed[i] / KV_CHUNK_TOKENS < watch->chunk_capacity) rows[listed[i] / KV_CHUNK_TOKENS]++;
    watch->token.rows += count;
    watch->token.visible += watch->position + 1;
}

void kv_watch_range(struct kv_sequence *sequence, size_t layer, size_t kv_head, uint64_t first, uint64_t end) {
    struct kv_watch *watch = sequence->watch;
    if (watch == NULL || !watch->in_step || first >= end) return;
    uint8_t *rows = watch->rows + lane_of(sequence, layer, kv_head) * watch->chunk_capacity;
    for (uint64_t chunk = first / KV_CHUNK_TOKENS; chunk < kv_chunks_of(end) && chunk < watch->chunk_capacity;
         chunk++) {
        const uint64_t begin = chunk * KV_CHUNK_TOKENS, behind = begin + KV_CHUNK_TOKENS;
        rows[chunk] = (uint8_t)((behind < end ? behind : end) - (begin > first ? begin : first));
    }
    watch->token.rows += end - first;
    watch->token.visible += watch->position + 1;
}

/* ---- a map ---- */

bool kv_sequence_is_watched(const struct kv_sequence *sequence) { return sequence->watch != NULL; }

/* Whether somebody computes with it from here: its page has arrived. */
static bool has_arrived(const struct kv_sequence *sequence, uint32_t place, bool was_read) {
    return place != PLACE_NOWHERE && (!was_read || sequence->cache->tier == NULL ||
                                      tier_slot_at(sequence->cache->tier, place)->state != SLOT_READING);
}

struct cell {
    uint64_t chunks, in_ram, saved, full, rows, rows_all, read;
};

/* Chunk `chunk` of a lane. */
static void add_chunk(const struct kv_sequence *sequence, size_t lane, uint64_t chunk, struct cell *cell,
                      struct kv_map *map) {
    const struct kv_watch *watch = sequence->watch;
    const size_t entry = lane * sequence->column_capacity + chunk;
    const bool was_read = watch->read[entry] != 0;
    const uint64_t first = chunk * KV_CHUNK_TOKENS;
    const uint64_t stored = sequence->length > first ? sequence->length - first : 0;
    const struct sequence_pages *pages = sequence->pages;
    const bool is_saved = pages != NULL && chunk < pages->written[kv_lane_place(&sequence->cache->config, lane).layer];
    bool in_ram = has_arrived(sequence, sequence->chunks.places[entry], was_read) ||
                  (kv_has_quantized(sequence) && has_arrived(sequence, sequence->quantized.places[entry], was_read));
    if (pages == NULL) in_ram = stored > 0; /* the slab has places for what is to come, too */
    cell->chunks++;
    cell->in_ram += in_ram;
    cell->saved += is_saved;
    cell->full += stored >= KV_CHUNK_TOKENS;
    cell->rows += watch->rows[entry];
    cell->rows_all += stored < KV_CHUNK_TOKENS ? stored : KV_CHUNK_TOKENS;
    cell->read += was_read;
    map->chunks.only_saved += is_saved && !in_ram;
    map->chunks.attended += watch->rows[entry] > 0;
}

/* 0: none, 1: some, 2: at least half, 3: all. */
static unsigned level(uint64_t part, uint64_t all) { return part == 0 ? 0 : part >= all ? 3 : 2 * part >= all ? 2 : 1; }

static char character(const struct cell *cell) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned bits = level(cell->in_ram, cell->chunks);
    bits |= level(cell->rows, cell->rows_all) << KV_CELL_ROWS_SHIFT;
    bits |= cell->read > 0 ? KV_CELL_READ : 0;
    bits |= cell->saved > 0 && cell->saved >= cell->full ? KV_CELL_SAVED : 0;
    return alphabet[bits];
}

static char draw_cell(const struct kv_sequence *sequence, size_t lane, uint64_t column, struct kv_map *map) {
    struct cell cell = {.chunks = 0};
    const uint64_t first = column * map->column_chunks;
    for (uint64_t chunk = first; chunk < first + map->column_chunks && chunk < map->chunk_count; chunk++)
        add_chunk(sequence, lane, chunk, &cell, map);
    map->chunks.all += cell.chunks;
    map->chunks.in_ram += cell.in_ram;
    map->chunks.saved += cell.saved;
    map->chunks.read += cell.read;
    return character(&cell);
}

/* Of a KV head that a layer does not have a line says that nothing is there. */
static void draw(const struct kv_sequence *sequence, struct kv_map *map) {
    const struct kv_cache_config *config = &sequence->cache->config;
    const struct cell nothing = {.chunks = 0};
    char *next = map->cells;
    for (size_t line = 0; line < map_lines(config); line++) {
        const size_t layer = line / kv_heads_max(config), head = line % kv_heads_max(config);
        const bool is_there = head < kv_heads(config, layer);
        for (uint64_t column = 0; column < map->column_count; column++)
            *next++ = is_there ? draw_cell(sequence, kv_lane(config, layer, head), column, map) : character(&nothing);
    }
    *next = '\0';
}

/* ---- its changes ---- */

enum {
    GAP_MAX = 4,      /* cells that are as they were, and are in the run that they lie in */
    RUN_BYTES_MIN = 6 /* 0,"A", */
};

/* Of a run as JSON: OFFSET,"CELLS", */
static size_t run_bytes(struct kv_map_run run) {
    size_t digits = 1;
    for (; run.first >= 10; run.first /= 10) digits++;
    return digits + run.count + 4;
}

/* Those of cells [first, end), as far as there is room.  Returns where it ended. */
static size_t add_changes(struct kv_watch *watch, struct kv_map *map, size_t first, size_t end, size_t *room) {
    for (size_t i = first; i < end; i++) {
        if (map->cells[i] == watch->cells[i]) continue;
        struct kv_map_run run = {i, 0};
        const size_t frame = run_bytes(run);
        if (*room <= frame) return i;
        size_t behind = i + 1;
        for (size_t at = behind; at < end && at < behind + GAP_MAX; at++)
            if (map->cells[at] != watch->cells[at]) behind = at + 1;
        run.count = behind - i < *room - frame ? behind - i : *room - frame;
        memcpy(watch->cells + i, map->cells + i, run.count);
        map->runs[map->run_count++] = run;
        *room -= frame + run.count;
        i += run.count - 1;
    }
    return end;
}

static enum status find_changes(struct kv_watch *watch, struct kv_map *map, size_t count, struct error *error) {
    size_t room = KV_MAP_CHANGES_BYTES;
    map->has_changes = true;
    map->runs = malloc((KV_MAP_CHANGES_BYTES / RUN_BYTES_MIN + 1) * sizeof *map->runs);
    if (map->runs == NULL) return error_set(error, STATUS_MEMORY, "no memory for a map");
    const size_t first = watch->next_cell;
    watch->next_cell = add_changes(watch, map, first, count, &room);
    if (watch->next_cell == count) watch->next_cell = add_changes(watch, map, 0, first, &room);
    for (size_t i = 0; i < count; i++) map->late_count += map->cells[i] != watch->cells[i];
    return STATUS_OK;
}

enum status kv_sequence_read_map(struct kv_sequence *sequence, uint64_t since, struct kv_map *map,
                                 struct error *error) {
    *map = (struct kv_map){.token_count = sequence->length, .chunk_count = sequence->column_count};
    TRY(watch_begin(sequence, error));
    sequence->cache->watch_until_ns = clock_ns() + watch_ns;
    struct kv_watch *watch = sequence->watch;
    map->column_chunks = 1;
    while (map->column_chunks * KV_MAP_COLUMNS_MAX < map->chunk_count) map->column_chunks *= 2;
    map->column_count = (map->chunk_count + map->column_chunks - 1) / map->column_chunks;
    const size_t bytes = map_lines(&sequence->cache->config) * map->column_count;
    const bool is_known = since > 0 && since == watch->number && watch->column_count == map->column_count &&
                          watch->column_chunks == map->column_chunks;
    map->cells = malloc(bytes + 1);
    if (map->cells == NULL) return error_set(error, STATUS_MEMORY, "no memory for a map");
    draw(sequence, map);
    if (is_known) {
        TRY(find_changes(watch, map, bytes, error));
    } else {
        memcpy(watch->cells, map->cells, bytes);
        watch->next_cell = 0;
    }
    watch->column_count = map->column_count;
    watch->column_chunks = map->column_chunks;
    map->has_token = watch->has_token;
    map->position = watch->position;
    map->token = map->watched = watch->token;
    counters_add(&kv_watch_counters, &map->watched, &watch->before);
    map->watched_tokens = watch->token_count;
    map->number = watch->number = ++sequence->cache->maps;
    return STATUS_OK;
}

void kv_map_deinit(struct kv_map *map) {
    free(map->cells);
    free(map->runs);
    *map = (struct kv_map){0};
}
