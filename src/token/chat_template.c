/* The families, their marks, and the front: a conversation in a model's own template, or in a family's. */
#include "token/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "token/chat_builder_internal.h"

/* ---- the families ---- */

/* Without a mark of its own for what the system says, that begins the first user's turn or, in later versions, the last
 * one. */
#define MISTRAL(open, close, turn, answer)                                                                             \
    "{{ bos_token }}{% set system = '' %}{% if messages[0].role == 'system' %}"                                        \
    "{% set system = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"                      \
    "{% for m in messages %}{% if m.role == 'assistant' %}" answer "{{ eos_token }}{% else %}" open "{% if loop." turn \
    " %}{{ system }}{% endif %}{{ m.content }}" close "{% endif %}{% endfor %}"
#define MISTRAL_7(space)                                                                                     \
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]" space                 \
    "{{ m.content }}[/SYSTEM_PROMPT]{% elif m.role == 'assistant' %}" space "{{ m.content }}{{ eos_token }}" \
    "{% else %}[INST]" space "{{ m.content }}[/INST]{% endif %}{% endfor %}"
#define INST "[INST]", "[/INST]"

static const struct chat_template templates[] = {
    {.name = "chatml",
     .text = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
     .controls = {"<|im_start|>", "<|im_end|>"}},
    {.name = "llama2", /* trimmed as one text: SYSTEM inside its marks stays as it is */
     .text = "{% set system = '' %}{% if messages[0].role == 'system' %}"
             "{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
             "{% set messages = messages[1:] %}{% endif %}"
             "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content | trim }} {{ eos_token }}{% else %}"
             "{{ bos_token }}[INST] {{ ((system if loop.first else '') + m.content) | trim }} [/INST]"
             "{% endif %}{% endfor %}",
     .takes_turns = true,
     .system_is_first = true},
    {.name = "llama3",
     .text = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
             "{{ m.content | trim }}<|eot_id|>{% endfor %}"
             "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
     .controls = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {.name = "mistral-v1",
     .text = MISTRAL(" [INST] ", " [/INST]", "first", " {{ m.content }}"),
     .takes_turns = true,
     .system_is_first = true},
    {.name = "mistral-v3",
     .text = MISTRAL("[INST] ", "[/INST]", "last", " {{ m.content | trim }}"),
     .controls = {INST},
     .takes_turns = true,
     .system_is_first = true},
    {.name = "mistral-v3-tekken",
     .text = MISTRAL("[INST]", "[/INST]", "last", "{{ m.content }}"),
     .controls = {INST},
     .takes_turns = true,
     .system_is_first = true},
    {.name = "mistral-v7", .text = MISTRAL_7(" "), .controls = {INST}},
    {.name = "mistral-v7-tekken", .text = MISTRAL_7(""), .controls = {INST}},
    {.name = "gemma",
     .text = "{{ bos_token }}{% set system = '' %}{% if messages[0].role == 'system' %}"
             "{% set system = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
             "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}\n"
             "{% if loop.first %}{{ system }}{% endif %}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
             "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
     .controls = {"<start_of_turn>", "<end_of_turn>"},
     .takes_turns = true,
     .system_is_first = true},
    {.name = "phi3",
     .text =
         "{% for m in messages %}{{ '<|system|>' if m.role == 'system' else '<|assistant|>' if m.role == 'assistant' "
         "else '<|user|>' }}\n{{ m.content }}<|end|>\n{% endfor %}"
         "{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}",
     .controls = {"<|user|>", "<|assistant|>", "<|end|>"},
     .strips_after_control = true},
    {.name = "phi4",
     .text = "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
             "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}",
     .controls = {"<|im_start|>", "<|im_sep|>", "<|im_end|>"}},
    {.name = "deepseek2",
     .text = "{{ bos_token }}{% for m in messages %}{{ 'User: ' if m.role == 'user' else 'Assistant: ' if m.role == "
             "'assistant' else '' }}{{ m.content }}{{ eos_token if m.role == 'assistant' else '\n\n' }}{% endfor %}"
             "{% if add_generation_prompt %}Assistant:{% endif %}"},
    {.name = "deepseek3",
     .text = "{{ bos_token }}{% for m in messages %}{{ '<｜User｜>' if m.role == 'user' else '<｜Assistant｜>' if "
             "m.role == "
             "'assistant' else '' }}{{ m.content }}{{ eos_token if m.role == 'assistant' else '' }}{% endfor %}"
             "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}",
     .controls = {"<｜User｜>", "<｜Assistant｜>"},
     .system_is_first = true},
    {.name = "granite",
     .text = "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
     .controls = {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"}},
};

enum { TEMPLATE_COUNT = sizeof templates / sizeof templates[0] };

const struct chat_template *chat_template_at(size_t index) { return index < TEMPLATE_COUNT ? &templates[index] : NULL; }

const struct chat_template *chat_template_find(const char *name) {
    for (size_t i = 0; i < TEMPLATE_COUNT; i++)
        if (strcmp(templates[i].name, name) == 0) return &templates[i];
    return NULL;
}

const char *chat_template_name(const struct chat_template *chat) { return chat->name; }
bool chat_template_takes_turns(const struct chat_template *chat) { return chat->takes_turns; }
bool chat_template_wants_system_first(const struct chat_template *chat) { return chat->system_is_first; }
bool chat_template_has_system(const struct chat_template *chat) { return !chat->lacks_system; }
bool chat_template_shows_tools(const struct chat_template *chat) { return chat->shows_tools; }
bool chat_template_drops_thoughts(const struct chat_template *chat) { return chat->drops_thoughts; }
bool chat_template_shows_calls(const struct chat_template *chat) { return chat->shows_calls; }
enum chat_syntax chat_template_syntax(const struct chat_template *chat) { return chat->syntax; }
const char *chat_template_note(const struct chat_template *chat) { return chat->note[0] != '\0' ? chat->note : NULL; }
bool chat_template_reads(const struct chat_template *chat, const char *variable) {
    return chat->program != NULL && jinja_program_reads(chat->program, variable);
}

/* ---- detection ---- */

/* The first row whose marks are all in the text names the family. */
static const struct {
    const char *name;
    const char *marks[3];
} detections[] = {
    {"phi4", {"<|im_start|>", "<|im_sep|>"}},
    {"chatml", {"<|im_start|>"}},
    {"llama2", {"[INST]", "<<SYS>>"}},
    {"mistral-v7", {"[INST] ", "[SYSTEM_PROMPT] "}},
    {"mistral-v7-tekken", {"[INST]", "[SYSTEM_PROMPT]"}},
    {"mistral-v1", {"[INST]", " [/INST]"}},
    {"mistral-v3", {"[INST] "}},
    {"mistral-v3-tekken", {"[INST]", "[/INST]"}},
    {"llama3", {"<|start_header_id|>", "<|end_header_id|>"}},
    {"gemma", {"<start_of_turn>"}},
    {"granite", {"<|start_of_role|>", "<|end_of_role|>"}},
    {"deepseek3", {"<｜User｜>", "<｜Assistant｜>"}},
    {"phi3", {"<|user|>", "<|assistant|>", "<|end|>"}},
    {"deepseek2", {"'User: '", "'Assistant: '"}},
};

static bool contains(const char *text, size_t length, const char *mark) {
    return memmem(text, length, mark, strlen(mark)) != NULL;
}

enum status chat_template_detect(const char *text, size_t length, const struct chat_template **chat,
                                 struct error *error) {
    *chat = NULL;
    for (size_t i = 0; i < sizeof detections / sizeof detections[0]; i++) {
        bool all = true;
        for (size_t m = 0; m < 3 && detections[i].marks[m]; m++)
            all = all && contains(text, length, detections[i].marks[m]);
        if (!all) continue;
        *chat = chat_template_find(detections[i].name);
        ASSERT(*chat);
        return STATUS_OK;
    }
    return error_set(error, STATUS_UNSUPPORTED,
                     "tokenizer.chat_template: unknown chat template '%.*s%s'; name one with --chat-template NAME",
                     (int)(length < 80 ? length : 80), text, length < 80 ? "" : "...");
}

/* The family of a template that cannot be used itself, with the reason.  Without one: both reasons. */
static enum status fall_back(struct chat_template *chat, const char *text, size_t length, const struct error *why,
                             struct error *error) {
    const struct chat_template *family;
    struct error unknown;
    if (chat_template_detect(text, length, &family, &unknown) != STATUS_OK)
        return error_set(error, STATUS_UNSUPPORTED, "%.200s; no built-in template has its marks: --chat-template NAME",
                         why->message);
    *chat = *family;
    snprintf(chat->note, sizeof chat->note, "%.280s; the built-in template '%s' is used", why->message, chat->name);
    return STATUS_OK;
}

enum status chat_template_create(const char *text, size_t length, const struct chat_template **chat,
                                 struct error *error) {
    struct chat_template *made = calloc(1, sizeof *made);
    const struct chat_template *family;
    struct error why;
    *chat = NULL;
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the chat template");
    made->name = "jinja";
    if (chat_template_detect(text, length, &family, &why) == STATUS_OK)
        made->strips_after_control = family->strips_after_control;
    enum status status = chat_jinja_create(made, text, length, &why);
    if (status == STATUS_UNSUPPORTED)
        status = fall_back(made, text, length, &why, error);
    else if (status != STATUS_OK && error != NULL)
        *error = why;
    if (status != STATUS_OK) {
        free(made);
        return status;
    }
    *chat = made;
    return STATUS_OK;
}

void chat_template_destroy(const struct chat_template *chat) {
    const size_t count = sizeof templates / sizeof templates[0];
    if (chat == NULL || (chat >= templates && chat < templates + count)) return;
    struct chat_template *owned = (struct chat_template *)chat;
    jinja_program_destroy(owned->program);
    free(owned);
}

enum status chat_template_of_model(const struct gguf *gguf, const struct chat_template **chat, struct error *error) {
    struct gguf_string text = {NULL, 0};
    *chat = NULL;
    TRY(gguf_get_string(gguf, "tokenizer.chat_template", &text, error));
    if (!text.text)
        return error_set(error, STATUS_UNSUPPORTED,
                         "the model has no chat template; name one with --chat-template NAME");
    return chat_template_create(text.text, text.length, chat, error);
}

/* ---- application ---- */

static enum status check_order(const struct chat_template *chat, const struct chat_message *messages, size_t count,
                               struct error *error) {
    if (count == 0) return error_set(error, STATUS_USAGE, "a conversation needs a message");
    size_t first = messages[0].role == CHAT_SYSTEM && chat->system_is_first ? 1 : 0;
    if (first == count)
        return error_set(error, STATUS_USAGE, "chat template '%s': no message after the system message", chat->name);
    for (size_t i = first; i < count; i++) {
        if (messages[i].role == CHAT_SYSTEM && chat->system_is_first)
            return error_set(error, STATUS_USAGE,
                             "chat template '%s': message %zu: a system message must be "
                             "the first",
                             chat->name, i + 1);
        if (chat->takes_turns && messages[i].role != ((i - first) % 2 ? CHAT_ASSISTANT : CHAT_USER))
            return error_set(error, STATUS_USAGE, "chat template '%s': message %zu: user and assistant must take turns",
                             chat->name, i + 1);
    }
    return STATUS_OK;
}

/* BOS that the template wrote itself is enough. */
static void put_bos_first(struct chat_builder *b) {
    const token_id bos = b->tokenizer->rules.bos;
    if (bos == TOKEN_NONE || !b->tokenizer->rules.adds_bos || (b->count > 0 && b->parts[0].id == bos)) return;
    chat_builder_put_token(b, bos);
    if (b->status != STATUS_OK) return;
    const struct chat_part last = b->parts[b->count - 1];
    memmove(b->parts + 1, b->parts, (b->count - 1) * sizeof last);
    if (b->given_end > 0) b->given_end++;
    b->parts[0] = (struct chat_part){.id = last.id};
}

/* A family's marks are control tokens, or its model is another one. */
static enum status check_marks(const struct chat_builder *b) {
    const struct chat_template *chat = b->chat;
    for (size_t i = 0; i < sizeof chat->controls / sizeof *chat->controls && chat->controls[i] != NULL; i++)
        if (!tokenizer_is_control(b->tokenizer, tokenizer_find(b->tokenizer, chat->controls[i])))
            return error_set(b->error, STATUS_UNSUPPORTED,
                             "chat template '%s' needs the control token %s, which the vocabulary lacks", chat->name,
                             chat->controls[i]);
    if (b->tokenizer->rules.eos == TOKEN_NONE && chat_template_reads(chat, "eos_token"))
        return error_set(b->error, STATUS_UNSUPPORTED, "chat template '%s' needs an end-of-sequence token", chat->name);
    return STATUS_OK;
}

static void build_family(struct chat_builder *b, const struct chat_conversation *conversation) {
    const struct chat_template *family = b->chat;
    struct chat_template chat = *family;
    chat.content_is_no_none = true;
    b->status = check_order(&chat, conversation->messages, conversation->count, b->error);
    if (b->status == STATUS_OK) b->status = jinja_program_create(&chat.program, chat.text, strlen(chat.text), b->error);
    if (b->status != STATUS_OK) return;
    b->chat = &chat;
    b->status = check_marks(b);
    if (b->status == STATUS_OK) chat_jinja_build(b, conversation);
    b->chat = family;
    jinja_program_destroy(chat.program);
}

/* The beginning of the answer has a thought that did not end. */
static bool begins_thought(const struct chat_message *message) {
    const struct chat_message text = chat_message_trim(*message);
    return text.length >= 7 && memcmp(text.content, "<think>", 7) == 0 &&
           memmem(text.content, text.length, "</think>", 8) == NULL;
}

enum status chat_template_lay_out(const struct chat_template *chat, const struct tokenizer *tokenizer,
                                  const struct chat_conversation *conversation, struct token_list *list,
                                  struct chat_ending *ending, struct error *error) {
    if (conversation->count == 0) return error_set(error, STATUS_USAGE, "a conversation needs a message");
    struct chat_builder b = {.chat = chat, .tokenizer = tokenizer, .error = error};
    const struct chat_message *last = &conversation->messages[conversation->count - 1];
    (chat->program != NULL ? chat_jinja_build : build_family)(&b, conversation);
    put_bos_first(&b);
    if (chat->strips_after_control && tokenizer->model == TOKENIZER_SPM) chat_builder_strip_after_control(&b);
    if (conversation->continues) chat_builder_cut(&b, last->content, last->length);
    enum status status = b.status;
    if (status == STATUS_OK) status = chat_builder_encode(&b, list);
    if (status == STATUS_OK && ending != NULL)
        *ending = (struct chat_ending){.thinks = conversation->continues ? begins_thought(last) : b.thinks,
                                       .turn_end = conversation->continues ? 0 : chat_builder_turn_end(&b, list)};
    chat_builder_deinit(&b);
    return status;
}

enum status chat_template_apply(const struct chat_template *chat, const struct tokenizer *tokenizer,
                                const struct chat_message *messages, size_t count, bool add_generation_prompt,
                                struct token_list *list, struct error *error) {
    const struct chat_conversation conversation = {
        .messages = messages, .count = count, .add_generation_prompt = add_generation_prompt};
    return chat_template_lay_out(chat, tokenizer, &conversation, list, NULL, error);
}
