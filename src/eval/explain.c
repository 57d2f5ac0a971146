#include "eval/explain.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "eval/stored_key.h"

enum { SENTENCE_BYTES_MAX = 400 };

enum status explain_create(struct explain *explain, const struct model *model, size_t row_capacity,
                           size_t step_capacity, struct error *error) {
    const struct model_config *config = &model->config;
    *explain = (struct explain){.config = config,
                                .device = model->device,
                                .row_capacity = row_capacity,
                                .step_capacity = step_capacity};
    explain->steps = calloc(step_capacity * row_capacity, sizeof *explain->steps);
    explain->scores =
        calloc(config->head_count / config->kv_head_count * row_capacity, sizeof *explain->scores);
    explain->key = calloc(config->k_dimension, sizeof *explain->key);
    if (explain->steps == NULL || explain->scores == NULL || explain->key == NULL)
        return error_set(error, STATUS_MEMORY, "no memory to explain over %zu tokens", row_capacity);
    return model->device->operations->stream_create(model->device, &explain->stream, error);
}

void explain_destroy(struct explain *explain) {
    if (explain->stream != NULL) explain->device->operations->stream_destroy(explain->stream);
    free(explain->steps);
    free(explain->scores);
    free(explain->key);
    free(explain->chunk);
    *explain = (struct explain){0};
}

/* scores[g][row] of the group's query heads; false: the device is broken, which the step itself says. */
static bool score_rows(struct explain *explain, const struct kv_view *view, const float *q, size_t kv_head,
                       size_t row_count) {
    const struct model_config *config = explain->config;
    const size_t group = config->head_count / config->kv_head_count, dimension = config->k_dimension;
    if (explain->chunk == NULL) explain->chunk = malloc(view->layout->chunk_bytes);
    ASSERT(explain->chunk != NULL); /* only while somebody measures */
    for (size_t row = 0; row < row_count; row++) {
        const void *chunk = view->chunks[kv_head * view->chunk_stride + row / KV_CHUNK_TOKENS];
        if (row % KV_CHUNK_TOKENS == 0 && device_read(explain->device, explain->stream, explain->chunk, chunk,
                                                      view->layout->chunk_bytes, NULL) != STATUS_OK)
            return false;
        stored_key_read(view->layout, explain->chunk, row % KV_CHUNK_TOKENS, explain->key);
        for (size_t g = 0; g < group; g++) {
            float sum = 0;
            for (size_t i = 0; i < dimension; i++) sum += q[g * dimension + i] * explain->key[i];
            explain->scores[g * explain->row_capacity + row] = sum;
        }
    }
    return true;
}

static void add_weights(struct explain *explain, const float *scores, size_t row_count, double scale) {
    float largest = scores[0];
    double all = 0;
    for (size_t i = 1; i < row_count; i++) largest = scores[i] > largest ? scores[i] : largest;
    for (size_t i = 0; i < row_count; i++) all += exp(scale * ((double)scores[i] - (double)largest));
    float *step = explain->steps + (explain->step_count - 1) * explain->row_capacity;
    for (size_t i = 0; i < row_count; i++)
        step[i] += (float)(exp(scale * ((double)scores[i] - (double)largest)) / all);
}

void explain_add(void *context, const struct attention_event *event) {
    struct explain *explain = context;
    const struct model_config *config = explain->config;
    const size_t group = config->head_count / config->kv_head_count;
    const size_t row_count = (size_t)event->positions[0] + 1;
    explain->step_count += event->layer_index == 0;
    if (event->row_count != 1 || explain->step_count > explain->step_capacity ||
        config->layers[event->layer_index].attention == ATTENTION_SLIDING)
        return;
    ASSERT(row_count <= explain->row_capacity);
    for (size_t kv_head = 0; kv_head < config->kv_head_count; kv_head++) {
        if (!score_rows(explain, &event->items[0].view, event->q + kv_head * group * config->k_dimension,
                        kv_head, row_count))
            return;
        for (size_t g = 0; g < group; g++)
            add_weights(explain, explain->scores + g * explain->row_capacity, row_count,
                        (double)config->attention_scale);
    }
}

void explain_mass(const struct explain *explain, size_t row_count, double *mass) {
    const size_t count = min_size(explain->step_count, explain->step_capacity);
    for (size_t row = 0; row < row_count; row++) {
        double mean = 0;
        mass[row] = 0;
        for (size_t step = 0; step < count; step++)
            mean += (double)explain->steps[step * explain->row_capacity + row] / (double)count;
        for (size_t step = 0; step < count; step++)
            mass[row] += fmax((double)explain->steps[step * explain->row_capacity + row] - mean, 0);
    }
}

/* ---- spans ---- */

/* Behind the sentence that begins at `begin`. */
static size_t sentence_end(const char *text, size_t length, size_t begin) {
    size_t blank = 0;
    for (size_t i = begin; i < length; i++) {
        const bool space = isspace((unsigned char)text[i]) != 0;
        if (space && i + 1 < length && text[i] == '\n' && text[i + 1] == '\n') return i + 1;
        if (space && i > begin) {
            size_t last = i - 1;
            while (last > begin && strchr("\"')]", text[last]) != NULL) last--;
            if (strchr(".!?", text[last]) != NULL) return i + 1;
            blank = i + 1;
        }
        if (i - begin >= SENTENCE_BYTES_MAX && blank > begin) return blank;
    }
    return length;
}

enum status explain_sentences(const char *text, size_t length, struct explain_span **spans, size_t *count,
                              struct error *error) {
    size_t capacity = 0, line = 1;
    *spans = NULL;
    *count = 0;
    for (size_t begin = 0, end; begin < length; begin = end) {
        end = sentence_end(text, length, begin);
        if (*count == capacity) {
            capacity = 2 * capacity + 64;
            struct explain_span *grown = realloc(*spans, capacity * sizeof *grown);
            if (grown == NULL) return error_set(error, STATUS_MEMORY, "no memory for a document's sentences");
            *spans = grown;
        }
        struct explain_span span = {.begin = begin, .end = end, .line = line};
        for (size_t i = begin; i < end; i++) line += text[i] == '\n';
        while (span.begin < end && isspace((unsigned char)text[span.begin]))
            span.line += text[span.begin++] == '\n';
        while (span.end > span.begin && isspace((unsigned char)text[span.end - 1])) span.end--;
        if (span.end > span.begin) (*spans)[(*count)++] = span;
    }
    return STATUS_OK;
}

static double beyond_length(const struct explain_span *span) {
    return span->lift > 0 ? span->mass * (1 - 1 / span->lift) : 0; /* mass - what its tokens get on average */
}

static int compare(const void *a, const void *b) {
    const double x = beyond_length(a), y = beyond_length(b);
    return x < y ? 1 : x > y ? -1 : 0;
}

void explain_rank(struct explain_span *spans, size_t count) {
    double mass = 0;
    size_t tokens = 0;
    for (size_t i = 0; i < count; i++) mass += spans[i].mass, tokens += spans[i].token_count;
    for (size_t i = 0; i < count; i++) {
        const double own = spans[i].token_count > 0 ? spans[i].mass / (double)spans[i].token_count : 0;
        spans[i].share = mass > 0 ? spans[i].mass / mass : 0;
        spans[i].lift = mass > 0 ? own / (mass / (double)tokens) : 0;
    }
    qsort(spans, count, sizeof *spans, compare);
}
