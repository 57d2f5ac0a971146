/* loam-lab calibrate on the bundled model, as a user runs it. */
#include "testing.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/process.h"
#include "format/gguf.h"

#define MODEL       LOAM_SOURCE_DIR "/models/loam-nano.gguf"
#define CALIBRATION LOAM_SOURCE_DIR "/models/loam-nano.calib.gguf"
#define TEXT        LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt"

static bool exists(const char *path) {
    struct stat information;
    return stat(path, &information) == 0;
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

struct shape {
    uint64_t layers, heads, kv_heads;
};

static struct shape model_shape(void) {
    struct gguf gguf = {0};
    struct error error;
    struct shape shape = {0};
    assert_ok(gguf_open(&gguf, MODEL, &error), error);
    assert_ok(gguf_get_uint(&gguf, "llama.block_count", 64, &shape.layers, &error), error);
    assert_ok(gguf_get_uint(&gguf, "llama.attention.head_count", 64, &shape.heads, &error), error);
    assert_ok(gguf_get_uint(&gguf, "llama.attention.head_count_kv", 64, &shape.kv_heads, &error), error);
    gguf_close(&gguf);
    assert_true(shape.layers >= 3 && shape.kv_heads > 0 && shape.heads > shape.kv_heads);
    return shape;
}

/* Eighths, another one in each KV head: a line per layer.  Fills what the program must say of the last layer. */
static void write_heads(const char *path, const struct shape *shape, char *said, size_t size) {
    char text[8192] = "";
    size_t used = 0, length = 0;
    for (uint64_t layer = 0; layer < shape->layers; layer++) {
        length = (size_t)snprintf(said, size, "%5llu ", (unsigned long long)layer);
        for (uint64_t head = 0; head < shape->kv_heads; head++) {
            double score = (double)((layer + 3 * head + 1) % 9) / 8;
            used += (size_t)snprintf(text + used, sizeof text - used, "%g%c", score,
                                     head + 1 < shape->kv_heads ? ' ' : '\n');
            for (uint64_t i = 0; i < shape->heads / shape->kv_heads; i++) /* the query heads of its group */
                length += (size_t)snprintf(said + length, size - length, " %.3f", score);
        }
    }
    write_file(path, text);
}

/* Means over KV heads of hash_recall_<bits>: of random hyperplanes and of the weights in the file; how many heads they
 * are of.  Heads that attend to everything alike (skew_kept 0) find all of any top k, and are left out. */
static size_t mean_recalls(const struct gguf *gguf, const char *name, double *of_random, double *of_learned) {
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name),
                             *kept = gguf_find_tensor(gguf, "skew_kept");
    assert_true(tensor != NULL && kept != NULL);
    assert_int_equal(tensor->type, TENSOR_F32);
    assert_int_equal(tensor->dimensions[0], 3); /* random, published, learned */
    size_t rows = (size_t)tensor->size_bytes / (3 * sizeof(float)), count = 0;
    assert_int_equal(kept->size_bytes, rows * sizeof(float));
    double random = 0, learned = 0;
    for (size_t i = 0; i < rows; i++) {
        float row[3], share;
        memcpy(row, tensor->data + i * sizeof row, sizeof row);
        memcpy(&share, kept->data + i * sizeof share, sizeof share);
        if (share == 0) continue;
        random += (double)row[0], learned += (double)row[2], count++;
    }
    assert_true(count > 3);
    *of_random = random / (double)count, *of_learned = learned / (double)count;
    return rows - count;
}

/* loam-nano has three heads without queries, two of them all of their KV head's: named, and in no mean. */
static void check_idle(const char *path, const char *output) {
    struct gguf gguf = {0};
    struct error error;
    double of_random, of_learned;
    double told[3];
    assert_ok(gguf_open(&gguf, path, &error), error);
    assert_int_equal(mean_recalls(&gguf, "hash_recall_32", &of_random, &of_learned), 1);
    gguf_close(&gguf);
    const char *line = strstr(output, "\n mean ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, " mean %lf %lf %lf", &told[0], &told[1], &told[2]), 3);
    if (fabs(told[0] - of_random) > 6e-4 || fabs(told[2] - of_learned) > 6e-4)
        fail_msg("means %.4f, %.4f, but told: %s", of_random, of_learned, line);
    if (strstr(output, "skew: 8.1, 8.2, 8.3\n") == NULL) fail_msg("no idle heads in: %s", output);
}

static void a_file_is_made(void **state) {
    (void)state;
    char path[200], heads[200], said[512], tensor[40];
    snprintf(path, sizeof path, "%s", scratch_path("out.calib.gguf"));
    snprintf(heads, sizeof heads, "%s", scratch_path("heads.tsv"));
    struct shape shape = model_shape();
    write_heads(heads, &shape, said, sizeof said);
    struct process_result r = process_run(&(struct process_request){
        .arguments =
            (const char *const[]){"calibrate", MODEL, TEXT, "-t", "1", "-o", path, "-c", "512", "--windows",
                                  "4", "--bits", "32", "--epochs", "1", "--import-heads", heads, NULL}});
    if (r.code != 0) fail_msg("%s", r.complaints);
    assert_non_null(strstr(r.output, "hash codes of 32 bits"));
    if (strstr(r.output, said) == NULL) fail_msg("no '%s' in: %s", said, r.output);
    check_idle(path, r.output);
    assert_non_null(strstr(r.complaints, "4 windows of 512 tokens, 1 of them held out"));
    process_deinit(&r);
    r = LOAM("inspect", path);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.output, "loam.calibration.fingerprint"));
    for (uint64_t layer = 0; layer < shape.layers; layer++) {
        snprintf(tensor, sizeof tensor, "blk.%llu.hash_32", (unsigned long long)layer);
        assert_non_null(strstr(r.output, tensor));
    }
    assert_non_null(strstr(r.output, "kv_sensitivity"));
    process_deinit(&r);
}

/* By default no codes are learned: they helped nobody (docs/calibration.md).  The rest is there. */
static void no_codes_unless_asked_for(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("plain.calib.gguf"));
    struct process_result r = process_run(&(struct process_request){
        .arguments = (const char *const[]){"calibrate", MODEL, TEXT, "-t", "1", "-o", path, "-c", "512",
                                           "--windows", "4", NULL}});
    if (r.code != 0) fail_msg("%s", r.complaints);
    assert_null(strstr(r.output, "hash codes"));
    process_deinit(&r);
    r = LOAM("inspect", path);
    assert_int_equal(r.code, 0);
    assert_null(strstr(r.output, "hash_"));
    assert_non_null(strstr(r.output, "blk.0.skew"));
    assert_non_null(strstr(r.output, "head_importance"));
    process_deinit(&r);
}

static void stopped_leaves_nothing(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("stopped.calib.gguf"));
    struct process_result r = process_run(&(struct process_request){
        .arguments = (const char *const[]){"calibrate", MODEL, TEXT, "-t", "1", "-o", path, "-c", "512",
                                           "--bits", "128", "--epochs", "10000", NULL},
        .interrupt_after = "held out",
        .interrupt_after_ms = 1000,
        .interrupt_count = 1});
    assert_int_equal(r.code, 130);
    assert_false(exists(path));
    process_deinit(&r);
}

static void check_refused(int code, const char *says, const char *const *arguments) {
    struct process_result r = process_run(&(struct process_request){.arguments = arguments});
    assert_int_equal(r.code, code);
    if (strstr(r.complaints, says) == NULL) fail_msg("no '%s' in: %s", says, r.complaints);
    process_deinit(&r);
}

static void mistakes_are_told_first(void **state) {
    (void)state;
    char little[200], heads[200];
    snprintf(little, sizeof little, "%s", scratch_path("little.txt"));
    snprintf(heads, sizeof heads, "%s", scratch_path("wrong.tsv"));
    write_file(little, "A few words.\n");
    write_file(heads, "1 0\n0.5 0.5\n");
    check_refused(2, "are needed", (const char *const[]){"calibrate", MODEL, little, NULL});
    check_refused(2, "2 lines of scores",
                  (const char *const[]){"calibrate", MODEL, TEXT, "--import-heads", heads, NULL});
    check_refused(2, "expected multiples of 32",
                  (const char *const[]){"calibrate", MODEL, TEXT, "--bits", "100", NULL});
    check_refused(2, "or 0 alone", (const char *const[]){"calibrate", MODEL, TEXT, "--bits", "128,0", NULL});
    check_refused(2, "given twice", (const char *const[]){"calibrate", MODEL, TEXT, "--bits", "64,64", NULL});
    check_refused(6, "nowhere.txt", (const char *const[]){"calibrate", MODEL, "/nowhere.txt", NULL});
    check_refused(2, "calibrate", (const char *const[]){"calibrate", MODEL, NULL});
}

/* The bundled model's calibration is small, is found next to the model without being named, belongs to these very
 * bytes, and its codes find more than random hyperplanes of as many bits, on text that they were not learned from. */
static void the_committed_one_serves(void **state) {
    (void)state;
    struct gguf gguf = {0};
    struct error error;
    struct stat information;
    assert_int_equal(stat(MODEL, &information), 0);
    assert_in_range(information.st_size, 1, 16 << 20);
    assert_int_equal(stat(CALIBRATION, &information), 0);
    assert_in_range(information.st_size, 1, 4 << 20);
    assert_ok(gguf_open(&gguf, CALIBRATION, &error), error);
    static const char *const names[] = {"hash_recall_128", "hash_recall_256"};
    for (size_t i = 0; i < 2; i++) {
        double of_random, of_learned;
        assert_int_equal(mean_recalls(&gguf, names[i], &of_random, &of_learned), 1);
        print_message("%s: random %.3f, learned %.3f\n", names[i], of_random, of_learned);
        assert_true(of_random > 0.1 && of_learned < 1 && of_learned > of_random + 0.02);
    }
    gguf_close(&gguf);
    static const char *const presets[] = {"hata", "infinigen"}; /* they need hash weights, and skews */
    for (size_t i = 0; i < 2; i++) {
        struct process_result r =
            LOAM("run", "-m", MODEL, "-p", "In the beginning", "-n", "2", "--preset", presets[i]);
        if (r.code != 0 || strstr(r.complaints, "random hyperplanes") != NULL) fail_msg("%s", r.complaints);
        process_deinit(&r);
    }
}

/* What `loam-lab eval recall` finds of the true top tokens by codes of 128 bits, in eight windows: mean of heads that
 * choose. */
static double measured_recall(const char *model) {
    struct process_result r = process_run(&(struct process_request){
        .arguments =
            (const char *const[]){"eval", "recall", "-m", model, "-f", TEXT, "--lengths", "1024", "--chunks", "8",
                                  "--preset", "hata:128:bits=128:code=sign", "-t", "1", "-q", "-o", "json", NULL}});
    if (r.code != 0) fail_msg("%s", r.complaints);
    json_error_t error;
    json_t *root = json_loads(r.output, 0, &error), *row;
    if (root == NULL) fail_msg("%s", error.text);
    double sum = 0;
    size_t index, count = 0;
    json_array_foreach(json_object_get(root, "results"), index, row) {
        if (json_integer_value(json_object_get(row, "tokens")) == 0) continue;
        sum += json_number_value(json_object_get(row, "top"));
        count++;
    }
    assert_true(count > 10);
    json_decref(root);
    process_deinit(&r);
    return sum / (double)count;
}

/* Measured, not read from the file: the committed codes find more than the random hyperplanes of a model without a
 * calibration.  0.42 and 0.405; rounding moves them by a thousandth. */
static void the_committed_one_finds_more(void **state) {
    (void)state;
    char alone[200];
    snprintf(alone, sizeof alone, "%s", scratch_path("alone.gguf"));
    assert_int_equal(symlink(MODEL, alone), 0);
    double learned = measured_recall(MODEL), random = measured_recall(alone);
    print_message("top tokens found: random %.4f, learned %.4f\n", random, learned);
    assert_true(random > 0.2 && learned > random + 0.008);
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_committed_one_serves), cmocka_unit_test(the_committed_one_finds_more),
        cmocka_unit_test(a_file_is_made),           cmocka_unit_test(no_codes_unless_asked_for),
        cmocka_unit_test(stopped_leaves_nothing),   cmocka_unit_test(mistakes_are_told_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
