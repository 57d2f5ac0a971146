/* batch_file: the requests of `loam batch` and its answers, in OpenAI's batch format, one JSON object a line.
 *
 *   request   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *   answer    {"id": "...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}},
 *              "error": null}
 *
 * Answers are appended in the order they come.  A file of answers that is there already must be of these requests:
 * those in it are not asked again, and a last line that a kill cut short is removed.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"
#include "server/server.h"

struct batch_request {
    uint64_t offset; /* of its line */
    size_t length, line;
    bool is_answered;
};

struct batch_file {
    const char *input_path, *output_path; /* borrowed */
    FILE *input;
    int output;
    struct batch_request *requests; /* owned, [count] */
    size_t count, capacity, answered_before;
    json_t *ids;           /* owned: custom_id -> index */
    uint64_t output_bytes; /* of whole lines */
    double synced;         /* when the answers were last made durable */
};

/* Reads and checks every request, and what is answered already; the message names file, line and field. */
enum status batch_file_open(struct batch_file *file, const char *input_path, const char *output_path,
                            struct error *error) STATUS_CHECKED;
void batch_file_close(struct batch_file *file); /* safe after a failed open */

/* *object is the caller's; url and body are borrowed from it. */
struct batch_line {
    json_t *object;
    const char *id, *url;
    json_t *body;
};
enum status batch_file_read(struct batch_file *file, size_t index, struct batch_line *line, struct error *error)
    STATUS_CHECKED;

/* Appends the answer, whole or not at all. */
enum status batch_file_write(struct batch_file *file, size_t index, const struct server_answer *answer,
                             struct error *error) STATUS_CHECKED;
enum status batch_file_sync(struct batch_file *file, struct error *error) STATUS_CHECKED;
