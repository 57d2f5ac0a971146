/* A graph on a card against the same operations launched one by one: the same bits in what may be read afterwards,
 * whatever of it is one node.  Drawn chains of norms, products and activations over a few buffers, so that what a node
 * would leave out is sometimes read later; and the one node of a feed-forward part, which must be there. */
#include <stdio.h>
#include <string.h>

#include "../host_span.h"
#include "../host_turns.h"
#include "device/cuda/images.h"
#include "seed.h"
#include "twin.h"

enum { BUFFERS = 5, COLUMNS = 64, OPERATIONS = 12, WEIGHTS = 4, ROUNDS = 16, LAUNCHES = 3 };

struct chain {
    struct twin *twin;
    struct twin_weight weights[WEIGHTS];
    struct twin_floats norm, buffers[BUFFERS], results[BUFFERS];
    struct {
        unsigned kind;
        size_t x, y, z, weight;
    } operations[OPERATIONS];
    size_t count, rows;
    bool is_read[BUFFERS]; /* at the end */
};

static size_t below(struct chain *c, size_t count) { return (size_t)random_below(&c->twin->random, count); }

static void chain_init(struct chain *c, struct twin *twin) {
    static const enum tensor_type types[] = {TENSOR_Q8_0, TENSOR_Q4_0, TENSOR_F16};
    *c = (struct chain){.twin = twin};
    const enum tensor_type type = types[below(c, 3)];
    for (size_t i = 0; i < WEIGHTS; i++)
        twin_weight_make(twin, &c->weights[i], i == 3 ? types[below(c, 3)] : type, COLUMNS, COLUMNS);
    c->rows = below(c, 2) == 0 ? 1 : 1 + below(c, 12);
    twin_floats_make(twin, &c->norm, MEMORY_DEVICE, COLUMNS, 1);
    for (size_t i = 0; i < BUFFERS; i++) {
        twin_floats_make(twin, &c->buffers[i], MEMORY_DEVICE, c->rows * COLUMNS, 1);
        twin_floats_make(twin, &c->results[i], MEMORY_SHARED, c->rows * COLUMNS, 1);
        c->is_read[i] = below(c, 2) == 0;
    }
    c->is_read[0] = true;
    c->count = OPERATIONS;
    for (size_t i = 0; i < OPERATIONS; i++) {
        c->operations[i].kind = (unsigned)below(c, 8);
        c->operations[i].weight = below(c, WEIGHTS);
        c->operations[i].x = below(c, BUFFERS);
        do c->operations[i].y = below(c, BUFFERS);
        while (c->operations[i].y == c->operations[i].x);
        do c->operations[i].z = below(c, BUFFERS);
        while (c->operations[i].z == c->operations[i].x || c->operations[i].z == c->operations[i].y);
    }
}

static void chain_deinit(struct chain *c) {
    for (size_t i = 0; i < WEIGHTS; i++) twin_weight_free(c->twin, &c->weights[i]);
    for (size_t i = 0; i < BUFFERS; i++) {
        twin_floats_free(c->twin, &c->buffers[i]);
        twin_floats_free(c->twin, &c->results[i]);
    }
    twin_floats_free(c->twin, &c->norm);
}

static struct span at(const struct twin_floats *floats) { return twin_span(floats, TWIN_CUDA); }

static void norm(const struct chain *c, struct span x, struct span y) {
    twin_operations(c->twin, TWIN_CUDA)
        ->norm(c->twin->stream[TWIN_CUDA], &(struct norm_operation){.kind = NORM_RMS,
                                                                    .x = x,
                                                                    .x_stride = COLUMNS,
                                                                    .row_count = c->rows,
                                                                    .segment_count = 1,
                                                                    .segment_size = COLUMNS,
                                                                    .w = at(&c->norm),
                                                                    .epsilon = 1e-5f,
                                                                    .y = y,
                                                                    .y_stride = COLUMNS});
}

static void products(const struct chain *c, struct span x, const struct weight *a, struct span y,
                     const struct weight *b, struct span z, bool accumulate) {
    twin_operations(c->twin, TWIN_CUDA)
        ->matmul(c->twin->stream[TWIN_CUDA], &(struct matmul_operation){.x = x,
                                                                        .x_stride = COLUMNS,
                                                                        .row_count = c->rows,
                                                                        .weight_count = b != NULL ? 2 : 1,
                                                                        .weights = {a, b},
                                                                        .y = {y, z},
                                                                        .y_stride = {COLUMNS, COLUMNS},
                                                                        .accumulate = accumulate});
}

static void activation(const struct chain *c, enum activation_kind kind, struct span gate, struct span up,
                       struct span y) {
    twin_operations(c->twin, TWIN_CUDA)
        ->activation(c->twin->stream[TWIN_CUDA], &(struct activation_operation){.kind = kind,
                                                                                .gate = gate,
                                                                                .up = up,
                                                                                .stride = COLUMNS,
                                                                                .row_count = c->rows,
                                                                                .count = COLUMNS,
                                                                                .y = y});
}

/* The shapes that a card knows come often, with spans that do not always fit. */
static void chain_put(const struct chain *c) {
    for (size_t i = 0; i < c->count; i++) {
        const struct span x = at(&c->buffers[c->operations[i].x]), y = at(&c->buffers[c->operations[i].y]),
                          z = at(&c->buffers[c->operations[i].z]);
        const struct weight *a = &c->weights[c->operations[i].weight].on[TWIN_CUDA],
                            *gate = &c->weights[0].on[TWIN_CUDA], *up = &c->weights[1].on[TWIN_CUDA];
        const struct span none = {.buffer = NULL};
        switch (c->operations[i].kind) {
        case 0: norm(c, x, y); break;
        case 1: products(c, x, a, y, NULL, none, false); break;
        case 2: activation(c, ACTIVATION_SILU_MULTIPLY, x, y, z); break;
        case 3:
            norm(c, x, y);
            products(c, y, a, z, NULL, none, false);
            break;
        case 4:
            norm(c, x, y);
            products(c, y, a, x, NULL, none, true);
            break;
        default: /* a feed-forward part: its inputs in y, gate in z, up in the next buffer */
            norm(c, x, y);
            for (size_t next = 0; next < BUFFERS; next++) {
                const struct span u = at(&c->buffers[next]);
                if (next == c->operations[i].x || next == c->operations[i].y || next == c->operations[i].z)
                    continue;
                products(c, y, gate, z, up, u, false);
                activation(c, ACTIVATION_SILU_MULTIPLY, z, u, z);
                products(c, z, a, x, NULL, none, true);
                break;
            }
        }
    }
    for (size_t i = 0; i < BUFFERS; i++)
        if (c->is_read[i]) norm(c, at(&c->buffers[i]), at(&c->results[i]));
}

static void buffers_reset(const struct chain *c) {
    for (size_t i = 0; i < BUFFERS; i++)
        twin_operations(c->twin, TWIN_CUDA)
            ->upload(c->twin->stream[TWIN_CUDA], at(&c->buffers[i]), c->buffers[i].before,
                     c->buffers[i].count * sizeof(float));
}

/* [BUFFERS][rows * COLUMNS] of what was read; the caller frees. */
static float *results_of(const struct chain *c) {
    const size_t floats = c->rows * COLUMNS;
    float *all = calloc(BUFFERS * floats, sizeof *all);
    struct error error;
    assert_non_null(all);
    assert_ok(twin_operations(c->twin, TWIN_CUDA)->stream_synchronize(c->twin->stream[TWIN_CUDA], &error),
              error);
    for (size_t i = 0; i < BUFFERS; i++)
        if (c->is_read[i]) memcpy(all + i * floats, span_host(at(&c->results[i])), floats * sizeof *all);
    return all;
}

static void chain_check(struct twin *twin, uint64_t *saved) {
    const struct device_operations *operations = twin_operations(twin, TWIN_CUDA);
    struct stream *stream = twin->stream[TWIN_CUDA];
    struct chain c;
    struct graph *graph = NULL;
    struct error error;
    chain_init(&c, twin);
    const size_t bytes = BUFFERS * c.rows * COLUMNS * sizeof(float);
    const uint64_t before = device_cuda_counts(twin->device[TWIN_CUDA]).launches;
    chain_put(&c);
    const uint64_t apart = device_cuda_counts(twin->device[TWIN_CUDA]).launches - before;
    float *expected = results_of(&c);
    assert_ok(operations->graph_begin(stream, &error), error);
    chain_put(&c);
    assert_ok(operations->graph_end(stream, &graph, &error), error);
    for (size_t i = 0; i < LAUNCHES; i++) {
        const uint64_t now = device_cuda_counts(twin->device[TWIN_CUDA]).launches;
        buffers_reset(&c);
        operations->graph_launch(stream, graph);
        float *found = results_of(&c);
        assert_memory_equal(found, expected, bytes);
        free(found);
        *saved += apart - (device_cuda_counts(twin->device[TWIN_CUDA]).launches - now);
    }
    operations->graph_destroy(graph);
    free(expected);
    chain_deinit(&c);
}

static void chains_have_the_bits_of_their_operations(void **state) {
    (void)state;
    uint64_t saved = 0;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        struct twin twin;
        if (!test_takes_next()) continue;
        char settings[60];
        snprintf(settings, sizeof settings, "seed=%llu,capability=%d",
                 (unsigned long long)(test_seed(88) + i), i % 2 ? 90 : 80);
        twin_open(&twin, FAKE_LIBRARY, settings, test_seed(88) + i);
        chain_check(&twin, &saved);
        twin_close(&twin);
    }
    assert_true(saved > 0); /* nodes that were several operations */
}

/* Turns, among replays that are changed, of a graph whose nodes stay; each is one node, and one look of the card. */
static void host_has_turns(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20; i++) {
        struct twin twin;
        struct host_turns turns, others;
        if (!test_takes_next()) continue;
        char settings[60];
        snprintf(settings, sizeof settings, "seed=%llu,capability=%d", (unsigned long long)(test_seed(89) + i),
                 i % 2 ? 90 : 80);
        twin_open(&twin, FAKE_LIBRARY, settings, test_seed(89) + i);
        struct device *device = twin.device[TWIN_CUDA];
        struct stream *stream = twin.stream[TWIN_CUDA];
        const struct device_operations *operations = device->operations;
        struct error error;
        host_turns_open(&turns, device, stream);
        host_turns_open(&others, device, stream); /* of the same stream */
        for (size_t round = 0; round < 4; round++) {
            const struct cuda_counts before = device_cuda_counts(device);
            if (round == 2) host_turns_capture(&turns);
            host_turns_launch(&others);
            if (round == 1) host_turns_check(&others);
            host_turns_launch(&turns);
            for (size_t k = 0; k < 8; k++) (void)operations->ticket_done(operations->ticket(stream));
            if (round != 1) assert_int_equal(turns.taken, 0);
            if (round == 3) assert_ok(operations->ticket_wait(operations->ticket(stream), &error), error);
            host_turns_check(&turns);
            host_turns_check(&others);
            const struct cuda_counts after = device_cuda_counts(device);
            assert_int_equal(after.waits - before.waits, 2 * TURNS);
            assert_int_equal(after.launches - before.launches, 2 * TURNS * 3);
            assert_int_equal(after.graph_changes - before.graph_changes, round == 2);
        }
        host_turns_close(&turns);
        host_turns_close(&others);
        twin_close(&twin);
    }
}

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(chains_have_the_bits_of_their_operations),
                                       cmocka_unit_test(host_has_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
