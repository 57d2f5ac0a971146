#include "grammar/large_vocabulary.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/random.h"
#include "token/tokenizer_internal.h"

enum { TEXT_MAX = 20 };

static size_t make_text(struct random *random, char text[TEXT_MAX]) {
    static const char letters[] = "etaoinshrdlucmfwypvbgkqjxzETAOINSHRDLU_-.";
    static const char marks[] = "\"\"\",,::{}[] \n\t\\-";
    const uint64_t kind = random_below(random, 8);
    const size_t length = kind == 2 ? 1 + random_below(random, 3) : 2 + random_below(random, 9);
    for (size_t i = 0; i < length; i++) {
        text[i] = letters[random_below(random, sizeof letters - 1)];
        if (kind == 0 && random_below(random, 2) == 0) text[i] = marks[random_below(random, sizeof marks - 1)];
        if (kind == 1 && random_below(random, 8) > 0) text[i] = marks[random_below(random, sizeof marks - 1)];
        if (kind == 1 && i > 0 && random_below(random, 2) == 0) text[i] = text[i - 1];
        if (kind == 2) text[i] = (char)('0' + random_below(random, 10));
    }
    if (kind >= 5) text[0] = ' ';
    return length;
}

struct token_trie *large_vocabulary_trie(size_t count) {
    struct gguf_string *tokens = calloc(count, sizeof *tokens);
    uint8_t *types = calloc(count, 1), (*texts)[4 * TEXT_MAX] = calloc(count, 4 * TEXT_MAX);
    struct random random;
    struct tokenizer *tokenizer = NULL;
    struct token_trie *trie = NULL;
    struct error error;
    ASSERT(tokens != NULL && types != NULL && texts != NULL && count > 257);
    random_init(&random, 1);
    for (size_t i = 0; i + 1 < count; i++) {
        char text[TEXT_MAX] = {(char)i};
        const size_t length = i < 256 ? 1 : make_text(&random, text);
        size_t written = 0;
        for (size_t b = 0; b < length; b++)
            written += byte_level_encode((uint8_t)text[b], texts[i] + written);
        tokens[i] = (struct gguf_string){(const char *)texts[i], written};
        types[i] = TOKEN_NORMAL;
    }
    tokens[count - 1] = (struct gguf_string){"<|end|>", 7};
    types[count - 1] = TOKEN_CONTROL;
    const struct tokenizer_source source = {.model = TOKENIZER_BPE,
                                            .tokens = tokens,
                                            .types = types,
                                            .token_count = count,
                                            .pre = pre_tokenizer_find("gpt-2", 5),
                                            .rules.bos = TOKEN_NONE,
                                            .rules.eos = (token_id)(count - 1),
                                            .rules.unknown = TOKEN_NONE};
    ASSERT(tokenizer_build(&tokenizer, &source, &error) == STATUS_OK);
    ASSERT(token_trie_create(&trie, tokenizer, &error) == STATUS_OK);
    tokenizer_destroy(tokenizer);
    free(tokens);
    free(types);
    free(texts);
    return trie;
}
