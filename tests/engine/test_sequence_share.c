/* Sequences in memory that begin with what another one has (sequence_share): bit for bit those that computed it
 * themselves, whoever is cut, goes on or ends first, with every selection, on a device with a queue too; and full
 * chunks are there once. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cache/kv_cache.h"
#include "device/queued_device.h"
#include "engine/decode_rig.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { TOKENS = 400, CONTEXT = 640, STEPS = 2, ROUNDS = 32, TAIL_MAX = 190 };

static const struct setting {
    const char *preset, *keep;
} settings[] = {{"full", NULL}, {"quest", "112"},   {"hata", "112"},       {"leoam", "112"},
                {"clo", "112"}, {"pqcache", "112"}, {"retroinfer", "112"}, {"infinigen", "112"}};

struct rig {
    struct random random;
    struct decode_rig on;
    struct engine *engine;
};

/* What a sequence was given. */
struct line {
    struct sequence *sequence;
    int32_t tokens[CONTEXT];
    size_t count;
};

static void prefill(struct rig *rig, struct line *line, size_t first) {
    const float *logits;
    const struct prefill_request request = {.tokens = line->tokens + first,
                                            .token_count = line->count - first};
    assert_ok(engine_prefill(rig->engine, line->sequence, &request, &logits, &rig->on.error), rig->on.error);
}

static void create(struct rig *rig, struct line *line) {
    assert_ok(sequence_create(&line->sequence, rig->engine, &rig->on.error), rig->on.error);
}

/* Other tokens than anybody else's. */
static void add_tail(struct rig *rig, struct line *line) {
    const size_t count = 1 + random_below(&rig->random, TAIL_MAX), first = line->count;
    for (size_t i = 0; i < count; i++)
        line->tokens[line->count++] = rig->on.tokens[random_below(&rig->random, TOKENS)];
    prefill(rig, line, first);
}

static void step(struct rig *rig, struct line *line, float *rows) {
    for (size_t i = 0; i < STEPS; i++) {
        const float *logits;
        const int32_t token = rig->on.tokens[i];
        assert_ok(engine_step(rig->engine, &line->sequence, &token, 1, &logits, &rig->on.error),
                  rig->on.error);
        memcpy(rows + i * rig->on.width, logits, rig->on.width * sizeof *rows);
        line->tokens[line->count++] = token;
    }
}

/* The next steps, of the sequence and of one that computes the same tokens itself. */
static void assert_as_alone(struct rig *rig, struct line *line) {
    const size_t size = STEPS * rig->on.width * sizeof(float);
    float *found = malloc(size), *expected = malloc(size);
    struct line alone = *line;
    create(rig, &alone);
    prefill(rig, &alone, 0);
    step(rig, &alone, expected);
    step(rig, line, found);
    assert_memory_equal(found, expected, size);
    sequence_destroy(alone.sequence);
    free(found);
    free(expected);
}

static uint64_t used_chunks(const struct rig *rig) {
    return engine_kv_used_bytes(rig->engine) / (engine_kv_bytes_per_token(rig->engine) * KV_CHUNK_TOKENS);
}

static void share(struct rig *rig, struct line *line, const struct line *source, size_t count) {
    const uint64_t before = used_chunks(rig);
    *line = (struct line){.count = count};
    memcpy(line->tokens, source->tokens, count * sizeof *line->tokens);
    create(rig, line);
    assert_ok(sequence_share(line->sequence, source->sequence, count, &rig->on.error), rig->on.error);
    assert_int_equal(used_chunks(rig), before + (count % KV_CHUNK_TOKENS != 0));
}

static void share_and_depart(struct rig *rig) {
    struct random *random = &rig->random;
    struct line first = {.count = random_between(random, 70, 230)}, second;
    memcpy(first.tokens, rig->on.tokens, first.count * sizeof *first.tokens);
    create(rig, &first);
    prefill(rig, &first, 0);
    share(rig, &second, &first, random_between(random, 1, first.count));
    struct line *const lines[] = {&first, &second};
    for (size_t i = 0; i < 2; i++) /* back into what both have */
        if (random_below(random, 2) == 0) {
            lines[i]->count = random_between(random, 1, lines[i]->count);
            sequence_truncate(lines[i]->sequence, lines[i]->count);
        }
    const size_t next = random_below(random, 2);
    for (size_t i = 0; i < 2; i++)
        if (random_below(random, 2) == 0) add_tail(rig, lines[i == 0 ? next : 1 - next]);
    assert_as_alone(rig, &first);
    assert_as_alone(rig, &second);
    sequence_destroy(lines[next]->sequence);
    add_tail(rig, lines[1 - next]);
    sequence_destroy(lines[1 - next]->sequence);
    assert_int_equal(used_chunks(rig), 0);
}

static void open_engine(struct rig *rig, const struct setting *setting) {
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = 3,
                        .batch_size = 96,
                        .k_type = KV_F16,
                        .v_type = KV_F16};
    assert_ok(plan_set_axes(&plan, setting->preset, NULL, setting->keep, &rig->on.error), rig->on.error);
    assert_ok(engine_create(&rig->engine, rig->on.model, &plan, NULL, &rig->on.error), rig->on.error);
    plan_deinit(&plan);
    assert_true(engine_shares(rig->engine));
}

static void run(struct rig *rig, struct device *device, const char *name) {
    decode_rig_open(&rig->on, name, "llama", device, TOKENS, 5);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        open_engine(rig, &settings[i]);
        for (size_t round = 0; round < ROUNDS / (sizeof settings / sizeof *settings); round++)
            share_and_depart(rig);
        engine_destroy(rig->engine);
    }
    decode_rig_close(&rig->on);
}

static void test_share(void **state) {
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    struct rig rig;
    (void)state;
    random_init(&rig.random, test_seed(61));
    run(&rig, NULL, "share");
    run(&rig, queued_device_create(&options, random_next(&rig.random)), "share-queued");
}

/* h2o counts the queries of a prompt: nobody can take over what others have. */
static void test_watched_prompts(void **state) {
    struct rig rig;
    (void)state;
    decode_rig_open(&rig.on, "share-h2o", "llama", NULL, TOKENS, 5);
    struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .k_type = KV_F16, .v_type = KV_F16};
    assert_ok(plan_set_axes(&plan, "h2o", NULL, "112", &rig.on.error), rig.on.error);
    assert_ok(engine_create(&rig.engine, rig.on.model, &plan, NULL, &rig.on.error), rig.on.error);
    assert_false(engine_shares(rig.engine));
    plan_deinit(&plan);
    engine_destroy(rig.engine);
    decode_rig_close(&rig.on);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_share), cmocka_unit_test(test_watched_prompts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
