#include "document/epub.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "document/encoding.h"
#include "document/html.h"
#include "document/mark.h"
#include "document/markup.h"
#include "document/zip.h"

enum { ITEMS_MAX = 20000, CHAPTERS_MAX = 5000, ID_BYTES_MAX = 256 };

static const char container[] = "META-INF/container.xml", encryption[] = "META-INF/encryption.xml";

/* A file of the book, of the package's list. */
struct item {
    size_t id, id_length, href, href_length; /* bytes of the package's names */
};

struct package {
    struct zip zip;
    struct text path;   /* of the package's file */
    struct text names;  /* ids and addresses of the items */
    struct item *items; /* owned, [item_count] */
    size_t item_count, item_capacity;
};

bool epub_is(const char *bytes, size_t length) {
    struct zip zip;
    struct zip_file file;
    return length > 4 && memcmp(bytes, "PK\3\4", 4) == 0 && zip_open(&zip, bytes, length, 0) &&
           zip_find(&zip, container, sizeof container - 1, &file);
}

static enum status no_memory(struct error *error) { return error_set(error, STATUS_MEMORY, "no memory for the book"); }

static enum status read_file(struct package *package, const char *name, size_t name_length, struct text *text,
                             struct error *error) {
    struct zip_file file;
    if (!zip_find(&package->zip, name, name_length, &file))
        return error_set(error, STATUS_USAGE, "damaged EPUB: it has no file %.*s",
                         (int)(name_length < 100 ? name_length : 100), name);
    return zip_read(&package->zip, &file, text, error);
}

static enum status find_package(struct package *package, struct error *error) {
    struct text text = {0};
    enum status status = read_file(package, container, sizeof container - 1, &text, error);
    struct markup_reader reader = {.bytes = text.bytes, .length = text.length, .is_xml = true};
    struct markup_token token;
    while (status == STATUS_OK && package->path.length == 0 && markup_next(&reader, &token))
        if (token.kind == MARKUP_OPEN && markup_is(&token, "rootfile"))
            (void)markup_attribute(&token, "full-path", &package->path);
    text_deinit(&text);
    if (status == STATUS_OK && package->path.length == 0)
        status = error_set(error, STATUS_USAGE, "damaged EPUB: %s names no package", container);
    return status;
}

static enum status add_item(struct package *package, const struct markup_token *token, struct error *error) {
    if (package->item_count == ITEMS_MAX)
        return error_set(error, STATUS_USAGE, "EPUB with more than %d files", ITEMS_MAX);
    if (!array_reserve(&package->items, package->item_count, &package->item_capacity, sizeof *package->items))
        return no_memory(error);
    struct item item = {.id = package->names.length};
    const bool has_id = markup_attribute(token, "id", &package->names);
    item.id_length = package->names.length - item.id;
    item.href = package->names.length;
    const bool has_href = markup_attribute(token, "href", &package->names);
    item.href_length = package->names.length - item.href;
    if (has_id && has_href && item.id_length <= ID_BYTES_MAX) package->items[package->item_count++] = item;
    return package->names.failed ? no_memory(error) : STATUS_OK;
}

/* ---- addresses ---- */

static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The name of the file that an item's address means, as seen from the package. */
static void resolve(const struct package *package, const struct item *item, struct text *name) {
    const char *href = package->names.bytes + item->href;
    const char *slash = memrchr(package->path.bytes, '/', package->path.length);
    text_clear(name);
    if (slash != NULL) text_append(name, package->path.bytes, (size_t)(slash - package->path.bytes) + 1);
    for (size_t i = 0; i < item->href_length && href[i] != '#' && !name->failed; i++) {
        char c = href[i];
        if (c == '%' && i + 2 < item->href_length && digit_of(href[i + 1]) >= 0 && digit_of(href[i + 2]) >= 0) {
            c = (char)(digit_of(href[i + 1]) * 16 + digit_of(href[i + 2]));
            i += 2;
        }
        text_append(name, &c, 1);
        if (name->length < 4 || memcmp(name->bytes + name->length - 4, "/../", 4) != 0) continue;
        size_t end = name->length - 4; /* the folder before it goes */
        while (end > 0 && name->bytes[end - 1] != '/') end--;
        name->length = end;
    }
}

/* ---- chapters ---- */

static enum status add_chapter(struct package *package, const struct item *item, struct text *file, struct text *text,
                               struct error *error) {
    const char mark = MARK_PART;
    size_t mark_bytes;
    struct text name = {0};
    text_clear(file);
    resolve(package, item, &name);
    enum status status = name.failed ? no_memory(error)
                                     : read_file(package, name.length > 0 ? name.bytes : "", name.length, file, error);
    text_deinit(&name);
    TRY(status);
    if (encoding_of_mark(file->bytes, file->length, &mark_bytes) == NULL && file->length > 0 &&
        memchr(file->bytes, '\0', file->length) != NULL)
        return error_set(error, STATUS_USAGE, "EPUB: chapters are protected or no text");
    const size_t before = text->length;
    if (before > 0) text_append(text, "\n", 1);
    const size_t begin = text->length;
    TRY(html_read(file->bytes, file->length, true, text, error));
    if (text->length > begin)
        text_append(text, &mark, 1);
    else
        text->length = before;
    return text->failed ? no_memory(error) : STATUS_OK;
}

static const struct item *find_item(const struct package *package, const struct text *id) {
    for (size_t i = 0; i < package->item_count && id->length > 0; i++) {
        const struct item *item = &package->items[i];
        if (item->id_length == id->length && memcmp(package->names.bytes + item->id, id->bytes, id->length) == 0)
            return item;
    }
    return NULL;
}

/* The items are listed before the spine that orders them. */
static enum status read_package(struct package *package, const struct text *list, struct text *text,
                                struct error *error) {
    struct markup_reader reader = {.bytes = list->bytes, .length = list->length, .is_xml = true};
    struct markup_token token;
    struct text id = {0}, file = {0};
    size_t chapters = 0;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && markup_next(&reader, &token)) {
        if (token.kind != MARKUP_OPEN) continue;
        if (markup_is(&token, "item")) status = add_item(package, &token, error);
        if (!markup_is(&token, "itemref")) continue;
        text_clear(&id);
        (void)markup_attribute(&token, "idref", &id);
        const struct item *item = find_item(package, &id);
        if (item == NULL) continue;
        if (++chapters > CHAPTERS_MAX)
            status = error_set(error, STATUS_USAGE, "EPUB with more than %d chapters", CHAPTERS_MAX);
        if (status == STATUS_OK) status = add_chapter(package, item, &file, text, error);
    }
    text_deinit(&id);
    text_deinit(&file);
    return status;
}

/* Fonts may be disguised in a book that anybody may read: only what is bought with a licence has one inside. */
static bool is_protected(const struct package *package) {
    static const char *const licences[] = {"META-INF/rights.xml", "META-INF/license.lcpl", "META-INF/sinf.xml"};
    struct zip_file file;
    if (!zip_find(&package->zip, encryption, sizeof encryption - 1, &file)) return false;
    for (size_t i = 0; i < sizeof licences / sizeof *licences; i++)
        if (zip_find(&package->zip, licences[i], strlen(licences[i]), &file)) return true;
    return false;
}

enum status epub_read(const char *bytes, size_t length, size_t text_bytes_max, struct text *text, struct error *error) {
    struct package package = {0};
    struct text list = {0};
    if (!zip_open(&package.zip, bytes, length, text_bytes_max))
        return error_set(error, STATUS_USAGE, "damaged EPUB: the archive has no directory");
    if (is_protected(&package))
        return error_set(error, STATUS_USAGE, "is an EPUB that its publisher has locked (DRM), and cannot be read");
    enum status status = find_package(&package, error);
    if (status == STATUS_OK) status = read_file(&package, package.path.bytes, package.path.length, &list, error);
    if (status == STATUS_OK) status = read_package(&package, &list, text, error);
    if (status == STATUS_OK && text->length == 0) status = error_set(error, STATUS_USAGE, "is an EPUB without text");
    text_deinit(&list);
    text_deinit(&package.path);
    text_deinit(&package.names);
    free(package.items);
    return status;
}
