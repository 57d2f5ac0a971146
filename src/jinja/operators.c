/* What stands between two values. */
#include <math.h>

#include "jinja/jinja_internal.h"

static struct jinja_value wrong(struct jinja_run *run, const char *what, const struct jinja_value *left,
                                const struct jinja_value *right) {
    if (left->kind == JINJA_UNDEFINED && left->name != NULL)
        return jinja_fail(run, STATUS_UNSUPPORTED, "'%.60s' is not there (%s)", left->name, what);
    if (right->kind == JINJA_UNDEFINED && right->name != NULL)
        return jinja_fail(run, STATUS_UNSUPPORTED, "'%.60s' is not there (%s)", right->name, what);
    return jinja_fail(run, STATUS_UNSUPPORTED, "%s %s %s", jinja_kind_name(left), what, jinja_kind_name(right));
}

static struct jinja_value join(struct jinja_run *run, const struct jinja_value *left, const struct jinja_value *right) {
    struct jinja_builder builder = {.run = run};
    if (left->kind == JINJA_TEXT && right->kind == JINJA_TEXT)
        jinja_reserve(&builder, left->text->length + right->text->length); /* these may be whole books */
    jinja_print(&builder, left);
    jinja_print(&builder, right);
    return jinja_built(&builder);
}

static struct jinja_value add_lists(struct jinja_run *run, const struct jinja_list *left,
                                    const struct jinja_list *right) {
    struct jinja_value sum = jinja_list(run, left->is_tuple);
    for (size_t i = 0; i < left->count && !jinja_failed(run); i++) jinja_list_add(run, sum.list, left->items[i]);
    for (size_t i = 0; i < right->count && !jinja_failed(run); i++) jinja_list_add(run, sum.list, right->items[i]);
    return sum;
}

/* "-" * 3 */
static struct jinja_value repeat(struct jinja_run *run, const struct jinja_text *text, int64_t count) {
    struct jinja_builder builder = {.run = run};
    for (int64_t i = 0; i < count && text->length > 0 && jinja_charge(run, 1); i++)
        jinja_put_text(&builder, text, 0, text->length);
    return jinja_built(&builder);
}

static struct jinja_value operate_reals(struct jinja_run *run, enum jinja_operator operation, double a, double b) {
    const bool divides = operation == JINJA_DIVIDE || operation == JINJA_DIVIDE_FLOOR || operation == JINJA_REMAINDER;
    if (divides && b == 0) return jinja_fail(run, STATUS_UNSUPPORTED, "a division by zero");
    if (operation == JINJA_ADD) return jinja_real(a + b);
    if (operation == JINJA_SUBTRACT) return jinja_real(a - b);
    if (operation == JINJA_MULTIPLY) return jinja_real(a * b);
    if (operation == JINJA_DIVIDE) return jinja_real(a / b);
    if (operation == JINJA_DIVIDE_FLOOR) return jinja_real(floor(a / b));
    if (operation == JINJA_REMAINDER) return jinja_real(a - b * floor(a / b));
    return jinja_real(pow(a, b));
}

static int64_t floor_divide(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

static bool power(int64_t base, int64_t exponent, int64_t *result) {
    *result = 1;
    for (int64_t i = 0; i < exponent; i++) {
        if (__builtin_mul_overflow(*result, base, result)) return false;
        if (*result == 0 || (base == 1)) break;
        if (base == -1) {
            *result = exponent % 2 == 0 ? 1 : -1;
            break;
        }
    }
    return true;
}

static struct jinja_value operate_integers(struct jinja_run *run, enum jinja_operator operation, int64_t a, int64_t b) {
    int64_t result = 0;
    bool fits = true;
    const bool divides = operation == JINJA_DIVIDE_FLOOR || operation == JINJA_REMAINDER;
    if (operation == JINJA_DIVIDE || (operation == JINJA_POWER && b < 0) || (divides && b == 0))
        return operate_reals(run, operation, (double)a, (double)b);
    if (operation == JINJA_ADD) fits = !__builtin_add_overflow(a, b, &result);
    if (operation == JINJA_SUBTRACT) fits = !__builtin_sub_overflow(a, b, &result);
    if (operation == JINJA_MULTIPLY) fits = !__builtin_mul_overflow(a, b, &result);
    if (operation == JINJA_POWER) fits = power(a, b, &result);
    if (divides && b == -1) {
        fits = a != INT64_MIN;
        result = operation == JINJA_REMAINDER || !fits ? 0 : -a;
    } else if (divides) {
        const int64_t quotient = floor_divide(a, b);
        result = operation == JINJA_DIVIDE_FLOOR ? quotient : a - quotient * b;
    }
    return fits ? jinja_integer(result) : jinja_fail(run, STATUS_UNSUPPORTED, "a number is too large");
}

static struct jinja_value calculate(struct jinja_run *run, enum jinja_operator operation,
                                    const struct jinja_value *left, const struct jinja_value *right) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (jinja_is_number(left) && jinja_is_number(right)) {
        if (left->kind == JINJA_FLOAT || right->kind == JINJA_FLOAT)
            return operate_reals(run, operation, jinja_as_real(left), jinja_as_real(right));
        return operate_integers(run, operation, jinja_as_integer(left), jinja_as_integer(right));
    }
    if (operation == JINJA_ADD && left->kind == JINJA_TEXT && right->kind == JINJA_TEXT) return join(run, left, right);
    if (operation == JINJA_ADD && left->kind == JINJA_LIST && right->kind == JINJA_LIST)
        return add_lists(run, left->list, right->list);
    if (operation == JINJA_MULTIPLY && left->kind == JINJA_TEXT && right->kind == JINJA_INTEGER)
        return repeat(run, left->text, right->integer);
    return wrong(run, names[operation], left, right);
}

struct jinja_value jinja_operate(struct jinja_run *run, enum jinja_operator operation, const struct jinja_value *left,
                                 const struct jinja_value *right) {
    if (jinja_failed(run)) return jinja_undefined(NULL);
    switch (operation) {
    case JINJA_ADD:
    case JINJA_SUBTRACT:
    case JINJA_MULTIPLY:
    case JINJA_DIVIDE:
    case JINJA_DIVIDE_FLOOR:
    case JINJA_REMAINDER:
    case JINJA_POWER: return calculate(run, operation, left, right);
    case JINJA_JOIN: return join(run, left, right);
    case JINJA_EQUAL: return jinja_bool(jinja_equal(run, left, right));
    case JINJA_UNEQUAL: return jinja_bool(!jinja_equal(run, left, right));
    case JINJA_LESS: return jinja_bool(jinja_compare(run, left, right) < 0);
    case JINJA_LESS_EQUAL: return jinja_bool(jinja_compare(run, left, right) <= 0);
    case JINJA_GREATER: return jinja_bool(jinja_compare(run, left, right) > 0);
    case JINJA_GREATER_EQUAL: return jinja_bool(jinja_compare(run, left, right) >= 0);
    case JINJA_IN: return jinja_bool(jinja_contains(run, right, left));
    case JINJA_NOT_IN: return jinja_bool(!jinja_contains(run, right, left));
    }
    return jinja_undefined(NULL);
}
