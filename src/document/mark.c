#include "document/mark.h"

#include <stdio.h>
#include <string.h>

static const char before_name[] = "==> ", behind_name[] = " <==\v\n";

const char *mark_place_text(const struct mark_place *place, char buffer[MARK_TEXT_BYTES]) {
    const bool has_chapter = place->chapter > 0, has_page = place->page > 0 && !has_chapter;
    snprintf(buffer, MARK_TEXT_BYTES, "%s %zu",
             has_chapter ? "chapter"
             : has_page  ? "page"
                         : "line",
             has_chapter ? place->chapter
             : has_page  ? place->page
                         : place->line);
    return buffer;
}

size_t mark_file_end(const char *text, size_t length, size_t at) {
    const size_t before = sizeof before_name - 1, behind = sizeof behind_name - 1;
    if (at >= length || length - at < before + behind || memcmp(text + at, before_name, before) != 0 ||
        (at > 0 && text[at - 1] != '\n'))
        return at;
    const char *end = memchr(text + at, '\n', length - at);
    if (end == NULL) return at;
    const size_t line = (size_t)(end - text) + 1 - at;
    return line >= before + behind && memcmp(end + 1 - behind, behind_name, behind) == 0 ? at + line : at;
}

/* Whether the mark at `at` is the end of a file's line; *begin: of that line. */
static bool ends_file_mark(const char *text, size_t length, size_t at, size_t *begin) {
    const size_t before = sizeof behind_name - 3; /* what is before the mark in it: without it no line is looked at */
    if (at < before || length - at < 2 || memcmp(text + at - before, behind_name, sizeof behind_name - 1) != 0)
        return false;
    const char *line = memrchr(text, '\n', at);
    *begin = line != NULL ? (size_t)(line - text) + 1 : 0;
    return mark_file_end(text, length, *begin) == at + 2;
}

/* The file that begins at `at`: the place becomes that of its first byte, or of its mark. */
static void begin_file(struct mark_walk *walk, size_t at) {
    const char *text = walk->text;
    const size_t end = mark_file_end(text, walk->length, at);
    size_t last = walk->length, mark = end, begin;
    bool has_chapters = false;
    while (mark < walk->length) {
        const char *found = memchr(text + mark, MARK_PART, walk->length - mark);
        if (found == NULL) break;
        mark = (size_t)(found - text);
        if (ends_file_mark(text, walk->length, mark, &begin)) {
            last = begin;
            break;
        }
        has_chapters = true;
        mark++;
    }
    const bool has_pages = last > at && memchr(text + at, MARK_PAGE, last - at) != NULL;
    walk->place = (struct mark_place){.line = 1, .page = has_pages ? 1 : 0, .chapter = has_chapters ? 1 : 0};
    if (end == at) return;
    walk->place.name = text + at + sizeof before_name - 1;
    walk->place.name_length = end - at - (sizeof before_name - 1) - (sizeof behind_name - 1);
    walk->place.line = 0; /* the mark's own line */
}

void mark_walk_begin(struct mark_walk *walk, const char *text, size_t length) {
    *walk = (struct mark_walk){.text = text, .length = length};
    begin_file(walk, 0);
}

void mark_walk_to(struct mark_walk *walk, size_t at) {
    for (; walk->at < at && walk->at < walk->length; walk->at++) {
        const char c = walk->text[walk->at];
        size_t begin;
        if (walk->at > 0 && c == before_name[0] && mark_file_end(walk->text, walk->length, walk->at) > walk->at)
            begin_file(walk, walk->at);
        if (c == '\n') walk->place.line++;
        if (c == MARK_PAGE) walk->place.page++;
        if (c == MARK_PART && !ends_file_mark(walk->text, walk->length, walk->at, &begin)) walk->place.chapter++;
    }
}

void mark_add_file(struct text *text, const char *name) {
    text_add(text, before_name);
    const size_t begin = text->length;
    text_add(text, name);
    for (size_t i = begin; i < text->length && !text->failed; i++)
        if ((unsigned char)text->bytes[i] < ' ' || text->bytes[i] == 0x7F) text->bytes[i] = '?';
    text_add(text, behind_name);
}
