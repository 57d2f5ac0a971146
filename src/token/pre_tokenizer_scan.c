/* The scanners, with their published expressions above them.
 *
 * Two facts make the greedy expressions cheap to follow by hand.  (1) An optional first character may come from a
 * class that overlaps the body ([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+ on a mark): taking it or not ends at the same place.
 * (2) Backtracking only gives back the tail of one run, so it is enough to remember the last good position while
 * scanning forward.
 */
#include "token/pre_tokenizer_internal.h"
#include "token/unicode.h"

/* Classes of the character at `at`; 0 at the end of the view.  *next: where the next character begins. */
static inline unsigned class_at(const struct text_view *view, size_t at, size_t *next) {
    if (at >= view->end) {
        *next = at;
        return 0;
    }
    uint8_t byte = view->text[at];
    if (byte < 128) {
        *next = at + 1;
        return unicode_ascii_classes[byte];
    }
    struct unicode_character character = unicode_decode(view->text, view->end, at);
    *next = at + character.length;
    return unicode_classes(character.code);
}

static inline unsigned classes(const struct text_view *view, size_t at) {
    size_t next;
    return class_at(view, at, &next);
}

/* End of the run of characters with one of the classes of mask. */
static size_t run_of(const struct text_view *view, size_t at, unsigned mask) {
    size_t next;
    while (class_at(view, at, &next) & mask) at = next;
    return at;
}

/* End of the run of characters with none of the classes of mask. */
static size_t run_without(const struct text_view *view, size_t at, unsigned mask) {
    size_t next;
    for (unsigned c; (c = class_at(view, at, &next)) != 0 && !(c & mask);) at = next;
    return at;
}

static size_t run_of_at_max(const struct text_view *view, size_t at, unsigned mask, size_t count_max) {
    size_t next;
    for (; count_max > 0 && class_at(view, at, &next) & mask; count_max--) at = next;
    return at;
}

/* 's|'t|'re|'ve|'m|'ll|'d at `at`; 0 when none.  With fold as (?i:...) reads it: ASCII case, and U+017F
 * (long s), which folds to s.  No other character folds into these letters: the Kelvin sign folds to k,
 * and the ligature U+FB06 (st) would need a t behind the s. */
static size_t contraction_end(const struct text_view *view, size_t at, bool fold) {
    if (at + 1 >= view->end || view->text[at] != '\'') return 0;
    const uint8_t *t = view->text + at;
    size_t left = view->end - at;
    if (fold && left >= 3 && t[1] == 0xC5 && t[2] == 0xBF) return at + 3;
    uint8_t lower = fold ? 0x20 : 0;
    uint8_t first = t[1] < 128 ? t[1] | lower : 0;
    uint8_t second = left >= 3 && t[2] < 128 ? t[2] | lower : 0;
    switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd': return at + 2;
    case 'r':
    case 'v': return second == 'e' ? at + 3 : 0;
    case 'l': return second == 'l' ? at + 3 : 0;
    default: return 0;
    }
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line end of the run; else all of the run but the
 * space that a following word takes; else the only one.  Without newlines the first branch is missing;
 * the lone \s+ may be missing too, since what it would match is then an unmatched piece of one character. */
static size_t space_end(const struct text_view *view, size_t at, bool newlines) {
    size_t end = at, last = at, newline_end = at, next;
    for (unsigned c; (c = class_at(view, end, &next)) & UNICODE_SPACE; end = next) {
        last = end;
        if (c & UNICODE_NEWLINE) newline_end = next;
    }
    if (newlines && newline_end > at) return newline_end;
    return end == view->end || last == at ? end : last;
}

/* How the expressions that descend from OpenAI's cl100k differ. */
struct word_rules {
    unsigned letters; /* of the body of a word */
    size_t digits_max;
};

/* CONTR|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s LETTERS \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * where CONTR is (?i:'s|'t|'re|'ve|'m|'ll|'d) */
static inline size_t scan_words(const struct text_view *view, size_t at, struct word_rules rules) {
    size_t next;
    unsigned c = class_at(view, at, &next);
    size_t end = contraction_end(view, at, true);
    if (end) return end;
    if (!(c & (UNICODE_NEWLINE | UNICODE_LETTER | UNICODE_NUMBER)) && classes(view, next) & rules.letters)
        return run_of(view, next, rules.letters);
    if (c & rules.letters) return run_of(view, at, rules.letters);
    if (c & UNICODE_NUMBER) return run_of_at_max(view, at, UNICODE_NUMBER, rules.digits_max);
    size_t body = view->text[at] == ' ' ? at + 1 : at;
    end = run_without(view, body, UNICODE_SPACE | UNICODE_NUMBER | rules.letters);
    if (end > body) return run_of(view, end, UNICODE_NEWLINE);
    return space_end(view, at, true);
}

size_t scan_llama3(const struct text_view *view, size_t at) {
    return scan_words(view, at, (struct word_rules){UNICODE_LETTER, 3});
}

size_t scan_qwen2(const struct text_view *view, size_t at) {
    return scan_words(view, at, (struct word_rules){UNICODE_LETTER, 1});
}

size_t scan_qwen35(const struct text_view *view, size_t at) {
    return scan_words(view, at, (struct word_rules){UNICODE_LETTER | UNICODE_MARK, 1});
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
size_t scan_gpt2(const struct text_view *view, size_t at) {
    size_t end = contraction_end(view, at, false);
    if (end) return end;
    size_t body = view->text[at] == ' ' ? at + 1 : at;
    unsigned c = classes(view, body);
    if (c & UNICODE_LETTER) return run_of(view, body, UNICODE_LETTER);
    if (c & UNICODE_NUMBER) return run_of(view, body, UNICODE_NUMBER);
    if (c != 0 && !(c & UNICODE_SPACE)) return run_without(view, body, UNICODE_SPACE | UNICODE_LETTER | UNICODE_NUMBER);
    return space_end(view, at, false);
}

enum {
    CASED_HEAD = UNICODE_UPPER | UNICODE_UNCASED | UNICODE_MARK, /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    CASED_TAIL = UNICODE_LOWER | UNICODE_UNCASED | UNICODE_MARK, /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
};

/* HEAD*TAIL+ from start; 0: no match.  A lower-case letter behind the run of HEAD starts TAIL+; without
 * one HEAD* gives back up to the last character that is in both classes, which alone is then TAIL+. */
static size_t cased_tail_end(const struct text_view *view, size_t start) {
    size_t at = start, both_end = 0, next;
    for (unsigned c; (c = class_at(view, at, &next)) & CASED_HEAD; at = next)
        if (c & CASED_TAIL) both_end = next;
    if (classes(view, at) & UNICODE_LOWER) return run_of(view, at, CASED_TAIL);
    return both_end;
}

/* [^\r\n\p{L}\p{N}]?HEAD*TAIL+|[^\r\n\p{L}\p{N}]?HEAD+TAIL*; 0: no match.  The second alternative is only
 * reached where no TAIL follows, so it is a run of HEAD. */
static size_t cased_word_end(const struct text_view *view, size_t at) {
    size_t next, end = 0;
    unsigned c = class_at(view, at, &next);
    bool prefix = !(c & (UNICODE_NEWLINE | UNICODE_LETTER | UNICODE_NUMBER));
    if (prefix) end = cased_tail_end(view, next);
    if (!end) end = cased_tail_end(view, at);
    if (end) return end;
    size_t head = prefix ? next : at;
    end = run_of(view, head, CASED_HEAD);
    return end > head ? end : 0;
}

static inline size_t scan_cased(const struct text_view *view, size_t at, bool contractions, size_t digits_max) {
    size_t end = cased_word_end(view, at);
    if (end) {
        size_t longer = contractions ? contraction_end(view, end, true) : 0;
        return longer ? longer : end;
    }
    if (classes(view, at) & UNICODE_NUMBER) return run_of_at_max(view, at, UNICODE_NUMBER, digits_max);
    size_t body = view->text[at] == ' ' ? at + 1 : at;
    end = run_without(view, body, UNICODE_SPACE | UNICODE_LETTER | UNICODE_NUMBER);
    if (end == body) return space_end(view, at, true);
    while (end < view->end && (view->text[end] == '\r' || view->text[end] == '\n' || view->text[end] == '/')) end++;
    return end;
}

/* [^\r\n\p{L}\p{N}]?HEAD*TAIL+|[^\r\n\p{L}\p{N}]?HEAD+TAIL*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
size_t scan_tekken(const struct text_view *view, size_t at) { return scan_cased(view, at, false, 1); }

/* The same with (?i:'s|'t|'re|'ve|'m|'ll|'d)? behind each of the first two, and \p{N}{1,3} */
size_t scan_gpt4o(const struct text_view *view, size_t at) { return scan_cased(view, at, true, 3); }

/* Expressions that leave gaps: a match function returns 0, in bounded time, where nothing matches.  The gap extends
 * to the next match. */
typedef size_t match_function(const struct text_view *view, size_t at);

static inline size_t scan_with_gaps(const struct text_view *view, size_t at, match_function *match) {
    size_t end = match(view, at);
    if (end) return end;
    do class_at(view, at, &at);
    while (at < view->end && !match(view, at));
    return at;
}

static bool is_ascii_letter(uint8_t byte) { return (uint8_t)((byte | 0x20) - 'a') < 26; }

static bool is_ascii_punctuation(uint8_t byte) {
    return byte < 128 && unicode_ascii_classes[byte] & (UNICODE_PUNCTUATION | UNICODE_SYMBOL);
}

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
 * |\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t match_deepseek3(const struct text_view *view, size_t at) {
    const unsigned word = UNICODE_LETTER | UNICODE_MARK, sign = UNICODE_PUNCTUATION | UNICODE_SYMBOL;
    size_t next;
    unsigned c = class_at(view, at, &next);
    if (is_ascii_punctuation(view->text[at]) && next < view->end && is_ascii_letter(view->text[next])) {
        while (next < view->end && is_ascii_letter(view->text[next])) next++;
        return next;
    }
    if (!(c & (UNICODE_NEWLINE | UNICODE_LETTER | sign)) && classes(view, next) & word) return run_of(view, next, word);
    if (c & word) return run_of(view, at, word);
    size_t body = view->text[at] == ' ' ? at + 1 : at;
    size_t end = run_of(view, body, sign);
    if (end > body) return run_of(view, end, UNICODE_NEWLINE);
    return c & UNICODE_SPACE ? space_end(view, at, true) : 0;
}

size_t scan_deepseek3(const struct text_view *view, size_t at) { return scan_with_gaps(view, at, match_deepseek3); }

/* A run of mask, or the gap before the next run. */
static size_t scan_class(const struct text_view *view, size_t at, unsigned mask) {
    size_t end = run_of(view, at, mask);
    return end > at ? end : run_without(view, at, mask);
}

/* \p{N}+ */
size_t scan_numbers(const struct text_view *view, size_t at) { return scan_class(view, at, UNICODE_NUMBER); }

/* \p{N}{1,count_max} */
static size_t scan_numbers_by(const struct text_view *view, size_t at, size_t count_max) {
    size_t end = run_of_at_max(view, at, UNICODE_NUMBER, count_max);
    return end > at ? end : run_without(view, at, UNICODE_NUMBER);
}

/* \p{N} */
size_t scan_number(const struct text_view *view, size_t at) { return scan_numbers_by(view, at, 1); }

/* \p{N}{1,3} */
size_t scan_numbers_by_three(const struct text_view *view, size_t at) { return scan_numbers_by(view, at, 3); }

/* [\r\n] */
size_t scan_newline(const struct text_view *view, size_t at) {
    size_t end = run_of_at_max(view, at, UNICODE_NEWLINE, 1);
    return end > at ? end : run_without(view, at, UNICODE_NEWLINE);
}

/* [^\n]+|[\n]+ */
size_t scan_lines(const struct text_view *view, size_t at) {
    const bool in_newlines = view->text[at] == '\n';
    while (at < view->end && (view->text[at] == '\n') == in_newlines) at++;
    return at;
}

static bool is_digit(uint8_t byte) { return (uint8_t)(byte - '0') < 10; }

/* [0-9][0-9][0-9] */
static size_t match_three_digits(const struct text_view *view, size_t at) {
    const uint8_t *t = view->text + at;
    return view->end - at >= 3 && is_digit(t[0]) && is_digit(t[1]) && is_digit(t[2]) ? at + 3 : 0;
}

size_t scan_digits_by_three(const struct text_view *view, size_t at) {
    return scan_with_gaps(view, at, match_three_digits);
}

/* Digits(individual_digits=False), which falcon's tokenizer.json runs behind ByteLevel, so on bytes written
 * as characters: the bytes B2 B3 B9 BC BD BE are then superscripts and fractions, which count as numeric. */
static bool is_numeric_byte(uint8_t byte) {
    return is_digit(byte) || byte == 0xB2 || byte == 0xB3 || byte == 0xB9 || (byte >= 0xBC && byte <= 0xBE);
}

size_t scan_byte_digits(const struct text_view *view, size_t at) {
    bool numeric = is_numeric_byte(view->text[at]);
    do at++;
    while (at < view->end && is_numeric_byte(view->text[at]) == numeric);
    return at;
}

/* Sets of characters given by ranges. */
struct code_range {
    uint32_t first, last;
};

static bool is_in(const struct code_range *ranges, size_t count, uint32_t code) {
    size_t low = 0, high = count; /* ranges ascend: finds the last one that begins at or before code */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].first <= code)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && code <= ranges[low - 1].last;
}

/* The cased letters that deepseek-llm lists one by one. */
static const struct code_range deepseek_cased[] = {
    {0x0041, 0x005A},   {0x0061, 0x007A},   {0x00B5, 0x00B5},   {0x00C0, 0x00D6},   {0x00D8, 0x00F6},
    {0x00F8, 0x01BA},   {0x01BC, 0x01BF},   {0x01C4, 0x0293},   {0x0295, 0x02AF},   {0x0370, 0x0373},
    {0x0376, 0x0377},   {0x037B, 0x037D},   {0x037F, 0x037F},   {0x0386, 0x0386},   {0x0388, 0x038A},
    {0x038C, 0x038C},   {0x038E, 0x03A1},   {0x03A3, 0x03F5},   {0x03F7, 0x0481},   {0x048A, 0x052F},
    {0x0531, 0x0556},   {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},
    {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},
    {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943},
};

/* [!-/:-~！-／：-～‘-‟　-。] */
static const struct code_range deepseek_punctuation[] = {{0x0021, 0x002F}, {0x003A, 0x007E}, {0x2018, 0x201F},
                                                         {0x3000, 0x3002}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF5E}};

/* [一-龥ࠀ-一가-퟿] */
static const struct code_range deepseek_ideographs[] = {{0x0800, 0x9FA5}, {0xAC00, 0xD7FF}};

/* [一-龥぀-ゟ゠-ヿ] */
static const struct code_range deepseek3_ideographs[] = {{0x3040, 0x30FF}, {0x4E00, 0x9FA5}};

/* \s?[set]+ (or [set]+ without space), and the gaps between */
static inline size_t scan_set(const struct text_view *view, size_t at, const struct code_range *set, size_t count,
                              bool space) {
    size_t run = at, gap_end = at;
    for (;;) { /* finds the next match; `gap_end` is where it would begin */
        struct unicode_character c = unicode_decode(view->text, view->end, gap_end);
        if (c.length == 0) return gap_end; /* nothing matches up to the end */
        run = gap_end;
        if (space && unicode_classes(c.code) & UNICODE_SPACE) {
            run = gap_end + c.length;
            c = unicode_decode(view->text, view->end, run);
            if (c.length == 0 || !is_in(set, count, c.code)) { /* the space itself may be in the set */
                run = gap_end;
                c = unicode_decode(view->text, view->end, run);
            }
        }
        if (is_in(set, count, c.code)) break;
        gap_end += c.length;
    }
    if (gap_end > at) return gap_end;
    for (struct unicode_character c;
         (c = unicode_decode(view->text, view->end, run)).length && is_in(set, count, c.code);)
        run += c.length;
    return run;
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

size_t scan_deepseek_cased(const struct text_view *view, size_t at) {
    return scan_set(view, at, deepseek_cased, COUNT(deepseek_cased), true);
}

size_t scan_deepseek_punctuation(const struct text_view *view, size_t at) {
    return scan_set(view, at, deepseek_punctuation, COUNT(deepseek_punctuation), true);
}

size_t scan_deepseek_ideographs(const struct text_view *view, size_t at) {
    return scan_set(view, at, deepseek_ideographs, COUNT(deepseek_ideographs), false);
}

size_t scan_deepseek3_ideographs(const struct text_view *view, size_t at) {
    return scan_set(view, at, deepseek3_ideographs, COUNT(deepseek3_ideographs), false);
}

/* \s+$ */
size_t scan_space_tail(const struct text_view *view, size_t at) {
    size_t tail = at, next;
    bool in_space = false;
    for (size_t p = at; p < view->end; p = next) {
        bool space = class_at(view, p, &next) & UNICODE_SPACE;
        if (space && !in_space) tail = p;
        in_space = space;
    }
    return in_space && tail > at ? tail : view->end;
}

/* \s?CLASS+ */
static size_t match_spaced(const struct text_view *view, size_t at, unsigned mask) {
    size_t next, end = 0;
    if (class_at(view, at, &next) & UNICODE_SPACE) end = run_of(view, next, mask);
    return end > next ? end : (end = run_of(view, at, mask)) > at ? end : 0;
}

static size_t match_letters(const struct text_view *view, size_t at) { return match_spaced(view, at, UNICODE_LETTER); }

/* \s?\p{L}+ */
size_t scan_letters(const struct text_view *view, size_t at) { return scan_with_gaps(view, at, match_letters); }

static size_t match_punctuation(const struct text_view *view, size_t at) {
    return match_spaced(view, at, UNICODE_PUNCTUATION);
}

/* \s?\p{P}+ */
size_t scan_punctuation(const struct text_view *view, size_t at) { return scan_with_gaps(view, at, match_punctuation); }

static size_t punctuation_run(const struct text_view *view, size_t at, bool backtick, bool wanted) {
    for (size_t next; at < view->end; at = next) {
        unsigned c = class_at(view, at, &next);
        uint8_t byte = view->text[at];
        bool is = c & UNICODE_PUNCTUATION || (is_ascii_punctuation(byte) && (backtick || byte != '`'));
        if (is != wanted) break;
    }
    return at;
}

/* [\p{P}\$\+<=>\^~\|`]+ */
size_t scan_falcon_punctuation(const struct text_view *view, size_t at) {
    size_t end = punctuation_run(view, at, true, true);
    return end > at ? end : punctuation_run(view, at, true, false);
}

/* [\p{P}\$\+<=>\^~\|]+ */
size_t scan_default_punctuation(const struct text_view *view, size_t at) {
    size_t end = punctuation_run(view, at, false, true);
    return end > at ? end : punctuation_run(view, at, false, false);
}
