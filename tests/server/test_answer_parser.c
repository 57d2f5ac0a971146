/* Tags in an answer: told apart the same way however the text is cut, and never handed out. */
#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "server/answer_parser.h"

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
    check_as(CHAT_GLM,
             "<think>Hm.</think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x "
             "y</arg_value>\n<arg_key>n</arg_key>\n"
             "<arg_value>3</arg_value>\n</tool_call>",
             true, "R(Hm.)T(f:{\"a\": \"x y\", \"n\": 3}");
    check_as(CHAT_GLM, "<tool_call>f</tool_call>", true, "T(f:{}");
    check_as(CHAT_GLM, "<tool_call>f<arg_key>a</tool_call>", true, "C(f<arg_key>a");
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
        cmocka_unit_test(test_syntaxes), cmocka_unit_test(test_a_thought_that_the_prompt_began),
        cmocka_unit_test(test_content),  cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_calls),    cmocka_unit_test(test_calls_that_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
