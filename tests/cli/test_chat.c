/* loam chat through a pipe and on a terminal: turns, reused tokens, commands, Ctrl-C. */
#include "testing.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "cli/process.h"
#include "cli/tiny_model.h"
#include "platform/clock.h"

enum { ENDLESS_CONTEXT = 65536 };

static char model_path[200], plain_path[200], endless_path[200];

static int setup(void **state) {
    (void)state;
    snprintf(model_path, sizeof model_path, "%s", scratch_path("chat.gguf"));
    snprintf(plain_path, sizeof plain_path, "%s", scratch_path("plain.gguf"));
    /* llama2's layout needs no control tokens but BOS and EOS, which the tiny vocabulary has. */
    tiny_model_write(
        model_path,
        &(struct tiny_model){.seed = 3, .context = 4096, .chat_template = TINY_CHAT_TEMPLATE});
    snprintf(endless_path, sizeof endless_path, "%s", scratch_path("endless.gguf"));
    tiny_model_write(endless_path, &(struct tiny_model){.seed = 3,
                                                        .context = ENDLESS_CONTEXT,
                                                        .never_ends = true,
                                                        .chat_template = TINY_CHAT_TEMPLATE});
    tiny_model_write(plain_path, &(struct tiny_model){.seed = 3});
    return 0;
}

static struct process_result chat(const char *const *more, const char *input) {
    const char *arguments[24] = {"chat", "-m", model_path, "--temp", "0", "-n", "6"};
    size_t count = 7;
    while (*more != NULL) arguments[count++] = *more++;
    return process_run(&(struct process_request){.arguments = arguments, .input = input});
}

#define NONE ((const char *const[]){NULL})

static void read_figures(const struct process_result *result, size_t count, unsigned (*figures)[2]) {
    const char *line = result->complaints;
    for (size_t i = 0; i < count; i++, line = strchr(line, '\n') + 1)
        if (sscanf(line, "loam: prompt %u tokens (%u more reused)", &figures[i][0], &figures[i][1]) != 2)
            fail_msg("%s", result->complaints);
}

static void a_turn_prefills_only_what_is_new(void **state) {
    (void)state;
    struct process_result r = chat(NONE, "hello there\nand again\nonce more\n");
    if (r.code != 0) fail_msg("%s", r.complaints);
    unsigned turns[3][2]; /* tokens computed, and reused */
    read_figures(&r, 3, turns);
    assert_int_equal(turns[0][1], 0);
    /* The whole first prompt is kept, and of the first answer what the template writes the same way. */
    assert_true(turns[1][1] >= turns[0][0]);
    assert_true(turns[2][1] >= turns[1][1] + turns[1][0] - 8);
    assert_true(turns[2][0] < turns[2][1]);
    process_deinit(&r);
}

/* After /reset nothing of the conversation before shows, although its KV was there. */
static void reset_begins_anew(void **state) {
    (void)state;
    struct process_result once = chat(NONE, "hello\n");
    struct process_result twice = chat(NONE, "something else\n/reset\nhello\n");
    assert_int_equal(once.code, 0);
    assert_int_equal(twice.code, 0);
    size_t tail = strlen(once.output), all = strlen(twice.output);
    assert_true(tail > 1 && all > tail);
    assert_string_equal(twice.output + all - tail, once.output);
    assert_non_null(strstr(twice.complaints, "a new conversation"));
    process_deinit(&once);
    process_deinit(&twice);
}

static void line_commands(void **state) {
    (void)state;
    struct process_result r = chat(((const char *const[]){"-q", NULL}), "/help\n/nothing\n\n/quit\nhello\n");
    assert_int_equal(r.code, 0);
    assert_string_equal(r.output, ""); /* no turn was taken */
    assert_non_null(strstr(r.complaints, "/reset  begin"));
    assert_non_null(strstr(r.complaints, "no command '/nothing'"));
    process_deinit(&r);
}

static char *text_of(const char *path) {
    static char text[4096];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void write_document(const char *path) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("The mill stood still. A crow sat on it.\nNobody came by.\n", file);
    assert_int_equal(fclose(file), 0);
}

/* It stands in the place of the last answer, and is drawn anew. */
static void another_answer(void **state) {
    (void)state;
    struct process_result plain = chat(NONE, "hello\nand again\n"), same = chat(NONE, "hello\n/retry\nand again\n"),
                          drawn = chat(((const char *const[]){"--temp", "2", "-s", "5", NULL}), "hello\n/retry\n"),
                          none = chat(NONE, "/retry\n");
    char *first = plain.output, *second = strchr(first, '\n') + 1;
    const size_t length = (size_t)(second - first);
    if (strlen(same.output) != 2 * length + strlen(second) || memcmp(same.output, first, length) != 0 ||
        memcmp(same.output + length, first, length) != 0 || strcmp(same.output + 2 * length, second) != 0)
        fail_msg("%s---\n%s", plain.output, same.output);
    unsigned asked[2][2], tried[3][2]; /* tokens of a prompt, computed and reused */
    read_figures(&plain, 2, asked);
    read_figures(&same, 3, tried);
    assert_int_equal(tried[1][0], 1); /* all but the last token was there */
    assert_int_equal(tried[1][1], asked[0][0] - 1);
    assert_memory_equal(tried[2], asked[1], sizeof asked[1]);
    second = strchr(drawn.output, '\n') + 1;
    assert_true(strlen(second) != (size_t)(second - drawn.output) ||
                memcmp(second, drawn.output, strlen(second)) != 0);
    assert_string_equal(none.output, "");
    assert_non_null(strstr(none.complaints, "nothing was answered yet"));
    process_deinit(&plain);
    process_deinit(&same);
    process_deinit(&drawn);
    process_deinit(&none);
}

/* /sources says what loam explain says, and the conversation goes on as without it. */
static void what_the_answer_attended_to(void **state) {
    (void)state;
    char document[200];
    snprintf(document, sizeof document, "%s", scratch_path("document.txt"));
    write_document(document);
    const char *const about[] = {"-f", document, NULL};
    struct process_result explained = LOAM("explain", "-m", model_path, "-f", document, "-p", "who came?", "-n", "6",
                                           "--temp", "0"),
                          asked = chat(about, "who came?\n/sources\nand who sat?\n"),
                          plain = chat(about, "who came?\nand who sat?\n"), none = chat(NONE, "hello\n/sources\n");
    assert_int_equal(explained.code | asked.code, 0);
    assert_non_null(strstr(explained.output, "Nobody came by."));
    const size_t length = strlen(explained.output);
    const char *second = strchr(plain.output, '\n') + 1;
    if (strncmp(asked.output, explained.output, length) != 0 || strcmp(asked.output + length, second) != 0)
        fail_msg("%s---\n%s---\n%s", explained.output, asked.output, plain.output);
    assert_non_null(strstr(none.complaints, "the conversation has no documents"));
    process_deinit(&explained);
    process_deinit(&asked);
    process_deinit(&plain);
    process_deinit(&none);
}

/* /save writes a new file, and never over one that is there. */
static void a_conversation_is_saved(void **state) {
    (void)state;
    char document[200], path[200], lines[800], expected[1200];
    snprintf(document, sizeof document, "%s", scratch_path("saved.txt"));
    snprintf(path, sizeof path, "%s", scratch_path("talk.md"));
    write_document(document);
    snprintf(lines, sizeof lines, "who came?\n/save %s\nand who sat?\n/save %s\n/save %s\n/save /none/talk.md\n", path,
             document, path);
    struct process_result r = chat(((const char *const[]){"-sys", "be brief", "-f", document, NULL}), lines);
    if (r.code != 0) fail_msg("%s", r.complaints);
    snprintf(expected, sizeof expected,
             "# A conversation with tiny\n\n## System\n\nbe brief\n\n## Question\n\nDocuments: %s\n\nwho "
             "came?\n\n## Answer\n\n%.*s",
             document, (int)(strchr(r.output, '\n') + 1 - r.output), r.output);
    assert_string_equal(text_of(path), expected);
    assert_non_null(strstr(text_of(document), "The mill stood still."));
    assert_non_null(strstr(r.complaints, "talk.md: File exists"));
    assert_non_null(strstr(r.complaints, "saved.txt: File exists"));
    assert_non_null(strstr(r.complaints, "/none/talk.md: No such file or directory"));
    assert_non_null(strchr(strchr(r.output, '\n') + 1, '\n')); /* it went on */
    process_deinit(&r);
}

static void a_system_prompt_is_part_of_the_conversation(void **state) {
    (void)state;
    struct process_result with = chat(((const char *const[]){"-sys", "be brief", NULL}), "hello\n"),
                          without = chat(NONE, "hello\n");
    unsigned a = 0, b = 0;
    assert_int_equal(sscanf(with.complaints, "loam: prompt %u", &a), 1);
    assert_int_equal(sscanf(without.complaints, "loam: prompt %u", &b), 1);
    assert_true(a > b + 5);
    process_deinit(&with);
    process_deinit(&without);
}

static void a_full_context_is_said(void **state) {
    (void)state;
    struct process_result r =
        chat(((const char *const[]){"-c", "48", NULL}),
             "hello\nthis is a message with many more words than fit in here\n/reset\nhello\n");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.complaints, "the context holds 48: /reset"));
    process_deinit(&r);
}

static void templates_are_needed(void **state) {
    (void)state;
    struct process_result none = LOAM("chat", "-m", plain_path),
                          wrong = LOAM("chat", "-m", plain_path, "--chat-template", "nothing"),
                          named = LOAM("chat", "-m", plain_path, "--chat-template", "llama2");
    assert_int_equal(none.code, 1);
    assert_non_null(strstr(none.complaints, "--chat-template"));
    assert_int_equal(wrong.code, 2);
    assert_non_null(strstr(wrong.complaints, "chatml"));
    assert_int_equal(named.code, 0);
    process_deinit(&none);
    process_deinit(&wrong);
    process_deinit(&named);
}

/* ---- on a terminal ---- */

struct terminal {
    int fd;
    pid_t child;
    char text[65536];
    size_t used;
};

static void terminal_open(struct terminal *t, const char *model, const char *n) {
    *t = (struct terminal){.fd = -1};
    fflush(NULL);
    t->child = forkpty(&t->fd, NULL, NULL, NULL);
    assert_true(t->child >= 0);
    if (t->child > 0) return;
    setenv("TERM", "vt100", 1);
    execl(LOAM_BINARY, LOAM_BINARY, "chat", "-m", model, "--temp", "0", "-n", n, (char *)NULL);
    _exit(97);
}

/* Reads what has come within 100 ms; false: nothing. */
static bool terminal_read(struct terminal *t) {
    struct pollfd poll_one = {t->fd, POLLIN, 0};
    if (poll(&poll_one, 1, 100) <= 0) return false;
    ssize_t count = read(t->fd, t->text + t->used, sizeof t->text - t->used - 1);
    if (count <= 0) fail_msg("the end after '%s'", t->text);
    for (ssize_t i = 0; i < count; i++) /* strstr must see all of it */
        if (t->text[t->used + (size_t)i] == '\0') t->text[t->used + (size_t)i] = '?';
    t->used += (size_t)count;
    t->text[t->used] = '\0';
    return true;
}

/* Reads until `text` appears after `from`; returns where it ends. */
static size_t terminal_expect(struct terminal *t, const char *text, size_t from) {
    uint64_t began = clock_ns();
    for (;;) {
        const char *found = strstr(t->text + from, text);
        if (found != NULL) return (size_t)(found - t->text) + strlen(text);
        if (clock_ns() - began > UINT64_C(30000000000)) fail_msg("no '%s' in '%s'", text, t->text + from);
        terminal_read(t);
    }
}

/* Waits for the prompt and for the editor behind it: until then the terminal itself echoes what is typed. */
static size_t terminal_expect_prompt(struct terminal *t, size_t from) {
    size_t end = terminal_expect(t, "> ", from);
    uint64_t began = clock_ns();
    struct termios mode;
    while (tcgetattr(t->fd, &mode) == 0 && (mode.c_lflag & ICANON) != 0) {
        if (clock_ns() - began > UINT64_C(30000000000)) fail_msg("no editor at the prompt");
        usleep(1000);
    }
    return end;
}

static void terminal_type(struct terminal *t, const char *keys) {
    assert_int_equal(write(t->fd, keys, strlen(keys)), strlen(keys));
}

static int terminal_close(struct terminal *t) {
    int status;
    uint64_t began = clock_ns();
    for (;;) { /* what is still printed must be read, or the child waits */
        char rest[4096];
        struct pollfd poll_one = {t->fd, POLLIN, 0};
        if (clock_ns() - began > UINT64_C(30000000000)) {
            kill(t->child, SIGKILL);
            fail_msg("no end after 30 seconds");
        }
        if (poll(&poll_one, 1, 100) <= 0) continue;
        ssize_t count = read(t->fd, rest, sizeof rest);
        if (count <= 0 && errno != EINTR) break;
    }
    assert_int_equal(waitpid(t->child, &status, 0), t->child);
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void lines_are_edited(void **state) {
    (void)state;
    static struct terminal t;
    terminal_open(&t, model_path, "4");
    size_t at = terminal_expect_prompt(&t, 0);
    terminal_type(&t, "/hepl\177\177lp\n"); /* two backspaces: /help */
    at = terminal_expect(&t, "Ctrl-C stops", at);
    at = terminal_expect_prompt(&t, at);
    terminal_type(&t, "/quit\n");
    assert_int_equal(terminal_close(&t), 0);
}

/* Types a line, waits for the first of the answer and stops it; returns where its figures begin.
 * The answer is many times what a terminal holds unread (12 KiB), so however slow this test is, it cannot be
 * over: a Ctrl-C after the end would be one at the prompt, and the terminal throws away on Ctrl-C
 * what was not read yet, figures and all. */
static size_t stop_an_answer(struct terminal *t) {
    terminal_open(t, endless_path, "100000");
    size_t at = terminal_expect_prompt(t, 0);
    terminal_type(t, "hello\n");
    at = terminal_expect(t, "hello\r\n", at);
    while (t->used == at) terminal_read(t);
    terminal_type(t, "\003");
    at = terminal_expect(t, "loam: prompt ", at); /* the answer's figures: the chat goes on */
    size_t end = terminal_expect_prompt(t, at);
    unsigned answer_tokens = 0;
    const char *figures = strstr(t->text + at, "answer ");
    assert_non_null(figures);
    assert_int_equal(sscanf(figures, "answer %u tokens", &answer_tokens), 1);
    assert_true(answer_tokens > 0 && answer_tokens < ENDLESS_CONTEXT / 2);
    return end;
}

static void ctrl_c_stops_the_answer(void **state) {
    (void)state;
    static struct terminal t;
    size_t at = stop_an_answer(&t);
    terminal_type(&t, "/help\n");
    at = terminal_expect(&t, "/reset  begin", at);
    terminal_expect_prompt(&t, at);
    terminal_type(&t, "\003"); /* a line was read since: this one is a first one again */
    at = terminal_expect(&t, "Ctrl-C again leaves", at);
    terminal_expect_prompt(&t, at);
    terminal_type(&t, "/quit\n");
    assert_int_equal(terminal_close(&t), 0);
}

static void ctrl_c_twice_during_an_answer_leaves(void **state) {
    (void)state;
    static struct terminal t;
    stop_an_answer(&t);
    terminal_type(&t, "\003");
    assert_int_equal(terminal_close(&t), 130);
}

static void ctrl_c_twice_at_the_prompt_leaves(void **state) {
    (void)state;
    static struct terminal t;
    terminal_open(&t, model_path, "4");
    size_t at = terminal_expect_prompt(&t, 0);
    terminal_type(&t, "\003");
    at = terminal_expect(&t, "Ctrl-C again leaves", at);
    terminal_expect_prompt(&t, at);
    terminal_type(&t, "\003");
    assert_int_equal(terminal_close(&t), 130);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_prefills_only_what_is_new),
        cmocka_unit_test(reset_begins_anew),
        cmocka_unit_test(line_commands),
        cmocka_unit_test(another_answer),
        cmocka_unit_test(what_the_answer_attended_to),
        cmocka_unit_test(a_conversation_is_saved),
        cmocka_unit_test(a_system_prompt_is_part_of_the_conversation),
        cmocka_unit_test(a_full_context_is_said),
        cmocka_unit_test(templates_are_needed),
        cmocka_unit_test(lines_are_edited),
        cmocka_unit_test(ctrl_c_stops_the_answer),
        cmocka_unit_test(ctrl_c_twice_during_an_answer_leaves),
        cmocka_unit_test(ctrl_c_twice_at_the_prompt_leaves),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
