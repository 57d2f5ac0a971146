/* The mask: over random answers it allows exactly the tokens that can be accepted; every answer that ends is valid
 * JSON; none gets stuck. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/random.h"
#include "grammar/json_matcher.h"
#include "grammar/large_vocabulary.h"
#include "grammar/schemas.h"
#include "seed.h"
#include "token/vocabularies.h"

enum { TOKENS_MAX = 400 };

static struct tokenizer *tokenizer;
static struct token_trie *trie;

static int set_up(void **state) {
    (void)state;
    struct error error;
    tokenizer = open_vocabulary(LOAM_SOURCE_DIR "/models/loam-nano.gguf");
    assert_ok(token_trie_create(&trie, tokenizer, &error), error);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    token_trie_destroy(trie);
    tokenizer_destroy(tokenizer);
    return 0;
}

struct sampled {
    token_id ids[TOKENS_MAX];
    size_t count;
    char text[32 * TOKENS_MAX];
    size_t length;
    bool ended;
};

static struct json_matcher *matcher_of(const char *text, struct json_schema **schema) {
    struct json_matcher *matcher;
    struct error error;
    assert_ok(json_schema_compile(schema, text, strlen(text), "schema", &error), error);
    assert_ok(json_matcher_create(&matcher, *schema, trie, &error), error);
    return matcher;
}

static bool closes(token_id id) {
    char bytes[64];
    const size_t length = tokenizer_piece(tokenizer, id, false, bytes, sizeof bytes);
    if (tokenizer_is_end(tokenizer, id)) return true;
    for (size_t i = 0; i < length && i < sizeof bytes; i++)
        if (bytes[i] == '"' || bytes[i] == ']' || bytes[i] == '}') return true;
    return false;
}

/* Of the tokens that may come; in a hurry one that closes something, or no answer would end. */
static token_id sample(struct random *random, const float *logits, size_t count, bool hurries) {
    token_id chosen = TOKEN_NONE;
    uint64_t seen = 0;
    for (int any = hurries ? 0 : 1; any <= 1 && chosen == TOKEN_NONE; any++)
        for (size_t i = 0; i < count; i++)
            if (logits[i] == 0 && (any == 1 || closes((token_id)i)) && random_below(random, ++seen) == 0)
                chosen = (token_id)i;
    return chosen;
}

static void add(struct sampled *s, token_id id) {
    s->ids[s->count++] = id;
    s->length += tokenizer_piece(tokenizer, id, false, s->text + s->length, sizeof s->text - s->length);
    assert_true(s->length < sizeof s->text);
}

static void sample_answer(struct random *random, struct json_matcher *matcher, struct sampled *s) {
    const size_t size = tokenizer_vocabulary_size(tokenizer);
    float *logits = calloc(size, sizeof *logits);
    struct error error;
    assert_non_null(logits);
    s->count = s->length = 0;
    s->ended = false;
    while (s->count < TOKENS_MAX && !s->ended) {
        memset(logits, 0, size * sizeof *logits);
        assert_ok(json_matcher_mask(matcher, logits, size, &error), error);
        const token_id id = sample(random, logits, size, s->count > 12 && random_below(random, 2) == 0);
        assert_true(id >= 0);
        assert_ok(json_matcher_accept(matcher, id, &error), error);
        s->ended = tokenizer_is_end(tokenizer, id) || json_matcher_is_complete(matcher);
        if (!tokenizer_is_end(tokenizer, id)) add(s, id);
    }
    free(logits);
}

static void answers_are_json(void **state) {
    (void)state;
    struct random random;
    static struct sampled s;
    random_init(&random, test_seed(1));
    for (size_t i = 0; i < test_schema_count; i++) {
        struct json_schema *schema;
        struct json_matcher *matcher = matcher_of(test_schemas[i], &schema);
        size_t ended = 0;
        const size_t count = test_part(30);
        for (size_t round = 0; round < count; round++) {
            json_matcher_reset(matcher);
            sample_answer(&random, matcher, &s);
            if (!s.ended) continue;
            ended++;
            json_error_t reason;
            json_t *value = json_loadb(s.text, s.length, JSON_DECODE_ANY, &reason);
            if (value == NULL) fail_msg("%s: %.*s", reason.text, (int)s.length, s.text);
            json_decref(value);
        }
        assert_met(ended * 2 > count);
        json_matcher_destroy(matcher);
        json_schema_destroy(schema);
    }
}

/* Each token is tried on a matcher that read the same answer. */
static void check_mask(struct json_matcher *matcher, struct json_matcher *trial, const struct sampled *s,
                       size_t count) {
    const size_t size = tokenizer_vocabulary_size(tokenizer);
    float *logits = calloc(size, sizeof *logits);
    struct error error;
    assert_non_null(logits);
    assert_ok(json_matcher_mask(matcher, logits, size, &error), error);
    bool is_fresh = false;
    for (size_t i = 0; i < size; i++) {
        for (size_t t = 0; !is_fresh && t < count; t++) {
            if (t == 0) json_matcher_reset(trial);
            assert_ok(json_matcher_accept(trial, s->ids[t], &error), error);
        }
        if (count == 0) json_matcher_reset(trial);
        const bool accepted = json_matcher_accept(trial, (token_id)i, &error) == STATUS_OK;
        if (accepted != (logits[i] == 0))
            fail_msg("token %zu after %.*s: mask %g, accept %d", i, (int)s->length, s->text,
                     (double)logits[i], accepted);
        is_fresh = !accepted;
    }
    free(logits);
}

static void mask_is_what_is_accepted(void **state) {
    (void)state;
    struct random random;
    static struct sampled s;
    struct error error;
    random_init(&random, test_seed(2));
    for (size_t i = 0; i < test_schema_count; i++) {
        if (!test_takes(test_seed(2), i)) continue;
        struct json_schema *schema;
        struct json_matcher *matcher = matcher_of(test_schemas[i], &schema), *trial;
        assert_ok(json_matcher_create(&trial, schema, trie, &error), error);
        for (size_t round = 0; round < 3; round++) {
            json_matcher_reset(matcher);
            sample_answer(&random, matcher, &s);
            json_matcher_reset(matcher);
            const size_t checked = s.count < 12 ? s.count : 12;
            for (size_t t = 0; t <= checked; t++) {
                check_mask(matcher, trial, &s, t);
                if (t < checked) assert_ok(json_matcher_accept(matcher, s.ids[t], &error), error);
            }
        }
        json_matcher_destroy(trial);
        json_matcher_destroy(matcher);
        json_schema_destroy(schema);
    }
}

/* More alternatives at once than there are threads: some are dropped, and what the mask allows is still accepted. */
static void dropped_threads(void **state) {
    (void)state;
    static char text[65536];
    struct random random;
    static struct sampled s;
    random_init(&random, test_seed(3));
    strcpy(text, "{\"anyOf\":[");
    for (size_t i = 0; i < 24; i++)
        sprintf(text + strlen(text), "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"maxItems\":%zu},",
                i + 1);
    for (size_t i = 0; i < 24; i++)
        sprintf(text + strlen(text),
                "{\"type\":\"object\",\"additionalProperties\":{\"$ref\":\"#/anyOf/%zu\"}},", i);
    strcat(text, "{\"type\":\"string\"}]}");
    struct json_schema *schema;
    struct json_matcher *matcher = matcher_of(text, &schema);
    for (size_t round = 0; round < test_part(2); round++) {
        json_matcher_reset(matcher);
        sample_answer(&random, matcher, &s);
    }
    json_matcher_destroy(matcher);
    json_schema_destroy(schema);
}

/* A character in several tokens, and a token with half of one. */
static void split_characters(void **state) {
    (void)state;
    static const char *const controls[] = {"<|end|>"};
    struct tokenizer *bytes = byte_vocabulary("gpt-2", controls, 1, "<|end|>", "<|end|>");
    struct token_trie *byte_trie;
    struct json_schema *schema;
    struct json_matcher *matcher;
    struct error error;
    const char text[] = "\"\xF0\x9F\x98\x80\xE2\x82\xAC\"";
    assert_ok(token_trie_create(&byte_trie, bytes, &error), error);
    assert_ok(json_schema_compile(&schema, "{\"type\":\"string\"}", 17, "schema", &error), error);
    assert_ok(json_matcher_create(&matcher, schema, byte_trie, &error), error);
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        float logits[300] = {0};
        const size_t size = tokenizer_vocabulary_size(bytes);
        assert_true(size <= 300);
        assert_ok(json_matcher_mask(matcher, logits, 300, &error), error);
        assert_true(logits[(uint8_t)text[i]] == 0);
        const bool begins = ((uint8_t)text[i] & 0xC0) != 0x80;
        assert_int_equal(logits['"'] == 0, begins);
        assert_true(i == 0 || (logits['a'] == 0) == begins);
        assert_true(logits[256] == -INFINITY &&
                    logits[299] == -INFINITY); /* the end; not in the vocabulary */
        assert_ok(json_matcher_accept(matcher, (uint8_t)text[i], &error), error);
    }
    assert_true(json_matcher_is_complete(matcher));
    float logits[300] = {0};
    assert_ok(json_matcher_mask(matcher, logits, 300, &error), error);
    for (size_t i = 0; i < 300; i++) assert_int_equal(logits[i] == 0, i == 256);
    assert_int_equal(json_matcher_accept(matcher, 'a', &error), STATUS_FAILED);
    assert_int_equal(json_matcher_accept(matcher, -1, &error), STATUS_FAILED);
    assert_ok(json_matcher_accept(matcher, 256, &error), error);
    json_matcher_destroy(matcher);
    json_schema_destroy(schema);
    token_trie_destroy(byte_trie);
    tokenizer_destroy(bytes);
}

/* ---- what a mask takes ---- */

enum { LARGE = 131072, LARGE_STEPS = 40 };

/* The most that a mask takes over random answers that open brackets and strings. */
static uint64_t most_work(const struct token_trie *large, const char *text, struct random *random) {
    struct json_schema *schema;
    struct json_matcher *matcher;
    struct error error;
    float *logits = malloc(LARGE * sizeof *logits);
    uint64_t most = 0;
    assert_non_null(logits);
    assert_ok(json_schema_compile(&schema, text, strlen(text), "schema", &error), error);
    assert_ok(json_matcher_create(&matcher, schema, large, &error), error);
    for (size_t round = 0; round < 3; round++) {
        json_matcher_reset(matcher);
        for (size_t step = 0; step < LARGE_STEPS && !json_matcher_is_complete(matcher); step++) {
            memset(logits, 0, LARGE * sizeof *logits);
            assert_ok(json_matcher_mask(matcher, logits, LARGE, &error), error);
            if (json_matcher_work(matcher) > most) most = json_matcher_work(matcher);
            token_id id = sample(random, logits, 256, false); /* a byte */
            if (step % 4 != 3 && logits['['] == 0) id = '[';
            if (step % 2 == 1 && logits['"'] == 0) id = '"';
            assert_true(id >= 0);
            assert_ok(json_matcher_accept(matcher, id, &error), error);
        }
    }
    json_matcher_destroy(matcher);
    json_schema_destroy(schema);
    free(logits);
    return most;
}

static void write_records(char *text, size_t alternatives) {
    char *at = text + sprintf(text, "{\"anyOf\":[");
    for (size_t i = 0; i < alternatives; i++)
        at += sprintf(at,
                      "%s{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b%zu\":{}},"
                      "\"required\":[\"a\"],\"additionalProperties\":false}",
                      i > 0 ? "," : "", i);
    strcpy(at, "]}");
}

/* Random words: as an enum, or as keys. */
static void write_words(char *text, const char *before, const char *value, const char *after, size_t limit) {
    static const char letters[] = "etaoinshrdlucmfwypvbgkqjxz";
    struct random random;
    random_init(&random, 5);
    char *at = text + sprintf(text, "%s", before);
    for (size_t i = 0; (size_t)(at - text) + 40 < limit; i++) {
        char word[16];
        const size_t length = 3 + random_below(&random, 6);
        for (size_t b = 0; b < length; b++) word[b] = letters[random_below(&random, 26)];
        at += sprintf(at, "%s\"%.*s%zu\"%s", i > 0 ? "," : "", (int)length, word, i, value);
    }
    strcpy(at, after);
}

/* Counted, not timed.  Where the bound is reached, answers still go on. */
static void masks_are_bounded(void **state) {
    (void)state;
    static char text[JSON_SCHEMA_BYTES_MAX + 64];
    struct token_trie *large = large_vocabulary_trie(LARGE);
    struct random random;
    random_init(&random, test_seed(4));
    for (size_t i = 0; i < test_schema_count; i++)
        assert_in_range(most_work(large, test_schemas[i], &random), 1, JSON_MASK_WORK / 4);
    for (size_t i = 0; i < 6; i++) {
        if (i == 0) test_write_deep(text, 64, 58);
        if (i == 1) test_write_deep(text, 64, 10);
        if (i == 2) write_records(text, 64);
        if (i == 3) write_records(text, 20);
        if (i == 4) write_words(text, "{\"enum\":[", "", "]}", JSON_SCHEMA_BYTES_MAX);
        if (i == 5) write_words(text, "{\"properties\":{", ":{}", "}}", JSON_SCHEMA_BYTES_MAX);
        const uint64_t work = most_work(large, text, &random);
        /* Behind the bound, of 64 threads between values few bytes are looked for. */
        assert_in_range(work, 1, i < 3 ? JSON_MASK_WORK + JSON_MASK_WORK / 4 : JSON_MASK_WORK);
        if (i == 3) assert_in_range(work, 1, JSON_MASK_WORK / 2);
        if (i < 2) assert_true(work > JSON_MASK_WORK); /* or the bound would be untested */
    }
    token_trie_destroy(large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_json),
        cmocka_unit_test(mask_is_what_is_accepted),
        cmocka_unit_test(dropped_threads),
        cmocka_unit_test(split_characters),
        cmocka_unit_test(masks_are_bounded),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
