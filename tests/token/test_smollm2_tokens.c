/* A real model's vocabulary against Hugging Face tokenizers (tools/make_smollm2_tokens.py): tricky and random texts,
 * and texts with control tokens, which are that only when asked for. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "real_model.h"
#include "records.h"
#include "vocabularies.h"

static void assert_ids(const struct record *text, const struct token_list *found, const char *expected) {
    size_t count = 0;
    for (char *end; *expected != '\0'; expected = end + (*end == ' '), count++) {
        long id = strtol(expected, &end, 10);
        if (count >= found->count || found->ids[count] != id)
            fail_msg("'%.60s': token %zu is %d, expected %ld", text->text, count,
                     count < found->count ? found->ids[count] : -1, id);
    }
    if (count != found->count) fail_msg("'%.60s': %zu tokens, expected %zu", text->text, found->count, count);
}

static void ids_are_hugging_faces(void **state) {
    (void)state;
    struct tokenizer *t = open_vocabulary(REAL_MODEL);
    size_t length, cases = 0;
    char *fixtures = read_whole(LOAM_SOURCE_DIR "/tests/token/fixtures/smollm2.txt", &length), *at = fixtures;
    assert_non_null(fixtures);
    struct record text, ids;
    while (record_next(&at, &text)) {
        assert_true(record_next(&at, &ids));
        assert_string_equal(ids.kind, "ids");
        bool special = strcmp(text.kind, "special") == 0;
        struct token_list found = encode(t, text.text, text.length, special);
        assert_ids(&text, &found, ids.text);
        token_list_deinit(&found);
        if (!special) assert_round_trip(t, text.text, text.length);
        cases++;
    }
    assert_true(cases > 200);
    free(fixtures);
    tokenizer_destroy(t);
}

int main(void) {
    if (real_model_missing() != 0) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_are_hugging_faces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
