/* What the mask of a structured answer costs for each token, with a large vocabulary.
 *
 *   bench_mask [TOKENS [ANSWERS]]
 *
 * The vocabulary is that of the tests (tests/grammar/large_vocabulary.h).  Answers are random walks over the allowed
 * tokens.  One line of CSV for each schema; times are of the processor, work is that of json_matcher_work. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "grammar/json_matcher.h"
#include "grammar/large_vocabulary.h"
#include "grammar/schemas.h"

enum { ANSWER_TOKENS_MAX = 200 };

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
                   uint64_t *mask_ns, uint64_t *most_work) {
    struct error error;
    size_t count = 0;
    json_matcher_reset(matcher);
    while (count < ANSWER_TOKENS_MAX && !json_matcher_is_complete(matcher)) {
        memset(logits, 0, vocabulary_size * sizeof *logits);
        const uint64_t begin_ns = cpu_ns();
        must(json_matcher_mask(matcher, logits, vocabulary_size, &error), &error);
        mask_ns[count++] = cpu_ns() - begin_ns;
        if (json_matcher_work(matcher) > *most_work) *most_work = json_matcher_work(matcher);
        size_t picked = vocabulary_size;
        uint64_t seen = 0;
        for (size_t i = 0; i + 1 < vocabulary_size; i++)
            if (logits[i] == 0 && random_below(random, ++seen) == 0) picked = i;
        if (picked == vocabulary_size) break; /* only the end is left */
        must(json_matcher_accept(matcher, (token_id)picked, &error), &error);
    }
    return count;
}

static void measure(const char *name, const char *text, const struct token_trie *trie, size_t vocabulary_size,
                    size_t answers) {
    struct json_schema *schema;
    struct json_matcher *matcher;
    struct error error;
    struct random random;
    float *logits = malloc(vocabulary_size * sizeof *logits);
    uint64_t *mask_ns = malloc(answers * ANSWER_TOKENS_MAX * sizeof *mask_ns);
    size_t count = 0;
    uint64_t most_work = 0;
    if (logits == NULL || mask_ns == NULL) exit(1);
    random_init(&random, 2);
    must(json_schema_compile(&schema, text, strlen(text), name, &error), &error);
    must(json_matcher_create(&matcher, schema, trie, &error), &error);
    for (size_t i = 0; i < answers; i++)
        count += walk(matcher, &random, logits, vocabulary_size, mask_ns + count, &most_work);
    qsort(mask_ns, count, sizeof *mask_ns, by_size);
    printf("%s,%zu,%zu,%.3f,%.3f,%.3f,%llu\n", name, vocabulary_size, count, (double)mask_ns[count / 2] / 1e6,
           (double)mask_ns[count * 99 / 100] / 1e6, (double)mask_ns[count - 1] / 1e6, (unsigned long long)most_work);
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
    struct token_trie *trie = large_vocabulary_trie(tokens);
    printf("schema,vocabulary,masks,median_ms,p99_ms,max_ms,most_work\n");
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        measure(schemas[i].name, schemas[i].text, trie, tokens, answers);
    static char slowest[16384];
    test_write_deep(slowest, 64, 10);
    measure("64 lists that stay undecided", slowest, trie, tokens, answers);
    token_trie_destroy(trie);
    return 0;
}
