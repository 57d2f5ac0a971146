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

static void check(const char *text, bool has_tools, const char *expected) {
    const size_t length = strlen(text);
    for (size_t cut = 1; cut <= length; cut++) { /* pieces of so many bytes */
        struct answer_parser parser = {.has_tools = has_tools, .has_reasoning = true};
        struct out out = {.text = ""};
        for (size_t at = 0; at < length; at += cut)
            assert_true(
                answer_parser_push(&parser, text + at, length - at < cut ? length - at : cut, take, &out));
        answer_parser_finish(&parser, take, &out);
        answer_parser_deinit(&parser);
        assert_string_equal(out.text, expected);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_content), cmocka_unit_test(test_reasoning),
                                       cmocka_unit_test(test_calls), cmocka_unit_test(test_calls_that_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
