/* number_rules: a state says how far the digits are, and how they compare with each bound so far: digit by digit, which
 * holds once it is known that both have as many whole digits. */
#include "grammar/number_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHOLE_MAX = 16, DIGITS_MAX = 15, FRACTION_MAX = 8 };

bool decimal_read(struct decimal *d, const json_t *number) {
    char text[64];
    *d = (struct decimal){0};
    if (json_is_integer(number)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(number));
    } else { /* the shortest text of this number, as %e has it */
        const double value = json_real_value(number);
        for (int precision = 0; precision < 17; precision++) {
            snprintf(text, sizeof text, "%.*e", precision, value);
            if (strtod(text, NULL) == value) break;
        }
    }
    const char *at = text;
    d->is_negative = *at == '-';
    if (*at == '-') at++;
    uint8_t digits[DECIMAL_DIGITS_MAX] = {0};
    int count = 0, point = -1;
    for (; *at != '\0' && *at != 'e'; at++) {
        if (*at == '.')
            point = count;
        else if (count < DECIMAL_DIGITS_MAX)
            digits[count++] = (uint8_t)(*at - '0');
    }
    if (point < 0) point = count;
    if (*at == 'e') point += (int)strtol(at + 1, NULL, 10);
    int begin = 0;
    while (count > 0 && digits[count - 1] == 0 && count > point) count--;
    while (begin < count && digits[begin] == 0 && begin < point) begin++;
    if (begin == count) return true; /* 0 */
    if (point < begin - DECIMAL_DIGITS_MAX || point > begin + DECIMAL_DIGITS_MAX) return false;
    const int whole = point > begin ? point - begin : 0, zeros = point < begin ? begin - point : 0;
    const int rest = count > point ? count - (point > begin ? point : begin) : 0, fraction = zeros + rest;
    if (whole + fraction > DECIMAL_DIGITS_MAX) return false;
    for (int i = 0; i < whole; i++) d->digits[i] = begin + i < count ? digits[begin + i] : 0;
    for (int i = 0; i < rest; i++) d->digits[whole + zeros + i] = digits[(point > begin ? point : begin) + i];
    d->whole_count = (uint32_t)whole;
    d->fraction_count = (uint32_t)fraction;
    return true;
}

/* ---- the automaton ---- */

enum { AT_BEGIN, AT_SIGN, AT_ZERO, AT_WHOLE, AT_POINT, AT_FRACTION };
enum { LESS, EQUAL, GREATER };
/* COUNT: whole digits; FRACTION: digits behind the point; LOW, HIGH: magnitudes compared with those of the bounds, as
 * far as both go; NOT_ZERO: some digit is not; REST: of the digits so far, divided by the step. */
enum { KEY_PLACE, KEY_NEGATIVE, KEY_COUNT, KEY_FRACTION, KEY_LOW, KEY_HIGH, KEY_NOT_ZERO, KEY_REST, KEY_WORDS };

static uint32_t compare_digit(uint32_t so_far, const struct decimal *bound, uint32_t index, uint32_t end,
                              uint8_t digit) {
    if (so_far != EQUAL) return so_far;
    const uint8_t other = index < end ? bound->digits[index] : 0;
    return digit < other ? LESS : digit > other ? GREATER : EQUAL;
}

/* The magnitudes, once the whole digits are there. */
static uint32_t compare_whole(uint32_t so_far, const struct decimal *bound, uint32_t count, bool is_zero) {
    if (is_zero) count = 0;
    return count < bound->whole_count ? LESS : count > bound->whole_count ? GREATER : so_far;
}

static void add_digit(const struct number_rules *r, uint32_t *key, bool is_fraction, uint8_t digit) {
    const struct number_bound *bounds[] = {&r->low, &r->high};
    for (size_t i = 0; i < 2; i++) {
        const struct decimal *bound = &bounds[i]->value;
        const uint32_t index = is_fraction ? bound->whole_count + key[KEY_FRACTION] : key[KEY_COUNT],
                       end = is_fraction ? bound->whole_count + bound->fraction_count : bound->whole_count;
        if (bounds[i]->is_there) key[KEY_LOW + i] = compare_digit(key[KEY_LOW + i], bound, index, end, digit);
    }
    key[KEY_NOT_ZERO] |= digit != 0;
    if (r->step > 1) key[KEY_REST] = (key[KEY_REST] * 10 + digit) % r->step;
    key[is_fraction ? KEY_FRACTION : KEY_COUNT]++;
}

/* The point, or the end: now the numbers of whole digits are known. */
static void end_whole(const struct number_rules *r, uint32_t *key) {
    const bool is_zero = key[KEY_PLACE] == AT_ZERO;
    if (r->low.is_there) key[KEY_LOW] = compare_whole(key[KEY_LOW], &r->low.value, key[KEY_COUNT], is_zero);
    if (r->high.is_there) key[KEY_HIGH] = compare_whole(key[KEY_HIGH], &r->high.value, key[KEY_COUNT], is_zero);
}

static bool step(const void *context, const uint32_t *key, uint8_t byte, uint32_t *next, uint64_t *work) {
    const struct number_rules *r = context;
    const bool is_digit = byte >= '0' && byte <= '9';
    const uint8_t digit = (uint8_t)(byte - '0');
    const uint32_t place = key[KEY_PLACE];
    memcpy(next, key, KEY_WORDS * sizeof *next);
    ++*work;
    if (byte == '-') {
        next[KEY_PLACE] = AT_SIGN;
        next[KEY_NEGATIVE] = 1;
        return place == AT_BEGIN && !(r->low.is_there && r->low.number >= 0);
    }
    if (byte == '.') {
        const uint32_t most = r->step != 0 ? r->step_fraction : FRACTION_MAX;
        if (r->only_integer || (place != AT_ZERO && place != AT_WHOLE) || most == 0 || key[KEY_COUNT] >= DIGITS_MAX)
            return false;
        end_whole(r, next);
        next[KEY_PLACE] = AT_POINT;
        if (key[KEY_COUNT] < DIGITS_MAX - FRACTION_MAX)
            next[KEY_COUNT] = DIGITS_MAX - FRACTION_MAX; /* alike from here */
        return true;
    }
    if (!is_digit || place == AT_ZERO) return false;
    if (place <= AT_SIGN && digit == 0) {
        next[KEY_PLACE] = AT_ZERO;
        return true;
    }
    if (place <= AT_WHOLE) {
        const struct number_bound *limit = key[KEY_NEGATIVE] != 0 ? &r->low : &r->high;
        if (key[KEY_COUNT] == WHOLE_MAX || (limit->is_there && key[KEY_COUNT] == limit->value.whole_count))
            return false;
        add_digit(r, next, false, digit);
        next[KEY_PLACE] = AT_WHOLE;
        return true;
    }
    const uint32_t digits = key[KEY_COUNT] + key[KEY_FRACTION];
    if (digits >= DIGITS_MAX || key[KEY_FRACTION] >= FRACTION_MAX ||
        (r->step != 0 && key[KEY_FRACTION] >= r->step_fraction))
        return false;
    add_digit(r, next, true, digit);
    next[KEY_PLACE] = AT_FRACTION;
    return true;
}

/* The number against a bound: -1, 0 or 1. */
static int compare_bound(const struct number_bound *bound, const uint32_t *key, uint32_t magnitudes) {
    const bool is_zero = key[KEY_NOT_ZERO] == 0, bound_is_zero = bound->number == 0;
    const bool negative = key[KEY_NEGATIVE] != 0 && !is_zero;
    const bool bound_negative = bound->value.is_negative && !bound_is_zero;
    if (negative != bound_negative) return negative ? -1 : is_zero && bound_is_zero ? 0 : 1;
    return negative ? (int)EQUAL - (int)magnitudes : (int)magnitudes - (int)EQUAL;
}

static bool accepts(const void *context, const uint32_t *key) {
    const struct number_rules *r = context;
    const uint32_t place = key[KEY_PLACE];
    uint32_t end[KEY_WORDS];
    memcpy(end, key, sizeof end);
    if (place == AT_BEGIN || place == AT_SIGN || place == AT_POINT) return false;
    if (place != AT_FRACTION) end_whole(r, end);
    /* zeros that the bound has behind what was written make it no larger, its digits do */
    for (uint32_t i = end[KEY_FRACTION]; i < DECIMAL_DIGITS_MAX; i++) {
        const struct number_bound *bounds[] = {&r->low, &r->high};
        for (size_t b = 0; b < 2; b++) {
            const struct decimal *value = &bounds[b]->value;
            end[KEY_LOW + b] = compare_digit(end[KEY_LOW + b], value, value->whole_count + i,
                                             value->whole_count + value->fraction_count, 0);
        }
    }
    if (r->low.is_there) {
        const int order = compare_bound(&r->low, end, end[KEY_LOW]);
        if (order < 0 || (order == 0 && r->low.is_exclusive)) return false;
    }
    if (r->high.is_there) {
        const int order = compare_bound(&r->high, end, end[KEY_HIGH]);
        if (order > 0 || (order == 0 && r->high.is_exclusive)) return false;
    }
    if (r->step <= 1) return true;
    uint64_t rest = end[KEY_REST];
    for (uint32_t i = end[KEY_FRACTION]; i < r->step_fraction; i++) rest = rest * 10 % r->step;
    return rest == 0;
}

enum status number_rules_compile(const struct number_rules *rules, struct arena *arena, struct automaton **automaton,
                                 uint64_t *work, struct error *error) {
    struct explorer explorer = {
        .context = rules, .key_words = KEY_WORDS, .step = step, .accepts = accepts, .work = work};
    const uint32_t first[KEY_WORDS] = {[KEY_LOW] = EQUAL, [KEY_HIGH] = EQUAL};
    for (uint8_t digit = 0; digit < 10; digit++) explorer.classes['0' + digit] = (uint8_t)(1 + digit);
    explorer.classes['-'] = 11;
    explorer.classes['.'] = 12;
    explorer.class_count = 13;
    explorer.first = first;
    return automaton_explore(automaton, arena, &explorer, error);
}
