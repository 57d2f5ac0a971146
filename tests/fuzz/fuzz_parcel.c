/* Any bytes as an exported document, and any changes to sound ones: taken in whole, or refused with one line and
 * nothing left in the folder.  What was taken in verifies, is exported again in as many bytes, and is there already the
 * second time.  libFuzzer's build takes every checksum as right (src/cache/store/checksum.c), so that what lies behind
 * them is reached; the replay of the corpus does not.
 *
 * The first byte says which sound parcel is changed, or that what follows the second byte is the parcel.  The second
 * one: whether the folder has a limit, and whether documents are kept.  Then changes, one after another: what, where,
 * and a number. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "cache/store/parcel.h"
#include "fuzz_input.h"

enum { SOUND = 4, TOKENS_MAX = 64 * 17, CHANGES_MAX = 16, PARCEL_MAX = 1 << 20, AT_ONCE = 777 };
enum { FLAG_LIMIT = 1, FLAG_KEEPS = 2 };

struct file {
    uint8_t *bytes;
    size_t count, done;
};

struct seen {
    size_t count;
    uint64_t ids[8];
};

static struct file sound[SOUND];
static const struct store_model model = {.description = "a model"};

/* ---- folders ---- */

/* Files of documents that were in it. */
static size_t remove_folder(const char *folder) {
    char path[PATH_MAX];
    size_t files = 0;
    DIR *entries = opendir(folder);
    ASSERT(entries != NULL);
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        files += strncmp(entry->d_name, "catalog", 7) != 0;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        ASSERT(unlink(path) == 0);
    }
    closedir(entries);
    ASSERT(rmdir(folder) == 0);
    return files;
}

static struct store *open_store(const char *folder, uint8_t flags) {
    struct store *store;
    struct error error;
    const struct store_options options = {.directory = folder,
                                          .limit_bytes = flags & FLAG_LIMIT ? 2 << 20 : 0,
                                          .keeps_documents = (flags & FLAG_KEEPS) != 0,
                                          .staging_bytes = 1 << 16,
                                          .backend = IO_BACKEND_THREADS};
    ASSERT(store_open(&store, &options, &error) == STATUS_OK);
    ASSERT(store_warning(store) == NULL);
    return store;
}

/* ---- sound parcels ---- */

#define PATIENTLY(document, expression)                              \
    for (;;) {                                                       \
        const enum status status_ = (expression);                    \
        if (status_ == STATUS_OK) break;                             \
        ASSERT(status_ == STATUS_FULL);                              \
        ASSERT(document_wait_buffer(document, &error) == STATUS_OK); \
    }

static uint64_t write_document(struct store *store, const struct store_layout *layout, uint64_t tokens) {
    static uint8_t page[4096], index[64];
    static int32_t ids[TOKENS_MAX];
    static const void *const chunk[] = {page};
    const struct document_description description = {&model, layout, "a document", tokens};
    struct document *document;
    struct error error;
    for (size_t i = 0; i < TOKENS_MAX; i++) ids[i] = (int32_t)i;
    for (size_t i = 0; i < sizeof page; i++) page[i] = (uint8_t)(i * 7);
    ASSERT(document_create(&document, store, &description, &error) == STATUS_OK);
    for (size_t layer = 0; layer < layout->layer_count; layer++)
        for (size_t head = 0; head < layout->kv_head_count; head++) {
            for (uint64_t i = 0; i < tokens / 64; i++) {
                PATIENTLY(document, document_write_pages(document, layer, head, i, 1, chunk, &error));
                if (layout->key_index_bytes > 0)
                    PATIENTLY(document, document_write_key_index(
                                            document, &(struct key_index_write){layer, head, 1, i, 1, index}, &error));
            }
            if (tokens % 64 != 0)
                PATIENTLY(document, document_write_tail(document, layer, head, tokens, page, &error));
        }
    ASSERT(document_commit(document, ids, tokens, &error) == STATUS_OK);
    ASSERT(document_flush(document, &error) == STATUS_OK);
    const uint64_t id = document_id(document);
    document_close(document);
    return id;
}

/* STATUS_OK: it has as many bytes as it says. */
static enum status export(struct store *store, const uint64_t *ids, size_t count, struct file *file,
                          struct error *error) {
    struct parcel *parcel; TRY(parcel_open(&parcel, store, ids, count, NULL, error));
    const size_t capacity = (size_t)parcel_bytes(parcel);
    enum status status = STATUS_OK;
    *file = (struct file){.bytes = malloc(capacity + 1)};
    ASSERT(file->bytes != NULL);
    for (size_t read = 1; status == STATUS_OK && read > 0; file->count += read)
        status = parcel_read(parcel, file->bytes + file->count, capacity + 1 - file->count, &read, error);
    if (status == STATUS_OK) ASSERT(file->count == capacity);
    parcel_close(parcel);
    return status;
}

static void make_sound(void) {
    const struct store_layout rows = {.codec = "f16.64,f16.64",
                                      .layer_count = 2,
                                      .kv_head_count = 1,
                                      .chunk_bytes = 512,
                                      .key_index_kind = "abstract",
                                      .key_index_bytes = 24};
    struct store_layout mixed = {.codec = "f16+q4k64.64,f16+q4v32.64",
                                 .layer_count = 2,
                                 .kv_head_count = 2,
                                 .chunk_bytes = 256,
                                 .tail_bytes = 1024,
                                 .key_index_kind = "none"};
    struct store_layout bare = rows;
    const uint64_t tokens[SOUND] = {150, 64 * 17, 5, 130};
    mixed.fractions.layer_count = 2;
    mixed.fractions.sixteenths[0] = 16;
    mixed.fractions.sixteenths[1] = 5;
    snprintf(bare.key_index_kind, sizeof bare.key_index_kind, "none");
    bare.key_index_bytes = 0;
    const struct store_layout *const layouts[SOUND] = {&rows, &mixed, &bare, &rows};
    for (size_t i = 0; i < SOUND; i++) {
        char folder[64];
        struct error error;
        uint64_t ids[2];
        new_folder(folder, "parcel");
        struct store *store = open_store(folder, 0);
        ids[0] = write_document(store, layouts[i], tokens[i]);
        if (i == SOUND - 1) ids[1] = write_document(store, &bare, tokens[i]);
        ASSERT(export(store, ids, i == SOUND - 1 ? 2 : 1, &sound[i], &error) == STATUS_OK);
        store_close(store);
        (void)remove_folder(folder);
    }
}

/* ---- changes ---- */

enum {
    CHANGE_BYTE,
    CHANGE_NUMBER,
    CHANGE_SMALL,
    CHANGE_CUT,
    CHANGE_GROW,
    CHANGE_COPY,
    CHANGE_TEXT,
    CHANGE_KINDS
};

static void change(struct file *file, struct bytes *bytes) {
    const size_t kind = take(bytes, 1) % CHANGE_KINDS,
                 at = file->count > 0 ? (size_t)(take(bytes, 2) % file->count) : 0, left = file->count - at;
    uint64_t number;
    switch (kind) {
    case CHANGE_BYTE:
        if (left > 0) file->bytes[at] = (uint8_t)take(bytes, 1);
        break;
    case CHANGE_NUMBER:
        number = take(bytes, 8);
        memcpy(file->bytes + at, &number, left < sizeof number ? left : sizeof number);
        break;
    case CHANGE_SMALL:
        number = take(bytes, 2);
        memcpy(file->bytes + at, &number, left < sizeof number ? left : sizeof number);
        break;
    case CHANGE_CUT: file->count = at; break;
    case CHANGE_GROW: {
        const size_t more = (size_t)take(bytes, 2);
        memset(file->bytes + file->count, (int)(more & 255), more);
        file->count += more;
        break;
    }
    case CHANGE_COPY: {
        const size_t to = file->count > 0 ? (size_t)(take(bytes, 2) % file->count) : 0,
                     count = (size_t)take(bytes, 2), behind = file->count - (at > to ? at : to);
        memmove(file->bytes + to, file->bytes + at, count < behind ? count : behind);
        break;
    }
    default: { /* text up to a zero, as the names of a description are */
        const size_t length = (size_t)take(bytes, 1), there = length < bytes->left ? length : bytes->left,
                     fits = there < left ? there : left;
        memcpy(file->bytes + at, bytes->at, fits);
        if (fits < left) file->bytes[at + fits] = 0;
        bytes->at += there, bytes->left -= there;
    }
    }
}

static struct file read_input(const uint8_t *data, size_t size, uint8_t *flags) {
    struct bytes bytes = {data, size};
    const uint64_t which = take(&bytes, 1);
    struct file file = {.bytes = malloc(PARCEL_MAX + CHANGES_MAX * 65536)};
    ASSERT(file.bytes != NULL);
    *flags = (uint8_t)take(&bytes, 1);
    if (which >= SOUND) {
        file.count = bytes.left;
        if (file.count > 0) memcpy(file.bytes, bytes.at, file.count);
        return file;
    }
    ASSERT(sound[which].count <= PARCEL_MAX);
    file.count = sound[which].count;
    memcpy(file.bytes, sound[which].bytes, file.count);
    for (size_t i = 0; i < CHANGES_MAX && bytes.left > 0; i++) change(&file, &bytes);
    return file;
}

/* ---- what is asked of it ---- */

static enum status feed(void *context, void *memory, size_t bytes, size_t *read, struct error *error) {
    struct file *file = context;
    const size_t left = file->count - file->done;
    (void)error;
    *read = bytes < left ? bytes : left;
    if (*read > AT_ONCE) *read = AT_ONCE;
    memcpy(memory, file->bytes + file->done, *read);
    file->done += *read;
    return STATUS_OK;
}

/* The importer's, as a server does. */
static enum status accept(void *context, struct parcel_document *document, struct error *error) {
    int64_t sum = 0;
    (void)context;
    ASSERT(strlen(document->name) < STORE_TEXT_MAX && strlen(document->layout) < STORE_TEXT_MAX);
    ASSERT(document->pages->layer_count > 0 && document->pages->layer_count <= STORE_LAYERS_MAX);
    for (uint64_t i = 0; i < document->token_count; i++) sum += document->tokens[i] > 0;
    if (sum == 1) return error_set(error, STATUS_DOCUMENT, "refused");
    document->fingerprint[0] ^= 1;
    return STATUS_OK;
}

static enum status import(struct store *store, struct file *file, struct parcel_content *content,
                          struct error *error) {
    const struct parcel_source source = {"a file", file->count, file, feed};
    file->done = 0;
    return parcel_take(store, &source, accept, NULL, content, error);
}

static void look(void *context, const struct document_info *info) {
    struct seen *seen = context;
    ASSERT(seen->count < 8 && info->token_count > 0 && info->damaged == NULL);
    seen->ids[seen->count++] = info->id;
}

static size_t count_documents(struct store *store) {
    struct seen seen = {0};
    struct error error;
    ASSERT(store_list(store, look, &seen, &error) == STATUS_OK);
    return seen.count;
}

static void check_stored(struct store *store, struct file *file, const struct parcel_content *content) {
    struct parcel_content again;
    struct error error;
    struct file exported;
    uint64_t ids[PARCEL_DOCUMENTS_MAX];
    const size_t stored = count_documents(store);
    ASSERT(stored >= 1 && stored <= content->count && content->bytes == file->count);
    for (size_t i = 0; i < content->count; i++) {
        ids[i] = content->documents[i].id;
        ASSERT(store_verify(store, ids[i], &error) == STATUS_OK);
    }
    ASSERT(export(store, ids, content->count, &exported, &error) == STATUS_OK);
    ASSERT(exported.count == file->count);
    free(exported.bytes);
    ASSERT(import(store, file, &again, &error) == STATUS_OK);
    for (size_t i = 0; i < content->count; i++) ASSERT(again.documents[i].was_there);
    ASSERT(count_documents(store) == stored);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char folder[64];
    struct parcel_content content;
    struct error error = {0};
    uint8_t flags;
    if (sound[0].bytes == NULL) make_sound();
    struct file file = read_input(data, size, &flags);
    const enum status checked = import(NULL, &file, &content, &error);
    if (checked != STATUS_OK) check_line(&error);
    new_folder(folder, "parcel");
    struct store *store = open_store(folder, flags);
    const enum status status = import(store, &file, &content, &error);
    if (status == STATUS_OK) {
        ASSERT(checked == STATUS_OK);
        check_stored(store, &file, &content);
    } else {
        check_line(&error);
        ASSERT(checked != STATUS_OK || status == STATUS_FULL);
        ASSERT(count_documents(store) == 0);
    }
    store_close(store);
    store_close(open_store(folder, flags)); /* nothing that its opening has to explain */
    const size_t files = remove_folder(folder);
    ASSERT(status == STATUS_OK ? files > 0 : files == 0);
    free(file.bytes);
    return 0;
}
