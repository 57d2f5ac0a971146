/* status: how a function of loam reports a failure.
 *
 * A function that can fail for an outside reason (a file, a flag, memory, the
 * disk) returns `enum status` and, where a person needs the reason, fills a
 * `struct error`.  What only a bug can cause hits ASSERT (base/assert.h).
 * Libraries never print and never exit: src/cli turns a status into an exit code.
 */
#pragma once

#include <stdarg.h>

enum status {
    STATUS_OK = 0,
    STATUS_FAILED,      /* no other status fits; exit code 1 */
    STATUS_USAGE,       /* a flag or a request is wrong; exit code 2 */
    STATUS_MODEL,       /* the model file or its contents; exit code 3 */
    STATUS_DOCUMENT,    /* a saved document; exit code 4 */
    STATUS_MEMORY,      /* does not fit, or the system refused memory; exit code 5 */
    STATUS_IO,          /* reading or writing failed; exit code 6 */
    STATUS_INTERRUPTED, /* the user stopped it; exit code 130 */
    STATUS_FULL,        /* a slab or queue is full at the moment: an ordinary result, not a failure */
    STATUS_UNSUPPORTED, /* well-formed, but this build or device cannot do it; exit code 1 */
};

#define STATUS_CHECKED __attribute__((warn_unused_result))

struct error {
    enum status status;
    int os_error;      /* errno where the system refused, else 0 */
    char message[400]; /* one line: the file, the field, found and expected */
};

/* Fills *error (which may be NULL) and returns status: `return error_set(error, STATUS_MODEL, "%s: ...", path);`. */
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same, with ": <text of errno>" at the end. */
enum status error_set_os(struct error *error, enum status status, int os_error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "prefix: " in front of the message. */
void error_prefix(struct error *error, const char *prefix);

/* A fixed English word for a status, for logs and JSON: "ok", "usage", ... */
const char *status_name(enum status status);

/* Forwards a failure: TRY(file_open(...)); */
#define TRY(expression)                                   \
    do {                                                  \
        enum status try_status_ = (expression);           \
        if (try_status_ != STATUS_OK) return try_status_; \
    } while (0)
