/* The engine on the cuda device where its own memory does not hold all K and V: these are on disk, with documents, or
 * in RAM behind slots.  The bits are those of K and V on the device, and near the cpu device (cuda_rig.h). */
#include "../platform/scratch.h"
#include "cache/inputs.h"
#include "../device/cuda/fake/fake_control.h"
#include "cuda_rig.h"
#include "kernels/codec/codec.h"
#include "platform/io_file.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

#define CHOOSES_BEHIND_ONE "planes=1,page=8,sinks=8,recent=64,dense=1"

/* ---- KV on disk ---- */

enum { WORKSPACE = 48 << 10 }; /* beyond the least: for several chunks of all heads at once */

/* Chunks that are not there are computed again from their inputs (kvpr): two of a layer; all; none. */
static void rebuild_check(struct rig *rig, struct engine *engine, size_t run) {
    const struct rebuild_statistics rebuilt = attention_rebuild_statistics(engine_attention(engine));
    const struct model_config *config = &rig->model[CUDA]->config;
    /* Halves and a power of two: what products of many rows are of. */
    const struct inputs_shape halves = {config->layer_count, config->hidden_size, INPUTS_F16};
    const uint64_t most[] = {0, 2 * rebuilt.layers, rebuilt.missing_chunks, 0}; /* a run of neighbours */
    assert_true(rebuilt.refusals == 0 && rebuilt.missing_chunks > 2 * rebuilt.layers && rebuilt.layers > 0);
    assert_true(rebuilt.chunks <= most[run] && (rebuilt.chunks > rebuilt.layers || run == 3));
    assert_true(rebuilt.input_bytes == (double)inputs_chunk_bytes(&halves) / KV_CHUNK_TOKENS);
}

/* Inputs are kept of the prompt alone: rows of steps went through other products. */
static void kept_check(struct rig *rig, const char *directory) {
    struct store *store;
    struct kept_inputs kept;
    assert_ok(store_open(&store, &(struct store_options){.directory = directory}, &rig->error), rig->error);
    assert_ok(kept_inputs_find(store, 1, &kept, &rig->error), rig->error);
    assert_int_equal(kept.held, DOCUMENT);
    store_close(store);
}

/* --kv-device beside KV on disk: what key index, states and page tables of the context take, and no byte less. */
static uint64_t device_bytes_of(struct rig *rig, struct plan *plan) {
    const struct model_config *config = &rig->model[CUDA]->config;
    struct kv_cache_config cache;
    struct engine *engine;
    plan->device_bytes = UINT64_MAX;
    assert_ok(plan_cache_config(plan, config, &cache, &rig->error), rig->error);
    const uint64_t bytes = kv_tier_device_bytes(&cache);
    plan->device_bytes = bytes - 1;
    assert_int_equal(engine_create(&engine, rig->model[CUDA], plan, NULL, &rig->error), STATUS_MEMORY);
    assert_non_null(strstr(rig->error.message, "key index, states and page tables of 512 tokens need"));
    return bytes;
}

/* KV heads that have a key index. */
static uint64_t index_lanes(const struct model_config *config, const struct kv_cache_config *cache) {
    uint64_t lanes = 0;
    for (size_t layer = 0; layer < cache->layer_count; layer++)
        lanes += kv_layer_slides(config->kv_groups, config->kv_windows, layer) ? 0 : kv_heads(cache, layer);
    return lanes;
}

/* The first token behind an opened document: of the layers that choose, and of no other one, each head's blocks of the
 * key index came by one copy, states by another one each, and lists and places of chunks by a copy for two launches, in
 * however many groups these come.  K and V are not copied: the card reads what is listed where it lies in RAM, and of a
 * page RAM has the parts that are listed. */
static void opening_check(struct rig *rig, const struct plan *plan, const struct engine *engine, size_t length,
                          const struct cuda_counts *before) {
    enum { TOLD = 640 };
    const struct model_config *config = &rig->model[CUDA]->config;
    const struct cuda_counts after = device_cuda_counts(rig->device[CUDA]);
    struct kv_cache_config cache;
    assert_ok(plan_cache_config(plan, config, &cache, &rig->error), rig->error);
    const uint64_t lanes = index_lanes(config, &cache);
    const uint64_t chunks = length / KV_CHUNK_TOKENS, index = lanes * chunks * cache.key_index_bytes,
                   states = config->state.layer_count * (cache.state_floats > 0),
                   told = (after.launches - before->launches) / 2;
    assert_in_range(after.copies - before->copies, lanes, lanes + states + told);
    assert_in_range(after.copied_bytes - before->copied_bytes, index,
                    index + told * TOLD + cache.state_floats * sizeof(float));
    assert_in_range(engine_tier_statistics(engine).read_bytes, 1,
                    kv_lane_count(&cache) * (chunks + 1) * kv_cache_chunk_bytes_max(&cache) - 1);
}

/* The host waits for the card once behind the key index, once for each part of a state, and once for the rows behind
 * the last full chunk, however many layers there are; and for an area that went up a while ago, before it reads to it
 * again. */
static struct sequence *opened(struct rig *rig, const struct plan *plan, struct engine *engine, size_t length,
                               const float **logits) {
    enum { AREAS = 2 };
    const struct model_config *config = &rig->model[CUDA]->config;
    struct kv_cache_config cache;
    struct sequence *sequence;
    assert_ok(plan_cache_config(plan, config, &cache, &rig->error), rig->error);
    const uint64_t lanes = index_lanes(config, &cache), again = lanes > AREAS ? lanes - AREAS : 0;
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    const uint64_t waits = counted.waits;
    assert_ok(sequence_attach(sequence, rig->tokens, length - 1, &rig->error), rig->error);
    assert_in_range(counted.waits - waits, 1, again + (config->state.layer_count > 0 ? 3 : 2));
    const size_t had = (size_t)sequence_length(sequence);
    const struct prefill_request request = {.tokens = rig->tokens + had, .token_count = length - had};
    assert_ok(engine_prefill(engine, sequence, &request, logits, &rig->error), rig->error);
    return sequence;
}

/* What the card has held at most: what --kv-device bounds, and what a pass works in. */
static void held_check(struct rig *rig, const struct plan *plan) {
    const struct model_config *config = &rig->model[CUDA]->config;
    const struct forward_options forward = plan_forward_options(plan, config);
    struct attention_options attention;
    assert_ok(plan_attention_options(plan, config, &attention, &rig->error), rig->error);
    const uint64_t rotations = config->layer_count * config->kv_head_count * config->k_dimension * config->k_dimension *
                               sizeof(uint16_t), /* of codes, at most */
        work = forward_bytes(config, &forward) + attention_bytes(&attention) + rotations;
    assert_in_range(counted.most, plan->device_bytes, plan->device_bytes + plan->unit_bytes + work);
}

static struct io_fault read_breaks(void *context, enum io_call call, const char *path, uint64_t offset, size_t bytes) {
    (void)path, (void)offset, (void)bytes;
    atomic_size_t *left = context; /* reads that go well; SIZE_MAX: all */
    if (call != IO_CALL_READ || atomic_load(left) == SIZE_MAX) return (struct io_fault){0, SIZE_MAX};
    return (struct io_fault){atomic_fetch_sub(left, 1) == 0 ? EIO : 0, SIZE_MAX};
}

/* A read of K and V that breaks ends the step, and nothing of it is attended to. */
static void broken_read_check(struct rig *rig, const struct plan *plan, size_t length) {
    atomic_size_t left = SIZE_MAX;
    const struct io_faults faults = {&left, read_breaks};
    const struct engine_options options = {.io_faults = &faults};
    struct fetch_counts units;
    struct engine *engine;
    struct sequence *sequence;
    const float *logits;
    assert_ok(engine_create(&engine, rig->model[CUDA], plan, &options, &rig->error), rig->error);
    assert_ok(sequence_create(&sequence, engine, &rig->error), rig->error);
    assert_ok(sequence_attach(sequence, rig->tokens, length - 1, &rig->error), rig->error);
    const size_t had = (size_t)sequence_length(sequence);
    const struct prefill_request request = {.tokens = rig->tokens + had, .token_count = length - had};
    atomic_store(&left, 3);
    assert_int_equal(engine_prefill(engine, sequence, &request, &logits, &rig->error), STATUS_IO);
    assert_ok(engine_fetch_counts(engine, &units, &rig->error), rig->error);
    assert_true(units.hits + units.absent == 0 && atomic_load(&left) == SIZE_MAX); /* it did break */
    sequence_destroy(sequence);
    engine_destroy(engine);
}

struct documented {
    const char *family, *preset, *settings, *keep;
};

/* Chunks come from the disk into slots that are pinned memory, few enough that they are used again; a second engine
 * opens what the first has saved. */
static void documents_check(const struct documented *of, uint64_t seed) {
    struct rig rig;
    struct scratch scratch;
    struct tiny_model tiny = tiny_model_default(of->family);
    const char *const preset = of->preset, *const keep = of->keep;
    const bool differs = tiny.window > 0 || tiny.taps > 0; /* some layers from others */
    const size_t length = differs ? 140 : DOCUMENT;
    if (!differs) tiny.layer_count = 4;
    tiny.head_dimension = 32;
    tiny.expert_used = tiny.expert_count;
    if (strcmp(of->family, "gemma4") == 0) widen_heads(&tiny, 320);
    static const size_t forced[] = {0, 2, SIZE_MAX, REBUILD_NOTHING};
    const bool rebuilds = strcmp(preset, "kvpr") == 0;
    const size_t run_count = rebuilds ? 4 : 3;
    float *last[4] = {NULL, NULL, NULL, NULL};
    scratch_create(&scratch, SCRATCH_MEMORY);
    rig_open(&rig, &tiny, seed);
    for (size_t run = 0; run < run_count; run++) { /* in device memory; on disk; opened again */
        struct plan plan = plan_with(&rig, preset, of->settings, keep, KV_F16);
        const float *logits;
        plan.sequence_capacity = 1;
        plan.rebuilds = rebuilds && run > 0;
        if (run > 0) {
            assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &rig.error), rig.error);
            plan.key_index = PLAN_KEY_INDEX_RAM; /* or on the card: never on the disk */
            assert_ok(plan_host_bytes_min(&plan, &rig.model[CUDA]->config, &plan.host_bytes, &rig.error), rig.error);
            if (keep != NULL) plan.device_bytes = device_bytes_of(&rig, &plan);
            if (plan.device_bytes > 0) /* no part of RAM's */
                assert_ok(plan_host_bytes_min(&plan, &rig.model[CUDA]->config, &plan.host_bytes, &rig.error),
                          rig.error);
            if (rebuilds) plan.host_bytes += WORKSPACE;
            if (keep != NULL) plan.unit_bytes = run == 1 ? 1 << 20 : 120 << 10; /* many slots; few */
        }
        if (run == 2 && keep != NULL && !differs) broken_read_check(&rig, &plan, length);
        count_device(rig.device[CUDA]);
        struct engine *engine = engine_open(&rig, CUDA, &plan);
        if (plan.rebuilds) attention_force_rebuild(engine_attention(engine), forced[run]);
        const struct cuda_counts before = device_cuda_counts(rig.device[CUDA]);
        struct sequence *sequence = (run == 2 && keep != NULL ? opened(&rig, &plan, engine, length, &logits)
                                                              : sequence_read(&rig, engine, 0, length, &logits));
        assert_int_equal(sequence_reused_tokens(sequence) > 0, run >= 2);
        if (run == 2 && keep != NULL) opening_check(&rig, &plan, engine, length, &before);
        for (size_t i = 0; i < STEPS; i++)
            assert_ok(engine_step(engine, &sequence, &rig.tokens[length + i], 1, &logits, &rig.error), rig.error);
        if (run > differs) assert_true(engine_tier_statistics(engine).read_pages > 0);
        if (plan.rebuilds) rebuild_check(&rig, engine, run);
        if (keep != NULL) { /* lists: by the host, where it fetches what they name */
            const struct select_statistics chosen = attention_statistics(engine_attention(engine));
            assert_true(chosen.evaluated > 0 && chosen.kept < chosen.visible);
            assert_int_equal(chosen.lists_read > 0, run > 0);
            const struct kv_tier_statistics tier = engine_tier_statistics(engine);
            /* Chunks that the next layer's expected queries choose are read before it does. */
            if (run > 0 && !differs) assert_in_range(tier.prefetch_hits, 1, tier.prefetched);
            /* Such steps are graphs in which the host has turns. */
            const struct step_graph_counts graphs = engine_step_graph_counts(engine);
            assert_true(graphs.launches > 0);
            assert_int_equal(graphs.again, 0);
            if (plan.device_bytes > 0) assert_in_range(engine_kv_device_bytes(engine), 1, plan.device_bytes);
            assert_in_range(tier.host_bytes, run > 0, plan.host_bytes);
            struct fetch_counts units;
            assert_ok(engine_fetch_counts(engine, &units, &rig.error), rig.error);
            assert_int_equal(units.hits > 0 && units.misses > 0, run > 0);
            assert_int_equal(units.absent, 0);
        }
        last[run] = rows_create(1, rig.width);
        memcpy(last[run], logits, rig.width * sizeof *logits);
        if (run == 1) assert_ok(sequence_save(sequence, &rig.error), rig.error);
        assert_ok(sequence_flush(sequence, &rig.error), rig.error);
        sequence_destroy(sequence);
        engine_destroy(engine);
        count_no_more(rig.device[CUDA]);
        if (plan.device_bytes > 0) held_check(&rig, &plan);
        if (plan.rebuilds) kept_check(&rig, scratch.path);
        plan_deinit(&plan);
    }
    assert_memory_equal(last[1], last[0], rig.width * sizeof(float)); /* the same chunks, elsewhere */
    logits_check(last[2], last[0], rig.width, 0.01, "opened again", length + STEPS - 1);
    if (rebuilds) assert_memory_equal(last[2], last[3], rig.width * sizeof(float));
    for (size_t i = 0; i < run_count; i++) free(last[i]);
    rig_close(&rig);
    scratch_destroy(&scratch);
}

static void documents_match(void **state) {
    (void)state;
    static const char chooses[] = CHOOSES ",speculate=next-layer";
    static const struct documented cases[] = {{"llama", "kvpr", NULL, NULL}, /* full, but for that */
                                              {"llama", "hata", chooses, "160"},
                                              {"gemma3", "hata", CHOOSES, "100"}, /* a window in every other layer */
                                              {"gpt-oss", "full", NULL, NULL},    /* and sinks */
                                              {"gemma4", "hata", CHOOSES, "100"}, /* K and V of two shapes */
                                              {"lfm2", "hata", CHOOSES, "100"}};  /* and of none */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (test_takes_next()) documents_check(&cases[i], test_seed(9) + i);
}

/* Steps behind a prompt, on disk with pages in 4 bits; the last ones go on behind a chunk that they fill. */
enum { Q4_PROMPT = 380, Q4_STEPS = 12 };
struct in_4_bits {
    const char *preset, *settings, *keep;
    bool is_mixed, is_default; /* beside chunks that stay rows; the codec is the preset's, or all are in 4 bits */
    size_t few;                /* bytes of slots */
};
static float *q4_steps(struct rig *rig, size_t on, const struct in_4_bits *of, size_t length, size_t count,
                       uint64_t unit_bytes, struct fetch_counts *units) {
    struct scratch scratch;
    const float *logits;
    struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = BLOCK};
    float *all = rows_create(count, rig->width);
    scratch_create(&scratch, SCRATCH_MEMORY);
    assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &rig->error), rig->error);
    assert_ok(plan_set_axes(&plan, of->preset, of->settings, of->keep, &rig->error), rig->error);
    if (on == CUDA) plan.device_bytes = 1 << 28;
    assert_ok(plan_host_bytes_min(&plan, &rig->model[on]->config, &plan.host_bytes, &rig->error), rig->error);
    plan.host_bytes += on == CUDA ? 32 << 10 : 0; /* all that a layer lists: else its steps are no graphs */
    plan.unit_bytes = unit_bytes;
    struct engine *engine = engine_open(rig, on, &plan);
    struct sequence *sequence = sequence_read(rig, engine, 0, length, NULL);
    for (size_t i = 0; i < count; i++) {
        assert_ok(engine_step(engine, &sequence, &rig->tokens[length + i], 1, &logits, &rig->error), rig->error);
        memcpy(all + i * rig->width, logits, rig->width * sizeof *logits);
    }
    const struct select_statistics chosen = attention_statistics(engine_attention(engine));
    assert_true(plan.quantized_pages && engine_tier_statistics(engine).read_pages > 0);
    if (unit_bytes == 0) assert_int_equal(engine_step_graph_counts(engine).launches, on == CUDA ? count - 1 : 0);
    assert_true(chosen.evaluated > 0 && chosen.kept < chosen.visible);
    assert_ok(engine_fetch_counts(engine, units, &rig->error), rig->error);
    sequence_destroy(sequence);
    engine_destroy(engine);
    plan_deinit(&plan);
    scratch_destroy(&scratch);
    return all;
}

/* Chunks that were written in 4 bits are attended to as they lie, in RAM or in slots of the card, be they many or few:
 * the same bits. */
static void pages_in_4_bits_check(const struct in_4_bits *of, uint64_t seed) {
    enum { HALVES = 2, LAYERS = 4, MANY = 1 << 20 };
    uint64_t crossed = 0;
    struct rig rig;
    struct tiny_model tiny = tiny_model_default("llama");
    struct fetch_counts units;
    tiny.layer_count = LAYERS;
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, seed);
    if (of->is_default) {
        float *cpu = q4_steps(&rig, CPU, of, DOCUMENT, 2, 0, &units),
              *cuda = q4_steps(&rig, CUDA, of, DOCUMENT, 2, 0, &units);
        /* Near ties of the choice are chosen otherwise: of nine seeds that was up to 0.13. */
        logits_check(cuda + rig.width, cpu + rig.width, rig.width, 0.3, of->preset, DOCUMENT + 1);
        free(cpu), free(cuda);
    }
    float *in_ram = q4_steps(&rig, CUDA, of, Q4_PROMPT, Q4_STEPS, 0, &units);
    assert_true(units.hits + units.misses + units.direct == 0);
    assert_true(units.chunk_hits + units.chunk_misses + units.chunk_direct == 0);
    for (size_t few = 0; few < 2; few++) {
        struct kv_layout layout;
        kv_layout_init(&layout, KV_F16, KV_F16, tiny.head_dimension, tiny.head_dimension);
        float *found = q4_steps(&rig, CUDA, of, Q4_PROMPT, Q4_STEPS, few ? of->few : MANY, &units);
        assert_memory_equal(found, in_ram, Q4_STEPS * rig.width * sizeof *found);
        assert_int_equal(units.absent, 0);
        assert_true(units.chunk_hits > 0 && units.chunk_misses > 0 && units.direct > 0);
        if (!few) assert_true(units.chunk_direct == 0 && units.chunk_hits > 2 * units.chunk_misses);
        assert_int_equal(units.hits > 0 && units.misses > 0, of->is_mixed);
        /* What crosses the bus: with slots, and where all that is listed does. */
        const uint64_t q4 = kv_q4_chunk_bytes(&layout),
                       crosses = (units.misses + units.direct) * layout.block_bytes +
                                 (units.chunk_misses + units.chunk_direct) * q4,
                       listed = crosses + units.hits * layout.block_bytes + units.chunk_hits * q4;
        printf("%s, %s: %llu of %llu bytes\n", of->preset, few ? "few slots" : "many slots",
               (unsigned long long)crosses, (unsigned long long)listed);
        assert_in_range(crosses, few ? crossed + 1 : 1, few ? listed - 1 : listed / HALVES);
        crossed = crosses;
        free(found);
    }
    free(in_ram);
    rig_close(&rig);
}

static void pages_in_4_bits_match(void **state) {
    (void)state;
    static const struct in_4_bits cases[] = {
        {"hata", CHOOSES ",codec=q4", "160", false, true, 80 << 10},
        {"leoam", "units_min=1,sinks=64,recent=64", "256", true, true, 140 << 10},
        {"leoam", "units_min=1,sinks=64,recent=64,quantized=8,speculate=none", "256", true, false, 140 << 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (test_takes_next()) pages_in_4_bits_check(&cases[i], test_seed(19) + i);
}

/* ---- K and V in RAM ---- */

enum { FETCH_STEPS = 12 };

/* Two sequences read and go on, together and alone; one is cut back and goes on.  The last logits of each step. */
struct fetched {
    struct fetch_counts units;
    struct reuse_counts reuse;
    uint64_t verdicts; /* that the host read */
    struct rebuild_statistics rebuilt;
    uint64_t kernels[FETCH_STEPS]; /* the third step is a graph that was captured before, the fifth one of both */
    uint64_t waits[FETCH_STEPS];   /* of the host, for the stream */
    uint64_t bytes;                /* of the card's memory, at any time */
    uint64_t read_pages, last_listed, last_bus; /* the last two: units of the last step; not hits */
    size_t whole;                               /* heads whose units all stay */
    struct step_graph_counts graphs;
};
static float *fetched_steps(struct rig *rig, const struct plan *plan, size_t rebuilt_chunks, struct fetched *counts) {
    static const uint8_t who[FETCH_STEPS] = {0, 0, 0, 2, 2, 2, 0, 2, 2, 0, 1, 2}; /* 2: both */
    struct sequence *sequences[2];
    const struct prefill_request other = {.tokens = rig->tokens + 40, .token_count = 120};
    struct fetch_counts before = {.hits = 0};
    const float *logits;
    float *all = rows_create((size_t)2 * FETCH_STEPS, rig->width);
    struct device *device = rig->device[CUDA];
    count_device(device);
    struct engine *engine = engine_open(rig, CUDA, plan);
    for (size_t i = 0; i < 2; i++) sequences[i] = sequence_read(rig, engine, i, DOCUMENT - 60 * i, NULL);
    for (size_t i = 0; i < FETCH_STEPS; i++) {
        const size_t first = who[i] == 1, count = who[i] == 2 ? 2 : 1;
        const uint64_t kernels = device_cuda_counts(rig->device[CUDA]).launches;
        if (i == FETCH_STEPS / 2) sequence_truncate(sequences[0], 200);
        if (i == FETCH_STEPS / 2 && !plan->rebuilds) /* two chunks that slots had are others now */
            assert_ok(engine_prefill(engine, sequences[0], &other, NULL, &rig->error), rig->error);
        assert_ok(engine_fetch_counts(engine, &before, &rig->error), rig->error);
        attention_force_rebuild(engine_attention(engine), i == 5 && rebuilt_chunks > 0 ? 3 : rebuilt_chunks);
        const uint64_t waits = counted.waits;
        assert_ok(engine_step(engine, sequences + first, &rig->tokens[i * 7], count, &logits, &rig->error), rig->error);
        counts->waits[i] = counted.waits - waits;
        memcpy(all + i * 2 * rig->width, logits, count * rig->width * sizeof *logits);
        counts->kernels[i] = device_cuda_counts(rig->device[CUDA]).launches - kernels;
    }
    assert_ok(engine_fetch_counts(engine, &counts->units, &rig->error), rig->error);
    counts->reuse = attention_statistics(engine_attention(engine)).reuse;
    counts->verdicts = attention_statistics(engine_attention(engine)).verdicts_read;
    counts->rebuilt = attention_rebuild_statistics(engine_attention(engine));
    counts->last_bus = counts->units.misses + counts->units.direct - before.misses - before.direct;
    counts->last_listed = counts->last_bus + counts->units.hits - before.hits;
    counts->read_pages = engine_tier_statistics(engine).read_pages;
    counts->whole = attention_whole_heads(engine_attention(engine));
    counts->graphs = engine_step_graph_counts(engine);
    if (plan->rows_in_host && plan->select.method == NULL) /* no key index */
        assert_int_equal(engine_kv_device_bytes(engine) * rig->model[CUDA]->config.layer_count,
                         engine_kv_used_bytes(engine) * plan->near_layers);
    for (size_t i = 0; i < 2; i++) sequence_destroy(sequences[i]);
    engine_destroy(engine);
    count_no_more(device);
    assert_int_equal(counted.now, 0);
    counts->bytes = counted.most;
    return all;
}

/* Of the two layers behind the first one: of the prompts' chunks (5 and 4, and 3 that stay where one is cut back) a
 * first part is computed again, beside attention to the rest.  both: chunks of a step of both, in tiles of 4, one of
 * rows of both; behind the cut as many, if there are. */
static void rebuilt_check(const struct fetched *read, const struct fetched *counts, size_t both) {
    enum { ALONE = 3 * 5 + 3 + 3 + 4, MISSING = ALONE + 3 * (5 + 4) + 3 * (3 + 4), EACH = 6 };
    const struct rebuild_statistics *rebuilt = &counts->rebuilt; /* EACH: halves, angles, 2, rotation, append */
    assert_true(rebuilt->input_bytes == 64 * 2 + 4 && rebuilt->kv_bytes == 2 * 32 * 2 * 2);
    assert_int_equal(rebuilt->layers, 2 * FETCH_STEPS);
    assert_int_equal(rebuilt->missing_chunks, 2 * MISSING);
    if (both == 0) { /* three steps are timed */
        assert_true(rebuilt->chunks >= 2 * 3 * 4 && rebuilt->bytes_per_second > 0);
        return;
    }
    assert_int_equal(rebuilt->chunks, 2 * (ALONE + 2 * both + min_size(both, 2 * 3) + 3 * min_size(both, 3 + 4)));
    /* Attention in two parts, whose outputs are no inputs of 8 bits yet. */
    assert_int_equal(counts->kernels[2], read->kernels[2] + 2 * (2 * EACH + 2));
    assert_int_equal(counts->kernels[4], read->kernels[4] + 2 * ((both + 3) / 4 * EACH + 1 + 2));
}

/* Above a disk each step but the first of one sequence, and that of both, is a graph, for which the host waits once. */
static void graphs_check(const struct fetched *counts) {
    assert_int_equal(counts->graphs.launches, FETCH_STEPS - 2);
    assert_int_equal(counts->graphs.again, 0);
    for (size_t i = 0; i < FETCH_STEPS; i++)
        assert_true(i == 0 || i == 3 ? counts->waits[i] > 1 : counts->waits[i] == 1);
}

/* Slots change no bit, however few they are, nor do rows of the first layer on the device, nor rows that are computed
 * again. */
static void units_are_fetched_from_ram(void **state) {
    (void)state;
    static const struct {
        const char *preset[3];
        struct {
            size_t unit_bytes, near_layers; /* unit_bytes 0: no such plan */
            size_t rebuilt;                 /* of kvpr: chunks of two sequences of a step; 0: as it is timed */
            bool on_disk;                   /* RAM has what the steps lately listed */
        } plans[4];
    } cases[] = {{{"hata", CHOOSES, "160"}, /* many slots; few */
                  {{4 << 20, 0, 0, false}, {280 << 10, 0, 0, false}, {4 << 20, 0, 0, true}, {280 << 10, 0, 0, true}}},
                 {{"full", NULL, NULL}, {{280 << 10, 0, 0, false}}}, /* nobody chooses; all attend to all */
                 {{"kvpr", NULL, NULL}, {{300 << 10, 1, 9, false}, {220 << 10, 1, 5, false}, {280 << 10, 0, 0, false}}},
                 {{"hata", CHOOSES_BEHIND_ONE, "160"}, {{280 << 10, 1, 0, false}}}, /* the first attends to all */
                 {{"clo", REUSES("0.2") ",place=persistent", "160"},                /* lists that are taken once more */
                  {{280 << 10, 0, 0, false}, {792 << 10, 0, 0, false}, {792 << 10, 0, 0, true}}}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct rig rig;
        struct tiny_model tiny = tiny_model_default("llama");
        struct fetched none, counts;
        if (!test_takes_next()) continue;
        tiny.head_dimension = 32;
        if (n == 2) tiny.layer_count = 3, tiny.type = TENSOR_Q8_0;
        rig_open(&rig, &tiny, test_seed(83) + n);
        const char *const *preset = cases[n].preset;
        const bool rebuilds = strcmp(preset[0], "kvpr") == 0;
        struct plan plan = plan_with(&rig, preset[0], preset[1], preset[2], KV_F16);
        plan.rebuilds = rebuilds;
        float *expected = fetched_steps(&rig, &plan, 0, &none);
        assert_true(none.units.hits + none.units.misses + none.units.direct + none.rebuilt.layers == 0);
        plan.rows_in_host = true;
        for (size_t i = 0; i < 4 && cases[n].plans[i].unit_bytes > 0; i++) {
            const bool is_few = cases[n].plans[i].unit_bytes < 4 << 20, chooses = preset[1] != NULL,
                       on_disk = cases[n].plans[i].on_disk;
            struct scratch scratch;
            plan.unit_bytes = cases[n].plans[i].unit_bytes;
            plan.near_layers = cases[n].plans[i].near_layers;
            if (on_disk) {
                scratch_create(&scratch, SCRATCH_MEMORY);
                plan.rows_in_host = false;
                plan.device_bytes = 1 << 28;
                assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &rig.error), rig.error);
                assert_ok(plan_host_bytes_min(&plan, &rig.model[CUDA]->config, &plan.host_bytes, &rig.error),
                          rig.error);
            }
            float *found = fetched_steps(&rig, &plan, cases[n].plans[i].rebuilt > 0 ? 5 : 0, &counts);
            const struct fetch_counts units = counts.units;
            assert_memory_equal(found, expected, 2 * FETCH_STEPS * rig.width * sizeof *found);
            assert_int_equal(units.absent, 0);
            assert_int_equal(counts.reuse.hits, none.reuse.hits);
            assert_int_equal(counts.reuse.misses, none.reuse.misses);
            assert_int_equal(counts.reuse.rows, none.reuse.rows);
            /* The host asks for verdicts where it brings what lists name, and where a step is no graph. */
            assert_true(counts.verdicts >= on_disk * counts.reuse.hits);
            /* The first layer's, where its units all have slots beside three lists of the others. */
            assert_int_equal(counts.whole, n == 4 && i > 0 ? 2 : 0);
            assert_met((counts.reuse.hits > 0 && counts.reuse.misses > 0) == (strcmp(preset[0], "clo") == 0));
            assert_int_equal(units.hits > 0 && units.misses > 0 && units.direct > 0, chooses);
            if (!is_few) assert_true(units.hits > units.misses);
            if (n == 0 && is_few) assert_true(units.misses > units.hits / 4); /* slots are too few */
            /* Without slots all that is listed would come over the bus; here what misses, and what is direct. */
            const uint64_t bus = units.misses + units.direct;
            if (n == 0 && !is_few) assert_in_range(counts.last_bus, 1, counts.last_listed / 2);
            if (n == 0) assert_in_range(bus, 1, (bus + units.hits) * (is_few ? 2 : 1) / 2);
            assert_int_equal(counts.read_pages > 0, on_disk);
            if (on_disk) graphs_check(&counts);
            /* Slots or a workspace in place of the rows of far layers, at every instant. */
            const uint64_t far = tiny.layer_count - plan.near_layers, rows = far * 3 * CONTEXT * 2 * 32 * 2 * 2;
            assert_in_range(counts.bytes + rows, none.bytes + (chooses || rebuilds), none.bytes + plan.unit_bytes);
            if (rebuilds) rebuilt_check(&none, &counts, cases[n].plans[i].rebuilt);
            free(found);
            if (!on_disk) continue;
            free((char *)plan.disk_directory);
            plan.disk_directory = NULL;
            plan.device_bytes = 0;
            scratch_destroy(&scratch);
        }
        free(expected);
        plan_deinit(&plan);
        rig_close(&rig);
    }
}

/* The same where layers differ: of gemma4 two have windows, and the last one that chooses attends to the K and V of the
 * one before; of lfm2 two attend, by 2 KV heads and by 1, in steps of two sequences.  Layers that choose have slots. */
static void layers_that_differ_have_slots(void **state) {
    (void)state;
    enum { UNITS_BYTES = 80 << 10, LENGTH = 120 };
    static const int32_t slides[] = {1, 0, 1, 0};
    static const char *const families[] = {"gemma4", "lfm2"};
    for (size_t n = 0; n < sizeof families / sizeof *families; n++) {
        struct rig rig;
        struct tiny_model tiny = tiny_model_default(families[n]);
        const size_t together = 1 + n;
        float *last[2];
        if (!test_takes_next()) continue;
        if (n == 0) {
            widen_heads(&tiny, 64);
            tiny.slides = slides;
            tiny.layer_count = 4, tiny.shared_layers = 2;
        }
        rig_open(&rig, &tiny, test_seed(89) + n);
        struct plan plan = plan_with(&rig, "hata", CODES, "72", KV_F16);
        plan.sequence_capacity = together;
        for (size_t in_ram = 0; in_ram < 2; in_ram++) {
            struct fetch_counts units;
            plan.rows_in_host = in_ram;
            plan.unit_bytes = in_ram ? UNITS_BYTES : 0;
            last[in_ram] = rows_create(STEPS * together, rig.width);
            struct engine *engine = engine_open(&rig, CUDA, &plan);
            struct sequence *sequences[2];
            for (size_t i = 0; i < together; i++) sequences[i] = sequence_read(&rig, engine, i, LENGTH - 24 * i, NULL);
            for (size_t i = 0; i < STEPS; i++) {
                const float *logits;
                assert_ok(engine_step(engine, sequences, &rig.tokens[LENGTH + i], together, &logits, &rig.error),
                          rig.error);
                memcpy(last[in_ram] + i * together * rig.width, logits, together * rig.width * sizeof *logits);
            }
            assert_ok(engine_fetch_counts(engine, &units, &rig.error), rig.error);
            assert_true(units.absent == 0 && (units.hits > 0) == in_ram && (units.misses > 0) == in_ram);
            for (size_t i = 0; i < together; i++) sequence_destroy(sequences[i]);
            engine_destroy(engine);
        }
        assert_memory_equal(last[1], last[0], STEPS * together * rig.width * sizeof *last[0]);
        free(last[0]), free(last[1]);
        plan_deinit(&plan);
        rig_close(&rig);
    }
}

/* ---- steps that fail ---- */

struct lacking {
    const char *preset, *settings, *keep;
    size_t length;
    bool on_disk, in_4_bits;
};

/* The first step behind a prompt, of which launch number `fault` lacks memory (0: none does), so that slots may be
 * promised units that never come.  It is run again where it failed.  Returns its launches, and the logits. */
static uint64_t lacking_step(struct rig *rig, const struct plan *plan, const struct lacking *of, uint64_t fault,
                             fake_count_from_here_function *count_from_here, float *row) {
    char setting[60];
    const float *logits;
    struct fetch_counts units;
    struct engine *engine = engine_open(rig, CUDA, plan);
    struct sequence *sequence = sequence_read(rig, engine, 0, of->length, NULL);
    const uint64_t before = device_cuda_counts(rig->device[CUDA]).launches;
    const int32_t *token = &rig->tokens[of->length];
    snprintf(setting, sizeof setting, "fail=cuLaunchKernelEx:%llu:2", (unsigned long long)fault);
    if (fault > 0) count_from_here(setting);
    const enum status status = engine_step(engine, &sequence, token, 1, &logits, &rig->error);
    assert_int_equal(status, fault > 0 ? STATUS_MEMORY : STATUS_OK);
    const uint64_t launches = device_cuda_counts(rig->device[CUDA]).launches - before;
    if (fault > 0) assert_ok(engine_step(engine, &sequence, token, 1, &logits, &rig->error), rig->error);
    memcpy(row, logits, rig->width * sizeof *row);
    assert_ok(engine_fetch_counts(engine, &units, &rig->error), rig->error);
    assert_int_equal(units.chunk_misses > 0, of->in_4_bits);
    assert_true(units.misses > 0);
    if (of->on_disk && sequence_reused_tokens(sequence) == 0)
        assert_ok(sequence_save(sequence, &rig->error), rig->error);
    if (of->on_disk) assert_ok(sequence_flush(sequence, &rig->error), rig->error);
    sequence_destroy(sequence);
    engine_destroy(engine);
    return launches;
}

/* Wherever in its first layer a step ends. */
static void lacking_check(const struct lacking *of, fake_count_from_here_function *count_from_here, uint64_t seed) {
    struct rig rig;
    struct scratch scratch;
    struct tiny_model tiny = tiny_model_default("llama");
    struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = BLOCK, .unit_bytes = 1 << 20};
    tiny.head_dimension = 32;
    rig_open(&rig, &tiny, seed);
    scratch_create(&scratch, SCRATCH_MEMORY);
    plan.rows_in_host = !of->on_disk;
    if (of->on_disk) assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &rig.error), rig.error);
    assert_ok(plan_set_axes(&plan, of->preset, of->settings, of->keep, &rig.error), rig.error);
    if (of->on_disk) {
        plan.device_bytes = 1 << 28;
        assert_ok(plan_host_bytes_min(&plan, &rig.model[CUDA]->config, &plan.host_bytes, &rig.error), rig.error);
    }
    assert_int_equal(plan.quantized_pages, of->in_4_bits);
    float *want = rows_create(2, rig.width), *found = want + rig.width;
    /* Above a disk the first prompt is saved, and others open it: their last token goes as steps do. */
    if (of->on_disk) (void)lacking_step(&rig, &plan, of, 0, count_from_here, want);
    const uint64_t launches = lacking_step(&rig, &plan, of, 0, count_from_here, want);
    for (uint64_t fault = 1; fault <= launches / 2; fault++) {
        (void)lacking_step(&rig, &plan, of, fault, count_from_here, found);
        assert_memory_equal(found, want, rig.width * sizeof *want);
    }
    free(want);
    plan_deinit(&plan);
    rig_close(&rig);
    scratch_destroy(&scratch);
}

static void slots_of_a_step_that_fails_are_empty(void **state) {
    (void)state;
    static const struct lacking cases[] = {
        {"hata", CODES, "72", 120, false, false},
        {"hata", CODES, "72", 120, true, false},
        {"leoam", "units_min=1,sinks=8,recent=16,dense=0", "200", 250, true, true}};
    fake_count_from_here_function *count_from_here;
    if (getenv("LOAM_TEST_DRIVER") != NULL) skip();
    void *library = dlopen(FAKE_LIBRARY, RTLD_NOW);
    assert_non_null(library);
    *(void **)&count_from_here = dlsym(library, "fake_count_from_here");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        lacking_check(&cases[i], count_from_here, test_seed(97) + i);
    dlclose(library);
}

/* Cards of a few MiB, without -c: each starts with a context that it then holds to its end, or says what it would need.
 * Returns that context; 0: none. */
static uint64_t context_on_card(const struct tiny_model *tiny, unsigned mebibytes, const char *preset,
                                const char *settings, const char *keep) {
    char settings_of_card[60];
    struct rig rig = {.width = tiny->vocabulary_size};
    struct plan plan = {.sequence_capacity = 1};
    struct random random;
    const struct cuda_device_options options = {.driver_file = FAKE_LIBRARY, .thread_count = 1};
    const float *logits;
    snprintf(settings_of_card, sizeof settings_of_card, "seed=%llu,capability=90,memory=%uM",
             (unsigned long long)test_seed(11), mebibytes);
    (void)setenv("FAKE_CUDA", settings_of_card, 1);
    assert_ok(device_cuda_create(&rig.device[CUDA], &options, &rig.error), rig.error);
    tiny_model_load_on(tiny, "small-card", rig.device[CUDA], &rig.model[CUDA]);
    random_init(&random, 11);
    tiny_model_tokens(tiny, &random, rig.tokens, CONTEXT);
    assert_ok(plan_set_axes(&plan, preset, settings, keep, &rig.error), rig.error);
    plan_bound_device(&plan, rig.device[CUDA]);
    if (plan_fit_context(&plan, &rig.model[CUDA]->config, &rig.error) == STATUS_OK) {
        const size_t count = min_size((size_t)plan.context_size, 72) - 2;
        struct engine *engine = engine_open(&rig, CUDA, &plan);
        struct sequence *sequence = sequence_read(&rig, engine, 0, count, &logits);
        for (size_t i = 0; i < 2; i++)
            assert_ok(engine_step(engine, &sequence, &rig.tokens[count + i], 1, &logits, &rig.error), rig.error);
        assert_true(isfinite(logits[0]));
        sequence_destroy(sequence);
        engine_destroy(engine);
    } else {
        assert_non_null(strstr(rig.error.message, "of the device's memory to work in"));
        plan.context_size = 0;
    }
    model_destroy(rig.model[CUDA]);
    device_destroy(rig.device[CUDA]);
    const uint64_t context = plan.context_size;
    plan_deinit(&plan);
    return context;
}

static void small_cards_hold_what_they_promise(void **state) {
    (void)state;
    enum { WHOLE = 32768 };
    static const unsigned cards[] = {12, 28, 30, 32, 34, 40, 44, 72}; /* MiB */
    struct tiny_model tiny = tiny_model_default("llama");
    uint64_t before = 0;
    size_t cut = 0;
    tiny.hidden_size = 320, tiny.head_dimension = 32;
    tiny.key = "context_length", tiny.value = WHOLE;
    if (getenv("LOAM_TEST_DRIVER") != NULL) skip(); /* a card has the memory that it has */
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        const uint64_t context = i % 2 > 0 ? context_on_card(&tiny, cards[i], "hata", CHOOSES, "96")
                                           : context_on_card(&tiny, cards[i], "full", NULL, NULL);
        printf("%u MiB: %llu tokens\n", cards[i], (unsigned long long)context);
        assert_int_equal(context > 0, i > 0);
        cut += context > 0 && context < WHOLE;
        before = context;
    }
    assert_true(cut >= 4 && before == WHOLE);
}

static int begin(void **state) {
    (void)state;
    card_start_anew(FAKE_LIBRARY);
    return 0;
}

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(documents_match, begin),
        cmocka_unit_test_setup(pages_in_4_bits_match, begin),
        cmocka_unit_test_setup(units_are_fetched_from_ram, begin),
        cmocka_unit_test_setup(layers_that_differ_have_slots, begin),
        cmocka_unit_test_setup(slots_of_a_step_that_fails_are_empty, begin),
        cmocka_unit_test_setup(small_cards_hold_what_they_promise, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
