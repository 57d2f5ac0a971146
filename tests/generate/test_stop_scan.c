/* stop_scan: however a text is cut into pieces, the output ends before the stop string that is complete first. */
#include "testing.h"

#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "generate/stop_scan.h"

enum { TEXT_MAX = 64 };

/* What is passed on of text, given in pieces that end where a bit of `cuts` is set; at its end all is passed on. */
static bool passes(const char *text, uint64_t cuts, const char *const *stops, size_t stop_count,
                   char output[TEXT_MAX + 1]) {
    struct stop_scan scan = {.stops = stops, .stop_count = stop_count};
    struct error error;
    size_t length = strlen(text), written = 0, begin = 0, ready;
    bool found = false;
    for (size_t i = 0; i < length && !found; i++) {
        if ((cuts >> i & 1) == 0 && i + 1 < length) continue;
        assert_ok(stop_scan_push(&scan, text + begin, i + 1 - begin, &ready, &found, &error), error);
        memcpy(output + written, scan.held.bytes, ready);
        written += ready;
        stop_scan_drop(&scan, ready);
        begin = i + 1;
    }
    if (!found) {
        memcpy(output + written, scan.held.bytes, scan.held.length);
        written += scan.held.length;
    } else {
        assert_int_equal(scan.held.length, 0);
    }
    output[written] = '\0';
    stop_scan_deinit(&scan);
    return found;
}

static void test_cases(void **state) {
    (void)state;
    static const struct {
        const char *text, *stops[3], *output;
        bool found;
    } cases[] = {
        {"one two three", {"two"}, "one ", true},
        {"one two three", {"four"}, "one two three", false},
        {"one two", {"two"}, "one ", true},
        {"one tw", {"two"}, "one tw", false},   /* the beginning of one, then the end */
        {"aaab", {"aab"}, "a", true},           /* begins anew within itself */
        {"abcabd", {"abd", "cab"}, "ab", true}, /* the first in the text */
        {"xabcd", {"abcd", "bc"}, "xa", true},  /* complete first, though another begins before it */
        {"abcd", {"bcd", "bc"}, "a", true},     /* one within another */
        {"abcdx", {"bcdy", "cd"}, "ab", true},  /* an earlier one that fails later */
        {"\n\nUser: x", {"\nUser:", "###"}, "\n", true},
        {"\xC3\xA9 \xE2\x82\xAC", {"\xE2\x82\xAC"}, "\xC3\xA9 ", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t stop_count = 0;
        while (stop_count < 3 && cases[i].stops[stop_count] != NULL) stop_count++;
        for (uint64_t cuts = 0; cuts < UINT64_C(1) << strlen(cases[i].text); cuts += 1) {
            char output[TEXT_MAX + 1];
            assert_int_equal(passes(cases[i].text, cuts, cases[i].stops, stop_count, output), cases[i].found);
            assert_string_equal(output, cases[i].output);
        }
    }
}

/* Against a search of the whole text.  Two letters make overlaps frequent. */
static void test_random(void **state) {
    (void)state;
    struct random random;
    random_init(&random, 20);
    size_t found_count = 0;
    for (size_t round = 0; round < 20000; round++) {
        char text[TEXT_MAX + 1] = "", words[3][6] = {""}, output[TEXT_MAX + 1];
        const char *stops[3] = {words[0], words[1], words[2]};
        size_t length = 1 + random_below(&random, TEXT_MAX - 1), stop_count = random_below(&random, 3) + 1;
        for (size_t i = 0; i < length; i++) text[i] = (char)('a' + random_below(&random, 2));
        for (size_t w = 0; w < stop_count; w++)
            for (size_t i = 0, n = 2 + random_below(&random, 4); i < n; i++)
                words[w][i] = (char)('a' + random_below(&random, 2));
        const char *first = text + length, *first_end = text + length + 1;
        for (size_t w = 0; w < stop_count; w++) {
            const char *at = strstr(text, stops[w]);
            if (at == NULL) continue;
            const char *end = at + strlen(stops[w]);
            if (end > first_end || (end == first_end && at > first)) continue;
            first = at;
            first_end = end;
        }
        bool found = passes(text, random_next(&random) & random_next(&random), stops, stop_count, output);
        assert_int_equal(found, *first != '\0');
        text[first - text] = '\0';
        assert_string_equal(output, text);
        found_count += found;
    }
    assert_true(found_count > 1000 && found_count < 19999); /* the seed is fixed: both outcomes are tested */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
