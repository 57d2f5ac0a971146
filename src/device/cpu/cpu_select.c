/* attend_selected on the cpu: one fork-join of five phases with a barrier after each.
 *
 *   prepare   the query's side of a score: codes, or projections          a unit is a (row, KV head)
 *   score     every candidate                                             SCORE_TOKENS tokens of one
 *   choose    window and top-k (a tree: search) into one ascending list   one
 *   attend    partials over the list, in ranges of dense attention's size one range of one
 *   finish    partials merged in the order of the ranges                  one
 *
 * Where the heads keep all threads equally busy, one thread scores and chooses for a head, which saves a
 * barrier and finds the scores in L2 (choose_by_head).  While candidates are scored, a line of each of their
 * chunks is asked for, so that the page walks of attend, which reads at random, find their tables in the caches.
 *
 * A tree's candidates are the nodes of the start level; started from its leaves, it is pages that are scored and picked
 * like any (cpu_select_tree.c).
 *
 * An operation that only chooses has no units in the last two, one with given lists none in the first three.
 * Units are drawn as tickets; where they are cut depends on the lengths alone (invariant 1 of
 * cpu_device_internal.h).  A list of all rows goes through the ranges that dense attention cuts, so that it gives
 * the same sums where a kernel attends to a list as it does to a range.  Several rows are taken in
 * batches whose scratch is bounded. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"
#include "device/cpu/cpu_select_internal.h"
#include "platform/clock.h"

static const size_t BATCH_BYTES = 64 << 20; /* of lists and scores; more rows wait for the next batch */

/* ---- units ---- */

static bool is_scored(const struct attend_selected_operation *operation, const struct select_item *item) {
    for (size_t head = 0; head < operation->kv_head_count; head++)
        if (operation->given == NULL && cpu_head_is_scored(item, head)) return true;
    return false;
}

static bool wants_mass(const struct attend_selected_operation *operation) {
    return operation->layout->kind == METADATA_MASS && operation->mass_weight > 0;
}

static bool only_chooses(const struct attend_selected_operation *operation) {
    return operation->out == NULL && !wants_mass(operation);
}

/* The rows that a KV head attends to. */
static const uint32_t *head_list(const struct select_run *run, size_t row, size_t kv_head) {
    const struct attend_selected_operation *operation = run->operation;
    if (operation->given == NULL)
        return run->lists + (row * operation->kv_head_count + kv_head) * run->list_stride;
    size_t item = (size_t)(run->rows[row].item - operation->items);
    return operation->given + (item * operation->kv_head_count + kv_head) * operation->chosen_stride;
}

static void prepare_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    (void)scratch;
    const struct attend_selected_operation *operation = run->operation;
    const struct metadata_layout *layout = operation->layout;
    size_t row = unit / operation->kv_head_count, head = unit % operation->kv_head_count;
    size_t dimension = run->kv->k_dimension;
    const float *q = head_query(run, &run->rows[row], head);
    uint8_t *prepared = prepared_query(run, row, head);
    if (layout->kind == METADATA_HASH)
        run->device->kernels.hash.encode(
            &(struct hash_encode_args){.weights = operation->weights + head * dimension * layout->hash.bits,
                                       .dimension = dimension,
                                       .bits = layout->hash.bits,
                                       .x = q,
                                       .x_stride = dimension,
                                       .count = run->group,
                                       .codes = prepared});
    else
        run->device->kernels.project.rows(
            &(struct project_args){.weights = operation->weights + head * dimension * layout->columns,
                                   .dimension = dimension,
                                   .columns = layout->columns,
                                   .x = q,
                                   .x_stride = dimension,
                                   .count = run->group,
                                   .out = (float *)(void *)prepared,
                                   .out_stride = layout->columns});
}

static size_t score_keys_scratch(const struct kernels *kernels, const struct kv_layout *kv) {
    return align_up(kernels->score.scratch_bytes(kv->k_dimension), 64) +
           (SCORE_TOKENS / KV_BLOCK_TOKENS + 1) * sizeof(void *);
}

/* The keys of a block of 8 tokens lie together, so blocks are what the kernel takes rows from. */
static void score_keys(const struct select_run *run, size_t row, size_t head, uint64_t begin, uint64_t end,
                       float *scores, uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    const struct kernels *kernels = &run->device->kernels;
    void *const *chunks = item->view.chunks + head * item->view.chunk_stride;
    const void **blocks =
        (const void **)(void *)(scratch + align_up(kernels->score.scratch_bytes(run->kv->k_dimension), 64));
    uint64_t first = begin / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    ASSERT(run->kv->k_type == KV_F16 && end - begin <= SCORE_TOKENS);
    for (uint64_t token = first; token < end; token += KV_BLOCK_TOKENS)
        blocks[(token - first) / KV_BLOCK_TOKENS] =
            kv_block(run->kv, chunks[token / KV_CHUNK_TOKENS], token % KV_CHUNK_TOKENS);
    kernels->score.rows(&(struct score_args){.blocks = blocks,
                                             .block_rows = KV_BLOCK_TOKENS,
                                             .columns = run->kv->k_dimension,
                                             .row_begin = begin - first,
                                             .row_end = end - first,
                                             .q = head_query(run, &run->rows[row], head),
                                             .q_stride = run->kv->k_dimension,
                                             .heads = run->group,
                                             .aggregate = run->operation->layout->aggregate,
                                             .scores = scores,
                                             .scratch = scratch});
}

/* Whether so many of the candidates' chunks will be attended that a line of each is worth its while: 128 pages of
 * 512 chunks were (score 0.4 ms of a step more, gather 0.65 less), of 2048 they were not (1.7 more, 0.75 less). */
static bool asks_for_pages(const struct select_run *run, const struct select_item *item, size_t head) {
    uint64_t picks = select_item_picks(item, head) / run->operation->layout->unit_tokens;
    return !only_chooses(run->operation) &&
           8 * picks >= (item->candidate_end - item->candidate_begin) / KV_CHUNK_TOKENS;
}

/* Scores of tokens [begin, end) of the sequence, one per unit_tokens or token. */
static void score_tokens(const struct select_run *run, size_t row, size_t head, uint64_t begin, uint64_t end,
                         float *scores, uint8_t *scratch) {
    const struct metadata_layout *layout = run->operation->layout;
    const struct select_item *item = run->rows[row].item;
    const void *const *blocks = head_metadata(item, head);
    const void *const *then = asks_for_pages(run, item, head)
                                  ? (const void *const *)item->view.chunks + head * item->view.chunk_stride
                                  : NULL;
    switch (layout->kind) {
    case METADATA_NONE:
    case METADATA_TREE: break; /* cpu_tree_score */
    case METADATA_ABSTRACT:
        run->device->kernels.abstract.score(
            &(struct abstract_score_args){.layout = &layout->abstract,
                                          .kind = layout->abstract_kind,
                                          .aggregate = layout->aggregate,
                                          .abstracts = blocks,
                                          .page_begin = begin / layout->unit_tokens,
                                          .page_end = end / layout->unit_tokens,
                                          .q = head_query(run, &run->rows[row], head),
                                          .q_stride = run->kv->k_dimension,
                                          .group = run->group,
                                          .then = then,
                                          .scores = scores,
                                          .scratch = scratch});
        break;
    case METADATA_KEYS: score_keys(run, row, head, begin, end, scores, scratch); break;
    case METADATA_HASH:
        run->device->kernels.hash.score(&(struct hash_score_args){.layout = &layout->hash,
                                                                  .blocks = blocks,
                                                                  .token_begin = begin,
                                                                  .token_end = end,
                                                                  .codes = prepared_query(run, row, head),
                                                                  .group = run->group,
                                                                  .use_norms = layout->use_norms,
                                                                  .then = then,
                                                                  .scores = scores,
                                                                  .scratch = scratch});
        break;
    case METADATA_PARTIAL:
        run->device->kernels.score.rows(
            &(struct score_args){.blocks = blocks,
                                 .block_rows = KV_CHUNK_TOKENS,
                                 .columns = layout->columns,
                                 .row_begin = begin,
                                 .row_end = end,
                                 .q = (const float *)(const void *)prepared_query(run, row, head),
                                 .q_stride = layout->columns,
                                 .heads = run->group,
                                 .aggregate = layout->aggregate,
                                 .then = then,
                                 .scores = scores,
                                 .scratch = scratch});
        break;
    case METADATA_MASS:
        for (uint64_t token = begin; token < end; token++)
            scores[token - begin] = ((const float *)blocks[token / KV_CHUNK_TOKENS])[token % KV_CHUNK_TOKENS];
        break;
    }
}

static bool scores_by_best_token(const struct metadata_layout *layout) {
    return layout->unit_tokens > 1 && metadata_scores_tokens(layout);
}

/* A NaN is the best (top_k.h). */
static void best_of_units(const float *scores, size_t count, size_t tokens, float *best) {
    for (size_t i = 0; i < count; i++) {
        best[i] = scores[i * tokens];
        for (size_t t = 1; t < tokens; t++)
            if (!(scores[i * tokens + t] <= best[i]) && best[i] == best[i]) best[i] = scores[i * tokens + t];
    }
}

static void score_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    size_t row = 0;
    while (row + 1 < run->row_count && run->rows[row + 1].score_first <= unit) row++;
    const struct select_row *r = &run->rows[row];
    size_t head = (unit - r->score_first) / r->score_count, part = (unit - r->score_first) % r->score_count;
    if (!cpu_head_is_scored(r->item, head)) return;
    if (run->operation->layout->kind == METADATA_TREE) {
        cpu_tree_score(run, row, head, part, scratch);
        return;
    }
    uint64_t begin = r->item->candidate_begin + (uint64_t)part * SCORE_TOKENS, end = begin + SCORE_TOKENS;
    if (end > r->item->candidate_end) end = r->item->candidate_end;
    const size_t unit_tokens = run->operation->layout->unit_tokens;
    float *scores = run->scores + (row * run->operation->kv_head_count + head) * run->score_stride +
                    part * (SCORE_TOKENS / unit_tokens);
    if (!scores_by_best_token(run->operation->layout)) {
        score_tokens(run, row, head, begin, end, scores, scratch);
        return;
    }
    float *of_tokens = (float *)(void *)scratch;
    score_tokens(run, row, head, begin, end, of_tokens, scratch + SCORE_TOKENS * sizeof *of_tokens);
    best_of_units(of_tokens, (size_t)(end - begin) / unit_tokens, unit_tokens, scores);
}

static size_t list_range(uint32_t *list, size_t count, uint64_t begin, uint64_t end) {
    for (uint64_t row = begin; row < end; row++) list[count++] = (uint32_t)row;
    return count;
}

static void choose_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    size_t heads = run->operation->kv_head_count, page = run->operation->layout->unit_tokens;
    const struct select_item *item = run->rows[unit / heads].item;
    const uint64_t pick_count = select_item_picks(item, unit % heads);
    uint32_t *list = run->lists + unit * run->list_stride;
    size_t count = list_range(list, 0, 0, item->candidate_begin);
    if (cpu_head_is_scored(item, unit % heads)) {
        size_t picks = pick_count / page;
        if (tree_is_searched(run->operation))
            cpu_tree_search(run, unit / heads, unit % heads, list + count, scratch);
        else
            run->device->kernels.top_k.select(
                &(struct top_k_args){.scores = run->scores + unit * run->score_stride,
                                     .count = (item->candidate_end - item->candidate_begin) / page,
                                     .k = picks,
                                     .index_first = (uint32_t)(item->candidate_begin / page),
                                     .indices = list + count,
                                     .scratch = scratch});
        for (size_t i = page > 1 ? picks : 0; i > 0; i--) { /* a page becomes its tokens, from the last on */
            uint32_t first = list[count + i - 1] * (uint32_t)page;
            for (size_t t = 0; t < page; t++) list[count + (i - 1) * page + t] = first + (uint32_t)t;
        }
        count += picks * page;
    } else if (pick_count > 0) {
        count = list_range(list, count, item->candidate_begin, item->candidate_end);
    }
    count = list_range(list, count, item->candidate_end, item->position + 1);
    ASSERT(count == select_item_kept(item, unit % heads));
    if (run->operation->chosen != NULL) {
        size_t at = (size_t)(item - run->operation->items) * heads + unit % heads;
        memcpy(run->operation->chosen + at * run->operation->chosen_stride, list, count * sizeof *list);
    }
}

/* Of count rows from `list` on, those before the first chunk that lies in the other form: in 4 bits or as rows. */
static size_t same_form(const struct kv_view *view, size_t head, const uint32_t *list, size_t count,
                        bool *packed) {
    *packed = false;
    if (view->packed == NULL) return count;
    void *const *forms = view->packed + head * view->chunk_stride;
    *packed = forms[list[0] / KV_CHUNK_TOKENS] != NULL;
    size_t end = 1;
    while (end < count && (forms[list[end] / KV_CHUNK_TOKENS] != NULL) == *packed) end++;
    return end;
}

/* An attend unit: `count` rows of the list of one KV head of a row. */
struct attend_part {
    size_t row, head, begin, count;
    const uint32_t *list; /* from begin on */
};

static struct cpu_ranges head_ranges(const struct select_row *row, size_t head) {
    return cpu_ranges_of(select_item_kept(row->item, head));
}

static struct attend_part attend_part_of(const struct select_run *run, size_t unit) {
    struct attend_part part = {0};
    while (part.row + 1 < run->row_count && run->rows[part.row + 1].attend_first <= unit) part.row++;
    const struct select_row *r = &run->rows[part.row];
    struct cpu_ranges ranges = head_ranges(r, 0);
    for (unit -= r->attend_first; unit >= ranges.count; ranges = head_ranges(r, ++part.head))
        unit -= ranges.count;
    part.begin = unit * ranges.rows;
    part.count = min_size(ranges.rows, select_item_kept(r->item, part.head) - part.begin);
    part.list = head_list(run, part.row, part.head) + part.begin;
    return part;
}

/* The partial of `count` rows of a part from its row `first` on, all in one form. */
static void attend_rows(const struct select_run *run, const struct attend_part *part, size_t first,
                        size_t count, bool packed, float *partial, float *row_scores, size_t then,
                        uint8_t *scratch) {
    const struct attention_kernels *kernels = &run->device->kernels.attention;
    const struct select_row *r = &run->rows[part->row];
    const struct kv_view *view = &r->item->view;
    struct attention_gather_args args = {
        .layout = run->kv,
        .chunks =
            (const void *const *)((packed ? view->packed : view->chunks) + part->head * view->chunk_stride),
        .rows = part->list + first,
        .row_count = count,
        .q = head_query(run, r, part->head),
        .q_stride = run->kv->k_dimension,
        .group = run->group,
        .scale = run->operation->scale,
        .softcap = run->operation->softcap,
        .m = partial,
        .s = partial + run->group,
        .o = partial + 2 * run->group,
        .o_stride = run->kv->v_dimension,
        .scores = row_scores,
        .scores_stride = run->list_stride,
        .scratch = scratch,
    };
    if (then < run->units[PHASE_ATTEND] && first + count == part->count) {
        const struct attend_part next = attend_part_of(run, then);
        const struct kv_view *next_view = &run->rows[next.row].item->view;
        bool next_packed;
        args.then_chunks = (const void *const *)(next_view->chunks + next.head * next_view->chunk_stride);
        args.then_rows = next.list;
        args.then_count = same_form(next_view, next.head, next.list, next.count, &next_packed);
        if (next_packed) args.then_count = 0;
    }
    (packed ? kernels->gather_q4 : kernels->gather)(&args);
}

static void merge_partial(const struct select_run *run, float *target, const float *source) {
    const size_t group = run->group, dimension = run->kv->v_dimension;
    run->device->kernels.attention.merge(group, dimension, target, target + group, target + 2 * group,
                                         dimension, source, source + group, source + 2 * group, dimension);
}

/* `then`: the unit that this thread goes on with. */
static void attend_unit(const struct select_run *run, size_t unit, size_t then, uint8_t *scratch) {
    const struct attend_part part = attend_part_of(run, unit);
    const struct select_row *r = &run->rows[part.row];
    float *partial = run->partials + unit * run->partial_stride;
    ASSERT(part.list[part.count - 1] <= r->item->position);
    float *row_scores = NULL;
    if (run->row_scores != NULL)
        row_scores = run->row_scores +
                     (part.row * run->operation->kv_head_count + part.head) * run->group * run->list_stride +
                     part.begin;
    float *other = (float *)(void *)scratch; /* of rows behind the first that lie in another form */
    uint8_t *rest = scratch + run->partial_stride * sizeof *other;
    for (size_t first = 0; first < part.count;) {
        bool packed;
        size_t same = same_form(&r->item->view, part.head, part.list + first, part.count - first, &packed);
        attend_rows(run, &part, first, same, packed, first == 0 ? partial : other,
                    row_scores != NULL ? row_scores + first : NULL, then, rest);
        if (first > 0) merge_partial(run, partial, other);
        first += same;
    }
}

/* Adds what the row's attention gave to each token to the token's mass. */
static void add_mass(struct select_run *run, size_t row, size_t head, const float *m, const float *s,
                     float *step_mass) {
    size_t unit = row * run->operation->kv_head_count + head;
    size_t count = select_item_kept(run->rows[row].item, head);
    float scaled[GROUP_MOST];
    for (size_t i = 0; i < run->group; i++) scaled[i] = s[i] / run->operation->mass_weight;
    memset(step_mass, 0, count * sizeof *step_mass);
    run->device->kernels.mass.add(
        &(struct mass_add_args){.scores = run->row_scores + unit * run->group * run->list_stride,
                                .scores_stride = run->list_stride,
                                .group = run->group,
                                .m = m,
                                .s = scaled,
                                .row_count = count,
                                .mass = step_mass});
    const uint32_t *list = head_list(run, row, head);
    void *const *blocks = run->rows[row].item->view.metadata + head * run->rows[row].item->view.chunk_stride;
    for (size_t i = 0; i < count; i++)
        ((float *)blocks[list[i] / KV_CHUNK_TOKENS])[list[i] % KV_CHUNK_TOKENS] += step_mass[i];
}

static void finish_unit(struct select_run *run, size_t unit, uint8_t *scratch) {
    const struct attend_selected_operation *operation = run->operation;
    const struct attention_kernels *kernels = &run->device->kernels.attention;
    size_t row = unit / operation->kv_head_count, head = unit % operation->kv_head_count;
    const struct select_row *r = &run->rows[row];
    size_t group = run->group, dimension = run->kv->v_dimension;
    size_t first = r->attend_first;
    for (size_t before = 0; before < head; before++) first += head_ranges(r, before).count;
    float *target = run->partials + first * run->partial_stride;
    for (size_t range = 1; range < head_ranges(r, head).count; range++)
        merge_partial(run, target, target + range * run->partial_stride);
    if (run->row_scores != NULL) add_mass(run, row, head, target, target + group, (float *)(void *)scratch);
    if (operation->out == NULL) return;
    if (operation->certified != NULL)
        cpu_certify(run, row, head, head_list(run, row, head), target, target + group, scratch);
    kernels->finish(group, dimension, target + group, target + 2 * group, dimension,
                    operation->out + r->item->row * operation->out_stride + head * group * dimension,
                    dimension);
}

/* relaxed: tickets only; what units read of others lies behind the barrier */
static size_t draw(struct select_run *run, size_t phase) {
    return __atomic_fetch_add(&run->next[phase], 1, __ATOMIC_RELAXED);
}

static void attend_units(struct select_run *run, const struct pool_worker *worker, uint8_t *scratch) {
    size_t unit = draw(run, PHASE_ATTEND), units = run->units[PHASE_ATTEND];
    while (unit < units) {
        size_t then = cpu_draws_early(worker, unit, units) ? draw(run, PHASE_ATTEND) : SIZE_MAX;
        attend_unit(run, unit, then, scratch);
        unit = then != SIZE_MAX ? then : draw(run, PHASE_ATTEND);
    }
}

/* Whether score and choose go head by head: no unit is then small enough to even out what one thread has more. */
static bool chooses_by_head(const struct select_run *run, const struct pool_worker *worker) {
    size_t entries = run->units[PHASE_CHOOSE];
    return run->units[PHASE_SCORE] > 0 && run->operation->layout->kind != METADATA_TREE &&
           (entries % worker->count == 0 || entries >= 8 * worker->count);
}

/* Both phases.  Their times are those of thread 0: top-k what it spends choosing, score the rest. */
static void choose_by_head(struct select_run *run, const struct pool_worker *worker, uint8_t *scratch) {
    size_t entry, heads = run->operation->kv_head_count;
    uint64_t choose_ns = 0;
    while ((entry = draw(run, PHASE_CHOOSE)) < run->units[PHASE_CHOOSE]) {
        const struct select_row *row = &run->rows[entry / heads];
        size_t first = row->score_first + entry % heads * row->score_count;
        for (size_t part = 0; part < row->score_count; part++) score_unit(run, first + part, scratch);
        uint64_t began = clock_ns();
        choose_unit(run, entry, scratch);
        choose_ns += clock_ns() - began;
    }
    cpu_barrier(worker);
    if (worker->index != 0) return;
    run->ended_ns[PHASE_CHOOSE] = clock_ns();
    run->ended_ns[PHASE_SCORE] = run->ended_ns[PHASE_CHOOSE] - choose_ns;
}

static void select_task(void *context, const struct pool_worker *worker) {
    static void (*const functions[PHASE_COUNT])(struct select_run *, size_t,
                                                uint8_t *) = {[PHASE_PREPARE] = prepare_unit,
                                                              [PHASE_SCORE] = score_unit,
                                                              [PHASE_CHOOSE] = choose_unit,
                                                              [PHASE_FINISH] = finish_unit};
    struct select_run *run = context;
    uint8_t *scratch = run->threads + worker->index * run->thread_bytes;
    for (size_t phase = 0; phase < PHASE_COUNT; phase++) {
        size_t unit;
        if (phase == PHASE_SCORE && chooses_by_head(run, worker)) {
            choose_by_head(run, worker, scratch);
            phase = PHASE_CHOOSE;
            continue;
        }
        if (phase == PHASE_ATTEND) attend_units(run, worker, scratch);
        while ((unit = draw(run, phase)) < run->units[phase]) functions[phase](run, unit, scratch);
        if (run->units[phase] > 0 && phase + 1 < PHASE_COUNT) cpu_barrier(worker);
        if (worker->index == 0) run->ended_ns[phase] = clock_ns();
    }
}

/* ---- planning ---- */

static void plan_row(struct select_run *run, const struct select_item *item) {
    size_t heads = run->operation->kv_head_count;
    uint64_t candidates = item->candidate_end - item->candidate_begin;
    struct select_row row = {.item = item};
    ASSERT(item->candidate_begin <= item->candidate_end && item->candidate_end <= item->position + 1);
    row.score_first = run->units[PHASE_SCORE];
    row.attend_first = run->units[PHASE_ATTEND];
    if (is_scored(run->operation, item)) {
        bool tree = run->operation->layout->kind == METADATA_TREE;
        size_t scores = tree ? cpu_tree_scores(run->operation, item)
                             : (size_t)(candidates / run->operation->layout->unit_tokens);
        row.score_count = tree ? cpu_tree_score_units(run->operation, item)
                               : (size_t)((candidates + SCORE_TOKENS - 1) / SCORE_TOKENS);
        run->score_stride = max_size(run->score_stride, align_up(scores, 16));
        run->units[PHASE_SCORE] += row.score_count * heads;
    }
    for (size_t head = 0; head < heads; head++) {
        ASSERT(select_item_picks(item, head) <= candidates);
        if (!only_chooses(run->operation)) run->units[PHASE_ATTEND] += head_ranges(&row, head).count;
    }
    run->list_stride = max_size(run->list_stride, align_up(select_item_kept_most(item, heads), 16));
    run->rows[run->row_count++] = row;
}

/* Scratch of one unit of any phase. */
static size_t unit_scratch(const struct select_run *run) {
    const struct kernels *kernels = &run->device->kernels;
    const struct metadata_layout *layout = run->operation->layout;
    size_t bytes = kernels->attention.gather_scratch_bytes(run->group, run->kv);
    bytes = max_size(bytes, kernels->attention.gather_q4_scratch_bytes(run->group, run->kv)) +
            run->partial_stride * sizeof(float);
    if (layout->kind == METADATA_HASH)
        bytes = max_size(bytes, kernels->hash.score_scratch_bytes(&layout->hash, run->group));
    if (layout->kind == METADATA_ABSTRACT)
        bytes = max_size(bytes, kernels->abstract.score_scratch_bytes(&layout->abstract, run->group));
    if (layout->kind == METADATA_PARTIAL)
        bytes = max_size(bytes, kernels->score.scratch_bytes(layout->columns));
    if (layout->kind == METADATA_KEYS) bytes = max_size(bytes, score_keys_scratch(kernels, run->kv));
    if (scores_by_best_token(layout)) bytes += SCORE_TOKENS * sizeof(float);
    if (layout->kind == METADATA_TREE) bytes = max_size(bytes, cpu_tree_scratch_bytes(run));
    if (layout->kind == METADATA_MASS) bytes = max_size(bytes, run->list_stride * sizeof(float));
    if (run->operation->certified != NULL) bytes = max_size(bytes, cpu_certify_scratch_bytes(run));
    for (size_t i = 0; i < run->row_count * run->operation->kv_head_count; i++) {
        const struct select_item *item = run->rows[i / run->operation->kv_head_count].item;
        size_t head = i % run->operation->kv_head_count;
        if (run->rows[i / run->operation->kv_head_count].score_count > 0)
            bytes = max_size(bytes, kernels->top_k.scratch_bytes(
                                        (item->candidate_end - item->candidate_begin) / layout->unit_tokens,
                                        select_item_picks(item, head) / layout->unit_tokens));
    }
    return align_up(bytes, 64);
}

static bool plan_scratch(struct select_run *run, struct cpu_device *device) {
    const struct attend_selected_operation *operation = run->operation;
    size_t entries = run->row_count * operation->kv_head_count, used = 0;
    bool mass = wants_mass(operation), prepares = run->units[PHASE_PREPARE] > 0;
    if (prepares && operation->layout->kind == METADATA_HASH)
        run->query_bytes = align_up(run->group * operation->layout->hash.code_bytes, 64);
    if (prepares && operation->layout->kind == METADATA_PARTIAL)
        run->query_bytes = align_up(run->group * operation->layout->columns * sizeof(float), 64);
    run->partial_stride = align_up(run->group * (2 + run->kv->v_dimension), 16);
    run->thread_bytes = unit_scratch(run);
    size_t rows = cpu_scratch_add(&used, run->row_count * sizeof *run->rows);
    size_t queries = cpu_scratch_add(&used, entries * run->query_bytes);
    size_t scores = cpu_scratch_add(&used, entries * run->score_stride * sizeof *run->scores);
    size_t lists = cpu_scratch_add(
        &used, operation->given == NULL ? entries * run->list_stride * sizeof *run->lists : 0);
    bool counts = operation->layout->kind == METADATA_TREE;
    size_t tree_counts = cpu_scratch_add(&used, counts ? entries * sizeof *run->tree_counts : 0);
    size_t row_scores =
        cpu_scratch_add(&used, mass ? entries * run->group * run->list_stride * sizeof *run->row_scores : 0);
    size_t partials =
        cpu_scratch_add(&used, run->units[PHASE_ATTEND] * run->partial_stride * sizeof *run->partials);
    size_t threads = cpu_scratch_add(&used, device->thread_count * run->thread_bytes);
    uint8_t *memory = cpu_scratch_reserve(device, used);
    if (memory == NULL) return false;
    memcpy(memory + rows, run->rows, run->row_count * sizeof *run->rows);
    run->rows = (struct select_row *)(void *)(memory + rows);
    run->queries = memory + queries;
    run->scores = (float *)(void *)(memory + scores);
    run->lists = (uint32_t *)(void *)(memory + lists);
    run->tree_counts = counts ? (struct tree_counts *)(void *)(memory + tree_counts) : NULL;
    if (counts) memset(run->tree_counts, 0, entries * sizeof *run->tree_counts);
    run->row_scores = mass ? (float *)(void *)(memory + row_scores) : NULL;
    run->partials = (float *)(void *)(memory + partials);
    run->threads = memory + threads;
    return true;
}

/* Bytes of lists and scores that an item adds, at least. */
static size_t item_bytes(const struct attend_selected_operation *operation, const struct select_item *item) {
    uint64_t scores = is_scored(operation, item)
                          ? (item->candidate_end - item->candidate_begin) / operation->layout->unit_tokens
                          : 0;
    return (size_t)(select_item_kept_most(item, operation->kv_head_count) + scores) *
           operation->kv_head_count * sizeof(float);
}

enum { ROWS_MOST = 64 };

/* The items [first, end) that fit one batch. */
static size_t batch_end(const struct attend_selected_operation *operation, size_t first) {
    size_t end = first, bytes = 0;
    do bytes += item_bytes(operation, &operation->items[end++]);
    while (end < operation->item_count && end - first < ROWS_MOST &&
           bytes + item_bytes(operation, &operation->items[end]) <= BATCH_BYTES);
    return end;
}

void cpu_attend_selected(struct stream *stream, const struct attend_selected_operation *operation) {
    struct cpu_device *device = stream->device;
    const struct metadata_layout *layout = operation->layout;
    ASSERT(operation->given == NULL || operation->chosen == NULL);
    ASSERT(!only_chooses(operation) || operation->chosen != NULL);
    for (size_t first = 0; first < operation->item_count;) {
        struct select_row rows[ROWS_MOST];
        struct select_run run = {.device = device, .operation = operation, .rows = rows};
        run.kv = operation->items[first].view.layout;
        run.group = operation->head_count / operation->kv_head_count;
        ASSERT(run.group * operation->kv_head_count == operation->head_count && run.group <= GROUP_MOST);
        size_t end = batch_end(operation, first);
        for (; first < end; first++) plan_row(&run, &operation->items[first]);
        size_t entries = run.row_count * operation->kv_head_count;
        run.units[PHASE_CHOOSE] = operation->given == NULL ? entries : 0;
        run.units[PHASE_FINISH] = only_chooses(operation) ? 0 : entries;
        if (run.units[PHASE_SCORE] > 0 && (layout->kind == METADATA_HASH || layout->kind == METADATA_PARTIAL))
            run.units[PHASE_PREPARE] = entries;
        if (!plan_scratch(&run, device)) return;
        uint64_t began = clock_ns();
        cpu_run(device, false, select_task, &run);
        cpu_tree_count(&run);
        if (operation->times == NULL) continue;
        operation->times->score_ns += run.ended_ns[PHASE_SCORE] - began;
        operation->times->top_k_ns += run.ended_ns[PHASE_CHOOSE] - run.ended_ns[PHASE_SCORE];
        operation->times->attend_ns += clock_ns() - run.ended_ns[PHASE_CHOOSE];
    }
}
