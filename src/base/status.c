#include "base/status.h"

#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 4, 0))) static enum status error_fill(struct error *error, enum status status,
                                                                    int os_error, const char *format,
                                                                    va_list arguments) {
    if (error == NULL) return status;
    error->status = status;
    error->os_error = os_error;
    int length = vsnprintf(error->message, sizeof error->message, format, arguments);
    size_t used = length < 0 ? 0 : (size_t)length;
    if (used >= sizeof error->message) used = sizeof error->message - 1;
    error->message[used] = '\0';
    if (os_error != 0) snprintf(error->message + used, sizeof error->message - used, ": %s", strerror(os_error));
    /* The name of an untrusted file must not break the rule of one line. */
    for (char *c = error->message; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return status;
}

enum status error_set(struct error *error, enum status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    error_fill(error, status, 0, format, arguments);
    va_end(arguments);
    return status;
}

enum status error_set_os(struct error *error, enum status status, int os_error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    error_fill(error, status, os_error, format, arguments);
    va_end(arguments);
    return status;
}

void error_prefix(struct error *error, const char *prefix) {
    if (error == NULL) return;
    char old[sizeof error->message];
    memcpy(old, error->message, sizeof old);
    int length = snprintf(error->message, sizeof error->message, "%s: ", prefix);
    size_t used = length < 0 ? 0 : (size_t)length;
    if (used >= sizeof error->message) return;
    snprintf(error->message + used, sizeof error->message - used, "%.*s", (int)(sizeof error->message - used - 1), old);
}

const char *status_name(enum status status) {
    switch (status) {
    case STATUS_OK: return "ok";
    case STATUS_FAILED: return "failed";
    case STATUS_USAGE: return "usage";
    case STATUS_MODEL: return "model";
    case STATUS_DOCUMENT: return "document";
    case STATUS_MEMORY: return "memory";
    case STATUS_IO: return "io";
    case STATUS_INTERRUPTED: return "interrupted";
    case STATUS_FULL: return "full";
    case STATUS_UNSUPPORTED: return "unsupported";
    }
    return "unknown";
}
