/* Writes the calibration file (MODEL.calib.gguf): metadata, tensors in the order declared, then their data in the same
 * order.  One table gives both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "format/gguf.h"
#include "lab/calibrate/calibrate.h"
#include "model/calibration.h"

struct entry { /* of the table */
    char name[GGUF_NAME_BYTES_MAX];
    enum tensor_type type;
    uint64_t dimensions[3]; /* 0: no more of them */
    const void *data;
};

struct sidecar {
    const struct calibration_result *result;
    struct gguf_writer *writer;
    struct entry *entries;
    size_t count, capacity;
    float *recalls; /* owned: [bits_count][layer][kv_head][3] */
};

static struct entry *add(struct sidecar *s, enum tensor_type type, const void *data, uint64_t first, uint64_t second,
                         uint64_t third) {
    ASSERT(s->count < s->capacity);
    struct entry *entry = &s->entries[s->count++];
    *entry = (struct entry){.type = type, .dimensions = {first, second, third}, .data = data};
    return entry;
}

/* Of the layers that have K of their own, each with its own shape. */
static void add_layers(struct sidecar *s, const struct model_config *config) {
    const struct calibration_result *r = s->result;
    size_t rows = 0, squares = 0; /* of the layers before */
    for (size_t layer = 0; layer < r->layer_count; layer++) {
        const struct layer_config *own = &config->layers[layer];
        const size_t k = own->kv.k_dimension, kv_heads = own->kv.kv_head_count;
        if (own->kv_layer != layer || kv_heads == 0) continue;
        for (size_t i = 0; i < r->options.bits_count; i++) {
            size_t bits = r->options.bits[i];
            struct entry *entry = add(s, TENSOR_F16, r->hash[i] + rows * bits, bits, k, kv_heads);
            snprintf(entry->name, sizeof entry->name, "blk.%zu.hash_%zu", layer, bits);
        }
        struct entry *entry = add(s, TENSOR_F16, r->skew + squares, k, k, kv_heads);
        snprintf(entry->name, sizeof entry->name, "blk.%zu.skew", layer);
        rows += kv_heads * k;
        squares += kv_heads * k * k;
    }
}

static void add_scores(struct sidecar *s, const struct model_config *config) {
    const struct calibration_result *r = s->result;
    const size_t lanes = kv_layer_lane(config->kv_groups, config->kv_head_count, config->layer_count, 0);
    const bool alike = config->kv_groups == NULL; /* else a row has all lanes */
    const size_t row = alike ? r->kv_head_count : lanes, rows = alike ? r->layer_count : 1;
    const struct {
        const char *name;
        const float *data;
        uint64_t dimensions[3];
    } scores[] = {
        {"head_importance", r->importance, {r->head_count, r->layer_count, 0}},
        {"head_alone", r->alone, {r->head_count, r->layer_count, 0}},
        {"query_similarity", r->similarity, {r->head_count, r->layer_count, 0}},
        {"query_similarity_decoded", r->similarity_decoded, {r->head_count, r->layer_count, 0}},
        {"query_similarity_quantiles", r->similarity_quantiles, {CALIBRATE_QUANTILES, r->head_count, r->layer_count}},
        {"kv_sensitivity", r->sensitivity, {STUDY_ROUNDINGS, r->layer_count, 0}},
        {"reuse_curve",
         (const float *)(const void *)r->reuse,
         {sizeof *r->reuse / sizeof(float), REUSE_CURVE_POINTS, lanes}},
        {"skew_kept", r->skew_kept, {row, rows, 0}},
    };
    for (size_t i = 0; i < sizeof scores / sizeof scores[0]; i++) {
        const uint64_t *d = scores[i].dimensions;
        if (scores[i].data == NULL) continue; /* not measured */
        snprintf(add(s, TENSOR_F32, scores[i].data, d[0], d[1], d[2])->name, GGUF_NAME_BYTES_MAX, "%s", scores[i].name);
    }
    for (size_t i = 0; i < r->options.bits_count; i++) {
        float *recalls = s->recalls + i * lanes * 3;
        for (size_t head = 0; head < lanes; head++) {
            recalls[head * 3] = (float)r->learned[i][head].random;
            recalls[head * 3 + 1] = (float)r->learned[i][head].published;
            recalls[head * 3 + 2] = (float)r->learned[i][head].learned;
        }
        snprintf(add(s, TENSOR_F32, recalls, 3, row, rows)->name, GGUF_NAME_BYTES_MAX, "hash_recall_%zu",
                 r->options.bits[i]);
    }
}

static enum status write_text(struct sidecar *s, const char *key, const char *text, struct error *error) {
    return gguf_writer_add_string(s->writer, key, text, strlen(text), error);
}

static enum status write_keys(struct sidecar *s, const struct model *model, struct error *error) {
    const struct calibration_result *r = s->result;
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES];
    calibration_fingerprint(&model->gguf, &model->config, fingerprint);
    const struct {
        const char *key;
        size_t value;
    } numbers[] = {
        {CALIBRATION_KEY "version", CALIBRATION_VERSION},
        {CALIBRATION_KEY "layer_count", r->layer_count},
        {CALIBRATION_KEY "head_count", r->head_count},
        {CALIBRATION_KEY "kv_head_count", r->kv_head_count},
        {CALIBRATION_KEY "k_dimension", r->k_dimension},
        {CALIBRATION_KEY "window_size", r->options.window_size},
        {CALIBRATION_KEY "window_count", r->options.window_count},
        {CALIBRATION_KEY "held_out", r->options.held_out},
        {CALIBRATION_KEY "sinks", r->options.sinks},
        {CALIBRATION_KEY "recent", r->options.recent},
        {CALIBRATION_KEY "seed", (size_t)r->options.seed},
    };
    TRY(write_text(s, "general.architecture", CALIBRATION_ARCHITECTURE, error));
    TRY(write_text(s, "general.name", model->config.name, error));
    TRY(write_text(s, CALIBRATION_KEY "fingerprint", fingerprint, error));
    TRY(write_text(s, CALIBRATION_KEY "head_importance_source", r->importance_source, error));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        TRY(gguf_writer_add_uint(s->writer, numbers[i].key, (uint32_t)numbers[i].value, error));
    TRY(gguf_writer_add_float(s->writer, CALIBRATION_KEY "recall_keep", (float)r->options.keep, error));
    return gguf_writer_add_float(s->writer, CALIBRATION_KEY "lambda", (float)r->options.lambda, error);
}

static size_t entry_bytes(const struct entry *entry) {
    uint64_t elements = entry->dimensions[0] * entry->dimensions[1];
    if (entry->dimensions[2] > 0) elements *= entry->dimensions[2];
    return (size_t)elements * (entry->type == TENSOR_F16 ? 2 : 4);
}

static enum status write_digest(struct sidecar *s, struct error *error) {
    char text[CALIBRATION_FINGERPRINT_BYTES];
    uint64_t digest = CALIBRATION_DIGEST_BEGIN;
    for (size_t i = 0; i < s->count; i++)
        digest = calibration_digest(digest, s->entries[i].name, strlen(s->entries[i].name), s->entries[i].data,
                                    entry_bytes(&s->entries[i]));
    snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    return write_text(s, CALIBRATION_KEY "digest", text, error);
}

static enum status write_tensors(struct sidecar *s, const struct model *model, struct error *error) {
    for (size_t i = 0; i < s->count; i++) {
        const struct entry *entry = &s->entries[i];
        uint32_t dimensions = entry->dimensions[2] > 0 ? 3 : 2;
        TRY(gguf_writer_declare_tensor(s->writer, entry->name, entry->type, dimensions, entry->dimensions, error));
    }
    TRY(gguf_writer_begin_data(s->writer, error));
    for (size_t i = 0; i < s->count; i++) {
        const struct entry *entry = &s->entries[i];
        TRY(gguf_writer_write(s->writer, entry->data, entry_bytes(entry), error));
    }
    TRY(gguf_check(&model->gguf, error));
    return gguf_writer_commit(s->writer, error);
}

enum status calibration_write(const struct calibration_result *result, const struct model *model, const char *path,
                              struct error *error) {
    struct sidecar s = {.result = result};
    size_t bits_count = result->options.bits_count;
    s.capacity = result->layer_count * (bits_count + 1) + 8 + bits_count;
    s.entries = calloc(s.capacity, sizeof *s.entries);
    s.recalls = calloc(bits_count * result->layer_count * result->kv_head_count + 1, 3 * sizeof *s.recalls);
    enum status status = s.entries == NULL || s.recalls == NULL
                             ? error_set(error, STATUS_MEMORY, "no memory for the table of a calibration")
                             : STATUS_OK;
    if (status == STATUS_OK) status = gguf_writer_create(&s.writer, path, error);
    if (status == STATUS_OK) {
        add_layers(&s, &model->config);
        add_scores(&s, &model->config);
        status = write_keys(&s, model, error);
        if (status == STATUS_OK) status = write_digest(&s, error);
    }
    if (status == STATUS_OK) status = write_tensors(&s, model, error);
    gguf_writer_destroy(s.writer);
    free(s.entries);
    free(s.recalls);
    return status;
}
