/* file_part: a file inside a request's JSON, in base64 or as a data URL, as its text.
 *
 * OpenAI's {type: file, file: {filename, file_data}} and {type: input_file, filename, file_data}, Anthropic's document
 * of a source {type: base64, data}.  Two are read at once, since each may take a process and a worker. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "document/document.h"
#include "server/api_error.h"

/* NULL: the part (of whichever family) holds no file.  *name: of the file; "file" where it has none. */
const json_t *file_part_data(const json_t *part, const char **name);
/* *document becomes the file's text.  param: the field, for messages. */
bool file_part_read(const json_t *data, const char *name, const char *encoding, const char *param,
                    struct document *document, struct api_error *error);
