/* append and attend on the cpu.
 *
 * One row of a sequence (decoding) is bound by reading its K and V, and must keep every thread busy even
 * for one sequence with few KV heads.  Its rows are cut into ranges that follow from its position
 * (attention_range_rows); a unit is one range of one KV head, drawn as a ticket; it leaves a partial (m, s, o).
 * After a barrier the partials of a head are merged in the order of the ranges: the same sums for any
 * thread count, and for a sequence alone or in a batch.
 *
 * A few rows of a sequence (a draft) share the units of one: to a range that all of them see, their queries are one
 * group of heads, so that its K and V are read once.
 *
 * Many rows (prefill) are bound by computing: a unit is a block of queries of one KV head, handed out
 * with the largest first, so that the short blocks fill the ends. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

enum {
    DECODE_ROWS_MAX = 8,   /* items with more rows go to the prefill kernel */
    DECODE_HEADS_MAX = 64, /* attention_decode_args.group */
    APPEND_ELEMENTS_ALONE = 8192,
};

/* Rows of an item that decode, one behind the other, in the same ranges.  Their units are
 * [unit_first, unit_first + kv_head_count * range_count), head by head. */
struct decode_rows {
    const struct attend_item *item;
    size_t row, count;                /* of q and out */
    uint64_t row_begin, row_end;      /* KV rows of the first one; each later one sees one more */
    uint64_t range_rows, range_first; /* of the rows' ranges, counted from position 0 */
    size_t range_count;
    size_t unit_first;                    /* among decode units */
    size_t partial_first, partial_stride; /* floats; a unit's partial: m[heads], s[heads], o[heads][v_dimension], the
                                             heads of the group for each row */
};

struct prefill_block {
    const struct attend_item *item;
    size_t query_first, query_count; /* within the item */
    uint64_t work;                   /* query-row pairs, for the order only */
};

struct attend_run {
    const struct cpu_device *device;
    const struct attend_operation *operation;
    size_t group;
    struct decode_rows *rows;     /* [row_count] */
    struct prefill_block *blocks; /* [block_count], most work first */
    size_t row_count, block_count;
    size_t block_queries; /* of a prefill unit */
    size_t prefill_units, decode_units;
    bool merges;          /* some row has more than one range */
    float *partials;      /* of the decode units */
    size_t partial_count; /* floats that are planned of them */
    size_t chunk_count;   /* that a unit looks up, at most */
    uint8_t *threads;     /* of each: addresses of chunks, then a kernel's scratch, then queries */
    size_t thread_bytes, queries_offset;
    size_t alone_next;
};

/* The addresses of chunks [first, end) of a KV head, for a thread. */
static const void *const *find_chunks(const struct attend_run *run, const struct kv_view *view, size_t kv_head,
                                      uint64_t first, uint64_t end, uint8_t *thread) {
    void **chunks = (void **)(void *)thread;
    ASSERT(end - first <= run->chunk_count);
    cpu_find_chunks(view->pools, cpu_places(view->chunks) + kv_head * view->chunk_stride + first, (size_t)(end - first),
                    chunks);
    return (const void *const *)chunks;
}

static void *kernel_scratch(const struct attend_run *run, uint8_t *thread) {
    return thread + align_up(run->chunk_count * sizeof(void *), 64);
}

/* Of a unit's partial; those of two threads never share a cache line. */
static size_t partial_floats(const struct attend_run *run, size_t row_count, const struct kv_layout *layout) {
    return align_up(row_count * run->group * (2 + layout->v_dimension), 16);
}

static uint64_t chunks_of(uint64_t row_count) { return (row_count + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS; }

static uint64_t window_begin(const struct attend_operation *operation, uint64_t position) {
    if (operation->window == 0 || position + 1 <= operation->window) return 0;
    return position + 1 - operation->window;
}

struct cpu_ranges cpu_ranges_of(uint64_t row_count) {
    struct cpu_ranges ranges = {.rows = attention_range_rows(row_count)};
    ranges.count = (size_t)((row_count + ranges.rows - 1) / ranges.rows);
    return ranges;
}

static void plan_ranges(const struct attend_run *run, struct decode_rows *rows) {
    const uint64_t position = rows->row_end - 1;
    rows->row_begin = window_begin(run->operation, position);
    rows->range_rows = attention_range_rows(rows->row_end - rows->row_begin);
    rows->range_first = rows->row_begin / rows->range_rows;
    rows->range_count = (size_t)(position / rows->range_rows - rows->range_first) + 1;
    const struct attend_ranges *ranges = run->operation->ranges;
    if (ranges == NULL) return;
    ASSERT(ranges->end < rows->range_count && rows->row_begin == 0); /* whole ones */
    if (!ranges->makes) return;
    rows->range_first = ranges->first;
    rows->range_count = (size_t)(ranges->end - ranges->first);
}

static bool shares_units(const struct attend_run *run, const struct decode_rows *rows, const struct decode_rows *next) {
    return rows->row_begin == next->row_begin && rows->range_rows == next->range_rows &&
           rows->range_count == next->range_count && (rows->count + 1) * run->group <= DECODE_HEADS_MAX;
}

static void plan_decode_item(struct attend_run *run, const struct attend_item *item) {
    const struct attend_ranges *ranges = run->operation->ranges;
    for (size_t index = 0; index < item->row_count;) {
        struct decode_rows rows = {
            .item = item, .row = item->row_first + index, .row_end = item->position_first + index + 1};
        plan_ranges(run, &rows);
        for (struct decode_rows next = rows; index < item->row_count && shares_units(run, &rows, &next); index++) {
            rows.count++;
            next.row_end = rows.row_end + rows.count;
            plan_ranges(run, &next);
        }
        rows.unit_first = run->decode_units;
        rows.partial_first = run->partial_count;
        rows.partial_stride = partial_floats(run, rows.count, item->view.layout);
        const size_t units = rows.range_count * run->operation->kv_head_count;
        run->decode_units += units;
        run->partial_count += units * rows.partial_stride;
        run->merges = run->merges || (rows.range_count > 1 && !(ranges != NULL && ranges->makes));
        run->rows[run->row_count++] = rows;
    }
}

static void plan_prefill_item(struct attend_run *run, const struct attend_item *item) {
    const size_t step = run->block_queries;
    for (size_t first = 0; first < item->row_count; first += step) {
        struct prefill_block block = {item, first, min_size(step, item->row_count - first), 0};
        uint64_t last = item->position_first + first + block.query_count - 1;
        block.work = (last + 1 - window_begin(run->operation, last)) * block.query_count;
        run->blocks[run->block_count++] = block;
    }
}

/* Shell sort, most work first.  The order of equal work does not matter: no result depends on it. */
static void sort_blocks(struct prefill_block *blocks, size_t count) {
    for (size_t gap = count / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (size_t i = gap; i < count; i++) {
            struct prefill_block block = blocks[i];
            size_t to = i;
            for (; to >= gap && blocks[to - gap].work < block.work; to -= gap) blocks[to] = blocks[to - gap];
            blocks[to] = block;
        }
}

void cpu_merge_sinks(const struct attention_kernels *kernels, const float *sinks, size_t group, size_t dimension,
                     struct cpu_partial partial) {
    enum { DIMENSION_MAX = 1024 };
    static const float nothing[DIMENSION_MAX];
    float ones[GROUP_MAX];
    ASSERT(group <= GROUP_MAX && dimension <= DIMENSION_MAX);
    for (size_t i = 0; i < group; i++) ones[i] = 1;
    if (sinks != NULL) /* all heads have the same output: a stride of 0 */
        kernels->merge(group, dimension, partial.m, partial.s, partial.o, dimension, sinks, ones, nothing, 0);
}

static float *partial_of(const struct attend_run *run, const struct decode_rows *rows, size_t unit) {
    return run->partials + rows->partial_first + (unit - rows->unit_first) * rows->partial_stride;
}

/* Merges the ranges of one KV head of some rows into its first partial, and writes the outputs. */
static void finish_head(const struct attend_run *run, const struct decode_rows *rows, size_t kv_head) {
    const struct attention_kernels *kernels = &run->device->kernels.attention;
    const struct attend_operation *operation = run->operation;
    const size_t group = run->group, heads = rows->count * group, dimension = rows->item->view.layout->v_dimension;
    const float *sinks = cpu_floats(operation->sinks);
    float *target = partial_of(run, rows, rows->unit_first + kv_head * rows->range_count);
    for (size_t range = 1; range < rows->range_count; range++) {
        const float *source = target + range * rows->partial_stride;
        kernels->merge(heads, dimension, target, target + heads, target + 2 * heads, dimension, source, source + heads,
                       source + 2 * heads, dimension);
    }
    for (size_t i = 0; i < rows->count; i++) {
        const struct cpu_partial row = {target + i * group, target + heads + i * group,
                                        target + 2 * heads + i * group * dimension};
        cpu_merge_sinks(kernels, sinks != NULL ? sinks + kv_head * group : NULL, group, dimension, row);
        float *out = cpu_floats(operation->out) + (rows->row + i) * operation->out_stride + kv_head * group * dimension;
        kernels->finish(group, dimension, row.s, row.o, dimension, out, dimension);
    }
}

/* A decode unit: KV rows [begin, end) of one KV head; all_end: those that every one of its rows sees. */
struct decode_part {
    const struct decode_rows *rows;
    size_t kv_head;
    uint64_t range, begin, end, all_end;
};

static struct decode_part decode_part_of(const struct attend_run *run, size_t unit) {
    size_t low = 0, high = run->row_count; /* the last ones whose unit_first is not above unit */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (run->rows[middle].unit_first <= unit)
            low = middle;
        else
            high = middle;
    }
    const struct decode_rows *rows = &run->rows[low];
    struct decode_part part = {.rows = rows, .kv_head = (unit - rows->unit_first) / rows->range_count};
    part.range = rows->range_first + (unit - rows->unit_first) % rows->range_count;
    const uint64_t first = part.range * rows->range_rows, range_end = first + rows->range_rows,
                   last_end = rows->row_end + rows->count - 1;
    part.begin = first > rows->row_begin ? first : rows->row_begin;
    part.end = range_end < last_end ? range_end : last_end;
    part.all_end = range_end < rows->row_end ? range_end : rows->row_end;
    return part;
}

/* Where a part's partial is left for later, or has been; NULL: nowhere. */
static float *kept_partial(const struct attend_run *run, const struct decode_part *part) {
    const struct attend_ranges *ranges = run->operation->ranges;
    if (ranges == NULL || part->range < ranges->first || part->range >= ranges->end) return NULL;
    const size_t floats = run->group * (2 + part->rows->item->view.layout->v_dimension);
    return cpu_floats(ranges->partials) + (part->kv_head * ATTENTION_RANGES + part->range) * floats;
}

/* The first memory that the unit reads; NULL: not a decode unit, or one that reads none. */
static const void *decode_first_block(const struct attend_run *run, size_t unit) {
    if (unit >= run->decode_units) return NULL;
    struct decode_part part = decode_part_of(run, unit);
    const struct kv_view *view = &part.rows->item->view;
    if (kept_partial(run, &part) != NULL && !run->operation->ranges->makes) return NULL;
    const uint32_t *places = cpu_places(view->chunks) + part.kv_head * view->chunk_stride;
    return kv_block(view->layout, cpu_chunk(view->pools, places[part.begin / KV_CHUNK_TOKENS]),
                    part.begin % KV_CHUNK_TOKENS);
}

/* The queries of a KV head for some rows, head by head: where they are, or in the thread's memory. */
static const float *decode_queries(const struct attend_run *run, const struct decode_rows *rows, size_t kv_head,
                                   uint8_t *thread) {
    const struct attend_operation *operation = run->operation;
    const size_t row = run->group * rows->item->view.layout->k_dimension;
    const float *q = cpu_floats(operation->q) + rows->row * operation->q_stride + kv_head * row;
    if (rows->count == 1) return q;
    float *queries = (float *)(void *)(thread + run->queries_offset);
    for (size_t i = 0; i < rows->count; i++) memcpy(queries + i * row, q + i * operation->q_stride, row * sizeof *q);
    return queries;
}

/* `then`: the unit that this thread takes next. */
static void decode_unit(const struct attend_run *run, size_t unit, size_t then, uint8_t *thread) {
    const struct attend_operation *operation = run->operation;
    struct decode_part part = decode_part_of(run, unit);
    const struct decode_rows *rows = part.rows;
    const struct kv_layout *layout = rows->item->view.layout;
    const size_t heads = rows->count * run->group;
    float *partial = partial_of(run, rows, unit), *kept = kept_partial(run, &part);
    const size_t partial_bytes = heads * (2 + layout->v_dimension) * sizeof *partial;
    if (kept != NULL && !operation->ranges->makes) {
        memcpy(partial, kept, partial_bytes);
        return; /* there are others to merge it with */
    }
    const uint64_t chunk_first = part.begin / KV_CHUNK_TOKENS, row_first = chunk_first * KV_CHUNK_TOKENS;
    const bool is_alone = operation->ranges != NULL && operation->ranges->makes; /* it reads no other chunk */
    const uint64_t all = chunks_of(is_alone ? part.end : rows->row_end + rows->count - 1);
    const uint64_t asked = chunks_of(part.end) + ATTENTION_CHUNKS_AHEAD;
    const uint64_t chunk_end = asked < all ? asked : all;
    struct attention_decode_args args = {
        .layout = layout,
        .chunks = find_chunks(run, &rows->item->view, part.kv_head, chunk_first, chunk_end, thread),
        .row_begin = part.begin - row_first,
        .row_end = part.all_end - row_first,
        .q = decode_queries(run, rows, part.kv_head, thread),
        .q_stride = layout->k_dimension,
        .group = heads,
        .scale = operation->scale,
        .softcap = operation->softcap,
        .m = partial,
        .s = partial + heads,
        .o = partial + 2 * heads,
        .o_stride = layout->v_dimension,
        .scratch = kernel_scratch(run, thread),
        .then = decode_first_block(run, then),
        .chunk_count = (size_t)(chunk_end - chunk_first),
    };
    if (part.all_end < part.end) args.group = run->group; /* row by row: each sees one more than the one before */
    for (size_t head = 0; head < heads; head += args.group) {
        run->device->kernels.attention.decode(&args);
        args.q += args.group * layout->k_dimension;
        args.m += args.group;
        args.s += args.group;
        args.o += args.group * layout->v_dimension;
        args.row_end++;
    }
    if (kept != NULL)
        memcpy(kept, partial, partial_bytes);
    else if (rows->range_count == 1)
        finish_head(run, rows, part.kv_head);
}

static void prefill_unit(const struct attend_run *run, size_t unit, uint8_t *thread) {
    const struct attend_operation *operation = run->operation;
    const struct prefill_block *block = &run->blocks[unit / operation->kv_head_count];
    size_t kv_head = unit % operation->kv_head_count;
    const struct kv_layout *layout = block->item->view.layout;
    size_t row = block->item->row_first + block->query_first;
    const struct attention_prefill_args args = {
        .layout = layout,
        .chunks = find_chunks(run, &block->item->view, kv_head, 0,
                              chunks_of(block->item->position_first + block->query_first + block->query_count), thread),
        .position_first = block->item->position_first + block->query_first,
        .query_count = block->query_count,
        .window = operation->window,
        .q = cpu_floats(operation->q) + row * operation->q_stride + kv_head * run->group * layout->k_dimension,
        .q_stride = operation->q_stride,
        .group = run->group,
        .scale = operation->scale,
        .softcap = operation->softcap,
        .sinks = span_exists(operation->sinks) ? cpu_floats(operation->sinks) + kv_head * run->group : NULL,
        .out = cpu_floats(operation->out) + row * operation->out_stride + kv_head * run->group * layout->v_dimension,
        .out_stride = operation->out_stride,
        .scratch = kernel_scratch(run, thread),
    };
    run->device->kernels.attention.prefill(&args);
}

static void attend_task(void *context, const struct pool_worker *worker) {
    struct attend_run *run = context;
    uint8_t *thread = run->threads + worker->index * run->thread_bytes;
    size_t units = run->prefill_units + run->decode_units, unit = cpu_ticket(worker, &run->alone_next);
    for (; unit < run->prefill_units; unit = cpu_ticket(worker, &run->alone_next)) prefill_unit(run, unit, thread);
    while (unit < units) { /* the next one is drawn early, to prefetch its first rows */
        size_t then = cpu_ticket(worker, &run->alone_next);
        decode_unit(run, unit - run->prefill_units, then - run->prefill_units, thread);
        unit = then;
    }
    if (!run->merges) return;
    cpu_barrier(worker);
    size_t heads = run->operation->kv_head_count;
    struct range range = pool_range(worker, run->row_count * heads, 1);
    for (size_t i = range.begin; i < range.end; i++)
        if (run->rows[i / heads].range_count > 1) finish_head(run, &run->rows[i / heads], i % heads);
}

/* Counts the entries of both lists, and the chunks of a unit, before their scratch is reserved. */
static void count_entries(const struct attend_operation *operation, struct attend_run *run, size_t *rows,
                          size_t *blocks) {
    *rows = *blocks = 0;
    for (size_t i = 0; i < operation->item_count; i++) {
        const size_t count = operation->items[i].row_count;
        const uint64_t end = operation->items[i].position_first + count;
        const bool decodes = count <= DECODE_ROWS_MAX;
        const uint64_t rows_max = decodes ? attention_range_rows(end) : end;
        run->chunk_count = max_size(run->chunk_count, (size_t)chunks_of(rows_max) + 1 + ATTENTION_CHUNKS_AHEAD);
        if (decodes)
            *rows += count;
        else
            *blocks += (count + run->block_queries - 1) / run->block_queries;
    }
}

/* Floats of the partials of all decode units, at most. */
static size_t partials_max(const struct attend_run *run) {
    const struct attend_operation *operation = run->operation;
    uint64_t units = 0;
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        if (item->row_count > DECODE_ROWS_MAX) continue;
        uint64_t last = item->position_first + item->row_count;
        uint64_t ranges = (last + ATTENTION_RANGE_ROWS - 1) / ATTENTION_RANGE_ROWS;
        units += item->row_count * operation->kv_head_count * min_size((size_t)ranges, ATTENTION_RANGES + 1);
    }
    return (size_t)units * partial_floats(run, 1, operation->items[0].view.layout);
}

void cpu_attend(struct stream *stream, const struct attend_operation *operation) {
    struct cpu_device *device = stream->device;
    const struct attention_kernels *kernels = &device->kernels.attention;
    if (operation->item_count == 0) return;
    const struct kv_layout *layout = operation->items[0].view.layout;
    struct attend_run run = {.device = device, .operation = operation};
    run.group = operation->head_count / operation->kv_head_count;
    ASSERT(run.group * operation->kv_head_count == operation->head_count && run.group <= 64);
    ASSERT(operation->ranges == NULL ||
           (operation->item_count == 1 && operation->items[0].row_count == 1 && operation->window == 0));

    size_t rows, blocks;
    run.block_queries = max_size(kernels->prefill_block_rows / run.group, 1);
    count_entries(operation, &run, &rows, &blocks);
    const size_t heads = run.group * min_size(max_size(DECODE_HEADS_MAX / run.group, 1), rows),
                 partials = partials_max(&run);
    run.queries_offset = align_up(run.chunk_count * sizeof(void *), 64) +
                         align_up(max_size(kernels->decode_scratch_bytes(heads, layout),
                                           kernels->prefill_scratch_bytes(run.group, layout)),
                                  64);
    run.thread_bytes = run.queries_offset + align_up(heads * layout->k_dimension * sizeof(float), 64);
    struct layout parts = {0};
    const size_t rows_offset = layout_offset(&parts, rows, sizeof *run.rows),
                 blocks_offset = layout_offset(&parts, blocks, sizeof *run.blocks),
                 threads_offset = layout_offset(&parts, device->thread_count, run.thread_bytes),
                 partials_offset = layout_offset(&parts, partials, sizeof *run.partials);
    uint8_t *scratch = cpu_scratch_reserve(device, parts.used);
    if (scratch == NULL) return;
    run.rows = (struct decode_rows *)(void *)(scratch + rows_offset);
    run.blocks = (struct prefill_block *)(void *)(scratch + blocks_offset);
    run.threads = scratch + threads_offset;
    run.partials = (float *)(void *)(scratch + partials_offset);

    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        if (item->row_count > DECODE_ROWS_MAX)
            plan_prefill_item(&run, item);
        else
            plan_decode_item(&run, item);
    }
    ASSERT(run.row_count <= rows && run.block_count == blocks && run.partial_count <= partials);
    sort_blocks(run.blocks, run.block_count);
    run.prefill_units = run.block_count * operation->kv_head_count;
    cpu_run(device, run.prefill_units + run.decode_units <= 1, attend_task, &run);
}

struct append_run {
    const struct attention_kernels *kernels;
    const struct append_operation *operation;
    size_t row_count;
};

/* A unit is a row of an item with all its heads: 8 tokens share a block, but no bytes in it. */
static void append_task(void *context, const struct pool_worker *worker) {
    const struct append_run *run = context;
    const struct append_operation *operation = run->operation;
    struct range range = pool_range(worker, run->row_count, KV_BLOCK_TOKENS);
    size_t item_first = 0;
    for (size_t i = 0; i < operation->item_count && item_first < range.end; i++) {
        const struct attend_item *item = &operation->items[i];
        const struct kv_layout *layout = item->view.layout;
        size_t end = min_size(range.end, item_first + item->row_count);
        for (size_t unit = max_size(range.begin, item_first); unit < end; unit++) {
            size_t row = item->row_first + unit - item_first;
            uint64_t position = item->position_first + (unit - item_first);
            const uint32_t *places = cpu_places(item->view.chunks) + position / KV_CHUNK_TOKENS;
            for (size_t head = 0; head < operation->kv_head_count; head++)
                run->kernels->store(layout, cpu_chunk(item->view.pools, places[head * item->view.chunk_stride]),
                                    position % KV_CHUNK_TOKENS,
                                    cpu_floats(operation->k) + row * operation->k_stride + head * layout->k_dimension,
                                    cpu_floats(operation->v) + row * operation->v_stride + head * layout->v_dimension);
        }
        item_first += item->row_count;
    }
}

void cpu_append(struct stream *stream, const struct append_operation *operation) {
    struct append_run run = {&stream->device->kernels.attention, operation, 0};
    for (size_t i = 0; i < operation->item_count; i++) run.row_count += operation->items[i].row_count;
    if (run.row_count == 0) return;
    const struct kv_layout *layout = operation->items[0].view.layout;
    size_t elements = run.row_count * operation->kv_head_count * (layout->k_dimension + layout->v_dimension);
    cpu_run(stream->device, elements <= APPEND_ELEMENTS_ALONE, append_task, &run);
}
