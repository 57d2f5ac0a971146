#include "generate/prompt.h"

#include <stdlib.h>
#include <string.h>

/* Newlines that part a text that ends so from the next one. */
static size_t newlines_needed(const char *text, size_t length, enum prompt_gap gap) {
    size_t wanted = gap == PROMPT_LINE ? 1 : 2, there = 0;
    if (length == 0) return 0;
    while (there < wanted && there < length && text[length - 1 - there] == '\n') there++;
    return wanted - there;
}

static size_t append(char *text, size_t length, const struct prompt_part *part, enum prompt_gap gap) {
    for (size_t n = newlines_needed(text, length, gap); n > 0; n--) text[length++] = '\n';
    if (part->length > 0) memcpy(text + length, part->bytes, part->length);
    return length + part->length;
}

enum status prompt_join(const struct prompt *prompt, enum prompt_gap gap, char **text, size_t *length,
                        struct error *error) {
    size_t bytes = 1; /* the terminator */
    for (size_t i = 0; i < prompt->document_count; i++) bytes += prompt->documents[i].length + 2;
    bytes += prompt->question.length;
    char *joined = malloc(bytes);
    if (joined == NULL) return error_set(error, STATUS_MEMORY, "no memory for the prompt");
    size_t used = 0;
    for (size_t i = 0; i < prompt->document_count; i++) used = append(joined, used, &prompt->documents[i], gap);
    if (prompt->question.bytes != NULL) used = append(joined, used, &prompt->question, gap);
    joined[used] = '\0';
    *text = joined;
    *length = used;
    return STATUS_OK;
}

enum status prompt_encode(const struct prompt *prompt, const struct tokenizer *tokenizer, struct tokenize_options how,
                          struct token_list *list, struct error *error) {
    char *text;
    size_t length;
    if (prompt->system.bytes != NULL)
        return error_set(error, STATUS_USAGE, "raw text has no place for a system prompt");
    TRY(prompt_join(prompt, PROMPT_LINE, &text, &length, error));
    enum status status = tokenizer_encode(tokenizer, text, length, how, list, error);
    free(text);
    return status;
}

enum status prompt_encode_chat(const struct prompt *prompt, const struct chat_template *chat,
                               const struct tokenizer *tokenizer, struct token_list *list, struct error *error) {
    char *text;
    size_t length, count = 0;
    TRY(prompt_join(prompt, PROMPT_PARAGRAPH, &text, &length, error));
    struct chat_message messages[2];
    if (prompt->system.bytes != NULL)
        messages[count++] = (struct chat_message){CHAT_SYSTEM, prompt->system.bytes, prompt->system.length};
    messages[count++] = (struct chat_message){CHAT_USER, text, length};
    const struct chat_conversation conversation = {
        .messages = messages, .count = count, .add_generation_prompt = true, .thinking = prompt->thinking};
    enum status status = chat_template_lay_out(chat, tokenizer, &conversation, list, NULL, error);
    free(text);
    return status;
}
