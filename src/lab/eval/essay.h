/* essay: the sentences of a text, the haystack of most needle tasks.
 *
 * Blanks and line ends inside a sentence become one space.  A sentence ends at '.', '!' or '?' (closing quotes
 * and brackets included) before a blank, but not behind a title or an initial ("Mr. Holmes", "E. A. Poe"); an
 * empty line ends one too.  Sentences longer than 400 bytes are cut at a blank, so that a haystack can be
 * filled finely. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct essay_sentence {
    const char *bytes;
    size_t length;
};

struct essay {
    char *bytes;                      /* owned */
    struct essay_sentence *sentences; /* [sentence_count], owned */
    size_t sentence_count;
};

/* STATUS_USAGE when the text has no sentence. `name` is for messages. */
enum status essay_create(struct essay *essay, const char *text, size_t length, const char *name, struct error *error)
    STATUS_CHECKED;
void essay_deinit(struct essay *essay);

/* The text in the binary, in the public domain: "A Scandal in Bohemia" (Arthur Conan Doyle, 1891), 47 KB. */
extern const char essay_builtin[];
extern const size_t essay_builtin_length;
