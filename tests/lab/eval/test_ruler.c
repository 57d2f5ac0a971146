/* The generator, read back by a reader of its own: prompts are exact in tokens, answers are where they must be. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"
#include "cli/tiny_model.h"
#include "lab/eval/ruler.h"

static struct tokenizer *bytes_tokenizer, *bpe_tokenizer; /* the second is the bundled model's */
static struct essay essay;

static struct tokenizer *open_tokenizer(const char *path) {
    struct gguf gguf = {0};
    struct tokenizer *tokenizer;
    struct error error;
    assert_ok(gguf_open(&gguf, path, &error), error);
    assert_ok(tokenizer_create(&tokenizer, &gguf, false, &error), error);
    gguf_close(&gguf);
    return tokenizer;
}

static int setup(void **state) {
    (void)state;
    struct error error;
    tiny_model_write(scratch_path("tiny.gguf"), &(struct tiny_model){.seed = 1, .vocabulary_only = true});
    bytes_tokenizer = open_tokenizer(scratch_path("tiny.gguf"));
    bpe_tokenizer = open_tokenizer(LOAM_SOURCE_DIR "/models/loam-nano.gguf");
    assert_ok(essay_create(&essay, essay_builtin, essay_builtin_length, "builtin", &error), error);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_destroy(bytes_tokenizer);
    tokenizer_destroy(bpe_tokenizer);
    essay_deinit(&essay);
    return 0;
}

static struct ruler_sample make(const struct tokenizer *tokenizer, uint64_t seed, enum ruler_task task,
                                uint64_t length, uint64_t index) {
    struct ruler_options options = {.seed = seed, .essay = &essay, .tokenizer = tokenizer};
    struct ruler_sample sample;
    struct error error;
    if (ruler_sample_create(&sample, &options, task, length, index, &error) != STATUS_OK)
        fail_msg("%s at %llu: %s", ruler_task_name(task), (unsigned long long)length, error.message);
    return sample;
}

static size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (const char *c = text; (c = strstr(c, part)) != NULL; c++) count++;
    return count;
}

/* Copies what lies between `before` (searched from the start) and `after` behind it. */
static const char *between(const char *text, const char *before, const char *after, char *found,
                           size_t size) {
    const char *begin = strstr(text, before);
    if (begin == NULL) return NULL;
    begin += strlen(before);
    const char *end = strstr(begin, after);
    if (end == NULL || (size_t)(end - begin) >= size) return NULL;
    memcpy(found, begin, (size_t)(end - begin));
    found[end - begin] = '\0';
    return begin;
}

/* The last line but one. */
static const char *question_of(const char *prompt) {
    const char *line = strrchr(prompt, '\n');
    while (line[-1] != '\n') line--;
    return line;
}

static void check_answer_text(const struct ruler_sample *sample) {
    char expected[700] = " ";
    for (size_t i = 0; i < sample->answer_count; i++) {
        if (i > 0) strcat(expected, ", ");
        strcat(expected, sample->answers[i]);
    }
    strcat(expected, ".");
    assert_string_equal(sample->answer_text, expected);
}

/* ---- sizes ---- */

/* The most bytes of a unit of each task's haystack (a line end or blank included). */
static const size_t unit_bytes[RULER_TASK_COUNT] = {
    [RULER_NIAH_SINGLE_1] = 30,
    [RULER_NIAH_SINGLE_2] = 900,
    [RULER_NIAH_SINGLE_3] = 900,
    [RULER_NIAH_MULTIKEY_1] = 900,
    [RULER_NIAH_MULTIKEY_2] = 90,
    [RULER_NIAH_MULTIKEY_3] = 130,
    [RULER_NIAH_MULTIVALUE] = 900,
    [RULER_NIAH_MULTIQUERY] = 900,
    [RULER_VT] = 30,
    [RULER_CWE] = 100,
    [RULER_FWE] = 60, /* several ranks may grow at once */
    [RULER_QA_1] = 130,
    [RULER_QA_2] = 130,
};

static void check_size(const struct tokenizer *tokenizer, const struct ruler_sample *sample,
                       enum ruler_task task, uint64_t length) {
    struct token_list again = {0}, answer = {0};
    struct error error;
    assert_ok(tokenizer_encode(tokenizer, sample->prompt, sample->prompt_bytes,
                               (struct tokenize_options){.add_special = true}, &again, &error),
              error);
    assert_int_equal(again.count, sample->tokens.count);
    assert_memory_equal(again.ids, sample->tokens.ids, again.count * sizeof *again.ids);
    assert_ok(tokenizer_encode(tokenizer, sample->answer_text, strlen(sample->answer_text),
                               (struct tokenize_options){0}, &answer, &error),
              error);
    assert_true(answer.count < sample->token_budget);
    size_t used = sample->tokens.count + sample->token_budget;
    if (used > length || used + unit_bytes[task] < length) /* a token is a byte at least */
        fail_msg("%s: %zu of %llu tokens", ruler_task_name(task), used, (unsigned long long)length);
    assert_int_equal(strlen(sample->prompt), sample->prompt_bytes);
    assert_int_equal(sample->prompt[sample->prompt_bytes - 1], ':'); /* the answer begins with a blank */
    token_list_deinit(&again);
    token_list_deinit(&answer);
}

static void lengths_are_exact(void **state) {
    (void)state;
    static const uint64_t lengths[] = {2048, 5000, 16384, 40000};
    for (size_t t = 0; t < 2; t++) {
        const struct tokenizer *tokenizer = t == 0 ? bytes_tokenizer : bpe_tokenizer;
        for (enum ruler_task task = 0; task < RULER_TASK_COUNT; task++)
            for (size_t l = 0; l < 4; l++) {
                struct ruler_sample sample = make(tokenizer, 7, task, lengths[l], l);
                check_size(tokenizer, &sample, task, lengths[l]);
                check_answer_text(&sample);
                ruler_sample_deinit(&sample);
            }
    }
}

static void too_short_is_said(void **state) {
    (void)state;
    struct ruler_options options = {.seed = 1, .essay = &essay, .tokenizer = bytes_tokenizer};
    struct ruler_sample sample;
    struct error error;
    assert_int_equal(ruler_sample_create(&sample, &options, RULER_CWE, 600, 0, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "cwe: needs a length of "));
    ruler_sample_deinit(&sample);
}

/* ---- the seed ---- */

static void same_seed_same_sample(void **state) {
    (void)state;
    for (enum ruler_task task = 0; task < RULER_TASK_COUNT; task++) {
        struct ruler_sample a = make(bytes_tokenizer, 42, task, 4096, 3),
                            b = make(bytes_tokenizer, 42, task, 4096, 3),
                            other_index = make(bytes_tokenizer, 42, task, 4096, 4),
                            other_seed = make(bytes_tokenizer, 43, task, 4096, 3);
        assert_string_equal(a.prompt, b.prompt);
        assert_string_equal(a.answer_text, b.answer_text);
        assert_string_not_equal(a.prompt, other_index.prompt);
        assert_string_not_equal(a.prompt, other_seed.prompt);
        if (task < RULER_CWE) {
            assert_string_not_equal(a.answer_text, other_index.answer_text);
            assert_string_not_equal(a.answer_text, other_seed.answer_text);
        }
        ruler_sample_deinit(&a);
        ruler_sample_deinit(&b);
        ruler_sample_deinit(&other_index);
        ruler_sample_deinit(&other_seed);
    }
}

/* A fixed point: what seed 42 gave when this was written, so that figures stay comparable. */
static void samples_stay_what_they_were(void **state) {
    (void)state;
    struct ruler_sample a = make(bytes_tokenizer, 42, RULER_NIAH_SINGLE_1, 4096, 0),
                        b = make(bytes_tokenizer, 42, RULER_VT, 4096, 0);
    assert_string_equal(a.answer_text, " 7376947.");
    assert_non_null(strstr(a.prompt, "One of the special magic numbers for tame-bell is: 7376947."));
    assert_string_equal(b.answer_text, " BJWGW, CRFWX, TOBMI, TNROG, VWCYC.");
    ruler_sample_deinit(&a);
    ruler_sample_deinit(&b);
}

/* ---- what the tasks say ---- */

static void value_of_key(const char *prompt, const char *key, char *value, size_t size) {
    char before[240];
    snprintf(before, sizeof before, " for %s is: ", key);
    assert_int_equal(count_of(prompt, before), 1);
    assert_non_null(between(prompt, before, ".", value, size));
}

static void check_needles(const struct ruler_sample *sample) {
    char key[200], value[60];
    for (size_t i = 0; i < sample->answer_count; i++)
        assert_int_equal(count_of(sample->prompt, sample->answers[i]), 1);
    const char *question = question_of(sample->prompt);
    assert_non_null(between(question, " for ", " in the text above?", key, sizeof key));
    size_t asked = 0;
    for (char *rest = key, *end; rest != NULL; rest = end) { /* "a, b, c and d" */
        char *comma = strstr(rest, ", "), *last = strstr(rest, " and ");
        end = comma != NULL ? comma + 2 : last != NULL ? last + 5 : NULL;
        if (comma != NULL)
            *comma = '\0';
        else if (last != NULL)
            *last = '\0';
        if (count_of(sample->prompt, " is: ") > 0 && sample->answer_count > 1 && asked == 0 && end == NULL) {
            /* multivalue: one key, its values in the order of the text */
            char before[240];
            snprintf(before, sizeof before, " for %s is: ", rest);
            const char *place = sample->prompt;
            for (size_t i = 0; i < sample->answer_count; i++) {
                place = between(place, before, ".", value, sizeof value);
                assert_non_null(place);
                assert_string_equal(value, sample->answers[i]);
            }
            return;
        }
        value_of_key(sample->prompt, rest, value, sizeof value);
        assert_string_equal(value, sample->answers[asked++]);
    }
    assert_int_equal(asked, sample->answer_count);
}

static void needles_are_found(void **state) {
    (void)state;
    static const size_t answers[] = {1, 1, 1, 1, 1, 1, 4, 4}, needles[] = {1, 1, 1, 4, 0, 0, 4, 4};
    for (enum ruler_task task = RULER_NIAH_SINGLE_1; task <= RULER_NIAH_MULTIQUERY; task++)
        for (uint64_t index = 0; index < 12; index++) {
            struct ruler_sample sample = make(bytes_tokenizer, 5, task, 8192, index);
            assert_int_equal(sample.answer_count, answers[task]);
            check_needles(&sample);
            size_t count = count_of(sample.prompt, "One of the special magic ");
            if (needles[task] > 0)
                assert_int_equal(count, needles[task]);
            else
                assert_true(count > 50);
            size_t expected = task == RULER_NIAH_SINGLE_3 || task == RULER_NIAH_MULTIKEY_3 ? 36 : 7;
            for (size_t i = 0; i < sample.answer_count; i++)
                assert_int_equal(strlen(sample.answers[i]), expected);
            assert_true(ruler_task_is_needle(task) == (sample.depth >= 0));
            if (sample.depth >=
                0) { /* where it says, within a few units (needles of other keys come between) */
                const char *head = strchr(sample.prompt, '\n') + 1, *tail = question_of(sample.prompt);
                double depth =
                    (double)(strstr(sample.prompt, sample.answers[0]) - head) / (double)(tail - head);
                if (depth < sample.depth - 0.08 || depth > sample.depth + 0.08)
                    fail_msg("%s: at %.3f, said %.3f", ruler_task_name(task), depth, sample.depth);
            }
            ruler_sample_deinit(&sample);
        }
}

/* Any ten consecutive samples have at least eight of the ten depths. */
static void depths_are_spread(void **state) {
    (void)state;
    bool seen[10] = {false};
    size_t count = 0;
    for (uint64_t index = 20; index < 30; index++) {
        struct ruler_sample sample = make(bytes_tokenizer, 11, RULER_NIAH_SINGLE_1, 2048, index);
        size_t row = (size_t)(sample.depth * 10);
        assert_true(row < 10);
        count += !seen[row];
        seen[row] = true;
        ruler_sample_deinit(&sample);
    }
    assert_true(count >= 8);
}

static void variables_are_chained(void **state) {
    (void)state;
    for (uint64_t index = 0; index < 10; index++) {
        struct ruler_sample sample = make(bytes_tokenizer, 5, RULER_VT, 6000, index);
        char value[20], name[20], line[60];
        assert_non_null(between(sample.prompt, "hold the value ", " in the text", value, sizeof value));
        assert_int_equal(strlen(value), 5);
        assert_int_equal(sample.answer_count, 5);
        assert_int_equal(count_of(sample.prompt, "\nVAR "), 5);
        snprintf(line, sizeof line, " = %s\n", value);
        assert_int_equal(count_of(sample.prompt, line), 1);
        const char *place = strstr(sample.prompt, line) - 5;
        for (size_t i = 0; i < 5; i++) { /* each name is where the chain leads, further on in the text */
            snprintf(name, sizeof name, "%.5s", place);
            assert_string_equal(name, sample.answers[i]);
            assert_memory_equal(place - 5, "\nVAR ", 5);
            snprintf(line, sizeof line, " = VAR %s\n", name);
            assert_int_equal(count_of(sample.prompt, line), i < 4);
            if (i == 4) break;
            const char *next = strstr(sample.prompt, line) - 5;
            assert_true(next > place);
            place = next;
        }
        ruler_sample_deinit(&sample);
    }
}

/* Counts of the words of a text, most frequent first. */
struct word_count {
    char word[40];
    size_t count;
};

static int by_count(const void *a, const void *b) {
    size_t x = ((const struct word_count *)a)->count, y = ((const struct word_count *)b)->count;
    return (y > x) - (y < x);
}

static size_t count_words(const char *prompt, struct word_count *words, size_t words_max, bool numbered) {
    char *text = strdup(strchr(prompt, '\n') + 1), *end = strchr(text, '\n'), *rest = text;
    *end = '\0';
    size_t count = 0, number = 0;
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        if (numbered) { /* "17." then the word */
            assert_int_equal(strtoul(word, NULL, 10), ++number);
            word = strsep(&rest, " ");
        }
        size_t i = 0;
        while (i < count && strcmp(words[i].word, word) != 0) i++;
        if (i == count) {
            assert_true(count < words_max);
            snprintf(words[count++].word, sizeof words[0].word, "%s", word);
        }
        words[i].count++;
    }
    free(text);
    qsort(words, count, sizeof words[0], by_count);
    return count;
}

static void common_words_are_common(void **state) {
    (void)state;
    static const uint64_t lengths[] = {2048, 8192,
                                       60000}; /* the last takes more words than there are single ones */
    for (size_t l = 0; l < 3; l++) {
        struct ruler_sample sample = make(bytes_tokenizer, 5, RULER_CWE, lengths[l], l);
        struct word_count *words = calloc(20000, sizeof *words);
        size_t count = count_words(sample.prompt, words, 20000, true);
        assert_true(count > 30);
        for (size_t i = 0; i < count; i++) {
            size_t times = l == 0 ? (i < 10 ? 10 : 1) : (i < 10 ? 30 : 3);
            assert_int_equal(words[i].count, times);
            bool answer = false;
            for (size_t a = 0; a < 10; a++) answer = answer || strcmp(words[i].word, sample.answers[a]) == 0;
            assert_true(answer == (i < 10));
        }
        assert_true((strchr(words[0].word, '-') != NULL) == (l == 2));
        free(words);
        ruler_sample_deinit(&sample);
    }
}

static void frequent_words_are_frequent(void **state) {
    (void)state;
    for (uint64_t index = 0; index < 4; index++) {
        struct ruler_sample sample = make(bytes_tokenizer, 5, RULER_FWE, 10000, index);
        struct word_count *words = calloc(5000, sizeof *words);
        assert_true(count_words(sample.prompt, words, 5000, false) > 10);
        assert_string_equal(words[0].word, "...");
        assert_int_equal(sample.answer_count, 3);
        for (size_t i = 1; i <= 3; i++) {
            assert_string_equal(words[i].word, sample.answers[i - 1]);
            assert_true(words[i].count > words[i + 1].count);
        }
        free(words);
        ruler_sample_deinit(&sample);
    }
}

static void facts_are_in_the_documents(void **state) {
    (void)state;
    char person[60], town[60], found[60], before[100];
    for (uint64_t index = 0; index < 24; index++) {
        enum ruler_task task = index % 2 == 0 ? RULER_QA_1 : RULER_QA_2;
        struct ruler_sample sample = make(bytes_tokenizer, 5, task, 6000, index);
        const char *question = question_of(sample.prompt);
        snprintf(person, sizeof person, "?");
        if (strstr(question, "Which town") == question)
            between(question, "does ", " come", person, sizeof person);
        if (strstr(question, "What does") == question)
            between(question, "does ", " work", person, sizeof person);
        if (strstr(question, "In which year") == question)
            between(question, "was ", " born", person, sizeof person);
        if (strstr(question, "In which region") == question)
            between(question, "that ", " comes", person, sizeof person);
        snprintf(before, sizeof before, "\n%s comes from ", person);
        assert_int_equal(count_of(sample.prompt, before), 1);
        const char *document = between(sample.prompt, before, ",", town, sizeof town);
        assert_non_null(document);
        snprintf(found, sizeof found, "%s", town);
        if (question[0] == 'I' && question[9] == 'y')
            between(document, "born in ", " and", found, sizeof found);
        if (strncmp(question, "What does", 9) == 0)
            between(document, "works as a ", ".", found, sizeof found);
        if (task == RULER_QA_2) {
            snprintf(before, sizeof before, "\n%s is a town in ", town);
            assert_int_equal(count_of(sample.prompt, before), 1);
            assert_non_null(between(sample.prompt, before, ",", found, sizeof found));
        }
        assert_string_equal(found, sample.answers[0]);
        assert_true(ruler_task_is_part(task));
        ruler_sample_deinit(&sample);
    }
}

/* ---- one text for several tasks ---- */

static const enum ruler_task sharing[] = {
    RULER_NIAH_SINGLE_2,   RULER_NIAH_MULTIVALUE, RULER_VT,
    RULER_NIAH_MULTIQUERY, RULER_NIAH_SINGLE_3,   RULER_NIAH_MULTIKEY_1};
enum { SHARING = sizeof sharing / sizeof sharing[0], SHARED_KEYS = 1 + 1 + 4 + 1 + 4, SHARED_NEEDLES = 14 };

static void make_shared(struct ruler_sample *samples, const struct tokenizer *tokenizer,
                        const enum ruler_task *tasks, size_t count, uint64_t length, uint64_t index) {
    struct ruler_options options = {.seed = 5, .essay = &essay, .tokenizer = tokenizer};
    struct error error;
    assert_ok(ruler_samples_create_shared(samples, &options, tasks, count, length, index, &error), error);
}

static void free_shared(struct ruler_sample *samples, size_t count) {
    for (size_t i = 0; i < count; i++) ruler_sample_deinit(&samples[i]);
}

/* The keys of all needles are different but for multivalue's, whose four are one. */
static void check_shared_keys(const char *prompt) {
    char keys[SHARED_NEEDLES][60];
    size_t count = 0, different = 0;
    for (const char *c = prompt; (c = strstr(c, "One of the special magic ")) != NULL; c++) {
        assert_true(count < SHARED_NEEDLES);
        assert_non_null(between(c, " for ", " is: ", keys[count], sizeof keys[count]));
        size_t same = 0;
        for (size_t i = 0; i < count; i++) same += strcmp(keys[i], keys[count]) == 0;
        different += same == 0;
        count++;
    }
    assert_int_equal(count, SHARED_NEEDLES);
    assert_int_equal(different, SHARED_KEYS);
}

static void check_shared_chain(const struct ruler_sample *sample) {
    char line[120], value[20];
    assert_int_equal(count_of(sample->prompt, "\nVAR "), 5);
    assert_non_null(between(sample->prompt, "hold the value ", " in the text", value, sizeof value));
    const char *place = sample->prompt;
    for (size_t i = 0; i < 5; i++) {
        snprintf(line, sizeof line, "\nVAR %s = %s%s\n", sample->answers[i], i > 0 ? "VAR " : "",
                 i > 0 ? sample->answers[i - 1] : value);
        assert_int_equal(count_of(sample->prompt, line), 1);
        assert_int_equal(count_of(sample->prompt, sample->answers[i]), i < 4 ? 2 : 1);
        const char *next = strstr(sample->prompt, line);
        assert_true(next >= place);
        place = next;
    }
}

static void a_shared_text_has_every_answer(void **state) {
    (void)state;
    for (uint64_t index = 0; index < 8; index++) {
        struct ruler_sample samples[SHARING];
        make_shared(samples, bytes_tokenizer, sharing, SHARING, 12000, index);
        size_t text = (size_t)(question_of(samples[0].prompt) - samples[0].prompt);
        for (size_t i = 0; i < SHARING; i++) {
            const char *question = question_of(samples[i].prompt);
            assert_int_equal((size_t)(question - samples[i].prompt), text);
            assert_memory_equal(samples[i].prompt, samples[0].prompt, text);
            check_answer_text(&samples[i]);
            if (sharing[i] == RULER_VT)
                check_shared_chain(&samples[i]);
            else
                check_needles(&samples[i]);
            assert_true((samples[i].depth >= 0) == ruler_task_is_needle(sharing[i]));
            if (samples[i].depth < 0) continue;
            double depth =
                (double)(strstr(samples[i].prompt, samples[i].answers[0]) - samples[i].prompt) / (double)text;
            if (depth < samples[i].depth - 0.1 || depth > samples[i].depth + 0.1)
                fail_msg("%s: at %.3f, said %.3f", ruler_task_name(sharing[i]), depth, samples[i].depth);
        }
        check_shared_keys(samples[0].prompt);
        free_shared(samples, SHARING);
    }
}

/* The task that needs most is exact; the others are as long but for their question and answer. */
static void shared_lengths_are_exact(void **state) {
    (void)state;
    static const uint64_t lengths[] = {2500, 4096, 20000};
    for (size_t t = 0; t < 2; t++) {
        const struct tokenizer *tokenizer = t == 0 ? bytes_tokenizer : bpe_tokenizer;
        for (size_t l = t == 0; l < 3; l++) {
            struct ruler_sample samples[SHARING];
            make_shared(samples, tokenizer, sharing, SHARING, lengths[l], l);
            size_t fullest = 0;
            for (size_t i = 0; i < SHARING; i++) {
                size_t used = samples[i].tokens.count + samples[i].token_budget;
                assert_true(used <= lengths[l]);
                if (used > samples[fullest].tokens.count + samples[fullest].token_budget) fullest = i;
            }
            check_size(tokenizer, &samples[fullest], RULER_NIAH_MULTIVALUE, lengths[l]);
            free_shared(samples, SHARING);
        }
    }
}

static void a_shared_text_comes_from_its_seed(void **state) {
    (void)state;
    struct ruler_sample a[3], b[3], other[3], fewer[2];
    make_shared(a, bpe_tokenizer, sharing, 3, 3000, 4);
    make_shared(b, bpe_tokenizer, sharing, 3, 3000, 4);
    make_shared(other, bpe_tokenizer, sharing, 3, 3000, 5);
    make_shared(fewer, bpe_tokenizer, sharing, 2, 3000, 4);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(a[i].prompt, b[i].prompt);
        assert_string_equal(a[i].answer_text, b[i].answer_text);
        assert_string_not_equal(a[i].answer_text, other[i].answer_text);
    }
    assert_int_equal(count_of(fewer[0].prompt, "VAR "), 0);
    assert_true(count_of(a[0].prompt, "VAR ") > 0);
    assert_false(ruler_task_can_share(RULER_NIAH_MULTIKEY_2));
    free_shared(a, 3), free_shared(b, 3), free_shared(other, 3), free_shared(fewer, 2);
    struct ruler_options options = {.seed = 5, .essay = &essay, .tokenizer = bytes_tokenizer};
    struct error error;
    assert_int_equal(ruler_samples_create_shared(a, &options, sharing, 3, 600, 0, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "a shared text: needs a length of "));
}

int main(void) {
    process_binary = LOAM_LAB_BINARY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_exact),
        cmocka_unit_test(too_short_is_said),
        cmocka_unit_test(same_seed_same_sample),
        cmocka_unit_test(samples_stay_what_they_were),
        cmocka_unit_test(needles_are_found),
        cmocka_unit_test(depths_are_spread),
        cmocka_unit_test(variables_are_chained),
        cmocka_unit_test(common_words_are_common),
        cmocka_unit_test(frequent_words_are_frequent),
        cmocka_unit_test(facts_are_in_the_documents),
        cmocka_unit_test(a_shared_text_has_every_answer),
        cmocka_unit_test(shared_lengths_are_exact),
        cmocka_unit_test(a_shared_text_comes_from_its_seed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
