/* Commands without -m: the bundled model of the source tree, of an installation, and none. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/process.h"

#define MODEL LOAM_SOURCE_DIR "/models/loam-nano.gguf"

static void runs_without_a_model_named(void **state) {
    (void)state;
    struct process_result r = LOAM("run", "-p", "In the beginning", "-n", "4", "--seed", "1");
    if (r.code != 0) fail_msg("exit %d: %s", r.code, r.complaints);
    assert_non_null(strstr(r.complaints, "loam: note: no -m: the bundled model, "));
    assert_non_null(strstr(r.complaints, "/models/loam-nano.gguf\n"));
    assert_true(r.output_bytes > 0);
    struct process_result named =
        LOAM("run", "-m", MODEL, "-p", "In the beginning", "-n", "4", "--seed", "1");
    assert_string_equal(r.output, named.output);
    assert_null(strstr(named.complaints, "no -m"));
    process_deinit(&named);
    process_deinit(&r);
    r = LOAM("run", "-p", "In the beginning", "-n", "4", "-q");
    assert_int_equal(r.code, 0);
    assert_string_equal(r.complaints, "");
    process_deinit(&r);
}

/* An answer that goes round in a circle ends, and its last line has an end also where it is no terminal. */
static void a_loop_ends(void **state) {
    (void)state;
    const char *text = "The report of the first day says that";
    struct process_result r = LOAM("run", "-m", MODEL, "-p", text, "-n", "4000", "--temp", "0");
    assert_int_equal(r.code, 0);
    if (strstr(r.complaints, "repeats itself without end") == NULL) fail_msg("%s", r.complaints);
    assert_in_range(r.output_bytes, 1024, 8 * 1100);
    assert_int_equal(r.output[r.output_bytes - 1], '\n');
    process_deinit(&r);
}

static void every_command_finds_it(void **state) {
    (void)state;
    static const char *const commands[][12] = {
        {"tokenize", "-p", "a day"},
        {"detokenize", "--ids", "10,11"},
        {"inspect"},
        {"bench", "-p", "8", "-n", "0", "-r", "1"},
        {"perplexity", "-f", LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt", "-c", "64", "--chunks",
         "1"},
        {"eval", "ruler", "--emit", "/dev/null", "--samples", "1", "--lengths", "2048", "--tasks", "vt"},
        {"eval", "ruler", "--samples", "1", "--lengths", "512", "--tasks", "niah_multikey_2"},
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct process_result r = process_run_lab(commands[i]); /* it has loam's commands, too */
        if (r.code != 0) fail_msg("%s: exit %d: %s", commands[i][0], r.code, r.complaints);
        const char *said = strstr(r.complaints, "no -m");
        assert_true(said != NULL && strstr(said + 1, "no -m") == NULL); /* once */
        process_deinit(&r);
    }
    struct process_result r = process_run(&(struct process_request){
        .arguments = (const char *const[]){"chat", "-n", "2", NULL}, .input = "Hello.\n"});
    if (strstr(r.complaints, "no -m") == NULL) fail_msg("%s", r.complaints);
    process_deinit(&r);
}

/* What another copy of the program prints: its standard output and error together, and its exit code. */
static int run_copy(const char *program, char *output, size_t size) {
    char command[1200];
    snprintf(command, sizeof command, "'%s' run -p 'In the beginning' -n 2 2>&1", program);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(output, 1, size - 1, pipe);
    output[length] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void an_installation_has_its_own(void **state) {
    (void)state;
    char root[300], program[400], folder[400], model[440], command[1200], output[4000];
    snprintf(root, sizeof root, "%s", scratch_path("prefix"));
    snprintf(program, sizeof program, "%s/bin/loam", root);
    snprintf(folder, sizeof folder, "%s/share/loam/models", root);
    snprintf(model, sizeof model, "%s/loam-nano.gguf", folder);
    snprintf(command, sizeof command, "mkdir -p '%s/bin' '%s' && cp '%s' '%s'", root, folder, LOAM_BINARY,
             program);
    assert_int_equal(system(command), 0);
    assert_int_equal(run_copy(program, output, sizeof output), 2);
    const char *expected = "loam: run: which model?  -m FILE (the bundled loam-nano.gguf is neither in "
                           "../share/loam/models nor in ../../models of ";
    if (strncmp(output, expected, strlen(expected)) != 0) fail_msg("%s", output);
    assert_ptr_equal(strchr(output, '\n'), output + strlen(output) - 1); /* one line */
    assert_int_equal(symlink(MODEL, model), 0);
    assert_int_equal(run_copy(program, output, sizeof output), 0);
    if (strstr(output, "bin/../share/loam/models/loam-nano.gguf\n") == NULL) fail_msg("%s", output);
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_without_a_model_named),
        cmocka_unit_test(a_loop_ends),
        cmocka_unit_test(every_command_finds_it),
        cmocka_unit_test(an_installation_has_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
