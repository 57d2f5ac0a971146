#include "grammar/strings.h"

#include <math.h>

#include "base/checked.h"

enum { STEP_MAX = 256, LENGTH_MAX = 65000 /* characters of a string that has a limit */ };

enum status count_read(const struct reader *r, const char *keyword, const json_t *value, uint32_t *count,
                       struct error *error) {
    const double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number != floor(number))
        return builder_refuse(r->builder, r->place, error, "%s: expected a whole number from 0 to %d", keyword,
                              INT32_MAX);
    *count = number < INT32_MAX ? (uint32_t)number : INT32_MAX;
    return STATUS_OK;
}

/* ---- strings ---- */

static enum status add_pattern(const struct reader *r, struct text_rules *rules, const json_t *value,
                               struct error *error) {
    struct error reason;
    if (!json_is_string(value)) return builder_refuse(r->builder, r->place, error, "pattern: expected a string");
    const enum status status =
        text_rules_add_pattern(rules, json_string_value(value), json_string_length(value), &reason);
    return status == STATUS_OK ? status
                               : builder_refuse(r->builder, r->place, error, "pattern \"%.60s\": %s",
                                                json_string_value(value), reason.message);
}

static enum status add_format(const struct reader *r, struct text_rules *rules, const json_t *value,
                              struct error *error) {
    struct error reason;
    if (!json_is_string(value)) return builder_refuse(r->builder, r->place, error, "format: expected a string");
    const enum status status = text_rules_add_format(rules, json_string_value(value), &reason);
    return status == STATUS_OK ? status : builder_refuse(r->builder, r->place, error, "format: %s", reason.message);
}

enum status strings_read(const struct reader *r, struct text_rules *rules, struct error *error) {
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *least = reader_get(r, i, "minLength"), *most = reader_get(r, i, "maxLength"),
                     *pattern = reader_get(r, i, "pattern"), *format = reader_get(r, i, "format");
        uint32_t count;
        if (least != NULL) {
            TRY(count_read(r, "minLength", least, &count, error));
            rules->length_min = (uint32_t)max_size(rules->length_min, count);
        }
        if (most != NULL) {
            TRY(count_read(r, "maxLength", most, &count, error));
            rules->length_max = (uint32_t)min_size(rules->length_max, count);
        }
        if (pattern != NULL) TRY(add_pattern(r, rules, pattern, error));
        if (format != NULL) TRY(add_format(r, rules, format, error));
    }
    return STATUS_OK;
}

static enum status compile_text(const struct reader *r, struct text_rules *rules, struct automaton **automaton,
                                struct error *error) {
    struct error reason;
    const enum status status =
        text_rules_compile(rules, &r->builder->schema->arena, automaton, &r->builder->work, &reason);
    if (status == STATUS_OK || status == STATUS_MEMORY) return status;
    return builder_refuse(r->builder, r->place, error, "pattern, format and lengths together: %s", reason.message);
}

enum status string_form(const struct reader *r, struct form *form, bool *is_possible, struct error *error) {
    struct text_rules rules = {.length_max = UINT32_MAX};
    struct automaton *automaton = NULL;
    enum status status = strings_read(r, &rules, error);
    const bool has_pattern = rules.pattern_count > 0;
    const bool is_limited = rules.length_max != UINT32_MAX;
    *form = (struct form){.kind = has_pattern ? FORM_TEXT : FORM_STRING,
                          .item_min = rules.length_min,
                          .item_max = rules.length_max < LENGTH_MAX ? rules.length_max
                                      : is_limited                  ? LENGTH_MAX
                                                                    : UINT32_MAX};
    *is_possible = rules.length_min <= rules.length_max;
    if (status == STATUS_OK && has_pattern && *is_possible) {
        status = compile_text(r, &rules, &automaton, error);
        *is_possible = automaton != NULL;
        form->text = automaton;
    }
    text_rules_deinit(&rules);
    return status;
}

/* ---- numbers ---- */

static enum status read_bound(const struct reader *r, const json_t *value, const char *keyword,
                              struct number_bound *bound, struct error *error) {
    *bound = (struct number_bound){.is_there = true, .number = json_number_value(value)};
    if (!json_is_number(value)) return builder_refuse(r->builder, r->place, error, "%s: expected a number", keyword);
    if (!decimal_read(&bound->value, value))
        return builder_refuse(r->builder, r->place, error, "%s: a number of so many digits is not supported", keyword);
    return STATUS_OK;
}

static void tighten(struct number_bound *bound, struct number_bound here, bool is_low) {
    const bool is_closer = is_low ? here.number > bound->number : here.number < bound->number;
    if (!bound->is_there || is_closer)
        *bound = here;
    else if (here.number == bound->number)
        bound->is_exclusive = bound->is_exclusive || here.is_exclusive;
}

/* exclusiveMinimum is a number, or in older schemas true beside minimum. */
static enum status read_bounds(const struct reader *r, uint32_t part, bool is_low, struct number_bound *bound,
                               struct error *error) {
    const char *plain = is_low ? "minimum" : "maximum", *strict = is_low ? "exclusiveMinimum" : "exclusiveMaximum";
    const json_t *value = reader_get(r, part, plain), *exclusive = reader_get(r, part, strict);
    struct number_bound here;
    if (value != NULL) {
        TRY(read_bound(r, value, plain, &here, error));
        here.is_exclusive = json_is_true(exclusive);
        tighten(bound, here, is_low);
    }
    if (exclusive != NULL && !json_is_boolean(exclusive)) {
        TRY(read_bound(r, exclusive, strict, &here, error));
        here.is_exclusive = true;
        tighten(bound, here, is_low);
    }
    return STATUS_OK;
}

static enum status read_step(const struct reader *r, const json_t *value, struct number_rules *rules,
                             struct error *error) {
    struct decimal d;
    uint64_t step = 0;
    if (!json_is_number(value) || json_number_value(value) <= 0)
        return builder_refuse(r->builder, r->place, error, "multipleOf: expected a number above 0");
    if (!decimal_read(&d, value) || d.whole_count + d.fraction_count > 4 || rules->step != 0)
        return builder_refuse(r->builder, r->place, error,
                              "multipleOf: several, or one of more than 4 digits, are not supported");
    for (uint32_t i = 0; i < d.whole_count + d.fraction_count; i++) step = step * 10 + d.digits[i];
    if (step > STEP_MAX)
        return builder_refuse(r->builder, r->place, error, "multipleOf: more than %d steps are not supported",
                              STEP_MAX);
    rules->step = (uint32_t)step;
    rules->step_fraction = d.fraction_count;
    return STATUS_OK;
}

static enum status read_rules(const struct reader *r, struct number_rules *rules, bool *has_rules,
                              struct error *error) {
    for (uint32_t i = 0; i < r->count; i++) {
        const json_t *step = reader_get(r, i, "multipleOf");
        TRY(read_bounds(r, i, true, &rules->low, error));
        TRY(read_bounds(r, i, false, &rules->high, error));
        if (step != NULL) TRY(read_step(r, step, rules, error));
    }
    *has_rules = rules->low.is_there || rules->high.is_there || rules->step != 0;
    return STATUS_OK;
}

enum status number_form(const struct reader *r, bool only_integer, struct form *form, bool *is_possible,
                        struct error *error) {
    struct number_rules rules = {.only_integer = only_integer};
    struct automaton *automaton;
    struct error reason;
    bool has_rules;
    *is_possible = true;
    *form = (struct form){.kind = only_integer ? FORM_INTEGER : FORM_NUMBER};
    TRY(read_rules(r, &rules, &has_rules, error));
    if (!has_rules) return STATUS_OK;
    const enum status status =
        number_rules_compile(&rules, &r->builder->schema->arena, &automaton, &r->builder->work, &reason);
    if (status != STATUS_OK && status != STATUS_MEMORY)
        return builder_refuse(r->builder, r->place, error, "bounds and multipleOf: %s", reason.message);
    *is_possible = automaton != NULL;
    form->kind = FORM_DECIMAL;
    form->text = automaton;
    return status;
}

/* ---- values ---- */

static enum status string_meets(const struct reader *r, const json_t *value, bool *meets, struct error *error) {
    struct form form;
    struct literal literal;
    TRY(string_form(r, &form, meets, error));
    if (!*meets) return STATUS_OK;
    TRY(literal_of(&r->builder->schema->arena, value, &literal, error));
    if (form.kind == FORM_TEXT) {
        *meets = automaton_accepts(form.text, literal.bytes, literal.length);
        return STATUS_OK;
    }
    uint32_t count = 0;
    const char *text = json_string_value(value);
    for (size_t i = 0; i < json_string_length(value); i++) count += ((uint8_t)text[i] & 0xC0) != 0x80;
    *meets = count >= form.item_min && count <= form.item_max;
    return STATUS_OK;
}

static enum status number_meets(const struct reader *r, const json_t *value, bool *meets, struct error *error) {
    struct number_rules rules = {0};
    bool has_rules;
    const double number = json_number_value(value);
    TRY(read_rules(r, &rules, &has_rules, error));
    *meets = true;
    if (rules.low.is_there) *meets = rules.low.is_exclusive ? number > rules.low.number : number >= rules.low.number;
    if (rules.high.is_there)
        *meets = *meets && (rules.high.is_exclusive ? number < rules.high.number : number <= rules.high.number);
    if (rules.step != 0) {
        const double steps = number / (rules.step / pow(10, rules.step_fraction));
        *meets = *meets && steps == floor(steps);
    }
    return STATUS_OK;
}

enum status scalar_meets(const struct reader *r, const json_t *value, bool *meets, struct error *error) {
    *meets = true;
    if (json_is_string(value)) return string_meets(r, value, meets, error);
    return json_is_number(value) ? number_meets(r, value, meets, error) : STATUS_OK;
}
