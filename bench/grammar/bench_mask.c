/* What the mask of a structured answer costs for each token, with a large vocabulary.
 *
 *   bench_mask [TOKENS [ANSWERS]]
 *
 * The vocabulary is made up: the bytes, then random texts of 2 to 12 bytes, most of them a blank and letters, one in
 * eight with JSON's punctuation.  Answers are random walks over the allowed tokens.  One line of CSV for each schema;
 * times are of the processor. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "grammar/json_matcher.h"
#include "token/tokenizer_internal.h"

enum { ANSWER_TOKENS_MAX = 200, TEXT_MAX = 32 };

static const struct {
    const char *name, *text;
} schemas[] = {
    {"string", "{\"type\":\"string\"}"},
    {"any object", "{\"type\":\"object\"}"},
    {"record",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"
     "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"name\",\"age\",\"tags\"]"
     ","
     "\"additionalProperties\":false}"},
    {"one of three records",
     "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"a\"},\"text\":{\"type\":"
     "\"string\"}},"
     "\"required\":[\"kind\",\"text\"]},{\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\"},"
     "\"text\":{"
     "\"type\":\"string\"}}},{\"type\":\"object\",\"additionalProperties\":{\"anyOf\":[{\"type\":\"string\"},"
     "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}]}}]}"},
    {"tree",
     "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"value\":{\"anyOf\":[{"
     "\"type\":\"integer\"},{\"type\":\"string\"}]},\"children\":{\"type\":\"array\",\"items\":{\"$ref\":"
     "\"#/$defs/n\"}}},\"required\":[\"value\",\"children\"],\"additionalProperties\":false}}}"},
};

static void must(enum status status, const struct error *error) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "bench_mask: %s\n", error->message);
    exit(1);
}

static size_t make_text(struct random *random, char text[TEXT_MAX]) {
    static const char letters[] = "etaoinshrdlucmfwypvbgkqjxzETAOINSHRDLU0123456789";
    static const char marks[] = "\"\",::{}[],. -_\\";
    const bool has_marks = random_below(random, 8) == 0;
    const size_t length = 2 + random_below(random, 11);
    for (size_t i = 0; i < length; i++)
        text[i] = has_marks && random_below(random, 2) == 0
                      ? marks[random_below(random, sizeof marks - 1)]
                      : letters[random_below(random, sizeof letters - 1)];
    if (random_below(random, 2) == 0) text[0] = ' ';
    return length;
}

static struct tokenizer *make_vocabulary(size_t count) {
    struct gguf_string *tokens = calloc(count, sizeof *tokens);
    uint8_t *types = calloc(count, 1), (*texts)[TEXT_MAX] = calloc(count, TEXT_MAX);
    struct random random;
    if (tokens == NULL || types == NULL || texts == NULL) exit(1);
    random_init(&random, 1);
    for (size_t i = 0; i < count; i++) {
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
                                            .bos = TOKEN_NONE,
                                            .eos = (token_id)(count - 1),
                                            .unknown = TOKEN_NONE};
    struct tokenizer *tokenizer = NULL;
    struct error error;
    must(tokenizer_build(&tokenizer, &source, &error), &error);
    free(tokens);
    free(types);
    free(texts);
    return tokenizer;
}

/* Of this thread: what others on the machine do does not count. */
static uint64_t cpu_ns(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) exit(1);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Of an answer's tokens; returns how many. */
static size_t walk(struct json_matcher *matcher, struct random *random, float *logits, size_t vocabulary_size,
                   uint64_t *mask_ns) {
    struct error error;
    size_t count = 0;
    json_matcher_reset(matcher);
    while (count < ANSWER_TOKENS_MAX && !json_matcher_is_complete(matcher)) {
        memset(logits, 0, vocabulary_size * sizeof *logits);
        const uint64_t begin_ns = cpu_ns();
        must(json_matcher_mask(matcher, logits, vocabulary_size, &error), &error);
        mask_ns[count++] = cpu_ns() - begin_ns;
        size_t picked = vocabulary_size;
        uint64_t seen = 0;
        for (size_t i = 0; i + 1 < vocabulary_size; i++)
            if (logits[i] == 0 && random_below(random, ++seen) == 0) picked = i;
        if (picked == vocabulary_size) break; /* only the end is left */
        must(json_matcher_accept(matcher, (token_id)picked, &error), &error);
    }
    return count;
}

static void measure(size_t schema_index, const struct token_trie *trie, size_t vocabulary_size,
                    size_t answers) {
    struct json_schema *schema;
    struct json_matcher *matcher;
    struct error error;
    struct random random;
    const char *text = schemas[schema_index].text;
    float *logits = malloc(vocabulary_size * sizeof *logits);
    uint64_t *mask_ns = malloc(answers * ANSWER_TOKENS_MAX * sizeof *mask_ns);
    size_t count = 0;
    if (logits == NULL || mask_ns == NULL) exit(1);
    random_init(&random, 2);
    must(json_schema_compile(&schema, text, strlen(text), schemas[schema_index].name, &error), &error);
    must(json_matcher_create(&matcher, schema, trie, &error), &error);
    for (size_t i = 0; i < answers; i++)
        count += walk(matcher, &random, logits, vocabulary_size, mask_ns + count);
    qsort(mask_ns, count, sizeof *mask_ns, by_size);
    printf("%s,%zu,%zu,%.3f,%.3f,%.3f\n", schemas[schema_index].name, vocabulary_size, count,
           (double)mask_ns[count / 2] / 1e6, (double)mask_ns[count * 99 / 100] / 1e6,
           (double)mask_ns[count - 1] / 1e6);
    json_matcher_destroy(matcher);
    json_schema_destroy(schema);
    free(mask_ns);
    free(logits);
}

int main(int argc, char **argv) {
    const size_t tokens = argc > 1 ? strtoull(argv[1], NULL, 10) : 128256;
    const size_t answers = argc > 2 ? strtoull(argv[2], NULL, 10) : 50;
    if (tokens < 512 || tokens > 1 << 20 || answers == 0) {
        fprintf(stderr, "bench_mask: expected 512 to 1048576 tokens and at least one answer\n");
        return 2;
    }
    struct tokenizer *tokenizer = make_vocabulary(tokens);
    struct token_trie *trie;
    struct error error;
    const uint64_t begin_ns = cpu_ns();
    must(token_trie_create(&trie, tokenizer, &error), &error);
    fprintf(stderr, "trie: %.0f ms\n", (double)(cpu_ns() - begin_ns) / 1e6);
    printf("schema,vocabulary,masks,median_ms,p99_ms,max_ms\n");
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) measure(i, trie, tokens, answers);
    token_trie_destroy(trie);
    tokenizer_destroy(tokenizer);
    return 0;
}
