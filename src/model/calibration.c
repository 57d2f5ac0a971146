#include "model/calibration.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tensor/half.h"

/* ---- the fingerprint: FNV-1a, 64 bits ---- */

static uint64_t mix(uint64_t hash, const void *data, size_t size_bytes) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size_bytes; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t mix_number(uint64_t hash, uint64_t number) {
    uint8_t bytes[8];
    for (size_t i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * i);
    return mix(hash, bytes, sizeof bytes);
}

static uint64_t mix_float(uint64_t hash, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mix_number(hash, bits);
}

static uint64_t mix_config(uint64_t hash, const struct model_config *config) {
    const uint64_t numbers[] = {
        config->family,
        config->layer_count,
        config->hidden_size,
        config->head_count,
        config->kv_head_count,
        config->k_dimension,
        config->v_dimension,
        config->ffn_size,
        config->has_rope,
        config->rope_order,
        config->rope_dimension,
        config->rope_scaling,
        config->rope_original_context,
    };
    const float reals[] = {config->norm_epsilon, config->rope_base, config->rope_factor, config->rope_attention_factor,
                           config->attention_scale};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) hash = mix_number(hash, numbers[i]);
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) hash = mix_float(hash, reals[i]);
    for (size_t i = 0; config->kv_groups != NULL && i < config->layer_count; i++) {
        const struct layer_config *layer = &config->layers[i];
        hash = mix_number(hash, layer->kv.kv_head_count);
        hash = mix_number(hash, layer->kv.k_dimension);
        hash = mix_number(hash, layer->kv_layer);
    }
    if (config->temperature != 0) hash = mix_float(hash, config->temperature);
    if (config->score_softcap != 0) hash = mix_float(hash, config->score_softcap);
    if (config->experts.count == 0) return hash;
    const uint64_t experts[] = {config->experts.count, config->experts.used, config->experts.size,
                                config->experts.router, config->experts.normalises};
    for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++) hash = mix_number(hash, experts[i]);
    hash = mix_float(hash, config->experts.scale);
    const uint64_t others[] = {config->experts.dense_layers, config->experts.shared, config->experts.shared_size,
                               config->experts.group_count, config->experts.groups_used};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i] != 0) hash = mix_number(mix_number(hash, i), others[i]);
    return hash;
}

/* Sixteen pieces of 64 bytes, spread over the tensor. */
static uint64_t mix_tensor(uint64_t hash, const struct gguf_tensor *tensor) {
    enum { PIECES = 16, PIECE_BYTES = 64 };
    hash = mix(hash, tensor->name.text, (size_t)tensor->name.length);
    hash = mix_number(hash, tensor->type);
    for (size_t i = 0; i < GGUF_DIMENSIONS_MAX; i++) hash = mix_number(hash, tensor->dimensions[i]);
    if (tensor->size_bytes <= PIECES * PIECE_BYTES) return mix(hash, tensor->data, (size_t)tensor->size_bytes);
    uint64_t last = tensor->size_bytes - PIECE_BYTES;
    for (uint64_t i = 0; i < PIECES; i++) hash = mix(hash, tensor->data + (last / (PIECES - 1)) * i, PIECE_BYTES);
    return hash;
}

void calibration_fingerprint(const struct gguf *gguf, const struct model_config *config,
                             char text[CALIBRATION_FINGERPRINT_BYTES]) {
    uint64_t hash = mix_config(UINT64_C(0xcbf29ce484222325), config);
    for (uint64_t i = 0; i < gguf->tensor_count; i++) hash = mix_tensor(hash, &gguf->tensors[i]);
    snprintf(text, CALIBRATION_FINGERPRINT_BYTES, "%016llx", (unsigned long long)hash);
}

uint64_t calibration_digest(uint64_t digest, const char *name, size_t name_bytes, const void *data, size_t bytes) {
    return mix(mix(digest, name, name_bytes), data, bytes);
}

enum status model_companion_path(const char *model_path, const char *ending, char **path, struct error *error) {
    static const char own[] = ".gguf";
    size_t length = strlen(model_path), cut = length;
    if (length > sizeof own - 1 && strcmp(model_path + length - (sizeof own - 1), own) == 0)
        cut = length - (sizeof own - 1);
    *path = malloc(cut + strlen(ending) + 1);
    if (*path == NULL) return error_set(error, STATUS_MEMORY, "no memory for a path");
    memcpy(*path, model_path, cut);
    strcpy(*path + cut, ending);
    return STATUS_OK;
}

enum status calibration_path(const char *model_path, char **path, struct error *error) {
    return model_companion_path(model_path, ".calib.gguf", path, error);
}

/* ---- reading ---- */

struct calibration {
    struct gguf gguf;
    const struct model_config *config; /* borrowed from the model */
};

static enum status check_number(const struct calibration *c, const char *name, uint64_t expected, struct error *error) {
    char key[64];
    uint64_t found = UINT64_MAX;
    snprintf(key, sizeof key, CALIBRATION_KEY "%s", name);
    TRY(gguf_required(&c->gguf, key, error));
    TRY(gguf_get_uint(&c->gguf, key, UINT32_MAX, &found, error));
    if (found != expected)
        return error_set(error, STATUS_MODEL, "%s: %s: found %llu, expected %llu", c->gguf.path, key,
                         (unsigned long long)found, (unsigned long long)expected);
    return STATUS_OK;
}

static enum status check_text(const struct calibration *c, const char *key, const char *expected, const char *meaning,
                              struct error *error) {
    struct gguf_string found = {"", 0};
    TRY(gguf_required(&c->gguf, key, error));
    TRY(gguf_get_string(&c->gguf, key, &found, error));
    if (found.length != strlen(expected) || memcmp(found.text, expected, (size_t)found.length) != 0)
        return error_set(error, STATUS_MODEL, "%s: %s: %s (expected %s)", c->gguf.path, key, meaning, expected);
    return STATUS_OK;
}

/* expected[0] of 0: any that is not. */
static enum status check_shape(const struct calibration *c, const struct gguf_tensor *tensor, enum tensor_type type,
                               const uint64_t *expected, struct error *error) {
    bool fits = tensor->type == type;
    for (size_t i = 0; i < 3; i++)
        fits = fits && (expected[i] == 0 ? tensor->dimensions[i] > 0 : tensor->dimensions[i] == expected[i]);
    if (fits && tensor->dimensions[3] == 1) return STATUS_OK;
    return error_set(error, STATUS_MODEL, "%s: %.*s: found %s of %llu x %llu x %llu, which is not this model's",
                     c->gguf.path, (int)tensor->name.length, tensor->name.text, tensor_type_info(tensor->type)->name,
                     (unsigned long long)tensor->dimensions[0], (unsigned long long)tensor->dimensions[1],
                     (unsigned long long)tensor->dimensions[2]);
}

static enum status check_halves(const struct calibration *c, const struct gguf_tensor *tensor, struct error *error) {
    const uint16_t *values = (const uint16_t *)(const void *)tensor->data;
    for (uint64_t i = 0; i < tensor->size_bytes / sizeof *values; i++)
        if (!isfinite(half_to_float(values[i])))
            return error_set(error, STATUS_MODEL, "%s: %.*s: element %llu is not a finite number", c->gguf.path,
                             (int)tensor->name.length, tensor->name.text, (unsigned long long)i);
    return STATUS_OK;
}

static enum status check_scores(const struct calibration *c, const char *name, float min, float max,
                                struct error *error) {
    const struct gguf_tensor *tensor = gguf_find_tensor(&c->gguf, name);
    if (tensor == NULL) return STATUS_OK;
    TRY(check_shape(c, tensor, TENSOR_F32, (uint64_t[]){c->config->head_count, c->config->layer_count, 1}, error));
    const float *values = (const float *)(const void *)tensor->data;
    for (uint64_t i = 0; i < tensor->size_bytes / sizeof *values; i++)
        if (!(values[i] >= min && values[i] <= max))
            return error_set(error, STATUS_MODEL, "%s: %s: element %llu is %g, expected %g to %g", c->gguf.path, name,
                             (unsigned long long)i, (double)values[i], (double)min, (double)max);
    return STATUS_OK;
}

static enum status check_sensitivity(const struct calibration *c, struct error *error) {
    const struct gguf_tensor *tensor = gguf_find_tensor(&c->gguf, "kv_sensitivity");
    if (tensor == NULL) return STATUS_OK;
    TRY(check_shape(c, tensor, TENSOR_F32, (uint64_t[]){CALIBRATION_ROUNDINGS, c->config->layer_count, 1}, error));
    const float *values = (const float *)(const void *)tensor->data;
    for (uint64_t i = 0; i < tensor->size_bytes / sizeof *values; i++)
        if (!(values[i] >= 0 && isfinite(values[i])))
            return error_set(error, STATUS_MODEL,
                             "%s: kv_sensitivity: element %llu is %g, expected an error of 0 or more", c->gguf.path,
                             (unsigned long long)i, (double)values[i]);
    return STATUS_OK;
}

static enum status check_reuse(const struct calibration *c, struct error *error) {
    const struct gguf_tensor *tensor = gguf_find_tensor(&c->gguf, "reuse_curve");
    if (tensor == NULL) return STATUS_OK;
    const struct model_config *config = c->config;
    TRY(check_shape(c, tensor, TENSOR_F32,
                    (uint64_t[]){3, 0, kv_layer_lane(config->kv_groups, config->kv_head_count, config->layer_count, 0)},
                    error));
    const float *values = (const float *)(const void *)tensor->data;
    for (uint64_t i = 0; i < tensor->size_bytes / sizeof *values; i += 3)
        if (!isfinite(values[i]) || !(values[i + 1] >= 0 && values[i + 1] <= 1) || !isfinite(values[i + 2]))
            return error_set(error, STATUS_MODEL,
                             "%s: reuse_curve: point %llu is %g, %g, %g, expected finite numbers and hits "
                             "of 0 to 1",
                             c->gguf.path, (unsigned long long)(i / 3), (double)values[i], (double)values[i + 1],
                             (double)values[i + 2]);
    return STATUS_OK;
}

/* blk.N.skew: 0 (any number of columns).  blk.N.hash_128: 128.  UINT64_MAX: neither.  *layer: N. */
static uint64_t columns_named(const struct gguf_tensor *tensor, size_t layer_count, size_t *layer) {
    char name[GGUF_NAME_BYTES_MAX + 1], *behind;
    snprintf(name, sizeof name, "%.*s", (int)tensor->name.length, tensor->name.text);
    const char *part = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    if (part == NULL) return UINT64_MAX;
    *layer = strtoul(name + 4, &behind, 10);
    if (behind != part || *layer >= layer_count) return UINT64_MAX;
    if (strcmp(part, ".skew") == 0) return 0;
    char *end;
    if (strncmp(part, ".hash_", 6) != 0 || part[6] < '1' || part[6] > '9') return UINT64_MAX;
    unsigned long bits = strtoul(part + 6, &end, 10);
    return *end == '\0' && bits <= UINT32_MAX ? bits : UINT64_MAX;
}

static enum status check_tensors(const struct calibration *c, struct error *error) {
    for (uint64_t i = 0; i < c->gguf.tensor_count; i++) {
        const struct gguf_tensor *tensor = &c->gguf.tensors[i];
        size_t layer;
        uint64_t columns = columns_named(tensor, c->config->layer_count, &layer);
        if (columns == UINT64_MAX) continue;
        const struct kv_geometry *kv = &c->config->layers[layer].kv;
        TRY(check_shape(c, tensor, TENSOR_F16, (uint64_t[]){columns, kv->k_dimension, kv->kv_head_count}, error));
        TRY(check_halves(c, tensor, error));
    }
    TRY(check_scores(c, "head_importance", 0, 1, error));
    TRY(check_sensitivity(c, error));
    TRY(check_reuse(c, error));
    TRY(check_scores(c, "query_similarity_decoded", -1, 1, error));
    return check_scores(c, "query_similarity", -1, 1, error);
}

/* Whether the matrices are those that were written.  Older files have no digest. */
static enum status check_digest(struct calibration *c, struct error *error) {
    char text[CALIBRATION_FINGERPRINT_BYTES];
    uint64_t digest = CALIBRATION_DIGEST_BEGIN;
    if (gguf_find(&c->gguf, CALIBRATION_KEY "digest") == NULL) return STATUS_OK;
    for (uint64_t i = 0; i < c->gguf.tensor_count; i++) {
        const struct gguf_tensor *tensor = &c->gguf.tensors[i];
        digest = calibration_digest(digest, tensor->name.text, (size_t)tensor->name.length, tensor->data,
                                    (size_t)tensor->size_bytes);
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)digest);
    return check_text(c, CALIBRATION_KEY "digest", text, "the file is damaged; `loam-lab calibrate` makes it anew",
                      error);
}

static enum status check_file(struct calibration *c, const struct model *model, struct error *error) {
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES];
    TRY(check_text(c, "general.architecture", CALIBRATION_ARCHITECTURE, "this is no calibration", error));
    TRY(check_number(c, "version", CALIBRATION_VERSION, error));
    TRY(check_number(c, "layer_count", c->config->layer_count, error));
    TRY(check_number(c, "head_count", c->config->head_count, error));
    TRY(check_number(c, "kv_head_count", c->config->kv_head_count, error));
    TRY(check_number(c, "k_dimension", c->config->k_dimension, error));
    calibration_fingerprint(&model->gguf, &model->config, fingerprint);
    TRY(check_text(c, CALIBRATION_KEY "fingerprint", fingerprint,
                   "it was made for another model file; `loam-lab calibrate` makes one for this", error));
    TRY(check_digest(c, error));
    return check_tensors(c, error);
}

enum status calibration_open(struct calibration **calibration, const struct model *model, const char *path,
                             struct error *error) {
    char *found_path = NULL;
    struct stat information;
    *calibration = NULL;
    if (path == NULL) {
        TRY(calibration_path(model->gguf.path, &found_path, error));
        if (stat(found_path, &information) != 0 && errno == ENOENT) {
            free(found_path);
            return STATUS_OK;
        }
        path = found_path;
    }
    enum status status = STATUS_OK;
    struct calibration *c = calloc(1, sizeof *c);
    if (c == NULL) status = error_set(error, STATUS_MEMORY, "no memory for a calibration");
    if (status == STATUS_OK) {
        c->config = &model->config;
        status = gguf_open(&c->gguf, path, error);
    }
    if (status == STATUS_OK) status = check_file(c, model, error);
    free(found_path);
    if (status != STATUS_OK) {
        calibration_close(c);
        return status;
    }
    *calibration = c;
    return STATUS_OK;
}

void calibration_close(struct calibration *calibration) {
    if (calibration == NULL) return;
    gguf_close(&calibration->gguf);
    free(calibration);
}

const char *calibration_file(const struct calibration *calibration) { return calibration->gguf.path; }

static const struct gguf_tensor *find_hash(const struct calibration *c, size_t layer_index, size_t bits) {
    static const size_t usual[] = {128, 256, 64, 512};
    const struct gguf_tensor *tensor = NULL;
    char name[GGUF_NAME_BYTES_MAX];
    for (size_t i = 0; i < (bits != 0 ? 1 : sizeof usual / sizeof usual[0]) && tensor == NULL; i++) {
        snprintf(name, sizeof name, "blk.%zu.hash_%zu", layer_index, bits != 0 ? bits : usual[i]);
        tensor = gguf_find_tensor(&c->gguf, name);
    }
    return tensor;
}

const uint16_t *calibration_find(void *context, const char *kind, size_t layer_index, size_t *columns) {
    const struct calibration *c = context;
    const struct gguf_tensor *tensor = NULL;
    char name[GGUF_NAME_BYTES_MAX];
    if (strcmp(kind, "hash") == 0) tensor = find_hash(c, layer_index, *columns);
    if (strcmp(kind, "skew") == 0) {
        snprintf(name, sizeof name, "blk.%zu.skew", layer_index);
        tensor = gguf_find_tensor(&c->gguf, name);
    }
    if (tensor == NULL || tensor->dimensions[0] < *columns) return NULL;
    *columns = (size_t)tensor->dimensions[0];
    return (const uint16_t *)(const void *)tensor->data;
}

static const float *scores(const struct calibration *calibration, const char *name) {
    const struct gguf_tensor *tensor = gguf_find_tensor(&calibration->gguf, name);
    return tensor == NULL ? NULL : (const float *)(const void *)tensor->data;
}

const float *calibration_head_importance(const struct calibration *calibration) {
    return scores(calibration, "head_importance");
}

const float *calibration_query_similarity(const struct calibration *calibration) {
    return scores(calibration, "query_similarity");
}

const float *calibration_decoded_similarity(const struct calibration *calibration) {
    return scores(calibration, "query_similarity_decoded");
}

const float *calibration_kv_sensitivity(const struct calibration *calibration) {
    return scores(calibration, "kv_sensitivity");
}

const float *calibration_reuse_curve(const struct calibration *calibration, size_t points) {
    const struct gguf_tensor *tensor = gguf_find_tensor(&calibration->gguf, "reuse_curve");
    return tensor == NULL || tensor->dimensions[1] != points ? NULL : (const float *)(const void *)tensor->data;
}
