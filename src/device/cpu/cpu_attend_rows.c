/* attend_rows on the cpu: one fork-join of two phases with a barrier between them.
 *
 *   attend   partials over the list, in ranges of dense attention's size   a unit is a range of a KV head of a row
 *   finish   partials merged in the order of the ranges                    a KV head of a row
 *
 * Units are drawn as tickets; where they are cut depends on the lengths of the lists alone (invariant 1 of
 * cpu_device_internal.h).  A list of all rows goes through the ranges that dense attention cuts, and its kernel, and so
 * gives the same sums.  Several rows are taken in batches whose scratch is bounded. */
#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"
#include "platform/clock.h"

enum { ROWS_MAX = 64 }; /* in a batch */

enum rows_phase { PHASE_ATTEND, PHASE_FINISH, PHASE_COUNT };

struct rows_run {
    const struct cpu_device *device;
    const struct attend_rows_operation *operation;
    const struct kv_layout *kv;
    const struct rows_item *items; /* [item_count] of the batch */
    size_t item_count, group;
    size_t attend_first[ROWS_MAX]; /* unit of head 0 of each; also the index of its first partial */
    float *partials;               /* [attend unit][partial_stride]: m[group], s[group], o[group][v_dimension] */
    size_t partial_stride;
    size_t chunk_count; /* that a unit looks up, at most: of a sequence, or units of a list */
    size_t range_rows;  /* of a unit, at most; with places */
    uint8_t *threads;
    size_t thread_bytes;
    size_t units[PHASE_COUNT], next[PHASE_COUNT];
};

/* A thread's scratch.  It looks up the chunks of its next unit before it attends to the current one, which prefetches
 * rows of the next. */
struct rows_thread {
    void **chunks[2];        /* [chunk_count]: those that a unit's rows lie in, in the form that is attended to */
    const uint32_t *rows[2]; /* the unit's rows in them: the list, or */
    uint32_t *renamed[2];    /* [range_rows] */
    size_t current;          /* of the two, which one the unit has */
    uint8_t *scratch;        /* of the kernel */
};

/* `count` rows of the list of one KV head of an item. */
struct rows_part {
    size_t item, head, begin, count;
    const uint32_t *list; /* from begin on */
};

static struct cpu_ranges head_ranges(const struct rows_item *item, size_t head) {
    return cpu_ranges_of(item->lists[head].count);
}

static struct rows_part part_of(const struct rows_run *run, size_t unit) {
    struct rows_part part = {0};
    while (part.item + 1 < run->item_count && run->attend_first[part.item + 1] <= unit) part.item++;
    const struct rows_item *item = &run->items[part.item];
    struct cpu_ranges ranges = head_ranges(item, 0);
    for (unit -= run->attend_first[part.item]; unit >= ranges.count; ranges = head_ranges(item, ++part.head))
        unit -= ranges.count;
    part.begin = unit * ranges.rows;
    part.count = min_size(ranges.rows, item->lists[part.head].count - part.begin);
    part.list = cpu_rows(item->lists[part.head]) + part.begin;
    return part;
}

/* Where fetch has left the units of a part's whole list; NULL: nowhere. */
static const uint64_t *unit_places(const struct rows_run *run, const struct rows_part *part) {
    const struct attend_rows_operation *operation = run->operation;
    const size_t index = (size_t)(run->items - operation->items) + part->item;
    if (!span_exists(operation->places)) return NULL;
    return (const uint64_t *)cpu_address(operation->places) +
           (index * operation->kv_head_count + part->head) * operation->place_stride;
}

/* Of a part's rows from `first` on, the number before the first chunk of the other form (4 bits or rows). */
static size_t same_form(const struct rows_run *run, const struct rows_part *part, size_t first, bool *quantized) {
    const struct kv_view *view = &run->items[part->item].view;
    const uint64_t *places = unit_places(run, part);
    *quantized = false;
    if (cpu_places(view->quantized) == NULL) return part->count - first;
    const uint32_t *forms = cpu_places(view->quantized) + part->head * view->chunk_stride;
    size_t end = first;
    for (; end < part->count; end++) {
        const bool is_q4 = places != NULL ? (places[(part->begin + end) / KV_BLOCK_TOKENS] & CPU_Q4_UNIT) != 0
                                          : forms[part->list[end] / KV_CHUNK_TOKENS] != PLACE_NOWHERE;
        if (end == first) *quantized = is_q4;
        if (is_q4 != *quantized) break;
    }
    return end - first;
}

/* The chunks of the unit's rows, which need not ascend (attention/list_buffer.h).  Where they lie close together all
 * chunks between them are looked up, which takes no branch that is hard to predict. */
static void find_listed(const struct rows_run *run, const struct rows_part *of, void **chunks) {
    const struct rows_part part = *of;
    const struct kv_view *view = &run->items[part.item].view;
    const uint32_t *places = cpu_places(view->chunks) + part.head * view->chunk_stride;
    const uint32_t *forms =
        cpu_places(view->quantized) != NULL ? cpu_places(view->quantized) + part.head * view->chunk_stride : NULL;
    uint32_t lowest = part.list[0], highest = lowest;
    for (size_t i = 0; i < part.count; i++) {
        lowest = part.list[i] < lowest ? part.list[i] : lowest;
        highest = part.list[i] > highest ? part.list[i] : highest;
    }
    const size_t first = lowest / KV_CHUNK_TOKENS, end = highest / KV_CHUNK_TOKENS + 1;
    ASSERT(end <= run->chunk_count);
    if (forms == NULL && end - first <= part.count) {
        cpu_find_chunks(view->pools, places + first, end - first, chunks + first);
        return;
    }
    for (size_t i = 0, last = SIZE_MAX; i < part.count; i++) {
        const size_t chunk = part.list[i] / KV_CHUNK_TOKENS;
        if (chunk == last) continue;
        const bool quantized = forms != NULL && forms[chunk] != PLACE_NOWHERE;
        chunks[chunk] = cpu_chunk(view->pools, quantized ? forms[chunk] : places[chunk]);
        last = chunk;
    }
}

/* Where fetch has left the list's units of 8 tokens: each is taken as the first of a chunk of its own, those of a chunk
 * in 4 bits as of one. */
static void find_units(const struct rows_run *run, const struct rows_part *part, void **chunks, uint32_t *rows) {
    const uint64_t *places = unit_places(run, part);
    const size_t first = part->begin / KV_BLOCK_TOKENS;
    size_t taken = 0; /* of the row before, in chunks */
    for (size_t i = 0; i < part->count; i++) {
        const size_t unit = (part->begin + i) / KV_BLOCK_TOKENS;
        const bool is_q4 = (places[unit] & CPU_Q4_UNIT) != 0;
        void *const at = (void *)(uintptr_t)(is_q4 ? places[unit] & ~(uint64_t)CPU_Q4_MARKS : places[unit]);
        ASSERT(places[unit] != 0);
        if (i == 0 || !is_q4 || chunks[taken] != at) taken = unit - first;
        chunks[taken] = at;
        rows[i] = (uint32_t)(taken * KV_CHUNK_TOKENS) +
                  part->list[i] % (is_q4 ? (uint32_t)KV_CHUNK_TOKENS : (uint32_t)KV_BLOCK_TOKENS);
    }
}

/* The list is all that the row sees, in its order: dense attention's kernel takes it, from where the view says. */
static bool is_everything(const struct rows_run *run, const struct rows_part *part) {
    const struct rows_item *item = &run->items[part->item];
    if (item->lists[part->head].count != item->position + 1 || cpu_places(item->view.quantized) != NULL ||
        span_exists(run->operation->scores))
        return false;
    for (size_t i = 0; i < part->count; i++)
        if (part->list[i] != part->begin + i) return false; /* copies lie as they came (attention/list_buffer.h) */
    return true;
}

static void find_chunks(const struct rows_run *run, size_t unit, struct rows_thread *thread, size_t which) {
    const struct rows_part part = part_of(run, unit);
    const bool has_places = span_exists(run->operation->places) && !is_everything(run, &part);
    thread->rows[which] = has_places ? thread->renamed[which] : part.list;
    if (has_places)
        find_units(run, &part, thread->chunks[which], thread->renamed[which]);
    else
        find_listed(run, &part, thread->chunks[which]);
}

/* Rows of a part, all in one form, and the place of their partial. */
struct rows_piece {
    size_t first, count; /* of the part */
    bool quantized;
    float *partial, *scores; /* scores: NULL where none are wanted */
};

static const float *query_of(const struct rows_run *run, const struct rows_part *part) {
    return cpu_floats(run->operation->q) + run->items[part->item].row * run->operation->q_stride +
           part->head * run->group * run->kv->k_dimension;
}

static void attend_piece(const struct rows_run *run, const struct rows_part *part, const struct rows_piece *piece,
                         size_t then, const struct rows_thread *thread, uint8_t *scratch) {
    const struct attention_kernels *kernels = &run->device->kernels.attention;
    struct attention_gather_args args = {
        .layout = run->kv,
        .chunks = (const void *const *)thread->chunks[thread->current],
        .rows = thread->rows[thread->current] + piece->first,
        .row_count = piece->count,
        .q = query_of(run, part),
        .q_stride = run->kv->k_dimension,
        .group = run->group,
        .scale = run->operation->scale,
        .softcap = run->operation->softcap,
        .m = piece->partial,
        .s = piece->partial + run->group,
        .o = piece->partial + 2 * run->group,
        .o_stride = run->kv->v_dimension,
        .scores = piece->scores,
        .scores_stride = run->operation->scores_stride,
        .scratch = scratch,
    };
    if (then < run->units[PHASE_ATTEND] && piece->first + piece->count == part->count) {
        const struct rows_part next = part_of(run, then);
        bool next_quantized;
        args.then_chunks = (const void *const *)thread->chunks[!thread->current];
        args.then_rows = thread->rows[!thread->current];
        args.then_count = same_form(run, &next, 0, &next_quantized);
        if (next_quantized) args.then_count = 0;
    }
    (piece->quantized ? kernels->gather_q4 : kernels->gather)(&args);
}

static void merge_partial(const struct rows_run *run, float *target, const float *source) {
    const size_t group = run->group, dimension = run->kv->v_dimension;
    run->device->kernels.attention.merge(group, dimension, target, target + group, target + 2 * group, dimension,
                                         source, source + group, source + 2 * group, dimension);
}

static void attend_everything(const struct rows_run *run, const struct rows_part *part,
                              const struct rows_thread *thread, float *partial) {
    const struct attend_rows_operation *operation = run->operation;
    run->device->kernels.attention.decode(&(struct attention_decode_args){
        .layout = run->kv,
        .chunks = (const void *const *)thread->chunks[thread->current],
        .row_begin = part->begin,
        .row_end = part->begin + part->count,
        .q = query_of(run, part),
        .q_stride = run->kv->k_dimension,
        .group = run->group,
        .scale = operation->scale,
        .softcap = operation->softcap,
        .m = partial,
        .s = partial + run->group,
        .o = partial + 2 * run->group,
        .o_stride = run->kv->v_dimension,
        .scratch = thread->scratch,
    });
}

/* The first of the group's query heads, among those of all items. */
static size_t query_head(const struct rows_run *run, size_t item, size_t kv_head) {
    size_t index = (size_t)(run->items - run->operation->items) + item;
    return index * run->operation->head_count + kv_head * run->group;
}

/* `then`: the unit that this thread takes next. */
static void attend_unit(const struct rows_run *run, size_t unit, size_t then, const struct rows_thread *thread) {
    const struct attend_rows_operation *operation = run->operation;
    const struct rows_part part = part_of(run, unit);
    const struct rows_item *item = &run->items[part.item];
    float *partial = run->partials + unit * run->partial_stride;
    ASSERT(part.list[part.count - 1] <= item->position);
    if (is_everything(run, &part)) {
        attend_everything(run, &part, thread, partial);
        return;
    }
    float *scores = NULL;
    if (cpu_floats(operation->scores) != NULL)
        scores = cpu_floats(operation->scores) + query_head(run, part.item, part.head) * operation->scores_stride +
                 part.begin;
    float *other = (float *)(void *)thread->scratch; /* rows after those of one form */
    uint8_t *rest = thread->scratch + run->partial_stride * sizeof *other;
    struct rows_piece piece = {.first = 0};
    for (; piece.first < part.count; piece.first += piece.count) {
        piece.count = same_form(run, &part, piece.first, &piece.quantized);
        piece.partial = piece.first == 0 ? partial : other;
        piece.scores = scores != NULL ? scores + piece.first : NULL;
        attend_piece(run, &part, &piece, then, thread, rest);
        if (piece.first > 0) merge_partial(run, partial, other);
    }
}

static void finish_unit(const struct rows_run *run, size_t unit) {
    const struct attend_rows_operation *operation = run->operation;
    const size_t index = unit / operation->kv_head_count, head = unit % operation->kv_head_count;
    const struct rows_item *item = &run->items[index];
    const size_t group = run->group, dimension = run->kv->v_dimension;
    size_t first = run->attend_first[index];
    for (size_t before = 0; before < head; before++) first += head_ranges(item, before).count;
    float *target = run->partials + first * run->partial_stride;
    for (size_t range = 1; range < head_ranges(item, head).count; range++)
        merge_partial(run, target, target + range * run->partial_stride);
    const float *sinks = cpu_floats(operation->sinks);
    cpu_merge_sinks(&run->device->kernels.attention, sinks != NULL ? sinks + head * group : NULL, group, dimension,
                    (struct cpu_partial){target, target + group, target + 2 * group});
    struct softmax_sum *sums = cpu_sums(operation->sums);
    for (size_t i = 0; i < group && sums != NULL; i++)
        sums[query_head(run, index, head) + i] = (struct softmax_sum){.largest = target[i], .sum = target[group + i]};
    if (cpu_floats(operation->out) == NULL) return;
    run->device->kernels.attention.finish(
        group, dimension, target + group, target + 2 * group, dimension,
        cpu_floats(operation->out) + item->row * operation->out_stride + head * group * dimension, dimension);
}

/* relaxed: only tickets; what units read of each other is separated by the barrier */
static size_t draw(struct rows_run *run, enum rows_phase phase) {
    return __atomic_fetch_add(&run->next[phase], 1, __ATOMIC_RELAXED);
}

static struct rows_thread thread_of(const struct rows_run *run, const struct pool_worker *worker) {
    uint8_t *memory = run->threads + worker->index * run->thread_bytes;
    const size_t table = align_up(run->chunk_count * sizeof(void *), 64);
    const size_t rows = align_up(run->range_rows * sizeof(uint32_t), 64);
    uint8_t *renamed = memory + 2 * table;
    return (struct rows_thread){.chunks = {(void **)(void *)memory, (void **)(void *)(memory + table)},
                                .renamed = {(uint32_t *)(void *)renamed, (uint32_t *)(void *)(renamed + rows)},
                                .scratch = renamed + 2 * rows};
}

static void rows_task(void *context, const struct pool_worker *worker) {
    struct rows_run *run = context;
    struct rows_thread thread = thread_of(run, worker);
    size_t unit = draw(run, PHASE_ATTEND), units = run->units[PHASE_ATTEND];
    if (unit < units) find_chunks(run, unit, &thread, thread.current);
    while (unit < units) {
        const bool early = cpu_draws_early(worker, unit, units);
        size_t then = early ? draw(run, PHASE_ATTEND) : SIZE_MAX;
        if (then < units) find_chunks(run, then, &thread, !thread.current);
        attend_unit(run, unit, then, &thread);
        unit = early ? then : draw(run, PHASE_ATTEND);
        thread.current = !thread.current;
        if (!early && unit < units) find_chunks(run, unit, &thread, thread.current);
    }
    cpu_barrier(worker);
    while ((unit = draw(run, PHASE_FINISH)) < run->units[PHASE_FINISH]) finish_unit(run, unit);
}

/* ---- planning ---- */

static const size_t BATCH_BYTES = 64 << 20; /* of partials; more rows wait for the next batch */

static size_t item_units(const struct attend_rows_operation *operation, const struct rows_item *item) {
    size_t units = 0;
    for (size_t head = 0; head < operation->kv_head_count; head++) {
        ASSERT(item->lists[head].count > 0 && item->lists[head].count <= item->position + 1);
        units += head_ranges(item, head).count;
    }
    return units;
}

/* Takes as many items, from run->items on, as one batch holds. */
static void plan_batch(struct rows_run *run, size_t items_left) {
    const size_t unit_bytes = run->partial_stride * sizeof *run->partials;
    while (run->item_count < items_left && run->item_count < ROWS_MAX) {
        size_t units = item_units(run->operation, &run->items[run->item_count]);
        if (run->item_count > 0 && (run->units[PHASE_ATTEND] + units) * unit_bytes > BATCH_BYTES) return;
        run->attend_first[run->item_count++] = run->units[PHASE_ATTEND];
        run->units[PHASE_ATTEND] += units;
        run->units[PHASE_FINISH] += run->operation->kv_head_count;
    }
}

static bool plan_scratch(struct rows_run *run, struct cpu_device *device) {
    const struct attention_kernels *kernels = &device->kernels.attention;
    struct layout parts = {0};
    for (size_t i = 0; i < run->item_count; i++)
        run->chunk_count = max_size(run->chunk_count, (size_t)(run->items[i].position / KV_CHUNK_TOKENS + 1));
    if (span_exists(run->operation->places)) {
        for (size_t i = 0; i < run->item_count; i++)
            for (size_t head = 0; head < run->operation->kv_head_count; head++)
                run->range_rows = max_size(run->range_rows, (size_t)head_ranges(&run->items[i], head).rows);
        run->chunk_count = max_size(run->chunk_count, run->range_rows / KV_BLOCK_TOKENS + 2);
    }
    run->thread_bytes = 2 * align_up(run->chunk_count * sizeof(void *), 64) +
                        2 * align_up(run->range_rows * sizeof(uint32_t), 64) +
                        align_up(max_size(max_size(kernels->gather_scratch_bytes(run->group, run->kv),
                                                   kernels->gather_q4_scratch_bytes(run->group, run->kv)) +
                                              run->partial_stride * sizeof(float),
                                          kernels->decode_scratch_bytes(run->group, run->kv)),
                                 64);
    const size_t partials =
        layout_offset(&parts, run->units[PHASE_ATTEND], run->partial_stride * sizeof *run->partials);
    const size_t threads = layout_offset(&parts, device->thread_count, run->thread_bytes);
    uint8_t *memory = cpu_scratch_reserve(device, parts.used);
    if (memory == NULL) return false;
    run->partials = (float *)(void *)(memory + partials);
    run->threads = memory + threads;
    return true;
}

void cpu_attend_rows(struct stream *stream, const struct attend_rows_operation *operation) {
    struct cpu_device *device = stream->device;
    uint64_t began = clock_ns();
    for (size_t first = 0; first < operation->item_count;) {
        struct rows_run run = {.device = device, .operation = operation, .items = operation->items + first};
        run.kv = run.items[0].view.layout;
        run.group = operation->head_count / operation->kv_head_count;
        ASSERT(run.group * operation->kv_head_count == operation->head_count && run.group <= GROUP_MAX);
        run.partial_stride = align_up(run.group * (2 + run.kv->v_dimension), 16);
        plan_batch(&run, operation->item_count - first);
        if (!plan_scratch(&run, device)) return;
        cpu_run(device, false, rows_task, &run);
        first += run.item_count;
    }
    if (operation->times != NULL) operation->times->attend_ns += clock_ns() - began;
}
