#include "document/mark.h"

#include <stdio.h>
#include <string.h>

static const char before_name[] = "==> ", behind_name[] = " <==\n";

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
    if (at >= length || text[at] != MARK_PART || length - at - 1 < before + behind ||
        memcmp(text + at + 1, before_name, before) != 0)
        return at;
    const char *end = memchr(text + at, '\n', length - at);
    if (end == NULL) return at;
    const size_t line = (size_t)(end - text) + 1 - at;
    return line >= 1 + before + behind && memcmp(end + 1 - behind, behind_name, behind) == 0 ? at + line : at;
}

/* How far the file that begins at `at` goes. */
static size_t file_length(const struct mark_walk *walk, size_t at) {
    const char *bytes = walk->text;
    for (size_t next = at + 1; next < walk->length; next++) {
        const char *found = memchr(bytes + next, MARK_PART, walk->length - next);
        if (found == NULL) break;
        next = (size_t)(found - bytes);
        if (mark_file_end(bytes, walk->length, next) > next) return next - at;
    }
    return walk->length - at;
}

/* The file that begins at `at`: the place becomes that of its first byte, or of its mark. */
static void begin_file(struct mark_walk *walk, size_t at) {
    const char *bytes = walk->text + at;
    const size_t end = mark_file_end(walk->text, walk->length, at), length = file_length(walk, at);
    const bool has_pages = length > 0 && memchr(bytes, MARK_PAGE, length) != NULL;
    walk->place = (struct mark_place){.line = 1, .page = has_pages ? 1 : 0};
    if (end == at) return;
    walk->place.name = bytes + sizeof before_name;
    walk->place.name_length = end - at - 1 - (sizeof before_name - 1) - (sizeof behind_name - 1);
    walk->place.line = 0; /* the mark's own line */
}

void mark_walk_begin(struct mark_walk *walk, const char *text, size_t length) {
    *walk = (struct mark_walk){.text = text, .length = length};
    begin_file(walk, 0);
}

void mark_walk_to(struct mark_walk *walk, size_t at) {
    for (; walk->at < at && walk->at < walk->length; walk->at++) {
        const char c = walk->text[walk->at];
        if (c == '\n') walk->place.line++;
        if (c == MARK_PAGE) walk->place.page++;
        if (c != MARK_PART) continue;
        if (mark_file_end(walk->text, walk->length, walk->at) == walk->at)
            walk->place.chapter++;
        else if (walk->at > 0)
            begin_file(walk, walk->at);
    }
}

void mark_add_file(struct text *text, const char *name) {
    const char mark = MARK_PART;
    text_append(text, &mark, 1);
    text_add(text, before_name);
    const size_t begin = text->length;
    text_add(text, name);
    for (size_t i = begin; i < text->length && !text->failed; i++)
        if ((unsigned char)text->bytes[i] < ' ' || text->bytes[i] == 0x7F) text->bytes[i] = '?';
    text_add(text, behind_name);
}
