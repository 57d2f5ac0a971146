/* Any bytes as a file: a text of UTF-8 without zeros, whose marks are places, or a reason of one line.  PDFs are read
 * by a process, and are left out here.  The first byte chooses the name. */
#include "document/document.h"
#include "document/encoding.h"
#include "document/mark.h"
#include "fuzz_input.h"

static void check(const struct document *document) {
    ASSERT(strlen(document->text) == document->length);
    ASSERT(encoding_utf8_length(document->text, document->length) == document->length);
    struct mark_walk walk;
    mark_walk_begin(&walk, document->text, document->length);
    mark_walk_to(&walk, document->length);
    ASSERT(walk.place.page <= document->pages + 1 && walk.place.chapter <= document->chapters + 1);
    ASSERT(document->format == DOCUMENT_EPUB || document->chapters == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { TEXT_BYTES_MAX = 4 << 20 };
    static const char *const names[] = {"a.txt", "a.html"};
    static const char *const encodings[] = {NULL, "latin1", "utf-16le", "shift_jis", "gb18030"};
    struct bytes bytes = {data, size};
    const size_t choice = (size_t)take(&bytes, 1);
    struct document_source source = {.name = names[choice % 2],
                                     .encoding =
                                         encodings[choice / 2 % (sizeof encodings / sizeof *encodings)],
                                     .bytes = (const char *)bytes.at,
                                     .length = bytes.left,
                                     .text_bytes_max = TEXT_BYTES_MAX};
    struct document document;
    struct error error = {0};
    if (bytes.left >= 5 && memcmp(bytes.at, "%PDF-", 5) == 0) return 0;
    if (document_read(&document, &source, &error) == STATUS_OK) {
        check(&document);
        /* A byte of it becomes three at most, or what was packed does. */
        ASSERT(document.format == DOCUMENT_EPUB ? document.length <= 3 * TEXT_BYTES_MAX
                                                : document.length <= 8 * bytes.left + 64);
        document_deinit(&document);
    } else {
        check_line(&error);
        ASSERT(strncmp(error.message, source.name, strlen(source.name)) == 0);
    }
    return 0;
}
