/* The scanners against the published expressions under PCRE2, on random Unicode.
 *
 * Characters come from runs of classes and from a pool of hard cases, so that the alternatives of every
 * expression meet.  PCRE2 10.42 knows Unicode 14, utf8proc 2.8 knows 15: characters that only one of them
 * assigns, or that they class differently, stay out of the pool (the test says how many).
 * LOAM_SEED=N repeats a run.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "testing.h"

#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "patterns.h"
#include "seed.h"
#include "token/pre_tokenizer_internal.h"
#include "token/unicode.h"

enum { CODES = 0x110000, PIECES_MAX = 1024, TEXT_BYTES_MAX = 512, STRINGS_PER_PRE = 20000 };

static pcre2_code *compile(const char *pattern) {
    int number;
    PCRE2_SIZE offset;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &number, &offset, NULL);
    if (!code) fail_msg("pattern at %zu: %s", (size_t)offset, pattern);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return code;
}

/* Which characters both libraries know alike: usable[code]. */
static uint8_t *usable;
static uint32_t *pool[9]; /* usable codes by class */
static size_t pool_count[9];

static const struct {
    unsigned class;
    const char *pattern;
} class_rows[9] = {{UNICODE_UPPER, "[\\p{Lu}\\p{Lt}]"},
                   {UNICODE_LOWER, "\\p{Ll}"},
                   {UNICODE_UNCASED, "[\\p{Lm}\\p{Lo}]"},
                   {UNICODE_MARK, "\\p{M}"},
                   {UNICODE_NUMBER, "\\p{N}"},
                   {UNICODE_PUNCTUATION, "\\p{P}"},
                   {UNICODE_SYMBOL, "\\p{S}"},
                   {UNICODE_SEPARATOR, "\\p{Z}"},
                   {UNICODE_OTHER, "\\p{C}"}};

static int compare_classes(void **state) {
    (void)state;
    usable = calloc(CODES, 1);
    size_t differ = 0;
    pcre2_code *codes[9];
    for (size_t c = 0; c < 9; c++) {
        codes[c] = compile(class_rows[c].pattern);
        pool[c] = malloc(CODES * sizeof *pool[c]);
    }
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    for (uint32_t code = 1; code < CODES; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        uint8_t text[4];
        size_t length = utf8_encode(code, text);
        unsigned classes = unicode_classes(code) & 0x1FF;
        for (size_t c = 0; c < 9; c++) {
            bool match = pcre2_match(codes[c], text, length, 0, PCRE2_NO_UTF_CHECK, data, NULL) > 0;
            if (!match) continue;
            if (classes == class_rows[c].class) {
                usable[code] = 1;
                pool[c][pool_count[c]++] = code;
            } else {
                differ++;
            }
        }
    }
    pcre2_match_data_free(data);
    for (size_t c = 0; c < 9; c++) pcre2_code_free(codes[c]);
    print_message("%zu characters left out, classed differently by PCRE2 and utf8proc\n", differ);
    return differ < 6000 ? 0 : -1; /* Unicode 15 added 4,489; more would be a fault of ours */
}

static int free_pools(void **state) {
    (void)state;
    for (size_t c = 0; c < 9; c++) free(pool[c]);
    free(usable);
    return 0;
}

static void every_character_has_one_class(void **state) {
    (void)state;
    size_t spaces = 0, newlines = 0;
    for (uint32_t code = 0; code < CODES; code++) {
        unsigned classes = unicode_classes(code), base = classes & 0x1FF;
        assert_true(base != 0 && (base & (base - 1)) == 0);
        if (classes & UNICODE_SPACE) spaces++;
        if (classes & UNICODE_NEWLINE) newlines++;
        if (base == UNICODE_SEPARATOR) assert_true(classes & UNICODE_SPACE);
    }
    assert_int_equal(spaces, 25);
    assert_int_equal(newlines, 2);
}

/* Text that makes the alternatives meet: runs of a class, single hard characters, contractions. */
static size_t random_text(struct random *random, uint8_t *text) {
    static const char *const hard[] = {" ",
                                       " ",
                                       "\n",
                                       "\r",
                                       "\r\n",
                                       "\t",
                                       "'",
                                       "'s",
                                       "'S",
                                       "'ll",
                                       "'Ve",
                                       "'r",
                                       "'\xC5\xBF",
                                       "/",
                                       "$",
                                       "`",
                                       "~",
                                       "a",
                                       "Z",
                                       "é",
                                       "ǅ",
                                       "ʰ",
                                       "ª",
                                       "中",
                                       "ー",
                                       "\xCC\x81",
                                       "\xE0\xA4\xBE",
                                       "1",
                                       "12",
                                       "१",
                                       "½",
                                       "\xC2\xA0",
                                       "\xE3\x80\x80",
                                       "\xC2\x85",
                                       "\xE2\x80\x8B",
                                       "\xE2\x80\x8D",
                                       "😀",
                                       "한",
                                       "　。",
                                       "！",
                                       "\x01"};
    size_t length = 0, steps = 1 + random_next(random) % 12;
    for (size_t s = 0; s < steps; s++) {
        uint64_t draw = random_next(random);
        if (draw % 3 == 0) {
            const char *piece = hard[(draw >> 8) % (sizeof hard / sizeof hard[0])];
            memcpy(text + length, piece, strlen(piece));
            length += strlen(piece);
            continue;
        }
        size_t c = (draw >> 8) % 9, run = 1 + (draw >> 16) % 5;
        for (size_t i = 0; i < run; i++) {
            /* half from the first, common, characters of the class */
            size_t choices = random_next(random) % 2 && pool_count[c] > 64 ? 64 : pool_count[c];
            length += utf8_encode(pool[c][random_next(random) % choices], text + length);
        }
    }
    assert_true(length <= TEXT_BYTES_MAX);
    return length;
}

/* Ends of pieces; a piece of the stage before is split alone, what does not match is a piece. */
static size_t split_by_pattern(pcre2_code *code, pcre2_match_data *data, const uint8_t *text,
                               const size_t *ends, size_t count, size_t *split) {
    size_t start = 0, made = 0;
    for (size_t i = 0; i < count; start = ends[i++]) {
        size_t length = ends[i] - start, at = 0, done = 0;
        while (at < length) {
            int found = pcre2_match(code, text + start, length, at, PCRE2_NO_UTF_CHECK, data, NULL);
            if (found <= 0) break;
            PCRE2_SIZE *match = pcre2_get_ovector_pointer(data);
            assert_true(match[1] > match[0]);
            if (match[0] > done) split[made++] = start + match[0];
            split[made++] = start + match[1];
            at = done = match[1];
        }
        if (done < length) split[made++] = ends[i];
        assert_true(made < PIECES_MAX - 4);
    }
    return made;
}

static void fail_split(const char *pre, const uint8_t *text, size_t length, size_t got, size_t expected) {
    char hex[4 * TEXT_BYTES_MAX] = "";
    for (size_t i = 0; i < length; i++) sprintf(hex + 3 * i, "%02x ", text[i]);
    fail_msg("%s: piece ends at %zu, expected %zu, in '%.*s' = %s", pre, got, expected, (int)length, text,
             hex);
}

static void check_row(const struct pattern_row *row, struct random *random) {
    pcre2_code *codes[6];
    size_t stages = 0;
    for (; stages < 6 && row->stages[stages]; stages++) codes[stages] = compile(row->stages[stages]);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    const struct pre_tokenizer_name *name = pre_tokenizer_find(row->pre, strlen(row->pre));
    assert_non_null(name);
    size_t pieces = 0;
    for (size_t n = 0; n < STRINGS_PER_PRE; n++) {
        uint8_t text[TEXT_BYTES_MAX + 64];
        size_t length = random_text(random, text), count = 1;
        size_t ends[2][PIECES_MAX];
        ends[0][0] = length;
        for (size_t s = 0; s < stages; s++)
            count = split_by_pattern(codes[s], data, text, ends[s % 2], count, ends[(s + 1) % 2]);
        const size_t *expected = ends[stages % 2];
        struct pre_tokenizer_cursor cursor;
        pre_tokenizer_begin(&cursor, name->pre_tokenizer, text, length);
        size_t start, end, i = 0;
        for (; pre_tokenizer_next(&cursor, &start, &end); i++)
            if (i >= count || end != expected[i])
                fail_split(row->pre, text, length, end, i < count ? expected[i] : 0);
        assert_int_equal(i, count);
        pieces += count;
    }
    print_message("%s: %d strings, %zu pieces\n", row->pre, STRINGS_PER_PRE, pieces);
    pcre2_match_data_free(data);
    for (size_t s = 0; s < stages; s++) pcre2_code_free(codes[s]);
}

static void scanners_follow_patterns(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(20261121));
    for (size_t r = 0; r < PATTERN_ROWS; r++)
        if (test_takes_next()) check_row(&pattern_rows[r], &random);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_character_has_one_class),
                                       cmocka_unit_test(scanners_follow_patterns)};
    return cmocka_run_group_tests(tests, compare_classes, free_pools);
}
