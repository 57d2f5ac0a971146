#include "server/json_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token/unicode.h"

/* zero: what stands for a byte of zero. */
static json_t *repaired(const char *bytes, size_t length, char zero) {
    struct utf8_stream stream = {.replace = true};
    char *text = malloc(utf8_stream_bound(length) + utf8_stream_bound(0));
    if (text == NULL) return NULL;
    size_t used = 0;
    for (size_t at = 0; at < length;) {
        const size_t plain = strnlen(bytes + at, length - at);
        used += utf8_stream_push(&stream, bytes + at, plain, text + used);
        at += plain;
        if (at < length) used += utf8_stream_push(&stream, &zero, 1, text + used), at++;
    }
    used += utf8_stream_finish(&stream, text + used);
    json_t *value = json_stringn(text, used);
    free(text);
    return value;
}

json_t *json_text(const char *bytes, size_t length) { return repaired(bytes, length, '\0'); }

/* 0xff is in no character. */
json_t *json_text_without_zeros(const char *bytes, size_t length) { return repaired(bytes, length, '\xff'); }

void json_put(json_t *object, const char *key, json_t *value) { (void)json_object_set_new(object, key, value); }

json_t *json_uint(uint64_t value) { return json_integer((json_int_t)value); }

json_t *json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

void json_put_uint(json_t *object, const char *key, uint64_t value) { json_put(object, key, json_uint(value)); }

void json_put_number(json_t *object, const char *key, double value) { json_put(object, key, json_number(value)); }

json_t *json_put_pairs(json_t *object, const struct json_pair *pairs) {
    for (; pairs->key != NULL; pairs++) json_put(object, pairs->key, pairs->value);
    return object;
}

void json_put_counters(json_t *object, const char *prefix, const struct counter_table *table, const void *values) {
    char key[64];
    for (size_t i = 0; i < table->count; i++) {
        const struct counter *row = &table->rows[i];
        const double value = counter_value(row, values);
        snprintf(key, sizeof key, "%s%s", prefix, row->name);
        if (row->member == COUNTER_FLAG)
            json_put(object, key, json_boolean(value != 0));
        else if (row->member == COUNTER_INTEGER && row->unit != COUNTER_SECONDS)
            json_put_uint(object, key, (uint64_t)value);
        else
            json_put_number(object, key, value);
    }
}

char *json_line(const json_t *value, size_t *length) {
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    *length = text != NULL ? strlen(text) : 0;
    return text;
}
