#include "cache/kv_windows.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "cache/kv_cache_internal.h"

/* Chunks that the window of one row lies in, at most, without the row's own. */
static uint64_t tail_columns(const struct kv_windows *windows) { return kv_chunks_of(windows->tokens - 1) + 1; }

size_t kv_full_layer_behind(const struct kv_groups *groups, const struct kv_windows *windows, size_t layer_count,
                            size_t count) {
    size_t layer = 0;
    if (windows == NULL) return kv_layer_behind(groups, layer_count, count);
    for (; layer < layer_count; layer++)
        if (kv_layer_heads(groups, 1, layer) > 0 && !kv_layer_slides(groups, windows, layer) && count-- == 0) break;
    return layer;
}

uint64_t kv_window_columns(const struct kv_windows *windows, size_t batch_rows) {
    const uint64_t tails = KV_WINDOW_SNAPSHOTS + 1; /* and the length */
    return tails * tail_columns(windows) + kv_chunks_of(batch_rows) + 1;
}

void kv_copy_chunks(struct kv_cache *cache, struct stream *stream, bool slides, uint64_t to, uint64_t from) {
    const struct kv_cache_config *config = &cache->config;
    for (size_t layer = 0; layer < config->layer_count; layer++) {
        const size_t group = kv_group_of(config, layer);
        const struct kv_pools *pools = &cache->pools[group];
        for (size_t head = 0; kv_slides(config, layer) == slides && head < kv_heads(config, layer); head++)
            cache->device->operations->copy(stream, kv_pools_chunk(pools, kv_slab_place(cache, layer, to, head)),
                                            kv_pools_chunk(pools, kv_slab_place(cache, layer, from, head)),
                                            cache->layouts[group].chunk_bytes);
    }
}

bool kv_windows_has(const struct kv_sequence *sequence, uint64_t chunk) {
    return chunk < sequence->windows.end && sequence->windows.columns[chunk] != 0;
}

static void enter(struct kv_sequence *sequence, uint64_t chunk, bool is_there) {
    const struct kv_cache *cache = sequence->cache;
    const struct kv_cache_config *config = &cache->config;
    for (size_t layer = 0; layer < config->layer_count && cache->owner == NULL; layer++)
        for (size_t head = 0; kv_slides(config, layer) && head < kv_heads(config, layer); head++)
            page_table_set(&sequence->chunks, kv_lane(config, layer, head), chunk,
                           is_there ? kv_slab_place(cache, layer, sequence->windows.columns[chunk] - 1, head)
                                    : PLACE_NOWHERE);
}

static void give_back(struct kv_sequence *sequence, uint64_t chunk) {
    if (!kv_windows_has(sequence, chunk)) return;
    struct kv_cache *cache = sequence->cache;
    if (cache->owner != NULL)
        cache->owner->drop(sequence, chunk);
    else
        columns_give_back(&cache->window_columns, sequence->windows.columns[chunk] - 1);
    sequence->windows.columns[chunk] = 0;
    enter(sequence, chunk, false);
}

static void take(struct kv_sequence *sequence, uint64_t chunk) {
    struct kv_cache *cache = sequence->cache;
    ASSERT(cache->owner != NULL || columns_free_count(&cache->window_columns) > 0); /* invariant 2 of every sequence */
    sequence->windows.columns[chunk] = cache->owner != NULL ? 1 : (uint32_t)columns_take(&cache->window_columns) + 1;
    if (chunk >= sequence->windows.end) sequence->windows.end = chunk + 1;
    enter(sequence, chunk, true);
}

void kv_windows_deinit(struct kv_sequence *sequence) {
    struct window_columns *windows = &sequence->windows;
    for (uint64_t chunk = 0; chunk < windows->end && sequence->cache->owner == NULL; chunk++)
        if (kv_windows_has(sequence, chunk))
            columns_give_back(&sequence->cache->window_columns, windows->columns[chunk] - 1);
    *windows = (struct window_columns){.columns = NULL};
}

static uint64_t tail_begin(const struct kv_sequence *sequence, uint64_t position) {
    return kv_window_begin(sequence->cache->config.windows->tokens, position);
}

static bool sees(const struct kv_sequence *sequence, uint64_t position, uint64_t chunk) {
    return kv_window_sees(sequence->cache->config.windows->tokens, position, chunk);
}

bool kv_windows_plan_sees(const struct kv_sequence *sequence, uint64_t chunk) {
    const struct kv_snapshot_plan *plan = &sequence->windows.plan;
    for (size_t i = 0; i < plan->count; i++)
        if (plan->positions[i] > sequence->length && sees(sequence, plan->positions[i], chunk)) return true;
    return false;
}

void kv_windows_begin(struct kv_sequence *sequence, uint64_t end) {
    ASSERT(end > sequence->length && kv_chunks_of(end) <= sequence->column_capacity);
    for (uint64_t chunk = sequence->length / KV_CHUNK_TOKENS; chunk < kv_chunks_of(end); chunk++)
        if (!kv_windows_has(sequence, chunk)) take(sequence, chunk);
}

/* 0: there is none. */
static uint64_t last_kept(const struct window_columns *windows) {
    return windows->kept_count > 0 ? windows->kept[windows->kept_count - 1] : 0;
}

static void keep(struct window_columns *windows, uint64_t position) {
    if (last_kept(windows) >= position) return;
    windows->kept[windows->kept_count++] = position;
    windows->kept_count = kv_snapshots_thin(&windows->plan, windows->kept, windows->kept_count, KV_WINDOW_SNAPSHOTS);
}

/* By the row behind the length, or one behind a snapshot. */
static bool is_seen(const struct kv_sequence *sequence, uint64_t length, uint64_t chunk) {
    const struct window_columns *windows = &sequence->windows;
    for (size_t i = 0; i < windows->kept_count; i++)
        if (sees(sequence, windows->kept[i], chunk)) return true;
    return sees(sequence, length, chunk);
}

/* Chunks behind the length are a batch's that was dropped, and the next one's. */
static void give_back_unseen(struct kv_sequence *sequence, uint64_t length) {
    for (uint64_t chunk = 0; chunk < length / KV_CHUNK_TOKENS; chunk++)
        if (!is_seen(sequence, length, chunk)) give_back(sequence, chunk);
}

static void grow(struct kv_sequence *sequence, uint64_t length) {
    struct window_columns *windows = &sequence->windows;
    const uint64_t before = sequence->length, last = last_kept(windows);
    for (size_t i = 0; i < windows->plan.count; i++)
        if (windows->plan.positions[i] > before && windows->plan.positions[i] <= length)
            keep(windows, windows->plan.positions[i]);
    if (length == before + 1 && length % KV_STEPS_BETWEEN == 0) keep(windows, length);
    if (last_kept(windows) != last || tail_begin(sequence, before) != tail_begin(sequence, length) ||
        before / KV_CHUNK_TOKENS != length / KV_CHUNK_TOKENS)
        give_back_unseen(sequence, length);
}

static void cut(struct kv_sequence *sequence, uint64_t length) {
    struct window_columns *windows = &sequence->windows;
    ASSERT(kv_windows_longest(sequence, length) == length);
    while (last_kept(windows) > length) windows->kept_count--;
    windows->plan.count = 0;
    for (uint64_t chunk = kv_chunks_of(length); chunk < windows->end; chunk++) give_back(sequence, chunk);
    windows->end = windows->end < kv_chunks_of(length) ? windows->end : kv_chunks_of(length);
    give_back_unseen(sequence, length);
}

void kv_windows_set_length(struct kv_sequence *sequence, uint64_t length) {
    if (length > sequence->length) grow(sequence, length);
    if (length < sequence->length) cut(sequence, length);
}

uint64_t kv_windows_longest(const struct kv_sequence *sequence, uint64_t length) {
    if (length >= sequence->length) return sequence->length;
    for (uint64_t chunk = kv_chunks_of(length); chunk > tail_begin(sequence, length);) {
        if (kv_windows_has(sequence, --chunk)) continue;
        length = chunk * KV_CHUNK_TOKENS; /* no row behind it may be the next */
    }
    return length;
}

void kv_windows_open(struct kv_sequence *sequence, const uint64_t *positions, size_t count, uint64_t token_count) {
    struct window_columns *windows = &sequence->windows;
    ASSERT(sequence->cache->owner != NULL && sequence->length == 0);
    /* Of a batch that was dropped. */
    for (uint64_t chunk = 0; chunk < windows->end; chunk++) windows->columns[chunk] = 0;
    windows->kept_count = 0;
    for (size_t i = 0; i < count && positions[i] <= token_count; i++) keep(windows, positions[i]);
    if (token_count > 0) keep(windows, token_count);
    for (uint64_t chunk = 0; chunk < kv_chunks_of(token_count); chunk++)
        if (is_seen(sequence, token_count, chunk)) take(sequence, chunk);
}

enum status kv_windows_own(struct kv_sequence *sequence, uint64_t chunk, struct stream *stream, struct error *error) {
    struct columns *columns = &sequence->cache->window_columns;
    if (!kv_windows_has(sequence, chunk)) return STATUS_OK;
    const uint64_t shared = sequence->windows.columns[chunk] - 1;
    if (columns->users[shared] == 1) return STATUS_OK;
    take(sequence, chunk);
    kv_copy_chunks(sequence->cache, stream, true, sequence->windows.columns[chunk] - 1, shared);
    columns_give_back(columns, shared);
    /* Other streams read the one, and what the others have may write the other. */
    return sequence->cache->device->operations->stream_synchronize(stream, error);
}

void kv_windows_share(struct kv_sequence *sequence, const struct kv_sequence *other, uint64_t token_count) {
    struct window_columns *windows = &sequence->windows;
    /* Of a batch that was dropped. */
    for (uint64_t chunk = 0; chunk < windows->end; chunk++) give_back(sequence, chunk);
    for (uint64_t chunk = tail_begin(sequence, token_count); chunk < kv_chunks_of(token_count); chunk++) {
        const uint32_t shared = other->windows.columns[chunk];
        ASSERT(shared != 0 && windows->columns[chunk] == 0);
        columns_share(&sequence->cache->window_columns, shared - 1);
        windows->columns[chunk] = shared;
        windows->end = chunk + 1;
        enter(sequence, chunk, true);
    }
    if (token_count > 0) keep(windows, token_count);
}
