/* Any conversation in any family: the first byte picks the family (or has the rest detected as a Jinja template), then
 * each message is a byte for its role and the bytes up to a zero.  What is written in messages becomes no control
 * token: those of the result are those of the same conversation about nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "token/chat_template.h"
#include "token/tokenizer_internal.h"
#include "token/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MESSAGES_MAX = 8, TOKENS_MAX = 320, ANSWER = 0x80, DETECT = 0x7f };

/* Of all families: a vocabulary that lacks none. */
static const char *const marks[] = {
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_sep|>",
    "[INST]",
    "[/INST]",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<bos>",
    "<eos>",
    "<|end_header_id|>",
    "<|end|>",
    "<|user|>",
    "<|system|>",
    "<|assistant|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|start|>",
    "<|message|>",
    "<|channel|>",
    "<|return|>",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<｜begin▁of▁sentence｜>",
};

static struct tokenizer *build(void) {
    static struct gguf_string tokens[TOKENS_MAX];
    static uint8_t types[TOKENS_MAX], bytes[256][4];
    static float scores[TOKENS_MAX];
    size_t count = 0;
    for (unsigned b = 0; b < 256; b++) {
        const size_t length = byte_level_encode((uint8_t)b, bytes[b]);
        tokens[count] = (struct gguf_string){(const char *)bytes[b], length};
        types[count++] = TOKEN_NORMAL;
    }
    const token_id first = (token_id)count;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        tokens[count] = (struct gguf_string){marks[i], strlen(marks[i])};
        types[count++] = TOKEN_CONTROL;
    }
    const struct tokenizer_source source = {.model = TOKENIZER_BPE,
                                            .tokens = tokens,
                                            .token_count = count,
                                            .types = types,
                                            .scores = scores,
                                            .pre = pre_tokenizer_find("llama-bpe", 9),
                                            .rules.bos = first,
                                            .rules.eos = first + 1,
                                            .rules.unknown = TOKEN_NONE};
    struct tokenizer *tokenizer = NULL;
    struct error error;
    const enum status status = tokenizer_build(&tokenizer, &source, &error);
    ASSERT(status == STATUS_OK);
    return tokenizer;
}

static const struct chat_template *pick(uint8_t byte, const uint8_t *text, size_t size) {
    const struct chat_template *chat = NULL;
    struct error error = {0};
    size_t count = 0;
    while (chat_template_at(count) != NULL) count++;
    if (byte != DETECT) return chat_template_at(byte % count);
    if (chat_template_detect((const char *)text, size, &chat, &error) == STATUS_OK) {
        ASSERT(chat_template_find(chat_template_name(chat)) == chat);
        return chat;
    }
    ASSERT(chat == NULL && error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    return NULL;
}

static size_t split(const uint8_t *data, size_t size, struct chat_message messages[MESSAGES_MAX]) {
    size_t count = 0;
    while (size > 0 && count < MESSAGES_MAX) {
        const enum chat_role role = (enum chat_role)(data[0] % 3);
        data++, size--;
        const uint8_t *end = size > 0 ? memchr(data, 0, size) : NULL;
        const size_t length = end != NULL ? (size_t)(end - data) : size;
        messages[count++] = (struct chat_message){role, (const char *)data, length};
        data += length + (end != NULL), size -= length + (end != NULL);
    }
    return count;
}

/* Those that are control tokens, in order, to the list's front. */
static void keep_controls(const struct tokenizer *tokenizer, struct token_list *list) {
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        if (tokenizer_is_control(tokenizer, list->ids[i])) list->ids[kept++] = list->ids[i];
    list->count = kept;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizer;
    struct chat_message messages[MESSAGES_MAX], nothing[MESSAGES_MAX];
    struct token_list list = {0}, plain = {0};
    struct error error = {0}, same = {0};
    if (tokenizer == NULL) tokenizer = build();
    if (size == 0) return 0;
    const struct chat_template *chat = pick(data[0] & DETECT, data + 1, size - 1);
    if (chat == NULL) return 0;
    const bool answer = data[0] & ANSWER;
    const size_t count = split(data + 1, size - 1, messages);
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += messages[i].length;
        nothing[i] = (struct chat_message){messages[i].role, "x", 1};
    }
    const enum status status = chat_template_apply(chat, tokenizer, messages, count, answer, &list, &error);
    const enum status expected = chat_template_apply(chat, tokenizer, nothing, count, answer, &plain, &same);
    ASSERT(status == expected);
    if (status == STATUS_OK) {
        ASSERT(list.count <= bytes + 2048);
        keep_controls(tokenizer, &list);
        keep_controls(tokenizer, &plain);
        ASSERT(list.count == plain.count);
        ASSERT(list.count == 0 || memcmp(list.ids, plain.ids, list.count * sizeof *list.ids) == 0);
    } else {
        ASSERT(status == STATUS_UNSUPPORTED || status == STATUS_USAGE);
        ASSERT(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    }
    token_list_deinit(&list);
    token_list_deinit(&plain);
    return 0;
}
