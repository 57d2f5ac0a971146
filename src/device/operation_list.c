#include "device/operation_list.h"

#include <stdlib.h>
#include <string.h>

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
static void copy_items(struct adding *adding, const struct attend_item **items, size_t count) {
    struct attend_item *own = copy_of(adding, *items, count * sizeof *own);
    const struct kv_layout *layout = NULL, *layout_copy = NULL;
    const struct kv_pools *pools = NULL, *pools_copy = NULL;
    for (size_t i = 0; own != NULL && i < count; i++) {
        struct kv_view *view = &own[i].view;
        if (view->layout != layout) layout_copy = copy_of(adding, layout = view->layout, sizeof *layout);
        if (view->pools != pools) pools_copy = copy_of(adding, pools = view->pools, sizeof *pools);
        view->layout = layout_copy;
        view->pools = pools_copy;
        copy_span(adding, &view->chunks);
        copy_span(adding, &view->quantized);
        copy_span(adding, &view->key_index);
    }
    *items = own;
}

static void copy_ranges(struct adding *adding, struct attend_operation *attend) {
    if (attend->ranges == NULL) return;
    struct attend_ranges *own = copy_of(adding, attend->ranges, sizeof *own);
    if (own != NULL) copy_span(adding, &own->partials);
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
        CASE(UPDATE_PLACES, update_places, SPAN(table); COPY(own->deltas, own->count))
        CASE(APPEND, append, SPAN(k); SPAN(v); SPAN(step); copy_items(adding, &own->items, own->item_count))
        CASE(ATTEND, attend, SPAN(q); SPAN(out); SPAN(step); copy_ranges(adding, own);
             copy_items(adding, &own->items, own->item_count))
        CASE(GATHER, gather, SPAN(x); SPAN(y); COPY(own->indices, own->row_count))
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
    case OPERATION_UPDATE_PLACES: operations->update_places(stream, &operation->as.update_places); break;
    case OPERATION_APPEND: operations->append(stream, &operation->as.append); break;
    case OPERATION_ATTEND: operations->attend(stream, &operation->as.attend); break;
    case OPERATION_GATHER: operations->gather(stream, &operation->as.gather); break;
    }
}

/* The items are the operation's own. */
static void take_positions(const struct attend_item *items, size_t count, struct span step) {
    if (!span_exists(step)) return;
    const struct step_row *rows = (const void *)(uintptr_t)(step.buffer->address + step.offset);
    for (size_t i = 0; i < count; i++)
        ((struct attend_item *)(uintptr_t)&items[i])->position_first = rows[items[i].row_first].position;
}

void operation_launch_now(struct operation *operation, const struct device_operations *operations,
                          struct stream *stream) {
    const struct append_operation *append = &operation->as.append;
    const struct attend_operation *attend = &operation->as.attend;
    if (operation->kind == OPERATION_APPEND) take_positions(append->items, append->item_count, append->step);
    if (operation->kind == OPERATION_ATTEND) take_positions(attend->items, attend->item_count, attend->step);
    operation_launch(operation, operations, stream);
}
