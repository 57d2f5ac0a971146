#include "lab/calibrate/layer_study.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "lab/calibrate/attended.h"
#include "lab/calibrate/quadratic.h"

enum { ROUND_GROUP = 64, Q8_GROUP = 32 };

/* ---- rounding ---- */

void study_round_q8(float *x, size_t count, size_t dimension) {
    for (size_t i = 0; i < count; i++)
        for (size_t first = 0; first < dimension; first += Q8_GROUP) {
            float *part = x + i * dimension + first, largest = 0;
            size_t width = min_size(Q8_GROUP, dimension - first);
            for (size_t d = 0; d < width; d++) largest = fmaxf(largest, fabsf(part[d]));
            float step = largest / 127;
            for (size_t d = 0; d < width && step > 0; d++) part[d] = step * nearbyintf(part[d] / step);
        }
}

/* Rounds count values, stride apart, to a minimum and 15 steps. */
static void round_4(float *x, size_t count, size_t stride) {
    float smallest = INFINITY, largest = -INFINITY;
    for (size_t i = 0; i < count; i++)
        smallest = fminf(smallest, x[i * stride]), largest = fmaxf(largest, x[i * stride]);
    float step = (largest - smallest) / 15;
    for (size_t i = 0; i < count && step > 0; i++)
        x[i * stride] = smallest + step * nearbyintf((x[i * stride] - smallest) / step);
}

void study_round_tokens_4(float *x, size_t count, size_t dimension) {
    for (size_t i = 0; i < count; i++)
        for (size_t first = 0; first < dimension; first += ROUND_GROUP)
            round_4(x + i * dimension + first, min_size(ROUND_GROUP, dimension - first), 1);
}

void study_round_channel_4(float *x, size_t count, size_t dimension) {
    for (size_t first = 0; first < count; first += ROUND_GROUP)
        for (size_t d = 0; d < dimension; d++)
            round_4(x + first * dimension + d, min_size(ROUND_GROUP, count - first), dimension);
}

/* ---- the study ---- */

enum status layer_study_create(struct layer_study **study, const struct samples *samples, const struct kernels *kernels,
                               struct pool *pool, const struct layer_study_options *options, struct error *error) {
    const struct model_config *config = &samples->model->config;
    size_t size = samples->options.window_size, queries = samples->query_count * config->head_count;
    struct layer_study *s = calloc(1, sizeof *s);
    if (s == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    *s = (struct layer_study){.samples = samples, .pool = pool, .kernels = kernels, .options = *options};
    size_t row = max_size(config->k_dimension, config->v_dimension);
    s->keys = calloc(config->kv_head_count * size, config->k_dimension * sizeof(float));
    s->values = calloc(config->kv_head_count * size, config->v_dimension * sizeof(float));
    s->rounded = calloc(config->kv_head_count * size, row * sizeof(float));
    s->scratch = calloc(pool_thread_count(pool) * size, sizeof(float));
    s->full = calloc(queries, config->v_dimension * sizeof(float));
    s->other = calloc(queries, config->v_dimension * sizeof(float));
    s->output = calloc(config->hidden_size * config->head_count, config->v_dimension * sizeof(float));
    if (s->keys == NULL || s->values == NULL || s->rounded == NULL || s->scratch == NULL || s->full == NULL ||
        s->other == NULL || s->output == NULL) {
        layer_study_destroy(s);
        return error_set(error, STATUS_MEMORY, "no memory to study layers in windows of %zu tokens", size);
    }
    *study = s;
    return STATUS_OK;
}

void layer_study_destroy(struct layer_study *study) {
    if (study == NULL) return;
    free(study->keys);
    free(study->values);
    free(study->rounded);
    free(study->scratch);
    free(study->full);
    free(study->other);
    free(study->output);
    free(study);
}

/* Queries of a window of the samples, in one layer. */
struct query_range {
    size_t layer, window, first, count;
};

static void attend(struct layer_study *s, struct query_range queries, const float *keys, const float *values,
                   bool stream, float *out) {
    attended_run(s->pool, &(struct attended_args){.samples = s->samples,
                                                  .layer = queries.layer,
                                                  .window = queries.window,
                                                  .query_first = queries.first,
                                                  .query_count = queries.count,
                                                  .keys = keys,
                                                  .values = values,
                                                  .stream = stream,
                                                  .sinks = s->options.sinks,
                                                  .recent = s->options.recent,
                                                  .scratch = s->scratch,
                                                  .out = out});
}

/* out[hidden] = W_O,h x for one head: x [v_dimension] */
static void project(const struct layer_study *s, size_t head, const float *x, double *out) {
    const struct model_config *config = &s->samples->model->config;
    size_t width = config->head_count * config->v_dimension;
    for (size_t i = 0; i < config->hidden_size; i++) {
        const float *row = s->output + i * width + head * config->v_dimension;
        double sum = 0;
        for (size_t d = 0; d < config->v_dimension; d++) sum += (double)(row[d] * x[d]);
        out[i] = sum;
    }
}

static double square(const double *x, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += x[i] * x[i];
    return sum;
}

/* Adds one query's part to G, and its
 *
 * W_O o_full
 *
 * ^2.  work: [heads + 1][hidden]
 */
static double add_query(struct layer_study *s, size_t query, double *g, double *work) {
    const struct model_config *config = &s->samples->model->config;
    size_t heads = config->head_count, hidden = config->hidden_size, dimension = config->v_dimension;
    double *whole = work + heads * hidden, *part = work;
    memset(whole, 0, hidden * sizeof *whole);
    for (size_t h = 0; h < heads; h++) {
        const float *full = s->full + (query * heads + h) * dimension;
        float *other = s->other + (query * heads + h) * dimension;
        project(s, h, full, part);
        for (size_t i = 0; i < hidden; i++) whole[i] += part[i];
        for (size_t d = 0; d < dimension; d++) other[d] -= full[d];
    }
    double norm = square(whole, hidden);
    for (size_t h = 0; h < heads; h++) project(s, h, s->other + (query * heads + h) * dimension, work + h * hidden);
    for (size_t a = 0; a < heads; a++)
        for (size_t b = 0; b < heads; b++) {
            double sum = 0;
            for (size_t i = 0; i < hidden; i++) sum += work[a * hidden + i] * work[b * hidden + i];
            g[a * heads + b] += sum;
        }
    return norm;
}

static void solve(const struct layer_study *s, double *g, double whole, float *importance, float *alone) {
    size_t heads = s->samples->model->config.head_count;
    double *x = calloc(2 * heads, sizeof *x), *c = x + heads;
    if (x == NULL) return; /* a few hundred bytes */
    for (size_t i = 0; i < heads * heads; i++) g[i] = whole > 0 ? g[i] / whole : 0;
    for (size_t h = 0; h < heads; h++) c[h] = s->options.lambda, alone[h] = (float)g[h * heads + h];
    (void)quadratic_solve(g, c, heads, 1e-10, x); /* of beta = 1 - alpha */
    for (size_t h = 0; h < heads; h++) importance[h] = (float)(1 - x[h]);
    free(x);
}

static enum status study_heads(struct layer_study *s, size_t layer, size_t window_first, float *importance,
                               float *alone, struct error *error) {
    const struct samples *samples = s->samples;
    const struct model_config *config = &samples->model->config;
    size_t heads = config->head_count, first = samples->options.text_queries;
    double *g = calloc(heads * heads + (heads + 1) * config->hidden_size, sizeof *g), whole = 0;
    if (g == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    enum status status = STATUS_OK;
    for (size_t window = window_first; window < samples->options.window_count; window++) {
        size_t count = samples->options.probe_queries;
        status = attended_load(samples, layer, window, s->keys, s->values, error);
        if (status != STATUS_OK) break;
        const struct query_range queries = {layer, window, first, count};
        attend(s, queries, s->keys, s->values, false, s->full);
        attend(s, queries, s->keys, s->values, true, s->other);
        for (size_t query = 0; query < count; query++) whole += add_query(s, query, g, g + heads * heads);
    }
    if (status == STATUS_OK) solve(s, g, whole, importance, alone);
    free(g);
    return status;
}

static void round_all(struct layer_study *s, enum study_rounding rounding) {
    const struct model_config *config = &s->samples->model->config;
    size_t size = s->samples->options.window_size;
    bool of_keys = rounding == STUDY_K8 || rounding == STUDY_K4;
    size_t dimension = of_keys ? config->k_dimension : config->v_dimension;
    memcpy(s->rounded, of_keys ? s->keys : s->values, config->kv_head_count * size * dimension * sizeof(float));
    for (size_t head = 0; head < config->kv_head_count; head++) {
        float *x = s->rounded + head * size * dimension;
        switch (rounding) {
        case STUDY_K8:
        case STUDY_V8: study_round_q8(x, size, dimension); break;
        case STUDY_K4: study_round_channel_4(x, size, dimension); break;
        case STUDY_V4: study_round_tokens_4(x, size, dimension); break;
        case STUDY_ROUNDINGS: break;
        }
    }
}

/* Sum over the queries of |W_O (other - full)| / |W_O full|.  work: [2][hidden] and a part */
static double errors(struct layer_study *s, size_t count, double *work) {
    const struct model_config *config = &s->samples->model->config;
    size_t heads = config->head_count, hidden = config->hidden_size, dimension = config->v_dimension;
    double *whole = work, *wrong = work + hidden, *part = work + 2 * hidden, sum = 0;
    for (size_t query = 0; query < count; query++) {
        memset(work, 0, 2 * hidden * sizeof *work);
        for (size_t h = 0; h < heads; h++) {
            project(s, h, s->full + (query * heads + h) * dimension, part);
            for (size_t i = 0; i < hidden; i++) whole[i] += part[i];
            project(s, h, s->other + (query * heads + h) * dimension, part);
            for (size_t i = 0; i < hidden; i++) wrong[i] += part[i];
        }
        for (size_t i = 0; i < hidden; i++) wrong[i] -= whole[i];
        double norm = square(whole, hidden);
        if (norm > 0) sum += sqrt(square(wrong, hidden) / norm);
    }
    return sum;
}

static enum status study_rounding(struct layer_study *s, size_t layer, size_t window_first, float *sensitivity,
                                  struct error *error) {
    const struct samples *samples = s->samples;
    size_t count = samples->options.text_queries;
    double sums[STUDY_ROUNDINGS] = {0}, *work = calloc(3 * samples->model->config.hidden_size, sizeof *work);
    if (work == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    enum status status = STATUS_OK;
    for (size_t window = window_first; window < samples->options.window_count; window++) {
        status = attended_load(samples, layer, window, s->keys, s->values, error);
        if (status != STATUS_OK) break;
        const struct query_range queries = {layer, window, 0, count};
        attend(s, queries, s->keys, s->values, false, s->full);
        for (enum study_rounding r = STUDY_K8; r < STUDY_ROUNDINGS; r++) {
            bool of_keys = r == STUDY_K8 || r == STUDY_K4;
            round_all(s, r);
            attend(s, queries, of_keys ? s->rounded : s->keys, of_keys ? s->values : s->rounded, false, s->other);
            sums[r] += errors(s, count, work);
        }
    }
    double rows = (double)((samples->options.window_count - window_first) * count);
    for (size_t r = 0; r < STUDY_ROUNDINGS; r++) sensitivity[r] = (float)(sums[r] / rows);
    free(work);
    return status;
}

enum status layer_study_run(struct layer_study *study, size_t layer, size_t window_first,
                            const struct layer_figures *figures, struct error *error) {
    TRY(attended_load_output(study->samples, study->kernels, layer, study->output, error));
    TRY(study_heads(study, layer, window_first, figures->importance, figures->alone, error));
    return study_rounding(study, layer, window_first, figures->sensitivity, error);
}
