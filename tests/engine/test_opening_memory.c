/* Opening a saved document takes no memory that --kv-host does not count: of what loam's own calls allocate
 * (tests/engine/CMakeLists.txt, --wrap) between an engine's making and the first token nothing is there for a while
 * alone, and what stays are tables of documents: of the one that is opened, and of the one that what does not fit in
 * RAM is written to, which touches its part of them alone, so that both are as large as the one that is counted. */
#include "testing.h"

#include <malloc.h>
#include <stdatomic.h>
#include <string.h>

#include "../platform/scratch.h"
#include "base/random.h"
#include "cache/store/store.h"
#include "engine/engine.h"
#include "model/tiny_model.h"

enum { DOCUMENT = 5000, CONTEXT = 5120, HEADS = 8, CHUNK = KV_CHUNK_TOKENS * 64 * 4, BESIDE = 4096 };

static atomic_size_t now, most;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void __wrap_free(void *memory);

static void *taken(void *memory) {
    if (memory == NULL) return NULL;
    const size_t held = atomic_fetch_add(&now, malloc_usable_size(memory)) + malloc_usable_size(memory);
    size_t seen = atomic_load(&most);
    while (held > seen && !atomic_compare_exchange_weak(&most, &seen, held)) {}
    return memory;
}
void *__wrap_malloc(size_t size) { return taken(__real_malloc(size)); }
void *__wrap_calloc(size_t count, size_t size) { return taken(__real_calloc(count, size)); }
void __wrap_free(void *memory) {
    if (memory != NULL) atomic_fetch_sub(&now, malloc_usable_size(memory));
    __real_free(memory);
}

static void an_opened_document_stays_within_the_budget(void **state) {
    (void)state;
    struct error error;
    struct scratch scratch;
    struct device *device;
    struct model *model;
    struct random random;
    static int32_t tokens[CONTEXT];
    struct tiny_model tiny = tiny_model_default("llama");
    tiny.head_dimension = 64, tiny.head_count = tiny.kv_head_count = HEADS;
    const struct device_options machine = {.thread_count = 1, .mask = cpu_default()};
    tiny_model_load(&tiny, "opening-memory", &machine, &device, &model);
    random_init(&random, 5);
    tiny_model_tokens(&tiny, &random, tokens, CONTEXT);
    scratch_create(&scratch, SCRATCH_MEMORY);
    for (int opened = 0; opened < 2; opened++) {
        struct plan plan = {.context_size = CONTEXT, .sequence_capacity = 1, .batch_size = 256};
        struct engine *engine;
        struct sequence *sequence;
        const float *logits;
        assert_ok(plan_set_axes(&plan, "hata", "planes=1,page=8,dense=0", "256", &error), error);
        assert_ok(plan_set_disk(&plan, scratch.path, strlen(scratch.path), 0, &error), error);
        assert_ok(plan_host_bytes_min(&plan, &model->config, &plan.host_bytes, &error), error);
        assert_ok(engine_create(&engine, model, &plan, NULL, &error), error);
        assert_ok(sequence_create(&sequence, engine, &error), error);
        const size_t before = atomic_load(&now);
        atomic_store(&most, before);
        if (opened) {
            const struct prefill_request request = {.tokens = tokens, .token_count = DOCUMENT};
            assert_ok(engine_prefill(engine, sequence, &request, &logits, &error), error);
            assert_int_equal(sequence_reused_tokens(sequence), DOCUMENT - 1);
            const struct store_layout layout = {.layer_count = (uint32_t)tiny.layer_count,
                                                .kv_head_count = HEADS,
                                                .chunk_bytes = CHUNK,
                                                .key_index_bytes =
                                                    (uint32_t)select_key_index_bytes(engine_select(engine))};
            assert_in_range(atomic_load(&most) - atomic_load(&now), 0, BESIDE);
            assert_in_range(atomic_load(&now) - before, 1, 2 * document_memory_bytes(&layout, CONTEXT) + BESIDE);
        } else {
            assert_ok(engine_fill_document(engine, sequence, tokens, DOCUMENT, 1, &error), error);
        }
        sequence_destroy(sequence);
        engine_destroy(engine);
        plan_deinit(&plan);
    }
    scratch_destroy(&scratch);
    model_destroy(model);
    device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_opened_document_stays_within_the_budget)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
