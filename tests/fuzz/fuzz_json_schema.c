/* Any bytes as a schema, and what follows a zero byte as choices: an answer of that schema is walked by bytes that the
 * mask allows.  It never gets stuck, and what ends is JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "grammar/json_matcher.h"
#include "token/tokenizer_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS_MAX = 300, VOCABULARY = 257, END = 256 };

/* Token b is byte b. */
static struct token_trie *byte_trie(void) {
    static char memory[256][4];
    struct gguf_string tokens[VOCABULARY];
    uint8_t types[VOCABULARY];
    struct tokenizer *tokenizer;
    struct token_trie *trie;
    struct error error;
    for (unsigned b = 0; b < 256; b++) {
        tokens[b] = (struct gguf_string){memory[b], byte_level_encode((uint8_t)b, (uint8_t *)memory[b])};
        types[b] = TOKEN_NORMAL;
    }
    tokens[END] = (struct gguf_string){"<end>", 5};
    types[END] = TOKEN_CONTROL;
    const struct tokenizer_source source = {.model = TOKENIZER_BPE,
                                            .tokens = tokens,
                                            .token_count = VOCABULARY,
                                            .types = types,
                                            .pre = pre_tokenizer_find("gpt-2", 5),
                                            .bos = END,
                                            .eos = END,
                                            .unknown = TOKEN_NONE};
    ASSERT(tokenizer_build(&tokenizer, &source, &error) == STATUS_OK);
    ASSERT(token_trie_create(&trie, tokenizer, &error) == STATUS_OK);
    tokenizer_destroy(tokenizer);
    return trie;
}

/* The choice-th of the allowed bytes; END only where there is no other. */
static token_id choose(const float *logits, uint8_t choice) {
    token_id allowed[VOCABULARY];
    size_t count = 0;
    for (token_id i = 0; i < VOCABULARY; i++)
        if (logits[i] == 0 && i != END) allowed[count++] = i;
    return count > 0 ? allowed[choice % count] : END;
}

static void walk(const struct json_schema *schema, const struct token_trie *trie, const uint8_t *choices,
                 size_t count) {
    struct json_matcher *matcher;
    struct error error;
    char text[STEPS_MAX];
    ASSERT(json_matcher_create(&matcher, schema, trie, &error) == STATUS_OK);
    for (size_t i = 0; i < STEPS_MAX && i < count; i++) {
        float logits[VOCABULARY] = {0};
        ASSERT(json_matcher_mask(matcher, logits, VOCABULARY, &error) == STATUS_OK);
        ASSERT((logits[END] == 0) == json_matcher_may_end(matcher));
        if (json_matcher_may_end(matcher)) {
            json_t *value = json_loadb(text, i, JSON_DECODE_ANY, NULL);
            ASSERT(value != NULL);
            json_decref(value);
        }
        const token_id id = choose(logits, choices[i]);
        ASSERT((id == END) == json_matcher_is_complete(matcher));
        ASSERT(json_matcher_accept(matcher, id, &error) == STATUS_OK);
        if (id == END) break;
        text[i] = (char)id;
    }
    json_matcher_destroy(matcher);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct token_trie *trie;
    if (trie == NULL) trie = byte_trie();
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t length = zero != NULL ? (size_t)(zero - data) : size;
    struct json_schema *schema;
    struct error error;
    if (json_schema_compile(&schema, (const char *)data, length, "schema", &error) != STATUS_OK) return 0;
    static const uint8_t otherwise[STEPS_MAX];
    if (zero != NULL)
        walk(schema, trie, zero + 1, size - length - 1);
    else
        walk(schema, trie, otherwise, STEPS_MAX);
    json_schema_destroy(schema);
    return 0;
}
