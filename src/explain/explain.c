#include "explain/explain.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"

enum { SENTENCE_BYTES_MAX = 400 };

/* Bytes of a layer's queries, at most. */
static size_t query_bytes(const struct explain *explain) {
    return explain->config->head_count * explain->config->k_dimension * sizeof *explain->queries;
}
static const struct kv_geometry *geometry_of(const struct explain *explain, size_t layer) {
    return &explain->config->layers[layer].kv;
}

/* The first layer from this one on that attends; others keep a state. */
static size_t attending(const struct explain *explain, size_t layer) {
    while (layer < explain->config->layer_count && geometry_of(explain, layer)->kv_head_count == 0) layer++;
    return layer;
}

enum status explain_create(struct explain *explain, const struct model *model, size_t prompt_count,
                           size_t step_capacity, bool in_tiers, struct error *error) {
    *explain = (struct explain){.config = &model->config,
                                .prompt_count = prompt_count,
                                .step_capacity = step_capacity,
                                .row_capacity = prompt_count + step_capacity};
    explain->steps = calloc(step_capacity * explain->row_capacity, sizeof *explain->steps);
    explain->queries = calloc(model->config.layer_count, query_bytes(explain));
    if (explain->steps == NULL || explain->queries == NULL)
        return error_set(error, STATUS_MEMORY, "no memory to explain over %zu tokens", explain->row_capacity);
    return attention_weights_create(&explain->weights, model, explain->row_capacity, in_tiers, error);
}

void explain_destroy(struct explain *explain) {
    attention_weights_destroy(&explain->weights);
    free(explain->steps);
    free(explain->queries);
    *explain = (struct explain){0};
}

void explain_note(void *context, const struct attention_event *event) {
    struct explain *explain = context;
    const uint64_t position = event->positions[0];
    if (event->row_count != 1 || explain->failed != STATUS_OK || position < explain->prompt_count) return;
    const size_t index = (size_t)position - explain->prompt_count;
    if (index >= explain->step_capacity) return;
    if (event->layer_index == attending(explain, 0)) {
        explain->step = index;
        explain->step_count = max_size(explain->step_count, index + 1);
        explain->layer = event->layer_index;
        explain->kv_head = 0;
        memset(explain->steps + index * explain->row_capacity, 0, explain->row_capacity * sizeof *explain->steps);
    }
    const size_t floats = query_bytes(explain) / sizeof *explain->queries;
    memcpy(explain->queries + event->layer_index * floats, event->q,
           explain->config->head_count * geometry_of(explain, event->layer_index)->k_dimension * sizeof(float));
    explain->noted_layers = event->layer_index + 1;
}

/* Adds the weights of the next KV head. */
static enum status add_head(struct explain *explain, struct kv_sequence *sequence, struct error *error) {
    const struct model_config *config = explain->config;
    const size_t layer = explain->layer;
    const struct kv_geometry *geometry = geometry_of(explain, layer);
    const size_t group = config->head_count / geometry->kv_head_count;
    const struct attention_query query = {.sequence = sequence,
                                          .layer_index = layer,
                                          .kv_head = explain->kv_head,
                                          .row_count = explain->prompt_count + explain->step + 1,
                                          .q = explain->queries + layer * config->head_count * config->k_dimension +
                                               explain->kv_head * group * geometry->k_dimension};
    float *step = explain->steps + explain->step * explain->row_capacity;
    if (config->layers[layer].attention == ATTENTION_SLIDING) return STATUS_OK;
    return attention_weights_add(&explain->weights, &query, step, error);
}

bool explain_work(struct explain *explain, struct kv_sequence *sequence, bool (*pauses)(void *context),
                  void *pauses_context) {
    while (explain->layer < explain->noted_layers && explain->failed == STATUS_OK) {
        explain->failed = add_head(explain, sequence, &explain->failure);
        explain->kv_head = (explain->kv_head + 1) % geometry_of(explain, explain->layer)->kv_head_count;
        if (explain->kv_head == 0) explain->layer = attending(explain, explain->layer + 1);
        if (pauses != NULL && pauses(pauses_context)) break;
    }
    return explain->layer < explain->noted_layers && explain->failed == STATUS_OK;
}

void explain_add(void *context, const struct attention_event *event) {
    explain_note(context, event);
    (void)explain_work(context, event->sequences[0], NULL, NULL);
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

/* The end of the sentence that begins at `begin`. */
static size_t sentence_end(const char *text, size_t length, size_t begin) {
    size_t blank = 0;
    for (size_t i = begin; i < length; i++) {
        const bool space = isspace((unsigned char)text[i]) != 0;
        if (text[i] == MARK_PART || (text[i] == '\n' && mark_file_end(text, length, i + 1) > i + 1)) return i + 1;
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

static enum status add_span(struct explain_span **spans, size_t *count, size_t *capacity,
                            const struct explain_span *span, struct error *error) {
    if (!array_reserve(spans, *count, capacity, sizeof **spans))
        return error_set(error, STATUS_MEMORY, "no memory for a document's sentences");
    (*spans)[(*count)++] = *span;
    return STATUS_OK;
}

enum status explain_sentences(const char *text, size_t length, struct explain_span **spans, size_t *count,
                              struct error *error) {
    size_t capacity = 0;
    struct mark_walk walk;
    *spans = NULL;
    *count = 0;
    mark_walk_begin(&walk, text, length);
    for (size_t begin = 0, end; begin < length; begin = end) {
        while (begin < length && isspace((unsigned char)text[begin])) begin++;
        end = mark_file_end(text, length, begin);
        if (end > begin || begin == length) continue;
        end = sentence_end(text, length, begin);
        struct explain_span span = {.begin = begin, .end = end};
        while (span.end > span.begin && isspace((unsigned char)text[span.end - 1])) span.end--;
        if (span.end == span.begin) continue;
        mark_walk_to(&walk, span.begin);
        span.place = walk.place;
        TRY(add_span(spans, count, &capacity, &span, error));
    }
    return STATUS_OK;
}

static int compare(const void *a, const void *b) {
    const struct explain_span *x = a, *y = b;
    return x->rank < y->rank ? 1 : x->rank > y->rank ? -1 : 0;
}

static double log_distance(const struct explain_span *span) { return log(fmax(span->distance, 1)); }
static double log_lift(const struct explain_span *span) { return log(fmax(span->lift, 1e-3)); }

/* A line by least squares, each span by its tokens. */
struct trend {
    double x, y, slope; /* x, y: the means */
};

static struct trend find_trend(const struct explain_span *spans, size_t count) {
    /* A few spans are no trend: two, of which one answers, would lie on it.  So many more are flat. */
    enum { FLAT_SPANS = 16 };
    struct trend trend = {0};
    double tokens = 0, squares = 0, products = 0;
    for (size_t i = 0; i < count; i++) {
        const double weight = (double)spans[i].token_count;
        tokens += weight;
        trend.x += weight * log_distance(&spans[i]);
        trend.y += weight * log_lift(&spans[i]);
    }
    if (tokens <= 0) return trend;
    trend.x /= tokens, trend.y /= tokens;
    for (size_t i = 0; i < count; i++) {
        const double weight = (double)spans[i].token_count, x = log_distance(&spans[i]) - trend.x;
        squares += weight * x * x;
        products += weight * x * (log_lift(&spans[i]) - trend.y);
    }
    if (squares > 0) trend.slope = products / squares * (double)count / (double)(count + FLAT_SPANS);
    return trend;
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
    const struct trend trend = find_trend(spans, count);
    for (size_t i = 0; i < count; i++) {
        const double usual = exp(trend.y + trend.slope * (log_distance(&spans[i]) - trend.x));
        const double times = spans[i].lift / usual;
        spans[i].rank = times > 1 ? spans[i].share / usual * log(times) : times - 1;
    }
    if (count > 0) qsort(spans, count, sizeof *spans, compare); /* spans may be NULL */
}
