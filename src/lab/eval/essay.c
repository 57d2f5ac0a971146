#include "lab/eval/essay.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

enum { SENTENCE_MAX = 400 };

/* The file's bytes as they are; the path comes from the build. */
__asm__(".pushsection .rodata\n"
        ".hidden essay_builtin\n.globl essay_builtin\n.type essay_builtin, %object\n"
        "essay_builtin:\n.incbin \"" LOAM_ESSAY_PATH "\"\n"
        "essay_builtin_end:\n.byte 0\n.balign 8\n.size essay_builtin, . - essay_builtin\n"
        ".hidden essay_builtin_length\n.globl essay_builtin_length\n.type essay_builtin_length, %object\n"
        "essay_builtin_length:\n.quad essay_builtin_end - essay_builtin\n.size essay_builtin_length, 8\n"
        ".popsection");
_Static_assert(sizeof(size_t) == 8, "essay_builtin_length is 8 bytes");

/* bytes[0, length) ends in '.': is it only an abbreviation? */
static bool is_abbreviation(const char *bytes, size_t length) {
    static const char *const titles[] = {"Mr", "Mrs", "Ms", "Dr", "St", "Messrs", "Prof", "Esq", "No", "vs"};
    size_t word = 0;
    while (word + 1 < length && isalpha((unsigned char)bytes[length - 2 - word])) word++;
    if (word == 1 && bytes[length - 2] != 'I') return true; /* an initial; "I." does end sentences */
    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++)
        if (strlen(titles[i]) == word && memcmp(bytes + length - 1 - word, titles[i], word) == 0) return true;
    return false;
}

/* How many bytes at `bytes` close a quotation or bracket: the ASCII ones, or U+2019 and U+201D. */
static size_t closing(const char *bytes) {
    if (*bytes != '\0' && strchr("\"')]", *bytes) != NULL) return 1;
    if (memcmp(bytes, "\xe2\x80", 2) == 0 && (bytes[2] == '\x99' || bytes[2] == '\x9d')) return 3;
    return 0;
}

struct cutter {
    struct essay *essay;
    size_t capacity, began, used; /* the sentence being read is bytes[began, used) of essay->bytes */
};

static bool cut(struct cutter *cutter) {
    struct essay *essay = cutter->essay;
    size_t end = cutter->used;
    while (end > cutter->began && essay->bytes[end - 1] == ' ') end--;
    if (end > cutter->began) {
        if (!array_reserve(&essay->sentences, essay->sentence_count, &cutter->capacity, sizeof *essay->sentences))
            return false;
        essay->sentences[essay->sentence_count++] =
            (struct essay_sentence){essay->bytes + cutter->began, end - cutter->began};
    }
    cutter->began = cutter->used;
    return true;
}

/* Copies `text` with its blanks folded and cuts on the way; text[length .. length + 3] are 0. */
static bool cut_all(struct cutter *cutter, const char *text, size_t length) {
    char *bytes = cutter->essay->bytes;
    for (size_t i = 0; i < length; i++) {
        bool starts = cutter->used == cutter->began;
        if (text[i] == '\0' || isspace((unsigned char)text[i])) {
            bool paragraph = text[i] == '\n' && text[i + 1] == '\n';
            if (!starts && bytes[cutter->used - 1] != ' ') bytes[cutter->used++] = ' ';
            if ((paragraph || cutter->used - cutter->began > SENTENCE_MAX) && !cut(cutter)) return false;
            continue;
        }
        bytes[cutter->used++] = text[i];
        if (strchr(".!?", text[i]) == NULL) continue;
        if (text[i] == '.' && is_abbreviation(bytes + cutter->began, cutter->used - cutter->began)) continue;
        size_t more = 0;
        for (size_t step; (step = closing(text + i + 1 + more)) > 0;) more += step;
        char next = text[i + 1 + more];
        if (next != '\0' && !isspace((unsigned char)next)) continue;
        memcpy(bytes + cutter->used, text + i + 1, more);
        cutter->used += more;
        i += more;
        if (!cut(cutter)) return false;
    }
    return cut(cutter);
}

enum status essay_create(struct essay *essay, const char *text, size_t length, const char *name, struct error *error) {
    *essay = (struct essay){.bytes = malloc(length + 1)};
    char *copy = malloc(length + 4); /* zeros behind the end, for the look ahead */
    bool done = false;
    if (essay->bytes != NULL && copy != NULL) {
        memcpy(copy, text, length);
        memset(copy + length, 0, 4);
        done = cut_all(&(struct cutter){.essay = essay}, copy, length);
    }
    free(copy);
    if (!done) {
        essay_deinit(essay);
        return error_set(error, STATUS_MEMORY, "%s: out of memory", name);
    }
    if (essay->sentence_count > 0) return STATUS_OK;
    essay_deinit(essay);
    return error_set(error, STATUS_USAGE, "%s: no sentence in it", name);
}

void essay_deinit(struct essay *essay) {
    free(essay->bytes);
    free(essay->sentences);
    *essay = (struct essay){0};
}
