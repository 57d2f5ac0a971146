/* Where recomputing K and V crosses reading them (attention/split.h), predicted and measured: a step's milliseconds
 * with fixed shares of a document's KV computed again, behind limited links, and with what the engine chooses.
 *
 *     bench_rebuild MODEL FOLDER [-d tokens] [-m MiB of RAM] [-t threads] [-n steps] [-l MB/s,MB/s,...] [-c kernels]
 *
 * Prints CSV, a row for each link: the rates that the engine measured, what it predicts and chooses by them, and the
 * median of n steps at 0, 1/8 .. 1 of the tokens (whole ranges of attention), each as tokens:milliseconds, then what is
 * predicted of each.  Shares take turns, and rates are the medians over the same n rounds: a machine that is slower for
 * a while is so in all of them.  FOLDER keeps the document, so a second run opens it.  Kernels are named as by
 * --cpu-mask: with AMX inputs are kept in floats, which is as much as K and V, and nothing is gained. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/split.h"
#include "base/random.h"
#include "engine/engine.h"
#include "platform/clock.h"
#include "platform/io_link.h"

enum { PARTS = 8, STEPS_MAX = 64, LINKS_MAX = 16, SETTLE_STEPS = 6, TOKEN_SEED = 1 };

struct request {
    const char *model, *folder;
    size_t tokens, host_mib, threads, steps, link_count;
    uint64_t links[LINKS_MAX]; /* MB a second */
    cpu_mask kernels;
};

static void check(enum status status, const struct error *error) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "bench_rebuild: %s\n", error->message);
    exit(1);
}

static _Noreturn void usage(void) {
    fprintf(stderr, "bench_rebuild MODEL FOLDER [-d tokens] [-m MiB of RAM] [-t threads] [-n steps] "
                    "[-l MB/s,MB/s,...] [-c kernels]\n");
    exit(2);
}

static struct request request_read(int argc, char **argv) {
    struct request request = {.tokens = 5854,
                              .host_mib = 36,
                              .threads = 2,
                              .steps = 3,
                              .links = {50, 100, 200, 500},
                              .link_count = 4,
                              .kernels = cpu_default()};
    struct error error;
    if (argc < 3 || argc % 2 == 0) usage();
    request.model = argv[1];
    request.folder = argv[2];
    for (int i = 3; i + 1 < argc; i += 2) {
        char *value = argv[i + 1];
        const size_t number = strtoull(value, NULL, 10);
        switch (argv[i][0] == '-' ? argv[i][1] : 0) {
        case 'd': request.tokens = number; break;
        case 'm': request.host_mib = number; break;
        case 't': request.threads = number; break;
        case 'n': request.steps = number < STEPS_MAX ? number : STEPS_MAX; break;
        case 'c': check(cpu_mask_parse(value, &request.kernels, &error), &error); break;
        case 'l':
            request.link_count = 0;
            for (char *text = strtok(value, ","); text != NULL && request.link_count < LINKS_MAX;
                 text = strtok(NULL, ","))
                request.links[request.link_count++] = strtoull(text, NULL, 10);
            break;
        default: usage();
        }
    }
    if (request.tokens == 0 || request.steps == 0) usage();
    return request;
}

struct opened {
    struct device *device;
    struct model *model;
    struct engine *engine;
    struct sequence *sequence;
};

static void open_all(struct opened *opened, const struct request *request) {
    struct error error;
    const struct device_options device = {.thread_count = request->threads, .mask = request->kernels};
    const uint64_t steps = (PARTS + 2) * 2 * request->steps + SETTLE_STEPS;
    const struct plan plan = {.context_size = request->tokens + request->link_count * steps + 1,
                              .sequence_capacity = 1,
                              .k_type = KV_F16,
                              .v_type = KV_F16,
                              .select = select_options_default(),
                              .host_bytes = (uint64_t)request->host_mib << 20,
                              .disk_directory = request->folder,
                              .document_name = "random tokens",
                              .rebuilds = true,
                              .prefetches = true};
    check(device_cpu_create(&opened->device, &device, &error), &error);
    check(model_load(&opened->model, request->model, opened->device, &error), &error);
    check(engine_create(&opened->engine, opened->model, &plan, NULL, &error), &error);
    check(sequence_create(&opened->sequence, opened->engine, &error), &error);
    int32_t *tokens = calloc(request->tokens, sizeof *tokens);
    struct random random;
    random_init(&random, TOKEN_SEED);
    if (tokens == NULL) exit(1);
    for (size_t i = 0; i < request->tokens; i++)
        tokens[i] = (int32_t)random_below(&random, (uint32_t)opened->model->config.vocabulary_size);
    const struct prefill_request prefill = {.tokens = tokens, .token_count = request->tokens};
    check(engine_prefill(opened->engine, opened->sequence, &prefill, NULL, &error), &error);
    check(sequence_flush(opened->sequence, &error), &error);
    free(tokens);
}

static void close_all(struct opened *opened) {
    sequence_destroy(opened->sequence);
    engine_destroy(opened->engine);
    model_destroy(opened->model);
    device_destroy(opened->device);
}

static double step_seconds(struct opened *opened) {
    struct error error;
    const int32_t token = 7;
    const double began = clock_seconds();
    check(engine_step(opened->engine, &opened->sequence, &token, 1, NULL, &error), &error);
    return clock_seconds() - began;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of one way to read: a fixed share computed again, or what the engine chooses. */
struct series {
    double seconds[STEPS_MAX], tokens[STEPS_MAX]; /* of a step; of a layer, computed again */
    size_t count;
};

static double median(const double *values, size_t count) {
    double sorted[STEPS_MAX];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    return sorted[count / 2];
}

/* The first step settles what RAM holds, the second one counts. */
static void measure(struct opened *opened, size_t forced, struct series *series) {
    struct attention *attention = engine_attention(opened->engine);
    attention_force_rebuild(attention, forced);
    (void)step_seconds(opened);
    const struct rebuild_statistics before = attention_rebuild_statistics(attention);
    series->seconds[series->count] = step_seconds(opened);
    const struct rebuild_statistics after = attention_rebuild_statistics(attention);
    series->tokens[series->count++] = (double)((after.chunks - before.chunks) * KV_CHUNK_TOKENS) /
                                      (double)opened->model->config.layer_count;
}

/* Rates as the engine has them after each round. */
struct rates {
    double link[STEPS_MAX], token[STEPS_MAX], read[STEPS_MAX], besides[STEPS_MAX];
    size_t count;
};

static void note_rates(const struct opened *opened, struct rates *rates) {
    const struct rebuild_statistics now = attention_rebuild_statistics(engine_attention(opened->engine));
    rates->link[rates->count] = now.bytes_per_second;
    rates->token[rates->count] = now.seconds_per_token;
    rates->read[rates->count] = now.seconds_per_read;
    rates->besides[rates->count++] = now.seconds_besides;
}

/* Of a layer and of a step, by what the engine has measured. */
static struct split_question question_of(const struct rebuild_statistics *rates, uint64_t tokens) {
    return (struct split_question){.token_count = tokens,
                                   .tokens_max = tokens,
                                   .tile_tokens = KV_CHUNK_TOKENS,
                                   .input_bytes = rates->input_bytes,
                                   .kv_bytes = rates->kv_bytes,
                                   .bytes_per_second = rates->bytes_per_second,
                                   .seconds_per_token = rates->seconds_per_token,
                                   .schedule = SPLIT_OVERLAPPED,
                                   .first_tokens = REBUILD_ROWS_MAX,
                                   .held_tokens = rates->held_tokens,
                                   .seconds_per_read = rates->seconds_per_read};
}

static double predicted_ms(const struct opened *opened, const struct rebuild_statistics *rates,
                           const struct split_question *question, double tokens) {
    const double layers = (double)opened->model->config.layer_count,
                 layer = split_seconds(question, (uint64_t)tokens) + rates->seconds_besides;
    return 1e3 * layers * layer;
}

static void print_link(const struct opened *opened, const struct request *request, uint64_t link,
                       const struct series series[PARTS + 2], const struct rates *taken) {
    const uint64_t chunks = request->tokens / KV_CHUNK_TOKENS;
    struct rebuild_statistics rates = attention_rebuild_statistics(engine_attention(opened->engine));
    double tokens[PARTS + 2], ms[PARTS + 2], expected[PARTS + 2];
    size_t best = 0;
    rates.bytes_per_second = median(taken->link, taken->count);
    rates.seconds_per_token = median(taken->token, taken->count);
    rates.seconds_per_read = median(taken->read, taken->count);
    rates.seconds_besides = median(taken->besides, taken->count);
    const struct split_question question = question_of(&rates, chunks * KV_CHUNK_TOKENS);
    const struct split split = split_choose(&question);
    for (size_t i = 0; i < PARTS + 2; i++) {
        tokens[i] = median(series[i].tokens, series[i].count);
        ms[i] = 1e3 * median(series[i].seconds, series[i].count);
        expected[i] = predicted_ms(opened, &rates, &question, tokens[i]);
        if (i <= PARTS && ms[i] < ms[best]) best = i;
    }
    printf("%" PRIu64 ",%zu,%.1f,%.2f,%.2f,%.2f,%" PRIu64 ",%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,", link,
           request->tokens, rates.bytes_per_second / 1e6, 1e6 * rates.seconds_per_token,
           1e6 * rates.seconds_per_read, 1e3 * rates.seconds_besides, split.tokens,
           predicted_ms(opened, &rates, &question, (double)split.tokens), tokens[PARTS + 1],
           expected[PARTS + 1], ms[PARTS + 1], tokens[best], ms[best]);
    for (size_t i = 0; i <= PARTS; i++) printf("%s%.0f:%.0f", i > 0 ? " " : "", tokens[i], ms[i]);
    printf(",");
    for (size_t i = 0; i <= PARTS; i++) printf("%s%.0f", i > 0 ? " " : "", expected[i]);
    printf("\n");
    fflush(stdout);
}

/* All shares in turns, so that a machine whose speed changes does so in all of them. */
static void measure_link(struct opened *opened, const struct request *request, uint64_t link) {
    static struct series series[PARTS + 2]; /* the last: what the engine chooses */
    static struct rates rates;
    const uint64_t chunks = request->tokens / KV_CHUNK_TOKENS;
    memset(series, 0, sizeof series);
    rates.count = 0;
    io_link_limit(link * 1000000);
    attention_force_rebuild(engine_attention(opened->engine), 0);
    for (size_t i = 0; i < SETTLE_STEPS; i++) (void)step_seconds(opened);
    for (size_t round = 0; round < request->steps; round++) {
        for (size_t part = 0; part <= PARTS; part++) /* 0 lets the rates say */
            measure(opened, part == 0 ? REBUILD_NOTHING : (size_t)(chunks * part / PARTS), &series[part]);
        measure(opened, 0, &series[PARTS + 1]);
        note_rates(opened, &rates);
    }
    print_link(opened, request, link, series, &rates);
}

int main(int argc, char **argv) {
    const struct request request = request_read(argc, argv);
    struct opened opened;
    open_all(&opened, &request);
    printf("link_mb_s,tokens,measured_mb_s,us_per_token,us_per_read,besides_ms,predicted_l,predicted_ms,chosen_l,"
           "chosen_predicted_ms,chosen_ms,best_l,best_ms,fixed_l:ms,fixed_predicted_ms\n");
    fflush(stdout);
    for (size_t i = 0; i < request.link_count; i++) measure_link(&opened, &request, request.links[i]);
    close_all(&opened);
    return 0;
}
