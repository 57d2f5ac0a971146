/* The main job on a real language model: a chapter of a book is read once, and questions about it are answered. */
#include "testing.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"
#include "real_model.h"

enum { CHAPTER_TOKENS_MIN = 4600, BEGINNING_BYTES = 6000 };

static char chapter_path[200], beginning_path[200], json_path[200], folder[200];

/* "A Scandal in Bohemia", I, out of the committed text, and the beginning of it. */
static int write_chapter(void **state) {
    (void)state;
    snprintf(chapter_path, sizeof chapter_path, "%s", scratch_path("chapter.txt"));
    snprintf(beginning_path, sizeof beginning_path, "%s", scratch_path("beginning.txt"));
    snprintf(json_path, sizeof json_path, "%s", scratch_path("run.json"));
    snprintf(folder, sizeof folder, "%s", scratch_path("kv"));
    FILE *from = fopen(LOAM_SOURCE_DIR "/tests/data/a-scandal-in-bohemia.txt", "r"),
         *to = fopen(chapter_path, "w"), *beginning = fopen(beginning_path, "w");
    char *line = NULL;
    size_t capacity = 0;
    bool is_in = false;
    if (from == NULL || to == NULL || beginning == NULL) return -1;
    while (getline(&line, &capacity, from) > 0 && strcmp(line, "II\n") != 0) {
        if (is_in) fputs(line, to);
        if (is_in && ftell(beginning) < BEGINNING_BYTES) fputs(line, beginning);
        is_in = is_in || strcmp(line, "I\n") == 0;
    }
    free(line);
    fclose(from);
    return fclose(to) | fclose(beginning);
}

/* How the answer must begin, and what it must contain: words at which the likeliest token leads the next by half a
 * nat, on AVX2 as on AVX-512.  Other words depend on the order of sums ("wears", "is wearing"). */
static json_t *ask(const char *question, const char *begins, const char *says) {
    struct process_result r = process_run(&(struct process_request){
        .arguments =
            (const char *const[]){"run", "-q", "-m", REAL_MODEL, "-f", chapter_path, "-p", question, "--temp",
                                  "0", "-n", "12", "--json", json_path, "--kv-disk", folder, NULL}});
    if (r.code != 0 || strncmp(r.output, begins, strlen(begins)) != 0 || strstr(r.output, says) == NULL)
        fail_msg("exit %d: '%s' %s", r.code, r.output, r.complaints);
    process_deinit(&r);
    json_error_t why;
    json_t *root = json_load_file(json_path, 0, &why);
    if (root == NULL) fail_msg("%s", why.text);
    return root;
}

static json_int_t prefill_figure(json_t *root, const char *name) {
    return json_integer_value(json_object_get(json_object_get(root, "prefill"), name));
}

static void a_chapter_is_read_once_and_asked(void **state) {
    (void)state;
    json_t *first = ask("Why does the King wear a mask?", "The King ", " a mask to conceal his ");
    assert_int_equal(prefill_figure(first, "reused_tokens"), 0);
    assert_true(prefill_figure(first, "tokens") > CHAPTER_TOKENS_MIN);
    json_t *second =
        ask("Describe Sherlock Holmes in one sentence.", "Sherlock Holmes is a ", "brilliant and ");
    assert_true(prefill_figure(second, "tokens") <= 64);
    assert_true(prefill_figure(second, "reused_tokens") > CHAPTER_TOKENS_MIN);
    json_decref(first);
    json_decref(second);
}

/* Spans name places of the text: theirs stands there, and each stands out.  A chapter's beginning is text enough: it is
 * read anew. */
static void an_answer_is_explained(void **state) {
    (void)state;
    struct process_result r = process_run(&(struct process_request){
        .arguments = (const char *const[]){"explain", "-q", "-m", REAL_MODEL, "-f", beginning_path, "-p",
                                           "Who is Irene Adler?", "--temp", "0", "-n", "12", "--spans", "3",
                                           "--json", json_path, NULL}});
    assert_int_equal(r.code, 0);
    json_error_t why;
    json_t *root = json_load_file(json_path, 0, &why), *spans = json_object_get(root, "spans"), *span;
    char *beginning = NULL;
    size_t index, bytes = 0;
    FILE *file = fopen(beginning_path, "r");
    assert_true(file != NULL && getdelim(&beginning, &bytes, '\0', file) > 0 && fclose(file) == 0);
    assert_int_equal(json_array_size(spans), 3);
    assert_int_equal(json_array_size(json_object_get(root, "output_tokens")), 12);
    json_array_foreach(spans, index, span) {
        const char *text = json_string_value(json_object_get(span, "text"));
        const size_t begin = (size_t)json_integer_value(json_object_get(span, "begin"));
        size_t line = 1;
        for (size_t i = 0; i < begin; i++) line += beginning[i] == '\n';
        assert_memory_equal(beginning + begin, text, strlen(text));
        assert_int_equal(json_integer_value(json_object_get(span, "line")), line);
        assert_true(json_number_value(json_object_get(span, "lift")) > 1.5);
        char place[300];
        snprintf(place, sizeof place, "%s:%zu: ", beginning_path, line);
        assert_non_null(strstr(r.output, place));
    }
    free(beginning);
    json_decref(root);
    process_deinit(&r);
    struct process_result none = LOAM("explain", "-m", REAL_MODEL, "-p", "Who?");
    assert_int_equal(none.code, 2);
    assert_non_null(strstr(none.complaints, "expected -f FILE"));
    process_deinit(&none);
}

int main(void) {
    if (real_model_missing() != 0) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_chapter_is_read_once_and_asked),
                                       cmocka_unit_test(an_answer_is_explained)};
    return cmocka_run_group_tests(tests, write_chapter, NULL);
}
