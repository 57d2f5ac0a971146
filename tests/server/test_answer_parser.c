/* Tags in an answer: told apart the same way however the text is cut, and never handed out. */
#include "testing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/answer_parser.h"
#include "token/vocabularies.h"

enum { OUT_BYTES = 2048 };

struct out {
    char text[OUT_BYTES]; /* kinds and bytes: "R(thought)C(text)T(name:{...})" */
    enum answer_part_kind last;
    bool open;
};

static void take(void *context, const struct answer_part *part) {
    struct out *out = context;
    static const char letters[] = {
        [ANSWER_CONTENT] = 'C', [ANSWER_REASONING] = 'R', [ANSWER_TOOL_CALL] = 'T'};
    const size_t used = strlen(out->text);
    const bool goes_on = out->open && out->last == part->kind && part->kind != ANSWER_TOOL_CALL;
    assert_true(part->length > 0 || part->kind == ANSWER_TOOL_CALL);
    snprintf(out->text + used, OUT_BYTES - used, "%s", goes_on ? "" : out->open ? ")" : "");
    const size_t at = strlen(out->text);
    if (goes_on)
        snprintf(out->text + at, OUT_BYTES - at, "%.*s", (int)part->length, part->bytes);
    else
        snprintf(out->text + at, OUT_BYTES - at, "%c(%s%s%.*s", letters[part->kind],
                 part->kind == ANSWER_TOOL_CALL ? part->tool_name : "",
                 part->kind == ANSWER_TOOL_CALL ? ":" : "", (int)part->length, part->bytes);
    out->last = part->kind;
    out->open = true;
}

static void check_as(enum chat_syntax syntax, const char *text, bool has_tools, const char *expected) {
    const size_t length = strlen(text);
    for (size_t cut = 1; cut <= length; cut++) { /* pieces of so many bytes */
        struct answer_parser parser = {.has_tools = has_tools, .has_reasoning = true, .syntax = syntax};
        struct out out = {.text = ""};
        for (size_t at = 0; at < length; at += cut)
            assert_true(
                answer_parser_push(&parser, text + at, length - at < cut ? length - at : cut, take, &out));
        answer_parser_finish(&parser, take, &out);
        answer_parser_deinit(&parser);
        assert_string_equal(out.text, expected);
    }
}

static void check(const char *text, bool has_tools, const char *expected) {
    check_as(CHAT_HERMES, text, has_tools, expected);
}

static void test_content(void **state) {
    (void)state;
    check("Hello, <b>world</b> < 5.", true, "C(Hello, <b>world</b> < 5.");
    check("  two words  ", true, "C(  two words  ");
    check("<tool_call>{\"name\": \"f\"}</tool_call>", false, "C(<tool_call>{\"name\": \"f\"}</tool_call>");
    check("a <think>b</think>", true, "C(a <think>b</think>");
}

static void test_reasoning(void **state) {
    (void)state;
    check("<think>\nHm. 1 < 2 </thin\n</think>\n\nYes.", true, "R(Hm. 1 < 2 </thin)C(Yes.");
    check("\n<think></think>Yes.", true, "C(Yes.");
    check("<think>cut by the length", true, "R(cut by the length");
}

static void test_calls(void **state) {
    (void)state;
    check("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"</x>\"]}}\n</tool_call>", true,
          "T(f:{\"a\": [1, \"</x>\"]}");
    check("I look.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
          "<tool_call>{\"name\": \"g\", \"arguments\": \"{}\"}</tool_call>\nDone.",
          true, "C(I look.)T(f:{})T(g:{})C(Done.");
    check("<think>t</think><tool_call>{\"name\": \"f\"}</tool_call>", true, "R(t)T(f:{}");
    check("<tool_call>no JSON</tool_call>", true, "C(no JSON");
    check("<tool_call>{\"name\": \"f\", \"arguments\": {}}", true, "T(f:{}"); /* the end tag is missing */
}

static void check_forced(const char *text, const char *expected) {
    struct answer_parser parser = {.has_tools = true, .state = ANSWER_IN_TOOL_CALL};
    struct out out = {.text = ""};
    if (text[0] != '\0') assert_true(answer_parser_push(&parser, text, strlen(text), take, &out));
    answer_parser_finish(&parser, take, &out);
    answer_parser_deinit(&parser);
    assert_string_equal(out.text, expected);
}

/* Cut by the length: a call with what there is; one that had to be is never text. */
static void test_calls_that_are_cut(void **state) {
    (void)state;
    check("x<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", true, "C(x)T(f:{\"a\": \"b");
    check("<tool_call>\n{ \"name\" : \"f\\\"\" , \"arguments\" :\n[", true, "T(f\":[");
    check("<tool_call>{\"name\": \"f\", \"argu", true, "T(f:");
    check("<tool_call>{\"name\": \"f", true, "C({\"name\": \"f");
    check_forced("{\"name\": \"f\", \"arguments\": {", "T(f:{");
    check_forced("{\"name\": \"f\", \"arguments\": {}}", "T(f:{}");
    check_forced("{\"name\": \"f", "");
    check_forced("{", "");
    check_forced("", "");
}

static void test_syntaxes(void **state) {
    (void)state;
    check_as(CHAT_QWEN_XML,
             "Look.\n<tool_call>\n<function=f>\n<parameter=a>\n two\nlines "
             "\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
             "<parameter=l>\n[1, \"x\"]\n</parameter>\n</function>\n</tool_call>",
             true, "C(Look.)T(f:{\"a\": \" two\\nlines \", \"n\": 3, \"l\": [1, \"x\"]}");
    check_as(CHAT_QWEN_XML,
             "<tool_call><function=f></function></tool_call><tool_call><function=g></function></tool_call>",
             true, "T(f:{})T(g:{}");
    check_as(CHAT_QWEN_XML, "<tool_call><function=f><parameter=a>1</tool_call>", true,
             "C(<function=f><parameter=a>1");
    check_as(CHAT_LLAMA3,
             "{\"name\": \"f\", \"parameters\": {\"a\": \"};\"}}; {\"name\": \"g\", \"parameters\": {}}",
             true, "T(f:{\"a\": \"};\"})T(g:{}");
    check_as(CHAT_LLAMA3, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", true, "T(f:{}");
    check_as(CHAT_LLAMA3, "{\"a\": 1} is JSON", true, "C({\"a\": 1} is JSON");
    check_as(CHAT_LLAMA3, "{\"name\": \"f\"}", false, "C({\"name\": \"f\"}");
    check_as(CHAT_MISTRAL,
             "So. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
             "\"arguments\": {}}]",
             true, "C(So.)T(f:{\"a\": 1})T(g:{}");
    check_as(CHAT_MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]123[ARGS]{}", true,
             "T(f:{\"a\": 1})T(g:{}");
    check_as(CHAT_MISTRAL, "[TOOL_CALLS]f{\"a\":", true, "C(f{\"a\":");
    check_as(CHAT_HARMONY,
             "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
             "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
             true, "R(Hm.)T(f:{\"a\": 1}");
    check_as(CHAT_HARMONY, "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}", true,
             "T(f:{}");
    check_as(CHAT_HARMONY,
             "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
             true, "R(Hm.)C(Yes.");
    check_as(CHAT_HARMONY, "<|channel|>final<|message|>Yes.", true, "C(Yes.");
    check_as(CHAT_GEMMA, "<|tool_call>call:f{a:<|\"|>x, {y}<|\"|>,n:3,l:[1,2],o:{\"k\": true}}<tool_call|>",
             true, "T(f:{\"a\": \"x, {y}\", \"n\": 3, \"l\": [1, 2], \"o\": {\"k\": true}}");
    check_as(CHAT_GEMMA, "<start_function_call>call:f{a:<escape>x<escape>}<end_function_call>", true,
             "T(f:{\"a\": \"x\"}");
    check_as(CHAT_GEMMA, "<|tool_call>call:f{a<tool_call|>b", true, "C(call:f{ab");
    check_as(CHAT_GEMMA,
             "<|tool_call>call:f{o:{k:<|\"|>a}, b<|\"|>,l:[<|\"|>c]<|\"|>,{m:null}]},s:\"t}\",n:-1.5}<tool_call|>",
             true,
             "T(f:{\"o\": {\"k\": \"a}, b\", \"l\": [\"c]\", {\"m\": null}]}, \"s\": \"t}\", \"n\": -1.5}");
    check_as(CHAT_GEMMA, "<|tool_call>call:f{o:{k:1}<tool_call|>b", true, "C(call:f{o:{k:1}b");
    check_as(CHAT_GEMMA, "<|channel>thought\nwell<channel|>Yes.", false, "R(well)C(Yes.");
    check_as(CHAT_HARMONY,
             "<|channel|>analysis<|message|>well<|end|><|start|>assistant<|channel|>final<|message|>Yes <b>.", false,
             "R(well)C(Yes <b>.");
    check_as(CHAT_HARMONY, "<|channel|>commentary<|message|>I look.<|end|>", false, "C(I look.");
    check_as(CHAT_HARMONY, " to=functions.f<|channel|>commentary json<|message|>{}", true, "T(f:{}");
    check_as(CHAT_HARMONY, "to=function", true, "C(to=function");
    check_as(CHAT_GLM,
             "<think>Hm.</think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x "
             "y</arg_value>\n<arg_key>n</arg_key>\n"
             "<arg_value>3</arg_value>\n</tool_call>",
             true, "R(Hm.)T(f:{\"a\": \"x y\", \"n\": 3}");
    check_as(CHAT_GLM, "<tool_call>f</tool_call>", true, "T(f:{}");
    check_as(CHAT_GLM, "<tool_call>f<arg_key>a</tool_call>", true, "C(f<arg_key>a");
}

/* ---- both ways ---- */

struct read_call {
    char name[32];
    json_t *arguments; /* owned */
    size_t count;
};

static void take_call(void *context, const struct answer_part *part) {
    struct read_call *call = context;
    if (part->kind != ANSWER_TOOL_CALL) return;
    snprintf(call->name, sizeof call->name, "%s", part->tool_name);
    json_decref(call->arguments);
    call->arguments = json_loadb(part->bytes, part->length, 0, NULL);
    call->count++;
}

/* Of messages [0, count), as text with its control tokens. */
static char *laid_out(const struct chat_template *chat, const struct tokenizer *tokenizer,
                      const struct chat_message *messages, const json_t *const *more, size_t count, bool prompts,
                      const json_t *tools, size_t *length) {
    const struct chat_conversation conversation = {
        .messages = messages, .more = more, .count = count, .add_generation_prompt = prompts, .tools = tools};
    struct token_list list = {0};
    struct error error;
    assert_ok(chat_template_lay_out(chat, tokenizer, &conversation, &list, NULL, &error), error);
    char *text = decode(tokenizer, &list, true, length);
    token_list_deinit(&list);
    return text;
}

static void check_template(const char *name, const json_t *source, enum chat_syntax syntax,
                           const struct tokenizer *tokenizer) {
    const struct chat_message messages[] = {{CHAT_USER, "Look.", 5}, {CHAT_ASSISTANT, "", 0}};
    json_t *arguments = json_pack("{s:s, s:i, s:b, s:{s:[s, i]}}", "city", "Paris, {or} so", "count", 3, "old", 1,
                                  "deep", "list", "a", 1);
    json_t *call = json_pack("{s:[{s:s, s:s, s:{s:s, s:O}}]}", "tool_calls", "id", "call00000", "type", "function",
                             "function", "name", "look", "arguments", arguments);
    json_t *tools =
        json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}}}}]", "type", "function", "function", "name", "look",
                  "description", "d", "parameters", "type", "object", "properties", "city", "type", "string");
    const json_t *const more[] = {NULL, call};
    const struct chat_template *chat;
    struct read_call read = {.count = 0};
    struct error error;
    size_t length, before;
    assert_non_null(source);
    assert_ok(chat_template_create(json_string_value(source), json_string_length(source), &chat, &error), error);
    if (!chat_template_shows_calls(chat) || chat_template_syntax(chat) != syntax)
        fail_msg("%s: calls are not shown in its syntax", name);
    char *text = laid_out(chat, tokenizer, messages, more, 2, false, tools, &length);
    char *prompt = laid_out(chat, tokenizer, messages, more, 1, true, tools, &before);
    if (before > length || memcmp(text, prompt, before) != 0) { /* it begins with what stands for thoughts, too */
        free(prompt);
        prompt = laid_out(chat, tokenizer, messages, more, 1, false, tools, &before);
    }
    free(prompt);
    struct answer_parser parser = {.has_tools = true, .has_reasoning = true, .syntax = syntax};
    assert_true(before < length);
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "</s>", "<turn|>"}; /* of turns, not of answers */
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char *end = strstr(text + before, ends[i]);
        if (end == NULL) continue;
        *end = '\0';
        length = (size_t)(end - text);
    }
    assert_true(answer_parser_push(&parser, text + before, length - before, take_call, &read));
    answer_parser_finish(&parser, take_call, &read);
    answer_parser_deinit(&parser);
    if (read.count != 1 || strcmp(read.name, "look") != 0 || !json_equal(read.arguments, arguments))
        fail_msg("%s: what it shows is not read: %s", name, text + before);
    json_decref(read.arguments);
    json_decref(arguments);
    json_decref(call);
    json_decref(tools);
    free(text);
    chat_template_destroy(chat);
}

/* A call as the family's template lays it out is read as the same call. */
static void test_templates_and_back(void **state) {
    static const struct {
        const char *name;
        enum chat_syntax syntax;
    } families[] = {{"qwen2.5", CHAT_HERMES},   {"qwen-xml", CHAT_QWEN_XML}, {"llama3.1", CHAT_LLAMA3},
                    {"mistral-v3", CHAT_MISTRAL}, {"harmony", CHAT_HARMONY},   {"gemma-tools", CHAT_GEMMA},
                    {"glm4", CHAT_GLM}};
    struct tokenizer *tokenizer = byte_vocabulary("gpt-2", NULL, 0, "<s>", "</s>");
    json_t *recorded = json_load_file(LOAM_SOURCE_DIR "/tests/jinja/templates.json", 0, NULL);
    const json_t *templates = json_object_get(recorded, "templates");
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const json_t *source = NULL;
        for (size_t t = 0; t < json_array_size(templates); t++) {
            const json_t *entry = json_array_get(templates, t);
            if (strcmp(json_string_value(json_object_get(entry, "name")), families[i].name) == 0)
                source = json_object_get(entry, "source");
        }
        check_template(families[i].name, source, families[i].syntax, tokenizer);
    }
    json_decref(recorded);
    tokenizer_destroy(tokenizer);
}

static void test_a_thought_that_the_prompt_began(void **state) {
    (void)state;
    static const char text[] = "\nHm.\n</think>\n\nYes.";
    for (size_t cut = 1; cut < sizeof text; cut++) {
        struct answer_parser parser = {.has_reasoning = true};
        struct out out = {.text = ""};
        answer_parser_begin_thought(&parser);
        assert_true(answer_parser_push(&parser, text, cut, take, &out));
        assert_true(answer_parser_push(&parser, text + cut, strlen(text) - cut, take, &out));
        answer_parser_finish(&parser, take, &out);
        answer_parser_deinit(&parser);
        assert_string_equal(out.text, "R(Hm.)C(Yes.");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_syntaxes),
        cmocka_unit_test(test_templates_and_back),
        cmocka_unit_test(test_a_thought_that_the_prompt_began),
        cmocka_unit_test(test_content),  cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_calls),    cmocka_unit_test(test_calls_that_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
