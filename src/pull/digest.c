#include "pull/digest.h"

#include <ctype.h>
#include <string.h>

enum status digest_begin(struct digest *digest, struct error *error) {
    static const char *const argv[] = {"sha256sum", NULL};
    return child_start(&digest->child, argv, NULL, error);
}

enum status digest_add(struct digest *digest, const void *bytes, size_t count, struct error *error) {
    return child_write(&digest->child, bytes, count, error);
}

bool digest_is_text(const char *text) {
    size_t digits = 0;
    while (isxdigit((unsigned char)text[digits])) digits++;
    return digits == SHA256_TEXT_BYTES - 1 && text[digits] == '\0';
}

enum status digest_end(struct digest *digest, char text[SHA256_TEXT_BYTES], struct error *error) {
    size_t used = 0, got = 0;
    child_end_input(&digest->child);
    do { /* the digits, then " -" */
        char bytes[SHA256_TEXT_BYTES];
        TRY(child_read(&digest->child, bytes, sizeof bytes - 1, &got, error));
        const size_t room = SHA256_TEXT_BYTES - 1 - used, part = got < room ? got : room;
        memcpy(text + used, bytes, part);
        used += part;
    } while (got > 0);
    text[used] = '\0';
    if (child_wait(&digest->child) == 0 && digest_is_text(text)) return STATUS_OK;
    return error_set(error, STATUS_FAILED, "sha256sum gave no digest");
}

void digest_abort(struct digest *digest) { child_close(&digest->child); }
