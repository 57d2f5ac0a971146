/* A model's own template: tried once with a few words to learn what it has forms for, and rendered. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "token/chat_builder_internal.h"

/* ---- the variables ---- */

enum { VARIABLES_MAX = 64, OWN_VARIABLES = 8 };

struct variables {
    struct jinja_variable items[VARIABLES_MAX];
    size_t count;
};

static void put_json(struct variables *v, const char *name, const json_t *json) {
    v->items[v->count++] = (struct jinja_variable){.name = name, .json = json};
}

static void put_mark(struct variables *v, const char *name, const char *text, size_t length) {
    v->items[v->count++] = (struct jinja_variable){.name = name, .text = text, .length = length, .by_template = true};
}

/* What a request may not say for itself. */
static bool is_reserved(const char *name) {
    static const char *const names[] = {"messages",  "tools",     "documents", "add_generation_prompt",
                                        "bos_token", "eos_token", ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static void put_given(struct variables *v, const json_t *given) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)given, name, value) {
        if (v->count + OWN_VARIABLES >= VARIABLES_MAX) break;
        if (!is_reserved(name)) put_json(v, name, value);
    }
}

/* Both names that templates have for it. */
static void put_thinking(struct variables *v, enum chat_thinking thinking) {
    if (thinking == CHAT_THINKING_AUTO) return;
    const json_t *thinks = thinking == CHAT_THINKING_ON ? json_true() : json_false();
    put_json(v, "enable_thinking", thinks);
    put_json(v, "thinking", thinks);
}

/* ---- rendering ---- */

static size_t json_bytes(const json_t *json) {
    return json != NULL ? json_dumpb(json, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) : 0;
}

/* Calls whose arguments are an object, as the template wants them: as its text.  NULL: no memory. */
static json_t *with_text_arguments(const json_t *more) {
    json_t *copy = json_deep_copy(more), *calls = json_object_get(copy, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *arguments = json_object_get(function, "arguments");
        char *text = json_is_object(arguments) ? json_dumps(arguments, 0) : NULL;
        if (text != NULL) json_object_set_new(function, "arguments", json_string(text));
        free(text);
    }
    return copy;
}

struct marks {
    const char *bos, *eos;
    size_t bos_length, eos_length;
};

static enum status render(const struct chat_template *chat, const struct chat_conversation *conversation,
                          const struct marks *marks, struct jinja_output *output, struct error *error) {
    struct variables variables = {.count = 0};
    size_t bytes = json_bytes(conversation->tools) + json_bytes(conversation->variables);
    struct jinja_message *messages = calloc(conversation->count, sizeof *messages);
    json_t **copies = calloc(conversation->count, sizeof *copies);
    if (messages == NULL || copies == NULL) {
        free(messages);
        free(copies);
        return error_set(error, STATUS_MEMORY, "no memory for a conversation");
    }
    for (size_t i = 0; i < conversation->count; i++) {
        const struct chat_message *message = &conversation->messages[i];
        const json_t *more = conversation->more != NULL ? conversation->more[i] : NULL;
        const bool has_calls = json_object_get(more, "tool_calls") != NULL;
        if (has_calls && chat->arguments_are_text) more = copies[i] = with_text_arguments(more);
        const bool is_none = message->length == 0 && has_calls && !chat->content_is_no_none;
        messages[i] = (struct jinja_message){.role = chat_role_name(message->role),
                                             .content = is_none ? NULL : message->content,
                                             .length = message->length,
                                             .more = more};
        bytes += message->length + json_bytes(more);
    }
    put_given(&variables, conversation->variables);
    put_thinking(&variables, conversation->thinking);
    put_json(&variables, "tools", conversation->tools != NULL ? conversation->tools : json_null());
    put_json(&variables, "documents", json_null());
    put_json(&variables, "add_generation_prompt",
             conversation->add_generation_prompt && !conversation->continues ? json_true() : json_false());
    put_mark(&variables, "bos_token", marks->bos, marks->bos_length);
    put_mark(&variables, "eos_token", marks->eos, marks->eos_length);
    const struct jinja_input input = {.messages = messages,
                                      .message_count = conversation->count,
                                      .variables = variables.items,
                                      .variable_count = variables.count,
                                      .now = (int64_t)time(NULL),
                                      .limits = jinja_limits_for(bytes)};
    const enum status status = jinja_render(chat->program, &input, output, error);
    for (size_t i = 0; i < conversation->count; i++) json_decref(copies[i]);
    free(copies);
    free(messages);
    return status;
}

/* ---- to tokens ---- */

/* Bytes of the template's: control tokens where they stand, text else. */
static void put_written(struct chat_builder *b, const char *text, size_t length) {
    const struct special_list *specials = &b->tokenizer->special;
    size_t begin = 0, at = 0;
    while (at < length && b->status == STATUS_OK) {
        token_id id = TOKEN_NONE;
        if (specials->count > 0 && specials->starts[(uint8_t)text[at]])
            id = special_match(b->tokenizer, specials, (const uint8_t *)text + at, length - at);
        if (id == TOKEN_NONE) {
            at++;
            continue;
        }
        const size_t end = at + b->tokenizer->tokens[id].byte_length;
        if (tokenizer_is_control(b->tokenizer, id)) { /* a user-defined one is found in any text */
            chat_builder_put_bytes(b, text + begin, at - begin);
            chat_builder_put_token(b, id);
            begin = end;
        }
        at = end;
    }
    chat_builder_put_bytes(b, text + begin, length - begin);
}

static void put_output(struct chat_builder *b, const struct jinja_output *output) {
    for (size_t at = 0; at < output->length && b->status == STATUS_OK;) {
        const uint8_t mark = output->marks[at];
        const uint8_t *other = memchr(output->marks + at, !mark, output->length - at);
        const size_t end = other != NULL ? (size_t)(other - output->marks) : output->length;
        if (mark)
            put_written(b, output->bytes + at, end - at);
        else {
            chat_builder_put_bytes(b, output->bytes + at, end - at);
            b->given_end = b->count;
        }
        at = end;
    }
}

/* The template's last word, but for blanks, is <think>. */
static bool ends_in_thought(const struct jinja_output *output) {
    static const char mark[] = "<think>";
    size_t end = output->length;
    while (end > 0 && strchr(" \n\t\r", output->bytes[end - 1]) != NULL && output->bytes[end - 1] != '\0') end--;
    return end >= sizeof mark - 1 && memcmp(output->bytes + end - (sizeof mark - 1), mark, sizeof mark - 1) == 0 &&
           output->marks[end - 1] != 0;
}

static struct marks marks_of(const struct tokenizer *t) {
    struct marks marks = {.bos = "", .eos = ""};
    if (t->rules.bos != TOKEN_NONE) {
        marks.bos = token_bytes(t, t->rules.bos);
        marks.bos_length = t->tokens[t->rules.bos].byte_length;
    }
    if (t->rules.eos != TOKEN_NONE) {
        marks.eos = token_bytes(t, t->rules.eos);
        marks.eos_length = t->tokens[t->rules.eos].byte_length;
    }
    return marks;
}

/* Where the template has no form for it, what the system says begins the first user's turn. */
static enum status put_system_in_turn(const struct chat_conversation *given, struct chat_conversation *made,
                                      struct error *error) {
    const struct chat_message *system = &given->messages[0], *user = &given->messages[1];
    struct chat_message *messages = calloc(given->count, sizeof *messages);
    char *text = malloc(system->length + user->length + 2);
    if (messages == NULL || text == NULL) {
        free(messages);
        free(text);
        return error_set(error, STATUS_MEMORY, "no memory for a conversation");
    }
    if (system->length > 0) memcpy(text, system->content, system->length);
    memcpy(text + system->length, "\n\n", 2);
    if (user->length > 0) memcpy(text + system->length + 2, user->content, user->length);
    memcpy(messages, given->messages + 1, (given->count - 1) * sizeof *messages);
    messages[0].content = text;
    messages[0].length = system->length + 2 + user->length;
    *made = *given;
    made->messages = messages;
    made->count--;
    if (made->more != NULL) made->more++;
    return STATUS_OK;
}

void chat_jinja_build(struct chat_builder *b, const struct chat_conversation *conversation) {
    const struct marks marks = marks_of(b->tokenizer);
    struct chat_conversation folded = *conversation;
    struct jinja_output output = {.bytes = NULL};
    const bool folds = b->chat->lacks_system && folded.count > 1 && folded.messages[0].role == CHAT_SYSTEM &&
                       folded.messages[1].role == CHAT_USER;
    if (folds) b->status = put_system_in_turn(conversation, &folded, b->error);
    if (b->status == STATUS_OK) b->status = render(b->chat, &folded, &marks, &output, b->error);
    if (folded.messages != conversation->messages) {
        free((char *)folded.messages[0].content);
        free((struct chat_message *)folded.messages);
    }
    if (b->status != STATUS_OK) return;
    b->thinks = output.length > 0 && conversation->add_generation_prompt && ends_in_thought(&output);
    put_output(b, &output);
    jinja_output_deinit(&output);
}

/* ---- trying it ---- */

/* Words that no template has of its own. */
static const char said_by_system[] = "wordzsystem", said_by_user[] = "wordzuser", said_again[] = "wordzagain",
                  said_by_model[] = "wordzmodel", said_by_tool[] = "wordztool", tool_name[] = "wordzcall",
                  tool_key[] = "wordzkey", tool_value[] = "wordzvalue", said_in_thought[] = "wordzthought";

static struct chat_message words(enum chat_role role, const char *text) {
    return (struct chat_message){.role = role, .content = text, .length = strlen(text)};
}

/* A question for the template, and the words that its answer has to show. */
struct trial {
    const struct chat_message *messages; /* [count] */
    const json_t *const *more;           /* [count]; NULL: nothing more */
    size_t count;
    const json_t *tools;
    const char *const *wanted; /* [wanted_count] */
    size_t wanted_count;
};

static enum status try(const struct chat_template *chat, const struct trial *trial, struct jinja_output *output,
                       struct error *error) {
    const struct marks marks = {.bos = "<s>", .eos = "</s>", .bos_length = 3, .eos_length = 4};
    const struct chat_conversation conversation = {.messages = trial->messages,
                                                   .more = trial->more,
                                                   .count = trial->count,
                                                   .add_generation_prompt = true,
                                                   .tools = trial->tools};
    return render(chat, &conversation, &marks, output, error);
}

/* Whether it renders the messages, and shows all of the words.  status (NULL allowed) and error: of a failure. */
static bool shows(const struct chat_template *chat, const struct trial *trial, enum status *status,
                  struct error *error) {
    struct jinja_output output;
    const enum status rendered = try(chat, trial, &output, error);
    bool shows_all = rendered == STATUS_OK;
    for (size_t i = 0; i < trial->wanted_count && shows_all; i++)
        shows_all = output.length > 0 &&
                    memmem(output.bytes, output.length, trial->wanted[i], strlen(trial->wanted[i])) != NULL;
    if (status != NULL) *status = rendered;
    jinja_output_deinit(&output);
    return shows_all;
}

static void try_order(struct chat_template *chat) {
    const struct chat_message system_first[] = {words(CHAT_SYSTEM, said_by_system), words(CHAT_USER, said_by_user)};
    const struct chat_message two_users[] = {words(CHAT_USER, said_by_user), words(CHAT_USER, said_again)};
    const struct chat_message system_late[] = {words(CHAT_USER, said_by_user), words(CHAT_ASSISTANT, said_by_model),
                                               words(CHAT_SYSTEM, said_by_system), words(CHAT_USER, said_again)};
    const char *const both[] = {said_by_system, said_by_user}, *const users[] = {said_by_user, said_again};
    struct error ignored;
    chat->lacks_system = !shows(chat, &(struct trial){system_first, NULL, 2, NULL, both, 2}, NULL, &ignored);
    chat->takes_turns = !shows(chat, &(struct trial){two_users, NULL, 2, NULL, users, 2}, NULL, &ignored);
    chat->system_is_first =
        chat->lacks_system || !shows(chat, &(struct trial){system_late, NULL, 4, NULL, both, 1}, NULL, &ignored);
}

/* Of what the model says with a thought, the answer alone is shown in a later turn. */
static bool drops(const struct chat_template *chat, const char *answer, const json_t *fields) {
    const struct chat_message messages[] = {words(CHAT_USER, said_by_user), words(CHAT_ASSISTANT, answer),
                                            words(CHAT_USER, said_again)};
    const json_t *const more[] = {NULL, fields, NULL};
    const char *const thought[] = {said_in_thought}, *const said[] = {said_by_model, said_again};
    struct error ignored;
    return shows(chat, &(struct trial){messages, more, 3, NULL, said, 2}, NULL, &ignored) &&
           !shows(chat, &(struct trial){messages, more, 3, NULL, thought, 1}, NULL, &ignored);
}

/* What begins an answer, an empty thought perhaps, is not in front of it in a later turn. */
static bool drops_beginning(const struct chat_template *chat) {
    const struct chat_message messages[] = {words(CHAT_USER, said_by_user), words(CHAT_ASSISTANT, said_by_model),
                                            words(CHAT_USER, said_again)};
    struct jinja_output begun, later;
    struct error ignored;
    const enum status first = try(chat, &(struct trial){messages, NULL, 1, NULL, NULL, 0}, &begun, &ignored);
    const enum status next = try(chat, &(struct trial){messages, NULL, 3, NULL, NULL, 0}, &later, &ignored);
    const bool drops = first == STATUS_OK && next == STATUS_OK &&
                       (later.length < begun.length || memcmp(later.bytes, begun.bytes, begun.length) != 0);
    jinja_output_deinit(&begun);
    jinja_output_deinit(&later);
    return drops;
}

/* Thoughts are a part of the text, or a channel of their own, which harmony's templates are given as a field. */
static void try_thoughts(struct chat_template *chat, const char *text, size_t length) {
    const bool has_channels = memmem(text, length, "<|channel|>", 11) != NULL;
    json_t *fields = has_channels ? json_pack("{s:s}", "thinking", said_in_thought) : NULL;
    chat->drops_thoughts = drops_beginning(chat) ||
                           drops(chat, "<think>\nwordzthought\n</think>\n\nwordzmodel", NULL) ||
                           drops(chat, "<|channel>thought\nwordzthought<channel|>wordzmodel", NULL) ||
                           (fields != NULL && drops(chat, said_by_model, fields));
    json_decref(fields);
}

/* Tools as the model knows them are of use where its calls can be read again; else they are told as Hermes' are. */
static bool find_syntax(const char *text, size_t length, enum chat_syntax *syntax) {
    static const struct {
        enum chat_syntax syntax;
        const char *mark;
    } marks[] = {{CHAT_QWEN_XML, "<function="},   {CHAT_GLM, "<arg_key>"}, {CHAT_MISTRAL, "[TOOL_CALLS]"},
                 {CHAT_HARMONY, "<|channel|>"},   {CHAT_GEMMA, "call:"},   {CHAT_HERMES, "<tool_call>"},
                 {CHAT_LLAMA3, "<|python_tag|>"}, {CHAT_LLAMA3, "ipython"}};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (memmem(text, length, marks[i].mark, strlen(marks[i].mark)) == NULL) continue;
        *syntax = marks[i].syntax;
        return true;
    }
    return false;
}

/* Arguments as an object or as its text, content as none or as "": some templates want the one, some the other. */
static bool try_calls(struct chat_template *chat, const json_t *tools) {
    static const char *const wanted[] = {tool_name, tool_value, said_by_tool};
    for (int form = 0; form < 4; form++) {
        chat->arguments_are_text = form / 2 == 1;
        chat->content_is_no_none = form % 2 == 1;
        json_t *arguments = json_pack("{s:s}", tool_key, tool_value);
        json_t *given =
            chat->arguments_are_text ? json_string("{\"wordzkey\": \"wordzvalue\"}") : json_incref(arguments);
        json_t *call = json_pack("{s:[{s:s, s:s, s:{s:s, s:o}}]}", "tool_calls", "id", "wordzid00", "type", "function",
                                 "function", "name", tool_name, "arguments", given);
        json_t *result = json_pack("{s:s, s:s}", "tool_call_id", "wordzid00", "name", tool_name);
        const struct chat_message messages[] = {words(CHAT_USER, said_by_user), words(CHAT_ASSISTANT, ""),
                                                words(CHAT_TOOL, said_by_tool)};
        const json_t *const more[] = {NULL, call, result};
        struct error ignored;
        const bool shown = call != NULL && result != NULL &&
                           shows(chat, &(struct trial){messages, more, 3, tools, wanted, 3}, NULL, &ignored);
        json_decref(arguments);
        json_decref(call);
        json_decref(result);
        if (shown) return true;
    }
    chat->arguments_are_text = chat->content_is_no_none = false;
    return false;
}

static void try_tools(struct chat_template *chat, const char *text, size_t length) {
    const struct chat_message user = words(CHAT_USER, said_by_user);
    const char *const wanted[] = {tool_name, said_by_user};
    struct error ignored;
    if (!find_syntax(text, length, &chat->syntax)) return;
    json_t *tools = json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function", "function",
                              "name", tool_name, "description", "d", "parameters", "type", "object", "properties",
                              tool_key, "type", "string", "description", "d", "required", tool_key);
    chat->shows_tools = tools != NULL && shows(chat, &(struct trial){&user, NULL, 1, tools, wanted, 2}, NULL, &ignored);
    chat->shows_calls = chat->shows_tools && try_calls(chat, tools);
    if (!chat->shows_calls) { /* half of it would mix two syntaxes */
        chat->shows_tools = false;
        chat->syntax = CHAT_HERMES;
    }
    json_decref(tools);
}

/* What the template makes of a first question; of one with a system message, where it wants that. */
static enum status try_words(const struct chat_template *chat, struct error *error) {
    const struct chat_message messages[] = {words(CHAT_SYSTEM, said_by_system), words(CHAT_USER, said_by_user)};
    const char *const wanted[] = {said_by_user};
    enum status status;
    struct error ignored;
    if (shows(chat, &(struct trial){messages + 1, NULL, 1, NULL, wanted, 1}, &status, error)) return STATUS_OK;
    if (shows(chat, &(struct trial){messages, NULL, 2, NULL, wanted, 1}, NULL, &ignored)) return STATUS_OK;
    if (status == STATUS_MEMORY) return status;
    if (status != STATUS_OK) return error->status = STATUS_UNSUPPORTED;
    return error_set(error, STATUS_UNSUPPORTED, "tokenizer.chat_template does not show what a user says");
}

enum status chat_jinja_create(struct chat_template *chat, const char *text, size_t length, struct error *error) {
    TRY(jinja_program_create(&chat->program, text, length, error));
    const enum status status = try_words(chat, error);
    if (status != STATUS_OK) {
        jinja_program_destroy(chat->program);
        chat->program = NULL;
        return status;
    }
    try_order(chat);
    try_thoughts(chat, text, length);
    try_tools(chat, text, length);
    return STATUS_OK;
}
