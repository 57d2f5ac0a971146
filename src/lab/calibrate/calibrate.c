#include "lab/calibrate/calibrate.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "lab/calibrate/gram.h"
#include "lab/calibrate/reuse_study.h"
#include "lab/calibrate/skew.h"
#include "tensor/half.h"

static const double quantiles[CALIBRATE_QUANTILES] = {0.01, 0.1, 0.5, 0.9, 0.99};

enum { WINDOW_MIN = 512, WINDOWS_MIN = 4 };

struct calibrate_options calibrate_options_default(void) {
    return (struct calibrate_options){.window_size = 4096,
                                      .window_count = 8,
                                      .text_queries = 48,
                                      .probe_queries = 24,
                                      .run_windows = 4,
                                      .run_count = 128,
                                      .decode = {.windows = 4, .count = 64},
                                      .training = {15, 20, 32, 128},
                                      .keep = 0.1,
                                      .sinks = 4,
                                      .recent = 64,
                                      .lambda = 0.05,
                                      .seed = 1,
                                      .bos = -1,
                                      .mask = cpu_default()};
}

enum status calibrate_options_fit(struct calibrate_options *options, const struct model *model, size_t token_count,
                                  struct error *error) {
    uint64_t context = model->config.context_length;
    if (context > 0 && options->window_size > context) options->window_size = (size_t)context;
    while (token_count / options->window_size < WINDOWS_MIN && options->window_size / 2 >= WINDOW_MIN)
        options->window_size /= 2;
    if (options->window_size < WINDOW_MIN || token_count / options->window_size < WINDOWS_MIN)
        return error_set(error, STATUS_USAGE,
                         "calibrate: the text has %zu tokens; at least %d windows of %d are needed", token_count,
                         WINDOWS_MIN, WINDOW_MIN);
    options->window_count = min_size(options->window_count, token_count / options->window_size);
    options->held_out = max_size(options->window_count / 4, 1);
    options->run_windows = min_size(options->run_windows, options->window_count);
    options->run_count = min_size(options->run_count, options->window_size / 4);
    return STATUS_OK;
}

/* ---- what is being done ---- */

struct calibration_run {
    struct calibration_result *result;
    struct model *model;
    const struct calibrate_options *options;
    struct kernels kernels;
    struct pool *pool;
    struct samples samples;
    struct hash_head *head;
    double began, span; /* of the current stage, as fractions of the whole */
    const char *stage;
};

/* Fractions of the work, as measured on the bundled model. */
static const double collect_share = 0.12, study_share = 0.08, reuse_share = 0.1;

/* Without hash weights to learn there is the skew, about a tenth of the rest. */
static double share_of(const struct calibration_run *run, double share) {
    return run->options->bits_count > 0 ? share : 0.9 * share / (collect_share + study_share + reuse_share);
}

static bool told(struct calibration_run *run, double share) {
    const struct calibrate_options *o = run->options;
    return o->progress != NULL && o->progress(o->progress_context, run->stage, run->began + run->span * share);
}

static bool collected(void *context, uint64_t tokens_done) {
    struct calibration_run *run = context;
    return told(run, (double)tokens_done / (double)(run->options->window_count * run->options->window_size));
}

static bool learning(void *context, double share) { return told(context, share); }

static enum status interrupted(struct error *error) { return error_set(error, STATUS_INTERRUPTED, "interrupted"); }

/* ---- stages ---- */

static enum status collect(struct calibration_run *run, const int32_t *tokens, struct error *error) {
    const struct calibrate_options *o = run->options;
    run->stage = "reading", run->span = share_of(run, collect_share);
    return samples_collect(&run->samples, run->model, tokens,
                           &(struct samples_options){.window_size = o->window_size,
                                                     .window_count = o->window_count,
                                                     .held_out = o->held_out,
                                                     .text_queries = o->text_queries,
                                                     .probe_queries = o->probe_queries,
                                                     .run_windows = o->run_windows,
                                                     .run_count = o->run_count,
                                                     .decode_windows = o->decode.windows,
                                                     .decode_count = o->decode.count,
                                                     .seed = o->seed,
                                                     .bos = o->bos,
                                                     .block = 512,
                                                     .progress = collected,
                                                     .progress_context = run},
                           error);
}

static bool is_idle(const struct samples *s, size_t layer, size_t head) {
    for (size_t i = 0; i < s->options.window_count * s->query_count; i++) {
        const float *q = samples_query(s, layer, i / s->query_count, i % s->query_count, head);
        for (size_t d = 0; d < s->model->config.k_dimension; d++)
            if (q[d] != 0) return false;
    }
    return true;
}

bool calibration_kv_head_is_idle(const struct calibration_result *result, size_t layer, size_t kv_head) {
    size_t group = result->head_count / result->kv_head_count;
    const bool *idle = result->idle + layer * result->head_count + kv_head * group;
    for (size_t i = 0; i < group; i++)
        if (!idle[i]) return false;
    return true;
}

static void take_similarity(struct calibration_run *run) {
    const struct samples *s = &run->samples;
    size_t heads = run->result->layer_count * run->result->head_count;
    for (size_t i = 0; i < heads; i++) {
        const uint64_t *bins = s->similarity + i * SIMILARITY_BINS;
        run->result->idle[i] = is_idle(s, i / run->result->head_count, i % run->result->head_count);
        if (run->result->idle[i]) continue; /* no angles */
        run->result->similarity[i] = (float)(s->similarity_sum[i] / (double)s->similarity_count);
        run->result->similarity_decoded[i] =
            (float)(s->decoded_sum[i] / (double)(s->decoded_count > 0 ? s->decoded_count : 1));
        for (size_t j = 0; j < CALIBRATE_QUANTILES; j++) {
            double wanted = quantiles[j] * (double)s->similarity_count, before = 0;
            size_t bin = 0;
            while (bin + 1 < SIMILARITY_BINS && before + (double)bins[bin] < wanted) before += (double)bins[bin++];
            double inside = bins[bin] > 0 ? (wanted - before) / (double)bins[bin] : 0;
            run->result->similarity_quantiles[i * CALIBRATE_QUANTILES + j] =
                (float)(2 * ((double)bin + inside) / SIMILARITY_BINS - 1);
        }
    }
}

static enum status study(struct calibration_run *run, struct error *error) {
    const struct calibrate_options *o = run->options;
    struct calibration_result *r = run->result;
    struct layer_study *study;
    enum status status = STATUS_OK;
    run->began += run->span, run->span = share_of(run, study_share), run->stage = "layers";
    const struct layer_study_options how = {.sinks = o->sinks, .recent = o->recent, .lambda = o->lambda};
    TRY(layer_study_create(&study, &run->samples, &run->kernels, run->pool, &how, error));
    for (size_t layer = 0; layer < r->layer_count && status == STATUS_OK; layer++) {
        if (calibration_kv_heads(r, layer) == 0) continue;
        const struct layer_figures figures = {.importance = r->importance + layer * r->head_count,
                                              .alone = r->alone + layer * r->head_count,
                                              .sensitivity = r->sensitivity + layer * STUDY_ROUNDINGS};
        status = layer_study_run(study, layer, 0, &figures, error);
        if (told(run, (double)(layer + 1) / (double)r->layer_count)) status = interrupted(error);
    }
    layer_study_destroy(study);
    return status;
}

static enum status study_reuse(struct calibration_run *run, struct error *error) {
    const struct calibrate_options *o = run->options;
    const struct reuse_study_options how = {.keep = o->keep, .sinks = o->sinks, .recent = o->recent};
    struct calibration_result *r = run->result;
    struct reuse_study *study;
    enum status status = STATUS_OK;
    run->began += run->span, run->span = share_of(run, reuse_share), run->stage = "reuse";
    TRY(reuse_study_create(&study, &run->samples, &run->kernels, run->pool, &how, error));
    for (size_t layer = 0; layer < r->layer_count && status == STATUS_OK; layer++) {
        if (calibration_kv_heads(r, layer) == 0) continue;
        status = reuse_study_run(study, layer, r->importance + layer * r->head_count,
                                 r->reuse + calibration_lane(r, layer, 0) * REUSE_CURVE_POINTS, error);
        if (told(run, (double)(layer + 1) / (double)r->layer_count)) status = interrupted(error);
    }
    reuse_study_destroy(study);
    return status;
}

/* The head's keys of the training windows are loaded. */
static enum status find_skew(struct calibration_run *run, size_t layer, size_t kv_head, struct error *error) {
    struct calibration_result *r = run->result;
    size_t n = r->k_dimension, group = r->head_count / r->kv_head_count, entry = calibration_lane(r, layer, kv_head);
    double *memory = calloc(6 * n * n, sizeof *memory), kept;
    if (memory == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    double *queries = memory, *keys = memory + n * n, *skew = memory + 2 * n * n;
    for (size_t i = 0; i < run->head->window_count * run->head->window_size; i++)
        gram_add(keys, run->head->keys + i * n, n);
    for (size_t window = 0; window < run->head->window_count; window++)
        for (size_t i = 0; i < run->samples.query_count * group; i++)
            gram_add(queries, samples_query(&run->samples, layer, window, i / group, kv_head * group + i % group), n);
    gram_mirror(keys, n);
    gram_mirror(queries, n);
    skew_find(queries, keys, n, memory + 3 * n * n, skew, &kept);
    for (size_t i = 0; i < n * n; i++) r->skew[entry * n * n + i] = float_to_half((float)skew[i]);
    r->skew_kept[entry] = (float)kept;
    free(memory);
    return STATUS_OK;
}

static enum status learn_head(struct calibration_run *run, size_t layer, size_t kv_head, double share,
                              double bits_total, struct error *error) {
    const struct calibrate_options *o = run->options;
    struct calibration_result *r = run->result;
    size_t entry = calibration_lane(r, layer, kv_head), training_windows = o->window_count - o->held_out;
    TRY(hash_head_load(run->head, layer, kv_head, 0, training_windows, error));
    TRY(find_skew(run, layer, kv_head, error));
    for (size_t i = 0; i < o->bits_count; i++) {
        struct hash_learn_options how = {.layer = layer,
                                         .kv_head = kv_head,
                                         .training = hash_training_published(o->bits[i]),
                                         .train_windows = training_windows,
                                         .keep = {o->keep, o->sinks, o->recent},
                                         .progress = learning,
                                         .progress_context = run};
        struct random random;
        how.training.epochs = o->training.epochs, how.training.steps = o->training.steps;
        random_init(&random, o->seed + 1000003 * (entry * CALIBRATE_BITS_MAX + i + 1));
        run->span = share * (double)o->bits[i] / bits_total;
        TRY(hash_learn(run->head, &how, &random, r->hash[i] + entry * r->k_dimension * o->bits[i],
                       &r->learned[i][entry], error));
        run->began += run->span;
    }
    return STATUS_OK;
}

static enum status learn_all(struct calibration_run *run, struct error *error) {
    const struct calibrate_options *o = run->options;
    struct calibration_result *r = run->result;
    double bits_total = 0;
    run->began += run->span, run->stage = o->bits_count > 0 ? "hash weights" : "skews";
    for (size_t i = 0; i < o->bits_count; i++) bits_total += (double)o->bits[i];
    double share = (1 - run->began) / (double)calibration_lane(r, r->layer_count, 0);
    const struct hash_head_options pairs = {.query_count = o->training.batch_queries,
                                            .keys_per_query = o->training.batch_keys};
    TRY(hash_head_create(&run->head, &run->samples, &run->kernels, run->pool, &pairs, error));
    for (size_t layer = 0; layer < r->layer_count; layer++)
        for (size_t kv_head = 0; kv_head < calibration_kv_heads(r, layer); kv_head++) {
            TRY(learn_head(run, layer, kv_head, share, bits_total, error));
            if (o->bits_count > 0) continue; /* learning tells its own progress */
            run->span = share;
            if (told(run, 1)) return interrupted(error);
            run->began += share;
        }
    return STATUS_OK;
}

/* ---- the whole ---- */

static bool allocate(struct calibration_result *r) {
    size_t heads = r->layer_count * r->head_count, kv_heads = r->layer_count * r->kv_head_count;
    bool there = true;
    for (size_t i = 0; i < r->options.bits_count; i++) {
        r->hash[i] = calloc(kv_heads * r->k_dimension, r->options.bits[i] * sizeof(uint16_t));
        r->learned[i] = calloc(kv_heads, sizeof(struct hash_learned));
        there = there && r->hash[i] != NULL && r->learned[i] != NULL;
    }
    r->skew = calloc(kv_heads * r->k_dimension, r->k_dimension * sizeof(uint16_t));
    r->skew_kept = calloc(kv_heads, sizeof(float));
    r->similarity = calloc(heads, sizeof(float));
    r->similarity_decoded = calloc(heads, sizeof(float));
    r->similarity_quantiles = calloc(heads * CALIBRATE_QUANTILES, sizeof(float));
    r->idle = calloc(heads, sizeof *r->idle);
    r->importance = calloc(heads, sizeof(float));
    r->alone = calloc(heads, sizeof(float));
    r->sensitivity = calloc(r->layer_count * STUDY_ROUNDINGS, sizeof(float));
    r->reuse = calloc(kv_heads * REUSE_CURVE_POINTS, sizeof *r->reuse);
    return there && r->reuse != NULL && r->skew != NULL && r->skew_kept != NULL && r->similarity != NULL &&
           r->similarity_decoded != NULL && r->similarity_quantiles != NULL && r->idle != NULL &&
           r->importance != NULL && r->alone != NULL && r->sensitivity != NULL;
}

void calibration_result_deinit(struct calibration_result *result) {
    for (size_t i = 0; i < CALIBRATE_BITS_MAX; i++) {
        free(result->hash[i]);
        free(result->learned[i]);
    }
    free(result->skew);
    free(result->skew_kept);
    free(result->similarity);
    free(result->similarity_decoded);
    free(result->similarity_quantiles);
    free(result->idle);
    free(result->importance);
    free(result->alone);
    free(result->sensitivity);
    free(result->reuse);
    *result = (struct calibration_result){0};
}

enum status calibrate_run(struct calibration_result *result, struct model *model, const int32_t *tokens,
                          const struct calibrate_options *options, struct error *error) {
    const struct model_config *config = &model->config;
    *result = (struct calibration_result){.layer_count = config->layer_count,
                                          .head_count = config->head_count,
                                          .kv_head_count = config->kv_head_count,
                                          .k_dimension = config->k_dimension,
                                          .groups = config->kv_groups,
                                          .options = *options,
                                          .importance_source = "layer-local surrogate"};
    struct calibration_run run = {
        .result = result, .model = model, .options = options, .pool = device_pool(model->device)};
    if (run.pool == NULL)
        return error_set(error, STATUS_UNSUPPORTED, "calibrate: this device has no threads of its own");
    kernels_init(&run.kernels, options->mask);
    enum status status = allocate(result) ? STATUS_OK : error_set(error, STATUS_MEMORY, "no memory for a calibration");
    if (status == STATUS_OK) status = collect(&run, tokens, error);
    if (status == STATUS_OK) {
        take_similarity(&run);
        status = study(&run, error);
    }
    if (status == STATUS_OK) status = study_reuse(&run, error);
    if (status == STATUS_OK) status = learn_all(&run, error);
    hash_head_destroy(run.head);
    samples_deinit(&run.samples);
    if (status != STATUS_OK) calibration_result_deinit(result);
    return status;
}
