#include "lab/calibrate/samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "cache/kv_state.h"
#include "model/model_size.h"
#include "tensor/half.h"

/* ---- which tokens and positions ---- */

static int compare_sizes(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Distinct numbers of [first, end), ascending. */
static void draw(struct random *random, size_t first, size_t end, size_t count, size_t *out) {
    ASSERT(end - first >= count);
    for (size_t i = 0; i < count; i++) {
        /* Floyd's method: a number that was drawn before is replaced by the newest, which was not. */
        size_t newest = end - count + i, number = first + (size_t)random_below(random, newest - first + 1);
        for (size_t j = 0; j < i; j++)
            if (out[j] == number) number = newest;
        out[i] = number;
    }
    qsort(out, count, sizeof *out, compare_sizes);
}

/* Replaces the end of the window by copies of spans from random depths, none of them among the recent tokens. */
static void place_probes(struct random *random, int32_t *window, size_t size, size_t probe_count) {
    size_t text = size - probe_count;
    for (size_t at = text; at < size; at += SAMPLES_SPAN) {
        size_t from = 1 + (size_t)random_below(random, text / 20 * 19 - SAMPLES_SPAN);
        memcpy(window + at, window + from, SAMPLES_SPAN * sizeof *window);
    }
}

/* The first tokens of a span show which one it is; what follows can be predicted. */
static void draw_probes(struct random *random, size_t text, size_t probe_count, size_t count, size_t *out) {
    enum { TELLING = 4, KNOWN = SAMPLES_SPAN - TELLING };
    draw(random, 0, probe_count / SAMPLES_SPAN * KNOWN, count, out);
    for (size_t i = 0; i < count; i++) out[i] = text + out[i] / KNOWN * SAMPLES_SPAN + TELLING + out[i] % KNOWN;
}

static void prepare_windows(struct samples *s, const int32_t *tokens) {
    const struct samples_options *o = &s->options;
    struct random random;
    random_init(&random, o->seed);
    memcpy(s->tokens, tokens, o->window_count * o->window_size * sizeof *tokens);
    for (size_t i = 0; i < o->window_count; i++) {
        int32_t *window = s->tokens + i * o->window_size;
        size_t text = o->window_size - s->probe_count, *positions = s->positions + i * s->query_count;
        if (o->bos >= 0) window[0] = o->bos;
        place_probes(&random, window, o->window_size, s->probe_count);
        draw(&random, text / 2, text, o->text_queries, positions);
        draw_probes(&random, text, s->probe_count, o->probe_queries, positions + o->text_queries);
    }
}

/* ---- running ---- */

static double cosine_of(const float *before, const float *now, size_t dimension) {
    double dot = 0, first = 0, second = 0;
    for (size_t d = 0; d < dimension; d++) {
        dot += (double)(before[d] * now[d]);
        first += (double)(before[d] * before[d]);
        second += (double)(now[d] * now[d]);
    }
    return first > 0 && second > 0 ? dot / sqrt(first * second) : 0;
}

static void add_similarity(struct samples *s, size_t layer, size_t head, const float *before, const float *now) {
    const double cosine = cosine_of(before, now, s->model->config.k_dimension);
    size_t entry = layer * s->model->config.head_count + head;
    if (s->run.is_decoding) {
        s->decoded_sum[entry] += cosine;
        return;
    }
    size_t bin = (size_t)((fmax(-1, fmin(1, cosine)) + 1) / 2 * SIMILARITY_BINS);
    s->similarity[entry * SIMILARITY_BINS + min_size(bin, SIMILARITY_BINS - 1)]++;
    s->similarity_sum[entry] += cosine;
}

/* The rows of a block that belong to the window's run. */
static void keep_run(struct samples *s, size_t layer, const float *q, size_t row_count) {
    const struct samples_options *o = &s->options;
    const size_t width = s->model->config.head_count * s->model->config.k_dimension, first = samples_run_first(s);
    if (s->run.window >= o->run_windows) return;
    float *run = s->runs + (layer * o->run_windows + s->run.window) * o->run_count * width;
    for (size_t row = 0; row < row_count; row++) {
        const size_t position = s->run.block_first + row;
        if (position >= first && position < first + o->run_count)
            memcpy(run + (position - first) * width, q + row * width, width * sizeof *q);
    }
}

static void see_queries(void *context, const struct attention_event *event) {
    struct samples *s = context;
    const float *q = event->q;
    const size_t layer = event->layer_index, row_count = event->row_count;
    const struct model_config *config = &s->model->config;
    size_t width = config->head_count * config->k_dimension, text = s->options.window_size - s->probe_count;
    float *previous = s->run.previous + layer * width;
    const size_t first = kv_layer_behind(config->kv_groups, config->layer_count, 0); /* that attends */
    for (size_t row = 0; row < row_count; row++) {
        const float *now = q + row * width;
        size_t position = s->run.block_first + row;
        if (s->run.is_decoding || (position >= 2 && position < text)) /* token 0 is a sink of its own kind */
            for (size_t head = 0; head < config->head_count; head++)
                add_similarity(s, layer, head, previous + head * config->k_dimension, now + head * config->k_dimension);
        memcpy(previous, now, width * sizeof *now);
        if (layer == first && s->run.is_decoding) s->decoded_count++;
        if (layer == first && position >= 2 && position < text) s->similarity_count++;
    }
    if (s->run.is_decoding) return;
    keep_run(s, layer, q, row_count);
    for (size_t i = 0; i < s->query_count; i++) {
        size_t position = s->positions[s->run.window * s->query_count + i];
        if (position < s->run.block_first || position >= s->run.block_first + row_count) continue;
        size_t entry = (layer * s->options.window_count + s->run.window) * s->query_count + i;
        memcpy(s->queries + entry * width, q + (position - s->run.block_first) * width, width * sizeof *q);
    }
}

/* Rows [first, first + row_count) of the window.  logits: of the last of them; NULL: not wanted. */
static enum status run_rows(struct samples *s, const int32_t *tokens, size_t first, size_t row_count,
                            const float **logits, struct error *error) {
    struct kv_sequence *sequence = s->sequences[s->run.window];
    const uint32_t last = (uint32_t)row_count - 1;
    struct attend_item item = {.row_count = row_count, .position_first = first};
    for (size_t i = 0; i < row_count; i++) s->run.row_positions[i] = first + i;
    s->run.block_first = first;
    TRY(forward_run(s->run.forward,
                    &(struct forward_batch){.tokens = tokens,
                                            .positions = s->run.row_positions,
                                            .row_count = row_count,
                                            .sequences = &sequence,
                                            .items = &item,
                                            .item_count = 1,
                                            .logit_rows = &last,
                                            .logit_row_count = logits != NULL ? 1 : 0},
                    logits, error));
    kv_sequence_set_length(sequence, first + row_count);
    return STATUS_OK;
}

/* A token by its probability. */
static int32_t draw_token(struct samples *s, const float *logits, struct random *random) {
    const size_t count = s->model->config.vocabulary_size;
    double sum = 0, greatest = -INFINITY;
    for (size_t i = 0; i < count; i++) greatest = fmax(greatest, (double)logits[i]);
    for (size_t i = 0; i < count; i++) sum += s->run.draws[i] = (float)exp((double)logits[i] - greatest);
    double left = random_double(random) * sum;
    size_t token = 0;
    while (token + 1 < count && (left -= (double)s->run.draws[token]) >= 0) token++;
    return (int32_t)token;
}

/* The model goes on behind the text; then the window is as it was.  logits: of its last token. */
static enum status write_on(struct samples *s, size_t text, const float *logits, struct error *error) {
    struct kv_sequence *sequence = s->sequences[s->run.window];
    struct random random;
    enum status status = STATUS_OK;
    random_init(&random, s->options.seed + 1000003 * (s->run.window + 1));
    s->run.is_decoding = true;
    for (size_t i = 0; i < s->options.decode_count && status == STATUS_OK; i++) {
        const int32_t token = draw_token(s, logits, &random);
        status = run_rows(s, &token, text + i, 1, &logits, error);
    }
    s->run.is_decoding = false;
    if (status != STATUS_OK) return status;
    kv_sequence_set_length(sequence, text);
    return kv_sequence_reserve(sequence, s->options.window_size, error);
}

static enum status run_window(struct samples *s, struct error *error) {
    const struct samples_options *o = &s->options;
    const size_t text = o->window_size - s->probe_count;
    const bool writes = s->run.window < o->decode_windows && o->decode_count > 0;
    struct kv_state *states = kv_sequence_state(s->sequences[s->run.window]);
    TRY(kv_sequence_reserve(s->sequences[s->run.window], o->window_size, error));
    if (states != NULL && writes) kv_state_plan(states, &(uint64_t){text}, 1, 0); /* it goes back there */
    for (size_t first = 0, rows; first < o->window_size; first += rows) {
        const float *logits = NULL;
        rows = min_size(o->block, o->window_size - first);
        if (writes && first < text) rows = min_size(rows, text - first);
        const bool ends = writes && first + rows == text;
        TRY(run_rows(s, s->tokens + s->run.window * o->window_size + first, first, rows, ends ? &logits : NULL, error));
        if (ends) TRY(write_on(s, text, logits, error));
        if (o->progress != NULL && o->progress(o->progress_context, s->run.window * o->window_size + first + rows))
            return error_set(error, STATUS_INTERRUPTED, "interrupted");
    }
    return STATUS_OK;
}

static enum status create_cache(struct samples *s, struct error *error) {
    const struct model_config *config = &s->model->config;
    const struct samples_options *o = &s->options;
    struct kv_cache_config kv = model_cache_config(config, KV_F16, KV_F16);
    kv.token_capacity = o->window_count * align_up(o->window_size, KV_CHUNK_TOKENS);
    kv.sequence_capacity = o->window_count;
    kv.state_slots = config->state.layer_count > 0 ? KV_STATE_SLOTS_BESIDE + 1 : 0;
    TRY(kv_cache_create(&s->cache, s->model->device, &kv, error));
    for (size_t i = 0; i < o->window_count; i++)
        TRY(kv_sequence_create(&s->sequences[i], s->cache, o->window_size, error));
    return STATUS_OK;
}

static enum status allocate(struct samples *s, struct error *error) {
    const struct model_config *config = &s->model->config;
    const struct samples_options *o = &s->options;
    size_t heads = config->layer_count * config->head_count, windows = o->window_count;
    s->tokens = calloc(windows * o->window_size, sizeof *s->tokens);
    s->positions = calloc(windows * s->query_count, sizeof *s->positions);
    s->queries = calloc(windows * s->query_count * heads, config->k_dimension * sizeof *s->queries);
    s->runs = calloc(o->run_windows * o->run_count * heads + 1, config->k_dimension * sizeof *s->runs);
    s->similarity = calloc(heads * SIMILARITY_BINS, sizeof *s->similarity);
    s->similarity_sum = calloc(heads, sizeof *s->similarity_sum);
    s->decoded_sum = calloc(heads, sizeof *s->decoded_sum);
    s->run.draws = calloc(config->vocabulary_size, sizeof *s->run.draws);
    s->run.row_positions = calloc(o->block, sizeof *s->run.row_positions);
    s->run.previous = calloc(heads * config->k_dimension, sizeof *s->run.previous);
    s->sequences = calloc(windows, sizeof(struct kv_sequence *));
    if (s->tokens == NULL || s->positions == NULL || s->queries == NULL || s->runs == NULL || s->similarity == NULL ||
        s->similarity_sum == NULL || s->decoded_sum == NULL || s->run.draws == NULL || s->run.row_positions == NULL ||
        s->run.previous == NULL || s->sequences == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the queries of %zu windows of %zu tokens", windows,
                         o->window_size);
    TRY(create_cache(s, error));
    s->chunk = malloc(kv_cache_layout(s->cache)->chunk_bytes);
    if (s->chunk == NULL) return error_set(error, STATUS_MEMORY, "no memory for a chunk");
    return s->model->device->operations->stream_create(s->model->device, &s->stream, error);
}

static enum status run_all(struct samples *s, struct error *error) {
    const struct attention_options everything = {.cache = NULL};
    struct attention *attention = NULL;
    enum status status = attention_create(&attention, s->model->device, &everything, error);
    if (status == STATUS_OK)
        status = forward_create(&s->run.forward, s->model,
                                &(struct forward_options){.attention = attention,
                                                          .row_capacity = s->options.block,
                                                          .block_capacity = s->options.block,
                                                          .logit_row_capacity = 1},
                                error);
    if (status == STATUS_OK) forward_set_attention_observer(s->run.forward, see_queries, s);
    for (s->run.window = 0; s->run.window < s->options.window_count && status == STATUS_OK; s->run.window++)
        status = run_window(s, error);
    forward_destroy(s->run.forward);
    s->run.forward = NULL;
    attention_destroy(attention);
    return status;
}

enum status samples_collect(struct samples *samples, struct model *model, const int32_t *tokens,
                            const struct samples_options *options, struct error *error) {
    size_t spans = options->window_size / 8 / SAMPLES_SPAN; /* at most an eighth of the window */
    ASSERT(options->window_count > options->held_out && options->held_out > 0 && spans > 0);
    ASSERT(options->run_windows <= options->window_count && options->run_count <= options->window_size / 2);
    *samples = (struct samples){.model = model, .options = *options};
    if (kv_groups_with_heads(model->config.kv_groups) > 1 ||
        model_stored_layers(&model->config) < model->config.layer_count)
        TRY(model_config_check_alike(&model->config, "a calibration", error));
    samples->probe_count = min_size(spans, 10) * SAMPLES_SPAN;
    samples->query_count = options->text_queries + options->probe_queries;
    samples->options.decode_count = min_size(options->decode_count, samples->probe_count);
    enum status status = allocate(samples, error);
    if (status == STATUS_OK) {
        prepare_windows(samples, tokens);
        status = run_all(samples, error);
    }
    if (status != STATUS_OK) samples_deinit(samples);
    return status;
}

void samples_deinit(struct samples *samples) {
    if (samples->sequences != NULL)
        for (size_t i = 0; i < samples->options.window_count; i++)
            if (samples->sequences[i] != NULL) kv_sequence_destroy(samples->sequences[i]);
    kv_cache_destroy(samples->cache);
    if (samples->stream != NULL) samples->model->device->operations->stream_destroy(samples->stream);
    free(samples->chunk);
    free(samples->sequences);
    free(samples->tokens);
    free(samples->positions);
    free(samples->queries);
    free(samples->runs);
    free(samples->similarity);
    free(samples->similarity_sum);
    free(samples->decoded_sum);
    free(samples->run.draws);
    free(samples->run.row_positions);
    free(samples->run.previous);
    *samples = (struct samples){0};
}

/* ---- reading ---- */

const float *samples_query(const struct samples *samples, size_t layer, size_t window, size_t query, size_t head) {
    const struct model_config *config = &samples->model->config;
    size_t entry = (layer * samples->options.window_count + window) * samples->query_count + query;
    return samples->queries + (entry * config->head_count + head) * config->k_dimension;
}

const float *samples_run_query(const struct samples *samples, size_t layer, size_t window, size_t step, size_t head) {
    const struct model_config *config = &samples->model->config;
    const struct samples_options *o = &samples->options;
    const size_t entry = (layer * o->run_windows + window) * o->run_count + step;
    return samples->runs + (entry * config->head_count + head) * config->k_dimension;
}

size_t samples_run_first(const struct samples *samples) {
    return samples->options.window_size - samples->probe_count - samples->options.run_count;
}

size_t samples_position(const struct samples *samples, size_t window, size_t query) {
    return samples->positions[window * samples->query_count + query];
}

/* Rows of one KV head as floats; row_at: kv_k_row or kv_v_row. */
static enum status read_rows(const struct samples *samples, size_t layer, size_t window, size_t kv_head,
                             const uint8_t *(*row_at)(const struct kv_layout *, const void *, size_t), size_t dimension,
                             float *out, struct error *error) {
    const struct kv_layout *layout = kv_cache_layout(samples->cache);
    for (size_t row = 0; row < samples->options.window_size; row++, out += dimension) {
        const struct span chunk = kv_sequence_chunk(samples->sequences[window], layer, kv_head, row / KV_CHUNK_TOKENS);
        if (row % KV_CHUNK_TOKENS == 0)
            TRY(device_read(samples->model->device, samples->stream, samples->chunk, chunk, layout->chunk_bytes,
                            error));
        const uint16_t *halves = (const uint16_t *)(const void *)row_at(layout, samples->chunk, row % KV_CHUNK_TOKENS);
        for (size_t d = 0; d < dimension; d++) out[d] = half_to_float(halves[d]);
    }
    return STATUS_OK;
}

enum status samples_keys(const struct samples *samples, size_t layer, size_t window, size_t kv_head, float *out,
                         struct error *error) {
    const size_t dimension = kv_cache_layout(samples->cache)->k_dimension;
    return read_rows(samples, layer, window, kv_head, kv_k_row, dimension, out, error);
}

enum status samples_values(const struct samples *samples, size_t layer, size_t window, size_t kv_head, float *out,
                           struct error *error) {
    const size_t dimension = kv_cache_layout(samples->cache)->v_dimension;
    return read_rows(samples, layer, window, kv_head, kv_v_row, dimension, out, error);
}
