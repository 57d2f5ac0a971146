/* A command that would write over what it reads, or twice to one file, ends with exit code 2 and one line before any
 * work, and every file is as it was. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/tiny_model.h"
#include "platform/file.h"

enum { ARGUMENTS = 16 };

/* Everything lies in one folder, with it as the working directory of the test and the program. */
static const char *const text = "once upon a time there was a file that somebody wanted to keep";

static void write_text(const char *path) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state) {
    (void)state;
    char folder[160];
    snprintf(folder, sizeof folder, "%s", scratch_path("files"));
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chdir(folder), 0);
    tiny_model_write("m.gguf", &(struct tiny_model){.seed = 1});
    tiny_model_write("s-00001-of-00002.gguf", &(struct tiny_model){.seed = 1});
    write_text("s-00002-of-00002.gguf");
    write_text("t.txt");
    write_text("m.calib.gguf");
    assert_int_equal(link("m.gguf", "hard.gguf"), 0);
    assert_int_equal(symlink("m.gguf", "soft.gguf"), 0);
    assert_int_equal(mkdir("hf", 0700) | mkdir("kv", 0700), 0);
    write_text("hf/model.safetensors");
    write_text("kv/catalog.db");
    return 0;
}

static uint64_t digest(const char *path) {
    char *bytes;
    size_t count;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    struct error error;
    assert_ok(file_read_all(path, 64 << 20, &bytes, &count, &error), error);
    for (size_t i = 0; i < count; i++) hash = (hash ^ (uint8_t)bytes[i]) * UINT64_C(0x100000001b3);
    free(bytes);
    return hash;
}

static const char *const files[] = {"m.gguf",
                                    "t.txt",
                                    "m.calib.gguf",
                                    "kv/catalog.db",
                                    "s-00001-of-00002.gguf",
                                    "s-00002-of-00002.gguf",
                                    "hf/model.safetensors"};
enum { FILES = sizeof files / sizeof *files };

static void nothing_that_is_read_is_overwritten(void **state) {
    (void)state;
    static const struct {
        const char *arguments[ARGUMENTS], *said;
    } cases[] = {
        {{"run", "-m", "m.gguf", "-p", "x", "--json", "m.gguf"},
         "--json: 'm.gguf' would overwrite the model"},
        {{"run", "-m", "m.gguf", "-p", "x", "--json", "./m.gguf"}, "--json: './m.gguf' would overwrite"},
        {{"run", "-m", "hard.gguf", "-p", "x", "--json", "m.gguf"},
         "--json: 'm.gguf' would overwrite the model"},
        {{"run", "-m", "soft.gguf", "-p", "x", "--trace", "hard.gguf"},
         "--trace: 'hard.gguf' would overwrite"},
        {{"run", "-m", "m.gguf", "-p", "x", "--trace", "soft.gguf"}, "--trace: 'soft.gguf' would overwrite"},
        {{"run", "-m", "m.gguf", "-p", "x", "--json", "m.calib.gguf"}, "would overwrite the calibration"},
        {{"run", "-m", "m.gguf", "-f", "t.txt", "--json", "t.txt"}, "would overwrite the text of -f"},
        {{"run", "-m", "m.gguf", "-p", "x", "--kv-disk", "kv:1G", "--json", "kv/catalog.db"}, "of --kv-disk"},
        {{"run", "-m", "m.gguf", "-p", "x", "--json", "a.json", "--trace", "a.json"},
         "is the file of --json, too"},
        {{"run", "-m", "m.gguf", "-p", "x", "--json", "hf/a", "--trace", "./hf/a"},
         "is the file of --json, too"},
        {{"run", "-m", "s-00001-of-00002.gguf", "-p", "x", "--json", "s-00002-of-00002.gguf"}, "the model"},
        {{"bench", "-m", "m.gguf", "--trace", "m.gguf"}, "--trace: 'm.gguf' would overwrite the model"},
        {{"chat", "-m", "m.gguf", "--trace", "m.gguf"}, "--trace: 'm.gguf' would overwrite the model"},
        {{"eval", "ruler", "-m", "m.gguf", "-f", "t.txt", "--svg", "t.txt"},
         "--svg: 't.txt' would overwrite"},
        {{"eval", "ruler", "-m", "m.gguf", "--jsonl", "m.gguf"}, "--jsonl: 'm.gguf' would overwrite"},
        {{"eval", "ruler", "-m", "m.gguf", "--emit", "m.gguf"}, "--emit: 'm.gguf' would overwrite"},
        {{"eval", "ask", "-m", "m.gguf", "--questions", "t.txt", "--json", "t.txt"},
         "overwrite the questions"},
        {{"eval", "ruler", "-m", "m.gguf", "--json", "a", "--jsonl", "a"}, "is the file of --json, too"},
        {{"perplexity", "-m", "m.gguf", "-f", "t.txt", "--kl-divergence-base", "t.txt"}, "the text of -f"},
        {{"quantize", "m.gguf", "m.gguf", "Q8_0"}, "quantize: 'm.gguf' would overwrite the model"},
        {{"quantize", "m.gguf", "hard.gguf", "Q8_0"}, "quantize: 'hard.gguf' would overwrite the model"},
        {{"quantize", "soft.gguf", "m.gguf", "Q8_0"}, "quantize: 'm.gguf' would overwrite the model"},
        {{"quantize", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "Q8_0"}, "would overwrite the model"},
        {{"import", "hf", "hf/model.safetensors"}, "would overwrite a file of HF_DIR"},
        {{"calibrate", "m.gguf", "t.txt", "-o", "m.gguf"}, "-o: 'm.gguf' would overwrite the model"},
        {{"calibrate", "m.gguf", "t.txt", "-o", "t.txt"}, "-o: 't.txt' would overwrite a text"},
        {{"calibrate", "m.gguf", "m.calib.gguf"}, "-o: 'm.calib.gguf' would overwrite a text"},
        {{"calibrate", "m.gguf", "t.txt", "--import-heads", "hf/model.safetensors", "-o",
          "hf/model.safetensors"},
         "would overwrite the file of --import-heads"},
    };
    uint64_t before[FILES];
    for (size_t f = 0; f < FILES; f++) before[f] = digest(files[f]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct process_result result =
            process_run(&(struct process_request){.arguments = cases[i].arguments});
        const char *end = strchr(result.complaints, '\n');
        if (result.code != 2 || strstr(result.complaints, cases[i].said) == NULL || end == NULL ||
            end[1] != '\0')
            fail_msg("case %zu (%s): exit %d: %s", i, cases[i].arguments[0], result.code, result.complaints);
        for (size_t f = 0; f < FILES; f++)
            if (digest(files[f]) != before[f]) fail_msg("case %zu changed %s", i, files[f]);
        process_deinit(&result);
    }
}

/* A device may be named twice, and a folder that is not there is another complaint. */
static void the_rest_is_allowed(void **state) {
    (void)state;
    struct process_result result =
        LOAM("run", "-m", "m.gguf", "-p", "x", "-n", "1", "--json", "/dev/null", "--trace", "/dev/null");
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    process_deinit(&result);
    result = LOAM("run", "-m", "m.gguf", "-p", "x", "-n", "1", "--json", "new.json", "--trace", "new.trace");
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    process_deinit(&result);
    result = LOAM("run", "-m", "m.gguf", "-p", "x", "-n", "1", "--json", "nowhere/a", "--trace", "nowhere/b");
    assert_int_equal(result.code, 6); /* a folder that is not there is another thing */
    process_deinit(&result);
    result = LOAM("quantize", "m.gguf", "quantized.gguf", "Q8_0");
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    process_deinit(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_that_is_read_is_overwritten),
        cmocka_unit_test(the_rest_is_allowed),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
