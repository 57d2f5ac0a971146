/* Typed access to the metadata of a GGUF file. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "format/gguf_internal.h"

static bool is_integer(enum gguf_type type) {
    return type != GGUF_FLOAT32 && type != GGUF_FLOAT64 && type != GGUF_BOOL && type != GGUF_STRING &&
           type != GGUF_ARRAY;
}

static bool is_float(enum gguf_type type) { return type == GGUF_FLOAT32 || type == GGUF_FLOAT64; }

static const char *path_of(const struct gguf *gguf) {
    return gguf->path == NULL ? "model" : gguf_path_shown(gguf->path);
}

static enum status wrong_type(const struct gguf *gguf, const struct gguf_entry *entry, const char *expected,
                              struct error *error) {
    bool is_array = entry->type == GGUF_ARRAY;
    return error_set(error, STATUS_MODEL, "%s: key '%.*s': found %s%s, expected %s", path_of(gguf),
                     GGUF_SHOWN(entry->key), is_array ? "an array of " : "", gguf_type_name(entry->element_type),
                     expected);
}

#define READ(type) \
    type value;    \
    memcpy(&value, entry->data + index * sizeof value, sizeof value)

/* Element index as a signed number.  *above: it is a uint64 that does not fit. */
static int64_t read_int(const struct gguf_entry *entry, uint64_t index, bool *above) {
    ASSERT(index < entry->count);
    *above = false;
    switch (entry->element_type) {
    case GGUF_UINT8: {
        READ(uint8_t);
        return value;
    }
    case GGUF_INT8: {
        READ(int8_t);
        return value;
    }
    case GGUF_UINT16: {
        READ(uint16_t);
        return value;
    }
    case GGUF_INT16: {
        READ(int16_t);
        return value;
    }
    case GGUF_UINT32: {
        READ(uint32_t);
        return value;
    }
    case GGUF_INT32: {
        READ(int32_t);
        return value;
    }
    case GGUF_INT64: {
        READ(int64_t);
        return value;
    }
    case GGUF_BOOL: {
        READ(uint8_t);
        return value;
    }
    case GGUF_UINT64: {
        READ(uint64_t);
        *above = value > INT64_MAX;
        return *above ? INT64_MAX : (int64_t)value;
    }
    case GGUF_FLOAT32:
    case GGUF_FLOAT64:
    case GGUF_STRING:
    case GGUF_ARRAY:
    case GGUF_TYPE_COUNT: break;
    }
    ASSERT(false && "an integer type");
    return 0;
}

static double read_float(const struct gguf_entry *entry, uint64_t index) {
    ASSERT(index < entry->count);
    if (entry->element_type == GGUF_FLOAT32) {
        READ(float);
        return value;
    }
    ASSERT(entry->element_type == GGUF_FLOAT64);
    READ(double);
    return value;
}

int64_t gguf_array_int(const struct gguf_entry *array, uint64_t index) {
    if (is_float(array->element_type)) {
        double value = read_float(array, index);
        if (!(value > -0x1p63)) return value == value ? INT64_MIN : 0;
        return value < 0x1p63 ? (int64_t)value : INT64_MAX;
    }
    bool above;
    return read_int(array, index, &above);
}

double gguf_array_float(const struct gguf_entry *array, uint64_t index) {
    if (is_float(array->element_type)) return read_float(array, index);
    bool above;
    int64_t value = read_int(array, index, &above);
    return (double)value;
}

enum status gguf_get_uint(const struct gguf *gguf, const char *key, uint64_t max, uint64_t *value,
                          struct error *error) {
    const struct gguf_entry *entry = gguf_find(gguf, key);
    if (entry == NULL) return STATUS_OK;
    if (!is_integer(entry->type)) return wrong_type(gguf, entry, "an integer", error);
    bool above;
    int64_t number = read_int(entry, 0, &above);
    if (above) {
        uint64_t big;
        memcpy(&big, entry->data, sizeof big);
        if (big > max)
            return error_set(error, STATUS_MODEL, "%s: key '%s': found %llu, expected at most %llu", path_of(gguf), key,
                             (unsigned long long)big, (unsigned long long)max);
        *value = big;
        return STATUS_OK;
    }
    if (number < 0 || (uint64_t)number > max)
        return error_set(error, STATUS_MODEL, "%s: key '%s': found %lld, expected 0 to %llu", path_of(gguf), key,
                         (long long)number, (unsigned long long)max);
    *value = (uint64_t)number;
    return STATUS_OK;
}

enum status gguf_get_float(const struct gguf *gguf, const char *key, float *value, struct error *error) {
    const struct gguf_entry *entry = gguf_find(gguf, key);
    if (entry == NULL) return STATUS_OK;
    if (!is_float(entry->type)) return wrong_type(gguf, entry, "a float", error);
    float number = (float)read_float(entry, 0);
    if (!isfinite(number))
        return error_set(error, STATUS_MODEL, "%s: key '%s': found %g, expected a finite float32", path_of(gguf), key,
                         (double)number);
    *value = number;
    return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool *value, struct error *error) {
    const struct gguf_entry *entry = gguf_find(gguf, key);
    if (entry == NULL) return STATUS_OK;
    if (entry->type != GGUF_BOOL) return wrong_type(gguf, entry, "a bool", error);
    *value = entry->data[0] != 0;
    return STATUS_OK;
}

enum status gguf_get_string(const struct gguf *gguf, const char *key, struct gguf_string *value, struct error *error) {
    const struct gguf_entry *entry = gguf_find(gguf, key);
    if (entry == NULL) return STATUS_OK;
    if (entry->type != GGUF_STRING) return wrong_type(gguf, entry, "a string", error);
    *value = entry->strings[0];
    return STATUS_OK;
}

enum status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type element_type,
                           const struct gguf_entry **value, struct error *error) {
    *value = NULL;
    const struct gguf_entry *entry = gguf_find(gguf, key);
    if (entry == NULL) return STATUS_OK;
    bool matches = entry->element_type == element_type ||
                   (element_type == GGUF_INT32 && is_integer(entry->element_type)) ||
                   (element_type == GGUF_FLOAT32 && is_float(entry->element_type));
    if (entry->type != GGUF_ARRAY || !matches) {
        char expected[32];
        snprintf(expected, sizeof expected, "an array of %s", gguf_type_name(element_type));
        return wrong_type(gguf, entry, expected, error);
    }
    *value = entry;
    return STATUS_OK;
}

enum status gguf_required(const struct gguf *gguf, const char *key, struct error *error) {
    if (gguf_find(gguf, key) != NULL) return STATUS_OK;
    return error_set(error, STATUS_MODEL, "%s: key '%s': not found, expected it", path_of(gguf), key);
}
