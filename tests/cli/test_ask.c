/* loam run and chat with a chat template: documents first, the question after them, and what is saved of them. */
#include "testing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/process.h"
#include "cli/tiny_model.h"

/* llama2's layout needs no control tokens but BOS and EOS, which the tiny vocabulary has. */
enum { LONG_TOKENS_MIN = 2100, SHORT_TOKENS = 300 };

static char chat_path[200], plain_path[200], unknown_path[200], long_path[200], short_path[200],
    json_path[200];

static void write_text(const char *path, size_t words) {
    static const char *const list[] = {"morning ", "a ship ", "came in ", "from the ", "north,\n"};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < words; i++) fputs(list[i * i % 5], file);
    fclose(file);
}

static int setup(void **state) {
    (void)state;
    static const struct {
        char *path;
        const char *name;
    } paths[] = {{chat_path, "chat.gguf"}, {plain_path, "plain.gguf"}, {unknown_path, "unknown.gguf"},
                 {long_path, "long.txt"},  {short_path, "short.txt"},  {json_path, "run.json"}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        snprintf(paths[i].path, sizeof chat_path, "%s", scratch_path(paths[i].name));
    const struct tiny_model model = {.seed = 5, .context = 8192, .never_ends = true};
    struct tiny_model other = model;
    tiny_model_write(plain_path, &model);
    other.chat_template = TINY_CHAT_TEMPLATE;
    tiny_model_write(chat_path, &other);
    other.chat_template = "{{ '<<|strange|>>' }}";
    tiny_model_write(unknown_path, &other);
    write_text(long_path, LONG_TOKENS_MIN / 4); /* tokens are bytes, and a word has seven or more */
    write_text(short_path, SHORT_TOKENS / 9);
    return 0;
}

static struct process_result run_more(const char *command, const char *const *more, const char *input) {
    const char *arguments[40] = {command, "--temp", "0", "-n", "8", "-t", "1"};
    size_t count = 7;
    while (*more != NULL) arguments[count++] = *more++;
    return process_run(&(struct process_request){.arguments = arguments, .input = input});
}

#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})
#define RUN(...)  run_more("run", MORE(__VA_ARGS__, "--json", json_path), NULL)

/* The figures of a run that must succeed. */
static json_t *figures(struct process_result result) {
    if (result.code != 0) fail_msg("exit %d: %s", result.code, result.complaints);
    process_deinit(&result);
    json_error_t why;
    json_t *root = json_load_file(json_path, 0, &why);
    if (root == NULL) fail_msg("%s", why.text);
    return root;
}

static void assert_same_answer(struct process_result a, struct process_result b, bool same_prompt) {
    if (a.code != 0 || b.code != 0) fail_msg("%s / %s", a.complaints, b.complaints);
    if (same_prompt)
        assert_string_equal(a.output, b.output);
    else
        assert_string_not_equal(a.output, b.output);
    process_deinit(&a);
    process_deinit(&b);
}

static void a_template_is_used_where_there_is_one(void **state) {
    (void)state;
    assert_same_answer(RUN("-m", chat_path, "-p", "hello"),
                       RUN("-m", plain_path, "-p", "[INST] hello [/INST]"), true);
    assert_same_answer(RUN("-m", chat_path, "-p", "hello"), RUN("-m", plain_path, "-p", "hello"), false);
    assert_same_answer(RUN("-m", chat_path, "-p", "hello", "-sys", "be kind"),
                       RUN("-m", plain_path, "-p", "[INST] <<SYS>>\nbe kind\n<</SYS>>\n\nhello [/INST]"),
                       true);
    assert_same_answer(RUN("-m", plain_path, "-p", "hello", "--chat-template", "llama2"),
                       RUN("-m", plain_path, "-p", "[INST] hello [/INST]"), true);
    json_t *root = figures(RUN("-m", chat_path, "-p", "hello"));
    assert_string_equal(json_string_value(json_object_get(root, "chat_template")), "jinja");
    json_decref(root);
    root = figures(RUN("-m", plain_path, "-p", "hello"));
    assert_true(json_is_null(json_object_get(root, "chat_template")));
    json_decref(root);
}

/* The switch that --reasoning turns, as Qwen's template and DeepSeek's have it; who writes nothing leaves it alone. */
static void reasoning_is_switched(void **state) {
    static const char *const names[] = {"enable_thinking", "thinking"};
    (void)state;
    char path[200];
    snprintf(path, sizeof path, "%s", scratch_path("thinks.gguf"));
    for (size_t i = 0; i < 2; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "{{ bos_token }}{{ 'left' if %s is not defined else 'on' if %s else 'off' }} "
                 "{{ messages[0].content }}",
                 names[i], names[i]);
        tiny_model_write(path, &(struct tiny_model){
                                   .seed = 5, .context = 8192, .never_ends = true, .chat_template = text});
        assert_same_answer(RUN("-m", path, "-p", "hello"), RUN("-m", plain_path, "-p", "left hello"), true);
        assert_same_answer(RUN("-m", path, "-p", "hello", "--reasoning", "auto"),
                           RUN("-m", plain_path, "-p", "left hello"), true);
        assert_same_answer(RUN("-m", path, "-p", "hello", "--reasoning", "on"),
                           RUN("-m", plain_path, "-p", "on hello"), true);
        assert_same_answer(RUN("-m", path, "-p", "hello", "-rea", "off"),
                           RUN("-m", plain_path, "-p", "off hello"), true);
        struct process_result known = RUN("-m", path, "-p", "hello", "--reasoning", "off");
        assert_null(strstr(known.complaints, "no switch"));
        process_deinit(&known);
    }
    struct process_result result = RUN("-m", chat_path, "-p", "hello", "--reasoning", "off");
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.complaints, "the model's chat template has no switch for --reasoning"));
    process_deinit(&result);
}

static void raw_text_is_completed(void **state) {
    (void)state;
    static const char *const names[] = {"--raw", "-no-cnv", "--no-conversation", "--special"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_same_answer(RUN("-m", chat_path, names[i], "-p", "hello"),
                           RUN("-m", plain_path, "-p", "hello"), true);
    assert_same_answer(RUN("-m", chat_path, "--ids", "1,75,104"), RUN("-m", plain_path, "--ids", "1,75,104"),
                       true);
    assert_same_answer(RUN("-m", unknown_path, "--raw", "-p", "hello"), RUN("-m", plain_path, "-p", "hello"),
                       true);
}

static void documents_come_first(void **state) {
    (void)state;
    const char *a_path = scratch_path("a.txt");
    FILE *file = fopen(a_path, "w");
    assert_non_null(file);
    fputs("the first", file);
    fclose(file);
    char b_path[200];
    snprintf(b_path, sizeof b_path, "%s", scratch_path("b,c.txt")); /* a comma parts nothing */
    file = fopen(b_path, "w");
    assert_non_null(file);
    fputs("the second\n", file);
    fclose(file);
    assert_same_answer(RUN("-m", chat_path, "-f", scratch_path("a.txt"), "-f", b_path, "-p", "what?"),
                       RUN("-m", plain_path, "-p",
                           "[INST] the first\n\n==> b,c.txt <==\v\nthe second\n\nwhat? [/INST]"), true);
    assert_same_answer(RUN("-m", plain_path, "-f", scratch_path("a.txt"), "-f", b_path, "-p", "what?"),
                       RUN("-m", plain_path, "-p", "the first\n==> b,c.txt <==\v\nthe second\nwhat?"), true);
    assert_same_answer(RUN("-m", chat_path, "-f", scratch_path("a.txt")),
                       RUN("-m", plain_path, "-p", "[INST] the first [/INST]"), true);
}

static unsigned number_at(json_t *root, const char *outer, const char *inner) {
    return (unsigned)json_integer_value(json_object_get(json_object_get(root, outer), inner));
}

/* All but the question: nothing of the documents is computed again but what no chunk holds. */
static void the_next_question_reads_nothing_again(void **state) {
    (void)state;
    const char *folder = scratch_path("saved");
    json_t *alone = figures(RUN("-m", chat_path, "-f", long_path));
    const unsigned document = number_at(alone, "prefill", "tokens");
    assert_true(document > LONG_TOKENS_MIN);
    json_t *first = figures(RUN("-m", chat_path, "-f", long_path, "-p", "who came?", "--kv-disk", folder));
    json_t *second = figures(RUN("-m", chat_path, "-f", long_path, "-p", "And when?", "--kv-disk", folder));
    json_t *fresh = figures(RUN("-m", chat_path, "-f", long_path, "-p", "And when?"));
    assert_int_equal(number_at(first, "prefill", "reused_tokens"), 0);
    assert_true(number_at(second, "prefill", "reused_tokens") + 64 >= document);
    assert_int_equal(number_at(second, "prefill", "reused_tokens") + number_at(second, "prefill", "tokens"),
                     number_at(fresh, "prefill", "tokens"));
    json_decref(alone);
    json_decref(first);
    json_decref(second);
    json_decref(fresh);
    /* chat opens the same document */
    struct process_result r =
        run_more("chat", MORE("-m", chat_path, "-f", long_path, "--kv-disk", folder), "Where to?\n");
    unsigned computed, reused;
    const char *line = strstr(r.complaints, "loam: prompt ");
    if (line == NULL || sscanf(line, "loam: prompt %u tokens (%u more reused)", &computed, &reused) != 2)
        fail_msg("exit %d: %s", r.code, r.complaints);
    assert_true(reused + 64 >= document && computed < 128);
    process_deinit(&r);
}

/* As if the file had been named by -f; what cannot be added is said, and the conversation goes on. */
static void chat_adds_documents(void **state) {
    (void)state;
    char lines[800];
    snprintf(lines, sizeof lines, "/add /nonexistent\n/add -\n/add %s\nwho?\n/reset\nwho?\n", short_path);
    struct process_result r = run_more("chat", MORE("-m", chat_path), lines);
    struct process_result once = RUN("-m", chat_path, "-f", short_path, "-p", "who?");
    if (r.code != 0 || once.code != 0) fail_msg("%s / %s", r.complaints, once.complaints);
    const size_t length = strlen(once.output);
    assert_int_equal(strlen(r.output), 2 * length);
    assert_memory_equal(r.output, once.output, length);
    assert_memory_equal(r.output + length, once.output, length);
    if (strstr(r.complaints, "/nonexistent") == NULL || strstr(r.complaints, "what you type") == NULL ||
        strstr(r.complaints, "short.txt, too") == NULL)
        fail_msg("%s", r.complaints);
    process_deinit(&r);
    snprintf(lines, sizeof lines, "/add %s\nwho?\nwho?\n", long_path);
    r = run_more("chat", MORE("-m", chat_path, "-f", short_path, "-c", "1K"), lines);
    if (r.code != 0 || strstr(r.complaints, "what was added is left out") == NULL) fail_msg("%s", r.complaints);
    assert_string_equal(r.output, once.output); /* the second question, without it */
    process_deinit(&r);
    process_deinit(&once);
}

static void chat_talks_about_documents(void **state) {
    (void)state;
    struct process_result r =
        run_more("chat", MORE("-m", chat_path, "-f", short_path), "who?\nwhen?\n/reset\nwho?\n");
    struct process_result once = RUN("-m", chat_path, "-f", short_path, "-p", "who?");
    if (r.code != 0 || once.code != 0) fail_msg("%s / %s", r.complaints, once.complaints);
    size_t length = strlen(once.output), all = strlen(r.output);
    assert_true(length > 0 && all > 2 * length);
    assert_memory_equal(r.output, once.output, length);                /* the first turn is what run asks */
    assert_memory_equal(r.output + all - length, once.output, length); /* /reset: the documents are there */
    unsigned fresh[3], reused[3];
    const char *line = r.complaints;
    for (int i = 0; i < 3; i++) {
        line = strstr(line, "loam: prompt ");
        if (line == NULL ||
            sscanf(line++, "loam: prompt %u tokens (%u more reused)", &fresh[i], &reused[i]) != 2)
            fail_msg("%s", r.complaints);
    }
    assert_true(fresh[0] >= SHORT_TOKENS / 2);
    assert_true(fresh[1] < 64 && reused[1] >= fresh[0]); /* they are said once */
    assert_true(fresh[2] == 1 && reused[2] == fresh[0] - 1);
    process_deinit(&r);
    process_deinit(&once);
}

static void a_hint_says_how_the_next_one_is_cheap(void **state) {
    (void)state;
    const struct {
        const char *arguments[12];
        bool is_told;
    } cases[] = {
        {{"-m", chat_path, "-f", long_path, "-p", "who?"}, true},
        {{"-m", plain_path, "-f", long_path}, true},
        {{"-m", chat_path, "-f", long_path, "-p", "who?", "-q"}, false},
        {{"-m", chat_path, "-f", short_path, "-p", "who?"}, false},
        {{"-m", chat_path, "-f", long_path, "-p", "who?", "--kv-disk", scratch_path("hint")}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct process_result r = run_more("run", cases[i].arguments, NULL);
        if (r.code != 0 || (strstr(r.complaints, "hint: --kv-disk DIR") != NULL) != cases[i].is_told)
            fail_msg("case %zu: exit %d: %s", i, r.code, r.complaints);
        process_deinit(&r);
    }
}

static void write_bytes(const char *name, const char *bytes, size_t length) {
    FILE *file = fopen(scratch_path(name), "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

#define WRITE(name, literal) write_bytes(name, literal, sizeof literal - 1)

/* Whatever a file is, what is asked is its text, and a line says so. */
static void files_are_read_as_text(void **state) {
    (void)state;
    static const struct {
        const char *name, *says, *encoding;
    } cases[] = {{"wide.txt", "wide.txt: read as UTF-16LE", NULL},
                 {"page.html", "page.html: read as HTML", NULL},
                 {"marked.txt", "marked.txt: read without its byte order mark", NULL},
                 {"latin.txt", "latin.txt: read as WINDOWS-1252", "latin1"}};
    WRITE("wide.txt", "\xFF\xFEM\0\xFC\0l\0l\0e\0r\0");
    WRITE("page.html", "<html><script>x</script><p>M&uuml;ller");
    WRITE("marked.txt", "\xEF\xBB\xBFM\xC3\xBCller");
    WRITE("latin.txt", "M\xFCller");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[200];
        snprintf(path, sizeof path, "%s", scratch_path(cases[i].name));
        struct process_result r =
            RUN("-m", chat_path, "-f", path, "-p", "who?", cases[i].encoding != NULL ? "--encoding" : NULL,
                cases[i].encoding);
        if (r.code != 0 || strstr(r.complaints, cases[i].says) == NULL) fail_msg("exit %d: %s", r.code, r.complaints);
        assert_same_answer(r, RUN("-m", chat_path, "-p", "M\xC3\xBCller\n\nwho?"),
                           true);
    }
    struct process_result foreign = RUN("-m", chat_path, "-p", "M\xFCller");
    if (strstr(foreign.complaints, "note: -p: is no UTF-8: byte 2, 0xFC\n") == NULL) fail_msg("%s", foreign.complaints);
    process_deinit(&foreign);
    WRITE("empty.txt", "");
    struct process_result r = RUN("-m", chat_path, "-f", scratch_path("empty.txt"), "-p", "who?");
    if (strstr(r.complaints, "empty.txt: is empty\n") == NULL) fail_msg("exit %d: %s", r.code, r.complaints);
    assert_same_answer(r, RUN("-m", chat_path, "-p", "who?"), true);
}

/* A folder is one document: its files in order, each behind its name; one more at the end is all that is read. */
static void a_folder_is_asked(void **state) {
    (void)state;
    char folder[200], kv[200];
    snprintf(folder, sizeof folder, "%s", scratch_path("notes"));
    snprintf(kv, sizeof kv, "%s", scratch_path("notes-kv"));
    assert_int_equal(mkdir(folder, 0700), 0);
    WRITE("notes/10.txt", "the third");
    WRITE("notes/9.txt", "the second\n");
    WRITE("notes/1.txt",
          "the first, which is as long as it takes to be a chunk of tokens, since each of the bytes is one");
    WRITE("notes/picture", "\x89PNG\r\n\x1A\n\0");
    static const char whole[] =
        "==> 1.txt <==\v\nthe first, which is as long as it takes to be a chunk of tokens, since each of the bytes is "
        "one\n\n==> 9.txt <==\v\nthe second\n\n==> 10.txt <==\v\nthe third\n\nwho?";
    struct process_result r = RUN("-m", chat_path, "-f", folder, "-p", "who?", "--kv-disk", kv);
    if (strstr(r.complaints, "note: left out") == NULL || strstr(r.complaints, "picture: is a PNG picture") == NULL)
        fail_msg("%s", r.complaints);
    assert_same_answer(r, RUN("-m", chat_path, "-p", whole), true);
    WRITE("notes/11.txt", "the fourth");
    json_t *grown = figures(RUN("-m", chat_path, "-f", folder, "-p", "who?", "--kv-disk", kv));
    const char *end = strstr(whole, "the third");
    assert_true(number_at(grown, "prefill", "reused_tokens") >= (unsigned)(end - whole) / 64 * 64);
    json_decref(grown);
    char inside[240];
    snprintf(inside, sizeof inside, "%s/9.txt", folder);
    r = RUN("-m", chat_path, "-f", folder, "-f", inside, "-p", "who?");
    const char *more = "==> 11.txt <==\v\nthe fourth\n\n==> 9.txt <==\v\nthe second\n\nwho?";
    char all[sizeof whole + 80];
    snprintf(all, sizeof all, "%.*s%s", (int)(strstr(whole, "who?") - whole), whole, more);
    assert_same_answer(r, RUN("-m", chat_path, "-p", all), true);
    r = RUN("-m", chat_path, "-f", inside, "-f", inside, "-p", "who?");
    assert_same_answer(r, RUN("-m", chat_path, "-p", "the second\n\n==> 9.txt <==\v\nthe second\n\nwho?"), true);
    r = LOAM("run", "-m", chat_path, "-f", folder, "-p", "who?", "--json", inside);
    if (r.code != 2 || strstr(r.complaints, "would overwrite the text of -f") == NULL) fail_msg("%s", r.complaints);
    process_deinit(&r);
}

/* 0.3, where neither the model's file nor the command line says one. */
static void documents_are_asked_at_a_lower_temperature(void **state) {
    (void)state;
#define ASK(...) LOAM("run", "-m", chat_path, "-f", short_path, "-s", "3", "-n", "24", ##__VA_ARGS__)
    assert_same_answer(ASK("-p", "who?"), ASK("-p", "who?", "--temp", "0.3"), true);
    assert_same_answer(ASK("-p", "who?"), ASK("-p", "who?", "--temp", "0.8"), false);
    assert_same_answer(ASK("--raw"), ASK("--raw", "--temp", "0.8"), true);
#undef ASK
    /* A conversation that gets its document by /add, at its beginning and later. */
    static const char *const begins[] = {"", "hello\n"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        char lines[400];
        snprintf(lines, sizeof lines, "%s/add %s\nwho?\n", begins[i], short_path);
#define CHAT(...)                                                                                        \
    process_run(                                                                                         \
        &(struct process_request){.arguments = (const char *const[]){"chat", "-m", chat_path, "-s", "3", \
                                                                     "-n", "24", __VA_ARGS__, NULL},     \
                                  .input = lines})
        assert_same_answer(CHAT("-q"), CHAT("-q", "--temp", "0.3"), i == 0);
        assert_same_answer(CHAT("-q"), CHAT("-q", "--temp", "0.8"), false);
#undef CHAT
    }
}

/* Its K and V have other positions than those of the same tokens in the model's own context, and are kept apart. */
static void a_stretched_context_has_documents_of_its_own(void **state) {
    (void)state;
    char kv[200];
    snprintf(kv, sizeof kv, "%s", scratch_path("stretched-kv"));
#define ASK(...) RUN("-m", chat_path, "-f", short_path, "-p", "who?", "--kv-disk", kv, ##__VA_ARGS__)
    const struct {
        bool is_stretched, was_there;
    } asked[] = {{false, false}, {true, false}, {true, true}, {false, true}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct process_result r = asked[i].is_stretched ? ASK("--rope-scaling", "yarn", "-c", "16K") : ASK();
        const bool is_told =
            strstr(r.complaints, "YaRN stretches the 8192 tokens that the model was trained for to 16384") != NULL;
        if (r.code != 0 || is_told != asked[i].is_stretched) fail_msg("%zu: %d: %s", i, r.code, r.complaints);
        json_t *found = figures(r);
        assert_int_equal(number_at(found, "prefill", "reused_tokens") > 0, asked[i].was_there);
        json_decref(found);
    }
#undef ASK
}

static void what_cannot_be_asked_is_said(void **state) {
    (void)state;
    char latin_path[200], empty_path[200];
    snprintf(latin_path, sizeof latin_path, "%s", scratch_path("latin.txt"));
    snprintf(empty_path, sizeof empty_path, "%s", scratch_path("empty"));
    assert_int_equal(mkdir(empty_path, 0700), 0);
    WRITE("latin.txt", "M\xFCller");
    const struct {
        const char *arguments[12];
        int code;
        const char *says;
    } cases[] = {
        {{"run", "-m", unknown_path, "-p", "x"},
         1,
         "does not show what a user says; no built-in template has its marks"},
        {{"run", "-m", unknown_path, "-p", "x"}, 1, "--raw"},
        {{"run", "-m", plain_path, "-p", "x", "-sys", "y"}, 2, "-sys needs a chat template"},
        {{"run", "-m", chat_path, "--raw", "-p", "x", "-sys", "y"}, 2, "--raw is for raw text, -sys for"},
        {{"run", "-m", chat_path, "--ids", "1", "--chat-template", "chatml"}, 2, "--ids is for raw text"},
        {{"run", "-m", chat_path, "-p", "x", "-rea", "maybe"}, 2, "--reasoning: found 'maybe', expected on, off or"},
        {{"run", "-m", chat_path, "-p", "x", "--chat-template", "nope"}, 2, "--chat-template: found 'nope'"},
        {{"run", "-m", chat_path, "-f", "-", "-f", "-"}, 2, "standard input can be read once"},
        {{"run", "-m", chat_path, "-f", long_path, "-c", "1K"}, 2, "the context holds 1024: give -c "},
        {{"run", "-m", chat_path, "-f", long_path, "-f", long_path, "-f", long_path, "-p", "x"},
         2,
         "the model was trained for 8192: shorten it, or give -c "},
        {{"run", "-m", chat_path, "-f", short_path, "-p", "x", "--rope-scaling", "yarn"}, 2, "yarn: expected -c, "},
        {{"run", "-m", chat_path, "-f", short_path, "-p", "x", "--rope-scaling", "yarn", "-c", "1K"},
         2,
         "found a context of 1024 tokens, expected more than the 8192 of the file"},
        {{"chat", "-m", chat_path, "-f", long_path, "-c", "1K"}, 2, "the documents have "},
        {{"run", "-m", chat_path, "-f", long_path, "--kv-host", "512K"}, 5, "try a larger --kv-host"},
        {{"chat", "-m", chat_path, "-f", long_path, "--kv-host", "512K"}, 5, "try a larger --kv-host"},
        {{"chat", "-m", chat_path, "-f", "/nonexistent"}, 6, "/nonexistent"},
        {{"chat", "-m", plain_path}, 1, "no chat template"},
        {{"run", "-m", chat_path, "-f", short_path, "-f", long_path, "--json", long_path}, 2, "long.txt"},
        {{"run", "-m", chat_path, "-f", chat_path, "-p", "x"}, 2, "chat.gguf: is a model, no text: -m takes models"},
        {{"chat", "-m", chat_path, "-f", latin_path}, 2, "latin.txt: is no UTF-8: byte 2, 0xFC in line 1"},
        {{"explain", "-m", chat_path, "-f", latin_path, "--encoding", "x", "-p", "x"}, 2, "encoding: found 'x'"},
        {{"tokenize", "-m", chat_path, "-f", chat_path}, 2, "is a model, no text"},
        {{"run", "-m", chat_path, "-f", empty_path, "-p", "x"}, 2, "has no file with text (of 0)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct process_result r = process_run(&(struct process_request){.arguments = cases[i].arguments});
        const char *end = strchr(r.complaints, '\n');
        if (r.code != cases[i].code || strstr(r.complaints, cases[i].says) == NULL || end == NULL ||
            end[1] != '\0' || strncmp(r.complaints, "loam: ", 6) != 0)
            fail_msg("case %zu (%s): exit %d, '%s'", i, cases[i].says, r.code, r.complaints);
        process_deinit(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_template_is_used_where_there_is_one),
        cmocka_unit_test(reasoning_is_switched),
        cmocka_unit_test(raw_text_is_completed),
        cmocka_unit_test(documents_come_first),
        cmocka_unit_test(files_are_read_as_text),
        cmocka_unit_test(a_folder_is_asked),
        cmocka_unit_test(the_next_question_reads_nothing_again),
        cmocka_unit_test(chat_talks_about_documents),
        cmocka_unit_test(chat_adds_documents),
        cmocka_unit_test(a_hint_says_how_the_next_one_is_cheap),
        cmocka_unit_test(documents_are_asked_at_a_lower_temperature),
        cmocka_unit_test(a_stretched_context_has_documents_of_its_own),
        cmocka_unit_test(what_cannot_be_asked_is_said),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
