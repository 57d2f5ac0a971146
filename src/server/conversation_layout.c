/* A conversation as the tokens of a chat template: with tools and calls as the template shows them, or as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/conversation.h"
#include "server/fields.h"

static bool no_memory(struct api_error *error) {
    return api_error_set(error, 503, NULL, "no memory for the conversation");
}

/* The system message is the first: made where there is none. */
static bool begin_with_system(struct conversation *conversation, struct api_error *error) {
    if (conversation->count > 0 && conversation->messages[0].role == CHAT_SYSTEM) return true;
    if (!conversation_add(conversation, CHAT_SYSTEM, error)) return false;
    const struct conversation_message system = conversation->messages[conversation->count - 1];
    memmove(conversation->messages + 1, conversation->messages, (conversation->count - 1) * sizeof system);
    conversation->messages[0] = system;
    return true;
}

/* Moves the text of message `from` to the end of message `to`, a paragraph of its own. */
static bool join(struct conversation_message *to, struct conversation_message *from, struct api_error *error) {
    const bool joined = (to->content.length == 0 || conversation_message_append(to, "\n\n", 2, error)) &&
                        conversation_message_append(to, from->content.bytes, from->content.length, error);
    conversation_message_deinit(from);
    return joined;
}

/* Where the template has a system message at the start only: all of them become one. */
static bool gather_system(struct conversation *conversation, struct api_error *error) {
    bool has_later = false;
    for (size_t i = 1; i < conversation->count; i++)
        has_later = has_later || conversation->messages[i].role == CHAT_SYSTEM;
    if (!has_later) return true;
    if (!begin_with_system(conversation, error)) return false;
    size_t kept = 1;
    bool gathered = true;
    for (size_t i = 1; i < conversation->count; i++) {
        struct conversation_message *message = &conversation->messages[i];
        if (message->role == CHAT_SYSTEM)
            gathered = join(&conversation->messages[0], message, error) && gathered;
        else
            conversation->messages[kept++] = *message;
    }
    conversation->count = kept;
    return gathered;
}

/* Where the template wants turns: neighbours of one role become one message. */
static bool merge_neighbours(struct conversation *conversation, struct api_error *error) {
    size_t kept = 0;
    bool merged = true;
    for (size_t i = 0; i < conversation->count; i++) {
        struct conversation_message *message = &conversation->messages[i];
        if (kept > 0 && conversation->messages[kept - 1].role == message->role)
            merged = join(&conversation->messages[kept - 1], message, error) && merged;
        else
            conversation->messages[kept++] = *message;
    }
    conversation->count = kept;
    return merged;
}

/* ---- tools as text ---- */

static const char tools_before[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
    "function signatures within <tools></tools> XML tags:\n<tools>";
static const char tools_after[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>";

static bool append_tools(struct conversation *conversation, struct api_error *error) {
    if (!begin_with_system(conversation, error)) return false;
    struct conversation_message *system = &conversation->messages[0];
    bool added = (system->content.length == 0 || conversation_message_append(system, "\n\n", 2, error)) &&
                 conversation_message_append(system, tools_before, sizeof tools_before - 1, error);
    for (size_t i = 0; i < json_array_size(conversation->tools) && added; i++) {
        char *text = json_dumps(json_array_get(conversation->tools, i), JSON_ENCODE_ANY);
        if (text == NULL) return no_memory(error);
        added = conversation_message_append(system, "\n", 1, error) &&
                conversation_message_append(system, text, strlen(text), error);
        free(text);
    }
    return added && conversation_message_append(system, tools_after, sizeof tools_after - 1, error);
}

static enum status lay_out(const struct conversation *conversation, const struct chat_template *chat,
                           const struct tokenizer *tokenizer, const struct chat_message *messages,
                           const json_t *const *more, size_t count, const json_t *tools, struct chat_ending *ending,
                           struct token_list *list, struct error *reason) {
    const struct chat_conversation laid = {.messages = messages,
                                           .count = count,
                                           .more = more,
                                           .add_generation_prompt = !conversation->ends_closed,
                                           .continues = conversation->continues,
                                           .thinking = conversation->thinking,
                                           .tools = tools,
                                           .variables = conversation->variables};
    return chat_template_lay_out(chat, tokenizer, &laid, list, ending, reason);
}

static struct chat_message message_of(enum chat_role role, const char *text, size_t length) {
    return (struct chat_message){.role = role, .content = text != NULL ? text : "", .length = length};
}

/* What templates read an assistant's thoughts by; and its calls, unless calls is NULL.  Taken.  NULL: neither. */
static json_t *more_of(const struct conversation_message *message, json_t *calls) {
    json_t *more = calls != NULL || message->thoughts != NULL ? json_object() : NULL;
    if (calls != NULL) json_object_set_new(more, "tool_calls", calls);
    if (message->thoughts == NULL) return more;
    json_object_set(more, "reasoning_content", message->thoughts);
    json_object_set(more, "reasoning", message->thoughts);
    /* gpt-oss's template has no form for thoughts and a text beside calls. */
    if (calls == NULL || message->plain_length == 0) json_object_set(more, "thinking", message->thoughts);
    return more;
}

static bool encode_as_text(struct conversation *conversation, const struct chat_template *chat,
                           const struct tokenizer *tokenizer, struct token_list *list, bool tells_tools,
                           struct api_error *error) {
    if (conversation->tools != NULL && !append_tools(conversation, error)) return false;
    if (chat_template_takes_turns(chat) && !merge_neighbours(conversation, error)) return false;
    struct chat_message *messages = calloc(conversation->count, sizeof *messages);
    json_t **more = calloc(conversation->count, sizeof *more);
    struct error reason;
    enum status status = messages != NULL && more != NULL
                             ? STATUS_OK
                             : error_set(&reason, STATUS_MEMORY, "no memory for the conversation");
    for (size_t i = 0; i < conversation->count && status == STATUS_OK; i++) {
        const struct conversation_message *message = &conversation->messages[i];
        messages[i] = message_of(message->role, message->content.bytes, message->content.length);
        more[i] = more_of(message, NULL);
    }
    if (status == STATUS_OK)
        status = lay_out(conversation, chat, tokenizer, messages, (const json_t *const *)more, conversation->count,
                         NULL, &conversation->ending, list, &reason);
    for (size_t i = 0; more != NULL && i < conversation->count; i++) json_decref(more[i]);
    free(more);
    free(messages);
    conversation->syntax = tells_tools ? CHAT_HERMES : chat_template_syntax(chat);
    return status == STATUS_OK || api_error_from(error, &reason);
}

/* ---- tools as the template shows them ---- */

/* Messages as the template takes them: each result is one, calls stand beside the text. */
struct shown {
    struct chat_message *messages; /* [count] */
    json_t **more;                 /* [count] owned */
    size_t count;
    const json_t *calls; /* the last ones, whose results follow; NULL: none */
    size_t answered;     /* of them */
    size_t call_count;   /* all so far: a call's id is its number */
};

static void make_id(char id[16], size_t number) { snprintf(id, 16, "call%05zu", number % 100000); }

static void show_calls(struct shown *shown, const struct conversation_message *message) {
    json_t *calls = json_array();
    char id[16];
    shown->calls = message->calls;
    shown->answered = 0;
    for (size_t i = 0; i < json_array_size(message->calls); i++) {
        make_id(id, shown->call_count++);
        json_array_append_new(calls, json_pack("{s:s, s:s, s:O}", "id", id, "type", "function", "function",
                                               json_array_get(message->calls, i)));
    }
    shown->messages[shown->count] = message_of(CHAT_ASSISTANT, message->content.bytes, message->plain_length);
    shown->more[shown->count++] = more_of(message, calls);
}

static void show_results(struct shown *shown, const struct conversation_message *message) {
    const size_t first = shown->call_count - json_array_size(shown->calls);
    for (size_t i = 0; i < message->result_count; i++) {
        const struct conversation_span *span = &message->results[i];
        const json_t *call = json_array_get(shown->calls, shown->answered);
        const json_t *name = json_object_get(call, "name");
        char id[16];
        make_id(id, first + shown->answered++);
        shown->messages[shown->count] =
            message_of(CHAT_TOOL, message->content.bytes + span->begin, span->end - span->begin);
        shown->more[shown->count++] =
            json_pack("{s:s, s:s}", "tool_call_id", id, "name", name != NULL ? json_string_value(name) : "tool");
    }
    /* What the user says behind the results. */
    static const char end[] = "\n</tool_response>";
    const size_t behind = message->results[message->result_count - 1].end + sizeof end - 1;
    if (message->content.length > behind)
        shown->messages[shown->count++] =
            message_of(CHAT_USER, message->content.bytes + behind, message->content.length - behind);
}

static enum status encode_shown(const struct conversation *conversation, const struct chat_template *chat,
                                const struct tokenizer *tokenizer, struct chat_ending *ending, struct token_list *list,
                                struct error *reason) {
    struct shown shown = {.count = 0};
    size_t count = conversation->count;
    for (size_t i = 0; i < conversation->count; i++) count += conversation->messages[i].result_count;
    shown.messages = calloc(count, sizeof *shown.messages);
    shown.more = calloc(count, sizeof *shown.more);
    enum status status = shown.messages != NULL && shown.more != NULL
                             ? STATUS_OK
                             : error_set(reason, STATUS_MEMORY, "no memory for the conversation");
    for (size_t i = 0; i < conversation->count && status == STATUS_OK; i++) {
        const struct conversation_message *message = &conversation->messages[i];
        if (message->calls != NULL)
            show_calls(&shown, message);
        else if (message->result_count > 0)
            show_results(&shown, message);
        else {
            shown.messages[shown.count] = message_of(message->role, message->content.bytes, message->content.length);
            shown.more[shown.count++] = more_of(message, NULL);
        }
    }
    if (status == STATUS_OK)
        status = lay_out(conversation, chat, tokenizer, shown.messages, (const json_t *const *)shown.more, shown.count,
                         conversation->tools, ending, list, reason);
    for (size_t i = 0; i < shown.count; i++) json_decref(shown.more[i]);
    free(shown.more);
    free(shown.messages);
    return status;
}

bool conversation_encode(struct conversation *conversation, const struct chat_template *chat,
                         const struct tokenizer *tokenizer, struct token_list *list, struct api_error *error) {
    if (chat == NULL)
        return api_error_set(error, 400, NULL,
                             "the model has no chat template: loam serve --chat-template NAME gives it one");
    if (conversation->count == 0) return field_refuse(error, "messages", "found none");
    conversation->drops_thoughts = chat_template_drops_thoughts(chat);
    if (chat_template_wants_system_first(chat) && !gather_system(conversation, error)) return false;
    bool has_calls = conversation->tools != NULL;
    for (size_t i = 0; i < conversation->count; i++)
        has_calls = has_calls || conversation->messages[i].calls != NULL || conversation->messages[i].result_count > 0;
    struct error reason;
    if (has_calls && chat_template_shows_calls(chat)) {
        const enum status status = encode_shown(conversation, chat, tokenizer, &conversation->ending, list, &reason);
        conversation->syntax = chat_template_syntax(chat);
        if (status == STATUS_OK) return true;
        /* A history that the template has no form for (a result whose call was left out ...) is told as text. */
        if (status != STATUS_USAGE && status != STATUS_UNSUPPORTED) return api_error_from(error, &reason);
    }
    return encode_as_text(conversation, chat, tokenizer, list, has_calls, error);
}
