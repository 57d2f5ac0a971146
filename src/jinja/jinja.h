/* jinja: renders the Jinja template that a model file brings (tokenizer.chat_template), as Hugging Face's transformers
 * do: trim_blocks and lstrip_blocks are on, loop controls and {% generation %} are known, nothing is escaped.
 *
 * It is a subset over the constructs that chat templates use (docs/tokenizers.md lists it).  A file is untrusted: every
 * evaluation counts as a step, every copied byte as memory, and both have limits, as have depth and the size of the
 * source.  There is no access to files, the environment or a clock beyond `now`.
 *
 * Each byte that comes out is marked: written by the template, or by whoever filled the variables.  So what a user
 * types never becomes a control token (token/chat_template.c).  Marks follow the bytes through every operation; what
 * one cannot follow (tojson, the text of a list) counts as the user's.
 *
 * A program is constant after jinja_program_create: several threads may render it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { JINJA_SOURCE_BYTES_MAX = 128 << 10 };

struct jinja_program;

/* STATUS_UNSUPPORTED, with the line: the text is no template, or has a construct that is not known. */
enum status jinja_program_create(struct jinja_program **program, const char *source, size_t length, struct error *error)
    STATUS_CHECKED;
void jinja_program_destroy(struct jinja_program *program); /* NULL allowed */
/* Whether the template reads a variable of this name anywhere. */
bool jinja_program_reads(const struct jinja_program *program, const char *name);

/* One variable.  Nothing is copied: all of it lives until the rendering is over. */
struct jinja_variable {
    const char *name;
    const json_t *json; /* NULL: text */
    const char *text;   /* [length] */
    size_t length;
    bool by_template; /* text that counts as the template's own: the BOS token */
};

/* What messages look like to the template: dictionaries with `role`, `content` and what is given beside it.  A field
 * that is NULL is absent, `content` is none then. */
struct jinja_message {
    const char *role;    /* the template's own */
    const char *content; /* [length] */
    size_t length;
    const json_t *more; /* an object: its members are the message's, too */
};

struct jinja_limits {
    uint64_t steps; /* evaluations, and a step for each 64 bytes that are looked at */
    size_t bytes;   /* of all values that are made */
};
/* For messages of that many bytes: a second of one core at worst, and many times what real templates need. */
struct jinja_limits jinja_limits_for(size_t input_bytes);

struct jinja_input {
    const struct jinja_message *messages; /* [message_count] */
    size_t message_count;
    const struct jinja_variable *variables; /* [variable_count]; a later one of the same name wins */
    size_t variable_count;
    int64_t now; /* seconds since 1970, local time of strftime_now */
    struct jinja_limits limits;
};

struct jinja_output {
    char *bytes;    /* [length] owned; NULL where length is 0 */
    uint8_t *marks; /* [length] owned; 1: written by the template */
    size_t length;
    uint64_t steps; /* used */
};
void jinja_output_deinit(struct jinja_output *output);

/* STATUS_USAGE: the template refuses this conversation (raise_exception), in its words, or a limit is exceeded.
 * STATUS_UNSUPPORTED, with the line: what it does to these values is an error, or is not known. */
enum status jinja_render(const struct jinja_program *program, const struct jinja_input *input,
                         struct jinja_output *output, struct error *error) STATUS_CHECKED;
