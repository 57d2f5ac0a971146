/* How long a saved document takes to answer, beside the prefill that it saves: its KV is made up and saved, then
 * everything is opened anew, from the model file on, and one prompt, the document and some tokens more, is answered
 * with its first token.
 *
 *     bench_reopen MODEL DIR [-d tokens] [-m MiB] [-k keep] [-s select] [-l leaf] [-q list] [-r rounds]
 *                            [-c suffix] [-t threads] [-o 0|1] [-p 0|1] [-x codec] [-i ids]
 *
 * DIR is made, and is to be removed afterwards; -o 1 opens what is there.  q: tokens behind the document, by comma;
 * suffix as of --suffix; x: f16, q4 or dynamic, of pages, the last as leoam has it.  Before each opening DIR's
 * files leave the page cache; the model file stays in it.  With -r 0 the document is made and nothing is measured; -i
 * names a file for its token ids, as JSON (bench/opened_document.py).
 *
 * The prefill: -p 1 computes the document and prints the seconds that took (prefill_basis "measured").  Else it is
 * estimated, before anything is opened: blocks of 256 tokens are computed behind made-up KV in RAM at depths of 0, a
 * quarter and half of the document, the best of three, a line is laid through their times per token, and that is
 * summed over all of it ("estimated"; the first line has the points).  Attention to everything before is what grows,
 * and grows linearly.
 *
 * CSV on standard output: seconds to load the model, to make the engine (the folder's catalog, the fingerprint of
 * the model), to find and open the document and answer, of these until the first token computed, and the prefill's. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attention/select.h"
#include "base/random.h"
#include "engine/engine_internal.h"
#include "platform/clock.h"

enum { QUESTIONS_MAX = 16, TAIL_MAX = 512, POINTS = 3, POINT_TOKENS = 256, POINT_ROUNDS = 3 };

struct request {
    const char *model, *folder, *select, *codec, *ids;
    size_t depth, host_mib, keep, leaf, rounds, threads, questions[QUESTIONS_MAX], question_count;
    enum plan_suffix suffix;
    bool only_open, computes;
};

struct prefill {
    double seconds;
    const char *basis;
};

static void check(enum status status, const struct error *error) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "bench_reopen: %s\n", error->message);
    exit(1);
}

static void usage(void) {
    fprintf(stderr, "bench_reopen MODEL DIR [-d tokens] [-m MiB] [-k keep] [-s select] [-l leaf] [-q list]\n"
                    "             [-r rounds] [-c dense|select|auto] [-t threads] [-o 0|1] [-p 0|1]\n"
                    "             [-x f16|q4|dynamic] [-i ids]\n");
    exit(2);
}

static enum plan_suffix suffix_of(const char *word) {
    if (strcmp(word, "dense") == 0) return SUFFIX_DENSE;
    return strcmp(word, "select") == 0 ? SUFFIX_SELECTS : SUFFIX_CHEAPER;
}

static struct request request_read(int argc, char **argv) {
    struct request request = {.select = "tree",
                              .codec = "f16",
                              .depth = 100000,
                              .host_mib = 256,
                              .keep = 2048,
                              .leaf = 64,
                              .rounds = 3,
                              .suffix = SUFFIX_CHEAPER,
                              .questions = {1},
                              .question_count = 1};
    if (argc < 3) usage();
    request.model = argv[1];
    request.folder = argv[2];
    for (int i = 3; i + 1 < argc; i += 2) {
        char *value = argv[i + 1];
        size_t number = strtoull(value, NULL, 10);
        switch (argv[i][0] == '-' ? argv[i][1] : 0) {
        case 'd': request.depth = number; break;
        case 'm': request.host_mib = number; break;
        case 'k': request.keep = number; break;
        case 'l': request.leaf = number; break;
        case 'r': request.rounds = number; break;
        case 't': request.threads = number; break;
        case 's': request.select = value; break;
        case 'c': request.suffix = suffix_of(value); break;
        case 'o': request.only_open = number != 0; break;
        case 'p': request.computes = number != 0; break;
        case 'x': request.codec = value; break;
        case 'i': request.ids = value; break;
        case 'q':
            request.question_count = 0;
            for (char *text = strtok(value, ","); text != NULL && request.question_count < QUESTIONS_MAX;
                 text = strtok(NULL, ","))
                request.questions[request.question_count++] = strtoull(text, NULL, 10);
            break;
        default: usage();
        }
    }
    bool known = strcmp(request.codec, "f16") == 0 || strcmp(request.codec, "q4") == 0 ||
                 strcmp(request.codec, "dynamic") == 0;
    if (!known || (request.only_open && request.computes)) usage();
    return request;
}

struct opened {
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct sequence *sequence;
    double model_seconds, engine_seconds;
};

static void open_model(struct opened *opened, const struct request *request) {
    struct error error;
    double began = clock_seconds();
    const struct device_options device_options = {.thread_count = request->threads, .mask = cpu_features()};
    check(device_cpu_create(&opened->device, &device_options, &error), &error);
    check(model_load(&opened->model, request->model, opened->device, &error), &error);
    opened->model_seconds = clock_seconds() - began;
}

static void open_all(struct opened *opened, const struct request *request) {
    struct error error;
    open_model(opened, request);
    double began = clock_seconds();
    struct plan options = {.context_size = request->depth + TAIL_MAX,
                           .sequence_capacity = 1,
                           .k_type = KV_F16,
                           .v_type = KV_F16,
                           .select = select_options_default(),
                           .host_bytes = (uint64_t)request->host_mib << 20,
                           .disk_directory = request->folder,
                           .document_name = request->computes ? "random tokens" : "made up",
                           .quantized_pages = strcmp(request->codec, "f16") != 0,
                           .mixes_pages = strcmp(request->codec, "dynamic") == 0,
                           .suffix = request->suffix};
    options.select.method = select_method_find(request->select);
    if (options.select.method == NULL) usage();
    options.select.keep = (struct select_keep){.tokens = request->keep};
    options.select.leaf = request->leaf;
    options.select.dense_layers = 0;
    check(engine_create(&opened->engine, opened->model, &options, NULL, &error), &error);
    check(sequence_create(&opened->sequence, opened->engine, &error), &error);
    opened->engine_seconds = clock_seconds() - began;
}

static void close_all(struct opened *opened) {
    sequence_destroy(opened->sequence);
    engine_destroy(opened->engine);
    model_destroy(opened->model);
    device_destroy(opened->device);
}

static void forget_files(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int file = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        if (fdatasync(file) == 0) (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
    closedir(folder);
}

/* The document's, and a question's of its own behind them. */
static int32_t *make_tokens(const struct request *request, size_t vocabulary_size, uint64_t question_seed) {
    size_t count = request->depth + TAIL_MAX;
    int32_t *tokens = calloc(count, sizeof *tokens);
    struct random random;
    random_init(&random, 1);
    for (size_t i = 0; tokens != NULL && i < count; i++) {
        if (i == request->depth) random_init(&random, question_seed);
        tokens[i] = (int32_t)random_below(&random, vocabulary_size);
    }
    return tokens;
}

static void write_ids(const char *path, const int32_t *tokens, size_t count) {
    FILE *file = fopen(path, "we");
    for (size_t i = 0; file != NULL && i < count; i++)
        fprintf(file, "%c%d", i > 0 ? ',' : '[', (int)tokens[i]);
    if (file != NULL && fputs("]\n", file) >= 0 && fclose(file) == 0) return;
    fprintf(stderr, "bench_reopen: %s cannot be written\n", path);
    exit(1);
}

/* Seconds that the document took, until it was durable. */
static double fill(const struct request *request) {
    struct opened opened;
    struct error error;
    open_all(&opened, request);
    int32_t *tokens = make_tokens(request, engine_config(opened.engine)->vocabulary_size, 1);
    const struct prefill_request prompt = {.tokens = tokens, .token_count = request->depth};
    if (request->ids != NULL) write_ids(request->ids, tokens, request->depth);
    double began = clock_seconds();
    if (request->computes) {
        check(engine_prefill(opened.engine, opened.sequence, &prompt, NULL, &error), &error);
        check(sequence_flush(opened.sequence, &error), &error);
    } else {
        check(engine_fill_random(opened.engine, opened.sequence, request->depth, 1, &error), &error);
        sequence_note_tokens(opened.sequence, 0, tokens, request->depth);
        check(kv_sequence_commit(opened.sequence->kv, opened.sequence->tokens, &error), &error);
        check(sequence_flush(opened.sequence, &error), &error);
    }
    double seconds = clock_seconds() - began;
    struct kv_tier_statistics tier = engine_tier_statistics(opened.engine);
    fprintf(stderr, "%zu tokens, %.2f GB written in %.1f s\n", request->depth,
            (double)tier.write_bytes * 1e-9, seconds);
    free(tokens);
    close_all(&opened);
    return seconds;
}

/* Seconds per token of a block behind so much made-up KV, the best of some: what else the machine does only adds. */
static double seconds_at(struct opened *opened, const int32_t *tokens, uint64_t depth) {
    struct error error;
    const struct prefill_request prompt = {.tokens = tokens, .token_count = POINT_TOKENS};
    uint64_t length = sequence_length(opened->sequence);
    check(engine_fill_random(opened->engine, opened->sequence, depth - length, 1, &error), &error);
    double best = 0;
    for (int round = 0; round < POINT_ROUNDS; round++) {
        double began = clock_seconds();
        check(engine_prefill(opened->engine, opened->sequence, &prompt, NULL, &error), &error);
        double seconds = clock_seconds() - began;
        if (round == 0 || seconds < best) best = seconds;
        sequence_truncate(opened->sequence, depth);
    }
    return best / POINT_TOKENS;
}

/* The line of least squares through the points, summed over the document's tokens. */
static double sum_of_line(const double *x, const double *y, double tokens) {
    double mean_x = 0, mean_y = 0, products = 0, squares = 0;
    for (size_t i = 0; i < POINTS; i++) {
        mean_x += x[i] / POINTS;
        mean_y += y[i] / POINTS;
    }
    for (size_t i = 0; i < POINTS; i++) {
        products += (x[i] - mean_x) * (y[i] - mean_y);
        squares += (x[i] - mean_x) * (x[i] - mean_x);
    }
    double slope = products / squares;
    printf("; %.3f ms + %.3g us per 1,000 tokens of depth\n", (mean_y - slope * mean_x) * 1e3, slope * 1e9);
    return tokens * (mean_y - slope * mean_x) + slope * tokens * tokens / 2;
}

static struct prefill estimate(const struct request *request) {
    struct opened opened;
    struct error error;
    double x[POINTS], y[POINTS];
    if (request->depth < POINT_TOKENS * 4) return (struct prefill){0, "too short to be estimated"};
    open_model(&opened, request);
    const struct plan options = {.context_size = request->depth / 2 + POINT_TOKENS,
                                 .sequence_capacity = 1,
                                 .k_type = KV_F16,
                                 .v_type = KV_F16,
                                 .select = select_options_default()};
    check(engine_create(&opened.engine, opened.model, &options, NULL, &error), &error);
    check(sequence_create(&opened.sequence, opened.engine, &error), &error);
    int32_t *tokens = make_tokens(request, engine_config(opened.engine)->vocabulary_size, 1);
    printf(
        "# prefill estimated from seconds per token of blocks of %d behind made-up KV in RAM (best of %d):",
        POINT_TOKENS, POINT_ROUNDS);
    for (size_t i = 0; i < POINTS; i++) {
        uint64_t depth = request->depth / 4 * i;
        x[i] = (double)depth + POINT_TOKENS / 2.0;
        y[i] = seconds_at(&opened, tokens, depth);
        printf("%s %.6f at %llu", i > 0 ? "," : "", y[i], (unsigned long long)depth);
    }
    struct prefill prefill = {sum_of_line(x, y, (double)request->depth), "estimated"};
    fflush(stdout);
    free(tokens);
    close_all(&opened);
    return prefill;
}

static void measure(const struct request *request, const struct prefill *prefill, size_t question) {
    struct opened opened;
    struct error error;
    const float *logits;
    forget_files(request->folder);
    open_all(&opened, request);
    int32_t *tokens = make_tokens(request, engine_config(opened.engine)->vocabulary_size, clock_ns());
    const struct prefill_request prompt = {.tokens = tokens, .token_count = request->depth + question};
    double began = clock_seconds();
    check(engine_prefill(opened.engine, opened.sequence, &prompt, &logits, &error), &error);
    double answer = clock_seconds() - began;
    struct kv_tier_statistics tier = engine_tier_statistics(opened.engine);
    static const char *const words[] = {"dense", "select", "auto"};
    printf("%zu,%zu,%zu,%s,%zu,%s,%s,%llu,%.3f,%.3f,%.3f,%.3f,%llu,%llu,%.1f,%s\n", request->depth, question,
           request->host_mib, request->select, request->keep, words[request->suffix], request->codec,
           (unsigned long long)sequence_reused_tokens(opened.sequence), opened.model_seconds,
           opened.engine_seconds, answer, opened.model_seconds + opened.engine_seconds + answer,
           (unsigned long long)tier.read_bytes, (unsigned long long)tier.host_bytes, prefill->seconds,
           prefill->basis);
    fflush(stdout);
    free(tokens);
    close_all(&opened);
}

int main(int argc, char **argv) {
    struct request request = request_read(argc, argv);
    struct prefill prefill = {0};
    if (!request.computes && request.rounds > 0) prefill = estimate(&request);
    double filled = request.only_open ? 0 : fill(&request);
    if (request.computes) prefill = (struct prefill){filled, "measured"};
    printf(
        "depth,question,host_mib,select,keep,remainder,codec,reused,model_s,engine_s,answer_s,total_s,read_"
        "bytes,host_bytes,prefill_s,prefill_basis\n");
    for (size_t round = 0; round < request.rounds; round++)
        for (size_t i = 0; i < request.question_count; i++) measure(&request, &prefill, request.questions[i]);
    return 0;
}
