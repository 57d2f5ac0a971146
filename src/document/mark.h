/* mark: where a text says that a page, a chapter or a file ends or begins.
 *
 * Marks are control characters of the text itself, so they are where the text is: in a prompt's tokens, in a saved
 * document, in one that was exported.  A page ends with a form feed, as in pdftotext's output and in plain text since
 * ever, and a chapter with a vertical tab.  A file of several begins with a line "==> NAME <==" that ends with one: not
 * at its beginning, since templates cut blanks off what users say.  document_read takes vertical tabs out of what it
 * reads, so no file can pretend to be another.  Both characters are in the vocabularies of models that do not have all
 * bytes (SmolLM2's lacks separators of ASCII). */
#pragma once

#include <stddef.h>

#include "base/text.h"

enum { MARK_PAGE = '\f', MARK_PART = '\v' /* a chapter, or a file */ };

/* All from 1. */
struct mark_place {
    const char *name; /* [name_length] of the text; NULL: no file's mark is before it */
    size_t name_length;
    size_t line;    /* of the file */
    size_t page;    /* 0: the file has no pages */
    size_t chapter; /* 0: it has no chapters */
};

/* "page 41", "chapter 3" or "line 12": what is told of a place to people. */
enum { MARK_TEXT_BYTES = 40 };
const char *mark_place_text(const struct mark_place *place, char buffer[MARK_TEXT_BYTES]);

/* Goes through a text once. */
struct mark_walk {
    const char *text; /* [length] borrowed */
    size_t length, at;
    struct mark_place place;
};
void mark_walk_begin(struct mark_walk *walk, const char *text, size_t length);
/* place is then that of the byte `at`, which is not before the last one's. */
void mark_walk_to(struct mark_walk *walk, size_t at);

/* Appends the mark of a file.  Control characters of its name become question marks. */
void mark_add_file(struct text *text, const char *name);
/* Behind the line of a file's mark that begins at `at`; `at`: none begins there. */
size_t mark_file_end(const char *text, size_t length, size_t at);
