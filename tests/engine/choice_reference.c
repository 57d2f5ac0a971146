#include "engine/choice_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "lab/eval/stored_key.h"
#include "tensor/half.h"
#include "testing.h"

/* A KV head of an event. */
struct head {
    const struct choice_reference *reference;
    size_t layer, index, dimension, group;
    const float *q;          /* [group][dimension] */
    float *keys;             /* [tokens][dimension] */
    uint8_t *codes;          /* RANK_SIGNS: [group][bits] of the queries, 0 or 1 */
    const uint16_t *weights; /* [dimension][bits], of the layer whose keys these are */
};

/* A unit's score, and how far that of the key index may be off. */
struct score {
    double value, error;
};

/* Halves have 11 bits; a bound is rounded outwards, by up to a whole step. */
static const double NEAREST = 1.0 / 2048, OUTWARDS = 1.0 / 1024, FLOATS = 1e-5;

static struct score score_box(const struct head *head, size_t first, bool is_bound) {
    const size_t unit = head->reference->unit;
    struct score best = {-INFINITY, 0};
    double mean[REFERENCE_DIMENSION], deviation[REFERENCE_DIMENSION], low[REFERENCE_DIMENSION],
        high[REFERENCE_DIMENSION];
    for (size_t d = 0; d < head->dimension; d++) {
        double sum = 0, squares = 0;
        low[d] = INFINITY, high[d] = -INFINITY;
        for (size_t t = first; t < first + unit; t++) {
            const double key = (double)head->keys[t * head->dimension + d];
            sum += key;
            low[d] = fmin(low[d], key), high[d] = fmax(high[d], key);
        }
        mean[d] = sum / (double)unit;
        for (size_t t = first; t < first + unit; t++) {
            const double off = (double)head->keys[t * head->dimension + d] - mean[d];
            squares += off * off;
        }
        deviation[d] = sqrt(squares / (double)unit);
    }
    for (size_t g = 0; g < head->group; g++) {
        double sum = 0, error = 0;
        for (size_t d = 0; d < head->dimension; d++) {
            const double q = (double)head->q[g * head->dimension + d];
            if (is_bound)
                sum += fmax(q * low[d], q * high[d]);
            else
                sum += q * mean[d] + fabs(q) * deviation[d];
            error += is_bound ? fabs(q) * fmax(fabs(low[d]), fabs(high[d])) * (OUTWARDS + FLOATS)
                              : fabs(q) * (fabs(mean[d]) + deviation[d]) * (2 * NEAREST + FLOATS);
        }
        if (sum > best.value) best.value = sum;
        best.error = fmax(best.error, error);
    }
    return best;
}

/* The sign of x's projection on a column; *near: of the order of its rounding. */
static uint8_t sign_of(const struct head *head, const float *x, size_t bit, bool *near) {
    double sum = 0, size = 0;
    for (size_t d = 0; d < head->dimension; d++) {
        const double product =
            (double)x[d] * (double)half_to_float(head->weights[d * head->reference->bits + bit]);
        sum += product, size += fabs(product);
    }
    *near = fabs(sum) < size * FLOATS;
    return sum > 0;
}

static struct score score_signs(const struct head *head, size_t token) {
    const size_t bits = head->reference->bits;
    const float *key = head->keys + token * head->dimension;
    double square = 0, distance = 0, doubtful = 0;
    for (size_t d = 0; d < head->dimension; d++) square += (double)key[d] * (double)key[d];
    for (size_t bit = 0; bit < bits; bit++) {
        bool near;
        const uint8_t sign = sign_of(head, key, bit, &near);
        for (size_t g = 0; g < head->group; g++) {
            distance += sign != (head->codes[g * bits + bit] & 1);
            doubtful += near || (head->codes[g * bits + bit] & 2) != 0;
        }
    }
    const double norm = sqrt(square), agreement = (double)head->group - 2 * distance / (double)bits;
    return (struct score){agreement * norm,
                          norm * (fabs(agreement) * NEAREST + 2 * doubtful / (double)bits) + norm * FLOATS};
}

static struct score score_of(const struct head *head, size_t first) {
    switch (head->reference->rank) {
    case RANK_MEAN_DEVIATION: return score_box(head, first, false);
    case RANK_BOUND: return score_box(head, first, true);
    case RANK_SIGNS: return score_signs(head, first);
    }
    fail();
    return (struct score){0, 0};
}

static void read_keys(struct head *head, const struct select_event *event, size_t visible) {
    const struct kv_layout *layout = event->view.layout;
    unsigned char *chunk = malloc(layout->chunk_bytes);
    struct error error;
    assert_non_null(chunk);
    for (size_t row = 0; row < visible; row++) {
        if (row % KV_CHUNK_TOKENS == 0)
            assert_ok(device_read_chunk(event->device, event->stream, &event->view, head->index,
                                        row / KV_CHUNK_TOKENS, chunk, &error),
                      error);
        stored_key_read(layout, chunk, row % KV_CHUNK_TOKENS, head->keys + row * head->dimension);
    }
    free(chunk);
}

/* Matrices are of the layer whose keys are read: the last layers may attend to those of an earlier one. */
static void read_codes(struct head *head) {
    const struct choice_reference *reference = head->reference;
    size_t columns = reference->bits;
    if (reference->rank != RANK_SIGNS) return;
    const uint16_t *of_layer =
        calibration_find((void *)(uintptr_t)reference->calibration, "hash",
                         reference->model->config.layers[head->layer].kv_layer, &columns);
    assert_non_null(of_layer);
    head->weights = of_layer + head->index * head->dimension * reference->bits;
    head->codes = calloc(head->group, reference->bits);
    assert_non_null(head->codes);
    for (size_t g = 0; g < head->group; g++)
        for (size_t bit = 0; bit < reference->bits; bit++) {
            bool near;
            const uint8_t sign = sign_of(head, head->q + g * head->dimension, bit, &near);
            head->codes[g * reference->bits + bit] = (uint8_t)(sign | (near ? 2 : 0));
        }
}

/* The window's two parts are there, and so much between them. */
static struct reference_list middle_of(const struct host_list *list, size_t begin, size_t end, size_t visible,
                                       size_t picks) {
    struct reference_list middle = {.count = 0};
    assert_int_equal(list->count, visible - (end - begin) + picks);
    for (size_t i = 0; i < list->count; i++) {
        assert_true(i == 0 || list->rows[i] > list->rows[i - 1]);
        if (list->rows[i] >= begin && list->rows[i] < end) middle.rows[middle.count++] = list->rows[i];
    }
    assert_int_equal(middle.count, picks);
    return middle;
}

static int rising(const void *a, const void *b) {
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void check_best(struct choice_reference *reference, const struct head *head,
                       const struct reference_list *middle, size_t begin, size_t end) {
    static bool is_chosen[REFERENCE_TOKENS];
    static double values[REFERENCE_TOKENS];
    static struct score scores[REFERENCE_TOKENS];
    const size_t unit = reference->unit, count = (end - begin) / unit, picks = middle->count / unit;
    double chosen_least = INFINITY, other_most = -INFINITY;
    memset(is_chosen, 0, sizeof is_chosen);
    for (size_t i = 0; i < middle->count; i++) {
        assert_int_equal(middle->rows[i] % unit, i % unit); /* whole units */
        is_chosen[(middle->rows[i] - begin) / unit] = true;
    }
    for (size_t i = 0; i < count; i++) {
        scores[i] = score_of(head, begin + i * unit);
        values[i] = scores[i].value;
        if (is_chosen[i])
            chosen_least = fmin(chosen_least, scores[i].value + scores[i].error);
        else
            other_most = fmax(other_most, scores[i].value - scores[i].error);
    }
    if (chosen_least < other_most)
        fail_msg("layer %zu, KV head %zu: chose what ranks %g and not what ranks %g", head->layer,
                 head->index, chosen_least, other_most);
    qsort(values, count, sizeof *values, rising);
    for (size_t i = 0; i < count; i++)
        reference->wanted += is_chosen[i] && scores[i].value >= values[count - picks];
    reference->units += picks;
}

void choice_reference_check(void *context, const struct select_event *event) {
    struct choice_reference *reference = context;
    const struct model_config *config = &reference->model->config;
    const struct select_options *options = reference->options;
    const size_t layer = event->layer_index, heads = config->layers[layer].kv.kv_head_count,
                 dimension = config->layers[layer].kv.k_dimension, group = config->head_count / heads,
                 visible = (size_t)event->position + 1, keep = (size_t)options->keep.tokens;
    const size_t begin = align_up(options->sinks, reference->unit),
                 end = (visible - options->recent) / reference->unit * reference->unit,
                 picks = (keep - (visible - (end - begin))) / reference->unit * reference->unit;
    size_t lane = 0;
    assert_true(layer < REFERENCE_LAYERS && heads <= REFERENCE_HEADS && visible <= REFERENCE_TOKENS);
    assert_true(dimension <= REFERENCE_DIMENSION && dimension == event->view.layout->k_dimension);
    for (size_t i = 0; i < layer; i++) lane += config->layers[i].kv.kv_head_count;
    for (size_t i = 0; i < heads; i++) {
        struct head head = {.reference = reference,
                            .layer = layer,
                            .index = i,
                            .dimension = dimension,
                            .group = group,
                            .q = event->q + i * group * dimension,
                            .keys = calloc(visible * dimension, sizeof(float))};
        const struct reference_list middle = middle_of(&event->lists[i], begin, end, visible, picks);
        reference->lists++;
        if (reference->has_first[layer][i] && reference->keeps_even_lanes && (lane + i) % 2 == 0) {
            reference->kept++;
            assert_memory_equal(middle.rows, reference->first[layer][i].rows, picks * sizeof *middle.rows);
        } else {
            assert_non_null(head.keys);
            read_keys(&head, event, visible);
            read_codes(&head);
            check_best(reference, &head, &middle, begin, end);
        }
        if (!reference->has_first[layer][i]) reference->first[layer][i] = middle;
        reference->has_first[layer][i] = true;
        free(head.keys), free(head.codes);
    }
}
