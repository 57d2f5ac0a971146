#include "server/answer_form.h"

#include <stdlib.h>
#include <string.h>

#include "server/fields.h"

static bool refuse(struct api_error *error, const struct error *reason) {
    return api_error_set(error, 400, "response_format", "%s", reason->message);
}

static bool compile(const json_t *value, struct json_schema **schema, struct api_error *error) {
    struct error reason;
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL) return api_error_set(error, 503, NULL, "no memory");
    const enum status status = json_schema_compile(schema, text, strlen(text), "response_format", &reason);
    free(text);
    return status == STATUS_OK || refuse(error, &reason);
}

bool answer_form_read(const json_t *format, struct json_schema **schema, struct api_error *error) {
    *schema = NULL;
    if (format == NULL) return true;
    struct error reason;
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *outer = json_object_get(format, "json_schema"), *inner = json_object_get(format, "schema");
    if (json_is_object(outer)) inner = json_object_get(outer, "schema");
    if (type != NULL && strcmp(type, "json_object") == 0 && inner == NULL)
        return json_schema_any_object(schema, &reason) == STATUS_OK || refuse(error, &reason);
    if (type == NULL || (strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0))
        return api_error_set(
            error, 400, "response_format",
            "'response_format.type': found '%.40s', expected text, json_object or json_schema",
            type != NULL ? type : "");
    if (inner == NULL)
        return api_error_set(error, 400, "response_format",
                             "'response_format.json_schema.schema': found nothing, expected an object");
    return compile(inner, schema, error);
}
