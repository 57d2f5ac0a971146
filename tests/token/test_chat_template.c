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
                                    "<|start|>",
                                    "<|message|>",
                                    "<|channel|>",
                                    "<turn|>",
                                    "<|turn>",
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

/* The same conversation in the recorded template itself: the same tokens, control tokens by their ids. */
static void check_own_template(struct family *family, const struct chat_template *own, bool answers) {
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, family->bos, family->eos);
    struct token_list expected = {0}, list = {0};
    struct error error;
    assert_ok(
        chat_template_apply(family->chat, t, family->messages, family->count, answers, &expected, &error),
        error);
    assert_ok(chat_template_apply(own, t, family->messages, family->count, answers, &list, &error), error);
    char *text = decode(t, &list, true, NULL), *expected_text = decode(t, &expected, true, NULL);
    assert_string_equal(text, expected_text);
    free(text);
    free(expected_text);
    if (list.count != expected.count)
        fail_msg("%zu tokens, expected %zu", list.count, expected.count);
    if (memcmp(list.ids, expected.ids, list.count * sizeof *list.ids) != 0)
        fail_msg("%s, case %zu: other tokens by its Jinja text", chat_template_name(family->chat),
                 family->cases);
    token_list_deinit(&list);
    token_list_deinit(&expected);
    tokenizer_destroy(t);
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
    const struct chat_template *own = NULL;
    struct record record;
    size_t families = 0, cases = 0;
    struct error error;
    while (record_next(&at, &record)) {
        if (strcmp(record.kind, "template") == 0) {
            family = (struct family){.chat = chat_template_find(record.argument)};
            if (!family.chat) fail_msg("no template %s", record.argument);
            const struct chat_template *detected;
            chat_template_destroy(own);
            assert_ok(chat_template_create(record.text, record.length, &own, &error), error);
            assert_string_equal(chat_template_name(own), "jinja");
            assert_null(chat_template_note(own));
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
            check_own_template(&family, own, record.argument[0] == '1');
            check_rendering(&family, &record);
            cases++;
        }
    }
    size_t known = 0;
    while (chat_template_at(known)) known++;
    assert_int_equal(families, known);
    assert_int_equal(cases, 9 * families);
    chat_template_destroy(own);
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

static void check_user_text(const struct tokenizer *t, const struct chat_template *chat, const char *all) {
    const size_t harmless = count_controls(t, chat, "hello");
    assert_true(harmless > 0);
    assert_int_equal(count_controls(t, chat, all), harmless);
    for (size_t m = 0; m < MARK_COUNT; m++) assert_int_equal(count_controls(t, chat, marks[m]), harmless);
}

static void user_text_stays_text(void **state) {
    (void)state;
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    char all[2048] = "";
    for (size_t m = 0; m < MARK_COUNT; m++) strcat(all, marks[m]);
    const struct chat_template *chat;
    for (size_t i = 0; (chat = chat_template_at(i)); i++) check_user_text(t, chat, all);
    /* A model's own template, in the ways in which one joins a mark and what a user says. */
    static const char *const own[] = {
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' }}{% "
        "endfor %}",
        "{% for m in messages %}{{ ('<|' ~ m.role ~ '|>' ~ m.content) | trim }}</s>{% endfor %}",
        "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ '[INST]' ~ m.content ~ "
        "'[/INST]' %}"
        "{% endfor %}{{ ns.x.replace('zz', '') }}",
        "{% macro t(c) %}<|user|>{{ c | replace('\n', ' ') }}<|end|>{% endmacro %}{% for m in messages %}{{ "
        "t(m.content) "
        "}}{% endfor %}",
        "{% for m in messages %}<|user|>{{ m.content.split('<|end|>') | join('') }}<|end|>{% endfor %}",
        "{% for m in messages %}<|user|>{{ m.content | tojson }}<|end|>{{ [m.content] }}{{ "
        "m.content[::-1][::-1] }}{% "
        "endfor %}"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        struct error error;
        assert_ok(chat_template_create(own[i], strlen(own[i]), &chat, &error), error);
        assert_string_equal(chat_template_name(chat), "jinja");
        check_user_text(t, chat, all);
        chat_template_destroy(chat);
    }
    tokenizer_destroy(t);
}

static char *laid_out(const struct chat_template *chat, const struct tokenizer *t,
                      const struct chat_conversation *conversation, struct chat_ending *ending) {
    struct token_list list = {0};
    struct error error;
    assert_ok(chat_template_lay_out(chat, t, conversation, &list, ending, &error), error);
    char *text = decode(t, &list, true, NULL);
    token_list_deinit(&list);
    return text;
}

static void assert_laid_out(const struct chat_template *chat, const struct tokenizer *t,
                            const struct chat_conversation *conversation, const char *expected,
                            bool expects_thought) {
    struct chat_ending ending = {.thinks = !expects_thought};
    char *text = laid_out(chat, t, conversation, &ending);
    assert_string_equal(text, expected);
    assert_int_equal(ending.thinks, expects_thought);
    free(text);
}

static const struct chat_template *create(const char *text) {
    const struct chat_template *chat;
    struct error error;
    assert_ok(chat_template_create(text, strlen(text), &chat, &error), error);
    return chat;
}

static void an_answer_goes_on(void **state) {
    (void)state;
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    const struct chat_message messages[] = {{CHAT_USER, "sum", 3}, {CHAT_ASSISTANT, " The sum is ", 12}};
    const struct chat_message thought[] = {{CHAT_USER, "sum", 3}, {CHAT_ASSISTANT, "<think>\nsum", 11}};
    const struct chat_conversation goes_on = {
        .messages = messages, .count = 2, .add_generation_prompt = true, .continues = true};
    const struct chat_conversation thinks = {.messages = thought, .count = 2, .continues = true};
    assert_laid_out(chat_template_find("chatml"), t, &goes_on,
                    "<|im_start|>user\nsum<|im_end|>\n<|im_start|>assistant\n The sum is ", false);
    assert_laid_out(chat_template_find("mistral-v3"), t, &goes_on, "<s>[INST] sum[/INST] The sum is", false);
    const struct chat_template *own =
        create("{% for m in messages %}<|user|>{{ m.role }}:{{ m.content | trim }}<|end|>{% "
               "endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}");
    assert_laid_out(own, t, &goes_on, "<|user|>user:sum<|end|><|user|>assistant:The sum is", false);
    assert_laid_out(own, t, &thinks, "<|user|>user:sum<|end|><|user|>assistant:<think>\nsum", true);
    chat_template_destroy(own);
    own = create(
        "{% for m in messages %}{{ m.role }}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}");
    struct token_list list = {0};
    struct error error;
    assert_int_equal(chat_template_lay_out(own, t, &goes_on, &list, NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "does not show the answer"));
    chat_template_destroy(own);
    tokenizer_destroy(t);
}

/* Where the newest message ends, before the mark behind it: what the next turn has, too; and whether that has the
 * thoughts of the last one. */
static void turns_end(void **state) {
    (void)state;
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    const struct chat_message messages[] = {{CHAT_USER, "sum", 3},
                                            {CHAT_ASSISTANT, "<think>\nwhy\n</think>\n\n3<|end|>", 30},
                                            {CHAT_USER, "<|end|> more", 12}};
    static const char text[] =
        "{% for m in messages %}<|user|>{{ m.content.split('</think>')[-1] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|><think>{% endif %}";
    const struct chat_template *own = create(text);
    assert_true(chat_template_drops_thoughts(own));
    for (size_t count = 1; count <= 3; count += 2) {
        const struct chat_conversation conversation = {
            .messages = messages, .count = count, .add_generation_prompt = true};
        struct token_list list = {0};
        struct chat_ending ending;
        struct error error;
        assert_ok(chat_template_lay_out(own, t, &conversation, &list, &ending, &error), error);
        struct token_list before = {.ids = list.ids, .count = ending.turn_end};
        char *found = decode(t, &before, true, NULL);
        const char *expected = count == 1 ? "<|user|>sum"
                                          : "<|user|>sum<|end|>\n<|user|>\n\n3<|end|><|end|>\n<|user|><|end|> more";
        assert_string_equal(found, expected);
        free(found);
        token_list_deinit(&list);
    }
    const struct chat_message begun[] = {{CHAT_USER, "sum", 3}, {CHAT_ASSISTANT, "it is", 5}};
    const struct chat_conversation goes_on = {.messages = begun, .count = 2, .continues = true};
    struct chat_ending ending = {.turn_end = 7};
    free(laid_out(own, t, &goes_on, &ending));
    assert_int_equal(ending.turn_end, 0);
    chat_template_destroy(own);
    assert_false(chat_template_drops_thoughts(chat_template_find("chatml")));
    own = create("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}");
    assert_false(chat_template_drops_thoughts(own));
    chat_template_destroy(own);
    own = create("{% for m in messages %}<|user|>{{ m.content.split('<channel|>')[-1] }}<|end|>{% endfor %}");
    assert_true(chat_template_drops_thoughts(own));
    chat_template_destroy(own);
    tokenizer_destroy(t);
}

/* The tokens of a conversation's first messages, and how many of them end the newest one. */
static struct token_list conversation_of(const struct chat_template *chat, const struct tokenizer *t,
                                         const struct chat_message *messages, size_t count, size_t *turn_end) {
    const struct chat_conversation conversation = {
        .messages = messages, .count = count, .add_generation_prompt = true};
    struct token_list list = {0};
    struct chat_ending ending;
    struct error error;
    assert_ok(chat_template_lay_out(chat, t, &conversation, &list, &ending, &error), error);
    *turn_end = ending.turn_end;
    return list;
}

/* Ten turns, of whose answers the next ones have no thought: each begins with the one before it as far as its newest
 * message, so what is computed is the last answer and what follows it.  false: where that ends is not known. */
static bool goes_on_at_turns(const struct chat_template *chat, const struct tokenizer *t) {
    enum { TURNS = 10 };
    struct chat_message messages[2 * TURNS];
    struct token_list before = {0};
    size_t end_before = 0;
    for (size_t turn = 0; turn < TURNS; turn++) {
        size_t end;
        messages[2 * turn] = (struct chat_message){CHAT_USER, "<|end|>sum", 10};
        struct token_list list = conversation_of(chat, t, messages, 2 * turn + 1, &end);
        if (turn > 0) assert_true(list.count > before.count && end > end_before);
        if (turn > 0) assert_memory_equal(list.ids, before.ids, end_before * sizeof *list.ids);
        struct token_list read = {.ids = list.ids, .count = end};
        char *text = decode(t, &read, true, NULL);
        const size_t length = strlen(text);
        token_list_deinit(&before);
        before = list;
        end_before = end;
        if (end > 0) assert_true(length > 10 && strcmp(text + length - 10, "<|end|>sum") == 0);
        free(text);
        if (end == 0) break;
        messages[2 * turn + 1] = (struct chat_message){CHAT_ASSISTANT, "3", 1};
    }
    token_list_deinit(&before);
    return end_before > 0;
}

/* Of built-in templates too, but for those whose marks behind a user's message are text; and of those that models bring
 * with thoughts in channels. */
static void turns_go_on(void **state) {
    (void)state;
    static const char *const unknown[] = {"llama2", "mistral-v1", "deepseek2"};
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    struct tokenizer *plain = byte_vocabulary("llama-bpe", marks, 0, "<s>", "</s>");
    size_t unknown_count = 0;
    for (size_t i = 0; chat_template_at(i) != NULL; i++) {
        const struct chat_template *chat = chat_template_at(i);
        bool is_known = true;
        for (size_t n = 0; n < 3; n++) is_known = is_known && strcmp(chat_template_name(chat), unknown[n]) != 0;
        unknown_count += !is_known;
        if (goes_on_at_turns(chat, is_known ? t : plain) != is_known)
            fail_msg("%s: where a turn ends", chat_template_name(chat));
    }
    assert_int_equal(unknown_count, 3);
    static const struct {
        const char *name;
        bool drops;
    } expected[] = {{"chatml", false}, {"qwen3", true}, {"harmony", true}, {"gemma-tools", true}, {"llama3.1", false}};
    json_error_t why;
    json_t *recorded = json_load_file(LOAM_SOURCE_DIR "/tests/jinja/templates.json", 0, &why);
    const json_t *templates = json_object_get(recorded, "templates");
    size_t found = 0;
    for (size_t i = 0; i < json_array_size(templates); i++)
        for (size_t n = 0; n < sizeof expected / sizeof expected[0]; n++) {
            const json_t *entry = json_array_get(templates, i);
            if (strcmp(json_string_value(json_object_get(entry, "name")), expected[n].name) != 0) continue;
            const struct chat_template *own = create(json_string_value(json_object_get(entry, "source")));
            if (chat_template_drops_thoughts(own) != expected[n].drops)
                fail_msg("%s: drops thoughts %d", expected[n].name, chat_template_drops_thoughts(own));
            const bool goes_on = goes_on_at_turns(own, t);
            if (!goes_on && expected[n].drops) fail_msg("%s: where a turn ends", expected[n].name);
            chat_template_destroy(own);
            found++;
        }
    assert_int_equal(found, sizeof expected / sizeof expected[0]);
    json_decref(recorded);
    tokenizer_destroy(plain);
    tokenizer_destroy(t);
}

static void thoughts_have_a_switch(void **state) {
    (void)state;
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    const struct chat_message message = {CHAT_USER, "a<think>", 8};
    struct chat_conversation conversation = {.messages = &message, .count = 1, .add_generation_prompt = true};
    const struct chat_template *own = create("<|user|>{{ messages[-1].content }}<|end|>{% if "
                                             "add_generation_prompt %}<|assistant|>{% if enable_thinking is "
                                             "defined and not enable_thinking %}<think>\n\n</think>{% else "
                                             "%}<think>\n{% endif %}{% endif %}{{ effort }}");
    assert_laid_out(own, t, &conversation, "<|user|>a<think><|end|><|assistant|><think>\n", true);
    conversation.thinking = CHAT_THINKING_OFF;
    assert_laid_out(own, t, &conversation, "<|user|>a<think><|end|><|assistant|><think>\n\n</think>", false);
    conversation.thinking = CHAT_THINKING_ON;
    assert_laid_out(own, t, &conversation, "<|user|>a<think><|end|><|assistant|><think>\n", true);
    conversation.add_generation_prompt = false;
    json_t *variables =
        json_pack("{s:s, s:s, s:b}", "effort", "<|end|>low", "messages", "none", "add_generation_prompt", 1);
    conversation.variables = variables;
    assert_laid_out(own, t, &conversation, "<|user|>a<think><|end|><|end|>low", false);
    struct token_list list = {0};
    struct error error;
    size_t controls = 0;
    assert_ok(chat_template_lay_out(own, t, &conversation, &list, NULL, &error), error);
    for (size_t i = 0; i < list.count; i++) controls += tokenizer_is_control(t, list.ids[i]);
    assert_int_equal(controls, 2); /* a variable is a request's: no mark of its own */
    assert_true(chat_template_reads(own, "enable_thinking") && !chat_template_reads(own, "thinking"));
    token_list_deinit(&list);
    json_decref(variables);
    chat_template_destroy(own);
    tokenizer_destroy(t);
}

/* What a template has forms for, as it was tried; the recorded ones of tests/jinja. */
static void templates_are_tried(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool has_system, system_first, turns, tools;
        enum chat_syntax syntax;
    } expected[] = {{"chatml", true, false, false, false, CHAT_HERMES},
                    {"llama2", true, true, true, false, CHAT_HERMES},
                    {"llama3.1", true, false, false, true, CHAT_LLAMA3},
                    {"mistral-v1", false, true, true, false, CHAT_HERMES},
                    {"mistral-v3", true, true, true, true, CHAT_MISTRAL},
                    {"gemma", false, true, true, false, CHAT_HERMES},
                    {"gemma3", true, true, true, false, CHAT_HERMES},
                    {"qwen2.5", true, false, false, true, CHAT_HERMES},
                    {"qwen3", true, false, false, true, CHAT_HERMES},
                    {"qwen-xml", true, false, false, true, CHAT_QWEN_XML},
                    {"glm4", true, false, false, true, CHAT_GLM},
                    {"harmony", true, true, false, true, CHAT_HARMONY},
                    {"gemma-tools", true, false, false, true, CHAT_GEMMA},
                    {"deepseek-r1", true, false, false, false, CHAT_HERMES},
                    {"command-r-tools", true, false, false, false, CHAT_HERMES},
                    {"zephyr", true, false, false, false, CHAT_HERMES},
                    {"vicuna", true, true, true, false, CHAT_HERMES},
                    {"alpaca", true, true, false, false, CHAT_HERMES}};
    json_error_t why;
    json_t *recorded = json_load_file(LOAM_SOURCE_DIR "/tests/jinja/templates.json", 0, &why);
    const json_t *templates = json_object_get(recorded, "templates");
    size_t found = 0;
    for (size_t i = 0; i < json_array_size(templates); i++) {
        const json_t *entry = json_array_get(templates, i), *source = json_object_get(entry, "source");
        for (size_t n = 0; n < sizeof expected / sizeof expected[0]; n++) {
            if (strcmp(json_string_value(json_object_get(entry, "name")), expected[n].name) != 0) continue;
            const struct chat_template *chat = create(json_string_value(source));
            if (chat_template_has_system(chat) != expected[n].has_system ||
                chat_template_wants_system_first(chat) != expected[n].system_first ||
                chat_template_takes_turns(chat) != expected[n].turns ||
                chat_template_shows_tools(chat) != expected[n].tools ||
                chat_template_shows_calls(chat) != expected[n].tools ||
                chat_template_syntax(chat) != expected[n].syntax)
                fail_msg("%s: system %d, first %d, turns %d, tools %d, calls %d, syntax %d", expected[n].name,
                         chat_template_has_system(chat), chat_template_wants_system_first(chat),
                         chat_template_takes_turns(chat), chat_template_shows_tools(chat),
                         chat_template_shows_calls(chat), chat_template_syntax(chat));
            chat_template_destroy(chat);
            found++;
        }
    }
    assert_int_equal(found, sizeof expected / sizeof expected[0]);
    json_decref(recorded);
}

static void a_system_message_finds_a_place(void **state) {
    (void)state;
    struct tokenizer *t = byte_vocabulary("llama-bpe", marks, MARK_COUNT, "<s>", "</s>");
    const struct chat_message messages[] = {{CHAT_SYSTEM, "be", 2}, {CHAT_USER, "hi", 2}};
    const struct chat_conversation conversation = {
        .messages = messages, .count = 2, .add_generation_prompt = true};
    const struct chat_template *own = create("{% for m in messages %}{% if m.role == 'system' %}{{ "
                                             "raise_exception('no system') }}{% endif %}<|user|>{{ "
                                             "m.content }}<|end|>{% endfor %}");
    assert_laid_out(own, t, &conversation, "<|user|>be\n\nhi<|end|>", false);
    chat_template_destroy(own);
    tokenizer_destroy(t);
}

/* What is not known falls back to a family, with one line; where there is none, both are named. */
static void unknown_constructs_fall_back(void **state) {
    (void)state;
    static const char known[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | sha256 }}<|im_end|>\n{% endfor %}";
    static const char unknown[] = "{% for m in messages %}## {{ m.content | sha256 }}{% endfor %}";
    static const char mute[] = "{% for m in messages %}<|im_start|>{{ m.contents }}{% endfor %}";
    const struct chat_template *chat = create(known);
    struct error error;
    assert_string_equal(chat_template_name(chat), "chatml");
    assert_string_equal(chat_template_note(chat),
                        "tokenizer.chat_template, line 2: the filter 'sha256' is not known; the "
                        "built-in template 'chatml' is used");
    chat_template_destroy(chat);
    chat = create(mute);
    assert_non_null(strstr(chat_template_note(chat), "does not show what a user says"));
    chat_template_destroy(chat);
    assert_int_equal(chat_template_create(unknown, strlen(unknown), &chat, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.message, "'sha256' is not known"));
    assert_non_null(strstr(error.message, "--chat-template NAME"));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(recorded_renderings),
                                       cmocka_unit_test(user_text_stays_text),
                                       cmocka_unit_test(missing_marks_are_refused),
                                       cmocka_unit_test(orders_without_a_form_are_refused),
                                       cmocka_unit_test(unknown_templates_are_named),
                                       cmocka_unit_test(an_answer_goes_on),
                                       cmocka_unit_test(thoughts_have_a_switch),
                                       cmocka_unit_test(turns_end), cmocka_unit_test(turns_go_on),
                                       cmocka_unit_test(templates_are_tried),
                                       cmocka_unit_test(a_system_message_finds_a_place),
                                       cmocka_unit_test(unknown_constructs_fall_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
