/* A command that would write over what it reads, or twice to one file, ends with exit code 2 and one line before any
 * work, and every file is as it was. */
#include "testing.h"

#include <fcntl.h>
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
    assert_int_equal(symlink("m.gguf", "soft.gguf") | symlink("/proc/self/fd/1", "standard"), 0);
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
        {{"run", "-m", "m.gguf", "-p", "x", "--json", "m.calib.gguf"},
         "would overwrite the model's calibration"},
        {{"run", "-m", "m.gguf", "-f", "t.txt", "--json", "t.txt"}, "would overwrite the text of -f"},
        {{"run", "-m", "m.gguf", "-p", "x", "--json", "-"}, "--json: '-' is no file: /dev/stdout is"},
        {{"batch", "-m", "m.gguf", "-i", "t.txt", "-o", "-"}, "-o: '-' is no file: /dev/stdout is"},
        {{"batch", "-m", "m.gguf", "-i", "t.txt", "-o", "hard.gguf"}, "-o: 'hard.gguf' would overwrite"},
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

static void runs(const char *const *arguments, const char *output) {
    if (output != NULL) {
        write_text(output);
        assert_int_equal(truncate(output, 0), 0);
    }
    struct process_result result =
        process_run(&(struct process_request){.arguments = arguments, .output_path = output});
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    process_deinit(&result);
}

static void is_gguf(const char *path) {
    char magic[4] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(magic, 1, 4, file), 4);
    fclose(file);
    assert_memory_equal(magic, "GGUF", 4);
}

/* What a name leads to is written; the name itself, be it a link or a pipe, stays what it is. */
static void a_name_stays_what_it_is(void **state) {
    (void)state;
    struct stat info;
    write_text("kept.txt");
    assert_int_equal(chmod("kept.txt", 0640), 0);
    assert_int_equal(symlink("kept.txt", "link"), 0);
    runs((const char *[]){"quantize", "m.gguf", "link", "Q8_0", NULL}, NULL);
    assert_int_equal(lstat("link", &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(stat("kept.txt", &info), 0);
    assert_int_equal(info.st_mode & 07777, 0640);
    is_gguf("kept.txt");
    if (geteuid() == 0) { /* a link does not lead to what somebody else has */
        write_text("other.txt");
        assert_int_equal(chown("other.txt", 1, (gid_t)-1) | symlink("other.txt", "away"), 0);
        struct process_result refused = LOAM("quantize", "m.gguf", "away", "Q8_0");
        assert_int_equal(refused.code, 6);
        process_deinit(&refused);
        assert_int_equal(stat("other.txt", &info), 0);
        assert_int_equal(info.st_uid, 1);
        assert_int_equal(unlink("other.txt") | unlink("away"), 0);
    }

    runs((const char *[]){"quantize", "m.gguf", "standard", "Q8_0", NULL}, "printed");
    assert_int_equal(lstat("standard", &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    is_gguf("printed");
    assert_int_equal(digest("printed"), digest("kept.txt"));

    assert_int_equal(mkfifo("pipe", 0600), 0);
    int end = open("pipe", O_RDWR | O_CLOEXEC); /* a reader, so that nobody waits for one */
    assert_true(end >= 0);
    runs((const char *[]){"run", "-m", "m.gguf", "-p", "x", "-n", "1", "--json", "pipe", NULL}, NULL);
    assert_int_equal(lstat("pipe", &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    char begin = 0;
    assert_int_equal(read(end, &begin, 1), 1);
    assert_int_equal(begin, '{');
    close(end);
}

/* The answer comes first, then the figures: one does not overwrite the other. */
static void figures_follow_the_answer(void **state) {
    (void)state;
    char *bytes;
    size_t count;
    struct error error;
    runs((const char *[]){"run", "-m", "m.gguf", "-p", "x", "-n", "4", "--ignore-eos", "--temp", "0", NULL},
         "answer");
    runs((const char *[]){"run", "-m", "m.gguf", "-p", "x", "-n", "4", "--ignore-eos", "--temp", "0",
                          "--json", "standard", NULL},
         "both");
    assert_ok(file_read_all("answer", 1 << 20, &bytes, &count, &error), error);
    char *answer = bytes;
    assert_true(count > 0);
    assert_ok(file_read_all("both", 1 << 20, &bytes, &count, &error), error);
    assert_int_equal(strncmp(bytes, answer, strlen(answer)), 0);
    assert_int_equal(bytes[strlen(answer)], '{');
    assert_non_null(strstr(bytes, "output_tokens"));
    free(answer);
    free(bytes);
}

static void a_folder_and_no_name_are_refused_at_once(void **state) {
    (void)state;
    static const char *const bad[] = {"hf", ""};
    for (size_t i = 0; i < 2; i++) {
        struct process_result result = LOAM("run", "-m", "m.gguf", "-p", "x", "-n", "4", "--json", bad[i]);
        assert_int_equal(result.code, 6);
        assert_string_equal(result.output, "");
        assert_non_null(strstr(result.complaints, i == 0 ? "hf: Is a directory" : "'': No such file"));
        process_deinit(&result);
    }
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_that_is_read_is_overwritten),
        cmocka_unit_test(the_rest_is_allowed),
        cmocka_unit_test(a_name_stays_what_it_is),
        cmocka_unit_test(figures_follow_the_answer),
        cmocka_unit_test(a_folder_and_no_name_are_refused_at_once),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
