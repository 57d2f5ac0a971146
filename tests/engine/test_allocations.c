/* No allocator call per token: once an engine, its sequences and a sampler exist, decoding asks for no memory.  And a
 * saved document that is opened takes what the budget counts for it.
 *
 * The linker sends loam's own calls (tests/engine/CMakeLists.txt, --wrap) through the counters below; those inside
 * libraries that are linked dynamically are not seen. */
#include "testing.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "cache/store/store.h"
#include "engine/engine.h"
#include "generate/sampler.h"
#include "model/tiny_model.h"
#include "platform/memory.h"

enum {
    PROMPT = 50,
    CAPTURE_STEPS = 2, /* of which the second becomes a graph */
    STEPS = 150,       /* several chunks of 64 tokens begin on the way */
    SEQUENCES = 3
};

static atomic_size_t calls; /* threads of the pool count too */
/* Bytes, without those of mmap, above what libraries have taken that loam frees; the most since it was set. */
static atomic_size_t held = 1 << 30, most;
static atomic_size_t areas; /* of mmap, of less than slots and buffers have */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void __real_free(void *memory);
void *__real_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void __wrap_free(void *memory);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset);

static void *took(void *memory) {
    const size_t now = atomic_fetch_add(&held, malloc_usable_size(memory)) + malloc_usable_size(memory);
    size_t before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {}
    atomic_fetch_add(&calls, 1);
    return memory;
}

void *__wrap_malloc(size_t size) { return took(__real_malloc(size)); }
void *__wrap_calloc(size_t count, size_t size) { return took(__real_calloc(count, size)); }

void *__wrap_realloc(void *memory, size_t size) {
    atomic_fetch_sub(&held, malloc_usable_size(memory));
    return took(__real_realloc(memory, size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return took(__real_aligned_alloc(alignment, size));
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    const int failed = __real_posix_memalign(memory, alignment, size);
    if (failed == 0) (void)took(*memory);
    return failed;
}

void __wrap_free(void *memory) {
    atomic_fetch_sub(&held, malloc_usable_size(memory));
    __real_free(memory);
}

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    atomic_fetch_add(&calls, 1);
    atomic_fetch_add(&areas, length < MEMORY_AREA_BYTES_MIN);
    return __real_mmap(address, length, protection, flags, file, offset);
}

/* Decodes STEPS tokens for every sequence together; the calls that it made. */
static size_t calls_of_decoding(const struct plan *options, struct error *error) {
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct sampler *sampler;
    struct sequence *sequences[SEQUENCES];
    int32_t prompt[PROMPT], tokens[SEQUENCES] = {1, 2, 3};
    const float *logits;
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.head_dimension = 32; /* what q8 KV needs */
    const struct device_options machine = {.thread_count = 2, .mask = cpu_default()};
    struct sampler_options sampling = sampler_options_default();
    sampling.repeat_penalty = 1.1F;
    sampling.seed = 3;
    tiny_model_load(&tiny, "allocations", &machine, &device, &model);
    assert_ok(engine_create(&engine, model, options, NULL, error), *error);
    assert_ok(sampler_create(&sampler, &sampling, NULL, tiny.vocabulary_size, error), *error);
    for (size_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i % tiny.vocabulary_size);
    for (size_t s = 0; s < SEQUENCES; s++) {
        struct prefill_request request = {.tokens = prompt, .token_count = PROMPT};
        assert_ok(sequence_create(&sequences[s], engine, error), *error);
        assert_ok(engine_prefill(engine, sequences[s], &request, &logits, error), *error);
    }
    size_t before = atomic_load(&calls);
    assert_true(before > 0); /* else the linker did not send them here */
    for (size_t i = 0; i < CAPTURE_STEPS + STEPS; i++) {
        if (i == CAPTURE_STEPS) before = atomic_load(&calls);
        assert_ok(engine_step(engine, sequences, tokens, SEQUENCES, &logits, error), *error);
        for (size_t s = 0; s < SEQUENCES; s++) {
            assert_ok(sampler_pick(sampler, logits + s * tiny.vocabulary_size, &tokens[s], error), *error);
            sampler_accept(sampler, tokens[s]);
        }
    }
    size_t made = atomic_load(&calls) - before;
    for (size_t s = 0; s < SEQUENCES; s++) sequence_destroy(sequences[s]);
    sampler_destroy(sampler);
    engine_destroy(engine);
    model_destroy(model);
    device_destroy(device);
    return made;
}

static void decoding_allocates_nothing(void **state) {
    (void)state;
    struct error error;
    struct plan options = {.context_size = 256, .sequence_capacity = SEQUENCES};
    assert_int_equal(calls_of_decoding(&options, &error), 0);
    options.k_type = options.v_type = KV_Q8;
    assert_int_equal(calls_of_decoding(&options, &error), 0);
}

/* Tables of two documents, the one that is read and the one that is written behind it, which together touch what is
 * counted for one.  What a run of the key index and a state are read into was there before: not half of it is
 * allocated. */
static void opening_check(const char *family, const char *preset, const char *settings) {
    enum { DOCUMENT = 1100, CONTEXT = 1280 /* more than a run of the key index */, DEPARTS = 1000 };
    struct device *device;
    struct model *model;
    struct error error;
    struct scratch scratch;
    struct kv_cache_config cache;
    static int32_t tokens[DOCUMENT];
    struct tiny_model tiny = tiny_model_default(family);
    const struct device_options machine = {.thread_count = 1, .mask = cpu_default()};
    struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1};
    if (tiny.taps > 0)
        tiny.hidden_size = 1024; /* a state of more than tables */
    else
        tiny.kv_head_count = tiny.head_count, tiny.head_dimension = 64;
    for (size_t i = 0; i < DOCUMENT; i++) tokens[i] = (int32_t)(i * 7 % tiny.vocabulary_size);
    tiny_model_load(&tiny, "opening", &machine, &device, &model);
    scratch_create(&scratch, SCRATCH_MEMORY);
    assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &error), error);
    assert_ok(plan_set_axes(&plan, preset, settings, NULL, &error), error);
    assert_ok(plan_host_bytes_min(&plan, &model->config, &plan.host_bytes, &error), error);
    assert_ok(plan_cache_config(&plan, &model->config, &cache, &error), error);
    const struct store_layout layout = kv_tier_store_layout(&cache);
    const uint64_t part = tiny.taps > 0 ? cache.state_floats * sizeof(float)
                                        : 16 * layout.kv_head_count * (uint64_t)layout.key_index_bytes;
    for (int opens = 0; opens < 2; opens++) {
        struct engine *engine;
        struct sequence *sequence;
        const struct prefill_request request = {.tokens = tokens, .token_count = DOCUMENT};
        assert_ok(engine_create(&engine, model, &plan, NULL, &error), error);
        assert_ok(sequence_create(&sequence, engine, &error), error);
        for (size_t i = DEPARTS; i < DOCUMENT && opens > 0 && tiny.taps > 0; i++) tokens[i] = 1; /* pages are copied */
        const size_t before = atomic_load(&held);
        atomic_store(&most, before);
        atomic_store(&areas, 0);
        assert_ok(engine_prefill(engine, sequence, &request, NULL, &error), error);
        assert_int_equal(sequence_reused_tokens(sequence) > 0, opens);
        assert_true(atomic_load(&most) - before < 2 * document_memory_bytes(&layout, CONTEXT) + part / 2);
        assert_int_equal(atomic_load(&areas), 0);
        assert_ok(sequence_save(sequence, &error), error);
        assert_ok(sequence_flush(sequence, &error), error);
        sequence_destroy(sequence);
        engine_destroy(engine);
    }
    plan_deinit(&plan);
    scratch_destroy(&scratch);
    model_destroy(model);
    device_destroy(device);
}

static void opening_takes_what_is_counted(void **state) {
    (void)state;
    opening_check("llama", "hata", "codec=f16,dense=0");
    opening_check("lfm2", "full", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding_allocates_nothing),
                                       cmocka_unit_test(opening_takes_what_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
