/* Metrics and intervals against values worked out by hand, sentences, and the needle picture. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/eval/divergence.h"
#include "lab/eval/essay.h"
#include "lab/eval/heat_map.h"
#include "lab/eval/match.h"

static void near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance)) fail_msg("found %.9g, expected %.9g", found, expected);
}

static void string_match(void **state) {
    (void)state;
    static const char *const references[] = {"1234567", "ABCDE", "Ashford"};
    const char *answer = " 1234567, abcde and Ash ford.";
    size_t length = strlen(answer);
    near(match_all(answer, length, references, 3), 2.0 / 3, 1e-15); /* case aside; a blank is a difference */
    near(match_all(answer, length, references, 1), 1, 0);
    near(match_part(answer, length, references, 3), 1, 0);
    near(match_part(answer, length, references + 2, 1), 0, 0);
    near(match_all("", 0, references, 3), 0, 0);
    near(match_part(" 123456", 7, references, 1), 0, 0);      /* a part of the reference is not it */
    assert_false(match_contains("1234567", 6, "1234567", 7)); /* nothing beyond the length */
    assert_true(match_contains("x", 1, "X", 1));
}

/* Wilson (1927): (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.959964; by hand:
 *   0 of 10:   z^2 = 3.841459; high = z^2 / (10 + z^2) = 0.277533
 *   9 of 10:   centre (0.9 + 0.192073) / 1.384146 = 0.788986; half 1.959964 sqrt(0.009 + 0.00960365) / 1.384146
 *              = 0.193137
 *   95 of 100: centre 0.969207 / 1.038415 = 0.933353; half 1.959964 sqrt(0.000475 + 0.0000960365) / 1.038415
 *              = 0.045104 */
static void wilson(void **state) {
    (void)state;
    struct interval i = match_wilson(0, 10);
    near(i.low, 0, 1e-12);
    near(i.high, 0.277533, 1e-6);
    i = match_wilson(9, 10);
    near(i.low, 0.788986 - 0.193137, 2e-6);
    near(i.high, 0.788986 + 0.193137, 2e-6);
    i = match_wilson(95, 100);
    near(i.low, 0.933353 - 0.045104, 2e-6);
    near(i.high, 0.933353 + 0.045104, 2e-6);
    i = match_wilson(10, 10);
    near(i.low, 1 - 0.277533, 1e-6);
    near(i.high, 1, 1e-12);
    i = match_wilson(0, 0);
    near(i.high - i.low, 1, 0);
}

/* Two tasks: 0.5, 1, 1, 0.5 (mean 3/4, s^2 = 1/12) and 0, 1 (mean 1/2, s^2 = 1/2); a third without samples. */
static void means_of_tasks(void **state) {
    (void)state;
    const struct task_scores tasks[] = {
        {3, 2.5, 4}, {9, 9, 9}, {1, 1, 2}, {9, 9, 9}, {0, 0, 0}}; /* every second one */
    struct mean_of_tasks mean = match_mean(tasks, 2, 3);
    assert_int_equal(mean.count, 2);
    near(mean.mean, 0.625, 1e-12);
    near(mean.error, sqrt(1.0 / 12 / 4 + 0.5 / 2) / 2, 1e-12);
    mean = match_mean(tasks, 1, 1);
    near(mean.error, sqrt(1.0 / 12 / 4), 1e-12);
    const struct task_scores alike[] = {{20, 20, 20}, {1, 1, 1}};
    near(match_mean(alike, 1, 1).error, 0, 0);
    near(match_mean(alike, 1, 2).mean, 1, 0);
    assert_true(isnan(match_mean(alike, 1, 2).error)); /* one sample tells no spread */
    assert_true(isnan(match_mean(tasks + 4, 1, 1).error));
}

/* p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KLD = 1/2 ln 2 + 0 - 1/4 ln 2 = 1/4 ln 2. */
static void divergences(void **state) {
    (void)state;
    const float base_logits[3] = {5 + logf(2), 5, 5}, own_logits[3] = {-3, -3, -3 + logf(2)};
    float base[3], own[3];
    log_softmax(base_logits, 3, base);
    log_softmax(own_logits, 3, own);
    near((double)base[0], log(0.5), 1e-6);
    near(kl_divergence(base, own, 3, -INFINITY), 0.25 * log(2), 1e-6);
    near(kl_divergence(base, base, 3, -INFINITY), 0, 0);
    struct divergence figures = {0};
    divergence_add(&figures, base, own, 3, -INFINITY, 0);
    divergence_add(&figures, base, base, 3, -INFINITY, 1);
    near(tally_mean(&figures.kld), 0.125 * log(2), 1e-6);
    near(tally_mean(&figures.loss), (log(4) + log(4)) / 2, 1e-6);
    near(tally_mean(&figures.base_loss), (log(2) + log(4)) / 2, 1e-6);
    near(tally_mean(&figures.delta_p), -0.125, 1e-6);
    assert_int_equal(figures.same_top, 1);
    struct tally t = {0};
    for (int i = 1; i <= 4; i++) tally_add(&t, i); /* variance 5/4; error sqrt(5/4 / 3) */
    near(tally_error(&t), sqrt(5.0 / 12), 1e-12);
    assert_int_equal(top_of((float[]){1, 3, 3, 2}, 4), 1);
}

static void check_sentences(const char *text, const char *const *expected, size_t count) {
    struct essay essay;
    struct error error;
    assert_ok(essay_create(&essay, text, strlen(text), "text", &error), error);
    for (size_t i = 0; i < essay.sentence_count && i < count; i++) {
        const struct essay_sentence *s = &essay.sentences[i];
        if (s->length != strlen(expected[i]) || memcmp(s->bytes, expected[i], s->length) != 0)
            fail_msg("sentence %zu: '%.*s', expected '%s'", i, (int)s->length, s->bytes, expected[i]);
    }
    assert_int_equal(essay.sentence_count, count);
    essay_deinit(&essay);
}

static void sentences(void **state) {
    (void)state;
    static const char *const folded[] = {"Mr. Holmes saw it.", "\"Did he?\"", "So E. A. Poe says!)", "A head",
                                         "and a tail"};
    check_sentences("  Mr. Holmes\n saw  it. \"Did he?\" So E. A. Poe says!) A head\n\nand a tail", folded,
                    5);
    static const char *const quoted[] = {"\xe2\x80\x9cYes.\xe2\x80\x9d", "3.5 is one.", "No\xe2\x80\x94!"};
    check_sentences("\xe2\x80\x9cYes.\xe2\x80\x9d 3.5 is one. No\xe2\x80\x94!", quoted, 3);
    struct essay essay;
    struct error error;
    assert_int_equal(essay_create(&essay, " \n ", 3, "blank", &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "blank"));
    char long_text[3000];
    for (size_t i = 0; i < sizeof long_text; i++) long_text[i] = i % 7 == 6 ? ' ' : 'x';
    assert_ok(essay_create(&essay, long_text, sizeof long_text, "long", &error), error);
    assert_in_range(essay.sentence_count, 7, 8); /* cut behind 400 bytes each */
    essay_deinit(&essay);
    assert_ok(essay_create(&essay, essay_builtin, essay_builtin_length, "builtin", &error), error);
    assert_in_range(essay.sentence_count, 500, 900);
    assert_int_equal(memcmp(essay.sentences[1].bytes, "I", 1), 0);
    essay_deinit(&essay);
}

static void colours(void **state) {
    (void)state;
    char c[8];
    assert_string_equal(heat_map_colour(0, c), "#f0496e");
    assert_string_equal(heat_map_colour(0.5, c), "#ebb839");
    assert_string_equal(heat_map_colour(1, c), "#0cd79f");
    assert_string_equal(heat_map_colour(-1, c), "#f0496e");
    /* between #f0 and #eb: 0xed or 0xee; #49 and #b8: 0x80 or 0x81; #6e and #39: 0x53 or 0x54 */
    assert_string_equal(heat_map_colour(0.25, c), "#ee8154");
}

/* Every element is closed in order, and text has no bare '<' or '&'. */
static void check_well_formed(const char *svg) {
    const char *open[32];
    size_t lengths[32], depth = 0, rects = 0;
    for (const char *c = svg; *c != '\0'; c++) {
        if (*c == '&' && strncmp(c, "&lt;", 4) != 0 && strncmp(c, "&amp;", 5) != 0 &&
            strncmp(c, "&gt;", 4) != 0)
            fail_msg("bare &: %.40s", c);
        if (*c != '<') continue;
        const char *end = strchr(c, '>');
        assert_non_null(end);
        if (c[1] == '?') continue;
        size_t length = strcspn(c + 1, " />");
        if (c[1] == '/') {
            length = strcspn(c + 2, ">");
            assert_true(depth > 0);
            depth--;
            if (length != lengths[depth] || memcmp(open[depth], c + 2, length) != 0)
                fail_msg("closed %.*s", (int)length, c + 2);
        } else if (end[-1] != '/') {
            assert_true(depth < 32);
            open[depth] = c + 1;
            lengths[depth++] = length;
        }
        rects += strncmp(c, "<rect x", 7) == 0;
        c = end;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(rects, 3 + 20); /* three cells with samples, and the key */
}

static void picture(void **state) {
    (void)state;
    static struct heat_map map = {.title = "a < b & c",
                                  .panel_count = 2,
                                  .length_count = 2,
                                  .panels = {"full", "<x>"},
                                  .lengths = {4096, 8192}};
    heat_map_add(&map, 0, 0, 0, 1);
    heat_map_add(&map, 0, 0, 0.05, 0);
    heat_map_add(&map, 1, 1, 1, 1);
    heat_map_add(&map, 1, 1, 0.55, 0);
    assert_int_equal(map.cells[0][0][0].count, 2);
    assert_int_equal(map.cells[1][1][HEAT_MAP_DEPTHS - 1].count, 1);
    assert_int_equal(map.cells[1][1][5].count, 1);
    struct text text = {0};
    heat_map_write(&map, &text);
    assert_false(text.failed);
    check_well_formed(text.bytes);
    assert_non_null(strstr(text.bytes, "fill=\"#ebb839\"")); /* half of two */
    assert_non_null(strstr(text.bytes, "a &lt; b &amp; c"));
    assert_non_null(strstr(text.bytes, "8192 tokens, depth 50-60%: 0.0% of 1"));
    text_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(string_match), cmocka_unit_test(wilson),    cmocka_unit_test(means_of_tasks),
        cmocka_unit_test(divergences),  cmocka_unit_test(sentences), cmocka_unit_test(colours),
        cmocka_unit_test(picture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
