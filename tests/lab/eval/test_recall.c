/* Attention mass and top rows caught, against sums done the long way over keys that the test keeps as numbers. */
#include "device/placed.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "lab/eval/recall.h"
#include "tensor/half.h"

enum { DIMENSION = 32, HEADS = 4, KV_HEADS = 2, ROWS = 150, CHUNKS = 3, PICKS = 40 };

struct scene {
    struct kv_layout layout;
    uint8_t *memory;
    void *chunks[KV_HEADS * CHUNKS];
    struct placed placed;
    struct kv_view view;
    double keys[KV_HEADS][ROWS][DIMENSION];
    float q[HEADS * DIMENSION];
    uint32_t rows[KV_HEADS][PICKS + 5];
};

static void put_half(uint8_t *place, float value) {
    uint16_t half = float_to_half(value);
    memcpy(place, &half, sizeof half);
}

/* Keys whose stored form is exact: multiples of 1/64 for halves, codes times a power of two for Q8. */
static void scene_init(struct scene *scene, enum kv_type type, uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    kv_layout_init(&scene->layout, type, KV_F16, DIMENSION, DIMENSION);
    scene->memory = calloc(KV_HEADS * CHUNKS, scene->layout.chunk_bytes);
    for (size_t c = 0; c < KV_HEADS * CHUNKS; c++)
        scene->chunks[c] = scene->memory + c * scene->layout.chunk_bytes;
    const struct addresses addresses = {.chunks = scene->chunks, .heads = KV_HEADS, .stride = CHUNKS};
    scene->view = placed_view(&scene->placed, &scene->layout, &addresses);
    for (size_t head = 0; head < KV_HEADS; head++)
        for (size_t row = 0; row < ROWS; row++) {
            void *chunk = scene->chunks[head * CHUNKS + row / KV_CHUNK_TOKENS];
            size_t token = row % KV_CHUNK_TOKENS;
            uint8_t *place = (uint8_t *)(uintptr_t)kv_k_row(&scene->layout, chunk, token);
            uint8_t *block = (uint8_t *)(uintptr_t)kv_block(&scene->layout, chunk, token);
            float scale = ldexpf(1, -5 - (int)(row % 3));
            if (type == KV_Q8) put_half(block + scene->layout.k_scales_offset + token % 8 * 2, scale);
            for (size_t i = 0; i < DIMENSION; i++) {
                int code = (int)random_below(&random, 255) - 127;
                float value = type == KV_Q8 ? scale * (float)code : (float)code / 64;
                scene->keys[head][row][i] = (double)value;
                if (type == KV_Q8)
                    place[i] = (uint8_t)(int8_t)code;
                else
                    put_half(place + 2 * i, value);
            }
        }
    for (size_t i = 0; i < HEADS * DIMENSION; i++) scene->q[i] = (float)random_normal(&random);
    for (size_t head = 0; head < KV_HEADS; head++)
        for (uint32_t i = 0; i < PICKS; i++)
            scene->rows[head][i] = i * 3 + (uint32_t)random_below(&random, 3);
}

static double score(const struct scene *scene, size_t head, size_t row) {
    double sum = 0;
    for (size_t i = 0; i < DIMENSION; i++)
        sum += (double)scene->q[head * DIMENSION + i] * scene->keys[head / (HEADS / KV_HEADS)][row][i];
    return sum * 0.125;
}

/* How many rows score higher: a row is among the n best when fewer than n do. */
static bool is_among(const struct scene *scene, size_t head, size_t row, size_t n) {
    size_t higher = 0;
    for (size_t other = 0; other < ROWS; other++)
        higher += score(scene, head, other) > score(scene, head, row);
    return higher < n;
}

static struct recall_cell sum_of(const struct recall *recall, size_t layer) {
    struct recall_cell sum = {0};
    for (size_t head = 0; head < HEADS; head++) recall_cell_add(&sum, recall_get(recall, layer, head));
    return sum;
}

static void open_device(struct device **device, struct stream **stream) {
    struct error error;
    assert_ok(device_cpu_create(device, &(struct device_options){.thread_count = 1}, &error), error);
    assert_ok((*device)->operations->stream_create(*device, stream, &error), error);
}

static void check(enum kv_type type) {
    struct scene *scene = calloc(1, sizeof *scene);
    scene_init(scene, type, 3 + (uint64_t)type);
    struct recall recall;
    struct error error;
    struct recall_shape shape = {2, HEADS, KV_HEADS, DIMENSION, 0.125F, 0};
    assert_ok(recall_create(&recall, &shape, 200, &error), error);
    struct device *device;
    struct stream *stream;
    open_device(&device, &stream);
    struct select_event step = {
        .device = device,
        .stream = stream,
        .layer_index = 1,
        .position = ROWS - 1,
        .q = scene->q,
        .view = scene->view,
        .lists = (const struct host_list[KV_HEADS]){{scene->rows[0], PICKS}, {scene->rows[1], PICKS - 3}}};
    recall_add(&recall, &step);
    recall_add(&recall, &step);
    double mass_min = 1;
    for (size_t head = 0; head < HEADS; head++) {
        const uint32_t *rows = scene->rows[head / (HEADS / KV_HEADS)];
        const size_t picks = step.lists[head / (HEADS / KV_HEADS)].count;
        double all = 0, caught = 0, top = 0;
        for (size_t row = 0; row < ROWS; row++) all += exp(score(scene, head, row));
        for (size_t i = 0; i < picks; i++) {
            caught += exp(score(scene, head, rows[i]));
            top += is_among(scene, head, rows[i], picks);
        }
        const struct recall_cell *cell = recall_get(&recall, 1, head);
        assert_int_equal(cell->count, 2);
        if (fabs(cell->mass / 2 - caught / all) > 1e-5) fail_msg("mass %f, %f", cell->mass / 2, caught / all);
        assert_true(caught / all > 0.01 && caught / all < 0.99); /* else the test says little */
        assert_true(fabs(cell->top / 2 - top / (double)picks) < 1e-12);
        assert_true(fabs(cell->kept / 2 - (double)picks / ROWS) < 1e-12);
        if (caught / all < mass_min) mass_min = caught / all;
        assert_int_equal(recall_get(&recall, 0, head)->count, 0);
    }
    struct recall_cell sum = sum_of(&recall, 1);
    assert_int_equal(sum.count, 2 * HEADS);
    assert_true(fabs(sum.mass_min - mass_min) < 1e-5);
    recall_reset(&recall);
    assert_int_equal(sum_of(&recall, 1).count, 0);
    recall_destroy(&recall);
    device->operations->stream_destroy(stream);
    device_destroy(device);
    placed_free(&scene->placed);
    free(scene->memory);
    free(scene);
}

static void halves(void **state) {
    (void)state;
    check(KV_F16);
}

static void bytes(void **state) {
    (void)state;
    check(KV_Q8);
}

/* Everything selected is everything caught. */
static void all_is_all(void **state) {
    (void)state;
    struct scene *scene = calloc(1, sizeof *scene);
    scene_init(scene, KV_F16, 9);
    uint32_t rows[30];
    for (uint32_t i = 0; i < 30; i++) rows[i] = i;
    struct recall recall;
    struct error error;
    struct recall_shape shape = {1, HEADS, KV_HEADS, DIMENSION, 0.125F, 0};
    assert_ok(recall_create(&recall, &shape, 30, &error), error);
    struct device *device;
    struct stream *stream;
    open_device(&device, &stream);
    recall_add(&recall,
               &(struct select_event){.device = device,
                                      .stream = stream,
                                      .position = 29,
                                      .q = scene->q,
                                      .view = scene->view,
                                      .lists = (const struct host_list[KV_HEADS]){{rows, 30}, {rows, 30}}});
    struct recall_cell sum = sum_of(&recall, 0);
    assert_true(fabs(sum.mass - HEADS) < 1e-9 && sum.top == HEADS && sum.kept == HEADS);
    recall_destroy(&recall);
    device->operations->stream_destroy(stream);
    device_destroy(device);
    placed_free(&scene->placed);
    free(scene->memory);
    free(scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(halves), cmocka_unit_test(bytes),
                                       cmocka_unit_test(all_is_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
