/* The functions that a template finds by name. */
#include <string.h>
#include <time.h>

#include "jinja/jinja_internal.h"

static struct jinja_value range(struct jinja_run *run, const struct jinja_arguments *arguments) {
    struct jinja_value list = jinja_list(run, false);
    int64_t begin = 0, end = jinja_integer_argument(run, arguments, 0, NULL, 0), step = 1;
    if (arguments->count > 1) {
        begin = end;
        end = jinja_integer_argument(run, arguments, 1, NULL, 0);
        step = jinja_integer_argument(run, arguments, 2, NULL, 1);
    }
    if (arguments->count == 0 || step == 0) return jinja_fail(run, STATUS_UNSUPPORTED, "range needs an end");
    for (int64_t i = begin; (step > 0 ? i < end : i > end) && !jinja_failed(run);) {
        jinja_list_add(run, list.list, jinja_integer(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return list;
}

/* namespace(a=1), dict(a=1). */
static struct jinja_value make_map(struct jinja_run *run, const struct jinja_arguments *arguments, bool is_namespace) {
    struct jinja_value map = jinja_map(run, is_namespace);
    for (size_t i = 0; i < arguments->count && !jinja_failed(run); i++) {
        const struct jinja_value *value = &arguments->values[i];
        if (arguments->names[i] != NULL) {
            jinja_map_set(run, map.map, jinja_text_word(run, arguments->names[i]), *value);
            continue;
        }
        if (value->kind != JINJA_MAP) return jinja_fail(run, STATUS_UNSUPPORTED, "a dictionary of what is none");
        for (size_t n = 0; n < value->map->count && !jinja_failed(run); n++)
            jinja_map_set(run, map.map, value->map->entries[n].key, value->map->entries[n].value);
    }
    return map;
}

static struct jinja_value raise_exception(struct jinja_run *run, const struct jinja_arguments *arguments) {
    const struct jinja_value *what = jinja_argument(arguments, 0, "message");
    const struct jinja_value text = what != NULL ? jinja_to_text(run, what) : jinja_undefined(NULL);
    if (text.kind != JINJA_TEXT) return jinja_fail(run, STATUS_USAGE, "the chat template refuses this conversation");
    return jinja_fail(run, STATUS_USAGE, "the chat template refuses this conversation: %.*s",
                      (int)(text.text->length < 200 ? text.text->length : 200), text.text->bytes);
}

static struct jinja_value strftime_now(struct jinja_run *run, const struct jinja_arguments *arguments) {
    const struct jinja_text *format = jinja_text_argument(run, arguments, 0, "format");
    char pattern[64], *text = jinja_allocate(run, 256);
    struct tm local;
    const time_t now = (time_t)run->now;
    if (text == NULL) return jinja_undefined(NULL);
    if (format == NULL || format->length >= sizeof pattern || localtime_r(&now, &local) == NULL)
        return jinja_fail(run, STATUS_UNSUPPORTED, "strftime_now needs a short format");
    memcpy(pattern, format->bytes, format->length);
    pattern[format->length] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* 256 bytes bound what a format can make */
    const size_t length = strftime(text, 256, pattern, &local);
#pragma GCC diagnostic pop
    return jinja_text_value(run, text, length, true);
}

bool jinja_find_function(const char *name, enum jinja_function *function) {
    static const struct {
        const char *name;
        enum jinja_function function;
    } functions[] = {{"range", JINJA_RANGE},
                     {"dict", JINJA_DICT},
                     {"namespace", JINJA_NAMESPACE},
                     {"raise_exception", JINJA_RAISE},
                     {"strftime_now", JINJA_STRFTIME}};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) != 0) continue;
        *function = functions[i].function;
        return true;
    }
    return false;
}

struct jinja_value jinja_call_function(struct jinja_run *run, enum jinja_function function,
                                       const struct jinja_arguments *arguments) {
    switch (function) {
    case JINJA_RANGE: return range(run, arguments);
    case JINJA_DICT: return make_map(run, arguments, false);
    case JINJA_NAMESPACE: return make_map(run, arguments, true);
    case JINJA_RAISE: return raise_exception(run, arguments);
    case JINJA_STRFTIME: return strftime_now(run, arguments);
    case JINJA_CYCLE:
    case JINJA_LOOP_CHANGED: break;
    }
    return jinja_undefined(NULL);
}
