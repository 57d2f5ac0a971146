/* The inputs of layers that are kept with a document (cache/inputs.h): rows as they are rounded, and back; appended in
 * any pieces, committed, opened again and continued; cut back; damaged. */
#include "cache/inputs.h"

#include "seed.h"
#include "testing.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "kernels/attention/kv_layout.h"
#include "tensor/half.h"

enum { LAYERS = 3, TOKENS = 300, CAPACITY = 512, READ_CHUNKS = 3, BLOCK = 32, BLOCK_BYTES = 36 };

static float any_value(struct random *random) {
    switch (random_below(random, 12)) {
    case 0: return 0;
    case 1: return -0.0f;
    case 2: return 1e-42f;
    case 3: return (float)random_normal(random) * 1e30f;
    case 4: return (float)random_normal(random) * 1e-30f;
    default: return (float)random_normal(random);
    }
}

/* What comes back is rounded to the same: the magnitude that the scale follows from, and every code. */
static void rounding_twice_is_rounding_once(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(36));
    for (size_t round = 0; round < test_part(200000); round++) {
        float x[BLOCK], y[BLOCK];
        uint8_t once[BLOCK_BYTES], twice[BLOCK_BYTES];
        float largest = 0;
        for (size_t i = 0; i < BLOCK; i++) x[i] = any_value(&random);
        for (size_t i = 0; i < BLOCK; i++) largest = fmaxf(largest, fabsf(x[i]));
        inputs_encode(INPUTS_Q8, 1, x, BLOCK, once);
        inputs_decode(INPUTS_Q8, once, BLOCK, y);
        inputs_encode(INPUTS_Q8, 1, y, BLOCK, twice);
        assert_memory_equal(once, twice, BLOCK_BYTES);
        for (size_t i = 0; i < BLOCK; i++) /* and it is near: within half a step */
            assert_true(largest < 1e-30f || fabsf(y[i] - x[i]) <= largest * (0.5f / 127 + 1e-6f));
    }
}

/* Halves of a power of two, by definition. */
static uint16_t half_of(double x) {
    uint16_t best = 0;
    for (uint32_t bits = 0; bits <= 0x4000; bits++) {
        const double off = fabs((double)half_to_float((uint16_t)bits) - fabs(x)),
                     least = fabs((double)half_to_float(best) - fabs(x));
        if (off < least || (off == least && bits % 2 == 0)) best = (uint16_t)bits;
    }
    return (uint16_t)(best | (signbit(x) ? 0x8000 : 0));
}

/* The halves of what comes back are those of the row, though its largest was rounded to a power of two; slices have the
 * power of the whole row. */
static void halves_come_back(void **state) {
    (void)state;
    enum { COLUMNS = 64, KEPT = 4 + COLUMNS };
    struct random random;
    random_init(&random, test_seed(38));
    for (size_t round = 0; round < test_part(20000); round++) {
        float x[COLUMNS], y[COLUMNS];
        uint8_t once[2][KEPT], twice[2][KEPT];
        for (size_t i = 0; i < COLUMNS; i++)
            x[i] = round % 3 == 0
                       ? any_value(&random)
                       : ldexpf((float)random_normal(&random), (int)random_below(&random, 20) - 20);
        if (round % 3 == 1)
            x[random_below(&random, COLUMNS)] = random_below(&random, 2) ? -15.9999f : 15.9999f;
        const float power = inputs_power(INPUTS_F16, x, COLUMNS);
        for (size_t slice = 0; slice < 2; slice++) {
            const size_t first = slice * COLUMNS / 2;
            inputs_encode(INPUTS_F16, power, x + first, COLUMNS / 2, once[slice]);
            inputs_decode(INPUTS_F16, once[slice], COLUMNS / 2, y + first);
        }
        assert_true(inputs_power(INPUTS_F16, y, COLUMNS) == power);
        for (size_t slice = 0; slice < 2; slice++)
            inputs_encode(INPUTS_F16, power, y + slice * COLUMNS / 2, COLUMNS / 2, twice[slice]);
        assert_memory_equal(once, twice, sizeof once);
        if (round >= 20) continue;
        for (size_t i = 0; i < COLUMNS; i++) {
            uint16_t half;
            memcpy(&half, once[i / 32] + 4 + i % 32 * 2, sizeof half);
            assert_int_equal(half, half_of((double)x[i] / (double)power));
        }
    }
}

static void what_is_not_finite_comes_back_so(void **state) {
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t v = 0; v < 3; v++) {
        float x[2 * BLOCK] = {1}, y[2 * BLOCK];
        uint8_t kept[2 * BLOCK_BYTES];
        x[BLOCK + 7] = values[v];
        inputs_encode(INPUTS_Q8, 1, x, 2 * BLOCK, kept);
        inputs_decode(INPUTS_Q8, kept, 2 * BLOCK, y);
        for (size_t i = 0; i < BLOCK; i++) assert_true(y[i] == x[i] && isnan(y[BLOCK + i]));
        inputs_encode(INPUTS_F16, inputs_power(INPUTS_F16, x, BLOCK + 8), x, BLOCK, kept);
        inputs_decode(INPUTS_F16, kept, BLOCK, y);
        for (size_t i = 0; i < BLOCK; i++) assert_true(isnan(y[i])); /* a row of them, as the products are */
    }
}

/* ---- documents ---- */

struct rig {
    struct scratch scratch;
    struct store *store;
    struct inputs_options options;
    int32_t tokens[CAPACITY];
    float *rows; /* [LAYERS][CAPACITY][hidden_size], as they come back */
    struct error error;
};

static float *row_of(const struct rig *rig, size_t layer, uint64_t token) {
    return rig->rows + (layer * CAPACITY + token) * rig->options.shape.hidden_size;
}

static void rig_open(struct rig *rig, enum inputs_form form, size_t hidden) {
    struct random random;
    memset(rig, 0, sizeof *rig);
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    const struct store_options store = {.directory = rig->scratch.path};
    assert_ok(store_open(&rig->store, &store, &rig->error), rig->error);
    rig->options = (struct inputs_options){.store = rig->store,
                                           .model = {.fingerprint = {1, 2, 3}, .description = "test"},
                                           .shape = {LAYERS, hidden, form},
                                           .name = "rows",
                                           .token_capacity = CAPACITY,
                                           .read_chunks = READ_CHUNKS};
    rig->rows = calloc(LAYERS * CAPACITY * hidden, sizeof *rig->rows);
    random_init(&random, test_seed(37));
    uint8_t *kept = malloc(inputs_row_bytes(&rig->options.shape));
    assert_true(rig->rows != NULL && kept != NULL);
    for (size_t i = 0; i < CAPACITY; i++) rig->tokens[i] = (int32_t)random_below(&random, 1000);
    for (size_t i = 0; i < LAYERS * CAPACITY; i++) { /* rounded already, so that they come back */
        float *row = rig->rows + i * hidden;
        for (size_t j = 0; j < hidden; j++) row[j] = (float)random_normal(&random);
        inputs_encode(form, inputs_power(form, row, hidden), row, hidden, kept);
        inputs_decode(form, kept, hidden, row);
    }
    free(kept);
}

static void rig_close(struct rig *rig) {
    store_close(rig->store);
    scratch_destroy(&rig->scratch);
    free(rig->rows);
}

/* Layer by layer, in pieces, as a prompt and its steps come. */
static void append(const struct rig *rig, struct inputs *inputs, uint64_t first, uint64_t end, size_t piece) {
    for (size_t layer = 0; layer < LAYERS; layer++)
        for (uint64_t at = first; at < end; at += piece)
            inputs_append(inputs, layer, at, end - at < piece ? (size_t)(end - at) : piece,
                          row_of(rig, layer, at));
}

static void expect_rows(struct rig *rig, struct inputs *inputs, uint64_t chunks) {
    const size_t hidden = rig->options.shape.hidden_size;
    float *rows = malloc(KV_CHUNK_TOKENS * hidden * sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(inputs_chunks(inputs), chunks);
    for (size_t layer = 1; layer < LAYERS; layer++)
        for (uint64_t first = 0; first < chunks; first++) {
            const size_t count = chunks - first < READ_CHUNKS ? (size_t)(chunks - first) : READ_CHUNKS;
            assert_ok(inputs_read_begin(inputs, layer, first, count, &rig->error), rig->error);
            for (size_t i = count; i-- > 0;) { /* in any order */
                assert_ok(inputs_read_rows(inputs, i, rows, &rig->error), rig->error);
                assert_memory_equal(rows, row_of(rig, layer, (first + i) * KV_CHUNK_TOKENS),
                                    KV_CHUNK_TOKENS * hidden * sizeof *rows);
            }
            inputs_read_end(inputs);
        }
    assert_memory_equal(inputs_tokens(inputs), rig->tokens, chunks * KV_CHUNK_TOKENS * sizeof(int32_t));
    free(rows);
}

static void come_back(enum inputs_form form, size_t hidden) {
    struct rig rig;
    struct inputs *inputs;
    rig_open(&rig, form, hidden);
    assert_ok(inputs_create(&inputs, &rig.options, &rig.error), rig.error);
    append(&rig, inputs, 0, 100, 33);
    inputs_commit(inputs, rig.tokens, 100);
    append(&rig, inputs, 100, 170, 1);
    inputs_truncate(inputs, 150); /* a step that failed: its chunk is not full */
    append(&rig, inputs, 150, 170, 20);
    inputs_commit(inputs, rig.tokens, 170);
    assert_ok(inputs_flush(inputs, &rig.error), rig.error);
    expect_rows(&rig, inputs, 2); /* its own */
    inputs_close(inputs);
    /* Continued, from within a chunk. */
    assert_ok(inputs_open(&inputs, &rig.options, rig.tokens, 170, true, &rig.error), rig.error);
    assert_non_null(inputs);
    assert_true(inputs_keeps(inputs));
    append(&rig, inputs, 170, TOKENS, 64);
    inputs_commit(inputs, rig.tokens, TOKENS);
    assert_ok(inputs_flush(inputs, &rig.error), rig.error);
    inputs_close(inputs);
    assert_ok(inputs_open(&inputs, &rig.options, rig.tokens, TOKENS, false, &rig.error), rig.error);
    assert_non_null(inputs);
    assert_false(inputs_keeps(inputs));
    expect_rows(&rig, inputs, TOKENS / KV_CHUNK_TOKENS);
    inputs_close(inputs);
    /* Tokens that depart: what they have in common. */
    rig.tokens[200]++;
    assert_ok(inputs_open(&inputs, &rig.options, rig.tokens, TOKENS, true, &rig.error), rig.error);
    assert_non_null(inputs);
    assert_false(inputs_keeps(inputs));
    assert_int_equal(inputs_chunks(inputs), 200 / KV_CHUNK_TOKENS);
    inputs_close(inputs);
    rig.options.model.fingerprint[0]++; /* another model's */
    assert_ok(inputs_open(&inputs, &rig.options, rig.tokens, TOKENS, true, &rig.error), rig.error);
    assert_null(inputs);
    rig_close(&rig);
}

static void rows_come_back(void **state) {
    (void)state;
    come_back(INPUTS_F32, 48);
    come_back(INPUTS_Q8, 96);
    come_back(INPUTS_F32, 3072); /* several slices */
    come_back(INPUTS_Q8, 8192);
    come_back(INPUTS_F16, 8192);
}

/* A cut behind what was written, and a gap: what was committed stays, nothing more is kept. */
static void a_cut_ends_the_keeping(void **state) {
    (void)state;
    struct rig rig;
    struct inputs *inputs;
    rig_open(&rig, INPUTS_Q8, 64);
    for (size_t gap = 0; gap < 2; gap++) {
        rig.tokens[0]++;
        assert_ok(inputs_create(&inputs, &rig.options, &rig.error), rig.error);
        append(&rig, inputs, 0, 256, 64);
        inputs_commit(inputs, rig.tokens, 256);
        if (gap == 1)
            append(&rig, inputs, 260, 270, 10);
        else
            inputs_truncate(inputs, 130);
        assert_false(inputs_keeps(inputs));
        assert_ok(inputs_flush(inputs, &rig.error), rig.error);
        append(&rig, inputs, gap == 1 ? 256 : 130, TOKENS, 64);
        inputs_commit(inputs, rig.tokens, TOKENS);
        inputs_close(inputs);
        assert_ok(inputs_open(&inputs, &rig.options, rig.tokens, TOKENS, false, &rig.error), rig.error);
        assert_non_null(inputs);
        expect_rows(&rig, inputs, 4);
        inputs_close(inputs);
    }
    rig_close(&rig);
}

static void damage_is_found(void **state) {
    (void)state;
    struct rig rig;
    struct inputs *inputs;
    char path[256];
    uint8_t byte;
    float rows[KV_CHUNK_TOKENS * 64];
    rig_open(&rig, INPUTS_Q8, 64);
    assert_ok(inputs_create(&inputs, &rig.options, &rig.error), rig.error);
    append(&rig, inputs, 0, 256, 64);
    inputs_commit(inputs, rig.tokens, 256);
    assert_ok(inputs_flush(inputs, &rig.error), rig.error);
    inputs_close(inputs);
    assert_ok(store_verify(rig.store, 1, &rig.error), rig.error);
    snprintf(path, sizeof path, "%s/1.pages", rig.scratch.path);
    const int file = open(path, O_RDWR);
    const off_t end = lseek(file, 0, SEEK_END);
    assert_true(file >= 0);
    for (off_t page = 5; page < end; page += 4096) /* a bit of every page */
        if (pread(file, &byte, 1, page) == 1) {
            byte ^= 4;
            assert_int_equal(pwrite(file, &byte, 1, page), 1);
        }
    close(file);
    assert_ok(inputs_open(&inputs, &rig.options, rig.tokens, 256, false, &rig.error), rig.error);
    assert_non_null(inputs);
    assert_ok(inputs_read_begin(inputs, 2, 1, 2, &rig.error), rig.error);
    assert_int_equal(inputs_read_rows(inputs, 1, rows, &rig.error), STATUS_DOCUMENT);
    assert_non_null(strstr(rig.error.message, "found checksum"));
    inputs_refuse(inputs);
    assert_int_equal(inputs_chunks(inputs), 0);
    inputs_close(inputs);
    assert_ok(inputs_open(&inputs, &rig.options, rig.tokens, 256, false, &rig.error), rig.error);
    assert_null(inputs); /* flagged */
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_twice_is_rounding_once),  cmocka_unit_test(halves_come_back),
        cmocka_unit_test(what_is_not_finite_comes_back_so), cmocka_unit_test(rows_come_back),
        cmocka_unit_test(a_cut_ends_the_keeping),           cmocka_unit_test(damage_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
