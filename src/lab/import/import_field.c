/* Reads fields of a model folder's JSON files.  Checks type and range; errors name the field. */
#include <string.h>

#include "lab/import/import_internal.h"

enum status import_refuse(const struct import *import, const char *file, const char *field, const char *format, ...) {
    char message[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *folder = path_tail(import->folder, IMPORT_FOLDER_SHOWN);
    return error_set(import->error, STATUS_MODEL, "%s/%s: %.60s: %s", folder, file, field, message);
}

json_t *import_member(const json_t *object, const char *field) {
    json_t *member = json_object_get(object, field);
    return json_is_null(member) ? NULL : member;
}

enum status import_uint(const struct import *import, struct import_field field, uint64_t min, uint64_t max,
                        uint64_t *value) {
    const json_t *member = import_member(field.object, field.name);
    if (member == NULL) {
        if (!field.required) return STATUS_OK;
        return import_refuse(import, field.source->file, field.name, "not found, expected a whole number");
    }
    if (!json_is_integer(member))
        return import_refuse(import, field.source->file, field.name, "found no whole number, expected one");
    json_int_t number = json_integer_value(member);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max)
        return import_refuse(import, field.source->file, field.name, "found %lld, expected %llu to %llu",
                             (long long)number, (unsigned long long)min, (unsigned long long)max);
    *value = (uint64_t)number;
    return STATUS_OK;
}

enum status import_number(const struct import *import, struct import_field field, double min, double max,
                          double *value) {
    const json_t *member = import_member(field.object, field.name);
    if (member == NULL) {
        if (!field.required) return STATUS_OK;
        return import_refuse(import, field.source->file, field.name, "not found, expected a number");
    }
    if (!json_is_number(member)) return import_refuse(import, field.source->file, field.name, "expected a number");
    double number = json_number_value(member);
    if (!(number >= min && number <= max))
        return import_refuse(import, field.source->file, field.name, "found %g, expected %g to %g", number, min, max);
    *value = number;
    return STATUS_OK;
}

enum status import_bool(const struct import *import, const struct import_source *source, const json_t *object,
                        const char *field, bool *value) {
    const json_t *member = import_member(object, field);
    if (member == NULL) return STATUS_OK;
    if (!json_is_boolean(member)) return import_refuse(import, source->file, field, "expected true or false");
    *value = json_is_true(member);
    return STATUS_OK;
}

enum status import_text(const struct import *import, const struct import_source *source, const json_t *object,
                        const char *field, const char **value) {
    const json_t *member = import_member(object, field);
    if (member == NULL) return STATUS_OK;
    if (!json_is_string(member) || strlen(json_string_value(member)) != json_string_length(member))
        return import_refuse(import, source->file, field, "expected a string");
    *value = json_string_value(member);
    return STATUS_OK;
}
