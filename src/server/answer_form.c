#include "server/answer_form.h"

#include <stdlib.h>
#include <string.h>

#include "server/ask_options.h"
#include "server/fields.h"

/* How a field tells the form. */
enum teller {
    TELLS_FORMAT,  /* an object with a type, as response_format */
    TELLS_SCHEMA,  /* the schema, or its text */
    TELLS_OBJECT,  /* true: any JSON object */
    TELLS_REFUSED, /* something else than JSON */
};

static const struct {
    const char *outer; /* the object that the field is in; NULL: the body */
    const char *field, *name;
    enum teller teller;
} tellers[] = {
    {NULL, "response_format", "response_format", TELLS_FORMAT},
    {"text", "format", "text.format", TELLS_FORMAT},                   /* OpenAI's responses */
    {"output_config", "format", "output_config.format", TELLS_FORMAT}, /* Anthropic's */
    {NULL, "output_format", "output_format", TELLS_FORMAT},
    {NULL, "format", "format", TELLS_SCHEMA},           /* Ollama's: "json", or a schema */
    {NULL, "json_schema", "json_schema", TELLS_SCHEMA}, /* llama-server's; SGLang's, as text */
    {NULL, "guided_json", "guided_json", TELLS_SCHEMA}, /* vLLM's */
    {"structured_outputs", "json", "structured_outputs.json", TELLS_SCHEMA},
    {"structured_outputs", "json_object", "structured_outputs.json_object", TELLS_OBJECT},
    {"structured_outputs", "regex", "structured_outputs.regex", TELLS_REFUSED},
    {"structured_outputs", "choice", "structured_outputs.choice", TELLS_REFUSED},
    {"structured_outputs", "grammar", "structured_outputs.grammar", TELLS_REFUSED},
    {"structured_outputs", "structural_tag", "structured_outputs.structural_tag", TELLS_REFUSED},
    {NULL, "guided_regex", "guided_regex", TELLS_REFUSED},
    {NULL, "guided_choice", "guided_choice", TELLS_REFUSED},
    {NULL, "guided_grammar", "guided_grammar", TELLS_REFUSED},
    {NULL, "grammar", "grammar", TELLS_REFUSED},
    {NULL, "regex", "regex", TELLS_REFUSED},
    {NULL, "ebnf", "ebnf", TELLS_REFUSED},
    {NULL, "structural_tag", "structural_tag", TELLS_REFUSED},
    {NULL, "response_schema", "response_schema", TELLS_REFUSED},
    {NULL, "responseSchema", "responseSchema", TELLS_REFUSED},
};

/* ---- what a field says ---- */

static bool read_schema(struct answer_form *form, const json_t *value, struct api_error *error) {
    const bool is_word = json_is_string(value) && strcmp(json_string_value(value), "json") == 0;
    const json_t *inner = json_object_get(value, "schema");
    if (!json_is_object(value) && !json_is_string(value) && !json_is_boolean(value))
        return field_refuse(error, form->field, "found %s, expected a JSON Schema", json_kind(value));
    form->is_json = true;
    if (!is_word) form->schema = json_is_object(inner) ? inner : value; /* {name, schema}, too */
    return true;
}

/* {"type": "json_object"}, also with a "schema"; {"type": "json_schema", "json_schema": {"schema": ...}}, also with the
 * schema beside the type; {"type": "json", "value": ...}. */
static bool read_format(struct answer_form *form, const json_t *value, struct api_error *error) {
    const char *type = "";
    size_t length = 0;
    if (!json_is_object(value))
        return field_refuse(error, form->field, "found %s, expected an object", json_kind(value));
    if (!field_text(value, "type", 64, &type, &length, error)) return false;
    if (strcmp(type, "text") == 0) return true;
    const bool is_object = strcmp(type, "json_object") == 0;
    if (!is_object && strcmp(type, "json_schema") != 0 && strcmp(type, "json") != 0)
        return api_error_set(error, 400, form->field,
                             "'%s.type': found '%.40s', expected text, json_object or json_schema", form->field, type);
    const json_t *outer = field_get(value, "json_schema"), *inner = field_get(value, "schema");
    if (inner == NULL) inner = field_get(value, "value");
    if (inner == NULL) inner = json_object_get(outer, "schema");
    if (inner == NULL && is_object) inner = outer; /* Cohere's: the schema itself */
    if (inner == NULL && !is_object) return field_refuse(error, form->field, "found no schema, expected an object");
    form->format = value;
    form->schema = inner;
    form->is_json = true;
    return true;
}

static bool read_teller(struct answer_form *form, const json_t *value, enum teller teller, struct api_error *error) {
    switch (teller) {
    case TELLS_FORMAT: return read_format(form, value, error);
    case TELLS_SCHEMA: return read_schema(form, value, error);
    case TELLS_OBJECT: form->is_json = json_is_true(value); return true;
    case TELLS_REFUSED: break;
    }
    return field_refuse(error, form->field, "not supported; a JSON Schema in 'response_format' is");
}

static bool asks_for_nothing(const json_t *value) {
    return json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

bool answer_form_find(struct answer_form *form, const json_t *body, struct api_error *error) {
    *form = (struct answer_form){.field = "response_format"};
    for (size_t i = 0; i < sizeof tellers / sizeof *tellers; i++) {
        const json_t *outer = tellers[i].outer != NULL ? field_get(body, tellers[i].outer) : body;
        const json_t *value = field_get(outer, tellers[i].field);
        if (value == NULL || (tellers[i].teller != TELLS_FORMAT && asks_for_nothing(value))) continue;
        struct answer_form found = {.field = tellers[i].name};
        if (!read_teller(&found, value, tellers[i].teller, error)) return false;
        if (found.is_json && form->is_json)
            return field_refuse(error, found.field, "expected one form of the answer, found '%s', too", form->field);
        if (found.is_json) *form = found;
    }
    return true;
}

/* ---- the schema ---- */

bool answer_form_read(const struct ask_options *options, struct json_schema **schema, struct api_error *error) {
    const struct answer_form *form = &options->form;
    struct error reason;
    *schema = NULL;
    if (!form->is_json) return true;
    if (form->schema == NULL)
        return json_schema_any_object(schema, &reason) == STATUS_OK ||
               api_error_set(error, 503, form->field, "%s", reason.message);
    char *dumped = NULL;
    if (!json_is_string(form->schema)) {
        dumped = json_dumps(form->schema, JSON_COMPACT | JSON_ENCODE_ANY);
        if (dumped == NULL) return api_error_set(error, 503, NULL, "no memory");
    }
    const char *text = dumped != NULL ? dumped : json_string_value(form->schema);
    const enum status status = json_schema_compile(schema, text, strlen(text), form->field, &reason);
    free(dumped);
    return status == STATUS_OK || api_error_set(error, 400, form->field, "%s", reason.message);
}
