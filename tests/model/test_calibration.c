/* The sidecar's loader: what it finds, and what it refuses; and the observer that calibration looks through. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/calibration.h"
#include "model/tiny_model.h"
#include "tensor/half.h"

/* A sidecar of a two-layer model as a test wants it; damage is by field. */
struct draft {
    const char *architecture, *fingerprint; /* NULL: the right ones */
    uint32_t version, heads_more;
    size_t bits_stored, skew_columns; /* 0: as named; 0: all */
    float poison, importance;         /* one element of the hash; of the scores */
    float sensitivity;                /* the first one */
};

static struct device *device;
static struct model *model;
static char model_file[200], beside[200], elsewhere[200];

static int setup(void **state) {
    (void)state;
    struct error error;
    assert_ok(device_cpu_create(&device, &(struct device_options){.thread_count = 1}, &error), error);
    struct tiny_model tiny = tiny_model_default("llama");
    tiny_model_write(&tiny, tiny_model_path("calibrated.gguf", model_file, sizeof model_file));
    char *path;
    assert_ok(calibration_path(model_file, &path, &error), error);
    snprintf(beside, sizeof beside, "%s", path);
    free(path);
    tiny_model_path("elsewhere.gguf", elsewhere, sizeof elsewhere);
    unlink(beside);
    assert_ok(model_load(&model, model_file, device, &error), error);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    model_destroy(model);
    device_destroy(device);
    unlink(beside), unlink(elsewhere), unlink(model_file);
    return 0;
}

static void write_halves(struct gguf_writer *writer, size_t count, float first, struct error *error) {
    for (size_t i = 0; i < count; i++) {
        uint16_t half = float_to_half(i == 0 ? first : (float)(i % 100) / 64);
        assert_ok(gguf_writer_write(writer, &half, sizeof half, error), *error);
    }
}

static void draft_write(const struct draft *draft, const char *path) {
    struct gguf_writer *w;
    struct error error;
    const struct model_config *config = &model->config;
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES];
    calibration_fingerprint(&model->gguf, &model->config, fingerprint);
    const char *architecture = draft->architecture != NULL ? draft->architecture : CALIBRATION_ARCHITECTURE;
    const char *print = draft->fingerprint != NULL ? draft->fingerprint : fingerprint;
    uint32_t heads = (uint32_t)config->kv_head_count + draft->heads_more;
    uint64_t bits = draft->bits_stored != 0 ? draft->bits_stored : 128, k = config->k_dimension;
    uint64_t columns = draft->skew_columns != 0 ? draft->skew_columns : k;
    assert_ok(gguf_writer_create(&w, path, &error), error);
    assert_ok(gguf_writer_add_string(w, "general.architecture", architecture, strlen(architecture), &error),
              error);
    assert_ok(gguf_writer_add_string(w, CALIBRATION_KEY "fingerprint", print, strlen(print), &error), error);
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{CALIBRATION_KEY "version", draft->version},
                   {CALIBRATION_KEY "layer_count", (uint32_t)config->layer_count},
                   {CALIBRATION_KEY "head_count", (uint32_t)config->head_count},
                   {CALIBRATION_KEY "kv_head_count", heads},
                   {CALIBRATION_KEY "k_dimension", (uint32_t)k}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        assert_ok(gguf_writer_add_uint(w, numbers[i].key, numbers[i].value, &error), error);
    assert_ok(gguf_writer_declare_tensor(w, "blk.1.hash_128", TENSOR_F16, 3,
                                         (uint64_t[]){bits, k, config->kv_head_count}, &error),
              error);
    assert_ok(gguf_writer_declare_tensor(w, "blk.0.skew", TENSOR_F16, 3,
                                         (uint64_t[]){columns, k, config->kv_head_count}, &error),
              error);
    assert_ok(gguf_writer_declare_tensor(w, "head_importance", TENSOR_F32, 2,
                                         (uint64_t[]){config->head_count, config->layer_count}, &error),
              error);
    assert_ok(gguf_writer_declare_tensor(w, "kv_sensitivity", TENSOR_F32, 2,
                                         (uint64_t[]){CALIBRATION_ROUNDINGS, config->layer_count}, &error),
              error);
    assert_ok(gguf_writer_begin_data(w, &error), error);
    write_halves(w, bits * k * config->kv_head_count, draft->poison, &error);
    write_halves(w, columns * k * config->kv_head_count, 1, &error);
    for (size_t i = 0; i < config->head_count * config->layer_count; i++)
        assert_ok(gguf_writer_write(w, &draft->importance, sizeof draft->importance, &error), error);
    for (size_t i = 0; i < CALIBRATION_ROUNDINGS * config->layer_count; i++) {
        float value = draft->sensitivity + (float)i; /* each its own */
        assert_ok(gguf_writer_write(w, &value, sizeof value, &error), error);
    }
    assert_ok(gguf_writer_commit(w, &error), error);
    gguf_writer_destroy(w);
}

static void test_found(void **state) {
    (void)state;
    struct calibration *calibration;
    struct error error;
    unlink(beside);
    assert_ok(calibration_open(&calibration, model, NULL, &error), error);
    assert_null(calibration); /* none is no failure */
    draft_write(&(struct draft){.version = 1, .poison = 0.5f, .importance = 0.25f}, beside);
    assert_ok(calibration_open(&calibration, model, NULL, &error), error);
    assert_non_null(calibration);
    assert_string_equal(calibration_file(calibration), beside);
    size_t columns = 128;
    const uint16_t *hash = calibration_find(calibration, "hash", 1, &columns);
    assert_non_null(hash);
    assert_int_equal(columns, 128);
    assert_true(half_to_float(hash[0]) == 0.5f);
    columns = 0;
    assert_ptr_equal(calibration_find(calibration, "hash", 1, &columns), hash);
    assert_int_equal(columns, 128);
    columns = 256;
    assert_null(calibration_find(calibration, "hash", 1, &columns));
    columns = 0;
    assert_null(calibration_find(calibration, "hash", 0, &columns)); /* of layer 1 only */
    columns = 8;
    assert_non_null(calibration_find(calibration, "skew", 0, &columns));
    assert_int_equal(columns, model->config.k_dimension);
    columns = model->config.k_dimension + 1;
    assert_null(calibration_find(calibration, "skew", 0, &columns));
    columns = 0;
    assert_null(calibration_find(calibration, "hash_128", 1, &columns)); /* a name, not a kind */
    assert_true(calibration_head_importance(calibration)[0] == 0.25f);
    assert_null(calibration_query_similarity(calibration));
    assert_true(calibration_kv_sensitivity(calibration)[CALIBRATION_ROUNDINGS + CALIBRATION_V4] == 7.0f);
    calibration_close(calibration);
    unlink(beside);
}

static void refused(const struct draft *draft, const char *says) {
    struct calibration *calibration;
    struct error error = {0};
    draft_write(draft, elsewhere);
    assert_int_equal(calibration_open(&calibration, model, elsewhere, &error), STATUS_MODEL);
    assert_null(calibration);
    if (strstr(error.message, says) == NULL || strstr(error.message, elsewhere) == NULL)
        fail_msg("no '%s' in: %s", says, error.message);
}

static void test_refused(void **state) {
    (void)state;
    refused(&(struct draft){.version = 1, .architecture = "llama"}, "no calibration");
    refused(&(struct draft){.version = 1, .fingerprint = "0123456789abcdef"}, "another model");
    refused(&(struct draft){.version = 2}, "version: found 2, expected 1");
    refused(&(struct draft){.version = 1, .heads_more = 1}, "kv_head_count");
    refused(&(struct draft){.version = 1, .bits_stored = 64}, "blk.1.hash_128");
    refused(&(struct draft){.version = 1, .poison = INFINITY}, "blk.1.hash_128: element 0");
    refused(&(struct draft){.version = 1, .poison = NAN}, "not a finite");
    refused(&(struct draft){.version = 1, .importance = 1.5f}, "head_importance: element 0 is 1.5");
    refused(&(struct draft){.version = 1, .importance = NAN}, "head_importance");
    refused(&(struct draft){.version = 1, .sensitivity = -2.0f}, "kv_sensitivity: element 0 is -2");
    refused(&(struct draft){.version = 1, .sensitivity = INFINITY}, "kv_sensitivity");
    struct calibration *calibration;
    struct error error;
    assert_int_equal(calibration_open(&calibration, model, "/nowhere/x.gguf", &error), STATUS_IO);
}

/* Another seed gives another fingerprint: only the bytes of the tensors differ. */
static void test_fingerprint(void **state) {
    (void)state;
    struct model *other;
    struct error error;
    char path[200], one[CALIBRATION_FINGERPRINT_BYTES], two[CALIBRATION_FINGERPRINT_BYTES];
    calibration_fingerprint(&model->gguf, &model->config, one);
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct tiny_model tiny = tiny_model_default("llama");
        tiny.seed += seed;
        tiny_model_write(&tiny, tiny_model_path("other.gguf", path, sizeof path));
        assert_ok(model_load(&other, path, device, &error), error);
        calibration_fingerprint(&other->gguf, &other->config, two);
        assert_int_equal(strcmp(one, two) == 0, seed == 0);
        model_destroy(other);
    }
    unlink(path);
}

static void test_path(void **state) {
    (void)state;
    const char *const cases[][2] = {
        {"a/m.gguf", "a/m.calib.gguf"}, {"model", "model.calib.gguf"}, {".gguf", ".gguf.calib.gguf"}};
    struct error error;
    for (size_t i = 0; i < 3; i++) {
        char *path;
        assert_ok(calibration_path(cases[i][0], &path, &error), error);
        assert_string_equal(path, cases[i][1]);
        free(path);
    }
}

/* ---- the observer ---- */

struct seen {
    size_t layers, rows;
    float *q; /* of the last layer */
};

static void see(void *context, const struct attention_event *event) {
    struct seen *seen = context;
    assert_int_equal(event->layer_index, seen->layers++);
    assert_int_equal(event->row_count, seen->rows);
    size_t count = event->row_count * model->config.head_count * model->config.k_dimension;
    memcpy(seen->q, event->q, count * sizeof *event->q);
}

/* With the queries seen and the stored keys, the largest logit must be what the run gave: the observer changes
 * nothing.  And every layer is seen with all rows, the last too, which a run narrows otherwise. */
static void test_observer(void **state) {
    (void)state;
    enum { ROWS = 70 };
    const struct model_config *config = &model->config;
    struct error error;
    struct kv_cache *cache;
    struct forward *forward;
    int32_t tokens[ROWS];
    uint64_t positions[ROWS];
    float first = 0;
    struct seen seen = {.rows = ROWS,
                        .q = calloc(ROWS * config->head_count, config->k_dimension * sizeof(float))};
    struct kv_cache_config kv = {.layer_count = config->layer_count,
                                 .kv_head_count = config->kv_head_count,
                                 .k_dimension = config->k_dimension,
                                 .v_dimension = config->v_dimension,
                                 .token_capacity = ROWS,
                                 .sequence_capacity = 1};
    for (size_t i = 0; i < ROWS; i++) tokens[i] = (int32_t)(i % config->vocabulary_size), positions[i] = i;
    assert_ok(kv_cache_create(&cache, device, &kv, &error), error);
    struct attention *attention;
    const struct attention_options everything = {.cache = NULL};
    assert_ok(attention_create(&attention, device, &everything, &error), error);
    assert_ok(forward_create(&forward, model,
                             &(struct forward_options){.attention = attention,
                                                       .row_capacity = ROWS,
                                                       .block_capacity = ROWS,
                                                       .logit_row_capacity = 1},
                             &error),
              error);
    for (size_t round = 0; round < 2; round++) {
        struct kv_sequence *sequence;
        const float *logits;
        assert_ok(kv_sequence_create(&sequence, cache, ROWS, &error), error);
        assert_ok(kv_sequence_reserve(sequence, ROWS, &error), error);
        struct attend_item item = {.row_count = ROWS};
        struct forward_batch batch = {.tokens = tokens,
                                      .positions = positions,
                                      .row_count = ROWS,
                                      .sequences = &sequence,
                                      .items = &item,
                                      .item_count = 1,
                                      .logit_rows = (const uint32_t[]){ROWS - 1},
                                      .logit_row_count = 1};
        if (round == 1) forward_set_attention_observer(forward, see, &seen);
        assert_ok(forward_run(forward, &batch, &logits, &error), error);
        if (round == 0) first = logits[0];
        assert_true(fabsf(logits[0] - first) <= 1e-4f * fmaxf(1, fabsf(first)));
        kv_sequence_destroy(sequence);
    }
    assert_int_equal(seen.layers, config->layer_count);
    float largest = 0;
    for (size_t i = 0; i < config->k_dimension; i++)
        largest = fmaxf(largest, fabsf(seen.q[(ROWS * config->head_count - 1) * config->k_dimension + i]));
    assert_true(largest > 0);
    free(seen.q);
    forward_destroy(forward);
    attention_destroy(attention);
    kv_cache_destroy(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found), cmocka_unit_test(test_refused),  cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_path),  cmocka_unit_test(test_observer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
