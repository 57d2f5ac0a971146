/* inputs: the inputs of layers that a sequence keeps beside its document (cache/inputs.h), and their form. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "engine/engine_internal.h"

enum { TRIAL_ROWS = 64, TRIAL_SEED = 20 };

/* Buffers of a trial, in one piece for each side. */
struct trial {
    size_t columns, outputs; /* of x, and of y: the larger of W_K's and W_V's rows */
    float *host;             /* owned; x, then y of it as it is, and as it comes back */
    uint8_t *kept;           /* owned; a row */
    struct buffer memory;    /* owned MEMORY_DEVICE; float: x, y */
};

static size_t trial_floats(const struct trial *trial, size_t outputs) {
    return TRIAL_ROWS * (trial->columns + outputs * trial->outputs);
}

/* y of the rows in host memory. */
static enum status multiply(struct engine *engine, const struct trial *trial, const struct weight *weight,
                            size_t row_count, float *y, struct error *error) {
    const struct device_operations *operations = engine->model->device->operations;
    const struct span x = span_of(&trial->memory, 0), result = span_floats(x, TRIAL_ROWS * trial->columns);
    operations->upload(engine->stream, x, trial->host, row_count * trial->columns * sizeof *trial->host);
    operations->matmul(engine->stream, &(struct matmul_operation){.x = x,
                                                                  .x_stride = trial->columns,
                                                                  .row_count = row_count,
                                                                  .weight_count = 1,
                                                                  .weights = {weight},
                                                                  .y = {result},
                                                                  .y_stride = {weight->matrix.rows}});
    operations->download(engine->stream, y, result, row_count * weight->matrix.rows * sizeof *y);
    return operations->stream_synchronize(engine->stream, error);
}

/* Whether rows that were kept in a form give this weight's product the same bits, one row and many. Few rows are not
 * kept where their products are others. */
static enum status keeps_bits(struct engine *engine, const struct trial *trial, const struct weight *weight,
                              enum inputs_form form, bool *same, struct error *error) {
    float *rows = trial->host, *exact = rows + TRIAL_ROWS * trial->columns,
          *rounded = exact + TRIAL_ROWS * trial->outputs;
    ASSERT(engine->model->device->rows_few < TRIAL_ROWS);
    *same = true;
    for (size_t count = engine->model->device->rows_few > 0 ? TRIAL_ROWS : 1; count <= TRIAL_ROWS && *same;
         count += TRIAL_ROWS - 1) {
        struct random random;
        random_init(&random, TRIAL_SEED + count);
        for (size_t i = 0; i < count * trial->columns; i++) rows[i] = (float)random_normal(&random);
        TRY(multiply(engine, trial, weight, count, exact, error));
        for (float *row = rows; row < rows + count * trial->columns; row += trial->columns) {
            inputs_encode(form, inputs_power(form, row, trial->columns), row, trial->columns, trial->kept);
            inputs_decode(form, trial->kept, trial->columns, row);
        }
        TRY(multiply(engine, trial, weight, count, rounded, error));
        *same = memcmp(exact, rounded, count * weight->matrix.rows * sizeof *exact) == 0;
    }
    return STATUS_OK;
}

/* Every type of weight that K and V are computed with is tried once. */
static enum status try_types(struct engine *engine, const struct trial *trial, enum inputs_form form, bool *same,
                             struct error *error) {
    const struct model *model = engine->model;
    uint64_t tried = 0;
    *same = true;
    for (size_t layer = 1; layer < model_stored_layers(&model->config); layer++) {
        const struct weight *weights[] = {&model->layers[layer].k, &model->layers[layer].v};
        for (size_t i = 0; i < 2 && *same; i++) {
            const uint64_t bit = UINT64_C(1) << weights[i]->matrix.type;
            if ((tried & bit) == 0) TRY(keeps_bits(engine, trial, weights[i], form, same, error));
            tried |= bit;
        }
    }
    return STATUS_OK;
}

enum status engine_try_inputs(struct engine *engine, struct plan *plan, struct error *error) {
    const struct model_config *config = &engine->model->config;
    struct device *device = engine->model->device;
    const size_t k = config->kv_head_count * config->k_dimension, v = config->kv_head_count * config->v_dimension;
    struct trial trial = {.columns = config->hidden_size, .outputs = max_size(k, v)};
    bool same = false;
    if (plan->rebuilds) engine->inputs_ratio = plan_inputs_ratio(plan, config);
    engine->rebuilds = plan_keeps_inputs(plan, config) && plan->disk_directory != NULL;
    if (!plan_keeps_inputs(plan, config)) return STATUS_OK;
    engine->inputs_shape =
        (struct inputs_shape){.layer_count = model_stored_layers(config), .hidden_size = config->hidden_size};
    if (config->hidden_size % 32 != 0) return STATUS_OK;
    const size_t host_bytes = trial_floats(&trial, 2) * sizeof(float), bytes = trial_floats(&trial, 1) * sizeof(float);
    TRY(device->operations->allocate(device, MEMORY_DEVICE, bytes, &trial.memory, error));
    trial.host = calloc(1, host_bytes);
    trial.kept = calloc(1, inputs_row_bytes(&engine->inputs_shape)); /* floats: no form has more */
    enum status status = trial.host != NULL && trial.kept != NULL
                             ? STATUS_OK
                             : error_set(error, STATUS_MEMORY, "no memory to try %d rows", TRIAL_ROWS);
    static const enum inputs_form forms[] = {INPUTS_Q8, INPUTS_F16}; /* the smaller first */
    for (size_t i = 0; i < 2 && status == STATUS_OK && !same; i++) {
        status = try_types(engine, &trial, forms[i], &same, error);
        if (same) engine->inputs_shape.form = forms[i];
    }
    free(trial.host), free(trial.kept);
    device->operations->release(device, &trial.memory);
    plan->inputs_form = engine->inputs_shape.form;
    if (plan->rows_in_host && plan->inputs_form != INPUTS_F16) plan->rebuilds = false;
    return status;
}

enum status engine_measure_link(struct engine *engine, const struct plan *plan, struct error *error) {
    struct attention_options options;
    struct store_rates rates;
    if (!engine->rebuilds) return STATUS_OK;
    TRY(plan_attention_options(plan, &engine->model->config, &options, error));
    engine->rebuild_chunks = options.rebuild.chunks;
    if (documents_measure(engine->documents, engine->context_size, &rates, NULL) == STATUS_OK)
        attention_set_link(engine->attention, (double)kv_cache_chunk_bytes_max(&engine->kv) / rates.page_seconds);
    return STATUS_OK;
}

/* Inputs that cannot be kept cost speed and are no error, but for memory. */
enum status engine_attach_inputs(struct engine *engine, struct sequence *sequence, const int32_t *tokens,
                                 struct error *error) {
    struct documents_outcome *saved = &sequence->saved;
    const bool is_saved = kv_sequence_is_saved(sequence->kv);
    struct inputs *inputs = NULL;
    struct error why;
    if (!engine->rebuilds || (!is_saved && saved->reused == 0)) return STATUS_OK;
    const struct kv_backing *backing = documents_backing(engine->documents);
    const struct inputs_options options = {.store = backing->store,
                                           .model = backing->model,
                                           .shape = engine->inputs_shape,
                                           .name = backing->name,
                                           .token_capacity = engine->context_size,
                                           .read_chunks = engine->rebuild_chunks};
    enum status status = saved->reused > 0 ? inputs_open(&inputs, &options, tokens, saved->reused, is_saved, &why)
                                           : inputs_create(&inputs, &options, &why);
    if (status == STATUS_OK) {
        kv_sequence_set_inputs(sequence->kv, inputs);
        return STATUS_OK;
    }
    if (status == STATUS_MEMORY) {
        if (error != NULL) *error = why;
        return status;
    }
    if (saved->notice.message[0] == '\0')
        (void)error_set(&saved->notice, status, "no inputs are kept: %s", why.message);
    return STATUS_OK;
}
