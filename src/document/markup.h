/* markup: the tags and the text of HTML and XML, one after the other.
 *
 * No tree is built: what a text needs of a page (and of an EPUB's lists) is in its tags.  The reader never fails, what
 * it does not understand is text, and each byte is looked at a bounded number of times. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

enum markup_kind {
    MARKUP_TEXT,     /* with references: markup_decode */
    MARKUP_VERBATIM, /* without any: what CDATA holds */
    MARKUP_OPEN,
    MARKUP_CLOSE,
};

struct markup_token {
    enum markup_kind kind;
    const char *bytes; /* [length], borrowed: the text, or what a tag has behind its name */
    size_t length;
    const char *name; /* [name_length] of a tag, as it is written, without a prefix: "item" of <opf:item> */
    size_t name_length;
    bool is_empty; /* <name/>; in HTML the slash says nothing but in pictures */
};

struct markup_reader {
    const char *bytes; /* [length] UTF-8 */
    size_t length, at;
    bool is_xml;     /* else <script>, <title> and their like end at their own end tag alone */
    const char *raw; /* [raw_length] the name of such a one that was opened */
    size_t raw_length;
};

bool markup_next(struct markup_reader *reader, struct markup_token *token); /* false: the end */
bool markup_is(const struct markup_token *token, const char *name);         /* upper or lower case */
/* Appends the text, with what references stand for. */
void markup_decode(const char *bytes, size_t length, struct text *text);
/* Appends a tag's attribute, decoded; false: it has none of this name. */
bool markup_attribute(const struct markup_token *token, const char *name, struct text *value);
