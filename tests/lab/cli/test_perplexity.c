/* loam-lab perplexity against what the probabilities must be, its base file, and loam-lab quantize. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/cli/logits_base.h"
#include "cli/process.h"
#include "cli/tiny_model.h"
#include "lab/eval/divergence.h"

static char model_path[200], other_path[200], bytes_path[200], text_path[200], base_path[200];

static void write_text(const char *path) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 60; i++) fprintf(file, "the %d fox jumps over it\n", i);
    fclose(file);
}

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("tiny.gguf"));
    snprintf(other_path, sizeof other_path, "%s", scratch_path("other.gguf"));
    snprintf(bytes_path, sizeof bytes_path, "%s", scratch_path("bytes.gguf"));
    snprintf(text_path, sizeof text_path, "%s", scratch_path("text.txt"));
    snprintf(base_path, sizeof base_path, "%s", scratch_path("base.bin"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 1});
    tiny_model_write(other_path, &(struct tiny_model){.seed = 2});
    write_text(text_path);
    return 0;
}

static double number_after(const char *text, const char *label) {
    const char *place = strstr(text, label);
    if (place == NULL) fail_msg("no '%s' in\n%s", label, text);
    return strtod(place + strlen(label), NULL);
}

static void windows_and_estimate(void **state) {
    (void)state;
    struct process_result result =
        LOAM("perplexity", "-m", model_path, "-f", text_path, "-c", "64", "--chunks", "3", "-q");
    if (result.code != 0) fail_msg("%s", result.complaints);
    assert_int_equal(strncmp(result.output, "[1]", 3), 0);
    double last = number_after(result.output, ",[3]");
    double estimate = number_after(result.output, "Final estimate: PPL over 3 chunks for n_ctx=64 = ");
    assert_true(fabs(last - estimate) < 1e-3);
    assert_null(strstr(result.output, "[4]"));
    assert_true(estimate > 1);
    assert_string_equal(result.complaints, "");
    process_deinit(&result);
}

static void a_base_is_compared_with(void **state) {
    (void)state;
    struct process_result saved = LOAM("perplexity", "-m", model_path, "-f", text_path, "-c", "32",
                                       "--chunks", "4", "--kl-divergence-base", base_path, "-q");
    if (saved.code != 0) fail_msg("%s", saved.complaints);
    double estimate = number_after(saved.output, "n_ctx=32 = ");
    struct process_result same =
        LOAM("perplexity", "-m", model_path, "--kl-divergence-base", base_path, "--kl-divergence", "-q");
    if (same.code != 0) fail_msg("%s", same.complaints);
    assert_true(number_after(same.output, "Mean    KLD:") < 1e-5);
    assert_true(number_after(same.output, "Same top p:") == 100);
    assert_true(number_after(same.output, "RMS \xce\x94p    :") < 0.01);
    assert_true(fabs(number_after(same.output, "n_ctx=32 = ") - estimate) < 1e-3 * estimate);
    struct process_result other =
        LOAM("perplexity", "-m", other_path, "--kl-divergence-base", base_path, "--kl-divergence", "-q");
    assert_int_equal(other.code, 0);
    assert_true(number_after(other.output, "Mean    KLD:") > 0.1);
    assert_true(number_after(other.output, "Same top p:") < 50);
    process_deinit(&saved);
    process_deinit(&same);
    process_deinit(&other);
}

static void check_refused(const char *path, const char *says) {
    struct process_result r =
        LOAM("perplexity", "-m", model_path, "--kl-divergence-base", path, "--kl-divergence", "-q");
    if (r.code != 4 || strstr(r.complaints, says) == NULL) fail_msg("exit %d: %s", r.code, r.complaints);
    process_deinit(&r);
}

static size_t file_bytes(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    fclose(file);
    return (size_t)size;
}

/* The base with `count` bytes at offset replaced, or cut there when bytes is NULL. */
static void write_damaged(const char *path, size_t offset, const void *bytes, size_t count) {
    FILE *in = fopen(base_path, "rb"), *out = fopen(path, "wb");
    assert_true(in != NULL && out != NULL);
    static char data[1 << 20];
    size_t size = fread(data, 1, sizeof data, in);
    if (bytes == NULL) size = offset;
    if (bytes != NULL) memcpy(data + offset, bytes, count);
    fwrite(data, 1, size, out);
    fclose(in);
    fclose(out);
}

static void damaged_and_foreign_bases_are_refused(void **state) {
    (void)state;
    struct process_result saved = LOAM("perplexity", "-m", model_path, "-f", text_path, "-c", "32",
                                       "--chunks", "2", "--kl-divergence-base", base_path, "-q");
    assert_int_equal(saved.code, 0);
    process_deinit(&saved);
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("damaged.bin"));
    check_refused(text_path, "not a base");
    write_damaged(path, 8, "\2", 1);
    check_refused(path, "damaged: window 2");
    write_damaged(path, 12, "\1\1", 2); /* another vocabulary size: the file's size no longer fits */
    check_refused(path, "another size");
    write_damaged(path, 16, "\0\0\0\x80", 4);
    check_refused(path, "windows 2147483648");
    write_damaged(path, file_bytes(base_path) - 1, "x", 1);
    check_refused(path, "another vocabulary");
    write_damaged(path, file_bytes(base_path) - 16, "x", 1);
    check_refused(path, "LOAMVOC1");
    write_damaged(path, 20, "\xff\xff\xff\x7f", 4);
    check_refused(path, "damaged: token 0");
    write_damaged(path, 19, NULL, 0);
    check_refused(path, "not a base");
    write_damaged(path, 100, NULL, 0);
    check_refused(path, "damaged: found 100 bytes");
    struct process_result context = LOAM("perplexity", "-m", model_path, "--kl-divergence-base", base_path,
                                         "--kl-divergence", "-c", "64");
    assert_int_equal(context.code, 4);
    assert_non_null(strstr(context.complaints, "made with -c 32, not 64"));
    process_deinit(&context);
}

static void rows_come_back(void **state) {
    (void)state;
    enum { V = 51 };
    struct logits_base_head head = {.vocabulary_size = V, .window_size = 4, .window_count = 1};
    int32_t tokens[4] = {1, 2, 3, 49};
    float logits[V], expected[V], found[V];
    for (int i = 0; i < V; i++) logits[i] = 3 * sinf((float)i * 1.7F) - (i == 7 ? 100 : 0);
    struct logits_base_writer writer;
    struct error error;
    assert_ok(logits_base_create(&writer, base_path, &head, 77, tokens, &error), error);
    assert_ok(logits_base_write(&writer, logits, &error), error);
    assert_ok(logits_base_commit(&writer, &error), error);
    struct logits_base base;
    assert_ok(logits_base_open(&base, base_path, &error), error);
    assert_true(logits_base_matches(&base, 77) && !logits_base_matches(&base, 78));
    float floor;
    assert_ok(logits_base_read(&base, 0, found, &floor, &error), error);
    log_softmax(logits, V, expected);
    for (int i = 0; i < V; i++)
        if (i != 7) assert_true(found[i] > floor && fabsf(found[i] - expected[i]) < 4e-4F);
    assert_true(found[7] < -20 && found[7] == floor); /* as unlikely as the format can say */
    logits_base_close(&base);
}

/* The bytes that llama-perplexity writes: 4 tokens, 3 words, one place. */
static void a_base_of_llama_perplexity_is_read(void **state) {
    (void)state;
    const int32_t counts[] = {4, 3, 1, 2, 0, 1, 2};   /* window, vocabulary, windows, then the tokens */
    const uint16_t codes[] = {0, 65535, 32768, 0};    /* the last one fills up to an even number */
    const float row[] = {2.0F / 65535, -2.40760596F}; /* the least, the most and half way between */
    FILE *file = fopen(base_path, "wb");
    assert_non_null(file);
    fwrite("_logits_", 1, 8, file);
    fwrite(counts, sizeof counts[0], 7, file);
    fwrite(row, sizeof row[0], 2, file);
    fwrite(codes, sizeof codes[0], 4, file);
    fclose(file);
    struct logits_base base;
    struct error error;
    assert_ok(logits_base_open(&base, base_path, &error), error);
    assert_int_equal(base.head.window_size, 4);
    assert_int_equal(base.head.vocabulary_size, 3);
    assert_int_equal(base.tokens[3], 2);
    assert_true(logits_base_matches(&base, 1) && logits_base_matches(&base, 2)); /* it does not say */
    float found[3], floor;
    assert_ok(logits_base_read(&base, 0, found, &floor, &error), error);
    assert_true(floor == -INFINITY); /* a row as narrow as this has nothing clamped */
    assert_true(fabsf(found[1] - found[0] - 2) < 1e-5F);
    assert_true(fabsf(found[2] - found[0] - 1) < 1e-4F);
    assert_true(fabs(exp((double)found[0]) + exp((double)found[1]) + exp((double)found[2]) - 1) < 1e-5);
    logits_base_close(&base);
}

/* As llama-perplexity writes a place: clamped at 16 below the largest, the sum taken before. */
static void write_row_of_llama(FILE *file, const float *logits, size_t count) {
    float max = logits[0], min = logits[0];
    double sum = 0;
    for (size_t i = 1; i < count; i++) {
        max = fmaxf(max, logits[i]);
        min = fminf(min, logits[i]);
    }
    min = fmaxf(min, max - 16);
    for (size_t i = 0; i < count; i++) sum += exp((double)(logits[i] - max));
    float row[2] = {(max - min) / 65535, min - max - (float)log(sum)};
    fwrite(row, sizeof row[0], 2, file);
    for (size_t i = 0; i < count; i++) {
        uint16_t code = logits[i] > min ? (uint16_t)lrintf((logits[i] - min) / row[0]) : 0;
        fwrite(&code, sizeof code, 1, file);
    }
}

/* Of a large vocabulary most is clamped at 16 nats: its bound times 49,152 would be 0.0055 of probability. */
static void what_another_program_clamps_is_left_out(void **state) {
    (void)state;
    enum { V = 49152, LIKELY = 40 };
    const int32_t counts[] = {4, V, 1, 1, 2, 3, 4};
    static float logits[V], own[V], found[V], other[V];
    for (int i = 0; i < V; i++) {
        logits[i] = i < LIKELY ? -0.2F * (float)i : -20 - 3 * sinf((float)i);
        other[i] = logits[i] + (i < LIKELY ? 0.1F * cosf(2 * (float)i) : 0);
    }
    FILE *file = fopen(base_path, "wb");
    assert_non_null(file);
    fwrite("_logits_", 1, 8, file);
    fwrite(counts, sizeof counts[0], 7, file);
    write_row_of_llama(file, logits, V);
    fclose(file);
    struct logits_base base;
    struct error error;
    float floor;
    assert_ok(logits_base_open(&base, base_path, &error), error);
    assert_ok(logits_base_read(&base, 0, found, &floor, &error), error);
    log_softmax(logits, V, own);
    for (int i = 0; i < V; i++)
        assert_true(i < LIKELY ? fabsf(found[i] - own[i]) < 2e-4F : found[i] <= floor);
    assert_true(fabs(kl_divergence(found, own, V, floor)) < 2e-5); /* with itself; normalised again: 0.0055 */
    log_softmax(other, V, other);
    double expected = kl_divergence(own, other, V, -INFINITY);
    assert_true(expected > 1e-3 && fabs(kl_divergence(found, other, V, floor) - expected) < 3e-5);
    logits_base_close(&base);
}

static void rows_that_are_no_distribution_are_refused(void **state) {
    (void)state;
    struct process_result saved = LOAM("perplexity", "-m", model_path, "-f", text_path, "-c", "32",
                                       "--chunks", "1", "--kl-divergence-base", base_path, "-q");
    assert_int_equal(saved.code, 0);
    process_deinit(&saved);
    const size_t row = 20 + 32 * sizeof(int32_t);
    const float wrong[] = {NAN, INFINITY, 1, -30};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        write_damaged(scratch_path("damaged.bin"), row + sizeof(float), &wrong[i], sizeof wrong[i]);
        check_refused(scratch_path("damaged.bin"), "damaged: row 0");
    }
    const float step[] = {NAN, -1e-4F, 1};
    for (size_t i = 0; i < sizeof step / sizeof step[0]; i++) {
        write_damaged(scratch_path("damaged.bin"), row, &step[i], sizeof step[i]);
        check_refused(scratch_path("damaged.bin"), "damaged: row 0");
    }
}

static void quantized_models_run(void **state) {
    (void)state;
    struct process_result made = LOAM("quantize", model_path, bytes_path, "Q8_0");
    if (made.code != 0) fail_msg("%s", made.complaints);
    assert_non_null(strstr(made.complaints, "tensors"));
    struct process_result inspected = LOAM("inspect", bytes_path);
    assert_non_null(strstr(inspected.output, "Q8_0"));
    struct process_result ran = LOAM("run", "-m", bytes_path, "-p", "hello", "-n", "3", "-q");
    assert_int_equal(ran.code, 0);
    struct process_result wrong = LOAM("quantize", model_path, bytes_path, "Q8_1");
    assert_int_equal(wrong.code, 2);
    struct process_result few = LOAM("quantize", model_path, bytes_path);
    assert_int_equal(few.code, 2);
    struct process_result missing = LOAM("quantize", "/nonexistent", bytes_path, "Q8_0");
    assert_int_equal(missing.code, 6);
    process_deinit(&made);
    process_deinit(&inspected);
    process_deinit(&ran);
    process_deinit(&wrong);
    process_deinit(&few);
    process_deinit(&missing);
}

static void import_says_what_is_missing(void **state) {
    (void)state;
    struct process_result missing = LOAM("import", "/nonexistent", bytes_path),
                          type = LOAM("import", "/nonexistent", bytes_path, "--type", "q9"),
                          few = LOAM("import", "/nonexistent");
    assert_int_equal(missing.code, 6);
    assert_non_null(strstr(missing.complaints, "/nonexistent"));
    assert_int_equal(type.code, 2);
    assert_int_equal(few.code, 2);
    process_deinit(&missing);
    process_deinit(&type);
    process_deinit(&few);
}

static void usage(void **state) {
    (void)state;
    struct process_result text = LOAM("perplexity", "-m", model_path),
                          base = LOAM("perplexity", "-m", model_path, "-f", text_path, "--kl-divergence"),
                          small = LOAM("perplexity", "-m", model_path, "-f", text_path, "-c", "32K");
    assert_int_equal(text.code, 2);
    assert_int_equal(base.code, 2);
    assert_int_equal(small.code, 2);
    assert_non_null(strstr(small.complaints, "a window 32768"));
    process_deinit(&text);
    process_deinit(&base);
    process_deinit(&small);
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_and_estimate),
        cmocka_unit_test(a_base_is_compared_with),
        cmocka_unit_test(damaged_and_foreign_bases_are_refused),
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(a_base_of_llama_perplexity_is_read),
        cmocka_unit_test(what_another_program_clamps_is_left_out),
        cmocka_unit_test(rows_that_are_no_distribution_are_refused),
        cmocka_unit_test(quantized_models_run),
        cmocka_unit_test(import_says_what_is_missing),
        cmocka_unit_test(usage),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
