/* choose on the cpu: one fork-join of up to four phases with a barrier between them.
 *
 *   prepare   the query's side of a score: codes, or projections          a unit is a (row, KV head)
 *   score     every candidate                                             SCORE_TOKENS tokens of one
 *   near      with alpha: how many are near the best                      one
 *   choose    window and top-k (a tree: search) into one ascending list   one
 *
 * Where the heads keep all threads equally busy, one thread scores and chooses for a head, which saves a
 * barrier and finds the scores in L2 (choose_by_head).  Where attend_rows follows at once, a line of each of the
 * candidates' chunks is asked for while they are scored, so that the page walks of attend_rows, which reads at random,
 * find their tables in the caches.
 *
 * A KV head that looks into its best chunks alone (choose_looks) ranks them, scores their units and chooses in one
 * unit, choose_unit: there is little to do.
 *
 * How a kind of key index is scored is its scorer's (cpu_scorer_internal.h).  A tree's candidates are the nodes of the
 * start level; started from its leaves, it is pages that are scored and picked like any (cpu_scorer_tree.c).
 *
 * Units are drawn as tickets; where they are cut depends on the lengths alone (invariant 1 of
 * cpu_device_internal.h).  Several rows are taken in batches whose scratch is bounded. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"
#include "device/cpu/cpu_scorer_internal.h"
#include "platform/clock.h"

static const size_t BATCH_BYTES = 64 << 20; /* of scores; more rows wait for the next batch */

/* ---- units ---- */

static bool is_scored(const struct choose_operation *operation, const struct select_item *item) {
    for (size_t head = 0; head < operation->kv_head_count; head++)
        if (cpu_head_is_scored(item, head)) return true;
    return false;
}

static void prepare_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    (void)scratch;
    size_t row = unit / run->operation->kv_head_count, head = unit % run->operation->kv_head_count;
    run->scorer->prepare(run, head, head_query(run, &run->rows[row], head), prepared_query(run, row, head));
}

/* Whether enough of the candidates' chunks will be attended to that prefetching a line of each pays: 128 pages of 512
 * chunks did (0.4 ms of a step more for scores, 0.65 less for gather), of 2048 they did not (1.7 more, 0.75 less). */
static bool asks_for_pages(const struct select_run *run, const struct select_item *item, size_t head) {
    uint64_t picks = select_item_picks(item, head) / run->operation->layout->unit_tokens;
    return run->operation->attends_next && 8 * picks >= (item->candidate_end - item->candidate_begin) / KV_CHUNK_TOKENS;
}

/* Scores of a unit's parts, the best of which is the unit's; 1: the unit has one score. */
static size_t scores_per_unit(const struct key_index_layout *layout) {
    return layout->unit_tokens / key_index_scored_tokens(layout);
}

/* Query heads whose tokens are scored in one pass. */
static size_t heads_at_once(const struct select_run *run) {
    return run->scorer->scores_apart ? run->group : run->group / run->score_heads;
}

/* Rows of scores that a pass writes: one, or one of each head. */
static size_t rows_at_once(const struct select_run *run) { return run->scorer->scores_apart ? run->score_heads : 1; }

/* Scores of parts of so many tokens, of all heads of a pass, stay in L1 or L2. */
enum { PART_TOKENS = 4096 };

static size_t parts_of_range(const struct select_run *run) {
    return PART_TOKENS / key_index_scored_tokens(run->operation->layout);
}

/* scores: of each head of the pass, run->score_stride apart. */
static void score_heads(const struct score_range *range, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const size_t unit_tokens = run->operation->layout->unit_tokens, rows = rows_at_once(run);
    const size_t parts = scores_per_unit(run->operation->layout);
    struct score_range some = *range;
    some.stride = parts == 1 ? run->score_stride : parts_of_range(run);
    if (parts == 1) {
        run->scorer->score(&some, scores, scratch);
        return;
    }
    float *of_parts = (float *)(void *)scratch;
    scratch += rows * some.stride * sizeof *of_parts;
    for (; some.begin < range->end; some.begin += PART_TOKENS, scores += PART_TOKENS / unit_tokens) {
        some.end = some.begin + PART_TOKENS < range->end ? some.begin + PART_TOKENS : range->end;
        run->scorer->score(&some, of_parts, scratch);
        for (size_t row = 0; row < rows; row++)
            run->device->kernels.group.best(
                &(struct group_best_args){.scores = of_parts + row * some.stride,
                                          .count = (size_t)(some.end - some.begin) / unit_tokens,
                                          .parts = parts,
                                          .best = scores + row * run->score_stride});
    }
}

/* Addresses that a unit looks up, of each kind. */
static size_t window_chunks(const struct select_run *run) {
    return SCORE_TOKENS / KV_CHUNK_TOKENS + 2 + cpu_chunks_before(run->scorer, run->operation->layout);
}

static size_t windows_bytes(const struct select_run *run) {
    return 2 * align_up(window_chunks(run) * sizeof(void *), 64);
}

/* What lies beside the range's chunks, and where these lie themselves: looked up into the first bytes of scratch.  The
 * range then counts from the first of them. */
static void find_range(struct score_range *range, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct select_item *item = run->rows[range->row].item;
    const uint64_t first = range->begin / KV_CHUNK_TOKENS,
                   before = cpu_chunks_before(run->scorer, run->operation->layout);
    range->chunk_first = first > before ? first - before : 0;
    const size_t count = (size_t)((range->end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS - range->chunk_first);
    void **blocks = (void **)(void *)scratch, **then = (void **)(void *)(scratch + windows_bytes(run) / 2);
    ASSERT(count <= window_chunks(run));
    range->begin -= range->chunk_first * KV_CHUNK_TOKENS;
    range->end -= range->chunk_first * KV_CHUNK_TOKENS;
    if (cpu_places(item->view.key_index) != NULL) {
        cpu_find_chunks(item->view.pools, head_key_index(item, range->kv_head) + range->chunk_first, count, blocks);
        range->blocks = (const void *const *)blocks;
    }
    if (!asks_for_pages(run, item, range->kv_head)) return;
    cpu_find_chunks(item->view.pools,
                    cpu_places(item->view.chunks) + range->kv_head * item->view.chunk_stride + range->chunk_first,
                    count, then);
    range->then = (const void *const *)then;
}

static void score_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    size_t row = 0;
    while (row + 1 < run->row_count && run->rows[row + 1].score_first <= unit) row++;
    const struct select_row *r = &run->rows[row];
    size_t head = (unit - r->score_first) / r->score_count, part = (unit - r->score_first) % r->score_count;
    if (!cpu_head_is_scored(r->item, head) || choose_looks(run->operation, r->item, head) > 0) return;
    if (run->scorer->search != NULL) {
        run->scorer->search->score_part(run, row, head, part, scratch);
        return;
    }
    struct score_range range = {.run = run,
                                .row = row,
                                .kv_head = head,
                                .head_count = heads_at_once(run),
                                .begin = r->item->candidate_begin + (uint64_t)part * SCORE_TOKENS};
    range.end = range.begin + SCORE_TOKENS;
    if (range.end > r->item->candidate_end) range.end = r->item->candidate_end;
    find_range(&range, scratch);
    scratch += windows_bytes(run);
    const size_t unit_tokens = run->operation->layout->unit_tokens;
    float *scores = head_scores(run, row, head) + part * (SCORE_TOKENS / unit_tokens);
    for (; range.head_first < run->group; range.head_first += range.head_count, range.then = NULL) {
        score_heads(&range, scores, scratch);
        scores += run->score_stride;
    }
}

/* The scores of each query head of an entry become one per unit. */
static void combine_heads(const struct select_run *run, size_t row, size_t kv_head, size_t units) {
    float scales[GROUP_MAX];
    for (size_t head = 0; head < run->group; head++) {
        const float *q = head_query(run, &run->rows[row], kv_head) + head * run->kv->k_dimension;
        scales[head] = run->operation->scale;
        if (run->scorer->head_scale != NULL) scales[head] *= run->scorer->head_scale(run, q);
    }
    run->device->kernels.group.softmax(&(struct group_softmax_args){.scores = head_scores(run, row, kv_head),
                                                                    .stride = run->score_stride,
                                                                    .heads = run->group,
                                                                    .count = units,
                                                                    .scales = scales});
}

/* Combined scores of a KV head, and how many of them are within alpha of the greatest.  A NaN is near. */
static void near_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    const struct choose_operation *operation = run->operation;
    const size_t row = unit / operation->kv_head_count, head = unit % operation->kv_head_count;
    const struct select_item *item = run->rows[row].item;
    (void)scratch;
    run->near[unit] = 0;
    if (!cpu_head_is_scored(item, head)) return;
    const size_t count = (size_t)(item->candidate_end - item->candidate_begin) / operation->layout->unit_tokens;
    const float *scores = head_scores(run, row, head);
    float greatest = -INFINITY;
    if (scores_by_head(operation)) combine_heads(run, row, head, count);
    for (size_t i = 0; i < count; i++)
        if (scores[i] > greatest) greatest = scores[i];
    const float near_min =
        scores_by_head(operation) ? greatest * expf(-operation->alpha) : greatest - operation->alpha / operation->scale;
    for (size_t i = 0; i < count; i++) run->near[unit] += !(scores[i] < near_min);
}

/* Units that a KV head takes of those that it may. */
static size_t units_taken(const struct select_run *run, size_t row, size_t allowed) {
    const size_t heads = run->operation->kv_head_count;
    size_t sum = 0, choosing = 0;
    if (run->near == NULL) return allowed;
    for (size_t head = 0; head < heads; head++) {
        sum += run->near[row * heads + head];
        choosing += run->near[row * heads + head] > 0;
    }
    return min_size(allowed, max_size((sum + choosing / 2) / choosing, 1));
}

/* ---- a choice among the best chunks ---- */

/* Chunks whose units are scored, ascending: the best of the whole ones, and those that candidates begin and end in. */
struct looked {
    uint32_t *chunks;
    const void **blocks;
    size_t count;
};

static size_t chunks_touched(const struct select_item *item) {
    return (size_t)((item->candidate_end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS -
                    item->candidate_begin / KV_CHUNK_TOKENS);
}

/* Of each chunk: where it lies, twice; scores of the group's heads; its number. */
static size_t looked_bytes(const struct select_run *run, size_t chunks) {
    return align_up(chunks * (2 * sizeof(void *) + run->group * sizeof(float) + sizeof(uint32_t)), 64);
}

static size_t look_bytes(const struct select_run *run, const struct select_item *item, size_t kv_head) {
    const size_t looks = choose_looks(run->operation, item, kv_head), chunks = chunks_touched(item);
    if (looks == 0) return 0;
    return looked_bytes(run, chunks) + run->device->kernels.top_k.scratch_bytes(chunks, looks);
}

/* One score of each chunk, in the first row. */
static void score_chunks(const struct select_run *run, size_t row, size_t kv_head, const void *const *blocks,
                         size_t count, float *scores) {
    float scales[GROUP_MAX];
    for (size_t head = 0; head < run->group; head++) scales[head] = run->operation->scale;
    run->device->kernels.level.chunks(&(struct level_chunks_args){.layout = &run->operation->layout->level,
                                                                  .blocks = blocks,
                                                                  .count = count,
                                                                  .queries = prepared_query(run, row, kv_head),
                                                                  .q = head_query(run, &run->rows[row], kv_head),
                                                                  .q_stride = run->kv->k_dimension,
                                                                  .heads = run->group,
                                                                  .scores = scores,
                                                                  .stride = count});
    run->device->kernels.group.softmax(&(struct group_softmax_args){
        .scores = scores, .stride = count, .heads = run->group, .count = count, .scales = scales});
}

/* In the first bytes of scratch, which it advances. */
static struct looked look(const struct select_run *run, size_t row, size_t kv_head, uint8_t **scratch) {
    const struct select_item *item = run->rows[row].item;
    const size_t count = chunks_touched(item), looks = choose_looks(run->operation, item, kv_head);
    const uint64_t first = item->candidate_begin / KV_CHUNK_TOKENS;
    const size_t lead = item->candidate_begin % KV_CHUNK_TOKENS > 0, trail = item->candidate_end % KV_CHUNK_TOKENS > 0,
                 whole = count - lead - trail;
    void **blocks = (void **)(void *)*scratch;
    struct looked looked = {.blocks = (const void **)(void *)(blocks + count), .count = lead + looks + trail};
    float *scores = (float *)(void *)(looked.blocks + count);
    looked.chunks = (uint32_t *)(void *)(scores + run->group * count);
    *scratch += looked_bytes(run, count);
    ASSERT(looked.count <= count);
    cpu_find_chunks(item->view.pools, head_key_index(item, kv_head) + first, count, blocks);
    score_chunks(run, row, kv_head, (const void *const *)blocks + lead, whole, scores);
    run->device->kernels.top_k.select(&(struct top_k_args){.scores = scores,
                                                           .count = whole,
                                                           .k = looks,
                                                           .index_first = (uint32_t)lead,
                                                           .indices = looked.chunks + lead,
                                                           .scratch = *scratch});
    if (lead > 0) looked.chunks[0] = 0;
    if (trail > 0) looked.chunks[looked.count - 1] = (uint32_t)count - 1;
    for (size_t i = 0; i < looked.count; i++) {
        looked.blocks[i] = blocks[looked.chunks[i]];
        looked.chunks[i] += (uint32_t)first;
    }
    return looked;
}

/* The best units of those chunks, ascending. */
static void choose_looked(const struct select_run *run, size_t row, size_t kv_head, size_t picks, uint32_t *units,
                          uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    const size_t unit_tokens = run->operation->layout->unit_tokens, in_chunk = KV_CHUNK_TOKENS / unit_tokens;
    const struct looked looked = look(run, row, kv_head, &scratch);
    const uint64_t last = (item->candidate_end - 1) % KV_CHUNK_TOKENS + 1;
    const struct score_range range = {.run = run,
                                      .row = row,
                                      .kv_head = kv_head,
                                      .head_count = heads_at_once(run),
                                      .begin = item->candidate_begin % KV_CHUNK_TOKENS,
                                      .end = (looked.count - 1) * KV_CHUNK_TOKENS + last,
                                      .blocks = looked.blocks};
    const size_t count = (size_t)(range.end - range.begin) / unit_tokens;
    float *scores = head_scores(run, row, kv_head);
    score_heads(&range, scores, scratch);
    combine_heads(run, row, kv_head, count);
    run->device->kernels.top_k.select(&(struct top_k_args){.scores = scores,
                                                           .count = count,
                                                           .k = picks,
                                                           .index_first = (uint32_t)(range.begin / unit_tokens),
                                                           .indices = units,
                                                           .scratch = scratch});
    for (size_t i = 0; i < picks; i++)
        units[i] = looked.chunks[units[i] / in_chunk] * (uint32_t)in_chunk + units[i] % (uint32_t)in_chunk;
}

static size_t list_range(uint32_t *list, size_t count, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; row++) list[count++] = (uint32_t)row;
    return count;
}

/* A list that is kept, with the row's window. */
static size_t take_list(const struct select_item *item, const struct kept_list *kept, uint32_t *list) {
    memcpy(list, cpu_address(kept->rows), (size_t)kept->count * sizeof *list);
    return list_range(list, (size_t)kept->count, kept->window_begin, item->position + 1);
}

/* The best units, ascending. */
static void choose_units(const struct select_run *run, size_t row, size_t kv_head, size_t picks, uint32_t *units,
                         uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    const size_t page = run->operation->layout->unit_tokens,
                 count = (size_t)(item->candidate_end - item->candidate_begin) / page;
    const struct cpu_search *search = run->scorer->search;
    if (choose_looks(run->operation, item, kv_head) > 0) {
        choose_looked(run, row, kv_head, picks, units, scratch);
        return;
    }
    if (scores_by_head(run->operation) && run->near == NULL) combine_heads(run, row, kv_head, count);
    if (search != NULL && search->find(run, row, kv_head, units, scratch)) return;
    run->device->kernels.top_k.select(&(struct top_k_args){.scores = head_scores(run, row, kv_head),
                                                           .count = count,
                                                           .k = picks,
                                                           .index_first = (uint32_t)(item->candidate_begin / page),
                                                           .indices = units,
                                                           .scratch = scratch});
}

static void choose_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    size_t heads = run->operation->kv_head_count, page = run->operation->layout->unit_tokens;
    const struct select_item *item = run->rows[unit / heads].item;
    const uint64_t pick_count = select_item_picks(item, unit % heads);
    const size_t entry = (size_t)(item - run->operation->items) * heads + unit % heads;
    uint32_t *list = cpu_rows(run->operation->lists[entry]);
    const struct kept_list *kept = item->kept != NULL ? &item->kept[unit % heads] : NULL;
    if (kept != NULL && kept->is_taken) {
        run->operation->lists[entry].count = take_list(item, kept, list);
        return;
    }
    size_t count = list_range(list, 0, 0, item->candidate_begin);
    if (cpu_head_is_scored(item, unit % heads)) {
        const size_t picks = units_taken(run, unit / heads, (size_t)pick_count / page);
        choose_units(run, unit / heads, unit % heads, picks, list + count, scratch);
        /* a page becomes its tokens, from the last one on */
        for (size_t i = page > 1 ? picks : 0; i > 0; i--) {
            uint32_t first = list[count + i - 1] * (uint32_t)page;
            for (size_t t = 0; t < page; t++) list[count + (i - 1) * page + t] = first + (uint32_t)t;
        }
        count += picks * page;
    } else if (pick_count > 0) {
        count = list_range(list, count, item->candidate_begin, item->candidate_end);
    }
    if (kept != NULL && span_exists(kept->rows) && pick_count > 0)
        memcpy(cpu_address(kept->rows), list, count * sizeof *list);
    count = list_range(list, count, item->candidate_end, item->position + 1);
    ASSERT(run->near != NULL || count == select_item_kept(item, unit % heads));
    run->operation->lists[entry].count = count;
}

/* relaxed: only tickets; what units read of each other is separated by the barrier */
static size_t draw(struct select_run *run, size_t phase) {
    return __atomic_fetch_add(&run->next[phase], 1, __ATOMIC_RELAXED);
}

/* Whether scoring and choosing go head by head.  No unit is then small enough to balance the threads. */
static bool chooses_by_head(const struct select_run *run, const struct pool_worker *worker) {
    size_t entries = run->units[PHASE_CHOOSE];
    return run->units[PHASE_SCORE] > 0 && run->scorer->search == NULL && run->near == NULL &&
           (entries % worker->count == 0 || entries >= 8 * worker->count);
}

/* Both phases.  Their times are those of thread 0: top-k what it spends choosing, score the rest. */
static void choose_by_head(struct select_run *run, const struct pool_worker *worker, uint8_t *scratch) {
    size_t entry, heads = run->operation->kv_head_count;
    while ((entry = draw(run, PHASE_CHOOSE)) < run->units[PHASE_CHOOSE]) {
        const struct select_row *row = &run->rows[entry / heads];
        size_t first = row->score_first + entry % heads * row->score_count;
        for (size_t part = 0; part < row->score_count; part++) score_unit(run, first + part, scratch);
        uint64_t began = clock_ns();
        choose_unit(run, entry, scratch);
        if (worker->index == 0) run->choose_ns += clock_ns() - began;
    }
}

static void select_task(void *context, const struct pool_worker *worker) {
    static void (*const functions[PHASE_COUNT])(struct select_run *, size_t,
                                                uint8_t *) = {[PHASE_PREPARE] = prepare_unit,
                                                              [PHASE_SCORE] = score_unit,
                                                              [PHASE_NEAR] = near_unit,
                                                              [PHASE_CHOOSE] = choose_unit};
    struct select_run *run = context;
    uint8_t *scratch = run->threads + worker->index * run->thread_bytes;
    for (size_t phase = 0; phase < PHASE_COUNT; phase++) {
        size_t unit;
        if (phase == PHASE_SCORE && chooses_by_head(run, worker)) {
            choose_by_head(run, worker, scratch);
            return;
        }
        while ((unit = draw(run, phase)) < run->units[phase]) functions[phase](run, unit, scratch);
        if (run->units[phase] > 0 && phase + 1 < PHASE_COUNT) cpu_barrier(worker);
        if (worker->index == 0 && phase == PHASE_SCORE) run->score_ended_ns = clock_ns();
    }
}

/* ---- planning ---- */

static void plan_row(struct select_run *run, const struct select_item *item) {
    size_t heads = run->operation->kv_head_count;
    uint64_t candidates = item->candidate_end - item->candidate_begin;
    struct select_row row = {.item = item};
    ASSERT(item->candidate_begin <= item->candidate_end && item->candidate_end <= item->position + 1);
    row.score_first = run->units[PHASE_SCORE];
    if (is_scored(run->operation, item)) {
        const struct cpu_search *search = run->scorer->search;
        size_t scores = search != NULL ? search->score_count(run->operation, item)
                                       : (size_t)(candidates / run->operation->layout->unit_tokens);
        row.score_count = search != NULL ? search->part_count(run->operation, item)
                                         : (size_t)((candidates + SCORE_TOKENS - 1) / SCORE_TOKENS);
        run->score_stride = max_size(run->score_stride, align_up(scores, 16));
        run->units[PHASE_SCORE] += row.score_count * heads;
    }
    for (size_t head = 0; head < heads; head++) ASSERT(select_item_picks(item, head) <= candidates);
    run->rows[run->row_count++] = row;
}

/* Scratch of one unit of any phase. */
static size_t unit_scratch(const struct select_run *run) {
    const struct kernels *kernels = &run->device->kernels;
    const struct key_index_layout *layout = run->operation->layout;
    size_t bytes = run->scorer->scratch_bytes != NULL ? run->scorer->scratch_bytes(run) : 0, looks = 0;
    if (scores_per_unit(layout) > 1) bytes += rows_at_once(run) * parts_of_range(run) * sizeof(float);
    for (size_t i = 0; i < run->row_count * run->operation->kv_head_count; i++) {
        const struct select_item *item = run->rows[i / run->operation->kv_head_count].item;
        size_t head = i % run->operation->kv_head_count;
        if (run->rows[i / run->operation->kv_head_count].score_count > 0)
            bytes = max_size(
                bytes, kernels->top_k.scratch_bytes((item->candidate_end - item->candidate_begin) / layout->unit_tokens,
                                                    select_item_picks(item, head) / layout->unit_tokens));
        looks = max_size(looks, look_bytes(run, item, head));
    }
    return windows_bytes(run) + align_up(bytes + looks, 64);
}

static bool plan_scratch(struct select_run *run, struct cpu_device *device) {
    const struct choose_operation *operation = run->operation;
    const size_t entries = run->row_count * operation->kv_head_count;
    const bool prepares = run->units[PHASE_PREPARE] > 0, counts = run->scorer->search != NULL,
               has_alpha = run->units[PHASE_NEAR] > 0;
    struct layout layout = {0};
    if (prepares) run->query_bytes = run->scorer->query_bytes(operation->layout, run->group);
    run->thread_bytes = unit_scratch(run);
    const struct select_row *rows = run->rows;
    for (int round = 0; round < 2; round++) { /* counted, then with memory */
        if (round > 0) layout = (struct layout){.memory = cpu_scratch_reserve(device, layout.used)};
        if (round > 0 && layout.memory == NULL) return false;
        run->rows = layout_take(&layout, run->row_count, sizeof *run->rows);
        run->queries = layout_take(&layout, entries, run->query_bytes);
        run->scores = layout_take(&layout, entries * run->score_heads * run->score_stride, sizeof *run->scores);
        run->tree_counts = counts ? layout_take(&layout, entries, sizeof *run->tree_counts) : NULL;
        run->near = has_alpha ? layout_take(&layout, entries, sizeof *run->near) : NULL;
        run->threads = layout_take(&layout, device->thread_count, run->thread_bytes);
    }
    memcpy(run->rows, rows, run->row_count * sizeof *run->rows);
    if (counts) memset(run->tree_counts, 0, entries * sizeof *run->tree_counts);
    return true;
}

/* Bytes of scores that an item adds, at least. */
static size_t item_bytes(const struct choose_operation *operation, const struct select_item *item) {
    if (!is_scored(operation, item)) return 0;
    uint64_t scores = (item->candidate_end - item->candidate_begin) / operation->layout->unit_tokens;
    return (size_t)scores * (scores_by_head(operation) ? operation->head_count : operation->kv_head_count) *
           sizeof(float);
}

enum { ROWS_MAX = 64, LIST_ROWS_ALONE = 16384 };

/* The items [first, end) that fit one batch. */
static size_t batch_end(const struct choose_operation *operation, size_t first) {
    size_t end = first, bytes = 0;
    do bytes += item_bytes(operation, &operation->items[end++]);
    while (end < operation->item_count && end - first < ROWS_MAX &&
           bytes + item_bytes(operation, &operation->items[end]) <= BATCH_BYTES);
    return end;
}

/* Listing a few windows takes less time than waking a thread. */
static bool is_short(const struct select_run *run) {
    size_t rows = 0;
    const size_t first = (size_t)(run->rows[0].item - run->operation->items) * run->operation->kv_head_count;
    const struct row_list *lists = run->operation->lists + first;
    for (size_t i = 0; i < run->units[PHASE_CHOOSE]; i++) rows += lists[i].count;
    return run->units[PHASE_SCORE] == 0 && rows <= LIST_ROWS_ALONE;
}

static void count_rows(const struct select_run *run) {
    const size_t first = (size_t)(run->rows[0].item - run->operation->items) * run->operation->kv_head_count;
    for (size_t i = 0; i < run->units[PHASE_CHOOSE]; i++)
        *run->operation->list_rows += run->operation->lists[first + i].count;
}

void cpu_choose(struct stream *stream, const struct choose_operation *operation) {
    struct cpu_device *device = stream->device;
    choose_place_lists(operation);
    for (size_t first = 0; first < operation->item_count;) {
        struct select_row rows[ROWS_MAX];
        struct select_run run = {
            .device = device, .operation = operation, .scorer = cpu_scorer_of(operation->layout), .rows = rows};
        run.kv = operation->items[first].view.layout;
        run.group = operation->head_count / operation->kv_head_count;
        ASSERT(run.group * operation->kv_head_count == operation->head_count && run.group <= GROUP_MAX);
        run.score_heads = scores_by_head(operation) ? run.group : 1;
        size_t end = batch_end(operation, first);
        for (; first < end; first++) plan_row(&run, &operation->items[first]);
        run.units[PHASE_CHOOSE] = run.row_count * operation->kv_head_count;
        if (run.units[PHASE_SCORE] > 0 && run.scorer->prepare != NULL)
            run.units[PHASE_PREPARE] = run.units[PHASE_CHOOSE];
        if (run.units[PHASE_SCORE] > 0 && operation->alpha > 0) run.units[PHASE_NEAR] = run.units[PHASE_CHOOSE];
        if (!plan_scratch(&run, device)) return;
        uint64_t began = clock_ns();
        cpu_run(device, is_short(&run), select_task, &run);
        if (run.scorer->search != NULL) run.scorer->search->count(&run);
        if (operation->list_rows != NULL) count_rows(&run);
        if (operation->times == NULL) continue;
        uint64_t ended = clock_ns();
        if (run.choose_ns > 0) run.score_ended_ns = ended - run.choose_ns;
        operation->times->score_ns += run.score_ended_ns - began;
        operation->times->top_k_ns += ended - run.score_ended_ns;
    }
}
