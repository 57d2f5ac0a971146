/* signature: what bytes are that are no text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct signature {
    const char *what;    /* "a PNG picture" */
    const char *way_out; /* "give its text"; NULL: none is known */
    bool is_text;        /* of letters that nobody reads; what is not begins with bytes that a text could begin with */
};
/* NULL: they begin like nothing that is known. */
const struct signature *signature_find(const char *bytes, size_t length);
