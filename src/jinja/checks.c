/* The tests: `value is NAME`. */
#include <string.h>

#include "jinja/jinja_internal.h"

typedef bool check_call(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *other);

struct jinja_check {
    const char *name;
    check_call *call;
    bool has_argument;
};

#define CHECK(NAME, CONDITION)                                                                                  \
    static bool NAME(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *other) { \
        (void)run, (void)other;                                                                                 \
        return CONDITION;                                                                                       \
    }

static int64_t whole(struct jinja_run *run, const struct jinja_value *value) {
    if (value->kind == JINJA_INTEGER || value->kind == JINJA_BOOL) return jinja_as_integer(value);
    jinja_fail(run, STATUS_UNSUPPORTED, "a test of %s, expected a whole number", jinja_kind_name(value));
    return 0;
}

static bool divides(struct jinja_run *run, const struct jinja_value *value, const struct jinja_value *other) {
    const int64_t by = whole(run, other), what = whole(run, value);
    return by != 0 && by != -1 ? what % by == 0 : by == -1;
}

static bool is_case(struct jinja_run *run, const struct jinja_value *value, enum jinja_case how) {
    if (value->kind != JINJA_TEXT) return false;
    const struct jinja_value changed = jinja_text_case(run, value->text, how);
    const struct jinja_value other = jinja_text_case(run, value->text, how == JINJA_UPPER ? JINJA_LOWER : JINJA_UPPER);
    return jinja_equal(run, value, &changed) && !jinja_equal(run, value, &other);
}

CHECK(is_defined, value->kind != JINJA_UNDEFINED)
CHECK(is_undefined, value->kind == JINJA_UNDEFINED)
CHECK(is_none, value->kind == JINJA_NONE)
CHECK(is_boolean, value->kind == JINJA_BOOL)
CHECK(is_true, value->kind == JINJA_BOOL && value->boolean)
CHECK(is_false, value->kind == JINJA_BOOL && !value->boolean)
CHECK(is_integer, value->kind == JINJA_INTEGER)
CHECK(is_float, value->kind == JINJA_FLOAT)
CHECK(is_number, jinja_is_number(value))
CHECK(is_text, value->kind == JINJA_TEXT)
CHECK(is_mapping, value->kind == JINJA_MAP && !value->map->is_namespace)
CHECK(is_sequence, value->kind == JINJA_TEXT || value->kind == JINJA_LIST || value->kind == JINJA_UNDEFINED ||
                       (value->kind == JINJA_MAP && !value->map->is_namespace))
CHECK(is_iterable, value->kind == JINJA_TEXT || value->kind == JINJA_LIST || value->kind == JINJA_UNDEFINED ||
                       (value->kind == JINJA_MAP && !value->map->is_namespace))
CHECK(is_callable, value->kind == JINJA_MACRO || value->kind == JINJA_METHOD || value->kind == JINJA_FUNCTION ||
                       value->kind == JINJA_UNDEFINED)
CHECK(is_upper, is_case(run, value, JINJA_UPPER))
CHECK(is_lower, is_case(run, value, JINJA_LOWER))
CHECK(is_odd, whole(run, value) % 2 != 0)
CHECK(is_even, whole(run, value) % 2 == 0)
CHECK(equals, jinja_equal(run, value, other))
CHECK(differs, !jinja_equal(run, value, other))
CHECK(is_less, jinja_compare(run, value, other) < 0)
CHECK(is_less_equal, jinja_compare(run, value, other) <= 0)
CHECK(is_greater, jinja_compare(run, value, other) > 0)
CHECK(is_greater_equal, jinja_compare(run, value, other) >= 0)
CHECK(is_in, jinja_contains(run, other, value))

static const struct jinja_check checks[] = {
    {"defined", is_defined, false},
    {"undefined", is_undefined, false},
    {"none", is_none, false},
    {"boolean", is_boolean, false},
    {"true", is_true, false},
    {"false", is_false, false},
    {"integer", is_integer, false},
    {"float", is_float, false},
    {"number", is_number, false},
    {"string", is_text, false},
    {"mapping", is_mapping, false},
    {"sequence", is_sequence, false},
    {"iterable", is_iterable, false},
    {"callable", is_callable, false},
    {"upper", is_upper, false},
    {"lower", is_lower, false},
    {"odd", is_odd, false},
    {"even", is_even, false},
    {"divisibleby", divides, true},
    {"sameas", equals, true},
    {"eq", equals, true},
    {"equalto", equals, true},
    {"==", equals, true},
    {"ne", differs, true},
    {"!=", differs, true},
    {"lt", is_less, true},
    {"lessthan", is_less, true},
    {"<", is_less, true},
    {"le", is_less_equal, true},
    {"<=", is_less_equal, true},
    {"gt", is_greater, true},
    {"greaterthan", is_greater, true},
    {">", is_greater, true},
    {"ge", is_greater_equal, true},
    {">=", is_greater_equal, true},
    {"in", is_in, true},
};

const struct jinja_check *jinja_find_check(const char *name) {
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (strcmp(checks[i].name, name) == 0) return &checks[i];
    return NULL;
}

bool jinja_call_check(struct jinja_run *run, const struct jinja_check *check, const struct jinja_value *value,
                      const struct jinja_arguments *arguments) {
    const struct jinja_value *other = jinja_argument(arguments, 0, NULL);
    if (jinja_failed(run) || !jinja_charge(run, 1)) return false;
    if (check->has_argument && other == NULL) {
        jinja_fail(run, STATUS_UNSUPPORTED, "the test '%s' needs a value", check->name);
        return false;
    }
    return check->call(run, value, other);
}
