/* digest: SHA-256 of bytes as they come, through the program sha256sum, which every Linux has. */
#pragma once

#include "platform/child.h"
#include "pull/http.h"

struct digest {
    struct child child;
};

enum status digest_begin(struct digest *digest, struct error *error) STATUS_CHECKED;
enum status digest_add(struct digest *digest, const void *bytes, size_t count, struct error *error) STATUS_CHECKED;
enum status digest_end(struct digest *digest, char text[SHA256_TEXT_BYTES], struct error *error) STATUS_CHECKED;
void digest_abort(struct digest *digest); /* safe after digest_end */

/* 64 hexadecimal digits. */
bool digest_is_text(const char *text);
