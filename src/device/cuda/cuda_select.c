/* choose, fetch and attend_rows, of whole units. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_fused.h"
#include "device/cuda/cuda_key_index.h"
#include "device/cuda/cuda_rows_attend.h"
#include "device/cuda/kernels_look.h"
#include "device/cuda/kernels_turns.h"
#include "kernels/codec/codec.h"

enum { SCORE_BYTES = 64 << 20 /* of scores and what comes with them; more rows wait */ };

/* ---- rows with lists ---- */

/* Rows of an operation, as items of one row each, and the lists of their KV heads, both staged. */
struct listed {
    struct attend_item *items; /* owned, [row_count] */
    struct staged_views views;
    struct staged lists;
};

static struct cuda_list *lists_of(const struct listed *listed) {
    return (struct cuda_list *)(void *)listed->lists.host;
}

/* False: the device is broken, or has no memory for them. */
static bool listed_init(struct stream *stream, struct listed *listed, size_t row_count, size_t kv_head_count) {
    *listed = (struct listed){.items = calloc(row_count, sizeof *listed->items)};
    if (listed->items == NULL) {
        error_set(cuda_device_error(stream->device), STATUS_MEMORY, "cuda: no memory for %zu rows", row_count);
        cuda_work_lacks(stream);
        return false;
    }
    return staging_take(stream, row_count * kv_head_count * sizeof(struct cuda_list), true, &listed->lists);
}

static void listed_row(struct listed *listed, size_t index, const struct kv_view *view, size_t row, uint64_t position) {
    listed->items[index] =
        (struct attend_item){.view = *view, .row_first = row, .row_count = 1, .position_first = position};
}

/* ---- choose ---- */

struct choosing {
    struct cuda_scoring scoring;
    struct listed listed;
    uint32_t unit_tokens, score_heads;
    uint64_t keys, chosen; /* scratch */
    size_t rows_max;       /* at once */
};

static void list_keeps(struct cuda_list *list, const struct kept_list *kept) {
    list->kept = cuda_address(kept->rows);
    if (!kept->is_taken) return;
    ASSERT(kept->count > 0 && kept->count % UNIT_TOKENS == 0 && kept->window_begin % UNIT_TOKENS == 0);
    list->kept_count = (uint32_t)kept->count;
    list->window_begin = (uint32_t)kept->window_begin;
}

static void lists_place(struct choosing *c) {
    const struct choose_operation *operation = c->scoring.operation;
    const size_t kv_heads = c->scoring.kv_heads;
    choose_place_lists(operation);
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct select_item *item = &operation->items[i];
        const uint64_t candidates = item->candidate_end - item->candidate_begin;
        ASSERT(item->candidate_begin % c->unit_tokens == 0 && item->candidate_end % c->unit_tokens == 0);
        listed_row(&c->listed, i, &item->view, item->row, item->position);
        for (size_t head = 0; head < kv_heads; head++) {
            const size_t at = i * kv_heads + head;
            const uint64_t picks = select_item_picks(item, head);
            ASSERT(picks <= candidates && picks % c->unit_tokens == 0);
            struct cuda_list *list = &lists_of(&c->listed)[at];
            *list = (struct cuda_list){.rows = cuda_address(operation->lists[at].rows),
                                       .count = (uint32_t)operation->lists[at].count,
                                       .begin = (uint32_t)item->candidate_begin,
                                       .end = (uint32_t)item->candidate_end,
                                       .picks = (uint32_t)picks};
            if (item->kept != NULL) list_keeps(list, &item->kept[head]);
        }
    }
}

/* Limits of the lists from index on; 0: the items' hold. */
static uint64_t limits_from(const struct step_lists *at, size_t index) {
    return span_exists(at->limits) ? cuda_address(at->limits) + index * sizeof(struct step_list) : 0;
}

/* In a graph as far as the sequences may grow. */
static uint64_t candidates_end(const struct cuda_scoring *s) {
    uint64_t end = 0;
    for (size_t i = 0; i < s->operation->item_count; i++) {
        const struct select_item *item = &s->operation->items[i];
        const uint64_t room = item->view.chunk_stride * KV_CHUNK_TOKENS, may = s->operation->at.tokens,
                       own = s->stream->made == NULL ? item->candidate_end : may > 0 && may < room ? may : room;
        if (own > end) end = own;
    }
    return end;
}

/* Whether a list may look, here or, in a graph, in any launch. */
static bool may_look(struct cuda_scoring *s) {
    const struct choose_operation *operation = s->operation;
    bool looks = operation->at.looks;
    if (operation->layout->kind != KEY_INDEX_LEVEL || operation->layout->level.spread_offset == 0) return false;
    for (size_t i = 0; i < operation->item_count; i++)
        for (size_t head = 0; head < s->kv_heads; head++) {
            const struct select_item *item = &operation->items[i];
            const uint64_t picks = select_item_picks(item, head),
                           most = picks > operation->list_stride ? picks : operation->list_stride,
                           tokens = item->candidate_begin + LOOK_FROM * most;
            looks = looks || (!span_exists(operation->at.limits) && choose_looks(operation, item, head) > 0);
            s->chunks_most = (uint32_t)max_size(s->chunks_most, (size_t)(tokens / KV_CHUNK_TOKENS) + 3);
        }
    return looks;
}

static bool choose_places(struct choosing *c) {
    struct cuda_scoring *s = &c->scoring;
    const uint64_t end = candidates_end(s);
    s->unit_stride = (uint32_t)align_up((size_t)end / c->unit_tokens + 1, 16);
    s->chunk_stride = may_look(s) ? (uint32_t)(end / KV_CHUNK_TOKENS + 1) : 0;
    const size_t query = s->heads * cuda_query_bytes(s->operation->layout),
                 scores = (size_t)s->kv_heads * max_size(c->score_heads, 1) * s->unit_stride * sizeof(float),
                 units = (size_t)s->kv_heads * s->unit_stride * sizeof(uint32_t),
                 looked = (size_t)s->kv_heads * s->chunk_stride * sizeof(uint32_t),
                 row = query + scores + 2 * units + looked;
    c->rows_max = min_size(max_size(SCORE_BYTES / row, 1), s->operation->item_count);
    const uint64_t base = cuda_scratch(s->stream, c->rows_max * row);
    s->queries = base;
    s->scores = s->queries + c->rows_max * query;
    c->keys = s->scores + c->rows_max * scores;
    c->chosen = c->keys + c->rows_max * units;
    s->ranks = c->keys;
    s->looked = looked > 0 ? c->chosen + c->rows_max * units : 0;
    return base != 0;
}

/* Items [first, first + count), whose rows follow each other. */
static void rows_choose(struct choosing *c, size_t first, size_t count) {
    struct cuda_scoring *s = &c->scoring;
    const uint32_t rows = (uint32_t)count;
    s->lists = c->listed.lists.card + first * s->kv_heads * sizeof(struct cuda_list);
    s->limits = limits_from(&s->operation->at, first * s->kv_heads);
    cuda_score(s, first, rows);
    const struct cuda_look_choose_args choose = {.choose = {.scores = s->scores,
                                                            .keys = c->keys,
                                                            .chosen = c->chosen,
                                                            .lists = s->lists,
                                                            .limits = s->limits,
                                                            .row_count = rows,
                                                            .kv_head_count = s->kv_heads,
                                                            .unit_tokens = c->unit_tokens,
                                                            .unit_stride = s->unit_stride,
                                                            .group = c->score_heads},
                                                 .looked = s->looked,
                                                 .chunk_stride = s->chunk_stride};
    cuda_work_launch(s->stream, "units_choose",
                     (struct cuda_shape){s->kv_heads, rows, 1, 1024, sizeof(struct choose_shared)}, &choose);
}

void cuda_choose(struct stream *stream, const struct choose_operation *operation) {
    const uint32_t heads = (uint32_t)operation->head_count, kv_heads = (uint32_t)operation->kv_head_count;
    struct choosing c = {.scoring = {.stream = stream,
                                     .operation = operation,
                                     .heads = heads,
                                     .kv_heads = kv_heads,
                                     .group = heads / kv_heads},
                         .unit_tokens = (uint32_t)operation->layout->unit_tokens,
                         .score_heads = cuda_score_heads(operation->layout, heads / kv_heads)};
    ASSERT(cuda_chooses_by(operation->layout, operation->alpha)[0] == '\0');
    cuda_device_enter(stream->device);
    if (operation->item_count > 0 && listed_init(stream, &c.listed, operation->item_count, kv_heads)) {
        lists_place(&c);
        staging_send(stream, &c.listed.lists);
        if (choose_places(&c) &&
            cuda_views_stage(stream, &c.scoring.views, c.listed.items, operation->item_count, NULL, operation->at.step))
            for (size_t first = 0, end; first < operation->item_count; first = end) {
                end = cuda_run_end(c.listed.items, operation->item_count, first);
                end = min_size(end, first + c.rows_max);
                rows_choose(&c, first, end - first);
            }
    }
    free(c.listed.items);
    cuda_work_done(stream);
}

/* ---- rows whose lists are there ---- */

/* Rows and lists, both on their way to the card. */
static bool rows_stage(struct stream *stream, struct listed *listed, const struct rows_item *items, size_t item_count,
                       size_t kv_head_count, const struct step_lists *at) {
    if (!listed_init(stream, listed, item_count, kv_head_count)) return false;
    for (size_t i = 0; i < item_count; i++) {
        listed_row(listed, i, &items[i].view, items[i].row, items[i].position);
        for (size_t head = 0; head < kv_head_count; head++)
            lists_of(listed)[i * kv_head_count + head] = (struct cuda_list){
                .rows = cuda_address(items[i].lists[head].rows), .count = (uint32_t)items[i].lists[head].count};
    }
    staging_send(stream, &listed->lists);
    return cuda_views_stage(stream, &listed->views, listed->items, item_count, NULL, at->step);
}

_Static_assert(sizeof(struct fetch_counts) == sizeof(struct fetch_result), "counts of units");

/* Bit n: pool n is in the device's memory. */
static uint32_t device_pools(const struct kv_pools *pools) {
    uint32_t bits = 0;
    for (size_t i = 1; i < PLACE_POOLS; i++)
        if (pools->list[i].buffers != NULL && pools->list[i].buffers[0].kind == MEMORY_DEVICE) bits |= 1U << i;
    return bits;
}

/* What a kernel fetches, or says to be missing, of an item whose view has chunks in 4 bits. */
static void q4_fetch(struct stream *stream, const struct unit_slots *slots, const struct kv_layout *layout,
                     const struct cuda_fetch_args *args, uint32_t kv_heads, uint64_t missing) {
    const struct cuda_missing_q4_args of = {.fetch = {.fetch = *args,
                                                      .firsts = cuda_address(slots->firsts),
                                                      .tables = cuda_address(slots->tables),
                                                      .owners = cuda_address(slots->owners),
                                                      .stamps = cuda_address(slots->stamps),
                                                      .used = cuda_address(slots->used),
                                                      .hands = cuda_address(slots->hands),
                                                      .slots = cuda_address(slots->memory),
                                                      .chunk_stride = (uint32_t)slots->unit_stride,
                                                      .chunk_bytes = (uint32_t)kv_q4_chunk_bytes(layout)},
                                            .missing = missing};
    if (missing != 0)
        cuda_work_launch(stream, "unit_missing_q4", (struct cuda_shape){kv_heads, 1, 1, 512, 0}, &of);
    else
        cuda_work_launch(stream, "unit_fetch_q4", (struct cuda_shape){kv_heads, 1, 1, 512, sizeof(struct fetch_shared)},
                         &of.fetch);
}

void cuda_fetch(struct stream *stream, const struct fetch_operation *operation) {
    const size_t kv_heads = operation->kv_head_count, count = operation->item_count;
    struct listed listed;
    cuda_device_enter(stream->device);
    const bool is_staged = count > 0 && rows_stage(stream, &listed, operation->items, count, kv_heads, &operation->at);
    for (size_t i = 0; i < count && is_staged; i++) {
        const struct unit_slots *slots = &operation->slots[i];
        const size_t first = i * kv_heads;
        const struct cuda_fetch_args args = {.rows = listed.views.card_rows + i * sizeof(struct step_row),
                                             .items = listed.views.card_items,
                                             .pools = listed.views.card_pools + i * sizeof(struct cuda_pools),
                                             .lists = listed.lists.card + first * sizeof(struct cuda_list),
                                             .limits = limits_from(&operation->at, first),
                                             .addresses = cuda_address(operation->places) +
                                                          first * operation->place_stride * sizeof(uint64_t),
                                             .firsts = cuda_address(slots->firsts),
                                             .tables = cuda_address(slots->tables),
                                             .owners = cuda_address(slots->owners),
                                             .stamps = cuda_address(slots->stamps),
                                             .used = cuda_address(slots->used),
                                             .hands = cuda_address(slots->hands),
                                             .slots = cuda_address(slots->memory),
                                             .results = cuda_address(operation->counts),
                                             .unit_stride = (uint32_t)slots->unit_stride,
                                             .list_stride = (uint32_t)operation->place_stride,
                                             .block_bytes = (uint32_t)listed.items[i].view.layout->block_bytes,
                                             .device_pools = device_pools(listed.items[i].view.pools)};
        const uint64_t says =
            span_exists(operation->missing) ? cuda_address(operation->missing) + first * operation->place_stride : 0;
        if (operation->q4_slots != NULL && span_exists(operation->items[i].view.quantized)) {
            q4_fetch(stream, &operation->q4_slots[i], listed.items[i].view.layout, &args, (uint32_t)kv_heads, says);
            continue;
        }
        if (says != 0) {
            const struct cuda_missing_args missing = {args, says};
            cuda_work_launch(stream, "unit_missing", (struct cuda_shape){(uint32_t)kv_heads, 1, 1, 512, 0}, &missing);
            continue;
        }
        cuda_work_launch(stream, "unit_fetch",
                         (struct cuda_shape){(uint32_t)kv_heads, 1, 1, 512, sizeof(struct fetch_shared)}, &args);
    }
    if (count > 0) free(listed.items);
    cuda_work_done(stream);
}

/* ---- attend_rows ---- */

struct attending {
    struct stream *stream;
    const struct attend_rows_operation *operation;
    struct listed listed;
    struct kv_shape shape;
    struct attend_kernel kernel;
    uint64_t partials;
    uint64_t inputs; /* of 8 bits, of all rows, in place of out; 0: none */
    size_t rows_max; /* at once */
};

static size_t input_bytes_of(const struct attending *a) {
    return input_row_bytes((uint32_t)a->operation->head_count * a->shape.v_dimension);
}

static void listed_attend(const struct attending *a, size_t first, size_t count) {
    const struct attend_rows_operation *operation = a->operation;
    const size_t row = operation->items[first].row;
    const uint32_t heads = (uint32_t)operation->head_count, kv_heads = (uint32_t)operation->kv_head_count,
                   rows = (uint32_t)count;
    const struct cuda_attention_list_args attend = {
        .attention = {.rows = a->listed.views.card_rows + first * sizeof(struct step_row),
                      .items = a->listed.views.card_items,
                      .pools = a->listed.views.card_pools + first * sizeof(struct cuda_pools),
                      .q = cuda_address(span_floats(operation->q, row * operation->q_stride)),
                      .partials = a->partials,
                      .shape = a->shape,
                      .row_count = rows,
                      .q_stride = (uint32_t)operation->q_stride,
                      .kv_head_count = kv_heads,
                      .group = heads / kv_heads,
                      .partial_stride = attention_partial_stride(a->shape.v_dimension),
                      .scale = operation->scale,
                      .softcap = operation->softcap},
        .lists = a->listed.lists.card + first * kv_heads * sizeof(struct cuda_list),
        .limits = limits_from(&operation->at, first * kv_heads),
        .addresses = span_exists(operation->places) ? cuda_address(operation->places) +
                                                          first * kv_heads * operation->place_stride * sizeof(uint64_t)
                                                    : 0,
        .list_stride = (uint32_t)operation->place_stride};
    cuda_work_launch(a->stream, a->kernel.name, attend_shape(&a->kernel, kv_heads, rows), &attend);
    const struct cuda_merge_args merge = {
        .rows = attend.attention.rows,
        .partials = a->partials,
        .lists = attend.lists,
        .limits = attend.limits,
        .y = a->inputs != 0 ? 0 : cuda_address(span_floats(operation->out, row * operation->out_stride)),
        .input = a->inputs != 0 ? a->inputs + row * input_bytes_of(a) : 0,
        .sinks = cuda_address(operation->sinks),
        .row_count = rows,
        .y_stride = (uint32_t)operation->out_stride,
        .head_count = heads,
        .v_dimension = a->shape.v_dimension,
        .partial_stride = attend.attention.partial_stride,
        .group = heads / kv_heads};
    cuda_work_launch(a->stream, "attention_merge",
                     (struct cuda_shape){heads, rows, 1, 512, sizeof(struct merge_shared)}, &merge);
}

/* Some chunks may be in 4 bits. */
static bool has_q4(const struct attend_rows_operation *operation) {
    for (size_t i = 0; i < operation->item_count; i++)
        if (span_exists(operation->items[i].view.quantized)) return true;
    return false;
}

static bool attend_places(struct attending *a, bool makes_inputs) {
    const struct attend_rows_operation *operation = a->operation;
    const struct kv_layout *layout = operation->items[0].view.layout;
    const size_t kv_heads = operation->kv_head_count, row_bytes = attend_partial_bytes(layout, operation->head_count);
    a->shape = cuda_shape_of(layout);
    a->kernel = attend_kernel_of("list", has_q4(operation) ? "q4" : attend_types(layout), layout,
                                 (uint32_t)(operation->head_count / kv_heads));
    a->rows_max = min_size(max_size(PARTIAL_BYTES / row_bytes, 1), operation->item_count);
    const size_t partial_bytes = align_up(a->rows_max * row_bytes, INPUT_ALIGN);
    a->partials =
        cuda_scratch(a->stream, partial_bytes + (makes_inputs ? operation->item_count * input_bytes_of(a) : 0));
    if (makes_inputs && a->partials != 0) a->inputs = a->partials + partial_bytes;
    return a->partials != 0;
}

/* Lists are those of choose: whole units, but for the row's own.  The inputs that were made; 0: none, or the device is
 * broken. */
static uint64_t attend_rows(struct stream *stream, const struct attend_rows_operation *operation, bool makes_inputs) {
    struct attending a = {.stream = stream, .operation = operation};
    ASSERT(!span_exists(operation->sums) && !span_exists(operation->scores) && span_exists(operation->out));
    cuda_device_enter(stream->device);
    if (operation->item_count > 0 &&
        rows_stage(stream, &a.listed, operation->items, operation->item_count, operation->kv_head_count,
                   &operation->at) &&
        attend_places(&a, makes_inputs))
        for (size_t first = 0, end; first < operation->item_count; first = end) {
            end = cuda_run_end(a.listed.items, operation->item_count, first);
            end = min_size(end, first + a.rows_max);
            listed_attend(&a, first, end - first);
        }
    free(a.listed.items);
    cuda_work_done(stream);
    return a.inputs;
}

void cuda_attend_rows(struct stream *stream, const struct attend_rows_operation *operation) {
    (void)attend_rows(stream, operation, false);
}

uint64_t cuda_attend_rows_inputs(struct stream *stream, const struct attend_rows_operation *operation) {
    return attend_rows(stream, operation, true);
}
