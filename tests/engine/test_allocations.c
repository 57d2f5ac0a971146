/* No allocator call per token: once an engine, its sequences and a sampler exist, decoding asks for no memory.
 *
 * The linker sends loam's own calls (tests/engine/CMakeLists.txt, --wrap) through the counters below; those inside
 * libraries that are linked dynamically are not seen. */
#include "testing.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/engine.h"
#include "generate/sampler.h"
#include "model/tiny_model.h"

enum {
    PROMPT = 50,
    CAPTURE_STEPS = 2, /* of which the second becomes a graph */
    STEPS = 150,       /* several chunks of 64 tokens begin on the way */
    SEQUENCES = 3
};

static atomic_size_t calls; /* threads of the pool count too */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void *__real_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset);

void *__wrap_malloc(size_t size) {
    atomic_fetch_add(&calls, 1);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    atomic_fetch_add(&calls, 1);
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    atomic_fetch_add(&calls, 1);
    return __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    atomic_fetch_add(&calls, 1);
    return __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    atomic_fetch_add(&calls, 1);
    return __real_posix_memalign(memory, alignment, size);
}

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    atomic_fetch_add(&calls, 1);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
