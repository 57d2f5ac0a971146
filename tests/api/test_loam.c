/* The public header, as a program outside of loam would use it, on a model that make_model writes. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loam.h"

static char path[64];

/* A session with one sequence. */
struct started {
    struct loam_session *session;
    struct loam_sequence *sequence;
};

static struct started start(struct loam_model *model, const struct loam_session_options *options,
                            const struct loam_sampling *sampling) {
    struct started started;
    struct loam_error error;
    if (loam_session_create(&started.session, model, options, &error) != LOAM_OK)
        fail_msg("%s", error.message);
    if (loam_sequence_create(&started.sequence, started.session, sampling, &error) != LOAM_OK)
        fail_msg("%s", error.message);
    return started;
}

static void stop(struct started started) {
    loam_sequence_destroy(started.sequence);
    loam_session_destroy(started.session);
}

static enum loam_status next(struct started started, int32_t *token, struct loam_error *error) {
    return loam_session_next(started.session, &started.sequence, 1, token, error);
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
    assert_int_equal(loam_tokenize(model, text, strlen(text), 0, ids, 64, &count, &error), LOAM_OK);
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
    const struct loam_session_options options = {.size = sizeof options, .context_size = 64};
    struct loam_sampling sampling = loam_sampling_default();
    for (size_t round = 0; round < 2; round++) { /* the same seed, the same tokens */
        struct started started = start(model, &options, &sampling);
        assert_int_equal(next(started, &token, &error), LOAM_USAGE);
        assert_int_equal(loam_sequence_feed(started.sequence, ids, count, &error), LOAM_OK);
        for (size_t i = 0; i < 20; i++) {
            assert_int_equal(next(started, &token, &error), LOAM_OK);
            if (round == 0) first[i] = token;
            assert_int_equal(token, first[i]);
            assert_int_equal(loam_sequence_length(started.sequence), count + i + 1);
        }
        loam_sequence_truncate(started.sequence, 10);
        assert_int_equal(loam_sequence_length(started.sequence), 10);
        assert_int_equal(next(started, &token, &error), LOAM_USAGE);
        assert_int_equal(loam_sequence_feed(started.sequence, ids, 5, &error), LOAM_OK);
        for (size_t i = 15; i < 64; i++) assert_int_equal(next(started, &token, &error), LOAM_OK);
        assert_int_equal(next(started, &token, &error), LOAM_USAGE);
        assert_non_null(strstr(error.message, "64 tokens is full"));
        stop(started);
    }
    sampling.top_p = 2;
    struct loam_session *session;
    struct loam_sequence *sequence;
    assert_int_equal(loam_session_create(&session, model, &options, &error), LOAM_OK);
    assert_int_equal(loam_sequence_create(&sequence, session, &sampling, &error), LOAM_USAGE);
    assert_null(sequence);
    loam_session_destroy(session);
    loam_model_close(model);
}

enum { PROMPT = 600, ANSWER = 24 };

struct answer {
    int32_t tokens[ANSWER];
    double kept;
    struct loam_receipt receipt;
    bool noted;
};

/* Tokens drawn behind a prompt of random ids, under these axes; a small change of a probability shows in some. */
static struct answer answer_with(struct loam_model *model, const char *preset, const char *set,
                                 const char *keep, bool q8) {
    struct loam_error error;
    struct loam_session_options options = {.size = sizeof options};
    const struct loam_sampling sampling = {.temperature = 2};
    char texts[3][64]; /* gone once the session is there */
    const char *given[3] = {preset, set, keep};
    for (size_t i = 0; i < 3; i++)
        if (given[i] != NULL) snprintf(texts[i], sizeof texts[i], "%s", given[i]);
    options.context_size = PROMPT + ANSWER;
    options.k_type = options.v_type = q8 ? LOAM_KV_Q8 : LOAM_KV_F16;
    options.preset = preset != NULL ? texts[0] : NULL;
    options.set = set != NULL ? texts[1] : NULL;
    options.keep = keep != NULL ? texts[2] : NULL;
    struct started started = start(model, &options, &sampling);
    memset(texts, 'x', sizeof texts);
    int32_t prompt[PROMPT];
    for (size_t i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(i * 7919 % 509 + i % 2);
    assert_int_equal(loam_sequence_feed(started.sequence, prompt, PROMPT, &error), LOAM_OK);
    struct answer answer;
    for (size_t i = 0; i < ANSWER; i++)
        if (next(started, &answer.tokens[i], &error) != LOAM_OK) fail_msg("%s", error.message);
    struct loam_receipt receipt = {.size = sizeof receipt};
    assert_int_equal(loam_session_receipt(started.session, &receipt, &error), LOAM_OK);
    assert_true(receipt.prefill_tokens == PROMPT && receipt.decode_tokens == ANSWER - 1);
    answer.kept = receipt.kept_ratio;
    answer.receipt = receipt;
    answer.noted = loam_session_note(started.session) != NULL;
    stop(started);
    return answer;
}

static bool same(const struct answer *a, const struct answer *b) {
    return memcmp(a->tokens, b->tokens, sizeof a->tokens) == 0;
}

/* The axes of the command line: what keeps all is what full gives, what keeps less reads less. */
static void test_selection(void **state) {
    (void)state;
    struct loam_error error;
    struct loam_model *model;
    if (loam_model_open(&model, path, NULL, &error) != LOAM_OK) fail_msg("%s", error.message);
    struct answer full = answer_with(model, NULL, NULL, NULL, false);
    assert_true(full.kept == 1 && !full.noted);
    struct answer named = answer_with(model, "full", NULL, NULL, false);
    assert_true(same(&full, &named));
    static const char *const presets[] = {"meanstd", "hata", "leoam"};
    size_t differ = 0;
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        struct answer all = answer_with(model, presets[i], "dense=0", "100%", false);
        if (!same(&full, &all)) fail_msg("%s keeps 100%% and gives other tokens", presets[i]);
        assert_true(all.kept == 1);
        struct answer some = answer_with(model, presets[i], "dense=0,sinks=4,recent=16", "96", false);
        if (some.kept < 80. / (PROMPT + ANSWER) || some.kept > 112. / PROMPT)
            fail_msg("%s kept %.3f", presets[i], some.kept);
        assert_true(!some.noted); /* none of them needs a calibration */
        differ += !same(&full, &some);
        struct answer tenth =
            answer_with(model, presets[i], "dense=0,sinks=4,recent=16,units_min=4", "25%", false);
        assert_true(tenth.kept > some.kept && tenth.kept < 0.3);
    }
    assert_true(differ >= 3);
    struct answer signs = answer_with(model, "hata", "dense=0,code=sign", "96", false);
    assert_true(signs.noted); /* there is no calibration */
    struct answer measured = answer_with(model, "hata", "dense=0,sinks=4,recent=16,receipt=1", "96", false),
                  plain = answer_with(model, "hata", "dense=0,sinks=4,recent=16", "96", false);
    assert_true(same(&measured, &plain) && plain.receipt.left_out_count == 0);
    assert_true(measured.receipt.left_out_count > 0 && measured.receipt.left_out > 0 &&
                measured.receipt.left_out_error > 0 && measured.receipt.mass_caught_min == 0);
    assert_true(measured.receipt.left_out <= measured.receipt.left_out_worst_step &&
                measured.receipt.left_out_worst_step <= measured.receipt.left_out_worst_head);
    struct answer one_dense = answer_with(model, "meanstd", "dense=1", "96", false);
    assert_true(one_dense.kept > 0.5 && one_dense.kept < 0.65); /* one of the two layers */
    struct answer q8 = answer_with(model, NULL, NULL, NULL, true),
                  codec = answer_with(model, NULL, "codec=q8", NULL, false);
    assert_true(same(&q8, &codec));
    loam_model_close(model);
}

static void test_selections_refused(void **state) {
    (void)state;
    static const struct {
        const char *preset, *set, *keep, *says;
    } cases[] = {
        {"auto", "bits=256", NULL, "--preset auto chooses"},
        {"auto", "loss=2", NULL, "0 to 1"},
        {"fast", NULL, NULL, "no preset 'fast'"},
        {"hata", NULL, "110%", "found '110%'"},
        {"hata", "bits=100,dense=0", NULL, "bits=100"},
        {"hata", "colour=red", NULL, "no setting 'colour'"},
        {NULL, NULL, "10%", "select=all keeps 100%"},
        {"clo", "dense=0", NULL, "there is no calibration of this model"},
    };
    struct loam_error error;
    struct loam_model *model;
    if (loam_model_open(&model, path, NULL, &error) != LOAM_OK) fail_msg("%s", error.message);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct loam_session_options options = {.size = sizeof options};
        struct loam_session *session;
        options.preset = cases[i].preset;
        options.set = cases[i].set;
        options.keep = cases[i].keep;
        options.context_size = 128;
        assert_int_equal(loam_session_create(&session, model, &options, &error), LOAM_USAGE);
        if (strstr(error.message, cases[i].says) == NULL)
            fail_msg("no '%s' in: %s", cases[i].says, error.message);
        assert_null(session);
    }
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
    struct loam_model_options options = {.size = sizeof options, .cpu_mask = "quantum"};
    assert_int_equal(loam_model_open(&model, path, &options, NULL), LOAM_USAGE);
    loam_model_close(NULL);
    loam_session_destroy(NULL);
}

/* --rope-scaling yarn -c N of a program: other answers in a context of N tokens, or a line that says why not. */
static void test_stretched(void **state) {
    (void)state;
    struct loam_error error;
    struct loam_model *models[2];
    uint64_t context;
    int32_t ids[64];
    float likeliest[2];
    for (int i = 0; i < 64; i++) ids[i] = 'a' + i * i % 20;
    assert_int_equal(loam_model_open(&models[0], path, NULL, &error), LOAM_OK);
    context = loam_model_context_length(models[0]);
    struct loam_model_options options = {.size = sizeof options, .yarn_context = 4 * context};
    assert_int_equal(loam_model_open(&models[1], path, &options, &error), LOAM_OK);
    assert_int_equal(loam_model_context_length(models[1]), 4 * context);
    for (size_t m = 0; m < 2; m++) {
        struct started started = start(models[m], NULL, NULL);
        const struct loam_prompt prompt = {started.sequence, ids, 64};
        const struct loam_generate_options generate = {.size = sizeof generate, .token_max = 1, .top_count = 1};
        struct loam_answer answer = {.size = sizeof answer};
        assert_int_equal(loam_generate(started.session, &prompt, 1, &generate, &error), LOAM_OK);
        assert_int_equal(loam_sequence_answer(started.sequence, &answer, &error), LOAM_OK);
        likeliest[m] = answer.top[0].log_probability;
        stop(started);
        loam_model_close(models[m]);
    }
    assert_true(likeliest[0] != likeliest[1]);
    options.yarn_context = context;
    assert_int_equal(loam_model_open(&models[0], path, &options, &error), LOAM_USAGE);
    assert_non_null(strstr(error.message, "expected more than the"));
}

/* Of a model file that is cut short while it is mapped a program gets a status, not a signal. */
static void test_cut_model(void **state) {
    (void)state;
    struct loam_error error;
    struct loam_model *model;
    char copy[80], command[256];
    int32_t ids[64], token;
    for (int i = 0; i < 64; i++) ids[i] = 'a' + i % 20;
    snprintf(copy, sizeof copy, "%s.copy", path);
    snprintf(command, sizeof command, "cp %s %s", path, copy);
    assert_int_equal(system(command), 0);
    assert_int_equal(loam_model_open(&model, copy, NULL, &error), LOAM_OK);
    struct started started = start(model, NULL, NULL);
    assert_int_equal(truncate(copy, 100), 0);
    enum loam_status status = loam_sequence_feed(started.sequence, ids, 64, &error);
    if (status == LOAM_OK) status = next(started, &token, &error);
    assert_int_equal(status, LOAM_BAD_MODEL);
    assert_non_null(strstr(error.message, "changed"));
    stop(started);
    loam_model_close(model);
    assert_int_equal(unlink(copy), 0);
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

static bool see_nothing(void *context, const struct loam_document *document) {
    (void)context, (void)document;
    return false;
}

/* A NULL where there must be something is a line with its name, and no crash. */
static void test_nulls(void **state) {
    (void)state;
    struct loam_model *model;
    struct loam_session *session;
    struct loam_sequence *sequence;
    struct loam_error error;
    size_t count;
    int32_t id = 0;
    struct loam_answer answer = {.size = sizeof answer};
    struct loam_receipt receipt = {.size = sizeof receipt};
    const struct loam_question question = {.size = sizeof question};
    const struct loam_prompt prompt = {NULL, &id, 1};
#define REFUSED(call, name)                                                                \
    do {                                                                                   \
        assert_int_equal(call, LOAM_USAGE);                                                \
        if (strstr(error.message, name " is NULL") == NULL) fail_msg("%s", error.message); \
    } while (0)
    REFUSED(loam_model_open(&model, NULL, NULL, &error), "loam_model_open: path");
    assert_null(model);
    REFUSED(loam_model_open(NULL, path, NULL, &error), "model");
    REFUSED(loam_tokenize(NULL, "x", 1, 0, &id, 1, &count, &error), "loam_tokenize: model");
    REFUSED(loam_chat_tokens(NULL, NULL, NULL, 0, &id, 1, &count, &error), "model");
    REFUSED(loam_question_tokens(NULL, &question, &id, 1, &count, &error), "model");
    REFUSED(loam_session_create(&session, NULL, NULL, &error), "model");
    REFUSED(loam_sequence_create(&sequence, NULL, NULL, &error), "session");
    REFUSED(loam_sequence_feed(NULL, &id, 1, &error), "sequence");
    REFUSED(loam_sequence_save(NULL, &error), "sequence");
    REFUSED(loam_session_next(NULL, &sequence, 1, &id, &error), "session");
    REFUSED(loam_generate(NULL, &prompt, 1, NULL, &error), "session");
    REFUSED(loam_sequence_answer(NULL, &answer, &error), "sequence");
    REFUSED(loam_session_receipt(NULL, &receipt, &error), "session");
    REFUSED(loam_documents_list(NULL, see_nothing, NULL, &error), "directory");
    REFUSED(loam_document_tokens(NULL, 1, &id, 1, &count, &error), "directory");
    REFUSED(loam_document_remove(NULL, 1, &error), "directory");
    REFUSED(loam_document_verify(NULL, 1, &error), "directory");
    assert_int_equal(loam_document_verify(NULL, 1, NULL), LOAM_USAGE);
    if (loam_model_open(&model, path, NULL, &error) != LOAM_OK) fail_msg("%s", error.message);
    REFUSED(loam_tokenize(model, NULL, 1, 0, &id, 1, &count, &error), "text");
    REFUSED(loam_tokenize(model, "x", 1, 0, &id, 1, NULL, &error), "count");
    REFUSED(loam_tokenize(model, "x", 1, 0, NULL, 1, &count, &error), "ids");
    REFUSED(loam_question_tokens(model, NULL, &id, 1, &count, &error), "question");
    struct started started = start(model, NULL, NULL);
    assert_int_equal(loam_generate(started.session, &prompt, 1, NULL, &error), LOAM_USAGE);
    REFUSED(loam_generate(started.session, NULL, 1, NULL, &error), "prompts");
    const struct loam_prompt without = {started.sequence, NULL, 1};
    REFUSED(loam_generate(started.session, &without, 1, NULL, &error), "tokens");
    REFUSED(loam_sequence_feed(started.sequence, NULL, 1, &error), "tokens");
    stop(started);
    loam_model_close(model);
#undef REFUSED
    assert_string_equal(loam_model_name(NULL), "");
    assert_int_equal(
        loam_model_context_length(NULL) + loam_model_pass_bytes(NULL) + loam_model_vocabulary_size(NULL), 0);
    assert_int_equal(loam_session_context_size(NULL) + loam_session_sequence_capacity(NULL), 0);
    assert_int_equal(loam_session_thread_count(NULL) + loam_sequence_length(NULL), 0);
    assert_null(loam_session_note(NULL));
    assert_int_equal(loam_token_text(NULL, 1, NULL, 0), 0);
    assert_false(loam_token_is_end(NULL, 1));
    loam_session_cancel(NULL);
    loam_sequence_truncate(NULL, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate),           cmocka_unit_test(test_selection),
        cmocka_unit_test(test_selections_refused), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_stretched),          cmocka_unit_test(test_nulls),
        cmocka_unit_test(test_cut_model)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
