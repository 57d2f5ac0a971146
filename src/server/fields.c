#include "server/fields.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"

const char *json_kind(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "a value";
}

/* The first half of a pair, or the second, at the backslash of \uXXXX; 0: neither. */
static int surrogate_at(const char *text, size_t left) {
    if (left < 6 || text[0] != '\\' || text[1] != 'u' || (text[2] | 0x20) != 'd') return 0;
    if (!isxdigit((unsigned char)text[4]) || !isxdigit((unsigned char)text[5])) return 0;
    const char c = (char)(text[3] | 0x20);
    if (c == '8' || c == '9' || c == 'a' || c == 'b') return 1;
    return c >= 'c' && c <= 'f' ? 2 : 0;
}

/* A copy of the text in which half pairs are U+FFFD; NULL: there is none, or no memory. */
static char *without_half_pairs(const char *text, size_t length) {
    char *copy = NULL;
    for (size_t i = 0; i < length; i++) {
        if (text[i] != '\\') continue; /* only strings have them */
        const int half = surrogate_at(text + i, length - i);
        if (half == 1 && surrogate_at(text + i + 6, length - i - 6) == 2) {
            i += 11;
        } else if (half != 0) {
            if (copy == NULL) {
                copy = malloc(length);
                if (copy == NULL) return NULL;
                memcpy(copy, text, length);
            }
            memcpy(copy + i, "\\ufffd", 6);
            i += 5;
        } else {
            i++;
        }
    }
    return copy;
}

/* Reals that are whole become integers, where they are so exactly. */
static void restore_integers(json_t *value);

static json_t *restored(json_t *value) {
    const double number = json_real_value(value);
    if (!json_is_real(value)) restore_integers(value);
    return json_is_real(value) && number == floor(number) && fabs(number) < 9e15 ? json_integer((json_int_t)number)
                                                                                 : NULL;
}

/* Recursion ends: the depth was checked. */
static void restore_integers(json_t *value) {
    const char *key;
    json_t *member, *made;
    for (size_t i = 0; i < json_array_size(value); i++)
        if ((made = restored(json_array_get(value, i))) != NULL) json_array_set_new(value, i, made);
    json_object_foreach(value, key, member) if ((made = restored(member)) != NULL)
        json_object_set_new(value, key, made);
}

/* Integers of more than 63 bits (a seed) are reals. */
static json_t *read_large(const char *text, size_t length) {
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
    json_t *value = json_loadb(text, length, flags, NULL);
    if (value != NULL) restore_integers(value);
    return value;
}

bool fields_parse(const char *body, size_t length, json_t **object, struct api_error *error) {
    struct error reason = {0};
    *object = NULL;
    char *whole = without_half_pairs(body, length);
    const enum status status =
        json_parse_bytes(whole != NULL ? whole : body, length, "the body", STATUS_USAGE, object, &reason);
    if (status != STATUS_OK && strstr(reason.message, "too big") != NULL)
        *object = read_large(whole != NULL ? whole : body, length);
    free(whole);
    if (*object == NULL) return api_error_set(error, 400, NULL, "%s", reason.message);
    if (json_is_object(*object)) return true;
    api_error_set(error, 400, NULL, "the body: found %s, expected an object", json_kind(*object));
    json_decref(*object);
    *object = NULL;
    return false;
}

bool field_refuse(struct api_error *error, const char *field, const char *format, ...) {
    char what[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return api_error_set(error, 400, field, "'%s': %s", field, what);
}

const json_t *field_get(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return value != NULL && !json_is_null(value) ? value : NULL;
}

static bool wrong_kind(const char *name, const json_t *found, const char *expected, struct api_error *error) {
    return field_refuse(error, name, "found %s, expected %s", json_kind(found), expected);
}

bool field_number(const json_t *object, const char *name, double min, double max, double *value,
                  struct api_error *error) {
    const json_t *found = field_get(object, name);
    if (found == NULL) return true;
    if (!json_is_number(found)) return wrong_kind(name, found, "a number", error);
    const double number = json_number_value(found);
    if (!(number >= min && number <= max))
        return field_refuse(error, name, "found %g, expected %g to %g", number, min, max);
    *value = number;
    return true;
}

bool field_integer(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *value,
                   struct api_error *error) {
    const json_t *found = field_get(object, name);
    if (found == NULL) return true;
    int64_t number = 0;
    if (json_is_integer(found)) {
        number = json_integer_value(found);
    } else if (json_is_real(found) && json_real_value(found) == floor(json_real_value(found)) &&
               fabs(json_real_value(found)) < 9e15) {
        number = (int64_t)json_real_value(found); /* 16.0: clients in languages without integers */
    } else {
        return wrong_kind(name, found, "an integer", error);
    }
    if (number < min || number > max)
        return field_refuse(error, name, "found %lld, expected %lld to %lld", (long long)number, (long long)min,
                            (long long)max);
    *value = number;
    return true;
}

bool field_flag(const json_t *object, const char *name, bool *value, struct api_error *error) {
    const json_t *found = field_get(object, name);
    if (found == NULL) return true;
    if (!json_is_boolean(found)) return wrong_kind(name, found, "true or false", error);
    *value = json_is_true(found);
    return true;
}

bool field_text(const json_t *object, const char *name, size_t length_max, const char **text, size_t *length,
                struct api_error *error) {
    const json_t *found = field_get(object, name);
    if (found == NULL) return true;
    if (!json_is_string(found)) return wrong_kind(name, found, "a string", error);
    if (json_string_length(found) > length_max)
        return field_refuse(error, name, "found %zu bytes, expected at most %zu", json_string_length(found),
                            length_max);
    *text = json_string_value(found);
    *length = json_string_length(found);
    return true;
}

bool field_array(const json_t *object, const char *name, size_t count_max, const json_t **array,
                 struct api_error *error) {
    const json_t *found = field_get(object, name);
    *array = NULL;
    if (found == NULL) return true;
    if (!json_is_array(found)) return wrong_kind(name, found, "an array", error);
    if (json_array_size(found) > count_max)
        return field_refuse(error, name, "found %zu entries, expected at most %zu", json_array_size(found), count_max);
    *array = found;
    return true;
}

bool field_object(const json_t *object, const char *name, const json_t **value, struct api_error *error) {
    const json_t *found = field_get(object, name);
    *value = NULL;
    if (found == NULL) return true;
    if (!json_is_object(found)) return wrong_kind(name, found, "an object", error);
    *value = found;
    return true;
}
