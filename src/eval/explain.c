#include "eval/explain.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

enum { SENTENCE_BYTES_MAX = 400 };

enum status explain_create(struct explain *explain, const struct model *model, size_t prompt_count,
                           size_t step_capacity, bool in_tiers, struct error *error) {
    *explain = (struct explain){.config = &model->config,
                                .prompt_count = prompt_count,
                                .step_capacity = step_capacity,
                                .row_capacity = prompt_count + step_capacity};
    explain->steps = calloc(step_capacity * explain->row_capacity, sizeof *explain->steps);
    if (explain->steps == NULL)
        return error_set(error, STATUS_MEMORY, "no memory to explain over %zu tokens", explain->row_capacity);
    return attention_weights_create(&explain->weights, model, explain->row_capacity, in_tiers, error);
}

void explain_destroy(struct explain *explain) {
    attention_weights_destroy(&explain->weights);
    free(explain->steps);
    *explain = (struct explain){0};
}

void explain_add(void *context, const struct attention_event *event) {
    struct explain *explain = context;
    const uint64_t position = event->positions[0];
    if (event->row_count != 1 || explain->failed != STATUS_OK || position < explain->prompt_count) return;
    const size_t index = (size_t)position - explain->prompt_count;
    if (index >= explain->step_capacity) return;
    float *step = explain->steps + index * explain->row_capacity;
    explain->step_count = max_size(explain->step_count, index + 1);
    if (event->layer_index == 0) memset(step, 0, explain->row_capacity * sizeof *step);
    if (explain->config->layers[event->layer_index].attention == ATTENTION_SLIDING) return;
    explain->failed = attention_weights_add(&explain->weights, event, step, &explain->failure);
}

void explain_mass(const struct explain *explain, size_t row_count, double *mass) {
    const size_t count = explain->step_count;
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
    if (count > 0) qsort(spans, count, sizeof *spans, compare); /* spans may be NULL */
}
