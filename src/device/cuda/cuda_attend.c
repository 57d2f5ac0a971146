/* update_places, append and attend.  Page tables are in device memory. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_fused.h"
#include "device/cuda/cuda_rows_attend.h"
#include "device/cuda/cuda_views.h"
#include "device/cuda/kernels_turns.h"

/* ---- page tables ---- */

_Static_assert(sizeof(struct place_delta) == sizeof(struct cuda_place_delta), "kernels read them as they are");

/* False: memory lacked. */
static bool places_put(struct stream *stream, struct span table, const struct place_delta *deltas, size_t count) {
    struct staged staged;
    cuda_work_lacks(stream); /* of what was put before */
    if (staging_take(stream, count * sizeof *deltas, true, &staged)) {
        memcpy(staged.host, deltas, staged.size_bytes);
        staging_send(stream, &staged);
        const struct cuda_update_places_args args = {
            .table = cuda_address(table), .deltas = staged.card, .count = (uint32_t)count};
        cuda_work_launch_kept(stream, "update_places", (struct cuda_shape){(args.count + 255) / 256, 1, 1, 256, 0},
                              &args);
    }
    return cuda_context_status(&stream->device->context, NULL) != STATUS_MEMORY;
}

/* In parts that the ring has room for: without memory for a larger one a change would be lost.  One that lacks memory
 * is put again when the stream is empty. */
void cuda_update_places(struct stream *stream, const struct update_places_operation *operation) {
    const size_t part_max = stream->staging.segment_bytes / sizeof(struct place_delta);
    cuda_device_enter(stream->device);
    if (span_exists(operation->written)) { /* within a graph */
        const struct cuda_written_places_args args = {.table = cuda_address(operation->table),
                                                      .deltas = cuda_address(operation->written),
                                                      .count = (uint32_t)operation->count};
        cuda_work_launch(stream, "update_places_written", (struct cuda_shape){(args.count + 255) / 256, 1, 1, 256, 0},
                         &args);
        return;
    }
    for (size_t done = 0, part; done < operation->count; done += part) {
        part = min_size(part_max, operation->count - done);
        if (places_put(stream, operation->table, operation->deltas + done, part)) continue;
        cuda_work_lacks(stream);
        cuda_stream_drain(&stream->queue);
        if (!places_put(stream, operation->table, operation->deltas + done, part))
            stream->device->context.error.status = STATUS_FAILED; /* the change is lost */
    }
    cuda_work_done(stream);
}

/* ---- append ---- */

void cuda_append(struct stream *stream, const struct append_operation *operation) {
    const struct attend_item *items = operation->items;
    struct staged_views views;
    cuda_device_enter(stream->device);
    if (cuda_rows_of(items, 0, operation->item_count) == 0) return;
    if (!cuda_views_stage(stream, &views, items, operation->item_count, NULL, operation->step)) return;
    size_t done = 0; /* rows */
    for (size_t first = 0, end; first < operation->item_count; first = end) {
        end = cuda_run_end(items, operation->item_count, first);
        const size_t count = cuda_rows_of(items, first, end), row = items[first].row_first;
        const struct cuda_append_args args = {.rows = views.card_rows + done * sizeof(struct step_row),
                                              .items = views.card_items,
                                              .pools = views.card_pools + first * sizeof(struct cuda_pools),
                                              .k = cuda_address(span_floats(operation->k, row * operation->k_stride)),
                                              .v = cuda_address(span_floats(operation->v, row * operation->v_stride)),
                                              .shape = cuda_shape_of(items[0].view.layout),
                                              .row_count = (uint32_t)count,
                                              .k_stride = (uint32_t)operation->k_stride,
                                              .v_stride = (uint32_t)operation->v_stride};
        if (count > 0)
            cuda_work_launch(stream, "append",
                             (struct cuda_shape){args.row_count, (uint32_t)operation->kv_head_count, 1, 128, 0}, &args);
        done += count;
    }
    cuda_work_done(stream);
}

void cuda_rope_append(struct stream *stream, const struct rope_append *heads) {
    const struct append_operation *append = heads->append;
    struct staged_views views;
    cuda_device_enter(stream->device);
    if (!cuda_views_stage(stream, &views, append->items, append->item_count, NULL, append->step)) return;
    const struct cuda_rope_append_args args = {.rows = views.card_rows,
                                               .items = views.card_items,
                                               .pools = views.card_pools,
                                               .q = cuda_address(heads->q->x),
                                               .k = cuda_address(append->k),
                                               .v = cuda_address(append->v),
                                               .cosine_sine = cuda_address(heads->q->cosine_sine),
                                               .q_norm = cuda_address(heads->q_norm),
                                               .k_norm = cuda_address(heads->k_norm),
                                               .shape = cuda_shape_of(append->items[0].view.layout),
                                               .row_count = (uint32_t)heads->q->row_count,
                                               .q_stride = (uint32_t)heads->q->x_stride,
                                               .k_stride = (uint32_t)append->k_stride,
                                               .v_stride = (uint32_t)append->v_stride,
                                               .head_count = (uint32_t)heads->q->head_count,
                                               .pair_count = (uint32_t)heads->q->pair_count,
                                               .split = heads->q->order == ROPE_SPLIT,
                                               .epsilon = heads->epsilon};
    cuda_work_launch(stream, "rope_append",
                     (struct cuda_shape){args.row_count, (uint32_t)(heads->q->head_count + append->kv_head_count), 1,
                                         128, sizeof(struct rope_append_shared)},
                     &args);
    cuda_work_done(stream);
}

/* ---- attend ---- */

static uint64_t range_rows(uint64_t row_count) { return attention_range((uint32_t)row_count); }

const struct range_form cuda_range_form = {
    .rows = range_rows, .count_max = ATTENTION_RANGES_MAX, .partial_floats = ATTENTION_PARTIAL_NUMBERS};

struct attend_run {
    struct stream *stream;
    const struct attend_operation *operation;
    const struct staged_views *views;
    struct kv_shape shape;
    struct attend_kernel kernel;
    size_t rows_max;  /* at once */
    size_t row_bytes; /* of partials */
    uint64_t partials;
    uint64_t inputs; /* of 8 bits, of all rows, in place of out; 0: none */
};

/* Few rows are steps, whose products go the same way (cuda_products.c). */
static bool is_prompt(const struct attend_operation *operation, const struct attend_item *item) {
    return item->row_count > 1 && cuda_rows_of(operation->items, 0, operation->item_count) > CUDA_MATVEC_ROWS;
}

const char *attend_types(const struct kv_layout *layout) {
    return layout->k_type == KV_F16 && layout->v_type == KV_F16 ? "f16" : "any";
}

/* Of the kernels that take its rows. */
static uint32_t width_of(const struct kv_layout *layout) {
    const size_t widest = max_size(layout->k_dimension, layout->v_dimension);
    return widest <= 64 ? 64 : widest <= 128 ? 128 : widest <= 256 ? 256 : 512;
}

struct attend_kernel attend_kernel_of(const char *what, const char *types, const struct kv_layout *layout,
                                      uint32_t group) {
    const uint32_t lanes = width_of(layout) / 8;
    struct attend_kernel kernel = {.lanes = lanes, .heads = group == 1 ? 1 : group <= 4 || lanes == 64 ? 4 : 8};
    kernel.passes = (group + kernel.heads - 1) / kernel.heads;
    snprintf(kernel.name, sizeof kernel.name, "attention_%s_%u_%u_%s", what, kernel.lanes, kernel.heads, types);
    return kernel;
}

struct cuda_shape attend_shape(const struct attend_kernel *kernel, uint32_t kv_head_count, uint32_t rows) {
    return (struct cuda_shape){ATTENTION_RANGES_MAX, kv_head_count * kernel->passes, rows, 128,
                               attention_decode_shared(kernel->lanes, kernel->heads)};
}

size_t attend_partial_bytes(const struct kv_layout *layout, size_t head_count) {
    return head_count * ATTENTION_RANGES_MAX * attention_partial_stride((uint32_t)layout->v_dimension) * sizeof(float);
}

static size_t input_bytes_of(const struct attend_operation *operation) {
    return input_row_bytes((uint32_t)(operation->head_count * operation->items[0].view.layout->v_dimension));
}

static void attend_init(struct attend_run *run, bool makes_inputs) {
    const struct attend_operation *operation = run->operation;
    const struct kv_layout *layout = operation->items[0].view.layout;
    const uint32_t group = (uint32_t)(operation->head_count / operation->kv_head_count);
    run->shape = cuda_shape_of(layout);
    run->kernel = attend_kernel_of("decode", attend_types(layout), layout, group);
    run->row_bytes = attend_partial_bytes(layout, operation->head_count);
    run->rows_max = max_size(PARTIAL_BYTES / run->row_bytes, 1);
    size_t rows = 1;
    for (size_t i = 0; i < operation->item_count; i++)
        if (!is_prompt(operation, &operation->items[i])) rows += operation->items[i].row_count;
    run->rows_max = min_size(run->rows_max, rows);
    const size_t partial_bytes = align_up(run->rows_max * run->row_bytes, INPUT_ALIGN);
    const size_t input_bytes = makes_inputs ? rows * input_bytes_of(operation) : 0;
    run->partials = cuda_scratch(run->stream, partial_bytes + input_bytes);
    if (operation->ranges != NULL && run->partials != 0) { /* what some of them have left, or will find */
        ASSERT(!makes_inputs && operation->window == 0);
        run->partials = cuda_address(operation->ranges->partials);
        for (size_t i = 0; i < operation->item_count; i++)
            ASSERT(operation->items[i].row_count == 1 && operation->ranges[i].makes == operation->ranges->makes &&
                   cuda_address(operation->ranges[i].partials) == run->partials + i * run->row_bytes);
    }
    run->inputs = makes_inputs ? run->partials + partial_bytes : 0;
}

/* Rows [staged, staged + count) of the views, which are rows `row`... of q and out, in the pools of an item. */
static void rows_attend(const struct attend_run *run, size_t item, size_t staged, size_t row, size_t count) {
    const struct attend_operation *operation = run->operation;
    const uint32_t heads = (uint32_t)operation->head_count, rows = (uint32_t)count;
    struct cuda_attention_args attend = {
        .rows = run->views->card_rows + staged * sizeof(struct step_row),
        .items = run->views->card_items,
        .pools = run->views->card_pools + item * sizeof(struct cuda_pools),
        .q = cuda_address(span_floats(operation->q, row * operation->q_stride)),
        /* Those of ranges are all kept; else one part after the other has the same memory. */
        .partials = run->partials + (operation->ranges != NULL ? staged * run->row_bytes : 0),
        .shape = run->shape,
        .row_count = rows,
        .q_stride = (uint32_t)operation->q_stride,
        .kv_head_count = (uint32_t)operation->kv_head_count,
        .group = heads / (uint32_t)operation->kv_head_count,
        .window = (uint32_t)min_size(operation->window, UINT32_MAX),
        .partial_stride = attention_partial_stride(run->shape.v_dimension),
        .scale = operation->scale,
        .softcap = operation->softcap};
    const bool makes = operation->ranges != NULL && operation->ranges->makes;
    if (operation->ranges != NULL) attend.ranges = makes ? RANGES_OF_ITEM : RANGES_OF_OTHERS;
    cuda_work_launch(run->stream, run->kernel.name, attend_shape(&run->kernel, attend.kv_head_count, rows), &attend);
    if (makes) return;
    const struct cuda_merge_args merge = {
        .rows = attend.rows,
        .partials = attend.partials,
        .y = run->inputs != 0 ? 0 : cuda_address(span_floats(operation->out, row * operation->out_stride)),
        .input = run->inputs != 0 ? run->inputs + row * input_bytes_of(operation) : 0,
        .sinks = cuda_address(operation->sinks),
        .row_count = rows,
        .y_stride = (uint32_t)operation->out_stride,
        .head_count = heads,
        .v_dimension = run->shape.v_dimension,
        .window = attend.window,
        .partial_stride = attend.partial_stride};
    cuda_work_launch(run->stream, "attention_merge",
                     (struct cuda_shape){heads, rows, 1, 512, sizeof(struct merge_shared)}, &merge);
}

/* One launch for items [first, end) of many rows each. */
static void prompts_attend(const struct attend_run *run, size_t first, size_t end) {
    const struct attend_operation *operation = run->operation;
    const struct kv_layout *layout = operation->items[0].view.layout;
    const uint32_t width = width_of(layout), queries = prefill_queries(width);
    const bool halves = layout->k_type == KV_F16 && layout->v_type == KV_F16 && operation->softcap == 0;
    const bool by_wgmma = cuda_has_wgmma(run->stream->device) && operation->softcap == 0 && width <= 128;
    struct cuda_counts *counts = &run->stream->device->context.counts;
    size_t rows = 0;
    for (size_t i = first; i < end; i++) rows = max_size(rows, operation->items[i].row_count);
    const struct cuda_prefill_args args = {.step = run->views->card_head,
                                           .items = run->views->card_items + first * sizeof(struct step_item),
                                           .pools = run->views->card_pools + first * sizeof(struct cuda_pools),
                                           .q = cuda_address(operation->q),
                                           .y = cuda_address(operation->out),
                                           .sinks = cuda_address(operation->sinks),
                                           .shape = run->shape,
                                           .item_count = (uint32_t)(end - first),
                                           .q_stride = (uint32_t)operation->q_stride,
                                           .y_stride = (uint32_t)operation->out_stride,
                                           .group = (uint32_t)(operation->head_count / operation->kv_head_count),
                                           .window = (uint32_t)min_size(operation->window, UINT32_MAX),
                                           .scale = operation->scale,
                                           .softcap = operation->softcap};
    char name[CUDA_KERNEL_NAME_MAX];
    if (by_wgmma)
        snprintf(name, sizeof name, "attention_prefill_wgmma_%u", width);
    else
        snprintf(name, sizeof name, "attention_prefill_%u_%s", width, halves ? "f16" : "any");
    counts->products++, counts->wgmma_products += by_wgmma;
    cuda_work_launch(run->stream, name,
                     (struct cuda_shape){(uint32_t)operation->head_count, (uint32_t)((rows + queries - 1) / queries),
                                         args.item_count, by_wgmma ? PREFILL_WGMMA_THREADS : 128,
                                         by_wgmma ? prefill_wgmma_shared(width) : prefill_shared(width)},
                     &args);
}

/* The items behind `first` that one launch takes with it. */
static size_t attend_end(const struct attend_operation *operation, size_t first) {
    const struct attend_item *items = operation->items;
    const bool prompts = is_prompt(operation, &items[first]);
    size_t end = prompts ? operation->item_count : cuda_run_end(items, operation->item_count, first);
    for (size_t i = first; i < end; i++)
        if (is_prompt(operation, &items[i]) != prompts || items[i].view.pools != items[first].view.pools) end = i;
    return end;
}

/* A row alone goes through the kernel that divides its K and V, rows of a prompt through the one that shares them.
 * The inputs that were made; 0: none, or the device is broken. */
static uint64_t attend(struct stream *stream, const struct attend_operation *operation, bool makes_inputs) {
    const struct attend_item *items = operation->items;
    struct staged_views views;
    struct attend_run run = {.stream = stream, .operation = operation, .views = &views};
    cuda_device_enter(stream->device);
    if (cuda_rows_of(items, 0, operation->item_count) == 0) return 0;
    const struct kv_layout *layout = items[0].view.layout;
    ASSERT(max_size(layout->k_dimension, layout->v_dimension) <= CUDA_HEAD_MAX); /* device.head_max */
    if (!cuda_views_stage(stream, &views, items, operation->item_count, operation->ranges, operation->step)) return 0;
    attend_init(&run, makes_inputs);
    if (run.partials == 0) return 0;
    size_t staged = 0;
    for (size_t first = 0, end; first < operation->item_count; first = end) {
        end = attend_end(operation, first);
        const size_t count = cuda_rows_of(items, first, end), row = items[first].row_first;
        if (is_prompt(operation, &items[first])) {
            prompts_attend(&run, first, end);
        } else {
            for (size_t done = 0, part; done < count; done += part) {
                part = min_size(run.rows_max, count - done);
                rows_attend(&run, first, staged + done, row + done, part);
            }
        }
        staged += count;
    }
    cuda_work_done(stream);
    return run.inputs;
}

void cuda_attend(struct stream *stream, const struct attend_operation *operation) {
    (void)attend(stream, operation, false);
}

uint64_t cuda_attend_inputs(struct stream *stream, const struct attend_operation *operation) {
    return attend(stream, operation, true);
}
