/* Lists that are kept over KV on disk: the answers are those of KV in RAM bit for bit at any budget, a head that hits
 * reads nothing once it holds its chunks, and what is held never takes more than there is. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "engine/decode_rig.h"
#include "engine/engine_internal.h"
#include "plan/persistent_heads.h"
#include "seed.h"

enum { LAYERS = DECODE_RIG_LAYERS, PROMPT = 2600, STEPS = 14, CONTEXT = 2688, SEQUENCES = 2 };

struct rig {
    struct decode_rig base;
    struct scratch scratch;
    struct plan plan;
    struct engine *engine;
    struct error error;
};

/* host_bytes 0: all KV in RAM. */
static void engine_open(struct rig *rig, const char *set, uint64_t host_bytes, size_t sequence_count) {
    rig->plan =
        (struct plan){.context_size = CONTEXT, .sequence_capacity = sequence_count, .batch_size = 256};
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    if (host_bytes != 0)
        assert_ok(plan_set_disk(&rig->plan, rig->scratch.path, strlen(rig->scratch.path), 0, &rig->error),
                  rig->error);
    assert_ok(plan_set_axes(&rig->plan, "clo", set, NULL, &rig->error), rig->error);
    rig->plan.host_bytes = host_bytes;
    assert_ok(engine_create(&rig->engine, rig->base.model, &rig->plan, NULL, &rig->error), rig->error);
}

static struct sequence *prompted(struct rig *rig, size_t token_count) {
    return decode_rig_prompt(&rig->base, rig->engine, token_count);
}

static const float *step(struct rig *rig, struct sequence *sequence) {
    const float *logits = decode_rig_step(&rig->base, rig->engine, sequence);
    assert_true(engine_tier_statistics(rig->engine).host_bytes <= rig->plan.host_bytes ||
                rig->plan.host_bytes == 0);
    return logits;
}

static void engine_close(struct rig *rig) {
    engine_destroy(rig->engine);
    plan_deinit(&rig->plan);
    scratch_destroy(&rig->scratch);
}

static uint64_t budget(struct rig *rig, const char *set, uint64_t kv_bytes, size_t sequence_count) {
    struct plan plan = {.context_size = CONTEXT, .sequence_capacity = sequence_count, .batch_size = 256};
    uint64_t bytes;
    assert_ok(plan_set_disk(&plan, "unused", 6, 0, &rig->error), rig->error);
    assert_ok(plan_set_axes(&plan, "clo", set, NULL, &rig->error), rig->error);
    assert_ok(plan_host_bytes_min(&plan, &rig->base.model->config, &bytes, &rig->error), rig->error);
    plan_deinit(&plan);
    return bytes + kv_bytes;
}

/* Bytes of K and V of all tokens of a sequence. */
static uint64_t kv_bytes(const struct rig *rig) {
    const struct model_config *config = &rig->base.model->config;
    return (uint64_t)CONTEXT * LAYERS * config->kv_head_count * (config->k_dimension + config->v_dimension) *
           2;
}

static int rig_open(void **state) {
    static struct rig rig;
    decode_rig_open(&rig.base, "reuse_tiers", "llama", NULL, PROMPT + STEPS, 11);
    *state = &rig;
    return 0;
}

static int rig_close(void **state) {
    struct rig *rig = *state;
    decode_rig_close(&rig->base);
    return 0;
}

/* Logits of every step; the caller frees.  fails: steps fail for lack of memory in between, and are tried again. */
static float *decode_failing(struct rig *rig, bool fails, struct select_statistics *statistics) {
    float *all = calloc(STEPS * rig->base.width, sizeof *all);
    struct sequence *sequence = prompted(rig, PROMPT);
    attention_reset_statistics(engine_attention(rig->engine));
    for (size_t i = 0; i < STEPS; i++) {
        if (fails && i % 3 == 1) /* what engine_run_batch does then */
            kv_sequence_set_length(sequence_kv(sequence), sequence_length(sequence));
        memcpy(all + i * rig->base.width, step(rig, sequence), rig->base.width * sizeof *all);
    }
    *statistics = attention_statistics(engine_attention(rig->engine));
    sequence_destroy(sequence);
    return all;
}

static float *decode(struct rig *rig, struct select_statistics *statistics) {
    return decode_failing(rig, false, statistics);
}

static void tiers_change_nothing(void **state) {
    struct rig *rig = *state;
    static const char *const sets[] = {"dense=0,reused=0,labels=speculated",
                                       "dense=0,reused=0,labels=speculated,eta=0.3,power=0,age=5",
                                       "dense=0,reused=0",
                                       "dense=1,reused=0,labels=speculated,eta=-1,age=3,page=16",
                                       "dense=0",
                                       "dense=0,reused=0,loss=0.1",
                                       "dense=0,reused=0,place=persistent",
                                       "dense=0,reused=0,labels=speculated,place=persistent"};
    struct random random;
    random_init(&random, test_seed(23));
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct select_statistics in_ram, found;
        if (!test_takes_next()) continue;
        engine_open(rig, sets[i], 0, 1);
        float *expected = decode(rig, &in_ram);
        engine_close(rig);
        assert_true(in_ram.reuse.hits > 0 && in_ram.reuse.misses > 0);
        for (size_t round = 0; round < 3; round++) {
            const uint64_t more = round == 0 ? 0 : random_below(&random, kv_bytes(rig));
            engine_open(rig, sets[i], budget(rig, sets[i], more, 1), 1);
            float *logits = decode_failing(rig, round == 1, &found);
            if (memcmp(logits, expected, STEPS * rig->base.width * sizeof *logits) != 0)
                fail_msg("--set %s with %llu bytes more than the least: other logits", sets[i],
                         (unsigned long long)more);
            assert_int_equal(found.reuse.hits, in_ram.reuse.hits);
            assert_int_equal(found.reuse.misses, in_ram.reuse.misses);
            assert_int_equal(found.kept, in_ram.kept);
            free(logits);
            engine_close(rig);
        }
        free(expected);
    }
}

/* With this epsilon every head is hard to reuse.  They stay as the budget holds them, and with them the first layer:
 * nothing of theirs is read after the prompt.  Others are, and the answers are those in RAM. */
static void hard_heads_stay(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char set[] = "dense=0,reused=0,epsilon=2,place=persistent,speculate=none,page=16";
    const size_t layer = rig->base.model->config.kv_head_count, hard = (LAYERS - 1) * layer;
    struct kv_tier_statistics last;
    struct select_statistics in_ram, found;
    engine_open(rig, set, 0, 1);
    float *expected = decode(rig, &in_ram);
    assert_int_equal(engine_hard_heads(rig->engine), hard);
    assert_int_equal(in_ram.reuse.hits, 0);
    engine_close(rig);
    for (size_t round = 0; round < 3; round++) {
        engine_open(rig, set, budget(rig, set, round * kv_bytes(rig) * 2 / 3, 1), 1);
        float *logits = decode(rig, &found);
        assert_memory_equal(logits, expected, STEPS * rig->base.width * sizeof *logits);
        last = engine_tier_statistics(rig->engine);
        assert_int_equal(last.resident_layers, round > 0);
        assert_int_equal(last.resident_heads, round == 0   ? 0
                                              : round == 1 ? LAYERS * layer * 2 / 3 - layer
                                                           : hard);
        assert_int_equal(last.resident_read_pages, 0);
        assert_true(round > 1 || last.read_pages > 0);
        free(logits);
        engine_close(rig);
    }
    struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1};
    assert_int_equal(plan_set_axes(&plan, "hata", "place=persistent", NULL, &rig->error), STATUS_USAGE);
    free(expected);
}

/* Eq. 12's time is that of a step at the whole context: a choice among all of its tokens but the window, and attention
 * to the longest lists. */
static void time_is_of_the_whole_context(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char set[] = "dense=0,reused=0,epsilon=2,place=persistent";
    engine_open(rig, set, budget(rig, set, kv_bytes(rig) / 2, 1), 1);
    const struct persistent_times *times = &rig->engine->persistent_times;
    const struct select_options *options = select_get_options(engine_select(rig->engine));
    const size_t heads = rig->base.model->config.kv_head_count;
    assert_int_equal(times->evaluated, heads * (CONTEXT - options->sinks - options->recent));
    assert_int_equal(times->chunks,
                     heads * kv_chunks_of(select_kept_tokens(engine_select(rig->engine), CONTEXT - 1)));
    assert_true(times->layer > 0 && times->choose > 0 && times->attend > 0 && times->thread_count > 0);
    engine_close(rig);
    engine_open(rig, set, 0, 1); /* nothing is read */
    assert_int_equal(rig->engine->persistent_times.evaluated, 0);
    engine_close(rig);
}

/* Heads are chosen before RAM is divided: where none is hard to reuse lists have the buffers that they have without
 * place=persistent; where some are, they stay beside the buffers of all others, and have none themselves. */
static void hard_heads_leave_lists_their_buffers(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char *const sets[] = {"dense=0,reused=0,resident=1,speculate=none",
                                       "dense=0,reused=0,speculate=none,epsilon=-2,place=persistent",
                                       "dense=0,reused=0,speculate=none,epsilon=2,place=persistent"};
    const size_t others = (LAYERS - 1) * rig->base.model->config.kv_head_count;
    struct select_statistics in_ram, found;
    size_t buffers[3][2];
    for (size_t i = 0; i < 3; i++) {
        engine_open(rig, sets[i], 0, 1);
        float *expected = decode(rig, &in_ram);
        engine_close(rig);
        for (size_t large = 0; large < 2; large++) {
            const uint64_t more = large ? kv_bytes(rig) * 3 / 4 : kv_bytes(rig) / 16;
            engine_open(rig, sets[i], budget(rig, sets[i], more, 1), 1);
            float *logits = decode(rig, &found);
            assert_memory_equal(logits, expected, STEPS * rig->base.width * sizeof *logits);
            const struct kv_tier_statistics tier = engine_tier_statistics(rig->engine);
            buffers[i][large] = attention_list_buffer_counts(engine_attention(rig->engine)).heads;
            assert_int_equal(tier.resident_read_pages, 0);
            if (i < 2 || !large) assert_int_equal(tier.resident_heads, 0);
            if (i == 2 && large) {
                assert_true(tier.resident_heads > 1 && tier.resident_heads < others);
                assert_int_equal(buffers[i][large], others - tier.resident_heads);
            }
            free(logits);
            engine_close(rig);
        }
        free(expected);
    }
    assert_true(buffers[0][0] > 1 && buffers[0][0] < others && buffers[0][1] == others);
    for (size_t i = 1; i < 3; i++) assert_int_equal(buffers[i][0], buffers[0][0]);
    assert_int_equal(buffers[1][1], others);
}

/* CLO, 4.2: heads that persist are chosen by the layer's own queries, whatever the others look up and choose by.  If
 * all are hard, that is the step without reuse. */
static void hard_heads_choose_by_their_own_queries(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char *const sets[] = {"dense=0,reused=0,eta=1.1",
                                       "dense=0,reused=0,labels=speculated,epsilon=2,place=persistent",
                                       "dense=0,reused=0,labels=speculated,epsilon=0.9,place=persistent",
                                       "dense=0,reused=0,labels=speculated"};
    float *logits[4];
    struct select_statistics found[4];
    for (size_t i = 0; i < 4; i++) {
        engine_open(rig, sets[i], 0, 1);
        logits[i] = decode(rig, &found[i]);
        engine_close(rig);
    }
    const size_t size = STEPS * rig->base.width * sizeof *logits[0];
    assert_memory_equal(logits[1], logits[0], size);
    assert_int_equal(found[1].reuse.hits, 0);
    assert_true(found[2].reuse.hits > 0 && found[2].reuse.hits < found[3].reuse.hits);
    assert_memory_not_equal(logits[2], logits[0], size);
    assert_memory_not_equal(logits[2], logits[3], size);
    for (size_t i = 0; i < 4; i++) free(logits[i]);
}

/* With equal queries lists are chosen once.  With slots for twice their chunks the following steps read nothing; with
 * the least budget nothing can be held. */
static void hits_read_nothing(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char set[] = "dense=0,reused=0,labels=speculated,eta=-1,power=0,resident=0,list_buffer=0";
    for (size_t round = 0; round < 2; round++) {
        engine_open(rig, set, budget(rig, set, round == 0 ? 2 * kv_bytes(rig) : 0, 1), 1);
        struct sequence *sequence = prompted(rig, PROMPT);
        assert_ok(sequence_flush(sequence, &rig->error), rig->error);
        step(rig, sequence);
        step(rig, sequence);
        const struct kv_tier_statistics first = engine_tier_statistics(rig->engine);
        assert_true(round == 0 ? first.held > 0 : first.held == 0);
        for (size_t i = 2; i < STEPS; i++) step(rig, sequence);
        const struct kv_tier_statistics last = engine_tier_statistics(rig->engine);
        if (round == 0) assert_int_equal(last.read_pages, first.read_pages);
        if (round == 1) assert_true(last.read_pages > first.read_pages);
        sequence_destroy(sequence);
        assert_int_equal(engine_tier_statistics(rig->engine).held, 0);
        engine_close(rig);
    }
}

/* The same with buffers: a quarter of the KV is more than the lists' rows, and nothing is held.  A hit copies the
 * newest row and no other. */
static void hits_copy_one_row(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char set[] = "dense=0,reused=0,eta=-1,power=0,resident=0";
    engine_open(rig, set, budget(rig, set, kv_bytes(rig) / 4, 1), 1);
    struct sequence *sequence = prompted(rig, PROMPT);
    assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    step(rig, sequence);
    const size_t heads = LAYERS * rig->base.model->config.kv_head_count;
    assert_int_equal(attention_list_buffer_counts(engine_attention(rig->engine)).heads, heads);
    attention_reset_statistics(engine_attention(rig->engine));
    const struct kv_tier_statistics first = engine_tier_statistics(rig->engine);
    for (size_t i = 1; i < STEPS; i++) step(rig, sequence);
    const struct kv_tier_statistics last = engine_tier_statistics(rig->engine);
    const struct list_buffer_counts lists = attention_list_buffer_counts(engine_attention(rig->engine));
    const struct select_statistics found = attention_statistics(engine_attention(rig->engine));
    assert_int_equal(found.reuse.misses, 0);
    assert_int_equal(lists.copied, (STEPS - 1) * heads);
    assert_int_equal(lists.kept + lists.copied, found.reuse.rows);
    assert_int_equal(last.read_pages, first.read_pages);
    assert_int_equal(last.held, 0);
    sequence_destroy(sequence);
    engine_close(rig);
    static const char *const none[] = {set,
                                       "dense=0,page=16,resident=0"}; /* RAM holds it all; pieces are long */
    for (size_t i = 0; i < 2; i++) {
        engine_open(rig, none[i], budget(rig, none[i], i == 0 ? 2 * kv_bytes(rig) : kv_bytes(rig) / 4, 1), 1);
        assert_int_equal(attention_list_buffer_counts(engine_attention(rig->engine)).heads, 0);
        engine_close(rig);
    }
}

/* Labels of a layer's own queries: what is expected of the next layer decides nothing, and heads that will take their
 * lists are not prefetched for.  Where every query is alike that is all of them. */
static void hits_are_not_prefetched(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char *const sets[2] = {"dense=0,reused=0,eta=-1,power=0,resident=0,list_buffer=0",
                                        "dense=0,reused=0,eta=1,power=0,resident=0,list_buffer=0"};
    for (size_t round = 0; round < 2; round++) {
        engine_open(rig, sets[round], budget(rig, sets[round], kv_bytes(rig) / 4, 1), 1);
        struct sequence *sequence = prompted(rig, PROMPT);
        assert_ok(sequence_flush(sequence, &rig->error), rig->error);
        for (size_t i = 0; i < 2; i++) step(rig, sequence);
        const struct kv_tier_statistics first = engine_tier_statistics(rig->engine);
        attention_reset_statistics(engine_attention(rig->engine));
        for (size_t i = 2; i < STEPS; i++) step(rig, sequence);
        const struct kv_tier_statistics last = engine_tier_statistics(rig->engine);
        const struct reuse_counts reuse = attention_statistics(engine_attention(rig->engine)).reuse;
        print_message("%llu lists reused, %llu chunks prefetched\n", (unsigned long long)reuse.hits,
                      (unsigned long long)(last.prefetched - first.prefetched));
        assert_true(round == 0 ? reuse.misses == 0 : reuse.misses > 0);
        if (round == 0) /* sinks and windows, at most once each */
            assert_true(last.prefetched - first.prefetched <= 2 * reuse.hits);
        else
            assert_true(last.prefetched - first.prefetched > 2 * (reuse.hits + reuse.misses));
        sequence_destroy(sequence);
        engine_close(rig);
    }
}

/* Chunks that one sequence holds are released when another needs the slots, and by a cut. */
static void what_is_held_gives_way(void **state) {
    test_skip_part();
    struct rig *rig = *state;
    static const char set[] = "dense=0,reused=0,labels=speculated,eta=-1,power=0,resident=0,list_buffer=0";
    engine_open(rig, set, budget(rig, set, kv_bytes(rig), SEQUENCES), SEQUENCES);
    struct sequence *first = prompted(rig, PROMPT - 8);
    assert_ok(sequence_flush(first, &rig->error), rig->error);
    for (size_t i = 0; i < 4; i++) step(rig, first);
    assert_true(engine_tier_statistics(rig->engine).held > 0);
    struct sequence *second = prompted(rig, PROMPT);
    step(rig, second);
    step(rig, first);
    assert_true(engine_tier_statistics(rig->engine).held > 0);
    sequence_truncate(first, PROMPT / 2); /* chunks of which some are held */
    for (size_t i = 0; i < 4; i++) step(rig, first);
    sequence_destroy(first);
    step(rig, second);
    sequence_destroy(second);
    assert_int_equal(engine_tier_statistics(rig->engine).held, 0);
    engine_close(rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_change_nothing),
        cmocka_unit_test(hard_heads_stay),
        cmocka_unit_test(time_is_of_the_whole_context),
        cmocka_unit_test(hard_heads_leave_lists_their_buffers),
        cmocka_unit_test(hard_heads_choose_by_their_own_queries),
        cmocka_unit_test(hits_read_nothing),
        cmocka_unit_test(hits_copy_one_row),
        cmocka_unit_test(hits_are_not_prefetched),
        cmocka_unit_test(what_is_held_gives_way),
    };
    return cmocka_run_group_tests(tests, rig_open, rig_close);
}
