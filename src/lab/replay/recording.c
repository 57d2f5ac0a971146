#include "lab/replay/recording.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "lab/replay/copy.h"
#include "model/rope_scaling.h"
#include "tensor/half.h"

static const char magic[8] = {'L', 'O', 'A', 'M', 'Q', 'K', 'V', '1'};
enum { HEAD_BYTES = 8 + sizeof(struct recording_shape), COUNT_MAX = 1 << 20, PIECE_MIN = 64, PIECE_SPAN = 512 };

static size_t k_row(const struct recording_shape *s) { return (size_t)s->kv_head_count * s->k_dimension; }
static size_t v_row(const struct recording_shape *s) { return (size_t)s->kv_head_count * s->v_dimension; }
static size_t q_row(const struct recording_shape *s) { return (size_t)s->head_count * s->k_dimension; }
static size_t layer_halves(const struct recording_shape *s) {
    return s->token_count * (k_row(s) + v_row(s) + q_row(s));
}

/* ---- writing ---- */

struct recorder {
    struct recording_shape shape;
    uint32_t *layers;   /* owned, [layer_count] */
    float *frequencies; /* owned, [pair_count] */
    uint16_t *rows;     /* owned, as in the file */
};

enum status recorder_create(struct recorder **recorder, const struct model *model, const size_t *layers,
                            size_t layer_count, size_t token_count, struct error *error) {
    const struct model_config *config = &model->config;
    *recorder = NULL;
    TRY(model_config_check_alike(config, "a recording", error));
    for (size_t i = 0; config->has_rope && i < config->layer_count; i++)
        if (config->layers[i].rope != ROPE_FULL)
            return error_set(error, STATUS_UNSUPPORTED,
                             "%s: its layers rotate q and k in different ways, which a recording does not support",
                             config->name);
    struct recorder *r = calloc(1, sizeof *r);
    *recorder = r;
    if (r == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    r->shape = (struct recording_shape){
        .token_count = (uint32_t)token_count,
        .head_count = (uint32_t)config->head_count,
        .kv_head_count = (uint32_t)config->kv_head_count,
        .k_dimension = (uint32_t)config->k_dimension,
        .v_dimension = (uint32_t)config->v_dimension,
        .pair_count = config->has_rope ? (uint32_t)config->rope_dimension / 2 : 0,
        .rope_order = (uint32_t)config->rope_order,
        .layer_count = (uint32_t)layer_count,
    };
    r->layers = calloc(layer_count, sizeof *r->layers);
    r->frequencies = calloc(r->shape.pair_count + 1, sizeof *r->frequencies);
    r->rows = calloc(layer_halves(&r->shape), layer_count * sizeof *r->rows);
    if (r->layers == NULL || r->frequencies == NULL || r->rows == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for %zu tokens of %zu layers", token_count, layer_count);
    for (size_t i = 0; i < layer_count; i++) r->layers[i] = (uint32_t)layers[i];
    if (r->shape.pair_count == 0) return STATUS_OK;
    struct stream *stream;
    TRY(model->device->operations->stream_create(model->device, &stream, error));
    enum status status = device_read(model->device, stream, r->frequencies, model->rope_frequency[ROPE_FULL],
                                     r->shape.pair_count * sizeof *r->frequencies, error);
    model->device->operations->stream_destroy(stream);
    return status;
}

void recorder_destroy(struct recorder *recorder) {
    if (recorder == NULL) return;
    free(recorder->layers);
    free(recorder->frequencies);
    free(recorder->rows);
    free(recorder);
}

static void to_halves(uint16_t *halves, const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) halves[i] = float_to_half(values[i]);
}

void recorder_observe(void *context, const struct attention_event *event) {
    struct recorder *r = context;
    const struct recording_shape *s = &r->shape;
    size_t index = 0;
    while (index < s->layer_count && r->layers[index] != event->layer_index) index++;
    if (index == s->layer_count) return;
    uint16_t *k = r->rows + index * layer_halves(s), *v = k + s->token_count * k_row(s),
             *q = v + s->token_count * v_row(s);
    for (size_t row = 0; row < event->row_count; row++) {
        uint64_t at = event->positions[row];
        if (at >= s->token_count) continue;
        to_halves(k + at * k_row(s), event->k + row * k_row(s), k_row(s));
        to_halves(v + at * v_row(s), event->v + row * v_row(s), v_row(s));
        to_halves(q + at * q_row(s), event->q + row * q_row(s), q_row(s));
    }
}

/* Continues over several ranges; all but the last are whole words. */
static uint64_t checksum_add(uint64_t hash, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = 0;
        memcpy(&word, (const uint8_t *)bytes + i, length - i < 8 ? length - i : 8);
        hash = (hash ^ word) * UINT64_C(0x100000001b3);
    }
    return hash;
}
static const uint64_t checksum_begin = UINT64_C(0xcbf29ce484222325);

static enum status put(FILE *file, const void *bytes, size_t length, const char *path, struct error *error) {
    errno = 0;
    if (fwrite(bytes, 1, length, file) != length) return error_set_os(error, STATUS_IO, errno, "%s", path);
    return STATUS_OK;
}

static enum status write_all(const struct recorder *r, FILE *file, const char *path, struct error *error) {
    const struct recording_shape *s = &r->shape;
    const size_t layers = s->layer_count * sizeof *r->layers, pairs = s->pair_count * sizeof *r->frequencies,
                 rows = layer_halves(s) * s->layer_count * sizeof *r->rows, small = HEAD_BYTES + layers + pairs;
    uint8_t *head = calloc(1, small + 8);
    if (head == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    memcpy(head, magic, sizeof magic);
    memcpy(head + sizeof magic, s, sizeof *s);
    memcpy(head + HEAD_BYTES, r->layers, layers);
    memcpy(head + HEAD_BYTES + layers, r->frequencies, pairs);
    uint64_t checksum = checksum_add(checksum_add(checksum_begin, head, small), r->rows, rows);
    enum status status = put(file, head, small, path, error);
    free(head);
    if (status == STATUS_OK) status = put(file, r->rows, rows, path, error);
    if (status == STATUS_OK) status = put(file, &checksum, sizeof checksum, path, error);
    return status;
}

enum status recorder_write(const struct recorder *recorder, const char *path, struct error *error) {
    struct file_writer writer = {0};
    enum status status = file_writer_open(&writer, path, error);
    if (status == STATUS_OK) status = write_all(recorder, writer.stream, path, error);
    if (status == STATUS_OK) status = file_writer_commit(&writer, error);
    file_writer_abort(&writer);
    return status;
}

/* ---- reading ---- */

static enum status check_shape(const struct recording_shape *s, const char *path, struct error *error) {
    const struct {
        const char *name;
        uint32_t value, min, max;
    } fields[] = {{"tokens", s->token_count, 2 * REPLAY_SINKS + PIECE_MIN, INT32_MAX},
                  {"heads", s->head_count, 1, COUNT_MAX},
                  {"KV heads", s->kv_head_count, 1, s->head_count},
                  {"dimension of K", s->k_dimension, 1, COUNT_MAX},
                  {"dimension of V", s->v_dimension, 1, COUNT_MAX},
                  {"rotated pairs", s->pair_count, 0, s->k_dimension / 2},
                  {"order of pairs", s->rope_order, 0, ROPE_SPLIT},
                  {"layers", s->layer_count, 1, COUNT_MAX}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return error_set(error, STATUS_DOCUMENT, "%s: damaged: %s: found %u, expected %u to %u", path,
                             fields[i].name, fields[i].value, fields[i].min, fields[i].max);
    if (s->head_count % s->kv_head_count != 0)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: %u heads over %u KV heads", path, s->head_count,
                         s->kv_head_count);
    return STATUS_OK;
}

static enum status check(struct recording *recording, const char *path, struct error *error) {
    const uint8_t *data = recording->map.data;
    struct recording_shape *s = &recording->shape;
    if (recording->map.size_bytes < HEAD_BYTES || memcmp(data, magic, sizeof magic) != 0)
        return error_set(error, STATUS_DOCUMENT, "%s: not a recording of `loam-lab trace record`", path);
    memcpy(s, data + sizeof magic, sizeof *s);
    TRY(check_shape(s, path, error));
    uint64_t rows, small = HEAD_BYTES + 4 * ((uint64_t)s->layer_count + s->pair_count);
    uint64_t halves =
        ((uint64_t)s->head_count + s->kv_head_count) * s->k_dimension + (uint64_t)s->kv_head_count * s->v_dimension;
    if (!checked_multiply(halves, (uint64_t)s->token_count * s->layer_count, &rows) ||
        !checked_multiply(rows, sizeof(uint16_t), &rows) || !checked_add(rows, small + 8, &rows) ||
        rows != recording->map.size_bytes)
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: found %llu bytes, expected another size", path,
                         (unsigned long long)recording->map.size_bytes);
    uint64_t checksum, end = recording->map.size_bytes - sizeof checksum;
    memcpy(&checksum, data + end, sizeof checksum);
    if (checksum != checksum_add(checksum_add(checksum_begin, data, small), data + small, end - small))
        return error_set(error, STATUS_DOCUMENT, "%s: damaged: its checksum is of other bytes", path);
    recording->layers = (const uint32_t *)(const void *)(data + HEAD_BYTES); /* HEAD_BYTES: a multiple of 4 */
    recording->frequencies = (const float *)(const void *)(recording->layers + s->layer_count);
    recording->rows = (const uint16_t *)(const void *)(recording->frequencies + s->pair_count);
    return STATUS_OK;
}

enum status recording_open(struct recording *recording, const char *path, struct error *error) {
    *recording = (struct recording){0};
    TRY(file_map_open(&recording->map, path, error));
    enum status status = check(recording, path, error);
    if (status != STATUS_OK) recording_close(recording);
    return status;
}

void recording_close(struct recording *recording) {
    file_map_close(&recording->map);
    *recording = (struct recording){0};
}

/* ---- a context made of it ---- */

/* Positions [begin, end) from random places of rows [REPLAY_SINKS, first). */
static void fill_between(struct replay *replay, uint64_t begin, uint64_t end, uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    while (begin < end) {
        uint64_t rows = replay->first - REPLAY_SINKS;
        uint64_t count = PIECE_MIN + random_below(&random, PIECE_SPAN);
        if (count > rows) count = rows;
        uint64_t from = REPLAY_SINKS + random_below(&random, rows - count + 1);
        if (count > end - begin) count = end - begin;
        for (uint64_t i = 0; i < count; i++) replay->source[begin + i] = (uint32_t)(from + i);
        begin += count;
    }
}

enum status replay_create(struct replay *replay, const struct recording *recording, uint64_t depth, uint64_t step_count,
                          uint64_t seed, struct error *error) {
    const uint64_t rows = recording->shape.token_count;
    *replay = (struct replay){.recording = recording, .depth = depth};
    if (step_count + REPLAY_SINKS + PIECE_MIN > rows)
        return error_set(error, STATUS_USAGE, "--replay: found %llu tokens, expected %d more than the %llu steps",
                         (unsigned long long)rows, REPLAY_SINKS + PIECE_MIN, (unsigned long long)step_count);
    replay->first = (uint32_t)(rows - step_count);
    replay->source = calloc(depth + 1, sizeof *replay->source);
    if (replay->source == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    uint64_t sinks = depth < REPLAY_SINKS ? depth : REPLAY_SINKS;
    uint64_t recent = replay->first - REPLAY_SINKS;
    if (recent > depth - sinks) recent = depth - sinks;
    for (uint64_t i = 0; i < sinks; i++) replay->source[i] = (uint32_t)i;
    fill_between(replay, sinks, depth - recent, seed);
    for (uint64_t i = 0; i < recent; i++) replay->source[depth - recent + i] = (uint32_t)(replay->first - recent + i);
    return STATUS_OK;
}

void replay_destroy(struct replay *replay) {
    free(replay->source);
    *replay = (struct replay){0};
}

/* How far the row at the position is from the place where it was recorded, as the steps see it. */
static int64_t source_of(const struct replay *replay, uint64_t position, uint32_t *row) {
    ASSERT(position < replay->depth + replay->recording->shape.token_count - replay->first);
    *row = position < replay->depth ? replay->source[position] : (uint32_t)(replay->first + (position - replay->depth));
    return (int64_t)position - (int64_t)replay->depth + (int64_t)replay->first - (int64_t)*row;
}

static void rotate(const struct recording *recording, float *k, const float *cosine_sine) {
    const size_t pairs = recording->shape.pair_count;
    const bool split = recording->shape.rope_order == ROPE_SPLIT;
    for (size_t i = 0; i < pairs; i++) {
        float *a = k + (split ? i : 2 * i), *b = split ? a + pairs : a + 1;
        const float c = cosine_sine[2 * i], s = cosine_sine[2 * i + 1], x = *a, y = *b;
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}

static const uint16_t *layer_rows(const struct replay *replay, const struct replay_shape *shape, size_t layer) {
    const struct recording_shape *s = &replay->recording->shape;
    size_t index =
        shape->layer_count > s->layer_count ? layer * s->layer_count / shape->layer_count : layer % s->layer_count;
    return replay->recording->rows + index * layer_halves(s);
}

static void from_halves(float *values, const uint16_t *halves, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, halves + i, sizeof half);
        values[i] = half_to_float(half);
    }
}

void replay_keys_values(const struct replay *replay, const struct replay_shape *shape, size_t layer, uint64_t position,
                        float *k, float *v) {
    const struct recording *recording = replay->recording;
    const struct recording_shape *s = &recording->shape;
    const uint16_t *rows = layer_rows(replay, shape, layer);
    uint32_t row;
    const int64_t distance = source_of(replay, position, &row);
    float cosine_sine[2 * ROPE_PAIRS_MAX];
    ASSERT(s->pair_count <= ROPE_PAIRS_MAX);
    for (size_t i = 0; i < s->pair_count && distance != 0; i++) {
        double angle = (double)distance * (double)recording->frequencies[i];
        cosine_sine[2 * i] = (float)cos(angle);
        cosine_sine[2 * i + 1] = (float)sin(angle);
    }
    for (size_t head = 0; head < shape->kv_head_count; head++) {
        const size_t from = head % s->kv_head_count;
        float *key = k + head * s->k_dimension;
        from_halves(key, rows + row * k_row(s) + from * s->k_dimension, s->k_dimension);
        if (distance != 0) rotate(recording, key, cosine_sine);
        from_halves(v + head * s->v_dimension,
                    rows + s->token_count * k_row(s) + row * v_row(s) + from * s->v_dimension, s->v_dimension);
    }
}

void replay_queries(const struct replay *replay, const struct replay_shape *shape, size_t layer, uint64_t position,
                    float *q) {
    const struct recording_shape *s = &replay->recording->shape;
    const uint16_t *rows = layer_rows(replay, shape, layer) + s->token_count * (k_row(s) + v_row(s));
    const size_t group = shape->head_count / shape->kv_head_count, own = s->head_count / s->kv_head_count;
    uint32_t row;
    ASSERT(position >= replay->depth && source_of(replay, position, &row) == 0);
    (void)source_of(replay, position, &row);
    for (size_t head = 0; head < shape->head_count; head++) {
        const size_t from = head / group % s->kv_head_count * own + head % group % own;
        from_halves(q + head * s->k_dimension, rows + row * q_row(s) + from * s->k_dimension, s->k_dimension);
    }
}

enum status replay_fit(struct replay *replay, const struct model_config *config, struct error *error) {
    const struct recording_shape *shape = &replay->recording->shape;
    TRY(copy_check_states(config, "a recording", error));
    if (shape->k_dimension != config->k_dimension || shape->v_dimension != config->v_dimension)
        return error_set(error, STATUS_USAGE, "--replay: found heads of %u and %u, expected the model's %zu and %zu",
                         shape->k_dimension, shape->v_dimension, config->k_dimension, config->v_dimension);
    replay->shape = (struct replay_shape){config->layer_count, config->head_count, config->kv_head_count};
    return STATUS_OK;
}

enum status replay_rows(void *context, size_t layer, uint64_t position, const struct rows_target *target,
                        struct error *error) {
    const struct replay *replay = context;
    const struct recording_shape *s = &replay->recording->shape;
    const size_t heads = replay->shape.kv_head_count;
    (void)error;
    for (size_t i = 0; i < target->count; i++)
        replay_keys_values(replay, &replay->shape, layer, position + i, target->k + i * heads * s->k_dimension,
                           target->v + i * heads * s->v_dimension);
    return STATUS_OK;
}

enum status replay_steps_rows(void *context, const uint64_t *positions, size_t count, struct forward_replay *rows,
                              struct error *error) {
    struct replay_steps *steps = context;
    const struct recording_shape *s = &steps->replays->recording->shape;
    const struct replay_shape *shape = &steps->replays->shape;
    const size_t q_size = shape->head_count * s->k_dimension, k_size = shape->kv_head_count * s->k_dimension,
                 v_size = shape->kv_head_count * s->v_dimension, all = shape->layer_count * count;
    if (steps->floats == NULL)
        steps->floats = calloc(shape->layer_count * ENGINE_SEQUENCES_MAX, (q_size + k_size + v_size) * sizeof(float));
    if (steps->floats == NULL) return error_set(error, STATUS_MEMORY, "no memory for rows of a recording");
    float *q = steps->floats, *k = q + all * q_size, *v = k + all * k_size;
    for (size_t row = 0; row < all; row++) {
        const struct replay *replay = &steps->replays[row % count];
        replay_queries(replay, shape, row / count, positions[row % count], q + row * q_size);
        replay_keys_values(replay, shape, row / count, positions[row % count], k + row * k_size, v + row * v_size);
    }
    *rows = (struct forward_replay){.row_count = count, .q = q, .k = k, .v = v};
    return STATUS_OK;
}
