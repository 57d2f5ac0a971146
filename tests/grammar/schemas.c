#include "grammar/schemas.h"

#include <stdio.h>
#include <string.h>

const char *const test_schemas[] = {
    /* a record */
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"
    "\"height\":{\"type\":\"number\"},\"married\":{\"type\":\"boolean\"},\"notes\":{\"type\":[\"string\","
    "\"null\"]}},"
    "\"required\":[\"name\",\"age\",\"married\"],\"additionalProperties\":false}",
    /* lists */
    "{\"type\":\"array\",\"minItems\":2,\"maxItems\":4,\"items\":{\"type\":\"object\",\"properties\":{"
    "\"tag\":{\"enum\":[\"red\",\"green\",\"greenish\",\"\xC3\xA9\"]},\"weight\":{\"enum\":[1,10,100,0.1]}},"
    "\"required\":[\"tag\"],\"additionalProperties\":false}}",
    /* one of several records, known by their kind */
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"circle\"},\"radius\":{\"type\":"
    "\"number\"}},"
    "\"required\":[\"kind\",\"radius\"],\"additionalProperties\":false},"
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"square\"},\"side\":{\"type\":\"integer\"}},"
    "\"required\":[\"kind\",\"side\"],\"additionalProperties\":false},{\"type\":\"null\"}]}",
    /* a tree */
    "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{"
    "\"value\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]},"
    "\"children\":{\"type\":\"array\",\"maxItems\":3,\"items\":{\"$ref\":\"#/$defs/node\"}}},"
    "\"required\":[\"value\",\"children\"],\"additionalProperties\":false}}}",
    /* any object */
    "{\"type\":\"object\"}",
    /* a map of lists */
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},"
    "\"maxItems\":2}}",
    /* what is required and not listed; keys that begin alike */
    "{\"properties\":{\"a\":{\"type\":\"null\"},\"ab\":{\"type\":\"boolean\"},\"abc\":{\"enum\":[[1,{\"x\":[]"
    "}],{}]}},"
    "\"required\":[\"abc\",\"other\"]}",
    /* scalars */
    "{\"type\":\"number\"}",
    "{\"type\":\"string\"}",
    "{\"enum\":[\"yes\",\"no\",\"maybe\"]}",
};
const size_t test_schema_count = sizeof test_schemas / sizeof test_schemas[0];

void test_write_deep(char *text, size_t alternatives, size_t depth) {
    char *at = text + sprintf(text, "{\"$defs\":{");
    for (size_t i = 0; i < depth; i++)
        at += sprintf(at, "\"n%zu\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":\"#/$defs/n%zu\"}},", i,
                      i + 1);
    at += sprintf(at, "\"n%zu\":{\"type\":\"string\"}},\"anyOf\":[", depth);
    for (size_t i = 0; i < alternatives; i++)
        at += sprintf(at, "%s{\"type\":\"array\",\"minItems\":1,\"maxItems\":%zu,\"items\":{\"$ref\":\"#/$defs/n0\"}}",
                      i > 0 ? "," : "", 9 + i);
    strcpy(at, "]}");
}
