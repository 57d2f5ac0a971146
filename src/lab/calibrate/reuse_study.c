#include "lab/calibrate/reuse_study.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/reuse_options.h"
#include "base/checked.h"
#include "lab/calibrate/attended.h"
#include "lab/calibrate/dot.h"

enum { NORM_STEP = 8 }; /* of so many positions one says how long the layer's output is */

struct reuse_study {
    const struct samples *samples; /* borrowed */
    struct pool *pool;             /* borrowed */
    const struct kernels *kernels; /* borrowed */
    struct reuse_study_options options;
    size_t picks_max;
    /* Of the layer that is studied, and the part of W_O that a KV head's group has: */
    size_t layer;
    const float *importance;
    struct reuse_options rule;
    float *keys, *values;  /* owned; [run_windows][kv_head][window_size][dimension] */
    float *output, *gram;  /* owned; [hidden][head * v_dimension]; [kv_head][group * v_dimension]^2 */
    float *full;           /* owned; [run_windows][run_count][head * v_dimension] */
    struct head_run *runs; /* owned; [run_windows][kv_head] */
    struct walk *walks;    /* owned; [threads] */
};

/* Sums over the positions of a run. */
struct head_run {
    double hits[REUSE_CURVE_POINTS], loss[REUSE_CURVE_POINTS];
};

/* What a thread follows one run with. */
struct walk {
    float *weights;       /* owned; [group][window_size]: of the present position */
    float *sums;          /* owned; [window_size] */
    void *scratch;        /* owned; of top_k */
    uint32_t *lists;      /* owned; [run_count][picks_max] */
    size_t *counts;       /* owned; [run_count] */
    float *off, *product; /* owned; [group * v_dimension] */
    double *similarities; /* owned; [group] */
};

/* ---- life ---- */

static size_t group_of(const struct model_config *config) { return config->head_count / config->kv_head_count; }

static bool walk_init(struct walk *walk, const struct reuse_study *s) {
    const struct model_config *config = &s->samples->model->config;
    const size_t size = s->samples->options.window_size, run = s->samples->options.run_count,
                 width = group_of(config) * config->v_dimension;
    walk->weights = calloc(group_of(config) * size, sizeof *walk->weights);
    walk->sums = calloc(size, sizeof *walk->sums);
    walk->scratch = aligned_alloc(64, align_up(s->kernels->top_k.scratch_bytes(size, s->picks_max), 64) + 64);
    walk->lists = calloc(run * s->picks_max, sizeof *walk->lists);
    walk->counts = calloc(run, sizeof *walk->counts);
    walk->off = calloc(width, sizeof *walk->off);
    walk->product = calloc(width, sizeof *walk->product);
    walk->similarities = calloc(group_of(config), sizeof *walk->similarities);
    return walk->weights != NULL && walk->sums != NULL && walk->scratch != NULL && walk->lists != NULL &&
           walk->counts != NULL && walk->off != NULL && walk->product != NULL && walk->similarities != NULL;
}

static void walk_deinit(struct walk *walk) {
    free(walk->weights);
    free(walk->sums);
    free(walk->scratch);
    free(walk->lists);
    free(walk->counts);
    free(walk->off);
    free(walk->product);
    free(walk->similarities);
}

static bool allocate(struct reuse_study *s) {
    const struct model_config *config = &s->samples->model->config;
    const struct samples_options *o = &s->samples->options;
    const size_t lanes = o->run_windows * config->kv_head_count, width = group_of(config) * config->v_dimension;
    s->keys = calloc(lanes * o->window_size, config->k_dimension * sizeof(float));
    s->values = calloc(lanes * o->window_size, config->v_dimension * sizeof(float));
    s->output = calloc(config->hidden_size * config->head_count, config->v_dimension * sizeof(float));
    s->gram = calloc(config->kv_head_count * width, width * sizeof(float));
    s->full = calloc(o->run_windows * o->run_count * config->head_count, config->v_dimension * sizeof(float));
    s->runs = calloc(lanes, sizeof *s->runs);
    s->walks = calloc(pool_thread_count(s->pool), sizeof *s->walks);
    if (s->keys == NULL || s->values == NULL || s->output == NULL || s->gram == NULL || s->full == NULL ||
        s->runs == NULL || s->walks == NULL)
        return false;
    for (size_t i = 0; i < pool_thread_count(s->pool); i++)
        if (!walk_init(&s->walks[i], s)) return false;
    return true;
}

enum status reuse_study_create(struct reuse_study **study, const struct samples *samples, const struct kernels *kernels,
                               struct pool *pool, const struct reuse_study_options *options, struct error *error) {
    struct reuse_study *s = calloc(1, sizeof *s);
    *study = NULL;
    if (s == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    *s = (struct reuse_study){.samples = samples,
                              .pool = pool,
                              .kernels = kernels,
                              .options = *options,
                              .picks_max = (size_t)(options->keep * (double)samples->options.window_size) + 1,
                              .rule = reuse_options_default()};
    if (!allocate(s)) {
        reuse_study_destroy(s);
        return error_set(error, STATUS_MEMORY, "no memory to study reuse in windows of %zu tokens",
                         samples->options.window_size);
    }
    *study = s;
    return STATUS_OK;
}

void reuse_study_destroy(struct reuse_study *study) {
    if (study == NULL) return;
    for (size_t i = 0; study->walks != NULL && i < pool_thread_count(study->pool); i++) walk_deinit(&study->walks[i]);
    free(study->keys);
    free(study->values);
    free(study->output);
    free(study->gram);
    free(study->full);
    free(study->runs);
    free(study->walks);
    free(study);
}

/* ---- one position ---- */

/* A KV head in a window. */
struct lane {
    size_t window, kv_head;
    const float *keys, *values;
};

static const float *query_at(const struct reuse_study *s, const struct lane *lane, size_t step, size_t head) {
    return samples_run_query(s->samples, s->layer, lane->window, step,
                             lane->kv_head * group_of(&s->samples->model->config) + head);
}

/* Softmax of one head's scores of tokens [0, end), and its output. */
static void attend(const struct reuse_study *s, const struct lane *lane, const float *q, size_t end, float *weights,
                   float *out) {
    const struct model_config *config = &s->samples->model->config;
    float largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < end; i++) {
        weights[i] = samples_score(s->samples, q, lane->keys + i * config->k_dimension);
        largest = fmaxf(largest, weights[i]);
    }
    memset(out, 0, config->v_dimension * sizeof *out);
    for (size_t i = 0; i < end; i++) {
        weights[i] = expf(weights[i] - largest);
        sum += weights[i];
    }
    for (size_t i = 0; i < end; i++) {
        weights[i] /= sum;
        const float *value = lane->values + i * config->v_dimension;
        if (weights[i] > 1e-9F)
            for (size_t d = 0; d < config->v_dimension; d++) out[d] += weights[i] * value[d];
    }
}

/* The tokens of the largest weights, between sinks and recent ones. */
static void choose(const struct reuse_study *s, struct walk *walk, size_t step, size_t end) {
    const size_t size = s->samples->options.window_size, group = group_of(&s->samples->model->config);
    const size_t first = s->options.sinks, last = end - s->options.recent;
    const size_t kept = (size_t)ceil(s->options.keep * (double)end), always = first + s->options.recent;
    memset(walk->sums, 0, end * sizeof *walk->sums);
    for (size_t head = 0; head < group; head++)
        for (size_t i = first; i < last; i++) walk->sums[i] += walk->weights[head * size + i];
    walk->counts[step] = min_size(kept > always ? kept - always : 0, last - first);
    s->kernels->top_k.select(&(struct top_k_args){.scores = walk->sums + first,
                                                  .count = last - first,
                                                  .k = walk->counts[step],
                                                  .index_first = (uint32_t)first,
                                                  .indices = walk->lists + step * s->picks_max,
                                                  .scratch = walk->scratch});
}

static void add_token(float *out, float *sum, const float *weights, const float *values, size_t token,
                      size_t dimension) {
    const float weight = weights[token], *value = values + token * dimension;
    *sum += weight;
    for (size_t d = 0; d < dimension; d++) out[d] += weight * value[d];
}

/* |W_O (o - o_full)|^2 of the group at token end - 1, by the list of a step and a window that begins where it did. */
static double error_of(const struct reuse_study *s, const struct lane *lane, struct walk *walk, size_t step,
                       size_t chosen, size_t end) {
    const struct model_config *config = &s->samples->model->config;
    const size_t group = group_of(config), size = s->samples->options.window_size, dimension = config->v_dimension,
                 width = group * dimension;
    const size_t window = end - (step - chosen) - s->options.recent;
    const float *full =
        s->full + ((lane->window * s->samples->options.run_count + step) * config->head_count + lane->kv_head * group) *
                      dimension;
    memset(walk->off, 0, width * sizeof *walk->off);
    for (size_t head = 0; head < group; head++) {
        const float *weights = walk->weights + head * size;
        float *off = walk->off + head * dimension, sum = 0;
        for (size_t i = 0; i < s->options.sinks; i++) add_token(off, &sum, weights, lane->values, i, dimension);
        for (size_t i = 0; i < walk->counts[chosen]; i++)
            add_token(off, &sum, weights, lane->values, walk->lists[chosen * s->picks_max + i], dimension);
        for (size_t i = window; i < end; i++) add_token(off, &sum, weights, lane->values, i, dimension);
        for (size_t d = 0; d < dimension; d++) off[d] = (sum > 0 ? off[d] / sum : 0) - full[head * dimension + d];
    }
    const float *gram = s->gram + lane->kv_head * width * width;
    for (size_t i = 0; i < width; i++) walk->product[i] = dot(gram + i * width, walk->off, width);
    return (double)dot(walk->product, walk->off, width);
}

static bool is_alike(const struct reuse_study *s, const struct lane *lane, struct walk *walk, size_t step,
                     size_t chosen, double threshold) {
    const struct model_config *config = &s->samples->model->config;
    const size_t group = group_of(config);
    for (size_t head = 0; head < group; head++)
        walk->similarities[head] =
            label_cosine(query_at(s, lane, step, head), query_at(s, lane, chosen, head), config->k_dimension);
    return label_similarity(s->rule.aggregate, walk->similarities, s->importance + lane->kv_head * group, group) >=
           threshold;
}

/* ---- a run ---- */

/* Each threshold's step that chose last. */
static void follow(const struct reuse_study *s, const struct lane *lane, struct walk *walk, struct head_run *run) {
    const struct model_config *config = &s->samples->model->config;
    const size_t group = group_of(config), size = s->samples->options.window_size,
                 count = s->samples->options.run_count;
    size_t chosen[REUSE_CURVE_POINTS] = {0};
    *run = (struct head_run){.hits = {0}};
    for (size_t step = 0; step < count; step++) {
        const size_t end = samples_run_first(s->samples) + step + 1;
        double errors[REUSE_STUDY_AGE + 1]; /* by the age of the list; below 0: not known */
        for (size_t i = 0; i <= REUSE_STUDY_AGE; i++) errors[i] = -1;
        for (size_t head = 0; head < group; head++)
            attend(s, lane, query_at(s, lane, step, head), end, walk->weights + head * size,
                   s->full + ((lane->window * count + step) * config->head_count + lane->kv_head * group + head) *
                                 config->v_dimension);
        choose(s, walk, step, end);
        const double fresh = error_of(s, lane, walk, step, step, end);
        for (size_t i = 0; i < REUSE_CURVE_POINTS; i++) {
            const size_t age = step - chosen[i];
            if (step == 0 || age > REUSE_STUDY_AGE ||
                !is_alike(s, lane, walk, step, chosen[i], reuse_curve_thresholds[i])) {
                chosen[i] = step;
                continue;
            }
            if (errors[age] < 0) errors[age] = error_of(s, lane, walk, step, chosen[i], end);
            run->hits[i] += 1;
            run->loss[i] += errors[age] - fresh;
        }
    }
}

static void run_task(void *context, const struct pool_worker *worker) {
    struct reuse_study *s = context;
    const struct model_config *config = &s->samples->model->config;
    const size_t lanes = s->samples->options.run_windows * config->kv_head_count,
                 size = s->samples->options.window_size;
    for (size_t i; (i = pool_ticket(worker)) < lanes;) {
        const struct lane lane = {.window = i / config->kv_head_count,
                                  .kv_head = i % config->kv_head_count,
                                  .keys = s->keys + i * size * config->k_dimension,
                                  .values = s->values + i * size * config->v_dimension};
        follow(s, &lane, &s->walks[worker->index], &s->runs[i]);
    }
}

/* ---- a layer ---- */

static enum status load_output(struct reuse_study *s, size_t layer, struct error *error) {
    const struct model_config *config = &s->samples->model->config;
    const size_t group = group_of(config), width = group * config->v_dimension,
                 columns = config->head_count * config->v_dimension;
    TRY(attended_load_output(s->samples, s->kernels, layer, s->output, error));
    memset(s->gram, 0, config->kv_head_count * width * width * sizeof *s->gram);
    for (size_t row = 0; row < config->hidden_size; row++)
        for (size_t i = 0; i < columns; i++) {
            const float *part = s->output + row * columns + i / width * width;
            float *gram = s->gram + i * width;
            for (size_t j = 0; j < width; j++) gram[j] += part[i % width] * part[j];
        }
    return STATUS_OK;
}

/* Mean |W_O o_full|^2. */
static double mean_square(const struct reuse_study *s) {
    const struct model_config *config = &s->samples->model->config;
    const size_t columns = config->head_count * config->v_dimension,
                 count = s->samples->options.run_windows * s->samples->options.run_count;
    double sum = 0;
    size_t seen = 0;
    for (size_t i = 0; i < count; i += NORM_STEP, seen++)
        for (size_t row = 0; row < config->hidden_size; row++) {
            const double value = (double)dot(s->output + row * columns, s->full + i * columns, columns);
            sum += value * value;
        }
    return sum / (double)seen;
}

enum status reuse_study_run(struct reuse_study *study, size_t layer, const float *importance,
                            struct reuse_point *curves, struct error *error) {
    struct reuse_study *s = study;
    const struct model_config *config = &s->samples->model->config;
    const size_t heads = config->kv_head_count, size = s->samples->options.window_size,
                 windows = s->samples->options.run_windows;
    s->layer = layer;
    s->importance = importance;
    TRY(load_output(s, layer, error));
    for (size_t window = 0; window < windows; window++)
        TRY(attended_load(s->samples, layer, window, s->keys + window * heads * size * config->k_dimension,
                          s->values + window * heads * size * config->v_dimension, error));
    pool_run(s->pool, run_task, s);
    const double whole = mean_square(s), steps = (double)(windows * s->samples->options.run_count);
    for (size_t i = 0; i < heads * REUSE_CURVE_POINTS; i++) {
        const size_t head = i / REUSE_CURVE_POINTS, point = i % REUSE_CURVE_POINTS;
        double hits = 0, loss = 0;
        for (size_t window = 0; window < windows; window++) {
            hits += s->runs[window * heads + head].hits[point];
            loss += s->runs[window * heads + head].loss[point];
        }
        curves[i] = (struct reuse_point){.threshold = (float)reuse_curve_thresholds[point],
                                         .hits = (float)(hits / steps),
                                         .loss = whole > 0 ? (float)(loss / steps / whole) : 0};
    }
    return STATUS_OK;
}
