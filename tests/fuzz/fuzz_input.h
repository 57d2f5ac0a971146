/* fuzz_input: what the fuzzers of folders share: reading numbers from their bytes, a folder, and what an error is. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
    const uint8_t *at;
    size_t left;
};

/* The next number of so many bytes, the lowest first; bytes that are not there are zeros. */
static inline uint64_t take(struct bytes *bytes, size_t count) {
    uint64_t number = 0;
    for (size_t i = 0; i < count && bytes->left > 0; i++, bytes->at++, bytes->left--)
        number |= (uint64_t)*bytes->at << (8 * i);
    return number;
}

/* What is refused has a reason, of one line. */
static inline void check_line(const struct error *error) {
    ASSERT(error->message[0] != '\0' && strchr(error->message, '\n') == NULL);
}

static inline void new_folder(char folder[64], const char *name) {
    const char *root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, 64, "%s/fuzz-%s-XXXXXX", root, name);
    ASSERT(mkdtemp(folder) != NULL);
}
