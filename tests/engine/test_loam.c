/* The public header, as a program outside of loam would use it, on a model that make_model writes. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loam.h"

static char path[64];

static struct loam_session *start(struct loam_model *model, const struct loam_session_options *options) {
    struct loam_session *session;
    struct loam_error error;
    if (loam_session_create(&session, model, options, &error) != LOAM_OK) fail_msg("%s", error.message);
    return session;
}

static void test_generate(void **state) {
    (void)state;
    struct loam_error error;
    struct loam_model *model;
    if (loam_model_open(&model, path, NULL, &error) != LOAM_OK) fail_msg("%s", error.message);
    assert_int_equal(loam_model_vocabulary_size(model), 512);
    assert_int_equal(loam_model_context_length(model), 4096);
    assert_string_equal(loam_model_name(model), "random tiny Q4_K_M");

    const char text[] = "a path to \xc3\xa9t\xc3\xa9";
    int32_t ids[64];
    size_t count;
    assert_int_equal(loam_tokenize(model, text, strlen(text), false, ids, 64, &count, &error), LOAM_OK);
    assert_int_equal(count, strlen(text) - 1); /* bytes, with one "th" merged */
    char back[64];
    size_t length = 0;
    for (size_t i = 0; i < count; i++)
        length += loam_token_text(model, ids[i], back + length, sizeof back - length);
    assert_int_equal(length, strlen(text));
    assert_memory_equal(back, text, length);
    assert_true(loam_token_is_end(model, 511));
    assert_false(loam_token_is_end(model, 5));

    int32_t first[20], token;
    struct loam_session_options options = loam_session_options_default();
    options.context_size = 64;
    for (size_t round = 0; round < 2; round++) { /* the same seed, the same tokens */
        struct loam_session *session = start(model, &options);
        assert_int_equal(loam_session_next(session, &token, &error), LOAM_USAGE);
        assert_int_equal(loam_session_feed(session, ids, count, &error), LOAM_OK);
        for (size_t i = 0; i < 20; i++) {
            assert_int_equal(loam_session_next(session, &token, &error), LOAM_OK);
            if (round == 0) first[i] = token;
            assert_int_equal(token, first[i]);
            assert_int_equal(loam_session_length(session), count + i + 1);
        }
        loam_session_truncate(session, 10);
        assert_int_equal(loam_session_length(session), 10);
        assert_int_equal(loam_session_next(session, &token, &error), LOAM_USAGE);
        assert_int_equal(loam_session_feed(session, ids, 5, &error), LOAM_OK);
        for (size_t i = 15; i < 64; i++)
            assert_int_equal(loam_session_next(session, &token, &error), LOAM_OK);
        assert_int_equal(loam_session_next(session, &token, &error), LOAM_USAGE);
        assert_non_null(strstr(error.message, "64 tokens is full"));
        loam_session_destroy(session);
    }
    options.top_p = 2;
    struct loam_session *session;
    assert_int_equal(loam_session_create(&session, model, &options, &error), LOAM_USAGE);
    assert_null(session);
    loam_model_close(model);
}

static void test_failures(void **state) {
    (void)state;
    struct loam_error error;
    struct loam_model *model;
    assert_int_equal(loam_model_open(&model, "no-such-file.gguf", NULL, &error), LOAM_IO);
    assert_null(model);
    assert_non_null(strstr(error.message, "no-such-file.gguf"));
    assert_int_equal(loam_model_open(&model, "/proc/self/exe", NULL, &error), LOAM_BAD_MODEL);
    struct loam_model_options options = {.cpu_mask = "quantum"};
    assert_int_equal(loam_model_open(&model, path, &options, NULL), LOAM_USAGE);
    loam_model_close(NULL);
    loam_session_destroy(NULL);
}

static int set_up(void **state) {
    (void)state;
    char command[512];
    snprintf(path, sizeof path, "loam-%ld.gguf", (long)getpid());
    snprintf(command, sizeof command, "'%s' tiny Q4_K_M %s 2>/dev/null", LOAM_MAKE_MODEL, path);
    return system(command);
}

static int tear_down(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_generate), cmocka_unit_test(test_failures)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
