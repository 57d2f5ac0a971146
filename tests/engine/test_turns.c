/* A step above a disk that is a graph, in which the host has its turns, has the bits of K and V in RAM: on the cpu
 * device and on one with a queue, whose orders LOAM_TEST_SEED draws as it does models and histories.  Both are given
 * plans of a device with memory of its own, with slots for units and without. */
#include "testing.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../platform/scratch.h"
#include "base/checked.h"
#include "base/random.h"
#include "device/queued_device.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "platform/io_file.h"
#include "seed.h"

enum { SEQUENCES = 3, CONTEXT = 512, ROUNDS = 12, DEVICE_BYTES = 1 << 28 };
enum which { TURNS, PLAIN, ENGINES };

struct setting {
    const char *preset, *set, *keep;
    size_t unit_bytes, more_bytes; /* slots; RAM beyond the least */
    size_t layer_count;            /* of a model of llama's; 0: the model is drawn */
    bool has_no_turns;             /* its steps are not graphs */
};
#define CODES(dense) "planes=1,page=8,sinks=8,recent=16,dense=" dense
#define KEEPS(dense, eta) CODES(dense) ",age=5,reused=0,power=0,eta=" eta
#define PAGES_OF(sixteenths)                                                   \
    "select=hash,planes=1,page=64,sinks=8,recent=16,units_min=1,group=softmax," \
    "codec=dynamic,quantized=" sixteenths
#define PAGES PAGES_OF("16")
enum { AHEAD_WITH_SLOTS = 5, KEEPS_FIRST = 6, KEEPS_END = 10, PAGES_SETTING = 10, IN_4_BITS = 11 };
static const struct setting settings[] = {
    {"hata", CODES("0"), "64", 1 << 20, 64 << 10, 0, false},
    {"hata", CODES("1"), "64", 96 << 10, 128 << 10, 0, false}, /* few slots */
    {"hata", CODES("0"), "96", 0, 64 << 10, 0, false},
    {"meanstd", "page=16,sinks=16,recent=16,dense=0", "80", 1 << 20, 1 << 20, 0, false},
    {"hata", CODES("0") ",speculate=next-layer", "120", 0, 0, 4, false},
    {"hata", CODES("0") ",speculate=next-layer", "120", 200 << 10, 0, 4, false},
    /* Lists are kept, with reads a layer ahead; and without; some heads choose anew. */
    {"clo", KEEPS("0", "0.2"), "64", 1 << 20, 64 << 10, 4, false},
    {"clo", KEEPS("1", "0.2"), "64", 96 << 10, 256 << 10, 4, false},
    {"clo", KEEPS("0", "0.4") ",speculate=none", "96", 0, 64 << 10, 3, false},
    {"clo", KEEPS("0", "0.2") ",place=persistent,epsilon=0.9", "64", 128 << 10, 128 << 10, 4, false},
    {"leoam", PAGES, "100", 0, 0, 4, false}, /* reads a layer ahead as well */
    /* Slots for chunks in 4 bits: many; few, beside those of rows; with reads a layer ahead; where units of 8 are
     * chosen, of which all chunks are in 4 bits. */
    {"leoam", PAGES ",speculate=none", "200", 1 << 20, 64 << 10, 4, false},
    {"leoam", PAGES_OF("8") ",speculate=none", "200", 200 << 10, 64 << 10, 4, false},
    {"leoam", PAGES, "200", 160 << 10, 0, 4, false},
    {"hata", CODES("0") ",codec=q4", "96", 160 << 10, 64 << 10, 4, false}};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

struct rig {
    struct random random;
    struct device *device[ENGINES];
    struct model *model[ENGINES];
    struct engine *engine[ENGINES];
    struct sequence *sequences[ENGINES][SEQUENCES]; /* NULL: not there */
    int32_t tokens[SEQUENCES][CONTEXT];
    struct scratch scratch[ENGINES];
    struct plan plan[ENGINES];
    size_t width;
    struct error error;
};

struct met {
    uint64_t launches, hits, misses, read_pages, fetched, reused, prefetched, prefetch_hits;
    struct select_statistics chosen; /* of the last history */
    uint64_t chunk_hits, chunk_misses, chunk_direct; /* chunks */
};

static bool is_in_4_bits(const struct setting *setting) { return strstr(setting->set, "codec=") != NULL; }

static void plan_open(struct rig *rig, const struct setting *setting, size_t i, bool on_disk) {
    struct plan *plan = &rig->plan[i];
    *plan = (struct plan){
        .context_size = CONTEXT, .sequence_capacity = SEQUENCES, .batch_size = 96, .k_type = KV_F16, .v_type = KV_F16};
    scratch_create(&rig->scratch[i], SCRATCH_MEMORY);
    const char *const folder = rig->scratch[i].path;
    if (on_disk) assert_ok(plan_set_disk(plan, folder, strlen(folder), 0, &rig->error), rig->error);
    assert_ok(plan_set_axes(plan, setting->preset, setting->set, setting->keep, &rig->error), rig->error);
    if (i == TURNS && !setting->has_no_turns) plan->device_bytes = DEVICE_BYTES;
    if (!on_disk) return;
    assert_ok(plan_host_bytes_min(plan, &rig->model[i]->config, &plan->host_bytes, &rig->error), rig->error);
    plan->host_bytes += i == TURNS ? setting->more_bytes : 1 << 24;
    if (i == TURNS && !setting->has_no_turns) plan->unit_bytes = setting->unit_bytes;
}

static void rig_open(struct rig *rig, uint64_t seed, bool queued, const struct setting *setting,
                     const struct io_faults *faults) {
    const struct device_options machine = {.thread_count = 1 + seed % 2, .mask = cpu_default()};
    const struct engine_options options = {.io_faults = faults};
    *rig = (struct rig){.width = 0};
    random_init(&rig->random, seed);
    struct tiny_model tiny = tiny_model_random(&rig->random, tiny_families, TINY_FAMILIES - 1);
    const bool in_4_bits = is_in_4_bits(setting);
    if (setting->layer_count > 0) tiny = tiny_model_default("llama");
    tiny.head_dimension = 32;
    tiny.input_size = 0;
    const bool must_slide = strcmp(tiny.family, "gpt-oss") == 0 || strcmp(tiny.family, "gemma4") == 0 ||
                            strcmp(tiny.family, "cohere2") == 0;
    tiny.layer_count = must_slide ? 4 : max_size(tiny.layer_count, 3);
    if (setting->layer_count > 0) tiny.layer_count = setting->layer_count;
    rig->width = tiny.vocabulary_size;
    assert_ok(device_cpu_create(&rig->device[PLAIN], &machine, &rig->error), rig->error);
    if (queued)
        rig->device[TURNS] = queued_device_create(&machine, seed);
    else
        assert_ok(device_cpu_create(&rig->device[TURNS], &machine, &rig->error), rig->error);
    for (size_t i = 0; i < ENGINES; i++) {
        tiny_model_load_on(&tiny, "turns", rig->device[i], &rig->model[i]);
        plan_open(rig, setting, i, i == TURNS || in_4_bits);
        const struct engine_options *own = i == TURNS ? &options : NULL;
        assert_ok(engine_create(&rig->engine[i], rig->model[i], &rig->plan[i], own, &rig->error),
                  rig->error);
    }
}

static void rig_close(struct rig *rig) {
    for (size_t i = 0; i < ENGINES; i++) {
        for (size_t s = 0; s < SEQUENCES; s++)
            if (rig->sequences[i][s] != NULL) sequence_destroy(rig->sequences[i][s]);
        engine_destroy(rig->engine[i]);
        model_destroy(rig->model[i]);
        device_destroy(rig->device[i]);
        plan_deinit(&rig->plan[i]);
        scratch_destroy(&rig->scratch[i]);
    }
}

/* ---- a history ---- */

/* It begins, or begins again with what was saved of it. */
static void prompt(struct rig *rig, size_t s, size_t count) {
    for (size_t i = 0; i < ENGINES; i++) {
        const struct prefill_request request = {.tokens = rig->tokens[s], .token_count = count};
        assert_ok(sequence_create(&rig->sequences[i][s], rig->engine[i], &rig->error), rig->error);
        assert_ok(engine_prefill(rig->engine[i], rig->sequences[i][s], &request, NULL, &rig->error), rig->error);
    }
}

static void leave(struct rig *rig, size_t s, bool saves) {
    for (size_t i = 0; i < ENGINES; i++) {
        if (saves && rig->plan[i].disk_directory != NULL)
            assert_ok(sequence_save(rig->sequences[i][s], &rig->error), rig->error);
        assert_ok(sequence_flush(rig->sequences[i][s], &rig->error), rig->error);
        sequence_destroy(rig->sequences[i][s]);
        rig->sequences[i][s] = NULL;
    }
}

static void come(struct rig *rig, size_t s, size_t count) {
    for (size_t i = 0; i < CONTEXT; i++) rig->tokens[s][i] = (int32_t)random_below(&rig->random, rig->width);
    prompt(rig, s, count);
}

static void come_or_go(struct rig *rig, size_t s, struct met *met) {
    const uint64_t what = random_below(&rig->random, 8);
    if (rig->sequences[TURNS][s] == NULL) {
        come(rig, s, random_between(&rig->random, 200, 440));
        return;
    }
    const uint64_t length = sequence_length(rig->sequences[TURNS][s]);
    if (what < 2 && length > 140) { /* cut back */
        const uint64_t left = random_between(&rig->random, 130, length - 1);
        for (size_t i = 0; i < ENGINES; i++)
            if (!sequence_cuts_at(rig->sequences[i][s], left)) return;
        for (size_t i = 0; i < ENGINES; i++) sequence_truncate(rig->sequences[i][s], left);
    } else if (what == 2) {
        leave(rig, s, false);
    } else if (what == 3 && length + 10 < CONTEXT) { /* saved, and opened again */
        leave(rig, s, true);
        prompt(rig, s, (size_t)length + 1);
        met->reused += sequence_reused_tokens(rig->sequences[TURNS][s]);
    }
}

static void step(struct rig *rig, bool queued, const size_t *which, size_t count) {
    struct sequence *members[ENGINES][SEQUENCES];
    const size_t bytes = count * rig->width * sizeof(float);
    const float *logits;
    float *expected = malloc(bytes);
    int32_t tokens[SEQUENCES];
    assert_non_null(expected);
    for (size_t n = 0; n < count; n++) {
        for (size_t i = 0; i < ENGINES; i++) members[i][n] = rig->sequences[i][which[n]];
        tokens[n] = rig->tokens[which[n]][sequence_length(members[TURNS][n])];
    }
    assert_ok(engine_step(rig->engine[PLAIN], members[PLAIN], tokens, count, &logits, &rig->error), rig->error);
    memcpy(expected, logits, bytes);
    const struct step_graph_counts before = engine_step_graph_counts(rig->engine[TURNS]);
    const uint64_t written = engine_tier_statistics(rig->engine[TURNS]).write_bytes,
                   waits = queued ? queued_device_counts(rig->device[TURNS]).waits : 0;
    assert_ok(engine_step(rig->engine[TURNS], members[TURNS], tokens, count, &logits, &rig->error), rig->error);
    assert_memory_equal(logits, expected, bytes);
    free(expected);
    /* The host waits for the logits, and for nothing else but what is written, and where lists have moved. */
    const struct step_graph_counts after = engine_step_graph_counts(rig->engine[TURNS]);
    if (queued && after.launches > before.launches && after.again == before.again && after.changes == before.changes &&
        engine_tier_statistics(rig->engine[TURNS]).write_bytes == written)
        assert_int_equal(queued_device_counts(rig->device[TURNS]).waits, waits + 1);
}

static void steps(struct rig *rig, bool queued) {
    size_t count = 0, which[SEQUENCES];
    const size_t times = random_between(&rig->random, 1, 5);
    for (size_t s = 0; s < SEQUENCES; s++) {
        if (rig->sequences[TURNS][s] == NULL || random_below(&rig->random, 3) == 0) continue;
        if (sequence_length(rig->sequences[TURNS][s]) + times <= CONTEXT) which[count++] = s;
    }
    for (size_t t = 0; t < times && count > 0; t++) step(rig, queued, which, count);
}

/* What was chosen is counted once, also of a step that was run again. */
static void statistics_compare(struct rig *rig) {
    const struct select_statistics found = attention_statistics(engine_attention(rig->engine[TURNS])),
                                   expected = attention_statistics(engine_attention(rig->engine[PLAIN]));
    assert_int_equal(found.kept, expected.kept);
    assert_int_equal(found.visible, expected.visible);
    assert_int_equal(found.evaluated, expected.evaluated);
    assert_int_equal(found.reuse.hits, expected.reuse.hits);
    assert_int_equal(found.reuse.misses, expected.reuse.misses);
    assert_int_equal(found.reuse.rows, expected.reuse.rows);
    assert_int_equal(found.reuse.age_sum, expected.reuse.age_sum);
    assert_int_equal(found.reuse.age_max, expected.reuse.age_max);
    assert_met(found.kept < found.visible && found.lists_read > 0);
}

static void history(uint64_t seed, bool queued, const struct setting *setting, struct met *met) {
    struct rig rig;
    struct fetch_counts units;
    rig_open(&rig, seed, queued, setting, NULL);
    for (size_t round = 0; round < ROUNDS; round++) {
        come_or_go(&rig, random_below(&rig.random, SEQUENCES), met);
        steps(&rig, queued);
    }
    assert_ok(engine_fetch_counts(rig.engine[TURNS], &units, &rig.error), rig.error);
    const struct kv_tier_statistics tier = engine_tier_statistics(rig.engine[TURNS]);
    const struct step_graph_counts counts = engine_step_graph_counts(rig.engine[TURNS]);
    assert_in_range(tier.host_bytes, 1, rig.plan[TURNS].host_bytes);
    assert_true(units.absent == 0 || counts.again > 0);
    statistics_compare(&rig);
    met->chosen = attention_statistics(engine_attention(rig.engine[TURNS]));
    met->launches += counts.launches;
    met->hits += units.hits;
    met->misses += units.misses;
    met->chunk_hits += units.chunk_hits;
    met->chunk_misses += units.chunk_misses;
    met->chunk_direct += units.chunk_direct;
    met->read_pages += tier.read_pages;
    met->prefetched += tier.prefetched;
    met->prefetch_hits += tier.prefetch_hits;
    met->fetched += tier.hits + tier.misses;
    rig_close(&rig);
}

/* A setting on one device or the other, as the seed says. */
static void steps_with_turns_have_the_bits_of_ram(void **state) {
    (void)state;
    const uint64_t seed = test_seed(1);
    struct met met = {0};
    for (size_t i = 0; i < SETTINGS; i++) {
        const bool keeps = strcmp(settings[i].preset, "clo") == 0;
        history(seed + i, (seed + i) % 2 == 0, &settings[i], &met);
        assert_met(keeps == (met.chosen.reuse.hits > 0 && met.chosen.reuse.misses > 0));
        assert_true(keeps || met.chosen.verdicts_read == 0);
    }
    assert_met(met.launches > SETTINGS * 5 && met.hits > 0 && met.misses > 0 && met.read_pages > 0 && met.reused > 0 &&
               met.prefetch_hits > 0 && met.chunk_hits > 0 && met.chunk_misses > 0 && met.chunk_direct > 0);
}

/* Lists that are kept: what the host reads of them, and what they do, is that of steps operation by operation, which
 * ask for each verdict. */
static void kept_lists_count_as_they_do_in_steps_that_are_no_graphs(void **state) {
    (void)state;
    for (size_t i = KEEPS_FIRST; i < KEEPS_END; i++) {
        struct met met[2] = {{0}, {0}};
        struct setting setting = settings[i];
        for (size_t plain = 0; plain < 2; plain++) {
            setting.has_no_turns = plain;
            history(test_seed(31) + i, i % 2 == 0, &setting, &met[plain]);
        }
        assert_met(met[0].launches > 5);
        assert_int_equal(met[1].launches, 0);
        assert_int_equal(met[0].chosen.verdicts_read, met[1].chosen.verdicts_read);
        assert_int_equal(met[0].chosen.lists_read, met[1].chosen.lists_read);
        assert_int_equal(met[0].chosen.reuse.hits, met[1].chosen.reuse.hits);
        assert_true(met[0].chosen.verdicts_read >= met[0].chosen.reuse.hits);
    }
}

/* Chunks of lists that are kept stay in RAM: as many as with steps operation by operation, also of a sequence that has
 * had no such step; and where the device has them in slots, so that none is asked for any more. */
static void what_kept_lists_name_is_held(void **state) {
    (void)state;
    static const size_t which[SEQUENCES] = {0, 1, 2};
    struct setting setting = {"clo", KEEPS("0", "-1") ",page=64,resident=0,speculate=none", "224", 0, 1 << 20, 2,
                              false};
    uint64_t held[3][4]; /* in turns; by operations; in turns, with slots */
    for (size_t run = 0; run < 3; run++) {
        struct rig rig;
        setting.has_no_turns = run == 1;
        setting.unit_bytes = run == 2 ? 1 << 20 : 0;
        rig_open(&rig, test_seed(12), true, &setting, NULL);
        for (size_t s = 0; s < 2; s++) come(&rig, s, 450);
        for (size_t s = 0; s < 2; s++) assert_ok(sequence_flush(rig.sequences[TURNS][s], &rig.error), rig.error);
        for (size_t i = 0; i < 8; i++) { /* the first one is no graph */
            step(&rig, true, &which[i / 4], 1);
            held[run][i / 4 * 2 + (i % 4 > 0)] = engine_tier_statistics(rig.engine[TURNS]).held;
        }
        assert_int_equal(engine_step_graph_counts(rig.engine[TURNS]).launches, run == 1 ? 0 : 7);
        statistics_compare(&rig);
        rig_close(&rig);
    }
    for (size_t i = 0; i < 4; i++) assert_int_equal(held[0][i], held[1][i]);
    assert_true(held[0][0] > 0 && held[0][1] >= held[0][0] && held[0][2] > held[0][1]);
    assert_true(held[2][1] >= held[2][0] && held[2][0] == held[0][0]);
}

/* Kept lists without an age are longer than chosen ones where their window is.  Of lists that are all chosen anew
 * chunks are read ahead. */
static void lists_without_an_age_are_longest_where_windows_are(void **state) {
    (void)state;
    static const size_t all[SEQUENCES] = {0, 1, 2};
    static const char *const sets[2] = {CODES("0") ",age=0,reused=0,power=0,resident=0,eta=-1",
                                        CODES("0") ",age=0,reused=0,power=0,resident=0,eta=1"};
    uint64_t ahead[2];
    for (size_t n = 0; n < 2; n++) {
        const struct setting setting = {"clo", sets[n], "120", 0, 0, 4, false};
        struct rig rig;
        rig_open(&rig, test_seed(14), true, &setting, NULL);
        for (size_t s = 0; s < SEQUENCES; s++) come(&rig, s, 460);
        step(&rig, true, all, SEQUENCES); /* no graph */
        const struct kv_tier_statistics before = engine_tier_statistics(rig.engine[TURNS]);
        for (size_t i = 0; i < 12; i++) step(&rig, true, all, SEQUENCES);
        ahead[n] = engine_tier_statistics(rig.engine[TURNS]).prefetched - before.prefetched;
        assert_int_equal(engine_step_graph_counts(rig.engine[TURNS]).launches, 12);
        statistics_compare(&rig);
        rig_close(&rig);
    }
    assert_true(ahead[1] > 10);
}

/* Chunks of which the device has all that is listed are not asked for. */
static void what_slots_have_is_not_fetched(void **state) {
    (void)state;
    static const size_t which[] = {0, IN_4_BITS};
    for (size_t n = 0; n < sizeof which / sizeof *which; n++) {
        struct met met[2] = {{0}, {0}};
        for (size_t i = 0; i < 2; i++) {
            struct setting setting = settings[which[n]];
            if (i == 0) setting.unit_bytes = 0;
            history(test_seed(17), false, &setting, &met[i]);
        }
        assert_met(met[0].launches > 5);
        assert_met(met[0].launches == met[1].launches);
        assert_met(met[1].fetched > 0 && met[1].fetched < met[0].fetched);
    }
}

/* Nor are they read ahead: of what the next layer is expected to list, chunks of which the device lacks something. */
static void what_slots_have_is_not_read_ahead(void **state) {
    (void)state;
    struct met met[2] = {{0}, {0}};
    for (size_t i = 0; i < 2; i++) {
        struct setting setting = settings[AHEAD_WITH_SLOTS];
        setting.unit_bytes = i == 0 ? 0 : 1 << 20;
        for (uint64_t seed = test_seed(26); seed < test_seed(26) + 3; seed++)
            history(seed, false, &setting, &met[i]);
    }
    assert_met(met[0].launches > 15);
    assert_met(met[0].launches == met[1].launches);
    printf("%llu chunks are read ahead without slots, %llu of them of use; with slots %llu, %llu\n",
           (unsigned long long)met[0].prefetched, (unsigned long long)met[0].prefetch_hits,
           (unsigned long long)met[1].prefetched, (unsigned long long)met[1].prefetch_hits);
    /* Most of what is read is then asked for: what slots have is not.  How much the gate lets through hangs on time. */
    assert_met(met[1].prefetch_hits > 10 && met[1].prefetch_hits >= met[1].prefetched * 3 / 5);
}

/* Chunks that steps fill are quantized and written behind them, as in steps operation by operation. */
static void full_chunks_are_written_behind_the_step(void **state) {
    (void)state;
    static const size_t first = 0;
    struct setting setting = settings[PAGES_SETTING]; /* both engines are on disk */
    struct rig rig;
    uint64_t written[ENGINES];
    rig_open(&rig, test_seed(8), true, &setting, NULL);
    come(&rig, 0, 150);
    for (size_t i = 0; i < 120; i++) step(&rig, true, &first, 1);
    for (size_t i = 0; i < ENGINES; i++) {
        assert_ok(sequence_flush(rig.sequences[i][0], &rig.error), rig.error);
        written[i] = engine_tier_statistics(rig.engine[i]).write_bytes;
    }
    assert_true(written[TURNS] > 0 && engine_step_graph_counts(rig.engine[TURNS]).launches > 110);
    assert_int_equal(written[TURNS], written[PLAIN]);
    rig_close(&rig);
}

/* ---- what goes wrong ---- */

/* RAM has no slots for all that a layer lists: such a step is run again as it is, and no later one is a graph. */
static void a_layer_that_ram_does_not_hold_goes_head_by_head(void **state) {
    (void)state;
    static const struct setting full[] = {{"hata", CODES("0"), "300", 64 << 10, 0, 2, false},
                                          {"clo", KEEPS("0", "0.2"), "300", 64 << 10, 0, 2, false},
                                          {"clo", KEEPS("0", "0.6"), "300", 0, 0, 3, false},
                                          {"leoam", PAGES ",speculate=none", "300", 64 << 10, 0, 2, false}};
    static const size_t all[SEQUENCES] = {0, 1, 2};
    for (size_t n = 0; n < sizeof full / sizeof full[0]; n++) {
        struct rig rig;
        rig_open(&rig, test_seed(5) + n, n != 2, &full[n], NULL);
        for (size_t s = 0; s < SEQUENCES; s++) come(&rig, s, 460);
        for (size_t i = 0; i < 5; i++) step(&rig, n != 2, all, SEQUENCES);
        const struct step_graph_counts counts = engine_step_graph_counts(rig.engine[TURNS]);
        assert_int_equal(counts.launches, 1);
        assert_int_equal(counts.again, 1);
        statistics_compare(&rig);
        rig_close(&rig);
    }
}

/* Nor do layers behind it, which have chosen nothing, take lists that others left in the slots of their sequences: with
 * queries that are all alike they would. */
static void what_others_kept_is_not_taken(void **state) {
    (void)state;
    static const size_t all[SEQUENCES] = {0, 1, 2};
    const struct setting setting = {"clo", CODES("0") ",age=0,reused=0,power=0,eta=-1", "300", 0, 16 << 10, 3, false};
    struct rig rig;
    rig_open(&rig, test_seed(9), false, &setting, NULL);
    for (size_t s = 0; s < SEQUENCES; s++) come(&rig, s, 325);
    for (size_t i = 0; i < 3; i++) step(&rig, false, all, SEQUENCES);
    const struct step_graph_counts before = engine_step_graph_counts(rig.engine[TURNS]);
    for (size_t s = 0; s < SEQUENCES; s++) {
        leave(&rig, s, false);
        come(&rig, s, 480);
    }
    for (size_t i = 0; i < 3; i++) step(&rig, false, all, SEQUENCES);
    const struct step_graph_counts after = engine_step_graph_counts(rig.engine[TURNS]);
    assert_int_equal(before.launches, 2);
    assert_int_equal(before.again, 0);
    assert_int_equal(after.launches, 3);
    assert_int_equal(after.again, 1);
    statistics_compare(&rig);
    rig_close(&rig);
}

static struct io_fault read_breaks(void *context, enum io_call call, const char *path, uint64_t offset, size_t bytes) {
    (void)path, (void)offset, (void)bytes;
    atomic_bool *breaks = context;
    return (struct io_fault){call == IO_CALL_READ && atomic_load(breaks) ? EIO : 0, SIZE_MAX};
}

/* In a turn it ends the step, whose graph was launched. */
static void a_read_that_breaks_ends_the_step(void **state) {
    (void)state;
    atomic_bool breaks = false;
    const struct io_faults faults = {&breaks, read_breaks};
    const struct setting setting = {"hata", CODES("0"), "64", 64 << 10, 0, 2, false};
    struct rig rig;
    const float *logits;
    uint64_t launches = 0;
    enum status status = STATUS_OK;
    rig_open(&rig, 7, true, &setting, &faults);
    for (size_t s = 0; s < SEQUENCES; s++) come(&rig, s, 460);
    for (size_t s = 0; s < SEQUENCES; s++) assert_ok(sequence_flush(rig.sequences[TURNS][s], &rig.error), rig.error);
    for (size_t i = 0; i < 40 && status == STATUS_OK; i++) {
        atomic_store(&breaks, i >= 10); /* the second one of a sequence that takes its turn */
        launches = engine_step_graph_counts(rig.engine[TURNS]).launches;
        status = engine_step(rig.engine[TURNS], &rig.sequences[TURNS][i / 9 % SEQUENCES], &rig.tokens[0][i], 1, &logits,
                             &rig.error);
    }
    assert_int_equal(status, STATUS_IO);
    assert_int_equal(engine_step_graph_counts(rig.engine[TURNS]).launches, launches + 1);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_with_turns_have_the_bits_of_ram),
        cmocka_unit_test(what_slots_have_is_not_fetched),
        cmocka_unit_test(what_slots_have_is_not_read_ahead),
        cmocka_unit_test(kept_lists_count_as_they_do_in_steps_that_are_no_graphs),
        cmocka_unit_test(what_kept_lists_name_is_held),
        cmocka_unit_test(lists_without_an_age_are_longest_where_windows_are),
        cmocka_unit_test(full_chunks_are_written_behind_the_step),
        cmocka_unit_test(a_layer_that_ram_does_not_hold_goes_head_by_head),
        cmocka_unit_test(what_others_kept_is_not_taken),
        cmocka_unit_test(a_read_that_breaks_ends_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
