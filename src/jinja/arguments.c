#include "jinja/jinja_internal.h"

#include <string.h>

const struct jinja_value *jinja_argument(const struct jinja_arguments *arguments, size_t place, const char *name) {
    for (size_t i = 0; i < arguments->count; i++) {
        if (arguments->names[i] == NULL && i == place) return &arguments->values[i];
        if (arguments->names[i] != NULL && name != NULL && strcmp(arguments->names[i], name) == 0)
            return &arguments->values[i];
    }
    return NULL;
}

const struct jinja_text *jinja_text_argument(struct jinja_run *run, const struct jinja_arguments *arguments,
                                             size_t place, const char *name) {
    static const struct jinja_text nothing = {.bytes = ""};
    const struct jinja_value *value = jinja_argument(arguments, place, name);
    if (value == NULL || value->kind == JINJA_NONE) return NULL;
    if (value->kind == JINJA_TEXT) return value->text;
    jinja_fail(run, STATUS_UNSUPPORTED, "found %s, expected a text", jinja_kind_name(value));
    return &nothing;
}

int64_t jinja_integer_argument(struct jinja_run *run, const struct jinja_arguments *arguments, size_t place,
                               const char *name, int64_t otherwise) {
    const struct jinja_value *value = jinja_argument(arguments, place, name);
    if (value == NULL || value->kind == JINJA_NONE) return otherwise;
    if (value->kind == JINJA_INTEGER || value->kind == JINJA_BOOL) return jinja_as_integer(value);
    jinja_fail(run, STATUS_UNSUPPORTED, "found %s, expected a whole number", jinja_kind_name(value));
    return otherwise;
}

bool jinja_bool_argument(const struct jinja_arguments *arguments, size_t place, const char *name, bool otherwise) {
    const struct jinja_value *value = jinja_argument(arguments, place, name);
    return value != NULL ? jinja_is_true(value) : otherwise;
}
