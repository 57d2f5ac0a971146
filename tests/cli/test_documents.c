/* --kv-disk and --kv-host of the real binary: what was read once is opened and not computed, with the same answer; a
 * budget of an eighth holds; kill -9, damage, foreign files, two processes at once and full or wrong folders cost time
 * or are refused in one line, and never change an answer. */
#include "testing.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/tiny_model.h"

/* The time of a prompt grows with its square, its KV with layers and KV heads too: so texts are short, and models that
 * shall have much KV are deep and without groups.  LONG_BYTES: as little as a measurement needs
 * (plan/quantized_pages.c). */
enum {
    TEXT_BYTES = 1500,
    LONG_BYTES = 2200,
    KILLED_BYTES = 1600,
    DEEP_LAYERS = 16,
    WIDE_HEADS = 8,
    ARGUMENTS = 40,
    TOKENS_MAX = 16
};
/* KV in f16 of a token of the model with TINY_LAYERS. */
enum { TOKEN_BYTES = TINY_LAYERS * TINY_KV_HEADS * 2 * TINY_HEAD_DIMENSION * 2 };
/* ... of one with many layers and a KV head for each head, and of one with more heads of twice their dimension. */
enum {
    DEEP_TOKEN_BYTES = DEEP_LAYERS * TINY_HEADS * 2 * TINY_HEAD_DIMENSION * 2,
    WIDE_TOKEN_BYTES = DEEP_LAYERS * WIDE_HEADS * 2 * TINY_HEAD_DIMENSION_MAX * 2
};

static char talking_path[160], model_path[160], other_path[160], deep_path[160], wide_path[160],
    text_path[160], json_path[160], small_path[160], little_path[160];

/* ---- running ---- */

struct outcome {
    int code;
    char complaint[1024];
    uint64_t prompt, computed, reused, read_bytes, write_bytes, host_bytes, rss_bytes;
    int64_t tokens[TOKENS_MAX];
    size_t token_count;
};

static uint64_t number(const json_t *root, const char *object, const char *key) {
    const json_t *place = object != NULL ? json_object_get(root, object) : root;
    const json_t *value = json_object_get(place, key);
    assert_true(json_is_integer(value));
    return (uint64_t)json_integer_value(value);
}

static void read_json(struct outcome *outcome, const char *path) {
    json_error_t why;
    json_t *root = json_load_file(path, 0, &why);
    if (root == NULL) return;
    outcome->prompt = number(root, NULL, "prompt_tokens");
    outcome->computed = number(root, "prefill", "tokens");
    outcome->reused = number(root, "prefill", "reused_tokens");
    outcome->read_bytes = number(root, "io", "read_bytes");
    outcome->write_bytes = number(root, "io", "write_bytes");
    outcome->host_bytes = number(root, "kv", "host_bytes_peak");
    outcome->rss_bytes = number(root, NULL, "peak_rss_bytes");
    const json_t *tokens = json_object_get(root, "output_tokens");
    outcome->token_count = json_array_size(tokens);
    assert_true(outcome->token_count <= TOKENS_MAX);
    for (size_t i = 0; i < outcome->token_count; i++)
        outcome->tokens[i] = json_integer_value(json_array_get(tokens, i));
    json_decref(root);
}

/* `loam run`, 8 tokens of an answer, greedily; the rest in words, ended by NULL; kill_ms 0: it may end. */
static struct outcome run_killed(const char *model, const char *file, const char *json, unsigned kill_ms,
                                 const char *const *more) {
    const char *arguments[ARGUMENTS] = {"run", "-m",  model, "-f",     file, "-n",           "8",      "-t",
                                        "1",   "-ub", "256", "--temp", "0",  "--ignore-eos", "--json", json};
    size_t count = 16;
    for (size_t i = 0; more[i] != NULL; i++) {
        assert_true(count + 1 < ARGUMENTS);
        arguments[count++] = more[i];
    }
    unlink(json);
    struct process_result result = process_run(&(struct process_request){.arguments = arguments,
                                                                         .interrupt_signal = SIGKILL,
                                                                         .interrupt_count = kill_ms > 0,
                                                                         .interrupt_after_ms = kill_ms});
    struct outcome outcome = {.code = result.code};
    snprintf(outcome.complaint, sizeof outcome.complaint, "%s", result.complaints);
    process_deinit(&result);
    read_json(&outcome, json);
    return outcome;
}

#define RUN(model, file, ...) run_killed(model, file, json_path, 0, (const char *const[]){__VA_ARGS__, NULL})

static void expect_code(const struct outcome *outcome, int code, const char *says) {
    if (outcome->code == code && strstr(outcome->complaint, says) != NULL) return;
    fail_msg("exit code %d, expected %d; no '%s' in\n%s", outcome->code, code, says, outcome->complaint);
}

static void expect_same(const struct outcome *found, const struct outcome *expected) {
    if (found->code != 0) fail_msg("exit code %d: %s", found->code, found->complaint);
    assert_int_equal(found->token_count, expected->token_count);
    assert_memory_equal(found->tokens, expected->tokens, expected->token_count * sizeof expected->tokens[0]);
}

static const char *folder(const char *name) {
    static char paths[4][160];
    static size_t next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s", scratch_path(name));
    return path;
}

static void expect_verified(const char *store) {
    struct process_result result = LOAM("verify", "--kv-disk", store);
    if (result.code != 0) fail_msg("loam verify: %d\n%s%s", result.code, result.output, result.complaints);
    process_deinit(&result);
}

/* Tokens of all documents that can be used. */
static uint64_t saved_tokens(const char *store) {
    struct process_result result = LOAM("ls", "--json", "--kv-disk", store);
    json_error_t why;
    uint64_t tokens_max = 0;
    if (result.code == 0) {
        json_t *root = json_loads(result.output, 0, &why);
        assert_non_null(root);
        for (size_t i = 0; i < json_array_size(root); i++) {
            uint64_t tokens = number(json_array_get(root, i), NULL, "tokens");
            if (tokens > tokens_max) tokens_max = tokens;
        }
        json_decref(root);
    }
    process_deinit(&result);
    return tokens_max;
}

/* The same letters for every length, as far as they go. */
static void write_text(const char *path, size_t bytes, const char *ending) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    uint32_t value = 17;
    for (size_t i = 0; i < bytes; i++) {
        value = value * 1664525 + 1013904223;
        fputc(value >> 28 == 0 ? ' ' : 'a' + (int)(value >> 16) % 26, file);
    }
    fputs(ending, file);
    assert_int_equal(fclose(file), 0);
}

/* ---- saved and opened again ---- */

static void a_prompt_is_read_once(void **state) {
    (void)state;
    const char *store = folder("once");
    struct outcome plain = RUN(model_path, text_path, "--temp", "0");
    expect_code(&plain, 0, "");
    assert_int_equal(plain.reused, 0);
    struct outcome first = RUN(model_path, text_path, "--kv-disk", store);
    expect_same(&first, &plain);
    assert_int_equal(first.reused, 0);
    assert_int_equal(first.computed, first.prompt);
    /* Whole chunks once, the last one as the tail; nothing a second time. */
    uint64_t bytes = first.prompt * TOKEN_BYTES;
    assert_in_range(first.write_bytes, bytes - 64 * TOKEN_BYTES, bytes + bytes / 20);
    struct outcome second = RUN(model_path, text_path, "--kv-disk", store);
    expect_same(&second, &plain);
    assert_int_equal(second.reused, second.prompt - 1);
    assert_int_equal(second.computed, 1);
    assert_int_equal(second.write_bytes, 0);
    expect_verified(store);
}

/* In one file to another folder, with the inputs of its layers: nothing is computed there. */
static void a_document_is_carried(void **state) {
    (void)state;
    const char *store = folder("carried-from"), *other = folder("carried-to"),
               *path = scratch_path("one.loam");
    struct outcome plain = RUN(model_path, text_path, "--kv-disk", store, "--set", "rebuild=recompute");
    expect_code(&plain, 0, "");
    struct process_result result = LOAM("export", "1", path, "--kv-disk", store);
    assert_int_equal(result.code, 0);
    process_deinit(&result);
    result = LOAM("import", path, "--kv-disk", other);
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.output, "inputs of layers\n"));
    process_deinit(&result);
    struct outcome second = RUN(model_path, text_path, "--kv-disk", other);
    expect_same(&second, &plain);
    assert_int_equal(second.reused, second.prompt - 1);
    assert_int_equal(second.write_bytes, 0);
    expect_verified(other);
}

/* Most layers of the model keep a state: its document is listed, carried and gone on with, by every way to attend. */
static void a_document_with_states(void **state) {
    (void)state;
    static const char *const model = LOAM_SOURCE_DIR "/tests/golden/qwen35/model.gguf";
    const char *store = folder("states-from"), *other = folder("states-to"), *path = scratch_path("states.loam");
    struct outcome plain = RUN(model, text_path, "-c", "2048");
    expect_code(&plain, 0, "");
    struct outcome first = RUN(model, text_path, "-c", "2048", "--kv-disk", store);
    expect_same(&first, &plain);
    assert_int_equal(first.computed, first.prompt);
    assert_int_equal(saved_tokens(store), first.prompt);
    expect_verified(store);
    struct process_result result = LOAM("export", "1", path, "--kv-disk", store);
    assert_int_equal(result.code, 0);
    process_deinit(&result);
    result = LOAM("import", path, "--kv-disk", other);
    assert_int_equal(result.code, 0);
    process_deinit(&result);
    struct outcome second = RUN(model, text_path, "-c", "2048", "--kv-disk", other);
    expect_same(&second, &plain);
    assert_true(second.reused > 0 && second.reused + second.computed == second.prompt);
    assert_in_range(second.computed, 1, 64);
    expect_verified(other);
    struct outcome chosen = RUN(model, text_path, "-c", "2048", "--preset", "hata", "--keep", "128", "--set",
                                "dense=0");
    struct outcome read = RUN(model, text_path, "-c", "2048", "--preset", "hata", "--keep", "128", "--set", "dense=0",
                              "--kv-disk", store);
    expect_same(&read, &chosen);
    assert_in_range(read.computed, 1, 64);
}

/* The fraction of pages in 4 bits of the last run; *measured: a measurement chose it. */
static double share_of_run(bool *measured) {
    json_error_t why;
    json_t *root = json_load_file(json_path, 0, &why), *compression = json_object_get(root, "compression");
    const json_t *layers = json_object_get(compression, "layers");
    assert_non_null(compression);
    double share = json_number_value(json_object_get(compression, "quantized_fraction")), sum = 0;
    assert_int_equal(json_array_size(layers), DEEP_LAYERS);
    for (size_t i = 0; i < DEEP_LAYERS; i++) {
        double layer = json_number_value(json_array_get(layers, i));
        assert_true(layer >= 0 && layer <= 1 && layer * 16 == (double)(int)(layer * 16));
        sum += layer;
    }
    assert_true(share > sum / DEEP_LAYERS - 1e-9 && share < sum / DEEP_LAYERS + 1e-9);
    *measured = json_is_object(json_object_get(compression, "measured"));
    json_decref(root);
    return share;
}

/* codec=dynamic: a prompt that RAM holds stays exact; of another one a fraction of the pages is in 4 bits, chosen once,
 * by a measurement, as a line says, and kept with the document.  leoam by itself has all of them in 4 bits. */
static void pages_in_both_forms(void **state) {
    (void)state;
    const char *store = folder("dynamic"), *path = scratch_path("long");
    char host[30];
    bool measured;
    write_text(path, LONG_BYTES, "");
    struct outcome refused = RUN(deep_path, path, "--set", "codec=dynamic");
    expect_code(&refused, 2, "--set codec=dynamic: 4 bits are for pages on disk, and there is no --kv-disk");
    struct outcome ample =
        RUN(deep_path, path, "--kv-disk", folder("ample"), "--preset", "leoam", "--set", "codec=dynamic", "-c", "8K");
    expect_code(&ample, 0, "codec=dynamic: how many pages are in 4 bits follows --kv-host and what is measured");
    assert_true(share_of_run(&measured) == 0);
    assert_false(measured);
    struct outcome fixed = RUN(deep_path, path, "--kv-disk", folder("ample"), "--preset", "leoam", "-c", "8K");
    expect_code(&fixed, 0, "");
    assert_int_equal(fixed.reused, 0);
    assert_true(share_of_run(&measured) == 1);
    assert_false(measured);
    assert_null(strstr(fixed.complaint, "measured"));
    uint64_t bytes = ample.prompt * DEEP_TOKEN_BYTES;
    snprintf(host, sizeof host, "%" PRIu64, bytes / 2);
    struct outcome first =
        RUN(deep_path, path, "--kv-disk", store, "--kv-host", host, "--preset", "leoam", "--set", "codec=dynamic", "-c",
            "8K");
    expect_code(&first, 0, "");
    double share = share_of_run(&measured);
    assert_true(measured);
    struct outcome second = RUN(deep_path, path, "--kv-disk", store, "--kv-host", host, "--preset", "leoam",
                                "--set", "codec=dynamic", "-c", "8K");
    expect_code(&second, 0, "");
    assert_int_equal(second.reused, second.prompt - 1);
    assert_true(share_of_run(&measured) == share);
    assert_false(measured);
    process_binary = LOAM_LAB_BINARY; /* whose method reads keys as rows: not compressed, nor refused */
    struct outcome rows =
        RUN(deep_path, text_path, "--kv-disk", folder("rows"), "--preset", "leoam", "--set", "select=exact");
    process_binary = LOAM_BINARY;
    expect_code(&rows, 0, "");
    struct process_result shown = LOAM("show", "1", "--kv-disk", store);
    char line[40];
    snprintf(line, sizeof line, "in 4 bits    %.2f", share);
    if (strstr(shown.output, line) == NULL) fail_msg("no '%s' in\n%s", line, shown.output);
    process_deinit(&shown);
    expect_verified(store);
    unlink(path);
}

/* With a given fraction the answer is the same for any budget, and documents of this fraction are used. */
static void a_fixed_fraction_is_the_same_for_any_budget(void **state) {
    (void)state;
    char path[160], store[160], hosts[3][30];
    bool measured;
    snprintf(path, sizeof path, "%s", scratch_path("long"));
    snprintf(store, sizeof store, "%s", folder("fixed"));
    write_text(path, TEXT_BYTES, "");
#define FIXED(n, host, store)                                                                 \
    RUN(deep_path, path, "--kv-disk", store, "--kv-host", host, "--preset", "leoam", "--set", \
        "quantized=" n, "-c", "4K")
    struct outcome all = FIXED("8", "256M", folder("fixed.all"));
    expect_code(&all, 0, "pages in 4 bits: 0.50");
    const uint64_t bytes = all.prompt * DEEP_TOKEN_BYTES;
    for (size_t i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "fixed.%zu", i);
        snprintf(hosts[i], sizeof hosts[i], "%" PRIu64, bytes / (i + 1) + (3 << 20));
        struct outcome tight = FIXED("8", hosts[i], folder(name));
        expect_same(&tight, &all);
        assert_true(share_of_run(&measured) == 0.5);
        assert_false(measured);
    }
    struct outcome first = FIXED("4", hosts[2], store), other = FIXED("8", hosts[2], store),
                   again = FIXED("8", hosts[2], store);
    expect_code(&first, 0, "pages in 4 bits: 0.25");
    expect_same(&other, &all);
    assert_int_equal(other.reused, 0);
    assert_int_equal(again.reused, again.prompt - 1);
    struct outcome refused = RUN(deep_path, path, "--kv-disk", store, "--set", "quantized=8");
    expect_code(&refused, 2, "--set quantized: a fraction of the pages in 4 bits is of codec=dynamic");
    refused = FIXED("17", hosts[2], store);
    expect_code(&refused, 2, "expected 0 to 16");
    unlink(path);
#undef FIXED
}

static void another_question_reuses_the_document(void **state) {
    (void)state;
    const char *store = folder("questions");
    char asked[2][160];
    struct outcome plain[2], saved[2];
    for (size_t i = 0; i < 2; i++) {
        static const char *const questions[2] = {" who was it and when", " what became of the pale ship"};
        snprintf(asked[i], sizeof asked[i], "%s", scratch_path(i == 0 ? "asked.0" : "asked.1"));
        write_text(asked[i], TEXT_BYTES, questions[i]);
        plain[i] = RUN(model_path, asked[i], "--temp", "0");
        saved[i] = RUN(model_path, asked[i], "--kv-disk", store);
        expect_same(&saved[i], &plain[i]);
    }
    assert_int_equal(saved[0].reused, 0);
    assert_in_range(saved[1].reused, TEXT_BYTES / 2, saved[1].prompt - 4);
    assert_true(saved[1].computed < 64);
    struct outcome again = RUN(model_path, asked[0], "--kv-disk", store);
    expect_same(&again, &plain[0]);
    assert_int_equal(again.computed, 1);
    expect_verified(store);
}

/* Bytes of the process that are neither KV nor its key index and tables: measured with a prompt whose KV is small. */
static uint64_t rss_without_kv(const char *host, const char *preset, const char *setting) {
    struct outcome little = RUN(wide_path, little_path, "--kv-disk", folder("base"), "--kv-host", host,
                                "--preset", preset, "--set", setting);
    expect_code(&little, 0, "");
    return little.rss_bytes - little.prompt * WIDE_TOKEN_BYTES;
}

static void expect_within(const struct outcome *tiered, uint64_t base, uint64_t budget) {
    const uint64_t slack = 8 << 20; /* the catalog, rings of the kernel, rows of a longer segment */
    assert_in_range(tiered->host_bytes, 1, budget);
    if (tiered->rss_bytes > base + budget + slack)
        fail_msg("%llu bytes resident, %llu without KV, budget %llu", (unsigned long long)tiered->rss_bytes,
                 (unsigned long long)base, (unsigned long long)budget);
}

/* An eighth of the KV, plus write buffers and tables, which do not shrink with it.  What RAM must not hold is five
 * times the slack.  peak_rss_bytes is the kernel's own maximum, not a sample of it. */
static void the_budget_holds(void **state) {
    (void)state;
    const char *store = folder("eighth");
    struct outcome all = RUN(wide_path, text_path, "-c", "4K");
    expect_code(&all, 0, "");
    uint64_t bytes = all.prompt * WIDE_TOKEN_BYTES, budget = bytes / 8 + (5 << 19);
    assert_true(bytes - budget > 40000000);
    char host[32];
    snprintf(host, sizeof host, "%llu", (unsigned long long)budget);
    static const char *const presets[] = {"full", "flexgen"};
    for (size_t i = 0; i < 2; i++) {
        const uint64_t base = rss_without_kv(host, presets[i], "codec=f16");
        assert_true(all.rss_bytes > base + bytes); /* an engine that keeps all of it is seen to */
        struct outcome tiered =
            RUN(wide_path, text_path, "--kv-disk", store, "--kv-host", host, "--preset", presets[i]);
        expect_same(&tiered, &all);
        expect_within(&tiered, base, budget);
        assert_true(tiered.read_bytes > bytes / 2); /* it does not fit: decode steps read it again */
        assert_int_equal(tiered.reused, i == 0 ? 0 : tiered.prompt - 1);
    }
    struct outcome refused = RUN(wide_path, text_path, "--kv-disk", store, "--kv-host", "64K");
    expect_code(&refused, 5, "this context needs at least");
    assert_int_equal(refused.token_count, 0);
}

/* The same with chunks in 4 bits that are chosen by key index, which the budget counts too: the answer is that of an
 * ample budget.  Then with the defaults of loam run, where a fraction of the pages stays exact. */
static void the_budget_holds_with_a_key_index(void **state) {
    (void)state;
    struct outcome all = RUN(wide_path, text_path, "--preset", "leoam", "--set", "codec=q4", "--kv-disk",
                             folder("ample"), "-c", "4K");
    expect_code(&all, 0, "");
    uint64_t bytes = all.prompt * WIDE_TOKEN_BYTES, budget = bytes / 8 + (4 << 20);
    char host[32];
    snprintf(host, sizeof host, "%llu", (unsigned long long)budget);
    static const char *const settings[] = {"codec=q4", "codec=q4", "codec=dynamic"};
    for (size_t i = 0; i < 3; i++) {
        const uint64_t base = rss_without_kv(host, "leoam", settings[i]);
        struct outcome tiered = RUN(wide_path, text_path, "--preset", "leoam", "--set", settings[i],
                                    "--kv-disk", folder(i < 2 ? "packed" : "mixed"), "--kv-host", host);
        expect_code(&tiered, 0, "");
        if (i == 0) expect_same(&tiered, &all); /* then its last token selects, too */
        expect_within(&tiered, base, budget);
        assert_true(tiered.read_bytes > 0);
        assert_int_equal(tiered.reused, i == 1 ? tiered.prompt - 1 : 0);
    }
}

/* The layers that a selection leaves dense stay in RAM where the budget holds them, and where it does not a line says
 * so; answers are the same. */
static void dense_layers_stay_in_ram(void **state) {
    (void)state;
#define MEANSTD "--preset", "meanstd", "--keep", "256"
    struct outcome all = RUN(deep_path, text_path, MEANSTD);
    expect_code(&all, 0, "");
    uint64_t bytes = all.prompt * DEEP_TOKEN_BYTES;
    char host[32], host_min[32];
    snprintf(host, sizeof host, "%llu", (unsigned long long)(bytes / 3 + (5 << 19)));
    snprintf(host_min, sizeof host_min, "%llu", (unsigned long long)(bytes / 8 + (5 << 19)));
    struct outcome stay = RUN(deep_path, text_path, MEANSTD, "--kv-disk", folder("stay"), "--kv-host", host),
                   go = RUN(deep_path, text_path, MEANSTD, "--kv-disk", folder("go"), "--kv-host", host,
                            "--set", "resident=0"),
                   small =
                       RUN(deep_path, text_path, MEANSTD, "--kv-disk", folder("tight"), "--kv-host", host_min);
    expect_same(&stay, &all);
    expect_same(&go, &all);
    expect_same(&small, &all);
    expect_code(&small, 0, "of the first 2 layers, which are to stay in RAM, --kv-host holds 0");
    assert_null(strstr(stay.complaint, "to stay in RAM"));
    assert_null(strstr(go.complaint, "to stay in RAM"));
    assert_true(stay.read_bytes < go.read_bytes * 2 / 3);
#undef MEANSTD
}

/* ---- kill -9, and two at once ---- */

static void a_killed_prefill_goes_on(void **state) {
    (void)state;
    char path[160];
    snprintf(path, sizeof path, "%s", scratch_path("killed.text"));
    write_text(path, KILLED_BYTES, "");
    struct outcome plain = RUN(deep_path, path, "--segment", "256");
    const char *timed = folder("timed");
    struct process_result result = LOAM("run", "-q", "-m", deep_path, "-f", path, "-n", "1", "-t", "1", "-ub",
                                        "256", "--segment", "256", "--kv-disk", timed);
    assert_int_equal(result.code, 0);
    double seconds = result.seconds;
    process_deinit(&result);
    size_t resumed = 0;
    double kill_seconds = seconds / 2; /* of a run that may take longer or less the next time */
    for (unsigned point = 1; point <= 60 && (point <= 5 || resumed == 0); point++) {
        char name[24];
        snprintf(name, sizeof name, "killed.%u", point);
        const char *store = folder(name);
        unsigned ms = (unsigned)(kill_seconds * 1000) + 1;
        static const char *const segment[] = {"--segment", "256", "--kv-disk"};
        const char *more[] = {segment[0], segment[1], segment[2], store, NULL};
        struct outcome killed = run_killed(deep_path, path, json_path, ms, more);
        assert_true(killed.code == 0 || killed.code == 128 + SIGKILL);
        uint64_t tokens = saved_tokens(store);
        struct outcome again = run_killed(deep_path, path, json_path, 0, more);
        expect_same(&again, &plain);
        if (strstr(again.complaint, "damaged") != NULL) fail_msg("%s", again.complaint);
        assert_int_equal(again.reused, tokens < again.prompt ? tokens : again.prompt - 1);
        if (tokens > 0 && tokens < again.prompt) {
            assert_int_equal(tokens % 256, 0);
            resumed++;
        }
        kill_seconds *= tokens == 0 ? 1.3 : 0.8; /* later, until some is saved, and earlier again */
        expect_verified(store);
    }
    assert_true(resumed > 0);
    unlink(path);
}

struct at_once {
    const char *store;
    char json[160];
    struct outcome outcome;
};

static void *run_beside(void *context) {
    struct at_once *run = context;
    const char *more[] = {"--segment", "256", "--kv-disk", run->store, NULL};
    run->outcome = run_killed(model_path, text_path, run->json, 0, more);
    return NULL;
}

static void two_at_once_answer_both(void **state) {
    (void)state;
    struct outcome plain = RUN(model_path, text_path, "--temp", "0");
    struct at_once runs[2] = {{.store = folder("shared")}};
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) {
        runs[i].store = runs[0].store;
        snprintf(runs[i].json, sizeof runs[i].json, "%s", scratch_path(i == 0 ? "once.0" : "once.1"));
        assert_int_equal(pthread_create(&threads[i], NULL, run_beside, &runs[i]), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        expect_same(&runs[i].outcome, &plain);
    }
    expect_verified(runs[0].store);
    struct outcome again = RUN(model_path, text_path, "--kv-disk", runs[0].store);
    expect_same(&again, &plain);
    assert_int_equal(again.computed, 1);
}

/* ---- damage ---- */

enum damage { FLIP_EVERYWHERE, FLIP_ONE, CUT_HALF, CUT_ALL, EXCHANGE, REMOVE, DAMAGES };

static void damage_file(const char *path, enum damage damage) {
    struct stat info;
    if (damage == REMOVE) {
        assert_int_equal(unlink(path), 0);
        return;
    }
    int file = open(path, O_RDWR);
    assert_true(file >= 0);
    assert_int_equal(fstat(file, &info), 0);
    off_t size = info.st_size, middle = size / 2 / 4096 * 4096, page = middle + 8192;
    unsigned char byte, pages[2][8192];
    if (damage == CUT_HALF || damage == CUT_ALL)
        assert_int_equal(ftruncate(file, damage == CUT_ALL ? 0 : size / 2), 0);
    if (damage == EXCHANGE) {
        assert_int_equal(pread(file, pages[0], sizeof pages[0], middle), sizeof pages[0]);
        assert_int_equal(pread(file, pages[1], sizeof pages[1], page), sizeof pages[1]);
        assert_int_equal(pwrite(file, pages[1], sizeof pages[1], 0), sizeof pages[1]);
        assert_int_equal(pwrite(file, pages[0], sizeof pages[0], page), sizeof pages[0]);
    }
    off_t first = damage == FLIP_ONE ? middle + 100 : 100, end = damage == FLIP_ONE ? first + 1 : size;
    for (off_t at = first; damage <= FLIP_ONE && at < end; at += 4096) {
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 0x40;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
}

static void copy_file(const char *from, const char *to, const char *name) {
    char paths[2][260], bytes[1 << 16];
    snprintf(paths[0], sizeof paths[0], "%s/%s", from, name);
    snprintf(paths[1], sizeof paths[1], "%s/%s", to, name);
    int source = open(paths[0], O_RDONLY), target = open(paths[1], O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(source >= 0 && target >= 0);
    for (ssize_t count; (count = read(source, bytes, sizeof bytes)) > 0;)
        assert_int_equal(write(target, bytes, (size_t)count), count);
    close(source);
    close(target);
}

/* A new folder with the one document of another. */
static void copy_store(const char *from, const char *to) {
    static const char *const names[] = {"catalog.db", "1.pages", "1.metadata"};
    assert_int_equal(mkdir(to, 0700), 0);
    for (size_t i = 0; i < 3; i++) copy_file(from, to, names[i]);
}

static void remove_folder(const char *path) {
    DIR *open_folder = opendir(path);
    assert_non_null(open_folder);
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;)
        if (entry->d_name[0] != '.') assert_int_equal(unlinkat(dirfd(open_folder), entry->d_name, 0), 0);
    closedir(open_folder);
    assert_int_equal(rmdir(path), 0);
}

static void damage_costs_time_only(void **state) {
    (void)state;
    char store[160];
    static const char *const presets[] = {"full", "meanstd"};
    static const char *const settings[] = {"sinks=4", "dense=0"}; /* pages; and key index of every layer */
    for (size_t p = 0; p < 2; p++) {
        struct outcome plain = RUN(model_path, text_path, "--preset", presets[p], "--set", settings[p]);
        const char *saved = folder(p == 0 ? "damage.0" : "damage.1");
        struct outcome first =
            RUN(model_path, text_path, "--kv-disk", saved, "--preset", presets[p], "--set", settings[p]);
        expect_same(&first, &plain);
        for (enum damage damage = 0; damage < DAMAGES; damage++)
            for (size_t metadata = 0; metadata <= p; metadata++) {
                char name[32], file[200];
                snprintf(name, sizeof name, "damage.%zu.%d.%zu", p, (int)damage, metadata);
                if (metadata == 1 && damage == EXCHANGE) continue; /* too short for two pages */
                snprintf(store, sizeof store, "%s", scratch_path(name));
                copy_store(saved, store);
                snprintf(file, sizeof file, "%s/1.%s", store, metadata == 1 ? "metadata" : "pages");
                damage_file(file, damage);
                struct outcome found = RUN(model_path, text_path, "--kv-disk", store, "--preset", presets[p],
                                           "--set", settings[p]);
                if (found.code != 0) fail_msg("%s: exit code %d: %s", name, found.code, found.complaint);
                expect_same(&found, &plain);
                const char *said = strstr(found.complaint, "computed anew");
                if (found.reused != 0 || said == NULL || strstr(said + 1, "computed anew") != NULL)
                    fail_msg("%s: %llu tokens of a damaged document; %s", name,
                             (unsigned long long)found.reused, found.complaint);
                if (damage <= FLIP_ONE && strstr(found.complaint, "): found checksum ") == NULL)
                    fail_msg("%s: what was found there? %s", name, found.complaint);
                struct outcome after = RUN(model_path, text_path, "--kv-disk", store, "--preset", presets[p],
                                           "--set", settings[p]);
                expect_same(&after, &plain);
                assert_int_equal(after.computed, 1);
            }
    }
}

static void flip_byte(const char *path, off_t at) {
    unsigned char byte;
    int file = open(path, O_RDWR);
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

/* Page by page: the answer is the same whether the prompt or a later step reads the damaged page. */
static void damage_behind_the_prompt(void **state) {
    (void)state;
    enum { PLACES = 24 };
    char file[200], host[32];
    const char *store = folder("behind"), *saved = folder("behind.saved");
    snprintf(file, sizeof file, "%s/1.pages", store);
    /* A suffix that attends to everything would read every page before the answer. */
    const char *const more[] = {"--preset", "meanstd", "--set", "dense=0", "--keep", "256", "--suffix", "auto"};
#define ASK(kv)                                                                                        \
    RUN(model_path, text_path, more[0], more[1], more[2], more[3], more[4], more[5], more[6], more[7], \
        "--kv-disk", kv, "--kv-host", host)
    snprintf(host, sizeof host, "%d", 16 << 20);
    struct outcome first = ASK(saved), again = ASK(saved);
    expect_code(&first, 0, "");
    expect_code(&again, 0, "");
    size_t late = 0;
    for (size_t place = 0; place < PLACES; place++) {
        struct stat info;
        copy_store(saved, store);
        assert_int_equal(stat(file, &info), 0);
        flip_byte(file, info.st_size / PLACES * (off_t)place + 77);
        struct outcome found = ASK(store);
        bool is_late = strstr(found.complaint, "computed anew, and the answer so far") != NULL;
        bool is_early = !is_late && strstr(found.complaint, "computed anew") != NULL;
        expect_same(&found, is_early ? &first : &again); /* the last token of a saved prompt selects */
        late += is_late;
        remove_folder(store);
    }
    print_message("%zu of %d found behind the prompt\n", late, PLACES);
    assert_true(late > 0);
#undef ASK
}

/* The same in a conversation, whose second turn may read the damaged page as well. */
static void damage_in_a_conversation(void **state) {
    (void)state;
    enum { PLACES = 16 };
    static const char ending[] = "\nand who was it\nonce more please\n";
    char file[200], said[2200];
    const char *store = folder("talk"), *saved = folder("talk.saved");
    snprintf(file, sizeof file, "%s/1.pages", store);
    FILE *text = fopen(text_path, "r");
    size_t length = fread(said, 1, 2000, text);
    fclose(text);
    said[length] = '\0';
#define TALK(kv, words)                                                                                   \
    process_run(&(struct process_request){                                                                \
        .arguments =                                                                                      \
            (const char *const[]){"chat",    "-m",       talking_path, "--temp",    "0",     "-n",        \
                                  "12",      "-t",       "1",          "--preset",  "meanstd", "--set",     \
                                  "dense=0", "--keep",   "128",        "--kv-disk", kv,      "--kv-host", \
                                  "16M",     "--suffix", "auto",       NULL},                             \
        .input = words})
    struct process_result first = TALK(saved, said);
    assert_int_equal(first.code, 0);
    strcat(said, ending);
    size_t late = 0, later = 0;
    struct process_result again = {0}, fresh = TALK(folder("talk.fresh"), said);
    assert_int_equal(fresh.code, 0);
    for (size_t place = 0; place <= PLACES; place++) {
        struct stat info;
        copy_store(saved, store);
        assert_int_equal(stat(file, &info), 0);
        if (place > 0) flip_byte(file, info.st_size / PLACES * (off_t)(place - 1) + 77);
        struct process_result found = TALK(store, said);
        if (found.code != 0) fail_msg("place %zu: %d: %s", place, found.code, found.complaints);
        if (place == 0) {
            assert_null(strstr(found.complaints, "computed anew"));
            again = found;
        } else {
            const char *note = strstr(found.complaints, "computed anew");
            bool first_turn = note != NULL && note < strstr(found.complaints, "loam: prompt");
            bool behind = note != NULL && strncmp(note, "computed anew, and", 18) == 0;
            /* The last token of a saved prompt selects, of one that is computed it does not. */
            assert_string_equal(found.output, first_turn && !behind ? fresh.output : again.output);
            late += first_turn && behind;
            later += note != NULL && !first_turn;
            process_deinit(&found);
        }
        remove_folder(store);
    }
    print_message("of %d %zu found behind the first prompt, %zu in the second turn\n", PLACES, late, later);
    assert_true(late > 0 && later > 0);
    process_deinit(&first);
    process_deinit(&fresh);
    process_deinit(&again);
#undef TALK
}

/* A model whose layers all read everything keeps no key index, for any selection. */
static void dense_layers_only(void **state) {
    (void)state;
    const char *store = folder("dense");
    struct outcome plain = RUN(model_path, text_path, "--preset", "meanstd");
    for (size_t i = 0; i < 2; i++) {
        struct outcome found = RUN(model_path, text_path, "--preset", "meanstd", "--kv-disk", store);
        expect_same(&found, &plain);
        assert_int_equal(found.reused, i == 0 ? 0 : found.prompt - 1);
    }
}

static void foreign_models_and_catalogs(void **state) {
    (void)state;
    const char *store = folder("foreign");
    struct outcome plain = RUN(other_path, text_path, "--temp", "0"),
                   first = RUN(model_path, text_path, "--kv-disk", store);
    expect_code(&first, 0, "");
    struct outcome other = RUN(other_path, text_path, "--kv-disk", store);
    expect_same(&other, &plain);
    assert_int_equal(other.reused, 0);
    struct outcome typed = RUN(model_path, text_path, "--kv-disk", store, "-ctk", "q8_0");
    expect_code(&typed, 0, "");
    assert_int_equal(typed.reused, 0);
    expect_verified(store);
    char catalog[200];
    snprintf(catalog, sizeof catalog, "%s/catalog.db", store);
    damage_file(catalog, FLIP_EVERYWHERE);
    struct outcome damaged = RUN(model_path, text_path, "--kv-disk", store);
    if (damaged.code == 0)
        expect_same(&damaged, &first);
    else
        expect_code(&damaged, 4, "catalog.db");
    damage_file(catalog, CUT_HALF);
    damaged = RUN(model_path, text_path, "--kv-disk", store);
    expect_code(&damaged, 4, "catalog.db");
}

/* The answer is worth more than the saved document; a folder that cannot be one is refused before any work. */
static void full_and_wrong_folders(void **state) {
    (void)state;
    struct outcome plain = RUN(model_path, text_path, "--temp", "0");
    char limited[200], child[200];
    const char *store = folder("limited"), *open_folder = folder("open");
    snprintf(limited, sizeof limited, "%s:256K", store);
    struct outcome found = RUN(model_path, text_path, "--kv-disk", limited);
    expect_same(&found, &plain);
    expect_code(&found, 0, "not saved: ");
    expect_verified(store);

    struct rlimit old, small = {1 << 19, 1 << 19};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    const char *stopped = folder("stopped");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    found = RUN(model_path, text_path, "--kv-disk", stopped);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_code(&found, 6, "the answer is complete, but saving the prompt stopped: ");
    expect_code(&found, 6, "File too large");
    found.code = 0;
    expect_same(&found, &plain);
    found = RUN(model_path, text_path, "--kv-disk", stopped);
    expect_same(&found, &plain);

    /* A budget in RAM that the disk was meant to relieve. */
    struct outcome deep = RUN(deep_path, text_path, "-c", "4K");
    uint64_t bytes = deep.prompt * DEEP_TOKEN_BYTES;
    char host[32];
    snprintf(host, sizeof host, "%llu", (unsigned long long)(bytes / 8 + (5 << 19)));
    const char *needed = folder("needed");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    found = RUN(deep_path, text_path, "--kv-disk", needed, "--kv-host", host);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_code(&found, 6, "File too large");
    expect_code(&found, 6, "without the disk --kv-host does not hold the KV");
    expect_verified(needed);

    snprintf(child, sizeof child, "%s/not/there", folder("parentless"));
    found = RUN(model_path, text_path, "--kv-disk", child);
    expect_code(&found, 6, "No such file or directory");
    assert_int_equal(mkdir(open_folder, 0700), 0);
    assert_int_equal(chmod(open_folder, 0777), 0);
    found = RUN(model_path, text_path, "--kv-disk", open_folder);
    expect_code(&found, 6, "writable by others");
    found = RUN(model_path, text_path, "--kv-disk", text_path);
    expect_code(&found, 6, "");
}

/* A model of several slices that are hashed apart (engine/documents.c): a bit of any of them, and it is another one. */
static void every_byte_of_the_model_counts(void **state) {
    (void)state;
    const char *store = folder("bytes"), *models = folder("models");
    char path[200];
    struct stat info;
    assert_int_equal(mkdir(models, 0700), 0);
    copy_file(LOAM_SOURCE_DIR "/models", models, "loam-nano.gguf");
    snprintf(path, sizeof path, "%s/loam-nano.gguf", models);
    struct outcome first = RUN(path, small_path, "--kv-disk", store),
                   again = RUN(path, small_path, "--kv-disk", store);
    expect_code(&first, 0, "");
    expect_same(&again, &first);
    assert_int_equal(again.reused, again.prompt - 1);
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size > 8 << 20);
    const off_t places[] = {info.st_size / 4, info.st_size / 2, info.st_size - 1};
    for (size_t i = 0; i < 3; i++) {
        flip_byte(path, places[i]);
        struct outcome other = RUN(path, small_path, "--kv-disk", store);
        expect_code(&other, 0, "");
        assert_int_equal(other.reused, 0);
        flip_byte(path, places[i]);
    }
    again = RUN(path, small_path, "--kv-disk", store);
    assert_int_equal(again.reused, again.prompt - 1);
    remove_folder(models);
}

int main(void) {
    snprintf(model_path, sizeof model_path, "%s", scratch_path("tiny.gguf"));
    snprintf(other_path, sizeof other_path, "%s", scratch_path("other.gguf"));
    snprintf(deep_path, sizeof deep_path, "%s", scratch_path("deep.gguf"));
    snprintf(wide_path, sizeof wide_path, "%s", scratch_path("wide.gguf"));
    snprintf(text_path, sizeof text_path, "%s", scratch_path("text"));
    snprintf(json_path, sizeof json_path, "%s", scratch_path("json"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 5, .context = 4096, .never_ends = true});
    tiny_model_write(other_path, &(struct tiny_model){.seed = 6, .context = 4096, .never_ends = true});
    tiny_model_write(deep_path, &(struct tiny_model){.seed = 7,
                                                     .context = 4096,
                                                     .layers = DEEP_LAYERS,
                                                     .kv_heads = TINY_HEADS,
                                                     .never_ends = true});
    tiny_model_write(wide_path, &(struct tiny_model){.seed = 9,
                                                     .context = 4096,
                                                     .layers = DEEP_LAYERS,
                                                     .heads = WIDE_HEADS,
                                                     .kv_heads = WIDE_HEADS,
                                                     .head_dimension = TINY_HEAD_DIMENSION_MAX,
                                                     .never_ends = true});
    snprintf(talking_path, sizeof talking_path, "%s", scratch_path("talking.gguf"));
    tiny_model_write(talking_path, &(struct tiny_model){.seed = 8,
                                                        .context = 4096,
                                                        .never_ends = true,
                                                        .chat_template = TINY_CHAT_TEMPLATE});
    snprintf(small_path, sizeof small_path, "%s", scratch_path("small"));
    write_text(text_path, TEXT_BYTES, "");
    write_text(small_path, 600, "");
    snprintf(little_path, sizeof little_path, "%s", scratch_path("little.text"));
    write_text(little_path, 64, "");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_read_once),
        cmocka_unit_test(a_document_is_carried),
        cmocka_unit_test(a_document_with_states),
        cmocka_unit_test(pages_in_both_forms),
        cmocka_unit_test(a_fixed_fraction_is_the_same_for_any_budget),
        cmocka_unit_test(another_question_reuses_the_document),
        cmocka_unit_test(the_budget_holds),
        cmocka_unit_test(the_budget_holds_with_a_key_index),
        cmocka_unit_test(dense_layers_stay_in_ram),
        cmocka_unit_test(a_killed_prefill_goes_on),
        cmocka_unit_test(two_at_once_answer_both),
        cmocka_unit_test(damage_costs_time_only),
        cmocka_unit_test(damage_behind_the_prompt),
        cmocka_unit_test(damage_in_a_conversation),
        cmocka_unit_test(dense_layers_only),
        cmocka_unit_test(full_and_wrong_folders),
        cmocka_unit_test(foreign_models_and_catalogs),
        cmocka_unit_test(every_byte_of_the_model_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
