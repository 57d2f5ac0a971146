#include "server/answer_form.h"

#include <stdlib.h>
#include <string.h>

#include "server/fields.h"

static bool compile(const char *field, const json_t *value, struct json_schema **schema,
                    struct api_error *error) {
    struct error reason;
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL) return api_error_set(error, 503, NULL, "no memory");
    const enum status status = json_schema_compile(schema, text, strlen(text), field, &reason);
    free(text);
    return status == STATUS_OK || api_error_set(error, 400, field, "%s", reason.message);
}

bool answer_form_read(const struct ask_options *options, struct json_schema **schema,
                      struct api_error *error) {
    *schema = NULL;
    if (options->format == NULL) return true;
    struct error reason;
    const char *field = options->format_field,
               *type = json_string_value(json_object_get(options->format, "type"));
    const json_t *outer = json_object_get(options->format, "json_schema"), *inner;
    inner = json_object_get(json_is_object(outer) ? outer : options->format, "schema");
    const bool is_object = type != NULL && strcmp(type, "json_object") == 0;
    if (is_object && inner == NULL)
        return json_schema_any_object(schema, &reason) == STATUS_OK ||
               api_error_set(error, 503, field, "%s", reason.message);
    if (!is_object && (type == NULL || strcmp(type, "json_schema") != 0))
        return api_error_set(error, 400, field,
                             "'%s.type': found '%.40s', expected text, json_object or json_schema", field,
                             type != NULL ? type : "");
    if (inner == NULL)
        return api_error_set(error, 400, field, "'%s': found no schema, expected an object", field);
    return compile(field, inner, schema, error);
}
