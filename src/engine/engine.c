/* engine: keeps the KV of its sequences and turns requests into batches for the forward pass.
 *
 * A sequence's length changes only after all layers have stored the rows of a whole batch (a segment or a step).  So
 * an interrupted or failed prefill leaves a usable prefix.  After engine_create only fill.c allocates, while it runs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "engine/documents.h"
#include "engine/engine_internal.h"
#include "model/calibration.h"
#include "platform/clock.h"
#include "platform/pool.h"

static const size_t segment_bytes = 64 << 20; /* of the residual stream of a segment by default */
enum { SEGMENT_DEFAULT = 8192 };

/* ---- selection ---- */

static void drop_select(struct engine *engine) {
    if (engine->attention != NULL) attention_drop_select(engine->attention);
    select_destroy(engine->select);
    engine->select = NULL;
}

static struct select_rule default_rule(const struct engine *engine) {
    if (engine->select == NULL) return (struct select_rule){.dense = true};
    return select_rule_of(select_get_options(engine->select));
}

static enum status make_select(struct engine *engine, const struct select_options *options,
                               struct error *error) {
    const struct select_shape shape = plan_select_shape(&engine->model->config);
    if (options->method == NULL || options->method == &select_all) return STATUS_OK;
    struct calibration *file = NULL;
    char *path = NULL; /* where the file would be */
    enum status status = STATUS_OK;
    if (options->method->weights != NULL || options->heads == SELECT_HEADS_IMPORTANCE ||
        options->reuse.kind == REUSE_SIMILARITY) {
        TRY(calibration_path(engine->model->gguf.path, &path, error));
        status = calibration_open(&file, engine->model, NULL, error);
    }
    const struct select_calibration calibration = {
        .path = path,
        .find = file != NULL ? calibration_find : NULL,
        .context = file,
        .head_importance = file != NULL ? calibration_head_importance(file) : NULL};
    if (status == STATUS_OK)
        status = select_create(&engine->select, engine->model->device, &shape, options, &calibration,
                               max_size(engine->batch_size, engine->sequence_capacity), error);
    calibration_close(file);
    free(path);
    return status;
}

static enum status build_rows(void *context, struct kv_sequence *sequence, size_t layer_index,
                              uint64_t position_first, uint64_t row_count, struct error *error) {
    struct engine *engine = context;
    struct attend_item item = {.view = kv_sequence_view(sequence, layer_index),
                               .row_count = row_count,
                               .position_first = position_first};
    select_append(engine->select, engine->stream, layer_index, &item, 1);
    return engine->model->device->operations->stream_synchronize(engine->stream, error);
}

static enum status build_key_index(struct engine *engine, struct sequence *sequence, struct error *error) {
    uint64_t length = sequence_length(sequence);
    for (size_t layer = 0; layer < engine->kv.layer_count && length > 0; layer++)
        TRY(build_rows(engine, sequence->kv, layer, 0, length, error));
    return STATUS_OK;
}

static enum status replace_select(struct engine *engine, const struct select_options *options,
                                  struct error *error) {
    TRY(make_select(engine, options, error));
    size_t bytes = engine->select != NULL ? select_key_index_bytes(engine->select) : 0;
    engine->kv.key_index_bytes = 0;
    TRY(kv_cache_set_key_index(engine->cache, bytes, options->dense_layers, error));
    engine->kv.key_index_bytes = bytes;
    engine->kv.key_index_layer_first = options->dense_layers;
    for (struct sequence *s = engine->sequences; s != NULL && engine->select != NULL; s = s->next)
        TRY(build_key_index(engine, s, error));
    return attention_set_select(engine->attention, engine->select, error);
}

enum status engine_set_select(struct engine *engine, const struct select_options *options,
                              struct error *error) {
    if (engine->kv.host_bytes > 0)
        return error_set(error, STATUS_UNSUPPORTED, "another selection of KV that is partly on disk");
    drop_select(engine);
    enum status status = replace_select(engine, options, error);
    if (status != STATUS_OK) drop_select(engine);
    for (struct sequence *s = engine->sequences; s != NULL; s = s->next) s->rule = default_rule(engine);
    return status;
}

const char *engine_documents_warning(const struct engine *engine) {
    return engine->documents != NULL ? documents_warning(engine->documents) : NULL;
}

struct select *engine_select(struct engine *engine) {
    return engine->select;
}

struct attention *engine_attention(struct engine *engine) {
    return engine->attention;
}

void engine_set_attention_observer(struct engine *engine, attention_observer *observer, void *context) {
    engine->watched = observer != NULL;
    forward_set_attention_observer(engine->forward, observer, context);
}

enum status sequence_set_select(struct sequence *sequence, const struct select_method *method,
                                struct select_keep keep, struct error *error) {
    const struct select *select = sequence->engine->select;
    const struct select_options *options = select != NULL ? select_get_options(select) : NULL;
    bool own = options != NULL && options->method == method;
    if (method != &select_all && !own && (method != &select_window || select == NULL))
        return error_set(error, STATUS_USAGE, "a sequence with select=%s: the engine was made for select=%s",
                         method->name, options != NULL ? options->method->name : "all");
    struct select_options wanted = options != NULL ? *options : select_options_default();
    wanted.method = method;
    wanted.keep = keep;
    struct engine *engine = sequence->engine;
    if (engine->kv.host_bytes > 0 && select != NULL) {
        const struct select_shape shape = plan_select_shape(&engine->model->config);
        uint64_t now, then;
        TRY(select_options_kept_max(options, &shape, engine->context_size, &now, error));
        TRY(select_options_kept_max(&wanted, &shape, engine->context_size, &then, error));
        if (then > now)
            return error_set(error, STATUS_UNSUPPORTED,
                             "a sequence that keeps more than its engine was made for, with KV on disk");
    }
    sequence->rule = select_rule_of(&wanted);
    return STATUS_OK;
}

/* ---- life ---- */

/* ---- fractions of quantized pages ---- */

static enum status run_batch(struct engine *engine, const struct forward_batch *batch, const float **logits,
                             struct error *error);

struct layer_timing {
    struct engine *engine;
    struct kv_sequence *kv; /* empty, and afterwards too */
};

/* Seconds of one token through one layer, measured on the second run, with warm caches; 0: not measured. */
static double layer_seconds(void *context) {
    const struct layer_timing *timing = context;
    struct engine *engine = timing->engine;
    struct kv_sequence *kv = timing->kv;
    static const int32_t token = 0;
    struct attend_item item = {.row_count = 1};
    const struct forward_batch batch = {.tokens = &token,
                                        .positions = engine->positions,
                                        .row_count = 1,
                                        .sequences = &kv,
                                        .items = &item,
                                        .item_count = 1,
                                        .logit_rows = engine->logit_rows};
    const float *logits;
    uint64_t took = 0;
    engine->positions[0] = 0;
    if (engine->watched) return 0;
    enum status status = kv_sequence_reserve(kv, 1, NULL);
    for (int round = 0; round < 2 && status == STATUS_OK; round++) {
        uint64_t began = clock_ns();
        status = run_batch(engine, &batch, &logits, NULL);
        took = clock_ns() - began;
    }
    kv_sequence_close_documents(kv); /* forgets what it stored */
    return status == STATUS_OK ? (double)took * 1e-9 / (double)engine->kv.layer_count : 0;
}

/* Reads each layer's error at 4 bits, as loam calibrate measured it; false: not known. */
static bool read_sensitivity(const struct engine *engine, float sensitivity[PAGE_FRACTIONS_LAYERS_MAX]) {
    struct calibration *file = NULL;
    bool known = calibration_open(&file, engine->model, NULL, NULL) == STATUS_OK && file != NULL &&
                 calibration_kv_sensitivity(file) != NULL;
    for (size_t i = 0; known && i < engine->kv.layer_count; i++) {
        const float *layer = calibration_kv_sensitivity(file) + i * CALIBRATION_ROUNDINGS;
        sensitivity[i] = layer[CALIBRATION_K4] + layer[CALIBRATION_V4];
    }
    calibration_close(file);
    return known;
}

static void choose_fractions(void *context, struct store *store, const struct store_layout *layout,
                             struct kv_sequence *kv, uint64_t token_count, uint64_t token_capacity,
                             struct page_fractions *fractions) {
    struct engine *engine = context;
    const struct pool *pool = device_pool(engine->model->device);
    const bool selects = engine->select != NULL && token_count > 0;
    float sensitivity[PAGE_FRACTIONS_LAYERS_MAX];
    struct layer_timing timing = {engine, kv};
    const struct page_question question = {
        .store = store,
        .layout = layout,
        .cache = &engine->kv,
        .rows = kv_cache_layout(engine->cache),
        .token_count = token_count,
        .token_capacity = token_capacity,
        .kept_tokens = selects ? select_kept_tokens(engine->select, token_count - 1) : token_count,
        .dense_layers = selects ? select_get_options(engine->select)->dense_layers : 0,
        .thread_count = pool != NULL ? pool_thread_count(pool) : 1,
        .group = engine->model->config.head_count / engine->kv.kv_head_count,
        .sensitivity = read_sensitivity(engine, sensitivity) ? sensitivity : NULL,
        .layer_seconds = engine->hides_reads ? layer_seconds : NULL,
        .layer_context = &timing};
    engine->has_costs = quantized_pages_plan(&engine->costs, &question, fractions);
}

const struct page_costs *engine_page_costs(const struct engine *engine) {
    return engine->has_costs ? &engine->costs : NULL;
}

/* Opens the folder of saved documents, if the plan has one. */
static enum status open_documents(struct engine *engine, const struct plan *plan,
                                  const struct engine_options *options, struct error *error) {
    if (plan->disk_directory == NULL) return STATUS_OK;
    TRY(documents_open(&engine->documents,
                       &(struct documents_options){.plan = plan,
                                                   .engine = options,
                                                   .model = engine->model,
                                                   .layout = kv_cache_layout(engine->cache),
                                                   .select = engine->select,
                                                   .buffer_bytes = engine->kv.buffer_bytes},
                       error));
    documents_build_with(engine->documents, build_rows, engine);
    engine->hides_reads = engine->select == NULL || (plan->prefetches && select_scans(engine->select));
    if (plan->mixes_pages && plan->fractions.layer_count == 0 && !plan->fixes_fractions)
        documents_choose_with(engine->documents, choose_fractions, engine);
    return STATUS_OK;
}

static enum status set_trace(struct engine *engine, struct trace *trace, struct error *error) {
    struct pool *pool = device_pool(engine->model->device);
    engine->traced = trace != NULL;
    if (!engine->traced) return STATUS_OK;
    TRY(kv_tier_set_trace(engine->cache, trace, error));
    if (pool != NULL) pool_set_trace(pool, trace);
    return STATUS_OK;
}

static enum status make_forward(struct engine *engine, const struct plan *plan, size_t rows, size_t block,
                                struct trace *trace, struct error *error) {
    struct attention_options options;
    TRY(plan_attention_options(plan, &engine->model->config, &options, error));
    options.cache = plan->host_bytes > 0 ? engine->cache : NULL;
    options.trace = trace;
    TRY(attention_create(&engine->attention, engine->model->device, &options, error));
    return forward_create(&engine->forward, engine->model,
                          &(struct forward_options){.attention = engine->attention,
                                                    .trace = trace,
                                                    .row_capacity = rows,
                                                    .block_capacity = block,
                                                    .logit_row_capacity = engine->logit_rows_max},
                          error);
}

static enum status engine_init(struct engine *engine, const struct plan *plan,
                               const struct engine_options *options, struct error *error) {
    TRY(plan_cache_config(plan, &engine->model->config, &engine->kv, error));
    /* The cache rejects a budget that is too small, and names what everything together needs.  So the key index counts
     * here if there is a budget; without one it is allocated with the selection. */
    if (plan->host_bytes == 0) engine->kv.key_index_bytes = engine->kv.key_index_layer_first = 0;
    TRY((engine->kv.host_bytes > 0 ? kv_tier_create : kv_cache_create)(&engine->cache, engine->model->device,
                                                                       &engine->kv, error));
    size_t block = max_size(engine->batch_size, engine->sequence_capacity);
    size_t rows = max_size(engine->segment_size, block);
    engine->logit_rows_max = min_size(block, ENGINE_SEQUENCES_MAX);
    TRY(make_forward(engine, plan, rows, block, options->trace, error));
    engine->positions = calloc(rows, sizeof *engine->positions);
    engine->logit_rows = calloc(rows, sizeof *engine->logit_rows);
    if (engine->positions == NULL || engine->logit_rows == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the engine");
    for (size_t i = 0; i < rows; i++) engine->logit_rows[i] = (uint32_t)i;
    struct device *device = engine->model->device;
    TRY(device->operations->stream_create(device, &engine->stream, error));
    TRY(replace_select(engine, &plan->select, error));
    TRY(open_documents(engine, plan, options, error));
    return set_trace(engine, options->trace, error);
}

/* Rounds down to whole blocks: segments must not move the boundaries of blocks. */
static size_t segment_size_of(const struct engine *engine, const struct plan *plan) {
    size_t block = engine->batch_size, size = plan->segment_size;
    if (size == 0)
        size = min_size(SEGMENT_DEFAULT, segment_bytes / (engine->model->config.hidden_size * sizeof(float)));
    if (engine->context_size < size) size = align_up(engine->context_size, block);
    return max_size(size / block * block, block);
}

enum status engine_create(struct engine **engine, struct model *model, const struct plan *plan,
                          const struct engine_options *options, struct error *error) {
    static const struct engine_options none;
    *engine = NULL;
    TRY(plan_check(plan, &model->config, error));
    struct engine *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the engine");
    made->model = model;
    made->context_size = plan_context_size(plan, &model->config);
    made->sequence_capacity = plan->sequence_capacity;
    made->batch_size = plan->batch_size != 0 ? plan->batch_size : PLAN_BATCH_DEFAULT;
    made->segment_size = segment_size_of(made, plan);
    made->suffix = plan->suffix;
    made->wanted_tokens = plan->wanted_tokens;
    enum status status = engine_init(made, plan, options != NULL ? options : &none, error);
    if (status != STATUS_OK) {
        engine_destroy(made);
        return status;
    }
    *engine = made;
    return STATUS_OK;
}

void engine_destroy(struct engine *engine) {
    if (engine == NULL) return;
    ASSERT(engine->sequence_count == 0);
    drop_select(engine);
    if (engine->traced && device_pool(engine->model->device) != NULL)
        pool_set_trace(device_pool(engine->model->device), NULL);
    forward_destroy(engine->forward);
    attention_destroy(engine->attention);
    if (engine->stream != NULL) engine->model->device->operations->stream_destroy(engine->stream);
    if (engine->cache != NULL) kv_cache_destroy(engine->cache);
    documents_close(engine->documents);
    free(engine->positions);
    free(engine->logit_rows);
    free(engine->replay_rows);
    free(engine);
}

enum status sequence_create(struct sequence **sequence, struct engine *engine, struct error *error) {
    *sequence = NULL;
    if (engine->sequence_count == engine->sequence_capacity)
        return error_set(error, STATUS_FULL, "all %zu sequences are in use", engine->sequence_capacity);
    struct sequence *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for a sequence");
    made->engine = engine;
    if (engine->documents != NULL) made->tokens = calloc((size_t)engine->context_size, sizeof *made->tokens);
    if (engine->documents != NULL && made->tokens == NULL) {
        free(made);
        return error_set(error, STATUS_MEMORY, "no memory for the tokens of a sequence");
    }
    enum status status = kv_sequence_create(&made->kv, engine->cache, engine->context_size, error);
    if (status != STATUS_OK) {
        free(made->tokens);
        free(made);
        return status;
    }
    made->rule = default_rule(engine);
    made->next = engine->sequences;
    if (made->next != NULL) made->next->previous = made;
    engine->sequences = made;
    engine->sequence_count++;
    *sequence = made;
    return STATUS_OK;
}

void sequence_destroy(struct sequence *sequence) {
    if (sequence == NULL) return;
    ASSERT(sequence->engine->sequence_count > 0);
    sequence->engine->sequence_count--;
    if (sequence->next != NULL) sequence->next->previous = sequence->previous;
    if (sequence->previous != NULL)
        sequence->previous->next = sequence->next;
    else
        sequence->engine->sequences = sequence->next;
    kv_sequence_destroy(sequence->kv);
    free(sequence->tokens);
    free(sequence);
}

uint64_t sequence_length(const struct sequence *sequence) { return kv_sequence_length(sequence->kv); }

void sequence_truncate(struct sequence *sequence, uint64_t token_count) {
    if (token_count < sequence_length(sequence)) kv_sequence_set_length(sequence->kv, token_count);
}

enum status sequence_grow(struct sequence *sequence, uint64_t token_count, struct error *error) {
    uint64_t length = sequence_length(sequence), context = sequence->engine->context_size;
    if (token_count > context - length)
        return error_set(error, STATUS_USAGE,
                         "the context holds %llu tokens (-c): %llu are in it and %llu more do not fit",
                         (unsigned long long)context, (unsigned long long)length,
                         (unsigned long long)token_count);
    enum status status = kv_sequence_reserve(sequence->kv, length + token_count, error);
    if (status == STATUS_FULL && error != NULL) error->status = STATUS_MEMORY;
    return status == STATUS_FULL ? STATUS_MEMORY : status;
}

/* Logits of every row of the segment just run, handed out in order. */
static enum status each_logits(struct engine *engine, const struct prefill_request *request, size_t first,
                               size_t count, const float **last, struct error *error) {
    size_t vocabulary = engine->model->config.vocabulary_size;
    for (size_t done = 0; done < count;) {
        size_t rows = min_size(count - done, engine->logit_rows_max);
        const float *logits;
        TRY(forward_logits(engine->forward, engine->logit_rows + done, rows, &logits, error));
        for (size_t i = 0; i < rows; i++) {
            *last = logits + i * vocabulary;
            TRY(request->each(request->each_context, first + done + i, *last, error));
        }
        done += rows;
    }
    return STATUS_OK;
}

/* ---- tiers and documents ---- */

/* Runs a batch over KV that may be partly on disk.  A failure leaves nothing of the batch. */
static enum status run_batch(struct engine *engine, const struct forward_batch *batch, const float **logits,
                             struct error *error) {
    enum status status = forward_run(engine->forward, batch, logits, error);
    if (engine->kv.host_bytes == 0) return status;
    for (size_t i = 0; i < batch->item_count && status != STATUS_OK; i++)
        kv_sequence_set_length(batch->sequences[i], kv_sequence_length(batch->sequences[i]));
    return status;
}

void sequence_note_tokens(struct sequence *sequence, uint64_t position, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count && sequence->tokens != NULL; i++) sequence->tokens[position + i] = tokens[i];
}

/* Rebuilds the key index of the rows behind the last full chunk: documents hold it only for full chunks. */
static enum status build_tail_key_index(struct engine *engine, struct sequence *sequence,
                                        struct error *error) {
    uint64_t length = sequence_length(sequence), first = length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
    for (size_t layer = 0; layer < engine->kv.layer_count && engine->select != NULL && first < length;
         layer++)
        TRY(build_rows(engine, sequence->kv, layer, first, length - first, error));
    return STATUS_OK;
}

/* On the first prefill: takes the KV of the longest saved prefix, so that it is not computed. */
static enum status attach(struct engine *engine, struct sequence *sequence,
                          const struct prefill_request *request, struct error *error) {
    if (engine->documents == NULL || sequence->attached || sequence_length(sequence) > 0) return STATUS_OK;
    sequence->attached = true;
    if (request->each != NULL || request->selects) /* every row must be computed: no prefix is reused */
        return documents_attach_nameless(engine->documents, sequence->kv, engine->context_size, error);
    const struct documents_prompt prompt = {.tokens = request->tokens,
                                            .token_count =
                                                request->token_count - 1, /* the last gives logits */
                                            .token_capacity = engine->context_size};
    TRY(documents_attach(engine->documents, sequence->kv, &prompt, &sequence->saved, error));
    sequence_note_tokens(sequence, 0, request->tokens, (size_t)sequence->saved.reused);
    return build_tail_key_index(engine, sequence, error);
}

enum status engine_check_weights(const struct engine *engine, struct error *error) {
    return model_check_numbers(engine->model, error);
}

/* Whether a segment ends here: prompts become durable segment by segment. */
static bool is_saved(const struct engine *engine, const struct sequence *sequence, uint64_t length_before,
                     uint64_t length, bool last) {
    uint64_t segment = engine->segment_size;
    return sequence->tokens != NULL && (last || length / segment != length_before / segment);
}

/* Saves the new KV, unless the logits are NaN: KV of a model with broken weights must not be reused.  The last row
 * attends to all rows before it, so its logits suffice.  logits NULL: the logits of every row are wanted, and nothing
 * is saved. */
static enum status save(const struct engine *engine, struct sequence *sequence, const float *logits,
                        struct error *error) {
    for (size_t i = 0; logits != NULL && i < engine->model->config.vocabulary_size; i++) {
        if (isfinite(logits[i])) continue;
        TRY(engine_check_weights(engine, error));
        return error_set(error, STATUS_FAILED, "the model's output is not a number (token %zu: %g)", i,
                         (double)logits[i]);
    }
    return kv_sequence_commit(sequence->kv, sequence->tokens, error);
}

/* Whether the suffix of a prompt, its last token_count tokens, selects.  The tokens before it came from a document. */
static bool suffix_selects(const struct engine *engine, const struct sequence *sequence,
                           uint64_t token_count) {
    if (engine->select == NULL || sequence->rule.dense || engine->suffix == SUFFIX_DENSE) return false;
    if (engine->suffix == SUFFIX_SELECTS) return true;
    uint64_t length = sequence_length(sequence);
    return token_count <= length / select_rule_kept_tokens(engine->select, &sequence->rule, length);
}

uint64_t sequence_selected_tokens(const struct sequence *sequence) { return sequence->selected; }
uint64_t sequence_reused_tokens(const struct sequence *sequence) { return sequence->saved.reused; }
const char *sequence_notice(const struct sequence *sequence) { return sequence->saved.notice.message; }
const struct page_fractions *sequence_fractions(const struct sequence *sequence) {
    return kv_sequence_fractions(sequence->kv);
}
enum status sequence_flush(struct sequence *sequence, struct error *error) {
    return sequence->engine->kv.host_bytes > 0 ? kv_sequence_flush(sequence->kv, error) : STATUS_OK;
}
struct kv_tier_statistics engine_tier_statistics(const struct engine *engine) {
    return kv_tier_statistics(engine->cache);
}

/* ---- work ---- */

/* The segment that is running, for progress. */
struct prefill_segment {
    const struct prefill_request *request;
    size_t first, count; /* tokens of the request */
};

static bool segment_progress(void *context, uint64_t done, uint64_t total) {
    const struct prefill_segment *segment = context;
    const struct prefill_request *request = segment->request;
    uint64_t tokens = segment->first + segment->count * done / total;
    return request->progress(request->progress_context, tokens, request->token_count);
}

/* Whether the prefill runs block by block through all layers, without a stop within a block.  Selection and observers
 * need rows in order, and h2o must not count queries of rows that an interruption drops. */
static bool goes_by_blocks(const struct engine *engine, const struct prefill_request *request) {
    return request->selects || engine->watched ||
           (engine->select != NULL && select_watches_prefill(engine->select));
}

static enum status interrupted(const struct prefill_request *request, size_t done, struct error *error) {
    return error_set(error, STATUS_INTERRUPTED, "interrupted after %zu of %zu tokens", done,
                     request->token_count);
}

static enum status run_segment(struct engine *engine, struct sequence *sequence,
                               struct prefill_segment segment, const float **logits, struct error *error) {
    const struct prefill_request *request = segment.request;
    uint64_t length = sequence_length(sequence);
    size_t first = segment.first, count = segment.count;
    bool last = first + count == request->token_count, each = request->each != NULL;
    bool saves = is_saved(engine, sequence, length, length + count, last);
    bool reports = request->progress != NULL && !goes_by_blocks(engine, request);
    for (size_t i = 0; i < count; i++) engine->positions[i] = length + i;
    struct attend_item item = {.row_first = 0, .row_count = count, .position_first = length};
    const struct select_rule *rule = &sequence->rule;
    struct forward_batch batch = {.tokens = request->tokens + first,
                                  .positions = engine->positions,
                                  .row_count = count,
                                  .block_rows = min_size(engine->batch_size, count),
                                  .sequences = &sequence->kv,
                                  .items = &item,
                                  .item_count = 1,
                                  .logit_rows = engine->logit_rows + count - 1,
                                  .logit_row_count = (last || saves) && !each ? 1 : 0,
                                  .keep_rows = each,
                                  .rules = request->selects ? &rule : NULL,
                                  .progress = reports ? segment_progress : NULL,
                                  .progress_context = &segment};
    sequence_note_tokens(sequence, length, request->tokens + first, count);
    enum status status = run_batch(engine, &batch, logits, error);
    if (status == STATUS_INTERRUPTED) return interrupted(request, first, error);
    if (status != STATUS_OK) return status;
    kv_sequence_set_length(sequence->kv, length + count);
    if (saves) TRY(save(engine, sequence, each ? NULL : *logits, error));
    return each ? each_logits(engine, request, first, count, logits, error) : STATUS_OK;
}

enum status engine_prefill(struct engine *engine, struct sequence *sequence,
                           const struct prefill_request *request, const float **logits, struct error *error) {
    ASSERT(sequence->engine == engine);
    const float *ignored;
    if (logits == NULL) logits = &ignored;
    *logits = NULL;
    if (request->token_count == 0) return error_set(error, STATUS_USAGE, "no tokens: the prompt is empty");
    for (size_t i = 0; i < request->token_count; i++) /* all of them before any work */
        if (request->tokens[i] < 0 || (size_t)request->tokens[i] >= engine->model->config.vocabulary_size)
            return error_set(error, STATUS_USAGE, "token %zu of the prompt: id %d, expected 0 to %zu", i,
                             request->tokens[i], engine->model->config.vocabulary_size - 1);
    bool fresh = sequence_length(sequence) == 0;
    TRY(attach(engine, sequence, request, error));
    size_t reused = fresh ? (size_t)sequence->saved.reused : 0;
    TRY(sequence_grow(sequence, request->token_count - reused, error));
    uint64_t after = sequence_length(sequence) + request->token_count - reused;
    if (engine->wanted_tokens > after)
        after = engine->wanted_tokens < engine->context_size ? engine->wanted_tokens : engine->context_size;
    enum status holds = kv_sequence_holds(sequence->kv, after, error);
    if (holds != STATUS_OK) sequence->saved.notice.message[0] = '\0'; /* the error says it */
    TRY(holds);
    struct prefill_request selecting = *request;
    if (reused > 0 && suffix_selects(engine, sequence, request->token_count - reused)) {
        sequence->selected = request->token_count - reused;
        selecting.selects = true;
        request = &selecting;
    }
    size_t most = goes_by_blocks(engine, request) ? engine->batch_size : engine->segment_size;
    for (size_t done = reused; done < request->token_count;) {
        struct prefill_segment segment = {
            .request = request, .first = done, .count = min_size(request->token_count - done, most)};
        TRY(run_segment(engine, sequence, segment, logits, error));
        done += segment.count;
        if (request->progress == NULL) continue;
        bool stop = request->progress(request->progress_context, done, request->token_count);
        if (stop && done < request->token_count) return interrupted(request, done, error);
    }
    return STATUS_OK;
}

enum status engine_step(struct engine *engine, struct sequence *const *sequences, const int32_t *tokens,
                        size_t count, const float **logits, struct error *error) {
    struct attend_item items[ENGINE_SEQUENCES_MAX];
    struct kv_sequence *kv[ENGINE_SEQUENCES_MAX];
    const struct select_rule *rules[ENGINE_SEQUENCES_MAX];
    if (count == 0 || count > engine->sequence_capacity)
        return error_set(error, STATUS_USAGE, "a step of %zu sequences: expected 1 to %zu", count,
                         engine->sequence_capacity);
    for (size_t i = 0; i < count; i++) {
        ASSERT(sequences[i]->engine == engine);
        for (size_t j = 0; j < i; j++) ASSERT(sequences[j] != sequences[i]);
        TRY(sequence_grow(sequences[i], 1, error));
        kv[i] = sequences[i]->kv;
        rules[i] = &sequences[i]->rule;
        engine->positions[i] = sequence_length(sequences[i]);
        sequence_note_tokens(sequences[i], engine->positions[i], &tokens[i], 1);
        items[i] =
            (struct attend_item){.row_first = i, .row_count = 1, .position_first = engine->positions[i]};
    }
    struct forward_batch batch = {.tokens = tokens,
                                  .positions = engine->positions,
                                  .row_count = count,
                                  .sequences = kv,
                                  .items = items,
                                  .item_count = count,
                                  .logit_rows = engine->logit_rows,
                                  .logit_row_count = count,
                                  .rules = rules};
    struct forward_replay replay;
    if (engine->replays != NULL) {
        TRY(replay_step(engine, count, &replay, error));
        forward_set_replay(engine->forward, &replay);
    }
    enum status status = run_batch(engine, &batch, logits, error);
    forward_set_replay(engine->forward, NULL);
    TRY(status);
    for (size_t i = 0; i < count; i++) kv_sequence_set_length(kv[i], engine->positions[i] + 1);
    return STATUS_OK;
}

/* ---- facts ---- */

uint64_t engine_kv_used_bytes(const struct engine *engine) { return kv_cache_used_bytes(engine->cache); }
uint64_t engine_kv_bytes_per_token(const struct engine *engine) {
    return kv_cache_bytes_per_token(&engine->kv);
}
uint64_t engine_kv_row_bytes(const struct engine *engine) {
    return kv_cache_layout(engine->cache)->chunk_bytes / KV_CHUNK_TOKENS;
}
uint64_t engine_step_bytes(const struct engine *engine, uint64_t length) {
    struct kv_cache_config plain = engine->kv;
    plain.key_index_bytes = 0;
    uint64_t layers = engine->kv.layer_count, layer_bytes = kv_cache_bytes_per_token(&plain) / layers;
    uint64_t key_index = engine_kv_bytes_per_token(engine) - kv_cache_bytes_per_token(&plain);
    if (engine->select == NULL || length == 0) return length * layer_bytes * layers;
    uint64_t dense = min_size(select_get_options(engine->select)->dense_layers, engine->kv.layer_count);
    uint64_t kept = select_kept_tokens(engine->select, length - 1);
    return (length * dense + kept * (layers - dense)) * layer_bytes +
           (kept < length ? length * key_index : 0);
}
const struct model_config *engine_config(const struct engine *engine) { return &engine->model->config; }
uint64_t engine_context_size(const struct engine *engine) { return engine->context_size; }
