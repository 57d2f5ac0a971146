#include "lab/calibrate/attended.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

struct stretch {
    size_t begin, end;
};

/* What a query at `position` sees: one range, or sinks and recent tokens. */
static size_t visible(const struct attended_args *args, size_t position, struct stretch stretches[2]) {
    const struct layer_config *layer = &args->samples->model->config.layers[args->layer];
    size_t end = position + 1, begin = 0;
    if (layer->attention == ATTENTION_SLIDING && end > layer->window) begin = end - (size_t)layer->window;
    size_t recent = args->stream && end > args->recent ? max_size(end - args->recent, begin) : begin;
    size_t sinks = min_size(args->sinks, recent);
    stretches[0] = (struct stretch){begin, sinks};
    stretches[begin < sinks] = (struct stretch){recent, end};
    return begin < sinks ? 2 : 1;
}

static void attend(const struct attended_args *args, size_t query, size_t head, float *scores) {
    const struct model_config *config = &args->samples->model->config;
    size_t kv_head = head / (config->head_count / config->kv_head_count), size = args->samples->options.window_size;
    const float *keys = args->keys + kv_head * size * config->k_dimension;
    const float *values = args->values + kv_head * size * config->v_dimension;
    const float *q = samples_query(args->samples, args->layer, args->window, query, head);
    float *out = args->out + ((query - args->query_first) * config->head_count + head) * config->v_dimension;
    struct stretch stretches[2];
    size_t count = visible(args, samples_position(args->samples, args->window, query), stretches);
    float largest = -INFINITY, sum = 0;
    for (size_t s = 0; s < count; s++)
        for (size_t i = stretches[s].begin; i < stretches[s].end; i++) {
            scores[i] = samples_score(args->samples, q, keys + i * config->k_dimension);
            largest = fmaxf(largest, scores[i]);
        }
    memset(out, 0, config->v_dimension * sizeof *out);
    for (size_t s = 0; s < count; s++)
        for (size_t i = stretches[s].begin; i < stretches[s].end; i++) {
            float weight = expf(scores[i] - largest);
            sum += weight;
            if (weight > 0)
                for (size_t d = 0; d < config->v_dimension; d++) out[d] += weight * values[i * config->v_dimension + d];
        }
    for (size_t d = 0; d < config->v_dimension; d++) out[d] /= sum;
}

static void attended_task(void *context, const struct pool_worker *worker) {
    const struct attended_args *args = context;
    size_t heads = args->samples->model->config.head_count;
    struct range range = pool_range(worker, args->query_count * heads, 1);
    float *scores = args->scratch + worker->index * args->samples->options.window_size;
    for (size_t i = range.begin; i < range.end; i++) attend(args, args->query_first + i / heads, i % heads, scores);
}

void attended_run(struct pool *pool, const struct attended_args *args) {
    struct attended_args own = *args;
    pool_run(pool, attended_task, &own);
}

enum status attended_load(const struct samples *samples, size_t layer, size_t window, float *keys, float *values,
                          struct error *error) {
    const struct model_config *config = &samples->model->config;
    size_t size = samples->options.window_size;
    for (size_t head = 0; head < config->kv_head_count; head++) {
        TRY(samples_keys(samples, layer, window, head, keys + head * size * config->k_dimension, error));
        TRY(samples_values(samples, layer, window, head, values + head * size * config->v_dimension, error));
    }
    return STATUS_OK;
}

/* Weights are the device's. */
enum status attended_load_output(const struct samples *samples, const struct kernels *kernels, size_t layer,
                                 float *output, struct error *error) {
    const struct model_config *config = &samples->model->config;
    const struct weight *weight = &samples->model->layers[layer].output;
    const struct matrix *matrix = &weight->matrix;
    const size_t bytes = matrix->rows * matrix->row_bytes;
    if (matrix->columns != config->head_count * config->v_dimension)
        return error_set(error, STATUS_UNSUPPORTED, "layer %zu: an output matrix of %zu columns", layer,
                         matrix->columns);
    uint8_t *rows = malloc(bytes);
    if (rows == NULL) return error_set(error, STATUS_MEMORY, "no memory for an output matrix");
    enum status status =
        device_read(samples->model->device, samples->stream, rows, span_of(&weight->memory, 0), bytes, error);
    for (size_t i = 0; i < matrix->rows && status == STATUS_OK; i++)
        kernels->convert.dequantize[matrix->type](rows + i * matrix->row_bytes, output + i * matrix->columns,
                                                  matrix->columns);
    free(rows);
    return status;
}
