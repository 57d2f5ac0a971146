/* Any template, and what follows a zero byte as what a user says: it renders or fails with one line, within its limits,
 * and no byte of the user's counts as the template's.  Byte 0xFF is the user's alone: it is taken out of templates. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FOREIGN = 0xFF };

static const char context[] = "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                              "\"parameters\": {\"properties\": {\"a\": "
                              "{\"type\": \"string\"}}, \"required\": [\"a\"]}}}], \"numbers\": [3, 1.5, -2, "
                              "null, true], \"d\": {\"k\": \"v\"}}";

static size_t read_template(const uint8_t *data, size_t size, char *source) {
    size_t length = 0;
    for (size_t i = 0; i < size && data[i] != 0; i++)
        if (data[i] != FOREIGN) source[length++] = (char)data[i];
    return length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *values;
    if (values == NULL) values = json_loads(context, 0, NULL);
    ASSERT(values != NULL);
    const uint8_t *zero = memchr(data, 0, size);
    const char *said = zero != NULL ? (const char *)zero + 1 : "";
    const size_t said_length = zero != NULL ? size - (size_t)(zero + 1 - data) : 0;
    char *source = malloc(size + 1);
    ASSERT(source != NULL);
    struct jinja_program *program;
    struct error error = {0};
    enum status status = jinja_program_create(&program, source, read_template(data, size, source), &error);
    const struct jinja_message messages[] = {{.role = "system", .content = "s", .length = 1},
                                             {.role = "user", .content = said, .length = said_length},
                                             {.role = "assistant"},
                                             {.role = "user", .content = said, .length = said_length}};
    const struct jinja_variable variables[] = {
        {.name = "tools", .json = json_object_get(values, "tools")},
        {.name = "numbers", .json = json_object_get(values, "numbers")},
        {.name = "d", .json = json_object_get(values, "d")},
        {.name = "bos_token", .text = "<s>", .length = 3, .by_template = true}};
    /* Smaller than in use, so that a run of the fuzzer sees many. */
    const struct jinja_limits limits = {.steps = 50000 + said_length, .bytes = (4U << 20) + 64 * said_length};
    const struct jinja_input input = {.messages = messages,
                                      .message_count = 4,
                                      .variables = variables,
                                      .variable_count = 4,
                                      .limits = limits};
    struct jinja_output output = {0};
    if (status == STATUS_OK) status = jinja_render(program, &input, &output, &error);
    if (status != STATUS_OK) {
        ASSERT(status == STATUS_USAGE || status == STATUS_UNSUPPORTED);
        ASSERT(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    }
    ASSERT(output.length <= limits.bytes);
    for (size_t i = 0; i < output.length; i++)
        ASSERT((uint8_t)output.bytes[i] != FOREIGN || output.marks[i] == 0);
    jinja_output_deinit(&output);
    jinja_program_destroy(program);
    free(source);
    return 0;
}
