/* Any bytes as a schema, and what follows a zero byte as choices: an answer of that schema is walked by bytes that the
 * mask allows.  It never gets stuck, what ends is JSON, no mask takes more than its bound, and no schema more memory
 * than its bytes allow.  The fuzzer is told what a mask took, so that it goes towards the slowest schema. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "grammar/grammar_internal.h"
#include "grammar/json_matcher.h"
#include "grammar/large_vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS_MAX = 120, VOCABULARY = 2048, END = VOCABULARY - 1 };
enum { SCHEMA_BYTES = 64 * 1024, SCHEMA_BYTES_EACH = 256 }; /* of memory, for none and for each byte of a schema */

#ifdef LOAM_FUZZ
/* For libFuzzer a byte that is new here is as new code is. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t work_reached[128];
static void note_work(uint64_t work) { work_reached[work * 127 / JSON_MASK_WORK_MAX] = 1; }
#else
static void note_work(uint64_t work) { (void)work; }
#endif

/* The choice-th of the allowed bytes; END only where there is no other. */
static token_id choose(const float *logits, uint8_t choice) {
    token_id allowed[256];
    size_t count = 0;
    for (token_id i = 0; i < 256; i++)
        if (logits[i] == 0) allowed[count++] = i;
    return count > 0 ? allowed[choice % count] : END;
}

static void walk(const struct json_schema *schema, const struct token_trie *trie, const uint8_t *choices,
                 size_t count) {
    struct json_matcher *matcher;
    struct error error;
    char text[STEPS_MAX];
    static float logits[VOCABULARY];
    ASSERT(json_matcher_create(&matcher, schema, trie, &error) == STATUS_OK);
    for (size_t i = 0; i < STEPS_MAX && i < count; i++) {
        memset(logits, 0, sizeof logits);
        ASSERT(json_matcher_mask(matcher, logits, VOCABULARY, &error) == STATUS_OK);
        ASSERT(json_matcher_work(matcher) <= JSON_MASK_WORK_MAX);
        note_work(json_matcher_work(matcher));
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
    if (trie == NULL) trie = large_vocabulary_trie(VOCABULARY);
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t length = zero != NULL ? (size_t)(zero - data) : size;
    struct json_schema *schema;
    struct error error;
    if (json_schema_compile(&schema, (const char *)data, length, "schema", &error) != STATUS_OK) return 0;
    ASSERT(schema->arena.used_bytes <= SCHEMA_BYTES + SCHEMA_BYTES_EACH * length);
    static const uint8_t otherwise[STEPS_MAX];
    if (zero != NULL)
        walk(schema, trie, zero + 1, size - length - 1);
    else
        walk(schema, trie, otherwise, STEPS_MAX);
    json_schema_destroy(schema);
    return 0;
}
