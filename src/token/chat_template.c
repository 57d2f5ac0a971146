/* The families, their marks, and the front: a conversation in a model's own template, or in a family's. */
#include "token/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "token/chat_builder_internal.h"

static void put_text(struct chat_builder *b, const char *text) { chat_builder_put_bytes(b, text, strlen(text)); }

static void put_control(struct chat_builder *b, const char *mark) {
    token_id id = tokenizer_find(b->tokenizer, mark);
    if (tokenizer_is_control(b->tokenizer, id))
        chat_builder_put_token(b, id);
    else if (b->status == STATUS_OK)
        b->status =
            error_set(b->error, STATUS_UNSUPPORTED,
                      "chat template '%s' needs the control token %s, which the vocabulary lacks", b->chat->name, mark);
}

static void put_end_of_sequence(struct chat_builder *b) {
    if (b->tokenizer->rules.eos != TOKEN_NONE)
        chat_builder_put_token(b, b->tokenizer->rules.eos);
    else if (b->status == STATUS_OK)
        b->status =
            error_set(b->error, STATUS_UNSUPPORTED, "chat template '%s' needs an end-of-sequence token", b->chat->name);
}

static void put_content(struct chat_builder *b, const struct chat_message *message) {
    chat_builder_put_bytes(b, message->content, message->length);
    b->given_end = b->count;
}

static void put_trimmed(struct chat_builder *b, const struct chat_message *message) {
    struct chat_message trimmed = chat_message_trim(*message);
    put_content(b, &trimmed);
}

/* ---- the families ---- */

/* Turns of one shape: OPEN ROLE MIDDLE TEXT CLOSE. */
struct turn_form {
    const char *open; /* a control token; NULL: the role's name is one */
    const char *roles[CHAT_TOOL + 1];
    const char *middle; /* a control token; NULL: none */
    const char *before_text;
    const char *close; /* a control token */
    const char *after_close;
    bool trims;
    bool system_is_in_turn; /* the first user's */
    bool ends;              /* without an answer to come: by an end of sequence */
};

static void open_turn(struct chat_builder *b, enum chat_role role) {
    const struct turn_form *form = b->chat->turns;
    if (form->open != NULL) put_control(b, form->open);
    if (form->open != NULL)
        put_text(b, form->roles[role]);
    else
        put_control(b, form->roles[role]);
    if (form->middle != NULL) put_control(b, form->middle);
    put_text(b, form->before_text);
}

static void build_turns(struct chat_builder *b, const struct chat_message *messages, size_t count, bool answer) {
    const struct turn_form *form = b->chat->turns;
    const struct chat_message *system =
        form->system_is_in_turn && count > 0 && messages[0].role == CHAT_SYSTEM ? messages : NULL;
    for (size_t i = system ? 1 : 0; i < count; i++) {
        open_turn(b, messages[i].role);
        if (system && i == 1) {
            put_content(b, system);
            put_text(b, "\n\n");
        }
        if (form->trims)
            put_trimmed(b, &messages[i]);
        else
            put_content(b, &messages[i]);
        put_control(b, form->close);
        put_text(b, form->after_close);
    }
    if (answer)
        open_turn(b, CHAT_ASSISTANT);
    else if (form->ends)
        put_end_of_sequence(b);
}

#define ROLES \
    { "system", "user", "assistant", "tool" }

static const struct turn_form chatml = {
    .open = "<|im_start|>", .roles = ROLES, .before_text = "\n", .close = "<|im_end|>", .after_close = "\n"};
static const struct turn_form llama3 = {.open = "<|start_header_id|>",
                                        .roles = ROLES,
                                        .middle = "<|end_header_id|>",
                                        .before_text = "\n\n",
                                        .close = "<|eot_id|>",
                                        .after_close = "",
                                        .trims = true};
static const struct turn_form gemma = {.open = "<start_of_turn>",
                                       .roles = {"user", "user", "model", "user"},
                                       .before_text = "\n",
                                       .close = "<end_of_turn>",
                                       .after_close = "\n",
                                       .trims = true,
                                       .system_is_in_turn = true};
static const struct turn_form phi3 = {.roles = {"<|system|>", "<|user|>", "<|assistant|>", "<|user|>"},
                                      .before_text = "\n",
                                      .close = "<|end|>",
                                      .after_close = "\n",
                                      .ends = true};
static const struct turn_form phi4 = {.open = "<|im_start|>",
                                      .roles = ROLES,
                                      .middle = "<|im_sep|>",
                                      .before_text = "",
                                      .close = "<|im_end|>",
                                      .after_close = ""};
static const struct turn_form granite = {.open = "<|start_of_role|>",
                                         .roles = ROLES,
                                         .middle = "<|end_of_role|>",
                                         .before_text = "",
                                         .close = "<|end_of_text|>",
                                         .after_close = "\n"};

/* BOS[INST] <<SYS>>\nSYSTEM\n<</SYS>>\n\nTEXT [/INST] ANSWER EOS, each user's turn with its BOS. */
static void build_llama2(struct chat_builder *b, const struct chat_message *messages, size_t count, bool answer) {
    (void)answer;
    const struct chat_message *system = count > 0 && messages[0].role == CHAT_SYSTEM ? messages : NULL;
    for (size_t i = system ? 1 : 0; i < count; i++) {
        if (messages[i].role == CHAT_ASSISTANT) {
            put_text(b, " ");
            put_trimmed(b, &messages[i]);
            put_text(b, " ");
            put_end_of_sequence(b);
            continue;
        }
        if (i > (system ? 1 : 0) && b->tokenizer->rules.bos != TOKEN_NONE)
            chat_builder_put_token(b, b->tokenizer->rules.bos);
        put_text(b, "[INST] ");
        if (system && i == 1) { /* trimmed as one text: SYSTEM inside its marks stays as it is */
            put_text(b, "<<SYS>>\n");
            put_content(b, system);
            put_text(b, "\n<</SYS>>");
            struct chat_message turn = chat_message_trim(messages[i]);
            if (turn.length > 0) { /* its start is inside the text and stays too */
                put_text(b, "\n\n");
                chat_builder_put_bytes(b, messages[i].content,
                                       (size_t)(turn.content - messages[i].content) + turn.length);
            }
        } else {
            put_trimmed(b, &messages[i]);
        }
        put_text(b, " [/INST]");
    }
}

/* What the versions of Mistral's format differ in. */
struct mistral_form {
    bool marks_are_text;   /* with a space before each */
    bool has_spaces;       /* behind [INST], and before an answer */
    bool system_is_last;   /* before the last user's message, not the first */
    bool system_has_marks; /* [SYSTEM_PROMPT] ... */
    bool trims_answer;
};

static void put_mark(struct chat_builder *b, const struct mistral_form *form, const char *mark) {
    if (form->marks_are_text) {
        put_text(b, " ");
        put_text(b, mark);
    } else {
        put_control(b, mark);
    }
}

static void put_mistral_system(struct chat_builder *b, const struct mistral_form *form,
                               const struct chat_message *system) {
    put_control(b, "[SYSTEM_PROMPT]");
    if (form->has_spaces) put_text(b, " ");
    put_content(b, system);
    put_control(b, "[/SYSTEM_PROMPT]");
}

static void build_mistral(struct chat_builder *b, const struct chat_message *messages, size_t count, bool answer) {
    const struct mistral_form *form = b->chat->mistral;
    const struct chat_message *system = count > 0 && messages[0].role == CHAT_SYSTEM ? messages : NULL;
    size_t first = system && !form->system_has_marks ? 1 : 0;
    (void)answer;
    for (size_t i = first; i < count; i++) {
        switch (messages[i].role) {
        case CHAT_SYSTEM: put_mistral_system(b, form, &messages[i]); break;
        case CHAT_TOOL:
        case CHAT_USER:
            put_mark(b, form, "[INST]");
            if (form->has_spaces) put_text(b, " ");
            if (first == 1 && i == (form->system_is_last ? count - 1 : 1)) {
                put_content(b, system);
                put_text(b, "\n\n");
            }
            put_content(b, &messages[i]);
            put_mark(b, form, "[/INST]");
            break;
        case CHAT_ASSISTANT:
            if (form->has_spaces) put_text(b, " ");
            if (form->trims_answer)
                put_trimmed(b, &messages[i]);
            else
                put_content(b, &messages[i]);
            put_end_of_sequence(b);
            break;
        }
    }
}

static const struct mistral_form mistral_v1 = {.has_spaces = true, .marks_are_text = true};
static const struct mistral_form mistral_v3 = {.has_spaces = true, .system_is_last = true, .trims_answer = true};
static const struct mistral_form mistral_v3_tekken = {.system_is_last = true};
static const struct mistral_form mistral_v7 = {.has_spaces = true, .system_has_marks = true};
static const struct mistral_form mistral_v7_tekken = {.system_has_marks = true};

/* User: TEXT\n\nAssistant: ANSWER EOS */
static void build_deepseek2(struct chat_builder *b, const struct chat_message *messages, size_t count, bool answer) {
    for (size_t i = 0; i < count; i++) {
        if (messages[i].role == CHAT_USER) put_text(b, "User: ");
        if (messages[i].role == CHAT_ASSISTANT) put_text(b, "Assistant: ");
        put_content(b, &messages[i]);
        if (messages[i].role == CHAT_ASSISTANT)
            put_end_of_sequence(b);
        else
            put_text(b, "\n\n");
    }
    if (answer) put_text(b, "Assistant:");
}

/* SYSTEM<｜User｜>TEXT<｜Assistant｜>ANSWER EOS */
static void build_deepseek3(struct chat_builder *b, const struct chat_message *messages, size_t count, bool answer) {
    for (size_t i = 0; i < count; i++) {
        if (messages[i].role == CHAT_USER) put_control(b, "<｜User｜>");
        if (messages[i].role == CHAT_ASSISTANT) put_control(b, "<｜Assistant｜>");
        put_content(b, &messages[i]);
        if (messages[i].role == CHAT_ASSISTANT) put_end_of_sequence(b);
    }
    if (answer) put_control(b, "<｜Assistant｜>");
}

static const struct chat_template templates[] = {
    {.name = "chatml", .build = build_turns, .turns = &chatml},
    {.name = "llama2", .build = build_llama2, .starts_with_bos = true, .takes_turns = true, .system_is_first = true},
    {.name = "llama3", .build = build_turns, .turns = &llama3, .starts_with_bos = true},
    {.name = "mistral-v1",
     .build = build_mistral,
     .mistral = &mistral_v1,
     .starts_with_bos = true,
     .takes_turns = true,
     .system_is_first = true},
    {.name = "mistral-v3",
     .build = build_mistral,
     .mistral = &mistral_v3,
     .starts_with_bos = true,
     .takes_turns = true,
     .system_is_first = true},
    {.name = "mistral-v3-tekken",
     .build = build_mistral,
     .mistral = &mistral_v3_tekken,
     .starts_with_bos = true,
     .takes_turns = true,
     .system_is_first = true},
    {.name = "mistral-v7", .build = build_mistral, .mistral = &mistral_v7, .starts_with_bos = true},
    {.name = "mistral-v7-tekken", .build = build_mistral, .mistral = &mistral_v7_tekken, .starts_with_bos = true},
    {.name = "gemma",
     .build = build_turns,
     .turns = &gemma,
     .starts_with_bos = true,
     .takes_turns = true,
     .system_is_first = true},
    {.name = "phi3", .build = build_turns, .turns = &phi3, .strips_after_control = true},
    {.name = "phi4", .build = build_turns, .turns = &phi4},
    {.name = "deepseek2", .build = build_deepseek2, .starts_with_bos = true},
    {.name = "deepseek3", .build = build_deepseek3, .starts_with_bos = true, .system_is_first = true},
    {.name = "granite", .build = build_turns, .turns = &granite},
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

static void build_family(struct chat_builder *b, const struct chat_conversation *conversation) {
    const struct chat_template *chat = b->chat;
    b->status = check_order(chat, conversation->messages, conversation->count, b->error);
    if (b->status != STATUS_OK) return;
    if (b->tokenizer->rules.bos != TOKEN_NONE && (chat->starts_with_bos || b->tokenizer->rules.adds_bos))
        chat_builder_put_token(b, b->tokenizer->rules.bos);
    chat->build(b, conversation->messages, conversation->count,
                conversation->add_generation_prompt && !conversation->continues);
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
    if (chat->program != NULL) {
        chat_jinja_build(&b, conversation);
        put_bos_first(&b);
    } else {
        build_family(&b, conversation);
    }
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
