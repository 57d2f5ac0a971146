/* Recomputing K and V behind a link (platform/io_link.h), in made-up time: it passes while a chunk is computed again
 * and while the link is waited for, so nothing depends on the machine.
 *
 * A document that is opened is computed or loaded, whichever is sooner, and then in RAM.
 *
 * A disk becomes ten times slower in a run, and fast again: within 32 steps K and V are computed again instead of read,
 * and read again; every step ends with the same logits.  And the split that takes least is the one that
 * attention/split.h predicts. */
#include "testing.h"

#if __has_include(<liburing.h>)
#include <liburing.h>
#include <sched.h>
#endif
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../platform/scratch.h"
#include "attention/split.h"
#include "base/random.h"
#include "cache/inputs.h"
#include "engine/engine.h"
#include "model/tiny_model.h"
#include "platform/io_link.h"

enum { PROMPT = 1536, STEPS = 32, PHASES = 4, TOKENS = PROMPT + 360, CONTEXT = 1920, WIDTH_MAX = 512 };
enum { LAYERS = 8, CALL_NS = 1, CHUNK_NS = 64000, HOST_BYTES = 6200 << 10 };
static const uint64_t SECOND_NS = 1000000000,
                      FAST = UINT64_C(10000000000); /* bytes a second: a token's KV in 0.1 us */

static _Atomic uint64_t now_ns = 1;

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    const uint64_t ns = atomic_fetch_add(&now_ns, CALL_NS);
    (void)clock;
    *now = (struct timespec){.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
    return 0;
}

int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    const uint64_t due = (uint64_t)until->tv_sec * SECOND_NS + (uint64_t)until->tv_nsec;
    uint64_t now = atomic_load(&now_ns);
    (void)clock, (void)left;
    assert_int_equal(flags, TIMER_ABSTIME);
    while (now < due && !atomic_compare_exchange_weak(&now_ns, &now, due)) continue;
    return 0;
}

static _Atomic size_t submissions; /* the writer submits, too */

/* A real read takes no made-up time: it ends before anybody looks.  Reads by threads (no io_uring) do not. */
#if __has_include(<liburing.h>)
int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);

int __wrap_io_uring_submit(struct io_uring *ring) {
    const int count = __real_io_uring_submit(ring);
    submissions++;
    while (__atomic_load_n(ring->cq.ktail, __ATOMIC_ACQUIRE) !=
           __atomic_load_n(ring->sq.khead, __ATOMIC_ACQUIRE))
        sched_yield();
    return count;
}
#endif

enum status __real_inputs_read_rows(struct inputs *inputs, size_t index, float *rows, struct error *error);
enum status __wrap_inputs_read_rows(struct inputs *inputs, size_t index, float *rows, struct error *error);

enum status __wrap_inputs_read_rows(struct inputs *inputs, size_t index, float *rows, struct error *error) {
    atomic_fetch_add(&now_ns, CHUNK_NS);
    return __real_inputs_read_rows(inputs, index, rows, error);
}

/* Of the first layer, a tile. */
const int32_t *__real_inputs_tokens(const struct inputs *inputs);
const int32_t *__wrap_inputs_tokens(const struct inputs *inputs);

const int32_t *__wrap_inputs_tokens(const struct inputs *inputs) {
    atomic_fetch_add(&now_ns, 4 * CHUNK_NS);
    return __real_inputs_tokens(inputs);
}

struct rig {
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct sequence *sequence;
    struct scratch scratch;
    struct error error;
    int32_t tokens[TOKENS];
    float (*want)[WIDTH_MAX]; /* owned; [PHASES * STEPS] */
    size_t width, done;
    struct tiny_model tiny;
};

/* An engine with the prompt in its sequence; on_disk false: all KV in memory. */
static void start(struct rig *rig, bool on_disk) {
    const struct plan plan = {.context_size = CONTEXT,
                              .sequence_capacity = 1,
                              .batch_size = 256,
                              .segment_size = 512,
                              .k_type = KV_F16,
                              .v_type = KV_F16,
                              .host_bytes = on_disk ? HOST_BYTES : 0,
                              .disk_directory = on_disk ? rig->scratch.path : NULL,
                              .document_name = "slow disk",
                              .rebuilds = on_disk};
    assert_ok(engine_create(&rig->engine, rig->model, &plan, NULL, &rig->error), rig->error);
    assert_ok(sequence_create(&rig->sequence, rig->engine, &rig->error), rig->error);
    const struct prefill_request request = {.tokens = rig->tokens, .token_count = PROMPT};
    assert_ok(engine_prefill(rig->engine, rig->sequence, &request, NULL, &rig->error), rig->error);
    assert_ok(sequence_flush(rig->sequence, &rig->error), rig->error);
    rig->done = 0;
}

static void stop(struct rig *rig) {
    sequence_destroy(rig->sequence);
    engine_destroy(rig->engine);
}

static const float *step(struct rig *rig) {
    const float *logits;
    assert_ok(
        engine_step(rig->engine, &rig->sequence, &rig->tokens[PROMPT + rig->done++], 1, &logits, &rig->error),
        rig->error);
    return logits;
}

static void rig_open(struct rig *rig) {
    const struct device_options device = {.thread_count = 1,
                                          .mask = cpu_default()};
    struct tiny_model tiny = tiny_model_default("llama");
    struct random random;
    tiny.type = TENSOR_Q8_0;
    tiny.layer_count = LAYERS;
    tiny.hidden_size = 256, tiny.ffn_size = 256;
    tiny.head_count = tiny.kv_head_count = 4, tiny.head_dimension = 64;
    memset(rig, 0, sizeof *rig);
    tiny_model_load(&tiny, "slow_disk", &device, &rig->device, &rig->model);
    rig->tiny = tiny;
    rig->width = tiny.vocabulary_size;
    assert_true(rig->width <= WIDTH_MAX);
    random_init(&random, 8);
    tiny_model_tokens(&tiny, &random, rig->tokens, TOKENS);
    scratch_create(&rig->scratch, SCRATCH_MEMORY);
    rig->want = calloc(PHASES * STEPS, sizeof *rig->want);
    assert_non_null(rig->want);
}

/* The logits of all steps, with all KV in memory. */
static void set_wanted(struct rig *rig) {
    start(rig, false);
    for (size_t i = 0; i < PHASES * STEPS; i++) memcpy(rig->want[i], step(rig), rig->width * sizeof(float));
    stop(rig);
}

static void rig_close(struct rig *rig) {
    model_destroy(rig->model);
    device_destroy(rig->device);
    scratch_destroy(&rig->scratch);
    free(rig->want);
}

/* Of a number of steps: of what RAM lacked, the share that was computed again. */
static double rebuilt_share(struct rig *rig, size_t steps) {
    const struct rebuild_statistics before = attention_rebuild_statistics(engine_attention(rig->engine));
    for (size_t i = 0; i < steps; i++) {
        const float *logits = step(rig);
        assert_memory_equal(logits, rig->want[rig->done - 1], rig->width * sizeof *logits);
    }
    const struct rebuild_statistics after = attention_rebuild_statistics(engine_attention(rig->engine));
    assert_int_equal(after.refusals, 0);
    const double missing = (double)(after.missing_chunks - before.missing_chunks);
    assert_true(missing > 0);
    return (double)(after.chunks - before.chunks) / missing;
}

static void skip_without_io_uring(void) {
    if (submissions > 0) return;
    print_message("skipped: io_uring is not to be had\n");
    skip();
}

static void a_disk_ten_times_slower(void **state) {
    (void)state;
    struct rig rig;
    rig_open(&rig);
    set_wanted(&rig);
    io_link_limit(FAST);
    start(&rig, true);
    for (size_t round = 0; round < PHASES / 2 && submissions > 0; round++) {
        io_link_limit(FAST);
        (void)rebuilt_share(&rig, STEPS - 8);
        const double fast = rebuilt_share(&rig, 8);
        io_link_limit(FAST / 10);
        (void)rebuilt_share(&rig, STEPS - 8);
        const double slow = rebuilt_share(&rig, 8);
        assert_true(fast < 0.25 && slow > 0.45); /* by attention/split.h 0 and 0.6 */
    }
    io_link_limit(0);
    stop(&rig);
    rig_close(&rig);
    skip_without_io_uring();
}

/* ---- the crossing ---- */

struct point {
    double tokens, missing; /* of a layer: computed again, of what RAM lacks of any head */
    double kv_bytes;        /* that were read, of a token of those that were not computed again */
    double seconds;         /* of a step */
    uint64_t held_tokens;   /* whose KV memory has room for while others are computed */
};

enum { LINK_STEPS = 2 }; /* with those of the share: more than half of the samples */
static const double LINK_MOST = 1.05, LINK_LEAST = 0.95;
enum { INPUT_BYTES = 320 }; /* a page of 20,480 bytes for 64 tokens; the first layer has none */
static uint64_t link_bytes;
uint64_t __real_io_link_read(uint64_t bytes);
uint64_t __wrap_io_link_read(uint64_t bytes);

uint64_t __wrap_io_link_read(uint64_t bytes) {
    link_bytes += bytes;
    return __real_io_link_read(bytes);
}

static double tokens_of(uint64_t chunks) { return (double)(chunks * KV_CHUNK_TOKENS) / LAYERS; }

/* The first step settles what RAM holds. */
static struct point measure(struct rig *rig, size_t forced) {
    struct attention *attention = engine_attention(rig->engine);
    attention_force_rebuild(attention, forced);
    (void)step(rig);
    const struct rebuild_statistics before = attention_rebuild_statistics(attention);
    const uint64_t began = now_ns, bytes_before = link_bytes;
    (void)step(rig);
    const struct rebuild_statistics after = attention_rebuild_statistics(attention);
    struct point point = {.tokens = tokens_of(after.chunks - before.chunks),
                          .missing = tokens_of(after.missing_chunks - before.missing_chunks),
                          .seconds = 1e-9 * (double)(now_ns - began),
                          .held_tokens = after.held_tokens};
    const double kv = (double)(link_bytes - bytes_before) - (LAYERS - 1) * INPUT_BYTES * point.tokens;
    if (point.missing > point.tokens) point.kv_bytes = kv / LAYERS / (point.missing - point.tokens);
    return point;
}

/* Seconds of a layer, by what time is made up of. */
static double predicted_layer(const struct point *point, uint64_t bytes_per_second, double input_bytes) {
    return split_seconds(&(struct split_question){.token_count = (uint64_t)point->missing,
                                                  .input_bytes = input_bytes,
                                                  .kv_bytes = point->kv_bytes,
                                                  .bytes_per_second = (double)bytes_per_second,
                                                  .seconds_per_token = 1e-9 * CHUNK_NS / KV_CHUNK_TOKENS,
                                                  .schedule = SPLIT_OVERLAPPED,
                                                  .first_tokens = REBUILD_ROWS_MAX,
                                                  .held_tokens = point->held_tokens},
                         (uint64_t)point->tokens);
}

static double predicted(const struct point *point, uint64_t bytes_per_second) {
    return predicted_layer(point, bytes_per_second, 0) +
           (LAYERS - 1) * predicted_layer(point, bytes_per_second, INPUT_BYTES);
}

/* What the engine takes the link for, however seldom it looks for what it reads: between two tiles. */
static void assert_link(const struct rig *rig, uint64_t bytes_per_second, double tokens) {
    const double rate = attention_rebuild_statistics(engine_attention(rig->engine)).bytes_per_second,
                 ratio = rate / (double)bytes_per_second;
    if (ratio > LINK_MOST || ratio < LINK_LEAST)
        fail_msg("%d MB/s, %.0f tokens: the engine takes it for %.1f MB/s", (int)(bytes_per_second / 1000000), tokens,
                 1e-6 * rate);
}

/* At every link the fixed share that takes least is the one that is predicted to, and all steps take what is predicted,
 * within a tenth. */
static void the_crossing_is_where_it_is_predicted(void **state) {
    (void)state;
    static const uint64_t links[] = {50000000, 100000000, 200000000, 500000000};
    struct rig rig;
    rig_open(&rig);
    io_link_limit(FAST);
    start(&rig, true);
    for (size_t i = 0; i < sizeof links / sizeof *links && submissions > 0; i++) {
        double best = 1e9, best_predicted = 1e9, best_tokens = 0, predicted_tokens = 0;
        io_link_limit(links[i]);
        for (size_t chunks = 3; chunks <= PROMPT / KV_CHUNK_TOKENS; chunks += 5) {
            const struct point point = measure(&rig, chunks);
            const double expected = predicted(&point, links[i]);
            for (size_t settling = 0; settling < LINK_STEPS; settling++) (void)measure(&rig, chunks);
            assert_link(&rig, links[i], point.tokens);
            if (fabs(point.seconds / expected - 1) >= 0.1)
                fail_msg("%d MB/s, %.0f of %.0f tokens: %.2f ms, predicted %.2f", (int)(links[i] / 1000000),
                         point.tokens, point.missing, 1e3 * point.seconds, 1e3 * expected);
            if (point.seconds < best) best = point.seconds, best_tokens = point.tokens;
            if (expected < best_predicted) best_predicted = expected, predicted_tokens = point.tokens;
        }
        print_message("%d MB/s: the best is %.0f tokens, %.2f ms; predicted %.0f, %.2f\n",
                      (int)(links[i] / 1000000), best_tokens, 1e3 * best, predicted_tokens,
                      1e3 * best_predicted);
        assert_true(best_tokens == predicted_tokens);
        attention_force_rebuild(engine_attention(rig.engine), 0);
        for (size_t settling = 0; settling < 16; settling++) (void)step(&rig);
        const struct point chosen = measure(&rig, 0);
        print_message("  the engine chooses %.0f, %.2f ms\n", chosen.tokens, 1e3 * chosen.seconds);
        assert_true(chosen.seconds < 1.15 * best);
    }
    io_link_limit(0);
    stop(&rig);
    rig_close(&rig);
    skip_without_io_uring();
}

/* The link carries weights, too, for most of a step: it is not taken for as slow as that leaves KV. */
static void the_link_beside_weights(void **state) {
    (void)state;
    enum { LINK = 50000000, SHARED_STEPS = 12 };
    struct rig rig;
    unsigned long long least;
    char path[64];
    rig_open(&rig);
    model_destroy(rig.model); /* its file is gone: this one stays */
    tiny_model_write(&rig.tiny, tiny_model_path("slow_disk_streamed", path, sizeof path));
    assert_ok(model_load(&rig.model, path, rig.device, &rig.error), rig.error);
    assert_int_equal(model_limit_weights(rig.model, 1, NULL, &rig.error), STATUS_MEMORY);
    assert_int_equal(sscanf(strstr(rig.error.message, "at least "), "at least %llu", &least), 1);
    assert_ok(model_limit_weights(rig.model, least, NULL, &rig.error), rig.error);
    io_link_limit(LINK);
    start(&rig, true);
    attention_force_rebuild(engine_attention(rig.engine), REBUILD_NOTHING);
    for (size_t i = 0; i < SHARED_STEPS; i++) (void)step(&rig);
    if (submissions > 0) assert_link(&rig, LINK, 0);
    io_link_limit(0);
    stop(&rig);
    rig_close(&rig);
    assert_int_equal(unlink(path), 0);
    skip_without_io_uring();
}

/* ---- opening ---- */

enum { ROOM_BYTES = 64 << 20, QUESTION = 40, PASSES = 2 };

/* Made-up seconds of the first passes over the opened document, whose KV RAM has room for: a question's rows, then a
 * step. */
static void open_and_ask(struct rig *rig, size_t forced, double seconds[PASSES]) {
    struct plan plan = {.context_size = CONTEXT,
                        .sequence_capacity = 1,
                        .batch_size = 256,
                        .segment_size = 512,
                        .k_type = KV_F16,
                        .v_type = KV_F16,
                        .host_bytes = ROOM_BYTES,
                        .disk_directory = rig->scratch.path,
                        .document_name = "slow disk",
                        .rebuilds = true};
    assert_ok(engine_create(&rig->engine, rig->model, &plan, NULL, &rig->error), rig->error);
    attention_force_rebuild(engine_attention(rig->engine), forced);
    assert_ok(sequence_create(&rig->sequence, rig->engine, &rig->error), rig->error);
    int32_t tokens[PROMPT + QUESTION];
    memcpy(tokens, rig->tokens, sizeof tokens);
    const struct prefill_request request = {.tokens = tokens, .token_count = PROMPT - QUESTION};
    const float *logits;
    uint64_t began = now_ns;
    assert_ok(engine_prefill(rig->engine, rig->sequence, &request, &logits, &rig->error), rig->error);
    assert_true(sequence_reused_tokens(rig->sequence) == PROMPT - QUESTION - 1);
    seconds[0] = 1e-9 * (double)(now_ns - began);
    began = now_ns;
    assert_ok(engine_step(rig->engine, &rig->sequence, &tokens[PROMPT - QUESTION], 1, &logits, &rig->error),
              rig->error);
    seconds[1] = 1e-9 * (double)(now_ns - began);
    stop(rig);
}

/* It takes less than reading it all, and the step after it reads nothing; where nothing is to be gained, a trial is all
 * that it costs. */
static void opening_computes_or_loads(void **state) {
    (void)state;
    static const uint64_t links[] = {100000000, 500000000, UINT64_C(10000000000)};
    static const double at_most[] = {0.5, 0.6, 1.15}; /* of reading all of it */
    struct rig rig;
    rig_open(&rig);
    io_link_limit(FAST);
    start(&rig, true);
    stop(&rig);
    for (size_t i = 0; i < sizeof links / sizeof *links && submissions > 0; i++) {
        double read[PASSES], chosen[PASSES];
        io_link_limit(links[i]);
        open_and_ask(&rig, REBUILD_NOTHING, read);
        open_and_ask(&rig, 0, chosen);
        print_message("%d MB/s: %.2f ms, %.2f all read; then %.3f, %.3f\n", (int)(links[i] / 1000000),
                      1e3 * chosen[0], 1e3 * read[0], 1e3 * chosen[1], 1e3 * read[1]);
        assert_true(chosen[0] < at_most[i] * read[0]);
        assert_true(chosen[1] < 0.01 * chosen[0]);
    }
    io_link_limit(0);
    rig_close(&rig);
    skip_without_io_uring();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(opening_computes_or_loads),
                                       cmocka_unit_test(a_disk_ten_times_slower),
                                       cmocka_unit_test(the_link_beside_weights),
                                       cmocka_unit_test(the_crossing_is_where_it_is_predicted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
