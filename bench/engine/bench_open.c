/* What the opening of a saved document takes, by parts, and the first token behind it: KV is made up and saved once,
 * then the document is opened anew in every round, by an engine that stays, with its files in the page cache.
 *
 *     bench_open MODEL DIR [-d tokens] [-m MiB] [-p preset] [-k keep] [-s settings] [-r rounds]
 *                          [-t threads] [-o 0|1] [-a 0|1]
 *
 * DIR is made, and is to be removed afterwards; -o 1 opens what is there, -a 0 does without the tokens.  CSV on
 * standard output, a line for each part of a round, in ms: by the clock, of processor time, and of that the engine's:
 *
 *     find      the document is found by its tokens
 *     catalog   its row and checksums are read and compared, its files opened
 *     open      all of the opening, these two and what follows them: key index, tail, tables
 *     first     the first token behind that
 *     step      the next token */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/random.h"
#include "engine/engine_internal.h"
#include "platform/clock.h"

enum { TAIL_MAX = 512 };

struct request {
    const char *model, *folder, *preset, *keep, *settings;
    size_t depth, host_mib, rounds, threads;
    bool only_open, answers;
};

static void check(enum status status, const struct error *error) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "bench_open: %s\n", error->message);
    exit(1);
}

static void usage(void) {
    fprintf(stderr, "bench_open MODEL DIR [-d tokens] [-m MiB] [-p preset] [-k keep] [-s settings] [-r rounds]\n"
                    "           [-t threads] [-o 0|1] [-a 0|1]\n");
    exit(2);
}

static struct request request_read(int argc, char **argv) {
    struct request request = {.preset = "hata",
                              .keep = "2048",
                              .settings = "planes=1,page=8,dense=0",
                              .depth = 32768,
                              .host_mib = 2048,
                              .rounds = 8,
                              .answers = true};
    if (argc < 3) usage();
    request.model = argv[1];
    request.folder = argv[2];
    for (int i = 3; i < argc; i += 2) {
        if (i + 1 == argc) usage();
        const char *value = argv[i + 1];
        const size_t number = strtoull(value, NULL, 10);
        switch (argv[i][0] == '-' ? argv[i][1] : 0) {
        case 'd': request.depth = number; break;
        case 'm': request.host_mib = number; break;
        case 'p': request.preset = value; break;
        case 'k': request.keep = value; break;
        case 's': request.settings = value; break;
        case 'r': request.rounds = number; break;
        case 't': request.threads = number; break;
        case 'o': request.only_open = number != 0; break;
        case 'a': request.answers = number != 0; break;
        default: usage();
        }
    }
    return request;
}

struct opened {
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct plan plan;
};

static void open_engine(struct opened *opened, const struct request *request) {
    struct error error;
    const struct device_options device_options = {.thread_count = request->threads, .mask = cpu_features()};
    struct plan *plan = &opened->plan;
    *opened = (struct opened){.plan = {.context_size = request->depth + TAIL_MAX,
                                       .sequence_capacity = 1,
                                       .k_type = KV_F16,
                                       .v_type = KV_F16,
                                       .host_bytes = (uint64_t)request->host_mib << 20,
                                       .suffix = SUFFIX_CHEAPER,
                                       .document_name = "made up"}};
    check(plan_set_disk(plan, request->folder, strlen(request->folder), 0, &error), &error);
    check(plan_set_axes(plan, request->preset, request->settings, request->keep, &error), &error);
    check(device_cpu_create(&opened->device, &device_options, &error), &error);
    check(model_load(&opened->model, request->model, opened->device, &error), &error);
    check(engine_create(&opened->engine, opened->model, plan, NULL, &error), &error);
}

static void close_engine(struct opened *opened) {
    engine_destroy(opened->engine);
    model_destroy(opened->model);
    device_destroy(opened->device);
    plan_deinit(&opened->plan);
}

static int32_t *make_tokens(const struct opened *opened, size_t count) {
    const size_t vocabulary = engine_config(opened->engine)->vocabulary_size;
    int32_t *tokens = calloc(count, sizeof *tokens);
    struct random random;
    random_init(&random, 1);
    for (size_t i = 0; tokens != NULL && i < count; i++) tokens[i] = (int32_t)random_below(&random, vocabulary);
    if (tokens == NULL) exit(1);
    return tokens;
}

static void fill(const struct request *request) {
    struct opened opened;
    struct error error;
    struct sequence *sequence;
    open_engine(&opened, request);
    int32_t *tokens = make_tokens(&opened, request->depth);
    check(sequence_create(&sequence, opened.engine, &error), &error);
    check(engine_fill_random(opened.engine, sequence, request->depth, 1, &error), &error);
    sequence_note_tokens(sequence, 0, tokens, request->depth);
    check(kv_sequence_commit(sequence->kv, sequence->tokens, &error), &error);
    check(sequence_flush(sequence, &error), &error);
    sequence_destroy(sequence);
    free(tokens);
    close_engine(&opened);
}

struct times {
    double clock, processor, own; /* seconds */
};

static double seconds_used(int who) {
    struct rusage usage;
    if (getrusage(who, &usage) != 0) return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static struct times now(void) {
    return (struct times){clock_seconds(), seconds_used(RUSAGE_SELF), seconds_used(RUSAGE_THREAD)};
}

static void print(size_t round, const char *part, struct times began) {
    const struct times ended = now();
    printf("%zu,%s,%.2f,%.2f,%.2f\n", round, part, (ended.clock - began.clock) * 1e3,
           (ended.processor - began.processor) * 1e3, (ended.own - began.own) * 1e3);
}

/* The parts alone, which the opening then does once more. */
static void parts_measure(struct opened *opened, const struct request *request, size_t round, const int32_t *tokens) {
    struct error error;
    const struct documents_prompt prompt = {.tokens = tokens, .token_count = request->depth};
    const struct kv_backing *backing = documents_backing(opened->engine->documents);
    struct store_match match;
    struct document *document;
    uint64_t found;
    struct times began = now();
    check(documents_find_prefix(opened->engine->documents, &prompt, &found, &error), &error);
    print(round, "find", began);
    check(store_find(backing->store,
                     &(struct store_query){&backing->model, &backing->layout, tokens, request->depth, STORE_LIKE_KIND},
                     &match, &error),
          &error);
    began = now();
    check(document_open(&document, backing->store, match.document, &backing->model, &match.layout, DOCUMENT_READ, 0,
                        &error),
          &error);
    print(round, "catalog", began);
    document_close(document);
}

static void measure(struct opened *opened, const struct request *request, size_t round, int32_t *tokens) {
    struct error error;
    struct sequence *sequence;
    const float *logits;
    parts_measure(opened, request, round, tokens);
    check(sequence_create(&sequence, opened->engine, &error), &error);
    tokens[request->depth - 1] = (int32_t)(round % 2); /* departs: nothing is written */
    struct times began = now();
    check(sequence_attach(sequence, tokens, request->depth - 1, &error), &error);
    print(round, "open", began);
    if (sequence_reused_tokens(sequence) != request->depth - 1) {
        fprintf(stderr, "bench_open: the document was not found\n");
        exit(1);
    }
    const struct prefill_request prompt = {.tokens = tokens + request->depth - 1, .token_count = 1};
    static const char *const parts[] = {"first", "step"};
    for (size_t i = 0; i < 2 && request->answers; i++) {
        began = now();
        check(engine_prefill(opened->engine, sequence, &prompt, &logits, &error), &error);
        print(round, parts[i], began);
    }
    sequence_destroy(sequence);
}

int main(int argc, char **argv) {
    const struct request request = request_read(argc, argv);
    struct opened opened;
    if (!request.only_open) fill(&request);
    open_engine(&opened, &request);
    int32_t *tokens = make_tokens(&opened, request.depth + 1);
    printf("round,part,clock_ms,processor_ms,engine_ms\n");
    for (size_t round = 0; round < request.rounds; round++) measure(&opened, &request, round, tokens);
    free(tokens);
    close_engine(&opened);
    return 0;
}
