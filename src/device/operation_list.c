#include "device/operation_list.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

struct operation_copy {
    struct operation_copy *next;
    max_align_t bytes[];
};

/* ---- what an operation names ---- */

/* An operation that is being added. */
struct adding {
    struct operation_list *list;
    struct operation *operation;
};

/* NULL: of nothing, or without memory. */
static void *copy_of(struct adding *adding, const void *source, size_t bytes) {
    if (source == NULL) return NULL;
    struct operation_copy *copy = malloc(sizeof *copy + bytes);
    if (copy == NULL) {
        adding->list->failed = true;
        return NULL;
    }
    copy->next = adding->operation->copies;
    adding->operation->copies = copy;
    return memcpy(copy->bytes, source, bytes);
}

#define COPY(member, count) (member) = copy_of(adding, member, (count) * sizeof *(member))

/* The place as it is now: its buffer may become another one. */
static void copy_span(struct adding *adding, struct span *span) { COPY(span->buffer, 1); }

/* Operations of a step have the same layout and pools in every layer, and so have their items: one copy of each. */
struct shared_copies {
    const struct kv_layout *layout, *layout_copy;
    const struct kv_pools *pools, *pools_copy;
};
static void copy_view(struct adding *adding, struct shared_copies *shared, struct kv_view *view) {
    if (view->layout != shared->layout)
        shared->layout_copy = copy_of(adding, shared->layout = view->layout, sizeof *view->layout);
    if (view->pools != shared->pools)
        shared->pools_copy = copy_of(adding, shared->pools = view->pools, sizeof *view->pools);
    view->layout = shared->layout_copy;
    view->pools = shared->pools_copy;
    copy_span(adding, &view->chunks);
    copy_span(adding, &view->quantized);
    copy_span(adding, &view->key_index);
}

static void copy_items(struct adding *adding, const struct attend_item **items, size_t count) {
    struct attend_item *own = copy_of(adding, *items, count * sizeof *own);
    struct shared_copies shared = {.layout = NULL};
    for (size_t i = 0; own != NULL && i < count; i++) copy_view(adding, &shared, &own[i].view);
    *items = own;
}

static void copy_lists(struct adding *adding, const struct row_list **lists, size_t count) {
    struct row_list *own = copy_of(adding, *lists, count * sizeof *own);
    const struct buffer *buffer = NULL, *buffer_copy = NULL;
    for (size_t i = 0; own != NULL && i < count; i++) {
        if (own[i].rows.buffer != buffer) buffer_copy = copy_of(adding, buffer = own[i].rows.buffer, sizeof *buffer);
        own[i].rows.buffer = buffer_copy;
    }
    *lists = own;
}

static void copy_rows_items(struct adding *adding, const struct rows_item **items, size_t count, size_t kv_head_count) {
    struct rows_item *own = copy_of(adding, *items, count * sizeof *own);
    struct shared_copies shared = {.layout = NULL};
    for (size_t i = 0; own != NULL && i < count; i++) {
        copy_view(adding, &shared, &own[i].view);
        copy_lists(adding, &own[i].lists, kv_head_count);
    }
    *items = own;
}

static void copy_choose(struct adding *adding, struct choose_operation *choose) {
    struct select_item *own = copy_of(adding, choose->items, choose->item_count * sizeof *own);
    struct shared_copies shared = {.layout = NULL};
    choose_place_lists(choose); /* the caller's */
    copy_lists(adding, (const struct row_list **)&choose->lists, choose->item_count * choose->kv_head_count);
    for (size_t i = 0; own != NULL && i < choose->item_count; i++) {
        copy_view(adding, &shared, &own[i].view);
        COPY(own[i].picks, choose->kv_head_count);
        struct kept_list *kept = copy_of(adding, own[i].kept, choose->kv_head_count * sizeof *kept);
        for (size_t head = 0; kept != NULL && head < choose->kv_head_count; head++) copy_span(adding, &kept[head].rows);
        own[i].kept = kept;
    }
    choose->items = own;
    choose->times = NULL;
    ASSERT(choose->tree_counts == NULL && choose->alpha == 0);
    copy_span(adding, &choose->q);
    COPY(choose->layout, 1);
    copy_span(adding, &choose->weights);
    copy_span(adding, &choose->rows);
}

static void copy_labels(struct adding *adding, struct compare_labels_operation *labels) {
    struct label_item *own = copy_of(adding, labels->items, labels->item_count * sizeof *own);
    for (size_t i = 0; own != NULL && i < labels->item_count; i++) {
        copy_span(adding, &own[i].label);
        copy_span(adding, &own[i].kept);
    }
    labels->items = own;
    COPY(labels->importance, labels->head_count);
    COPY(labels->thresholds, labels->kv_head_count);
}

static struct unit_slots *copy_slots(struct adding *adding, const struct unit_slots *slots, size_t count) {
    struct unit_slots *own = copy_of(adding, slots, count * sizeof *own);
    for (size_t i = 0; own != NULL && i < count; i++) {
        struct span *const spans[] = {&own[i].firsts, &own[i].tables, &own[i].owners, &own[i].stamps,
                                      &own[i].used,   &own[i].hands,  &own[i].memory};
        for (size_t n = 0; n < sizeof spans / sizeof spans[0]; n++) copy_span(adding, spans[n]);
    }
    return own;
}

static void copy_rows(struct adding *adding, struct attend_rows_operation *rows) {
    ASSERT(!span_exists(rows->sums) && !span_exists(rows->scores));
    copy_rows_items(adding, &rows->items, rows->item_count, rows->kv_head_count);
    copy_span(adding, &rows->q);
    copy_span(adding, &rows->out);
    copy_span(adding, &rows->sinks);
    copy_span(adding, &rows->places);
    rows->times = NULL;
}

static void copy_ranges(struct adding *adding, struct attend_operation *attend) {
    if (attend->ranges == NULL) return;
    struct attend_ranges *own = copy_of(adding, attend->ranges, attend->item_count * sizeof *own);
    for (size_t i = 0; own != NULL && i < attend->item_count; i++) copy_span(adding, &own[i].partials);
    attend->ranges = own;
}

static void copy_matmul(struct adding *adding, struct matmul_operation *matmul) {
    copy_span(adding, &matmul->x);
    for (size_t i = 0; i < matmul->weight_count; i++) {
        COPY(matmul->weights[i], 1);
        copy_span(adding, &matmul->biases[i]);
        copy_span(adding, &matmul->y[i]);
    }
}

static void copy_experts(struct adding *adding, struct matmul_experts_operation *experts) {
    for (size_t i = 0; i < experts->weight_count; i++) {
        COPY(experts->weights[i], 1);
        copy_span(adding, &experts->biases[i]);
        copy_span(adding, &experts->y[i]);
    }
}

static void copy_states(struct adding *adding, const struct recurrence_item **items, size_t count) {
    struct recurrence_item *own = copy_of(adding, *items, count * sizeof *own);
    for (size_t i = 0; own != NULL && i < count; i++) {
        copy_span(adding, &own[i].from);
        copy_span(adding, &own[i].to);
    }
    *items = own;
}

#define SPAN(member) copy_span(adding, &own->member)
/* The operation itself, and what it names. */
#define CASE(KIND, name, ...)                                       \
    case OPERATION_##KIND: {                                        \
        struct name##_operation *own = &adding->operation->as.name; \
        *own = *(const struct name##_operation *)operation;         \
        __VA_ARGS__;                                                \
        break;                                                      \
    }

static void copy_operation(struct adding *adding, const void *operation) {
    switch (adding->operation->kind) {
        CASE(EMBED, embed, COPY(own->table, 1); COPY(own->position_table, 1); SPAN(step); SPAN(y))
        CASE(MATMUL, matmul, copy_matmul(adding, own))
        CASE(NORM, norm, SPAN(x); SPAN(w); SPAN(b); SPAN(y))
        CASE(ROPE_ANGLES, rope_angles, SPAN(step); SPAN(frequency); SPAN(cosine_sine))
        CASE(ROPE, rope, SPAN(x); SPAN(cosine_sine))
        CASE(ACTIVATION, activation, SPAN(gate); SPAN(up); SPAN(y))
        CASE(ROUTE, route, SPAN(scores); SPAN(bias); SPAN(scales); SPAN(picks); SPAN(weights))
        CASE(MATMUL_EXPERTS, matmul_experts, SPAN(x); SPAN(picks); SPAN(mix); copy_experts(adding, own))
        CASE(CONVOLVE, convolve, SPAN(x); SPAN(in_gate); SPAN(out_gate); SPAN(w); SPAN(y);
             copy_states(adding, &own->items, own->item_count))
        CASE(DELTA, delta, SPAN(x); SPAN(alpha); SPAN(beta); SPAN(decay); SPAN(bias); SPAN(z); SPAN(norm); SPAN(y);
             copy_states(adding, &own->items, own->item_count))
        CASE(GATE, gate, SPAN(gates); SPAN(y))
        CASE(UPDATE_PLACES, update_places, SPAN(table); SPAN(written); COPY(own->deltas, own->count))
        CASE(APPEND, append, SPAN(k); SPAN(v); SPAN(step); copy_items(adding, &own->items, own->item_count))
        CASE(ATTEND, attend, SPAN(q); SPAN(out); SPAN(sinks); SPAN(step); copy_ranges(adding, own);
             copy_items(adding, &own->items, own->item_count))
        CASE(GATHER, gather, SPAN(x); SPAN(y); COPY(own->indices, own->row_count))
        CASE(KEEP_ROWS, keep_rows, SPAN(x); SPAN(halves); SPAN(scales))
        CASE(BESIDE, beside, )
        CASE(HOST_TURN, host_turn, )
        CASE(KEY_INDEX_BUILD, key_index_build, COPY(own->layout, 1); SPAN(weights); SPAN(step);
             copy_items(adding, &own->items, own->item_count))
        CASE(CHOOSE, choose, copy_choose(adding, own); SPAN(at.step); SPAN(at.limits))
        CASE(COMPARE_LABELS, compare_labels, copy_labels(adding, own); SPAN(q); SPAN(told); SPAN(counts); SPAN(at.step);
             SPAN(at.limits))
        CASE(FETCH, fetch, copy_rows_items(adding, &own->items, own->item_count, own->kv_head_count);
             own->slots = copy_slots(adding, own->slots, own->item_count);
             own->q4_slots = copy_slots(adding, own->q4_slots, own->item_count); SPAN(counts); SPAN(places);
             SPAN(missing); SPAN(at.step); SPAN(at.limits))
        CASE(ATTEND_ROWS, attend_rows, copy_rows(adding, own); SPAN(at.step); SPAN(at.limits))
    }
}

/* ---- the list ---- */

void operation_list_add(struct operation_list *list, enum operation_kind kind, const void *operation) {
    struct operation *own = calloc(1, sizeof *own);
    if (own == NULL) {
        list->failed = true;
        return;
    }
    own->kind = kind;
    if (list->first == NULL)
        list->first = own;
    else
        list->last->next = own;
    list->last = own;
    copy_operation(&(struct adding){list, own}, operation);
}

void operation_list_clear(struct operation_list *list) {
    for (struct operation *operation = list->first, *next; operation != NULL; operation = next) {
        next = operation->next;
        for (struct operation_copy *copy = operation->copies, *after; copy != NULL; copy = after) {
            after = copy->next;
            free(copy);
        }
        free(operation);
    }
    *list = (struct operation_list){.first = NULL};
}

/* ---- launches ---- */

void operation_launch(const struct operation *operation, const struct device_operations *operations,
                      struct stream *stream) {
    switch (operation->kind) {
    case OPERATION_EMBED: operations->embed(stream, &operation->as.embed); break;
    case OPERATION_MATMUL: operations->matmul(stream, &operation->as.matmul); break;
    case OPERATION_NORM: operations->norm(stream, &operation->as.norm); break;
    case OPERATION_ROPE_ANGLES: operations->rope_angles(stream, &operation->as.rope_angles); break;
    case OPERATION_ROPE: operations->rope(stream, &operation->as.rope); break;
    case OPERATION_ACTIVATION: operations->activation(stream, &operation->as.activation); break;
    case OPERATION_ROUTE: operations->route(stream, &operation->as.route); break;
    case OPERATION_MATMUL_EXPERTS: operations->matmul_experts(stream, &operation->as.matmul_experts); break;
    case OPERATION_CONVOLVE: operations->convolve(stream, &operation->as.convolve); break;
    case OPERATION_DELTA: operations->delta(stream, &operation->as.delta); break;
    case OPERATION_GATE: operations->gate(stream, &operation->as.gate); break;
    case OPERATION_UPDATE_PLACES: operations->update_places(stream, &operation->as.update_places); break;
    case OPERATION_APPEND: operations->append(stream, &operation->as.append); break;
    case OPERATION_ATTEND: operations->attend(stream, &operation->as.attend); break;
    case OPERATION_GATHER: operations->gather(stream, &operation->as.gather); break;
    case OPERATION_KEEP_ROWS: operations->keep_rows(stream, &operation->as.keep_rows); break;
    case OPERATION_BESIDE: operations->beside(stream, &operation->as.beside); break;
    case OPERATION_HOST_TURN: operations->host_turn(stream, &operation->as.host_turn); break;
    case OPERATION_KEY_INDEX_BUILD: operations->key_index_build(stream, &operation->as.key_index_build); break;
    case OPERATION_CHOOSE: operations->choose(stream, &operation->as.choose); break;
    case OPERATION_COMPARE_LABELS: operations->compare_labels(stream, &operation->as.compare_labels); break;
    case OPERATION_FETCH: operations->fetch(stream, &operation->as.fetch); break;
    case OPERATION_ATTEND_ROWS: operations->attend_rows(stream, &operation->as.attend_rows); break;
    }
}

/* What the operation has of the host's memory is its own. */
#define OWN(pointer, type) ((type *)(uintptr_t)(pointer))

static const void *reached(struct span span) { return (const void *)(uintptr_t)(span.buffer->address + span.offset); }

static void take_positions(const struct attend_item *items, size_t count, struct span step) {
    if (!span_exists(step)) return;
    const struct step_row *rows = reached(step);
    for (size_t i = 0; i < count; i++)
        OWN(&items[i], struct attend_item)->position_first = rows[items[i].row_first].position;
}

static void take_candidates(const struct choose_operation *choose) {
    if (!span_exists(choose->at.step)) return;
    const struct step_row *rows = reached(choose->at.step);
    const struct step_list *lists = reached(choose->at.limits);
    for (size_t i = 0; i < choose->item_count; i++) {
        struct select_item *item = OWN(&choose->items[i], struct select_item);
        item->position = rows[item->row].position;
        item->candidate_begin = lists[i * choose->kv_head_count].candidate_begin;
        item->candidate_end = lists[i * choose->kv_head_count].candidate_end;
        for (size_t head = 0; head < choose->kv_head_count; head++) {
            const struct step_list *list = &lists[i * choose->kv_head_count + head];
            OWN(item->picks, uint64_t)[head] = list->picks;
            if (item->kept == NULL) continue;
            struct kept_list *kept = &OWN(item->kept, struct kept_list)[head];
            kept->is_taken = list->kept_count > 0;
            kept->count = list->kept_count;
            kept->window_begin = list->window_begin;
        }
    }
}

static void take_label_positions(const struct compare_labels_operation *labels) {
    if (!span_exists(labels->at.step)) return;
    const struct step_row *rows = reached(labels->at.step);
    for (size_t i = 0; i < labels->item_count; i++)
        OWN(&labels->items[i], struct label_item)->position = rows[labels->items[i].row].position;
}

static void take_lists(const struct rows_item *items, size_t item_count, size_t kv_head_count,
                       const struct step_lists *at) {
    if (!span_exists(at->step)) return;
    const struct step_row *rows = reached(at->step);
    const struct step_list *lists = reached(at->limits);
    for (size_t i = 0; i < item_count; i++) {
        struct rows_item *item = OWN(&items[i], struct rows_item);
        item->position = rows[item->row].position;
        for (size_t head = 0; head < kv_head_count; head++)
            OWN(item->lists, struct row_list)[head].count = lists[i * kv_head_count + head].count;
    }
}

void operation_launch_now(struct operation *operation, const struct device_operations *operations,
                          struct stream *stream) {
    const struct append_operation *append = &operation->as.append;
    const struct attend_operation *attend = &operation->as.attend;
    const struct key_index_build_operation *build = &operation->as.key_index_build;
    const struct fetch_operation *fetch = &operation->as.fetch;
    const struct attend_rows_operation *rows = &operation->as.attend_rows;
    if (operation->kind == OPERATION_APPEND) take_positions(append->items, append->item_count, append->step);
    if (operation->kind == OPERATION_ATTEND) take_positions(attend->items, attend->item_count, attend->step);
    if (operation->kind == OPERATION_KEY_INDEX_BUILD) take_positions(build->items, build->item_count, build->step);
    if (operation->kind == OPERATION_CHOOSE) take_candidates(&operation->as.choose);
    if (operation->kind == OPERATION_COMPARE_LABELS) take_label_positions(&operation->as.compare_labels);
    if (operation->kind == OPERATION_FETCH)
        take_lists(fetch->items, fetch->item_count, fetch->kv_head_count, &fetch->at);
    if (operation->kind == OPERATION_ATTEND_ROWS)
        take_lists(rows->items, rows->item_count, rows->kv_head_count, &rows->at);
    operation_launch(operation, operations, stream);
}
