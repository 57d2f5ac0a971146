/* What reuse loses, by threshold (lab/calibrate/reuse_study.h), against the same by the formulas in double; and the
 * thresholds that follow from it (attention/reuse_thresholds.h). */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attention/reuse_options.h"
#include "base/random.h"
#include "lab/calibrate/attended.h"
#include "lab/calibrate/reuse_study.h"
#include "model/tiny_model.h"

enum { WINDOW = 512, WINDOWS = 2, RUN = 80, SINKS = 4, RECENT = 8 };
static const double keep = 0.1;

/* ---- a layer by the formulas ---- */

struct plain {
    const struct samples *samples;
    const float *keys, *values, *output;
    size_t layer, window;
};

/* Weights of all tokens [0, end) for one query head. */
static void weigh(const struct plain *p, size_t step, size_t head, size_t end, double *weights) {
    const struct model_config *config = &p->samples->model->config;
    const size_t kv_head = head / (config->head_count / config->kv_head_count);
    const float *q = samples_run_query(p->samples, p->layer, p->window, step, head);
    double sum = 0;
    for (size_t i = 0; i < end; i++) {
        double score = 0;
        for (size_t d = 0; d < config->k_dimension; d++)
            score += (double)q[d] * (double)p->keys[(kv_head * WINDOW + i) * config->k_dimension + d];
        sum += weights[i] = exp(score * (double)config->attention_scale);
    }
    for (size_t i = 0; i < end; i++) weights[i] /= sum;
}

/* What a step of a KV head would choose: all but sinks and recent tokens. */
static void choose(const struct plain *p, size_t step, size_t kv_head, bool *listed) {
    const struct model_config *config = &p->samples->model->config;
    const size_t group = config->head_count / config->kv_head_count,
                 end = samples_run_first(p->samples) + step + 1;
    double weights[WINDOW], sums[WINDOW] = {0};
    memset(listed, 0, WINDOW * sizeof *listed);
    for (size_t head = 0; head < group; head++) {
        weigh(p, step, kv_head * group + head, end, weights);
        for (size_t i = 0; i < end; i++) sums[i] += weights[i];
    }
    for (size_t picks = (size_t)ceil(keep * (double)end) - SINKS - RECENT; picks > 0; picks--) {
        size_t best = SINKS;
        for (size_t i = SINKS; i < end - RECENT; i++)
            if (listed[best] || (!listed[i] && sums[i] > sums[best])) best = i;
        listed[best] = true;
    }
}

/* |W_O (o - o_full)|^2 of a KV head's group where only some tokens are seen. */
static double error_of(const struct plain *p, size_t step, size_t kv_head, size_t chosen,
                       const bool *listed) {
    const struct model_config *config = &p->samples->model->config;
    const size_t group = config->head_count / config->kv_head_count, dimension = config->v_dimension,
                 end = samples_run_first(p->samples) + step + 1, window = end - (step - chosen) - RECENT;
    double *off = calloc(group * dimension, sizeof *off), weights[WINDOW], square = 0;
    for (size_t head = 0; head < group; head++) {
        double seen = 0;
        weigh(p, step, kv_head * group + head, end, weights);
        for (size_t i = 0; i < end; i++)
            if (i < SINKS || listed[i] || i >= window) seen += weights[i];
        for (size_t i = 0; i < end; i++) {
            const double weight = i < SINKS || listed[i] || i >= window ? weights[i] / seen : 0;
            for (size_t d = 0; d < dimension; d++)
                off[head * dimension + d] +=
                    (weight - weights[i]) * (double)p->values[(kv_head * WINDOW + i) * dimension + d];
        }
    }
    for (size_t row = 0; row < config->hidden_size; row++) {
        double sum = 0;
        for (size_t i = 0; i < group * dimension; i++)
            sum += off[i] *
                   (double)p->output[row * config->head_count * dimension + kv_head * group * dimension + i];
        square += sum * sum;
    }
    free(off);
    return square;
}

/* Adds a run's hits and losses at one threshold. */
static void follow(const struct plain *p, size_t kv_head, double threshold, double *hits, double *loss) {
    const struct model_config *config = &p->samples->model->config;
    const size_t group = config->head_count / config->kv_head_count;
    bool listed[WINDOW], fresh[WINDOW];
    size_t chosen = 0;
    for (size_t step = 0; step < RUN; step++) {
        double similarity = 1;
        for (size_t head = kv_head * group; head < (kv_head + 1) * group; head++)
            similarity = fmin(similarity,
                              label_cosine(samples_run_query(p->samples, p->layer, p->window, step, head),
                                           samples_run_query(p->samples, p->layer, p->window, chosen, head),
                                           config->k_dimension));
        if (step == 0 || step - chosen > REUSE_STUDY_AGE || similarity < threshold) {
            chosen = step;
            choose(p, step, kv_head, listed);
            continue;
        }
        choose(p, step, kv_head, fresh);
        *hits += 1;
        *loss += error_of(p, step, kv_head, chosen, listed) - error_of(p, step, kv_head, step, fresh);
    }
}

/* Mean |W_O o_full|^2 at every eighth step. */
static double whole_of(struct plain *p) {
    const struct model_config *config = &p->samples->model->config;
    const size_t width = config->head_count * config->v_dimension,
                 group = config->head_count / config->kv_head_count;
    double *out = calloc(width, sizeof *out), weights[WINDOW], sum = 0;
    size_t seen = 0;
    for (size_t step = 0; step < RUN; step += 8, seen++) {
        memset(out, 0, width * sizeof *out);
        for (size_t head = 0; head < config->head_count; head++) {
            const size_t end = samples_run_first(p->samples) + step + 1;
            weigh(p, step, head, end, weights);
            for (size_t i = 0; i < end; i++)
                for (size_t d = 0; d < config->v_dimension; d++)
                    out[head * config->v_dimension + d] +=
                        weights[i] * (double)p->values[(head / group * WINDOW + i) * config->v_dimension + d];
        }
        for (size_t row = 0; row < config->hidden_size; row++) {
            double value = 0;
            for (size_t i = 0; i < width; i++) value += out[i] * (double)p->output[row * width + i];
            sum += value * value;
        }
    }
    free(out);
    return sum / (double)seen;
}

static void collect(struct samples *samples, struct device *device, struct model **model) {
    static int32_t tokens[WINDOW * WINDOWS];
    char path[200];
    struct error error;
    struct random random;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny_model_write(&tiny, tiny_model_path("reuse.gguf", path, sizeof path));
    assert_ok(model_load(model, path, device, &error), error);
    unlink(path);
    random_init(&random, 5);
    for (size_t i = 0; i < WINDOW * WINDOWS; i++) /* words come back, as queries then do */
        tokens[i] = (int32_t)random_below(&random, i % 3 == 0 ? (*model)->config.vocabulary_size : 4);
    assert_ok(samples_collect(samples, *model, tokens,
                              &(struct samples_options){.window_size = WINDOW,
                                                        .window_count = WINDOWS,
                                                        .held_out = 1,
                                                        .text_queries = 4,
                                                        .probe_queries = 4,
                                                        .run_windows = 1,
                                                        .run_count = RUN,
                                                        .seed = 3,
                                                        .bos = -1,
                                                        .block = 100},
                              &error),
              error);
}

static void curves_are_those_of_the_formulas(void **state) {
    (void)state;
    struct device *device;
    struct model *model;
    struct samples samples;
    struct reuse_study *study;
    struct kernels kernels;
    struct error error;
    assert_ok(device_cpu_create(&device, &(struct device_options){.thread_count = 2, .mask = cpu_default()},
                                &error),
              error);
    collect(&samples, device, &model);
    kernels_init(&kernels, cpu_default());
    assert_ok(reuse_study_create(
                  &study, &samples, &kernels, device_pool(device),
                  &(struct reuse_study_options){.keep = keep, .sinks = SINKS, .recent = RECENT}, &error),
              error);
    const struct model_config *config = &model->config;
    const size_t heads = config->kv_head_count, layer = 1;
    float *importance = calloc(config->head_count, sizeof *importance); /* zeros: the least similar head */
    float *keys = calloc(heads * WINDOW, config->k_dimension * sizeof *keys),
          *values = calloc(heads * WINDOW, config->v_dimension * sizeof *values),
          *output = calloc(config->hidden_size * config->head_count, config->v_dimension * sizeof *output);
    struct reuse_point *curves = calloc(heads * REUSE_CURVE_POINTS, sizeof *curves);
    assert_ok(reuse_study_run(study, layer, importance, curves, &error), error);
    assert_ok(attended_load(&samples, layer, 0, keys, values, &error), error);
    assert_ok(attended_load_output(&samples, &kernels, layer, output, &error), error);
    struct plain plain = {&samples, keys, values, output, layer, 0};
    const double whole = whole_of(&plain);
    size_t between = 0;
    for (size_t head = 0; head < heads; head++)
        for (size_t i = 0; i < REUSE_CURVE_POINTS; i++) {
            const struct reuse_point *found = &curves[head * REUSE_CURVE_POINTS + i];
            double hits = 0, loss = 0;
            if (i % 3 != 0 && i != REUSE_CURVE_POINTS - 1 && i != 7) continue; /* they take a while */
            follow(&plain, head, reuse_curve_thresholds[i], &hits, &loss);
            if (fabs(hits / RUN - (double)found->hits) > 1e-6 ||
                fabs(loss / RUN / whole - (double)found->loss) > 1e-3 * fabs(loss / RUN / whole) + 1e-6)
                fail_msg("head %zu, threshold %g: hits %g, loss %g; expected %g, %g", head,
                         reuse_curve_thresholds[i], (double)found->hits, (double)found->loss, hits / RUN,
                         loss / RUN / whole);
            between += hits > 0 && hits < RUN - 2;
        }
    for (size_t head = 0; head < heads; head++) {
        const struct reuse_point *curve = curves + head * REUSE_CURVE_POINTS;
        assert_true(fabs((double)curve[0].hits - (double)(RUN - 2) / RUN) < 1e-6); /* steps 0 and 65 choose */
        assert_true(curve[REUSE_CURVE_POINTS - 1].hits == 0 && curve[REUSE_CURVE_POINTS - 1].loss == 0);
    }
    assert_true(between > 0);
    free(importance), free(keys), free(values), free(output), free(curves);
    reuse_study_destroy(study);
    samples_deinit(&samples);
    model_destroy(model);
    device_destroy(device);
}

/* ---- thresholds ---- */

enum { HEADS = 40 };

/* Hits fall and so do losses while the threshold rises, by steps of any size. */
static void draw_curves(struct random *random, struct reuse_point *curves) {
    for (size_t head = 0; head < HEADS; head++) {
        struct reuse_point *curve = curves + head * REUSE_CURVE_POINTS;
        double hits = 0, loss = 0;
        const double cost = exp(3 * random_normal(random) - 6);
        for (size_t i = REUSE_CURVE_POINTS; i-- > 0;) {
            curve[i] = (struct reuse_point){(float)reuse_curve_thresholds[i], (float)hits, (float)loss};
            const double more = random_double(random) * (0.98 - hits) / 3;
            hits += more;
            loss += cost * more * (1 + (double)(REUSE_CURVE_POINTS - i)) * random_double(random);
        }
    }
}

static const struct reuse_point *point_of(const struct reuse_point *curve, double threshold) {
    for (size_t i = 0; i < REUSE_CURVE_POINTS; i++)
        if ((double)curve[i].threshold == threshold) return &curve[i];
    fail_msg("no threshold is %g", threshold);
    return NULL;
}

/* No two heads can exchange reused lists for less loss: between any two points of two heads that leave the hits as
 * many or more, the loss is not lower. */
static void thresholds_lose_least(void **state) {
    (void)state;
    struct random random;
    random_init(&random, 11);
    for (size_t round = 0; round < 20; round++) {
        struct reuse_point curves[HEADS * REUSE_CURVE_POINTS];
        double thresholds[HEADS], before = -1;
        draw_curves(&random, curves);
        for (int wanted = 0; wanted <= 8; wanted++) {
            const double expected = reuse_thresholds_divide(thresholds, curves, HEADS, wanted / 10.0);
            double hits = 0, loss = 0;
            for (size_t i = 0; i < HEADS; i++) {
                const struct reuse_point *own = point_of(curves + i * REUSE_CURVE_POINTS, thresholds[i]);
                hits += (double)own->hits, loss += (double)own->loss;
            }
            assert_true(fabs(hits / HEADS - expected) < 1e-9);
            double all = 0;
            for (size_t i = 0; i < HEADS; i++) all += (double)curves[i * REUSE_CURVE_POINTS].hits;
            assert_true(expected >= wanted / 10.0 || fabs(expected - all / HEADS) < 1e-6);
            assert_true(loss >= before);
            before = loss;
            for (size_t a = 0; a < HEADS; a++)
                for (size_t b = 0; b < HEADS; b++) {
                    const struct reuse_point *from_a =
                                                 point_of(curves + a * REUSE_CURVE_POINTS, thresholds[a]),
                                             *from_b =
                                                 point_of(curves + b * REUSE_CURVE_POINTS, thresholds[b]);
                    for (size_t i = 0; a != b && i < REUSE_CURVE_POINTS * REUSE_CURVE_POINTS; i++) {
                        const struct reuse_point *to_a =
                                                     &curves[a * REUSE_CURVE_POINTS + i / REUSE_CURVE_POINTS],
                                                 *to_b =
                                                     &curves[b * REUSE_CURVE_POINTS + i % REUSE_CURVE_POINTS];
                        const double more = (double)to_a->hits + (double)to_b->hits - (double)from_a->hits -
                                            (double)from_b->hits,
                                     cost = (double)to_a->loss + (double)to_b->loss - (double)from_a->loss -
                                            (double)from_b->loss;
                        if (more >= 0 && cost < -1e-9 * loss)
                            fail_msg("wanted %d of 10: heads %zu and %zu could lose %g less for %g more hits",
                                     wanted, a, b, -cost, more);
                    }
                }
        }
    }
}

/* A head that loses nothing reuses everything, and one that costs more than all others nothing. */
static void who_pays(void **state) {
    (void)state;
    struct reuse_point curves[2 * REUSE_CURVE_POINTS];
    double thresholds[2];
    for (size_t i = 0; i < 2 * REUSE_CURVE_POINTS; i++) {
        const size_t point = i % REUSE_CURVE_POINTS;
        curves[i] = (struct reuse_point){.threshold = (float)reuse_curve_thresholds[point],
                                         .hits = 1 - (float)point / (REUSE_CURVE_POINTS - 1)};
        curves[i].loss = i < REUSE_CURVE_POINTS ? 0 : curves[i].hits;
    }
    (void)reuse_thresholds_divide(thresholds, curves, 2, 0.5);
    assert_true(thresholds[0] == -1 && thresholds[1] > 1);
    (void)reuse_thresholds_divide(thresholds, curves, 2, 1);
    assert_true(thresholds[0] == -1 && thresholds[1] == -1);
    assert_true(reuse_thresholds_divide(thresholds, curves, 0, 0.5) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves_are_those_of_the_formulas),
        cmocka_unit_test(thresholds_lose_least),
        cmocka_unit_test(who_pays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
