/* SIGINT, SIGTERM and SIGHUP at any moment: the answer ends as interrupted, with its JSON and its timeline, and no
 * half-written file is left. */
#include "testing.h"

#include <dirent.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/process.h"
#include "cli/tiny_model.h"
#include "platform/file.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNALS = sizeof signals / sizeof *signals };

static char model_path[160];

static int setup(void **state) {
    (void)state;
    for (size_t i = 0; i < SIGNALS; i++) signal(signals[i], SIG_DFL); /* nohup ignores one of them */
    snprintf(model_path, sizeof model_path, "%s", scratch_path("model.gguf"));
    tiny_model_write(model_path, &(struct tiny_model){.seed = 2, .context = 1 << 20});
    return 0;
}

/* A new folder; path[160]. */
static void folder_make(char *path, const char *name) {
    snprintf(path, 160, "%s", scratch_path(name));
    assert_int_equal(mkdir(path, 0700), 0);
}

static size_t file_count(const char *path) {
    size_t count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void an_answer_ends_with_its_files(void **state) {
    (void)state;
    for (size_t i = 0; i < SIGNALS; i++) {
        char folder[160], name[16], json[200], trace[200];
        snprintf(name, sizeof name, "answer%zu", i);
        folder_make(folder, name);
        snprintf(json, sizeof json, "%s/run.json", folder);
        snprintf(trace, sizeof trace, "%s/trace.json", folder);
        const char *arguments[] = {"run",    "-m", model_path, "-p",  "x", "--ignore-eos",
                                   "--json", json, "--trace",  trace, i == 0 ? "-q" : NULL, NULL};
        struct process_result result = process_run(&(struct process_request){.arguments = arguments,
                                                                             .interrupt_signal = signals[i],
                                                                             .interrupt_after = "",
                                                                             .interrupt_count = 1});
        if (result.code != 130)
            fail_msg("signal %d: exit %d: %s", signals[i], result.code, result.complaints);
        const char *told = "loam: stopping when this step is done; once more ends it at once\n";
        assert_int_equal(strstr(result.complaints, told) != NULL, i != 0);
        json_t *root = json_load_file(json, 0, NULL), *timeline = json_load_file(trace, 0, NULL);
        assert_non_null(root);
        assert_non_null(timeline);
        assert_string_equal(json_string_value(json_object_get(root, "finish_reason")), "interrupted");
        assert_int_equal(file_count(folder), 2);
        json_decref(root);
        json_decref(timeline);
        process_deinit(&result);
    }
}

/* A document of minutes: whatever of it is read by then. */
static void an_explanation_ends_while_it_reads(void **state) {
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("long.txt"));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < 400000; i++) fputc('a' + (int)(i % 23), file);
    fclose(file);
    const char *arguments[] = {"explain", "-m", model_path, "-f", path, "-p", "x", "-n", "1", NULL};
    struct process_result result = process_run(&(struct process_request){
        .arguments = arguments, .interrupt_after_ms = 500, .interrupt_count = 1});
    if (result.code != 130) fail_msg("exit %d: %s", result.code, result.complaints);
    assert_string_equal(result.output, "");
    process_deinit(&result);
}

/* The timeline's file is begun before the prompt is read, which never ends here. */
static void nothing_is_left_before_the_work(void **state) {
    (void)state;
    for (size_t i = 0; i < SIGNALS; i++) {
        char folder[160], name[16], trace[200];
        snprintf(name, sizeof name, "prompt%zu", i);
        folder_make(folder, name);
        snprintf(trace, sizeof trace, "%s/trace.json", folder);
        const char *arguments[] = {"run", "-m", model_path, "-f", "-", "--trace", trace, NULL};
        struct process_result result = process_run(&(struct process_request){.arguments = arguments,
                                                                             .interrupt_signal = signals[i],
                                                                             .interrupt_after_ms = 500,
                                                                             .interrupt_count = 1,
                                                                             .hold_input = 1});
        assert_int_equal(result.code, 128 + signals[i]);
        assert_int_equal(file_count(folder), 0);
        process_deinit(&result);
    }
}

/* quantize, import and calibrate write through a file_writer and do not look for signals while they do. */
static void a_writer_leaves_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * SIGNALS; i++) {
        char folder[160], name[16], path[200];
        snprintf(name, sizeof name, "writer%zu", i);
        folder_make(folder, name);
        snprintf(path, sizeof path, "%s/out.gguf", folder);
        const bool asks_first = i >= SIGNALS; /* the second signal is the one that ends it */
        pid_t child = fork();
        if (child == 0) {
            struct file_writer writers[2];
            struct error error;
            (asks_first ? interrupt_install : interrupt_install_cleanup)();
            for (size_t w = 0; w < 2; w++)
                if (file_writer_open(&writers[w], path, &error) != STATUS_OK) _exit(1);
            if (file_count(folder) != 2) _exit(2);
            if (asks_first) raise(SIGINT);
            if (asks_first && (!interrupt_requested() || file_count(folder) != 2)) _exit(3);
            raise(signals[i % SIGNALS]);
            _exit(4);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), signals[i % SIGNALS]);
        assert_int_equal(file_count(folder), 0);
    }
}

/* What was put in place is no temporary file any more, and what was given up is gone. */
static void what_is_in_place_stays(void **state) {
    (void)state;
    char folder[160], path[200];
    struct file_writer writer;
    struct error error;
    folder_make(folder, "placed");
    snprintf(path, sizeof path, "%s/out.gguf", folder);
    for (size_t i = 0; i < 100; i++) { /* more than the table of temporary files holds */
        assert_ok(file_writer_open(&writer, path, &error), error);
        if (i % 2 == 0)
            assert_ok(file_writer_commit(&writer, &error), error);
        else
            file_writer_abort(&writer);
    }
    file_writer_remove_temporaries();
    assert_int_equal(file_count(folder), 1);
    assert_ok(file_writer_open(&writer, path, &error), error);
    assert_int_equal(file_count(folder), 2);
    file_writer_remove_temporaries();
    assert_int_equal(file_count(folder), 1);
    file_writer_abort(&writer);
}

static void an_ignored_hangup_stays_ignored(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGHUP, SIG_IGN); /* nohup */
        interrupt_install_cleanup();
        interrupt_install();
        raise(SIGHUP);
        _exit(interrupt_requested() ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_ends_with_its_files),   cmocka_unit_test(an_explanation_ends_while_it_reads),
        cmocka_unit_test(nothing_is_left_before_the_work),
        cmocka_unit_test(a_writer_leaves_nothing),         cmocka_unit_test(what_is_in_place_stays),
        cmocka_unit_test(an_ignored_hangup_stays_ignored),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
