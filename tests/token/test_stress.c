/* Inputs made to hurt, on a stack of 256 KiB: long runs of one class of characters, every scalar value, every
 * pair of bytes, sweeps of broken sequences.  Linear time, no recursion, and every byte comes back. */
#include "testing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "token/tokenizer_internal.h"
#include "token/unicode.h"
#include "vocabularies.h"

enum { STACK_BYTES = 256 << 10, MEGABYTE = 1 << 20, TOKENS_MAX = 1024, MERGES_MAX = 512 };

/* Of processor time, so that a loaded machine does not matter.  The aim is 1 s per megabyte; a sanitizer may
 * take five times as long.  Quadratic time on a megabyte would be hours. */
static const double seconds_max = 5;

/* One character of each class, in UTF-8. */
static const char *const classes[] = {"a",  "A",        "1",    " ",
                                      "\n", "!",        "中",   "\xCC\x81",
                                      "😀",  "\xC3\xA9", "\xFF", "\xE2\x81\x9A",
                                      "'",  "\t",       "\r",   "\xE3\x80\x80",
                                      "ʰ",  "²"};
enum { CLASS_COUNT = sizeof classes / sizeof classes[0] };

struct vocabulary_texts {
    struct gguf_string tokens[TOKENS_MAX], merges[MERGES_MAX];
    uint8_t types[TOKENS_MAX];
    float scores[TOKENS_MAX];
    size_t token_count, merge_count, used;
    char memory[1 << 18];
};

static struct gguf_string keep(struct vocabulary_texts *v, const char *text, size_t length) {
    assert_true(v->used + length <= sizeof v->memory);
    char *at = memcpy(v->memory + v->used, text, length);
    v->used += length;
    return (struct gguf_string){at, length};
}

static void add_token(struct vocabulary_texts *v, const char *text, size_t length, uint8_t type) {
    for (size_t i = 0; i < v->token_count; i++)
        if (v->tokens[i].length == length && memcmp(v->tokens[i].text, text, length) == 0) return;
    assert_true(v->token_count < TOKENS_MAX);
    v->scores[v->token_count] = -(float)v->token_count;
    v->types[v->token_count] = type;
    v->tokens[v->token_count++] = keep(v, text, length);
}

/* left + right becomes a token of BPE. */
static void add_merge(struct vocabulary_texts *v, const char *left, const char *right) {
    char joined[512];
    int length = snprintf(joined, sizeof joined, "%s %s", left, right);
    assert_true(v->merge_count < MERGES_MAX);
    v->merges[v->merge_count++] = keep(v, joined, (size_t)length);
    length = snprintf(joined, sizeof joined, "%s%s", left, right);
    add_token(v, joined, (size_t)length, TOKEN_NORMAL);
}

static struct tokenizer *build(struct vocabulary_texts *v, enum tokenizer_model model, const char *pre) {
    struct tokenizer_source source = {.model = model,
                                      .tokens = v->tokens,
                                      .token_count = v->token_count,
                                      .types = v->types,
                                      .scores = v->scores,
                                      .merges = v->merges,
                                      .merge_count = v->merge_count,
                                      .pre = pre ? pre_tokenizer_find(pre, strlen(pre)) : NULL,
                                      .rules.bos = TOKEN_NONE,
                                      .rules.eos = TOKEN_NONE,
                                      .rules.unknown = TOKEN_NONE,
                                      .rules.adds_space_prefix = true};
    struct tokenizer *t = NULL;
    struct error error;
    assert_ok(tokenizer_build(&t, &source, &error), error);
    return t;
}

/* The bytes of every class join to characters, and characters to runs of 2, 4, 8 and 16, so that long pieces
 * go through the heap with many stale entries. */
static struct tokenizer *build_bpe(const char *pre) {
    struct vocabulary_texts *v = calloc(1, sizeof *v);
    for (unsigned b = 0; b < 256; b++) {
        uint8_t text[4];
        size_t length = byte_level_encode((uint8_t)b, text);
        add_token(v, (const char *)text, length, TOKEN_NORMAL);
    }
    for (size_t c = 0; c < CLASS_COUNT; c++) {
        char run[256] = "", byte[5];
        for (const char *p = classes[c]; *p; p++) {
            uint8_t text[4];
            size_t length = byte_level_encode((uint8_t)*p, text);
            snprintf(byte, sizeof byte, "%.*s", (int)length, (const char *)text);
            if (*run) add_merge(v, run, byte);
            strcat(run, byte);
        }
        for (int doubling = 0; doubling < 4; doubling++) {
            add_merge(v, run, run);
            size_t length = strlen(run);
            assert_true(2 * length < sizeof run);
            memmove(run + length, run, length);
            run[2 * length] = 0;
        }
    }
    struct tokenizer *t = build(v, TOKENIZER_BPE, pre);
    free(v);
    return t;
}

/* The same for SentencePiece; with_words: a token with a space inside, so that texts are merged whole. */
static struct tokenizer *build_spm(bool with_words) {
    struct vocabulary_texts *v = calloc(1, sizeof *v);
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        add_token(v, text, 6, TOKEN_BYTE);
    }
    for (size_t c = 0; c < CLASS_COUNT; c++) {
        const char *character = classes[c][0] == ' ' ? "\xE2\x96\x81" : classes[c];
        char run[512] = "";
        for (int i = 0; i < 16; i++) {
            strcat(run, character);
            if ((i & (i + 1)) == 0 && classes[c][0] != '\xFF') add_token(v, run, strlen(run), TOKEN_NORMAL);
        }
    }
    if (with_words) add_token(v, "a\xE2\x96\x81", 4, TOKEN_NORMAL);
    struct tokenizer *t = build(v, TOKENIZER_SPM, NULL);
    free(v);
    return t;
}

/* ---- work on the small stack; cmocka may only be used on its own thread, so failures are told ---- */

struct task {
    const struct tokenizer *t;
    const char *name;
    size_t index; /* of the tokenizer: which texts get their largest size */
    void (*run)(struct task *task);
    char failure[512];
    double slowest; /* seconds per megabyte, of texts of at least 60 kB */
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool check(struct task *task, const char *what, const char *text, size_t length) {
    struct token_list list = {0};
    struct error error = {0};
    struct tokenize_options options = {0};
    char *decoded = NULL;
    size_t decoded_length = 0;
    if (task->failure[0]) return false;
    double start = now();
    enum status status = tokenizer_encode(task->t, text, length, options, &list, &error);
    double took = now() - start;
    if (status == STATUS_OK)
        status = tokenizer_decode(task->t, list.ids, list.count, false, &decoded, &decoded_length, &error);
    if (status != STATUS_OK)
        snprintf(task->failure, sizeof task->failure, "%s: %s: %.200s", task->name, what, error.message);
    else if (decoded_length != length || memcmp(decoded, text, length) != 0)
        snprintf(task->failure, sizeof task->failure, "%s: %s: %zu bytes do not come back", task->name, what,
                 length);
    else if (took > seconds_max * (length > MEGABYTE ? (double)length / MEGABYTE : 1))
        snprintf(task->failure, sizeof task->failure, "%s: %s: %zu bytes took %.1f s", task->name, what,
                 length, took);
    if (length >= 60000 && took * MEGABYTE / (double)length > task->slowest)
        task->slowest = took * MEGABYTE / (double)length;
    free(decoded);
    token_list_deinit(&list);
    return task->failure[0] == '\0';
}

static void run_runs(struct task *task) {
    static const size_t sizes[] = {1000, 10000, 26000, 43000, 131072, MEGABYTE};
    char *text = malloc(MEGABYTE + 8);
    for (size_t c = 0; c < CLASS_COUNT; c++) {
        size_t width = strlen(classes[c]);
        for (size_t at = 0; at < MEGABYTE; at += width) memcpy(text + at, classes[c], width);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            /* The largest are most of the time of this test, so the tokenizers take turns. */
            if (sizes[s] == MEGABYTE && c != (task->index * 5) % CLASS_COUNT) continue;
            if (sizes[s] == 131072 && (c + task->index) % 6 != 0) continue;
            if (sizes[s] == 43000 && (c + task->index) % 2 != 0) continue;
            size_t length = sizes[s] - sizes[s] % width;
            char last = text[length - 1];
            text[length - 1] = width == 1 ? 'x' : last; /* what a trailing look-ahead must find */
            if (!check(task, classes[c], text, length)) break;
            text[length - 1] = last;
        }
    }
    free(text);
}

/* 3 MB of letters, digits and marks without a space: one word for some pre-tokenizers. */
static void run_unbroken(struct task *task) {
    enum { LENGTH = 3 * MEGABYTE };
    char *text = malloc(LENGTH);
    uint32_t random = 7;
    for (size_t i = 0; i < LENGTH; i++) {
        random = random * 1664525U + 1013904223U;
        text[i] = task->index % 2 == 0 ? "aaAaa1!'"[random >> 29] : "aA"[random >> 31];
    }
    check(task, "3 MB", text, LENGTH);
    free(text);
}

static void run_mixtures(struct task *task) {
    static const char *const units[] = {"a ",
                                        " a",
                                        "\n ",
                                        "  \n",
                                        "a1",
                                        "'s",
                                        "1 ",
                                        "! ",
                                        "a!",
                                        "\xC3\xA9 ",
                                        "A\xCA\xB0",
                                        "a\xCC\x81",
                                        "\xE4\xB8\xAD\n",
                                        "\r\n",
                                        "/ ",
                                        "aA",
                                        "\t\t\n",
                                        "\xE3\x80\x80x"};
    enum { LENGTH = 60000 };
    char *text = malloc(LENGTH);
    for (size_t u = task->index % 2; u < sizeof units / sizeof units[0]; u += 2) {
        size_t width = strlen(units[u]), length = LENGTH - LENGTH % width;
        for (size_t at = 0; at < length; at += width) memcpy(text + at, units[u], width);
        if (!check(task, units[u], text, length)) break;
    }
    free(text);
}

static void run_scalars(struct task *task) {
    char *all = malloc(4 * 0x110000);
    size_t length = 0, count = 0;
    for (uint32_t code = 1; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        if (code == 0x2581 && task->t->model == TOKENIZER_SPM) continue; /* SentencePiece's own space */
        size_t size = utf8_encode(code, (uint8_t *)all + length);
        if ((code + task->index) % 16 == 0 && !check(task, "scalar", all + length, size)) break;
        length += size;
        count++;
    }
    bool spm = task->t->model == TOKENIZER_SPM;
    if (count != 0x110000 - 0x800 - 1 - (spm ? 1 : 0) && !task->failure[0])
        snprintf(task->failure, sizeof task->failure, "%zu scalar values", count);
    /* in parts: the allowance of time is per megabyte, and a part may end inside a character */
    for (size_t at = 0; at < length; at += MEGABYTE)
        if (!check(task, "all scalars", all + at, length - at < MEGABYTE ? length - at : MEGABYTE)) break;
    free(all);
}

static void run_broken(struct task *task) {
    static const uint8_t tails[] = {0x41, 0x80, 0xBF, 0xC2};
    enum { TAILS = sizeof tails };
    for (unsigned pair = 0; pair < 65536; pair++) {
        char text[2] = {(char)(pair >> 8), (char)pair};
        if (!check(task, "two bytes", text, 2)) return;
    }
    for (unsigned lead = 0xC0; lead < 256; lead++)
        for (unsigned second = 0; second < 256; second++)
            for (unsigned rest = 0; rest < TAILS * TAILS; rest += lead < 0xE0 ? 4U : 1U) {
                char text[4] = {(char)lead, (char)second, (char)tails[rest / TAILS],
                                (char)tails[rest % TAILS]};
                if (memcmp(text, "\xE2\x96\x81", 3) == 0) continue;
                if (!check(task, "broken sequence", text, lead < 0xF0 ? 3 : 4)) return;
            }
}

static void *enter(void *argument) {
    struct task *task = argument;
    task->run(task);
    return NULL;
}

static void on_small_stack(struct task *task) {
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attributes, enter, task), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    if (task->failure[0]) fail_msg("%s", task->failure);
}

static const char *const pres[] = {"llama-bpe", "qwen2",        "qwen35",         "gpt-2",
                                   "starcoder", "deepseek-llm", "deepseek-coder", "deepseek-v3",
                                   "tekken",    "gpt-4o",       "falcon",         "default"};
enum { PRE_COUNT = sizeof pres / sizeof pres[0] };

static void with_every_tokenizer(void (*run)(struct task *task), size_t pre_count) {
    double slowest = 0;
    const char *name = "";
    for (size_t p = 0; p < pre_count + 2; p++) {
        struct tokenizer *t = p < pre_count ? build_bpe(pres[p]) : build_spm(p == pre_count);
        struct task task = {
            .t = t, .name = p < pre_count ? pres[p] : "SentencePiece", .index = p, .run = run};
        on_small_stack(&task);
        if (task.slowest > slowest) {
            slowest = task.slowest;
            name = task.name;
        }
        tokenizer_destroy(t);
    }
    print_message("%.1f s of processor time; slowest: %.3f s per MiB (%s)\n",
                  (double)clock() / CLOCKS_PER_SEC, slowest, name);
}

static void runs_of_one_class(void **state) {
    (void)state;
    with_every_tokenizer(run_runs, PRE_COUNT);
}

static void runs_of_mixtures(void **state) {
    (void)state;
    with_every_tokenizer(run_mixtures, PRE_COUNT);
}

static void unbroken_megabytes(void **state) {
    (void)state;
    with_every_tokenizer(run_unbroken, 2);
}

static void every_scalar_value(void **state) {
    (void)state;
    with_every_tokenizer(run_scalars, 2);
}

static void broken_sequences(void **state) {
    (void)state;
    with_every_tokenizer(run_broken, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_of_one_class), cmocka_unit_test(runs_of_mixtures),
        cmocka_unit_test(unbroken_megabytes), cmocka_unit_test(every_scalar_value),
        cmocka_unit_test(broken_sequences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
