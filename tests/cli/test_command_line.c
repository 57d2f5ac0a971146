/* What the command line promises without a model: help, typos, exit codes, output that cannot be written. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/process.h"
#include "cli/progress.h"
#include "plan/plan.h"
#include "platform/clock.h"

static void every_command_has_help(void **state) {
    (void)state;
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const struct command *command = &command_table[i];
        if (command->run == NULL) continue;
        struct process_result by_flag = LOAM(command->name, "--help");
        struct process_result by_command = LOAM("help", command->name);
        assert_int_equal(by_flag.code, 0);
        assert_int_equal(by_command.code, 0);
        assert_string_equal(by_flag.output, by_command.output);
        assert_string_equal(by_flag.complaints, "");
        for (size_t o = 0; o < option_table_count; o++) {
            char name[64];
            snprintf(name, sizeof name, "--%s", option_table[o].name);
            int belongs = (option_table[o].commands >> i & 1) != 0;
            if (belongs && strstr(by_flag.output, name) == NULL)
                fail_msg("loam %s --help: no %s", command->name, name);
        }
        for (const char *line = by_flag.output; *line != '\0'; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 110)
                fail_msg("loam %s --help: %.40s...: too long", command->name, line);
        process_deinit(&by_flag);
        process_deinit(&by_command);
    }
}

/* Is word there, between characters that are of no name? */
static bool has_word(const char *text, const char *word) {
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        char before = at == text ? ' ' : at[-1], behind = at[strlen(word)];
        if (strchr(" ,(:", before) != NULL && (behind == '\0' || strchr(" ,();\n", behind) != NULL))
            return true;
    }
    return false;
}

/* What help says of one option: its line and those that are indented to the column of descriptions. */
static char *description(const char *output, const char *option) {
    enum { COLUMN = 32 };
    const char *begin = strstr(output, option), *end;
    if (begin == NULL) fail_msg("no %s in help", option);
    for (end = strchr(begin, '\n'); strspn(end + 1, " ") >= COLUMN; end = strchr(end + 1, '\n')) continue;
    char *text = strndup(begin, (size_t)(end - begin));
    assert_non_null(text);
    return text;
}

/* Every preset of the table is in help; so is every name that --set takes. */
static void help_names_what_there_is(void **state) {
    (void)state;
    static const char *const commands[] = {"run", "bench"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        struct process_result r = LOAM(commands[i], "--help");
        char *presets = description(r.output, "--preset "), *set = description(r.output, "--set ");
        for (size_t j = 0; j < preset_count; j++)
            if (!has_word(presets, preset_table[j]->name))
                fail_msg("no %s in: %s", preset_table[j]->name, presets);
        assert_false(has_word(presets, "quest") || has_word(presets, "streaming") || has_word(set, "scan"));
        const char *name, *words;
        for (size_t j = 0; (name = select_setting_name(j, &words)) != NULL; j++) {
            char text[64];
            struct plan plan = {0};
            struct error error;
            if (!has_word(set, name)) fail_msg("no %s in: %s", name, set);
            /* 0 is within the bounds of every number */
            snprintf(text, sizeof text, "%s=%.*s", name, words == NULL ? 1 : (int)strcspn(words, " "),
                     words != NULL ? words : "0");
            assert_ok(plan_set_axes(&plan, "full", text, NULL, &error), error);
        }
        assert_true(has_word(set, "resident") && has_word(set, "key_index"));
        free(presets);
        free(set);
        process_deinit(&r);
    }
}

static void option_table_is_consistent(void **state) {
    (void)state;
    for (size_t a = 0; a < option_table_count; a++) {
        const struct option_spec *x = &option_table[a];
        assert_true(x->id < OPTION_COUNT && x->name != NULL && x->help != NULL && x->commands != 0);
        assert_true((x->argument == NULL) == (x->kind == ARGUMENT_NONE));
        const bool has_words = x->kind == ARGUMENT_WORD || x->kind == ARGUMENT_WORDS;
        assert_true((x->choices != NULL) == has_words || x->kind == ARGUMENT_COUNT);
        assert_true((x->lists & ~x->commands) == 0);
        assert_true(x->lists == 0 || x->kind == ARGUMENT_WORD || x->kind == ARGUMENT_COUNT);
        for (size_t b = a + 1; b < option_table_count; b++) {
            const struct option_spec *y = &option_table[b];
            if ((x->commands & y->commands) == 0) continue;
            assert_string_not_equal(x->name, y->name);
            if (x->short_name != NULL && y->short_name != NULL)
                assert_string_not_equal(x->short_name, y->short_name);
            assert_int_not_equal(x->id, y->id);
        }
    }
}

struct exit_case {
    const char *arguments[6];
    int code;
    const char *says; /* part of standard error, which must be one line when the code is not 0 */
};

static void check_exit_case(const struct exit_case *c) {
    struct process_result result = process_run(&(struct process_request){.arguments = c->arguments});
    if (result.code != c->code || strstr(result.complaints, c->says) == NULL)
        fail_msg("loam %s %s: exit %d, '%s'; expected %d and '%s'", c->arguments[0] ? c->arguments[0] : "",
                 c->arguments[0] && c->arguments[1] ? c->arguments[1] : "", result.code, result.complaints,
                 c->code, c->says);
    if (c->code != 0) {
        const char *end = strchr(result.complaints, '\n');
        assert_non_null(end);
        assert_int_equal(end[1], '\0');
        assert_int_equal(strncmp(result.complaints, "loam: ", 6), 0);
    }
    process_deinit(&result);
}

static void usage_errors_exit_2(void **state) {
    (void)state;
    static const struct exit_case cases[] = {
        {{NULL}, 2, "which command?"},
        {{"hepl"}, 2, "did you mean 'help'?"},
        {{"versio"}, 2, "did you mean 'version'?"},
        {{"qqqqqqqqqqqq"}, 2, "unknown command 'qqqqqqqqqqqq'; 'loam help'"},
        {{"help", "versoin"}, 2, "did you mean 'version'?"},
        {{"version", "--verbos"}, 2, "unknown option '--verbos'; did you mean '--verbose'?"},
        {{"version", "--vrebose"}, 2, "did you mean '--verbose'?"},
        {{"version", "--zzz"}, 2, "'loam help version' lists them"},
        {{"serve", "-hf", "org/repo"}, 2, "'loam pull hf:ORG/REPO:FILE' brings a model"},
        {{"run", "-fa"}, 2, "loam has no '-fa'"},
        {{"chat", "--mlock"}, 2, "--weights-host"},
        {{"run", "--no-mmap"}, 2, "the file is mapped"},
        {{"run", "--rope-scale", "4"}, 2, "loam has no '--rope-scale'"},
        {{"run", "-st"}, 2, "loam has no '-st': 'loam run' is one turn"}, /* and not: did you mean --set */
        {{"serve", "--no-webui"}, 2, "loam has no '--no-webui': the server has /metrics, /props and its page"},
        {{"run", "--grammar=root"}, 2, "--json-schema"},
        {{"run", "--gramma"}, 2, "unknown option '--gramma'"},
        {{"run", "-m", "hf:org/repo:x.gguf", "-p", "x"}, 2, "loam pull hf:org/repo:x.gguf brings it"},
        {{"run", "-m", "llama3.2-1", "-p", "x"}, 6, "llama3.2-1: no such file, and no pulled model: loam models"},
        {{"version", "extra"}, 2, "unexpected argument 'extra'"},
        {{"version", "--verbose=2"}, 2, "--verbose: found '2', expected 1 or 0"},
        {{"version", "--verbose=0"}, 0, ""},
        {{"eval", "kl"}, 2, "loam eval: in loam-lab"},
        {{"quantize"}, 2, "loam quantize: in loam-lab"},
        {{"help", "perplexity"}, 2, "'perplexity' is a command of loam-lab"},
        {{"import", "folder", "out.gguf"}, 2, "by loam-lab import"},
        {{"run", "-t", "1,2"}, 2, "-t: found '1,2', expected a whole number"},
        {{"bench", "-t", "1,two"}, 2, "-t: found '1,two', expected numbers by comma"},
        {{"chat", "-ctk", "f16,q8_0"}, 2, "-ctk: found 'f16,q8_0', expected f16|q8_0"},
        {{"bench", "-ctk", "f16,q9"}, 2, "-ctk: found 'f16,q9', expected f16|q8_0"},
        {{"run", "--read-limit", "1M"}, 2, "loam has no '--read-limit': it is an option of loam-lab"},
        {{"run", "--tasks", "vt"}, 2, "unknown option '--tasks'"},
        {{"run", "-p", "x", "--preset", "quest"}, 2, "no preset 'quest'; there are full, meanstd,"},
        {{"run", "-p", "x", "--preset", "quest"}, 2, "quest is in loam-lab"},
        {{"run", "-p", "x", "--set", "select=pq"}, 2, "no method 'pq'; there are all, window, meanstd, hash, tree"},
        {{"run", "-p", "x", "--set", "reuse=lru"}, 2, "no method 'lru'; there are none|similarity"},
        {{"--version"}, 0, ""},
        {{"--help"}, 0, ""},
        {{"-h"}, 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_exit_case(&cases[i]);
}

static void environment_is_read_and_argument_wins(void **state) {
    (void)state;
    const char *plain[] = {"version", NULL}, *refused[] = {"version", "--verbose=0", NULL};
    struct process_request request = {.arguments = plain, .environment = "LOAM_ARG_VERBOSE=1"};
    struct process_result from_environment = process_run(&request);
    request.arguments = refused;
    struct process_result from_argument = process_run(&request);
    request.arguments = plain;
    request.environment = "LOAM_ARG_VERBOSE=maybe";
    struct process_result wrong = process_run(&request);
    assert_non_null(strstr(from_environment.output, "processor"));
    assert_null(strstr(from_argument.output, "processor"));
    assert_int_equal(wrong.code, 2);
    assert_non_null(strstr(wrong.complaints, "LOAM_ARG_VERBOSE"));
    process_deinit(&from_environment);
    process_deinit(&from_argument);
    process_deinit(&wrong);
}

static void unwritable_output_exits_6(void **state) {
    (void)state;
    const char *arguments[] = {"help", NULL};
    struct process_result full =
        process_run(&(struct process_request){.arguments = arguments, .output_path = "/dev/full"});
    assert_int_equal(full.code, 6);
    assert_non_null(strstr(full.complaints, "standard output: No space left"));
    process_deinit(&full);
    struct process_result closed =
        process_run(&(struct process_request){.arguments = arguments, .close_output = 1});
    assert_int_equal(closed.code, 6);
    assert_non_null(strstr(closed.complaints, "standard output: Bad file descriptor"));
    process_deinit(&closed);
    struct process_result broken =
        process_run(&(struct process_request){.arguments = arguments, .break_output = 1});
    assert_int_equal(broken.code, 6);
    assert_string_equal(broken.complaints, ""); /* as with `| head`: no complaint */
    process_deinit(&broken);
}

static void sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
        int valid;
    } cases[] = {
        {"0", 0, 1},
        {"4096", 4096, 1},
        {"4K", 4096, 1},
        {"4k", 4096, 1},
        {"3M", 3 << 20, 1},
        {"2G", UINT64_C(2) << 30, 1},
        {"1T", UINT64_C(1) << 40, 1},
        {"5MiB", 5 << 20, 1},
        {"", 0, 0},
        {"K", 0, 0},
        {"-1", 0, 0},
        {"4X", 0, 0},
        {"4KB", 4000, 1},
        {"1GB", 1000 * 1000 * 1000, 1},
        {"4KBB", 0, 0},
        {"4KiBB", 0, 0},
        {"4B", 0, 0},
        {"1.5G", 0, 0},
        {" 1", 0, 0},
        {"99999999999999999999", 0, 0},
        {"18446744073709551615", UINT64_MAX, 1},
        {"18446744073709551615K", 0, 0},
        {"18446744073709552KB", 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t value = 0;
        if (size_parse(cases[i].text, &value) != (cases[i].valid != 0)) fail_msg("'%s'", cases[i].text);
        if (cases[i].valid) assert_int_equal(value, cases[i].value);
    }
}

static void edit_distances(void **state) {
    (void)state;
    assert_int_equal(edit_distance("", "abc"), 3);
    assert_int_equal(edit_distance("temp", "temp"), 0);
    assert_int_equal(edit_distance("tmep", "temp"), 1); /* neighbours swapped */
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
}

/* What 100 updates of this progress print on standard error. */
static void record_progress(struct progress *progress, char *text, size_t text_bytes) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    for (uint64_t done = 1; done <= 100; done++) progress_update(progress, done * 10, 1000);
    progress_end(progress);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, text_bytes - 1, file)] = '\0';
    fclose(file);
}

static void progress_draws_or_prints_lines(void **state) {
    (void)state;
    char text[20000];
    double past = clock_seconds() - 100; /* a hundred seconds for what is done */
    struct progress lines = {.label = "prefill", .began = past};
    record_progress(&lines, text, sizeof text);
    size_t count = 0;
    for (const char *c = text; *c != '\0'; c++) count += *c == '\n';
    assert_int_equal(count, 9); /* 10%, 20%, ... 90% */
    assert_non_null(strstr(text, "loam: prefill  50% 500/1000 tokens, 5.0 t/s, 1:40 left\n"));
    assert_null(strchr(text, '\r'));
    const double began = clock_seconds();
    struct progress bar = {.label = "prefill", .began = past, .can_draw = true};
    record_progress(&bar, text, sizeof text);
    assert_int_equal(strncmp(text, "\r[", 2), 0);
    assert_non_null(strstr(text, ".] prefill   1% 10/1000 tokens"));
    size_t draws = 0;
    for (const char *c = text; (c = strstr(c, "\r[")) != NULL; c++) draws++;
    assert_in_range(draws, 1, 2 + (size_t)(10 * (clock_seconds() - began))); /* ten a second */
    assert_null(strchr(text, '\n'));
    assert_string_equal(text + strlen(text) - 4, "\r\033[K"); /* and removed */
    struct progress quiet = {.label = "prefill", .began = past, .quiet = true},
                    soon = {.label = "prefill", .began = clock_seconds()};
    record_progress(&quiet, text, sizeof text);
    assert_string_equal(text, "");
    record_progress(&soon, text, sizeof text); /* too short to speak of */
    assert_string_equal(text, "");
}

/* The bar is one line of any terminal, and says what there is room for. */
static void progress_fits_the_terminal(void **state) {
    (void)state;
    static const struct progress each[] = {{.label = "prefill"},
                                           {.label = "pull", .unit = PROGRESS_BYTES},
                                           {.label = "import", .unit = PROGRESS_WORK}};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        for (size_t columns = 1; columns <= 200; columns++) {
            char line[400];
            progress_line(&each[i], 123456789, 12345678901, 1e5, columns, line, sizeof line);
            assert_in_range(strlen(line), 0, columns - 1);
            if (columns >= 40 && strstr(line, " left") == NULL) fail_msg("%zu columns: %s", columns, line);
            if (columns >= 40) assert_int_equal(line[0], '[');
            if (columns >= 120 && i == 0) assert_non_null(strstr(line, "t/s"));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_has_help),
        cmocka_unit_test(help_names_what_there_is),
        cmocka_unit_test(option_table_is_consistent),
        cmocka_unit_test(usage_errors_exit_2),
        cmocka_unit_test(environment_is_read_and_argument_wins),
        cmocka_unit_test(unwritable_output_exits_6),
        cmocka_unit_test(sizes),
        cmocka_unit_test(progress_draws_or_prints_lines),
        cmocka_unit_test(progress_fits_the_terminal),
        cmocka_unit_test(edit_distances),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
