/* --trace of the real binary: valid JSON, spans that nest, reads that begin and end, all layers of all steps, waits in
 * their layers; and with KV on disk every page that was read, of a layer some of them asked for in the layer before.
 * How many of those were on their way while it computed is the disk's affair, and printed.  Counters of what was reused
 * are the figures of --json. */
#include "testing.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/process.h"
#include "cli/tiny_model.h"

enum { LAYERS = 4, TEXT_BYTES = 3000, TOKENS = 24, EVENTS_MAX = 200000, ARGUMENTS = 40 };

static char model_path[160], text_path[160], trace_path[160], json_path[160];

struct event {
    const char *kind, *name; /* borrowed from the file's JSON */
    double begin, end;       /* microseconds */
    json_int_t track, layer, count, id;
};

struct timeline {
    json_t *root;
    struct event *events; /* spans: "X", and reads with both ends */
    size_t count;
};

/* ---- reading ---- */

static json_int_t integer_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static double time_of(const json_t *event, const char *key) {
    const json_t *value = json_object_get(event, key);
    if (!json_is_number(value)) fail_msg("an event without %s", key);
    return json_number_value(value);
}

/* Ends the read that began with this id; there must be one. */
static void end_read(struct timeline *timeline, const json_t *raw) {
    for (size_t i = timeline->count; i > 0; i--) {
        struct event *event = &timeline->events[i - 1];
        if (event->kind[0] != 'b' || event->id != integer_of(raw, "id")) continue;
        assert_true(event->end < 0); /* not ended before */
        event->end = time_of(raw, "ts");
        assert_true(event->end >= event->begin);
        return;
    }
    fail_msg("read %lld ends and never began", (long long)integer_of(raw, "id"));
}

static void add_event(struct timeline *timeline, const json_t *raw) {
    const char *kind = json_string_value(json_object_get(raw, "ph"));
    const char *name = json_string_value(json_object_get(raw, "name"));
    assert_non_null(kind);
    assert_non_null(name);
    if (kind[0] == 'M' || kind[0] == 'C') return;
    if (kind[0] == 'e') {
        end_read(timeline, raw);
        return;
    }
    assert_true(strcmp(kind, "X") == 0 || strcmp(kind, "b") == 0);
    assert_true(timeline->count < EVENTS_MAX);
    struct event *event = &timeline->events[timeline->count++];
    *event = (struct event){.kind = kind,
                            .name = name,
                            .begin = time_of(raw, "ts"),
                            .end = -1,
                            .track = integer_of(raw, "tid"),
                            .layer = integer_of(json_object_get(raw, "args"), "layer"),
                            .count = integer_of(json_object_get(raw, "args"), "count"),
                            .id = integer_of(raw, "id")};
    if (kind[0] == 'X') event->end = event->begin + time_of(raw, "dur");
    assert_true(event->begin >= 0);
}

static struct timeline timeline_read(void) {
    json_error_t why;
    struct timeline timeline = {.root = json_load_file(trace_path, JSON_REJECT_DUPLICATES, &why),
                                .events = calloc(EVENTS_MAX, sizeof(struct event))};
    if (timeline.root == NULL) fail_msg("%s, line %d", why.text, why.line);
    const json_t *list = json_object_get(timeline.root, "traceEvents");
    assert_true(json_is_array(list));
    for (size_t i = 0; i < json_array_size(list); i++) add_event(&timeline, json_array_get(list, i));
    for (size_t i = 0; i < timeline.count; i++)
        if (timeline.events[i].end < 0) fail_msg("a %s that never ends", timeline.events[i].name);
    return timeline;
}

static void timeline_free(struct timeline *timeline) {
    json_decref(timeline->root);
    free(timeline->events);
}

static void traced(const char *const *more) {
    const char *arguments[ARGUMENTS] = {"run",      "-q",     "-m",     model_path, "-f",           text_path,
                                        "-n",       "24",     "-t",     "2",        "-c",           "4K",
                                        "-ub",      "256",    "--temp", "0",        "--ignore-eos", "--trace",
                                        trace_path, "--json", json_path,  "--draft-max",  "0"};
    size_t count = 23;
    for (size_t i = 0; more[i] != NULL; i++) arguments[count++] = more[i];
    struct process_result result = process_run(&(struct process_request){.arguments = arguments});
    if (result.code != 0) fail_msg("exit code %d: %s", result.code, result.complaints);
    process_deinit(&result);
}

#define TRACED(...) traced((const char *const[]){__VA_ARGS__, NULL})

/* ---- what holds for every timeline ---- */

static int by_track_and_begin(const void *a, const void *b) {
    const struct event *x = a, *y = b;
    if (x->track != y->track) return x->track < y->track ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

static size_t count_named(const struct timeline *timeline, const char *name) {
    size_t count = 0;
    for (size_t i = 0; i < timeline->count; i++) count += strcmp(timeline->events[i].name, name) == 0;
    return count;
}

/* Spans of a track are nested or apart; times are printed in nanoseconds. */
static void expect_nesting(struct timeline *timeline) {
    const struct event *open[16];
    size_t depth = 0;
    qsort(timeline->events, timeline->count, sizeof *timeline->events, by_track_and_begin);
    for (size_t i = 0; i < timeline->count; i++) {
        const struct event *event = &timeline->events[i];
        if (event->kind[0] != 'X') continue;
        while (depth > 0 &&
               (open[depth - 1]->track != event->track || open[depth - 1]->end <= event->begin + 0.002))
            depth--;
        if (depth > 0 && event->end > open[depth - 1]->end + 0.002)
            fail_msg("%s of layer %lld, %.3f to %.3f, reaches out of %s, which ends at %.3f", event->name,
                     (long long)event->layer, event->begin, event->end, open[depth - 1]->name,
                     open[depth - 1]->end);
        assert_true(depth < 16);
        open[depth++] = event;
    }
}

static void expect_all_layers(const struct timeline *timeline) {
    size_t steps = count_named(timeline, "step"), in_steps[LAYERS] = {0};
    assert_int_equal(steps, TOKENS - 1); /* the first token comes out of the prompt */
    for (size_t i = 0; i < timeline->count; i++) {
        const struct event *step = &timeline->events[i];
        if (strcmp(step->name, "step") != 0) continue;
        for (size_t j = 0; j < timeline->count; j++) {
            const struct event *layer = &timeline->events[j];
            if (strcmp(layer->name, "layer") != 0 || layer->begin < step->begin || layer->end > step->end)
                continue;
            assert_in_range(layer->layer, 0, LAYERS - 1);
            in_steps[layer->layer]++;
        }
    }
    for (size_t layer = 0; layer < LAYERS; layer++) assert_int_equal(in_steps[layer], steps);
    static const char *const phases[] = {"open", "project", "attend", "output", "feed-forward", "store"};
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++)
        assert_true(count_named(timeline, phases[i]) >= LAYERS * steps);
}

/* Both compute threads were seen at work, in the layers' phases. */
static void expect_threads(const struct timeline *timeline) {
    size_t busy[2] = {0};
    const json_t *list = json_object_get(timeline->root, "traceEvents");
    json_int_t tracks[2] = {-1, -1};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *raw = json_array_get(list, i);
        const char *kind = json_string_value(json_object_get(raw, "name"));
        const char *name = json_string_value(json_object_get(json_object_get(raw, "args"), "name"));
        if (strcmp(kind, "thread_name") != 0) continue;
        if (strcmp(name, "thread 0") == 0) tracks[0] = integer_of(raw, "tid");
        if (strcmp(name, "thread 1") == 0) tracks[1] = integer_of(raw, "tid");
    }
    for (size_t i = 0; i < timeline->count; i++)
        for (size_t t = 0; t < 2; t++)
            busy[t] += timeline->events[i].track == tracks[t] &&
                       strcmp(timeline->events[i].name, "feed-forward") == 0;
    for (size_t t = 0; t < 2; t++) assert_true(busy[t] >= LAYERS * (TOKENS - 1));
}

/* Whether the read was asked for in the layer before its own, and a thread still had work to do for that one.  How long
 * it took is not asked: the disk may have answered before the engine looks. */
static bool runs_ahead(const struct timeline *timeline, const struct event *read) {
    const struct event *layer = NULL;
    for (size_t i = 0; i < timeline->count && layer == NULL; i++) {
        const struct event *event = &timeline->events[i];
        if (strcmp(event->name, "layer") == 0 && event->layer == read->layer - 1 &&
            event->begin <= read->begin && read->begin < event->end)
            layer = event;
    }
    for (size_t i = timeline->count; layer != NULL && i > 0 && timeline->events[i - 1].track > 4; i--) {
        const struct event *work = &timeline->events[i - 1]; /* of a thread: tracks from 5 on */
        if (work->layer == layer->layer && work->begin >= read->begin && work->end <= layer->end) return true;
    }
    return false;
}

/* The span of the layer in which something begins; NULL: none. */
static const struct event *layer_around(const struct timeline *timeline, double begin) {
    for (size_t i = 0; i < timeline->count; i++) {
        const struct event *event = &timeline->events[i];
        if (strcmp(event->name, "layer") == 0 && event->begin <= begin && begin < event->end) return event;
    }
    return NULL;
}

/* Some reads of steps were submitted in the layer before their own; with of_each_layer, some of each layer but the
 * first. */
static void expect_reads_ahead(const struct timeline *timeline, bool of_each_layer) {
    size_t asked[LAYERS] = {0}, all = 0, overlapping = 0, reads = 0;
    for (size_t i = 0; i < timeline->count; i++) {
        const struct event *read = &timeline->events[i], *layer;
        if (strcmp(read->name, "read") != 0) continue;
        reads++;
        layer = read->layer > 0 ? layer_around(timeline, read->begin) : NULL;
        if (layer == NULL || layer->layer != read->layer - 1) continue;
        asked[read->layer]++, all++;
        overlapping += runs_ahead(timeline, read);
    }
    print_message("%zu of %zu reads asked for a layer ahead, %zu of them while it computed\n", all, reads,
                  overlapping);
    assert_true(all > 0);
    for (size_t layer = 1; layer < LAYERS && of_each_layer; layer++)
        if (asked[layer] == 0) fail_msg("no read of layer %zu in layer %zu", layer, layer - 1);
}

/* As many pages as the run says it read, and nothing is waited for outside of the layer that wants it. */
static void expect_every_read(const struct timeline *timeline) {
    json_t *root = json_load_file(json_path, 0, NULL);
    json_int_t pages = 0, waits = 0;
    assert_non_null(root);
    for (size_t i = 0; i < timeline->count; i++) {
        const struct event *event = &timeline->events[i];
        if (strcmp(event->name, "read") == 0) {
            assert_true(event->count > 0);
            assert_in_range(event->layer, 0, LAYERS - 1);
            pages += event->count;
        }
        if (strcmp(event->name, "wait") != 0) continue;
        const struct event *layer = layer_around(timeline, event->begin);
        if (layer == NULL || layer->layer != event->layer || event->end > layer->end + 0.002)
            fail_msg("a wait for layer %lld at %.3f is in none of its spans", (long long)event->layer,
                     event->begin);
        waits++;
    }
    assert_int_equal(pages, integer_of(json_object_get(root, "io"), "read_ops"));
    print_message("%lld pages read, %lld waits\n", (long long)pages, (long long)waits);
    assert_true(pages > 0);
    json_decref(root);
}

/* ---- what was reused ---- */

struct counter {
    size_t count;
    double sum, max, weighted; /* weighted: by the values of another one */
};

static struct counter counter_of(const struct timeline *timeline, const char *name, const char *weight) {
    struct counter counter = {0};
    const json_t *list = json_object_get(timeline->root, "traceEvents");
    double last_weight = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *raw = json_array_get(list, i);
        const char *found = json_string_value(json_object_get(raw, "name"));
        const double value = json_number_value(json_object_get(json_object_get(raw, "args"), "value"));
        if (strcmp(json_string_value(json_object_get(raw, "ph")), "C") != 0) continue;
        if (strcmp(found, weight) == 0) last_weight = value;
        if (strcmp(found, name) != 0) continue;
        counter.count++;
        counter.sum += value;
        counter.weighted += value * last_weight;
        if (value > counter.max) counter.max = value;
    }
    return counter;
}

static double reuse_figure(const json_t *root, const char *name) {
    const json_t *value = json_object_get(json_object_get(root, "reuse"), name);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void expect_reuse(const struct timeline *timeline) {
    static const char hits[] = "reuse: hits";
    json_t *root = json_load_file(json_path, 0, NULL);
    assert_non_null(root);
    const double hit_count = reuse_figure(root, "hits"), mean = reuse_figure(root, "age_mean");
    print_message("%.0f hits, %.0f misses, mean age %.2f\n", hit_count, reuse_figure(root, "misses"), mean);
    assert_true(hit_count > 0 && reuse_figure(root, "misses") > 0 && mean > 1);
    assert_true(counter_of(timeline, hits, hits).count >= TOKENS - 1);
    assert_true(counter_of(timeline, hits, hits).sum == hit_count);
    assert_true(counter_of(timeline, "reuse: misses", hits).sum == reuse_figure(root, "misses"));
    assert_true(counter_of(timeline, "reuse: bytes kept", hits).sum == reuse_figure(root, "bytes_kept"));
    assert_true(counter_of(timeline, "reuse: oldest", hits).max == reuse_figure(root, "age_max"));
    const double weighted = counter_of(timeline, "reuse: mean age", hits).weighted / hit_count;
    if (!(weighted > mean * (1 - 1e-9) && weighted < mean * (1 + 1e-9)))
        fail_msg("mean age %.12g, --json has %.12g", weighted, mean);
    json_decref(root);
}

/* ---- tests ---- */

static void in_ram(void **state) {
    (void)state;
    TRACED("--preset", "leoam");
    struct timeline timeline = timeline_read();
    expect_nesting(&timeline);
    expect_all_layers(&timeline);
    expect_threads(&timeline);
    assert_int_equal(count_named(&timeline, "read"), 0);
    assert_int_equal(count_named(&timeline, "wait"), 0);
    timeline_free(&timeline);
}

static void reads_run_while_the_layer_before_computes(void **state) {
    (void)state;
    TRACED("--preset", "flexgen", "--kv-disk", scratch_path("flexgen.kv"), "--kv-host", "3M");
    struct timeline timeline = timeline_read();
    expect_nesting(&timeline);
    expect_all_layers(&timeline);
    expect_threads(&timeline);
    expect_every_read(&timeline);
    expect_reads_ahead(&timeline, true);
    timeline_free(&timeline);
}

static void choices_run_ahead(void **state) {
    (void)state;
    TRACED("--preset", "leoam", "--keep", "40%", "--set", "speculate=next-layer,codec=f16", "--kv-disk",
           scratch_path("leoam.kv"), "--kv-host", "4M");
    struct timeline timeline = timeline_read();
    expect_nesting(&timeline);
    expect_all_layers(&timeline);
    expect_every_read(&timeline);
    expect_reads_ahead(&timeline, false);
    assert_int_equal(count_named(&timeline, "choose"), LAYERS * (TOKENS - 1));
    /* At least four of every layer.  Later a gate may close, since a tiny layer ends before its reads do. */
    assert_in_range(count_named(&timeline, "choose next layer"), 4 * (LAYERS - 1),
                    (LAYERS - 1) * (TOKENS - 1));
    timeline_free(&timeline);
}

/* In RAM, and from disk where the layer before decides. */
static void what_is_reused_is_counted(void **state) {
    (void)state;
    static const char set[] = "reused=0,eta=0.2,power=0,age=9,dense=0,labels=speculated,speculate=next-layer";
    TRACED("--preset", "clo", "--keep", "40%", "--set", set);
    struct timeline timeline = timeline_read();
    expect_nesting(&timeline);
    expect_reuse(&timeline);
    timeline_free(&timeline);
    TRACED("--preset", "clo", "--keep", "40%", "--set", set, "--kv-disk", scratch_path("speculated.kv"),
           "--kv-host", "4M");
    timeline = timeline_read();
    expect_nesting(&timeline);
    expect_reuse(&timeline);
    timeline_free(&timeline);
    TRACED("--preset", "leoam");
    timeline = timeline_read();
    assert_int_equal(counter_of(&timeline, "reuse: hits", "").count, 0);
    timeline_free(&timeline);
}

static void chat_has_one_too(void **state) {
    (void)state;
    const char *arguments[] = {"chat", "-q", "-m",      model_path, "-n", "5",
                               "-t",   "2",  "--trace", trace_path, NULL};
    struct process_result result =
        process_run(&(struct process_request){.arguments = arguments, .input = "hello\n"});
    if (result.code != 0) fail_msg("exit code %d: %s", result.code, result.complaints);
    process_deinit(&result);
    struct timeline timeline = timeline_read();
    expect_nesting(&timeline);
    assert_true(count_named(&timeline, "prompt") > 0);
    assert_int_equal(count_named(&timeline, "step"), 4);
    timeline_free(&timeline);
}

/* More than the buffer holds. */
static void a_long_run_is_written_on_the_way(void **state) {
    (void)state;
    struct process_result result =
        LOAM("bench", "-m", model_path, "-p", "0", "-n", "400", "-r", "1", "-t", "2", "--trace", trace_path);
    if (result.code != 0) fail_msg("%s", result.complaints);
    process_deinit(&result);
    struct timeline timeline = timeline_read();
    expect_nesting(&timeline);
    assert_true(count_named(&timeline, "trace") > 0);
    assert_int_equal(count_named(&timeline, "step"), 401); /* and the warm-up's */
    timeline_free(&timeline);
}

static void what_cannot_be_written_is_said(void **state) {
    (void)state;
    struct process_result result = LOAM("run", "-m", model_path, "-p", "a", "-n", "2", "--trace",
                                        scratch_path("no such folder/trace.json"));
    assert_int_equal(result.code, 6);
    assert_string_equal(result.output, "");
    process_deinit(&result);
    result = LOAM("run", "-m", model_path, "-p", "a", "-n", "2", "--trace", "/dev/full");
    assert_int_equal(result.code, 6);
    assert_non_null(strstr(result.complaints, "--trace: /dev/full: No space left"));
    process_deinit(&result);
}

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("tiny.gguf"));
    snprintf(text_path, sizeof text_path, "%s", scratch_path("text.txt"));
    snprintf(trace_path, sizeof trace_path, "%s", scratch_path("trace.json"));
    snprintf(json_path, sizeof json_path, "%s", scratch_path("run.json"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 5,
                                                      .context = 4096,
                                                      .layers = LAYERS,
                                                      .never_ends = true,
                                                      .chat_template = TINY_CHAT_TEMPLATE});
    FILE *file = fopen(text_path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < TEXT_BYTES; i++) fputc('a' + (int)(i * i / 7 % 26), file);
    assert_int_equal(fclose(file), 0);
    return 0;
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_ram),
        cmocka_unit_test(reads_run_while_the_layer_before_computes),
        cmocka_unit_test(choices_run_ahead),
        cmocka_unit_test(what_is_reused_is_counted),
        cmocka_unit_test(chat_has_one_too),
        cmocka_unit_test(a_long_run_is_written_on_the_way),
        cmocka_unit_test(what_cannot_be_written_is_said),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
