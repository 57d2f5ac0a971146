/* What hash_learn learns is worth learning: on queries and keys with a structure it finds more of the true top tenth
 * of windows that it has not seen than random hyperplanes of as many bits do. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "device/device.h"
#include "device/host_span.h"
#include "lab/calibrate/hash_learn.h"
#include "tensor/half.h"

enum { DIMENSION = 64, GROUP = 2, WINDOW = 512, WINDOWS = 12, TRAIN_WINDOWS = 8, QUERIES = 32, TOPICS = 24 };

/* One layer with one KV head, whose keys and queries are written instead of computed. */
struct rig {
    struct device *device;
    struct model model; /* its configuration and device only */
    struct kernels kernels;
    struct samples samples;
    struct hash_head *head;
    struct random random;
    double turn[DIMENSION * DIMENSION]; /* orthonormal rows */
    double topics[TOPICS][DIMENSION];   /* in the turned basis */
};

/* Gram-Schmidt on normal rows. */
static void draw_turn(struct rig *rig) {
    for (size_t i = 0; i < DIMENSION; i++) {
        double *row = rig->turn + i * DIMENSION, square = 0;
        for (size_t d = 0; d < DIMENSION; d++) row[d] = random_normal(&rig->random);
        for (size_t j = 0; j < i; j++) {
            double product = 0;
            for (size_t d = 0; d < DIMENSION; d++) product += row[d] * rig->turn[j * DIMENSION + d];
            for (size_t d = 0; d < DIMENSION; d++) row[d] -= product * rig->turn[j * DIMENSION + d];
        }
        for (size_t d = 0; d < DIMENSION; d++) square += row[d] * row[d];
        for (size_t d = 0; d < DIMENSION; d++) row[d] /= sqrt(square);
    }
}

/* What tells keys apart for the queries lies in 16 directions of a basis that is none of the coordinates: a topic's
 * centre and noise.  In 16 others keys have three times as much of what no query asks for, and all of them the same
 * mean in one more: there random hyperplanes spend their bits. */
static void draw_vector(struct rig *rig, bool is_key, float *x) {
    const double *topic = rig->topics[random_below(&rig->random, TOPICS)];
    memset(x, 0, DIMENSION * sizeof *x);
    for (size_t i = 0; i < DIMENSION; i++) {
        double noise = (is_key ? 1 : 0.7) * random_normal(&rig->random), along = 0.2 * noise;
        if (i < 16)
            along = topic[i] + noise;
        else if (is_key && i < 32)
            along = 3 * noise;
        else if (is_key && i == 32)
            along = 3;
        for (size_t d = 0; d < DIMENSION; d++) x[d] += (float)(2 * along * rig->turn[i * DIMENSION + d]);
    }
}

static void write_keys(struct rig *rig, size_t window) {
    const struct kv_layout *layout = kv_cache_layout(rig->samples.cache);
    for (size_t token = 0; token < WINDOW; token++) {
        float key[DIMENSION];
        uint16_t halves[DIMENSION];
        uint8_t *chunk =
            span_memory(kv_sequence_chunk(rig->samples.sequences[window], 0, 0, token / KV_CHUNK_TOKENS));
        draw_vector(rig, true, key);
        for (size_t d = 0; d < DIMENSION; d++) halves[d] = float_to_half(key[d]);
        memcpy(chunk + (kv_k_row(layout, chunk, token % KV_CHUNK_TOKENS) - chunk), halves, sizeof halves);
    }
}

static void create_cache(struct rig *rig) {
    struct error error;
    struct kv_cache_config kv = {.layer_count = 1,
                                 .kv_head_count = 1,
                                 .k_dimension = DIMENSION,
                                 .v_dimension = DIMENSION,
                                 .k_type = KV_F16,
                                 .v_type = KV_F16,
                                 .token_capacity = WINDOWS * WINDOW,
                                 .sequence_capacity = WINDOWS};
    assert_ok(kv_cache_create(&rig->samples.cache, rig->device, &kv, &error), error);
    rig->samples.chunk = malloc(kv_cache_layout(rig->samples.cache)->chunk_bytes);
    assert_non_null(rig->samples.chunk);
    assert_ok(rig->device->operations->stream_create(rig->device, &rig->samples.stream, &error), error);
    for (size_t i = 0; i < WINDOWS; i++) {
        struct kv_sequence **sequence = &rig->samples.sequences[i];
        assert_ok(kv_sequence_create(sequence, rig->samples.cache, WINDOW, &error), error);
        assert_ok(kv_sequence_reserve(*sequence, WINDOW, &error), error);
        kv_sequence_set_length(*sequence, WINDOW);
    }
}

static struct rig *rig_create(uint64_t seed) {
    struct rig *rig = calloc(1, sizeof *rig);
    struct samples *s = &rig->samples;
    struct error error;
    assert_non_null(rig);
    struct device_options options = {.thread_count = 2, .mask = cpu_features()};
    assert_ok(device_cpu_create(&rig->device, &options, &error), error);
    rig->model = (struct model){.device = rig->device,
                                .config = {.layer_count = 1,
                                           .head_count = GROUP,
                                           .kv_head_count = 1,
                                           .k_dimension = DIMENSION,
                                           .v_dimension = DIMENSION,
                                           .attention_scale = 0.125f}};
    kernels_init(&rig->kernels, cpu_features());
    s->model = &rig->model;
    s->options = (struct samples_options){.window_size = WINDOW, .window_count = WINDOWS};
    s->query_count = QUERIES;
    s->positions = calloc(WINDOWS * QUERIES, sizeof *s->positions);
    s->queries = calloc(WINDOWS * QUERIES * GROUP, DIMENSION * sizeof *s->queries);
    s->sequences = calloc(WINDOWS, sizeof(struct kv_sequence *));
    assert_true(s->positions != NULL && s->queries != NULL && s->sequences != NULL);
    create_cache(rig);
    random_init(&rig->random, seed);
    draw_turn(rig);
    for (size_t i = 0; i < TOPICS * DIMENSION; i++)
        rig->topics[i / DIMENSION][i % DIMENSION] = random_normal(&rig->random);
    for (size_t window = 0; window < WINDOWS; window++) {
        write_keys(rig, window);
        for (size_t i = 0; i < QUERIES; i++)
            s->positions[window * QUERIES + i] = WINDOW / 2 + i * (WINDOW / 2 / QUERIES);
    }
    for (size_t i = 0; i < WINDOWS * QUERIES * GROUP; i++)
        draw_vector(rig, false, s->queries + i * DIMENSION);
    const struct hash_head_options pairs = {.query_count = 32, .keys_per_query = 64};
    assert_ok(hash_head_create(&rig->head, s, &rig->kernels, device_pool(rig->device), &pairs, &error),
              error);
    return rig;
}

static void rig_destroy(struct rig *rig) {
    hash_head_destroy(rig->head);
    samples_deinit(&rig->samples);
    device_destroy(rig->device);
    free(rig);
}

/* Adds the recalls of one learning to sums. */
static void learn_once(size_t bits, uint64_t seed, double *of_random, double *of_learned) {
    struct rig *rig = rig_create(seed);
    struct hash_learned learned;
    struct hash_caught caught;
    struct error error;
    uint16_t *weights = calloc(DIMENSION * bits, sizeof *weights);
    assert_non_null(weights);
    struct hash_learn_options how = {.training = hash_training_published(bits),
                                     .train_windows = TRAIN_WINDOWS,
                                     .keep = {.fraction = 0.1, .sinks = 4, .recent = 64}};
    how.training.epochs = 6, how.training.steps = 10;
    assert_ok(hash_learn(rig->head, &how, &rig->random, weights, &learned, &error), error);
    /* Recall is that of the weights handed out, in windows that nothing was learned from or chosen by. */
    assert_ok(hash_head_load(rig->head, 0, 0, TRAIN_WINDOWS, WINDOWS - TRAIN_WINDOWS, &error), error);
    assert_ok(hash_head_caught(rig->head, weights, bits, how.keep, &caught, &error), error);
    assert_true(fabs(caught.recall - learned.learned) < 1e-12);
    assert_true(learned.random > 2 * how.keep.fraction && learned.learned < 1);
    *of_random += learned.random;
    *of_learned += caught.recall;
    free(weights);
    rig_destroy(rig);
}

/* margin: some two thirds of what learning gains here. */
static void check_gain(size_t bits, double margin) {
    enum { SEEDS = 3 };
    double of_random = 0, of_learned = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) learn_once(bits, seed, &of_random, &of_learned);
    of_random /= SEEDS, of_learned /= SEEDS;
    print_message("%zu bits: random hyperplanes %.3f, learned %.3f\n", bits, of_random, of_learned);
    if (!(of_learned > of_random + margin))
        fail_msg("%zu bits: random hyperplanes %.3f, learned %.3f", bits, of_random, of_learned);
}

static void learning_beats_random_hyperplanes(void **state) {
    (void)state;
    check_gain(128, 0.035);
    check_gain(256, 0.025);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(learning_beats_random_hyperplanes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
