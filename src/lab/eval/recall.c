#include "lab/eval/recall.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "kernels/attention/attention.h"
#include "lab/eval/stored_key.h"

enum { SCRATCH_ALIGNMENT = 64 };

enum status recall_create(struct recall *recall, const struct recall_shape *shape, uint64_t row_capacity,
                          struct error *error) {
    *recall = (struct recall){.shape = *shape, .row_capacity = row_capacity};
    ASSERT(shape->head_count % shape->kv_head_count == 0);
    size_t group = shape->head_count / shape->kv_head_count;
    top_k_kernels_init(&recall->top_k, cpu_features());
    recall->cells = calloc(shape->layer_count * shape->head_count, sizeof *recall->cells);
    recall->keys = calloc(shape->k_dimension, sizeof *recall->keys);
    recall->scores = calloc(group * row_capacity, sizeof *recall->scores);
    recall->best = calloc(row_capacity, sizeof *recall->best);
    size_t scratch_bytes = recall->top_k.scratch_bytes(row_capacity, row_capacity);
    recall->scratch = aligned_alloc(SCRATCH_ALIGNMENT, align_up(scratch_bytes + 1, SCRATCH_ALIGNMENT));
    if (recall->cells == NULL || recall->keys == NULL || recall->scores == NULL || recall->best == NULL ||
        recall->scratch == NULL) {
        recall_destroy(recall);
        return error_set(error, STATUS_MEMORY, "no memory to measure recall over %llu rows",
                         (unsigned long long)row_capacity);
    }
    return STATUS_OK;
}

void recall_destroy(struct recall *recall) {
    free(recall->cells);
    free(recall->keys);
    free(recall->scores);
    free(recall->best);
    free(recall->chunk);
    free(recall->scratch);
    *recall = (struct recall){0};
}

void recall_reset(struct recall *recall) {
    memset(recall->cells, 0, recall->shape.layer_count * recall->shape.head_count * sizeof *recall->cells);
}

/* False: the device is broken, which the step's own synchronize says. */
static bool read_chunk(struct recall *recall, const struct select_event *step, size_t kv_head, uint64_t chunk) {
    size_t bytes = step->view.layout->chunk_bytes;
    if (recall->chunk_bytes != bytes) {
        free(recall->chunk);
        recall->chunk = malloc(bytes);
        recall->chunk_bytes = bytes;
    }
    ASSERT(recall->chunk != NULL); /* only while somebody measures */
    return device_read_chunk(step->device, step->stream, &step->view, kv_head, chunk, recall->chunk, NULL) == STATUS_OK;
}

/* scores[g][row] for the group's query heads. */
static void score_rows(struct recall *recall, const struct select_event *step, size_t kv_head, size_t group) {
    const struct kv_layout *layout = step->view.layout;
    size_t dimension = recall->shape.k_dimension;
    const float *q = step->q + kv_head * group * dimension;
    for (uint64_t row = 0; row <= step->position; row++) {
        if (row % KV_CHUNK_TOKENS == 0 && !read_chunk(recall, step, kv_head, row / KV_CHUNK_TOKENS)) return;
        stored_key_read(layout, recall->chunk, row % KV_CHUNK_TOKENS, recall->keys);
        for (size_t g = 0; g < group; g++) {
            float sum = 0;
            for (size_t i = 0; i < dimension; i++) sum += q[g * dimension + i] * recall->keys[i];
            recall->scores[g * recall->row_capacity + row] =
                attention_score(sum, recall->shape.scale, recall->shape.softcap);
        }
    }
}

/* Numbers in both ascending lists. */
static size_t in_both(const uint32_t *a, size_t a_count, const uint32_t *b, size_t b_count) {
    size_t both = 0;
    for (size_t i = 0, j = 0; i < a_count && j < b_count;) {
        both += a[i] == b[j];
        if (a[i] < b[j])
            i++;
        else if (a[i] > b[j])
            j++;
        else
            i++, j++;
    }
    return both;
}

static void add_mass_bound(struct recall_cell *sum, uint64_t count, double bound, double min, double excess) {
    bool is_first = sum->mass_bound_count == 0;
    if (is_first || min < sum->mass_bound_min) sum->mass_bound_min = min;
    if (is_first || excess > sum->mass_bound_excess) sum->mass_bound_excess = excess;
    sum->mass_bound += bound;
    sum->mass_bound_count += count;
}

static void add_head(struct recall *recall, const struct select_event *step, const float *scores,
                     const struct host_list *list, const double *bound, struct recall_cell *cell) {
    const uint32_t *rows = list->rows;
    const size_t row_count = list->count;
    size_t visible = (size_t)step->position + 1;
    float largest = scores[0];
    for (size_t i = 1; i < visible; i++) largest = scores[i] > largest ? scores[i] : largest;
    double all = 0, caught = 0;
    for (size_t i = 0; i < visible; i++) all += exp((double)scores[i] - (double)largest);
    for (size_t i = 0; i < row_count; i++) {
        ASSERT(rows[i] < visible && (i == 0 || rows[i] > rows[i - 1]));
        caught += exp((double)scores[rows[i]] - (double)largest);
    }
    recall->top_k.select(&(struct top_k_args){
        .scores = scores, .count = visible, .k = row_count, .indices = recall->best, .scratch = recall->scratch});
    size_t best_count = min_size(row_count, visible);
    double mass = fmin(caught / all, 1);
    cell->mass += mass;
    if (cell->count == 0 || mass < cell->mass_min) cell->mass_min = mass;
    cell->top += (double)in_both(rows, row_count, recall->best, best_count) / (double)best_count;
    cell->kept += (double)row_count / (double)visible;
    cell->count++;
    if (bound != NULL) add_mass_bound(cell, 1, *bound, *bound, *bound - mass);
}

void recall_add(void *context, const struct select_event *step) {
    struct recall *recall = context;
    const struct recall_shape *shape = &recall->shape;
    size_t group = shape->head_count / shape->kv_head_count;
    ASSERT(step->layer_index < shape->layer_count && step->position < recall->row_capacity);
    for (size_t kv_head = 0; kv_head < shape->kv_head_count; kv_head++) {
        ASSERT(step->lists[kv_head].count > 0);
        score_rows(recall, step, kv_head, group);
        for (size_t g = 0; g < group; g++)
            add_head(recall, step, recall->scores + g * recall->row_capacity, &step->lists[kv_head],
                     step->mass_bound != NULL ? &step->mass_bound[kv_head * group + g] : NULL,
                     &recall->cells[step->layer_index * shape->head_count + kv_head * group + g]);
    }
}

const struct recall_cell *recall_get(const struct recall *recall, size_t layer_index, size_t head_index) {
    return &recall->cells[layer_index * recall->shape.head_count + head_index];
}

void recall_cell_add(struct recall_cell *sum, const struct recall_cell *cell) {
    if (cell->count == 0) return;
    if (sum->count == 0 || cell->mass_min < sum->mass_min) sum->mass_min = cell->mass_min;
    sum->mass += cell->mass;
    sum->top += cell->top;
    sum->kept += cell->kept;
    sum->count += cell->count;
    if (cell->mass_bound_count > 0)
        add_mass_bound(sum, cell->mass_bound_count, cell->mass_bound, cell->mass_bound_min, cell->mass_bound_excess);
}
