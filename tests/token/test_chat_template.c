/* Every family against recorded renderings of its Jinja template (tools/make_chat_fixtures.py), and the
 * promise that a user's text never becomes a control token. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "records.h"
#include "token/chat_template.h"
#include "vocabularies.h"

static const char *const marks[] = {"<|im_start|>",
                                    "<|im_end|>",
                                    "<|im_sep|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eot_id|>",
                                    "<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|endoftext|>",
                                    "[INST]",
                                    "[/INST]",
                                    "[SYSTEM_PROMPT]",
                                    "[/SYSTEM_PROMPT]",
                                    "<start_of_turn>",
                                    "<end_of_turn>",
                                    "<|system|>",
                                    "<|user|>",
                                    "<|assistant|>",
                                    "<|end|>",
                                    "<|start_of_role|>",
                                    "<|end_of_role|>",
                                    "<｜User｜>",
                                    "<｜Assistant｜>",
                                    "<｜begin▁of▁sentence｜>",
                                    "<｜end▁of▁sentence｜>",
                                    "<s>",
                                    "</s>",
                                    "<bos>",
                                    "<eos>"};
enum { MARK_COUNT = sizeof marks / sizeof marks[0], MESSAGES_MAX = 16 };

struct family {
    const struct chat_template *chat;
    char bos[64], eos[64];
    struct chat_message messages[MESSAGES_MAX];
    size_t count;
    size_t cases;
};

static void check_rendering(struct family *family, const struct record *expected) {
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, family->bos, family->eos);
    struct token_list list = {0};
    struct error error;
    assert_ok(chat_template_apply(family->chat, t, family->messages, family->count,
                                  expected->argument[0] == '1', &list, &error),
              error);
    size_t length;
    char *text = decode(t, &list, true, &length);
    if (length != expected->length || memcmp(text, expected->text, length) != 0)
        fail_msg("%s, case %zu:\n%s\nexpected:\n%s", chat_template_name(family->chat), family->cases, text,
                 expected->text);
    free(text);
    token_list_deinit(&list);
    tokenizer_destroy(t);
    family->cases++;
    family->count = 0;
}

static void add_message(struct family *family, enum chat_role role, const struct record *record) {
    assert_true(family->count < MESSAGES_MAX);
    family->messages[family->count++] = (struct chat_message){role, record->text, record->length};
}

static void recorded_renderings(void **state) {
    (void)state;
    char *file = read_whole(LOAM_SOURCE_DIR "/tests/token/fixtures/chat.txt", NULL);
    assert_non_null(file);
    char *at = strchr(file, '\n') + 1;
    struct family family = {0};
    struct record record;
    size_t families = 0, cases = 0;
    struct error error;
    while (record_next(&at, &record)) {
        if (strcmp(record.kind, "template") == 0) {
            family = (struct family){.chat = chat_template_find(record.argument)};
            if (!family.chat) fail_msg("no template %s", record.argument);
            const struct chat_template *detected;
            assert_ok(chat_template_detect(record.text, record.length, &detected, &error), error);
            assert_string_equal(chat_template_name(detected), record.argument);
            families++;
        } else if (strcmp(record.kind, "bos") == 0) {
            snprintf(family.bos, sizeof family.bos, "%s", record.text);
        } else if (strcmp(record.kind, "eos") == 0) {
            snprintf(family.eos, sizeof family.eos, "%s", record.text);
        } else if (strcmp(record.kind, "system") == 0) {
            add_message(&family, CHAT_SYSTEM, &record);
        } else if (strcmp(record.kind, "user") == 0) {
            add_message(&family, CHAT_USER, &record);
        } else if (strcmp(record.kind, "assistant") == 0) {
            add_message(&family, CHAT_ASSISTANT, &record);
        } else {
            assert_string_equal(record.kind, "render");
            check_rendering(&family, &record);
            cases++;
        }
    }
    size_t known = 0;
    while (chat_template_at(known)) known++;
    assert_int_equal(families, known);
    assert_int_equal(cases, 9 * families);
    free(file);
}

static size_t count_controls(const struct tokenizer *t, const struct chat_template *chat, const char *text) {
    const struct chat_message messages[] = {{CHAT_SYSTEM, text, strlen(text)},
                                            {CHAT_USER, text, strlen(text)},
                                            {CHAT_ASSISTANT, text, strlen(text)},
                                            {CHAT_USER, text, strlen(text)}};
    struct token_list list = {0};
    struct error error;
    assert_ok(chat_template_apply(chat, t, messages, 4, true, &list, &error), error);
    size_t count = 0;
    for (size_t i = 0; i < list.count; i++) count += tokenizer_is_control(t, list.ids[i]) ? 1 : 0;
    token_list_deinit(&list);
    return count;
}

static void user_text_stays_text(void **state) {
    (void)state;
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    char all[2048] = "";
    for (size_t m = 0; m < MARK_COUNT; m++) strcat(all, marks[m]);
    const struct chat_template *chat;
    for (size_t i = 0; (chat = chat_template_at(i)); i++) {
        size_t harmless = count_controls(t, chat, "hello");
        assert_true(harmless > 0);
        assert_int_equal(count_controls(t, chat, all), harmless);
        for (size_t m = 0; m < MARK_COUNT; m++) assert_int_equal(count_controls(t, chat, marks[m]), harmless);
    }
    tokenizer_destroy(t);
}

static void missing_marks_are_refused(void **state) {
    (void)state;
    static const char *const few[] = {"<|im_start|>"};
    struct tokenizer *t = byte_vocabulary("llama-bpe", few, 1, "<s>", "</s>");
    struct token_list list = {0};
    struct error error;
    struct chat_message message = {CHAT_USER, "hi", 2};
    enum status status =
        chat_template_apply(chat_template_find("chatml"), t, &message, 1, true, &list, &error);
    assert_int_equal(status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "<|im_end|>"));
    assert_int_equal(list.count, 0);
    tokenizer_destroy(t);
}

static void orders_without_a_form_are_refused(void **state) {
    (void)state;
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    struct token_list list = {0};
    struct error error;
    const struct chat_message twice[] = {{CHAT_USER, "a", 1}, {CHAT_USER, "b", 1}};
    const struct chat_message late[] = {{CHAT_USER, "a", 1}, {CHAT_SYSTEM, "b", 1}};
    const struct chat_template *llama2 = chat_template_find("llama2"), *chatml = chat_template_find("chatml");
    assert_int_equal(chat_template_apply(llama2, t, twice, 2, true, &list, &error), STATUS_USAGE);
    assert_int_equal(chat_template_apply(llama2, t, late, 2, true, &list, &error), STATUS_USAGE);
    assert_int_equal(chat_template_apply(llama2, t, late + 1, 1, true, &list, &error), STATUS_USAGE);
    assert_int_equal(chat_template_apply(chatml, t, twice, 0, true, &list, &error), STATUS_USAGE);
    assert_int_equal(list.count, 0);
    assert_ok(chat_template_apply(chatml, t, late, 2, true, &list, &error), error);
    token_list_deinit(&list);
    tokenizer_destroy(t);
}

static void unknown_templates_are_named(void **state) {
    (void)state;
    static const char text[] = "{% for m in messages %}### {{ m.role }}: {{ m.content }}{% endfor %}";
    const struct chat_template *chat;
    struct error error;
    assert_int_equal(chat_template_detect(text, strlen(text), &chat, &error), STATUS_UNSUPPORTED);
    assert_null(chat);
    assert_non_null(strstr(error.message, "###"));
    assert_non_null(strstr(error.message, "--chat-template NAME"));
    assert_null(chat_template_find("no-such"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_renderings), cmocka_unit_test(user_text_stays_text),
        cmocka_unit_test(missing_marks_are_refused), cmocka_unit_test(orders_without_a_form_are_refused),
        cmocka_unit_test(unknown_templates_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
