/* Any bytes as text: the first byte picks the tokenizer and the options, the rest is encoded and decoded and must be
 * the same; the same bytes as chat template and as a message of a conversation. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "token/chat_template.h"
#include "token/tokenizer_internal.h"
#include "token/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PRE_COUNT = 13, TOKENS_MAX = 600 };

static const char *const pres[PRE_COUNT] = {"llama-bpe", "qwen2",        "qwen35",         "gpt-2",
                                            "starcoder", "deepseek-llm", "deepseek-coder", "deepseek-v3",
                                            "tekken",    "gpt-4o",       "falcon",         "default",
                                            "gemma4"};

static const char *const controls[] = {"<s>", "</s>",   "<|im_start|>", "<|im_end|>",
                                       "<|",  "[INST]", "[/INST]"};
static const char *const merges[] = {"a a", "aa a", "aa aa", "Ġ a", "Ġ Ġ", "Ġa a",
                                     "1 2", "12 3", "Ã ©",   "Ċ Ċ", "' s"};
/* Of characters (gemma4), and these. */
static const char *const character_merges[] = {"a a", "aa a", "▁ ▁", "▁ a", "▁ aa", "▁a a", "1 2", "\n \n"};
static const char *const characters[] = {"▁", "a", "é", "1", "2", "\n"};

struct texts {
    struct gguf_string tokens[TOKENS_MAX];
    uint8_t types[TOKENS_MAX];
    float scores[TOKENS_MAX];
    char memory[8 * TOKENS_MAX];
    size_t count, used;
};

static void add(struct texts *v, const char *text, size_t length, uint8_t type) {
    ASSERT(v->count < TOKENS_MAX && v->used + length <= sizeof v->memory);
    memcpy(v->memory + v->used, text, length);
    v->tokens[v->count] = (struct gguf_string){v->memory + v->used, length};
    v->types[v->count] = type;
    v->scores[v->count] = -(float)(v->count % 40); /* equal scores too */
    v->used += length;
    v->count++;
}

/* pre NULL: SentencePiece. */
static struct tokenizer *build(const char *pre) {
    const bool spm = pre == NULL, by_characters = !spm && strcmp(pre, "gemma4") == 0;
    static struct texts v;
    v.count = v.used = 0;
    const char *const *pairs = by_characters ? character_merges : merges;
    const size_t pair_count = by_characters ? sizeof character_merges / sizeof *pairs : sizeof merges / sizeof *pairs;
    struct gguf_string rules[sizeof merges / sizeof merges[0]];
    size_t rule_count = 0;
    for (unsigned b = 0; b < 256; b++) {
        static const char hex[] = "0123456789ABCDEF";
        char byte[6] = {'<', '0', 'x', hex[b / 16], hex[b % 16], '>'};
        uint8_t text[4];
        size_t length = byte_level_encode((uint8_t)b, text);
        if (spm || by_characters)
            add(&v, byte, 6, TOKEN_BYTE);
        else
            add(&v, (const char *)text, length, TOKEN_NORMAL);
    }
    for (size_t i = 0; by_characters && i < sizeof characters / sizeof *characters; i++)
        add(&v, characters[i], strlen(characters[i]), TOKEN_NORMAL);
    if (spm) {
        static const char *const pieces[] = {"▁", "▁▁", "a", "▁a", "aa", "▁aa", "aaa", "é", "1", "12"};
        for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
            add(&v, pieces[i], strlen(pieces[i]), TOKEN_NORMAL);
    }
    for (size_t i = 0; !spm && i < pair_count; i++) {
        char joined[16];
        const char *space = strchr(pairs[i], ' ');
        size_t left = (size_t)(space - pairs[i]), right = strlen(space + 1);
        memcpy(joined, pairs[i], left);
        memcpy(joined + left, space + 1, right);
        add(&v, joined, left + right, TOKEN_NORMAL);
        rules[rule_count++] = (struct gguf_string){pairs[i], strlen(pairs[i])};
    }
    token_id bos = (token_id)v.count;
    for (size_t i = 0; i < sizeof controls / sizeof controls[0]; i++)
        add(&v, controls[i], strlen(controls[i]), TOKEN_CONTROL);
    add(&v, "<tool>", 6, TOKEN_USER_DEFINED);
    struct tokenizer_source source = {.model = spm             ? TOKENIZER_SPM
                                               : by_characters ? TOKENIZER_CHARACTER_BPE
                                                               : TOKENIZER_BPE,
                                      .tokens = v.tokens,
                                      .token_count = v.count,
                                      .types = v.types,
                                      .scores = v.scores,
                                      .merges = rules,
                                      .merge_count = rule_count,
                                      .pre = spm ? NULL : pre_tokenizer_find(pre, strlen(pre)),
                                      .rules.bos = bos,
                                      .rules.eos = bos + 1,
                                      .rules.unknown = TOKEN_NONE,
                                      .rules.adds_space_prefix = spm};
    struct tokenizer *t = NULL;
    struct error error;
    enum status status = tokenizer_build(&t, &source, &error);
    ASSERT(status == STATUS_OK);
    return t;
}

/* SentencePiece's mark for a space is the one text that is decoded to another. */
static bool has_mark(const uint8_t *text, size_t size) {
    return memmem(text, size, "\xE2\x96\x81", 3) != NULL;
}

static void round_trip(const struct tokenizer *t, const uint8_t *text, size_t size, bool special) {
    struct token_list list = {0};
    struct error error;
    struct tokenize_options options = {.parse_special = special};
    enum status status = tokenizer_encode(t, (const char *)text, size, options, &list, &error);
    ASSERT(status == STATUS_OK && list.count <= size + 64);
    char *decoded = NULL;
    size_t length = 0;
    status = tokenizer_decode(t, list.ids, list.count, special, &decoded, &length, &error);
    ASSERT(status == STATUS_OK);
    if (t->model == TOKENIZER_BPE || !has_mark(text, size))
        ASSERT(length == size && memcmp(decoded, text, size) == 0);
    for (size_t i = 0; !special && i < list.count; i++) ASSERT(!tokenizer_is_control(t, list.ids[i]));
    struct utf8_stream stream = {.replace = true};
    char *shown = malloc(utf8_stream_bound(length));
    size_t used = utf8_stream_push(&stream, decoded, length, shown);
    used += utf8_stream_finish(&stream, shown + used);
    ASSERT(used <= utf8_stream_bound(length));
    for (size_t at = 0, step; at < used; at += step) {
        step = utf8_sequence_length((const uint8_t *)shown, used, at);
        ASSERT(step > 0);
    }
    free(shown);
    free(decoded);
    token_list_deinit(&list);
}

static void converse(const struct tokenizer *t, const uint8_t *text, size_t size) {
    const struct chat_template *chat;
    struct error error = {0};
    if (chat_template_detect((const char *)text, size, &chat, &error) != STATUS_OK)
        chat = chat_template_find("chatml");
    struct chat_message message = {CHAT_USER, (const char *)text, size};
    struct token_list list = {0};
    enum status status = chat_template_apply(chat, t, &message, 1, true, &list, &error);
    ASSERT(status == STATUS_OK || status == STATUS_UNSUPPORTED);
    token_list_deinit(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizers[PRE_COUNT + 1];
    if (size == 0) return 0;
    size_t which = data[0] % (PRE_COUNT + 1);
    if (!tokenizers[which])
        tokenizers[which] = build(which < PRE_COUNT ? pres[which] : NULL);
    round_trip(tokenizers[which], data + 1, size - 1, data[0] & 0x80);
    converse(tokenizers[which], data + 1, size - 1);
    return 0;
}
