/* Where a step's time goes: the engine on a device whose every operation is timed from outside.
 *
 *     bench_operations MODEL [-t threads] [-d depth] [-p prompt tokens] [-n steps] [-s sequences]
 *                            [-a ahead]
 *
 * Prefills p random tokens at depth d (made-up KV), then decodes n tokens with s sequences, or in passes of `ahead`
 * rows of one (drafts), and prints per kind of operation: calls, milliseconds per step, share, and the milliseconds
 * where each call takes what it took in its quickest step, which say most on a busy machine; for products the weight
 * bytes per second. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "engine/engine.h"
#include "platform/clock.h"

enum kind { EMBED, MATMUL, NORM, ANGLES, ROPE, ACTIVATION, APPEND, ATTEND, GATHER, KINDS };
static const char *const KIND_NAMES[KINDS] = {"embed",      "matmul", "norm",   "rope angles", "rope",
                                              "activation", "append", "attend", "gather"};

/* One thread calls the device, so the timed table may keep its figures here. */
static const struct device_operations *inner;
enum { STEP_CALLS_MAX = 4096 }; /* of a kind that are told apart */
static struct figure {
    uint64_t calls, ns, bytes, step_calls; /* the last one: of the step under way */
    uint64_t least_ns[STEP_CALLS_MAX];
} figures[KINDS];

static void note(enum kind kind, uint64_t ns) {
    struct figure *figure = &figures[kind];
    const size_t call = figure->step_calls++ % STEP_CALLS_MAX;
    if (figure->least_ns[call] == 0 || ns < figure->least_ns[call]) figure->least_ns[call] = ns;
    figure->ns += ns;
    figure->calls++;
}

#define TIMED(name, kind)                                                                       \
    static void timed_##name(struct stream *stream, const struct name##_operation *operation) { \
        uint64_t begin_ns = clock_ns();                                                         \
        inner->name(stream, operation);                                                         \
        note(kind, clock_ns() - begin_ns);                                                      \
    }

TIMED(embed, EMBED)
TIMED(norm, NORM)
TIMED(rope_angles, ANGLES)
TIMED(rope, ROPE)
TIMED(activation, ACTIVATION)
TIMED(append, APPEND)
TIMED(attend, ATTEND)
TIMED(gather, GATHER)

static void timed_matmul(struct stream *stream, const struct matmul_operation *operation) {
    uint64_t begin_ns = clock_ns();
    inner->matmul(stream, operation);
    note(MATMUL, clock_ns() - begin_ns);
    for (size_t i = 0; i < operation->weight_count; i++)
        figures[MATMUL].bytes += operation->weights[i]->matrix.rows * operation->weights[i]->matrix.row_bytes;
}

static void check(enum status status, const struct error *error) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "bench_operations: %s\n", error->message);
    exit(1);
}

static void end_step(void) {
    for (size_t i = 0; i < KINDS; i++) figures[i].step_calls = 0;
}

static double quickest_ms(const struct figure *figure) {
    uint64_t ns = 0;
    for (size_t i = 0; i < STEP_CALLS_MAX; i++) ns += figure->least_ns[i];
    return (double)ns * 1e-6;
}

static void print_figures(const char *title, uint64_t total_ns, double steps, double tokens) {
    uint64_t known_ns = 0;
    printf("%s: %.2f ms per step, %.1f tokens/s\n", title, (double)total_ns / steps * 1e-6,
           tokens / (double)total_ns * 1e9);
    for (size_t i = 0; i < KINDS; i++) {
        const struct figure *figure = &figures[i];
        known_ns += figure->ns;
        if (figure->calls == 0) continue;
        printf("  %-12s %6.0f calls %9.3f ms %5.1f%%", KIND_NAMES[i], (double)figure->calls / steps,
               (double)figure->ns / steps * 1e-6, 100 * (double)figure->ns / (double)total_ns);
        printf(" quickest %8.3f ms", quickest_ms(figure));
        if (figure->bytes > 0) printf("  %.2f GB/s", (double)figure->bytes / (double)figure->ns);
        printf("\n");
    }
    printf("  %-12s %12s %9.3f ms\n", "the rest", "", (double)(total_ns - known_ns) / steps * 1e-6);
    memset(figures, 0, sizeof figures);
}

struct request {
    const char *path;
    size_t threads, depth, prompt, steps, sequences, ahead;
};

static struct request request_read(int argc, char **argv) {
    struct request request = {.path = argc > 1 ? argv[1] : NULL, .steps = 16, .sequences = 1, .ahead = 1};
    for (int i = 2; i + 1 < argc; i += 2) {
        size_t value = strtoull(argv[i + 1], NULL, 10);
        switch (argv[i][0] == '-' ? argv[i][1] : 0) {
        case 't': request.threads = value; break;
        case 'd': request.depth = value; break;
        case 'p': request.prompt = value; break;
        case 'n': request.steps = value; break;
        case 's': request.sequences = value; break;
        case 'a': request.ahead = value; break;
        default: request.path = NULL; break;
        }
    }
    if (request.path == NULL || request.sequences < 1 || request.sequences > ENGINE_SEQUENCES_MAX ||
        request.ahead < 1 || request.ahead > ENGINE_AHEAD_MAX ||
        (request.ahead > 1 && request.sequences > 1)) {
        fprintf(stderr, "usage: bench_operations MODEL [-t threads] [-d depth] [-p prompt] [-n steps] "
                        "[-s sequences] [-a ahead]\n");
        exit(2);
    }
    return request;
}

static void bench_prefill(struct engine *engine, struct sequence *sequence, const struct request *request) {
    if (request->prompt == 0) return;
    struct error error;
    struct random random;
    random_init(&random, 3);
    const float *logits;
    int32_t *tokens = calloc(request->prompt, sizeof *tokens);
    if (tokens == NULL) exit(1);
    for (size_t i = 0; i < request->prompt; i++)
        tokens[i] = (int32_t)random_below(&random, engine_config(engine)->vocabulary_size);
    for (int round = 0; round < 2; round++) { /* the first warms pages and scratch */
        const struct prefill_request prefill = {.tokens = tokens, .token_count = request->prompt};
        sequence_truncate(sequence, request->depth);
        memset(figures, 0, sizeof figures);
        uint64_t begin_ns = clock_ns();
        check(engine_prefill(engine, sequence, &prefill, &logits, &error), &error);
        end_step();
        if (round == 1) print_figures("prefill", clock_ns() - begin_ns, 1, (double)request->prompt);
    }
    free(tokens);
}

static void bench_decode(struct engine *engine, struct sequence *const *sequences,
                         const struct request *request) {
    int32_t tokens[ENGINE_SEQUENCES_MAX] = {0};
    struct error error;
    const float *logits;
    uint64_t begin_ns = 0;
    for (size_t step = 0; step < request->steps + 2; step++) {
        if (step == 2) { /* the first two warm */
            memset(figures, 0, sizeof figures);
            begin_ns = clock_ns();
        }
        const size_t rows = max_size(request->sequences, request->ahead);
        for (size_t i = 0; i < rows; i++) tokens[i] = (int32_t)(step * 7 + i);
        if (request->ahead > 1)
            check(engine_step_ahead(engine, sequences[0], tokens, request->ahead, &logits, &error), &error);
        else
            check(engine_step(engine, sequences, tokens, request->sequences, &logits, &error), &error);
        end_step();
        sequence_truncate(sequences[0],
                          request->depth + request->prompt); /* the last row of a chunk goes alone */
    }
    print_figures("decode", clock_ns() - begin_ns, (double)request->steps,
                  (double)(request->steps * request->sequences));
}

int main(int argc, char **argv) {
    struct request request = request_read(argc, argv);
    struct error error;
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct sequence *sequences[ENGINE_SEQUENCES_MAX];
    check(device_cpu_create(&device, &(struct device_options){request.threads, cpu_features()}, &error),
          &error);
    inner = device->operations;
    struct device_operations timed = *inner;
    timed.embed = timed_embed;
    timed.matmul = timed_matmul;
    timed.norm = timed_norm;
    timed.rope_angles = timed_rope_angles;
    timed.rope = timed_rope;
    timed.activation = timed_activation;
    timed.append = timed_append;
    timed.attend = timed_attend;
    timed.gather = timed_gather;
    device->operations = &timed;
    check(model_load(&model, request.path, device, &error), &error);
    const struct plan options = {.context_size = request.depth + request.prompt + request.ahead + 2,
                                 .sequence_capacity = request.sequences};
    check(engine_create(&engine, model, &options, NULL, &error), &error);
    for (size_t i = 0; i < request.sequences; i++) {
        check(sequence_create(&sequences[i], engine, &error), &error);
        check(engine_fill_random(engine, sequences[i], request.depth, i, &error), &error);
    }
    bench_prefill(engine, sequences[0], &request);
    if (request.steps > 0) bench_decode(engine, sequences, &request);
    for (size_t i = 0; i < request.sequences; i++) sequence_destroy(sequences[i]);
    engine_destroy(engine);
    model_destroy(model);
    device_destroy(device);
    return 0;
}
