#include "pull/download.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/size.h"
#include "platform/file.h"
#include "pull/digest.h"
#include "pull/http.h"

enum { TRIES = 4, BLOCK_BYTES = 1 << 20, MAGIC_BYTES = 4 };

/* A file on its way. */
struct transfer {
    const struct download *download;
    const struct download_listener *listener;
    char *path, *part, *origin; /* owned: NAME, NAME.part, .NAME.json */
    int file;
    uint64_t offset, size_bytes;                         /* bytes in the part; of the whole, UINT64_MAX: not known */
    char tag[HTTP_TAG_BYTES], sha256[SHA256_TEXT_BYTES]; /* which bytes they are: by the server, "": not known */
    struct digest digest;                                /* of the part */
    bool begins_anew; /* what came is of another file, or its end is not known: from 0 */
    bool is_shown;
};

static enum status no_memory(struct error *error) { return error_set(error, STATUS_MEMORY, "out of memory"); }

/* ---- where a file came from ---- */

static enum status write_origin(const struct transfer *transfer, struct error *error) {
    const struct download *download = transfer->download;
    json_t *root = json_pack("{s:s, s:s, s:s, s:s?}", "url", download->address, "tag", transfer->tag, "sha256",
                             transfer->sha256, "license", download->source->license);
    if (root != NULL && transfer->size_bytes != UINT64_MAX)
        (void)json_object_set_new(root, "bytes", json_integer((json_int_t)transfer->size_bytes));
    struct file_writer writer;
    enum status status = root != NULL ? file_writer_open(&writer, transfer->origin, error) : no_memory(error);
    if (status == STATUS_OK) {
        if (json_dumpf(root, writer.stream, JSON_INDENT(1)) == 0) {
            status = file_writer_commit(&writer, error);
        } else {
            file_writer_abort(&writer);
            status = error_set_os(error, STATUS_IO, errno, "%s", transfer->origin);
        }
    }
    json_decref(root);
    return status;
}

static void copy_text(char *to, size_t size, const json_t *root, const char *key) {
    const char *text = json_string_value(json_object_get(root, key));
    snprintf(to, size, "%s", text != NULL ? text : "");
}

/* false: it came from elsewhere, or nobody knows from where. */
static bool read_origin(struct transfer *transfer) {
    json_t *root = json_load_file(transfer->origin, 0, NULL);
    const char *url = json_string_value(json_object_get(root, "url"));
    const bool same = url != NULL && strcmp(url, transfer->download->address) == 0;
    const json_t *bytes = json_object_get(root, "bytes");
    copy_text(transfer->tag, sizeof transfer->tag, root, "tag");
    copy_text(transfer->sha256, sizeof transfer->sha256, root, "sha256");
    transfer->size_bytes = json_is_integer(bytes) ? (uint64_t)json_integer_value(bytes) : UINT64_MAX;
    json_decref(root);
    return same;
}

/* ---- the part ---- */

static enum status empty_part(struct transfer *transfer, struct error *error) {
    digest_abort(&transfer->digest);
    transfer->offset = 0;
    if (ftruncate(transfer->file, 0) != 0) return error_set_os(error, STATUS_IO, errno, "%s", transfer->part);
    return digest_begin(&transfer->digest, error);
}

/* The digest of what came before. */
static enum status digest_part(struct transfer *transfer, struct error *error) {
    char *block = malloc(BLOCK_BYTES);
    enum status status = block != NULL ? digest_begin(&transfer->digest, error) : no_memory(error);
    for (uint64_t at = 0; status == STATUS_OK && at < transfer->offset;) {
        ssize_t got = pread(transfer->file, block, BLOCK_BYTES, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            status = error_set_os(error, STATUS_IO, got < 0 ? errno : EIO, "%s", transfer->part);
            break;
        }
        status = digest_add(&transfer->digest, block, (size_t)got, error);
        at += (uint64_t)got;
    }
    free(block);
    return status;
}

static enum status open_part(struct transfer *transfer, struct error *error) {
    struct stat info;
    transfer->file = open(transfer->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (transfer->file < 0 || fstat(transfer->file, &info) != 0)
        return error_set_os(error, STATUS_IO, errno, "%s", transfer->part);
    if (flock(transfer->file, LOCK_EX | LOCK_NB) != 0) {
        close(transfer->file);
        transfer->file = -1; /* not ours to remove */
        return error_set(error, STATUS_IO, "%s: another loam is writing it", transfer->part);
    }
    transfer->offset = (uint64_t)info.st_size;
    if (read_origin(transfer)) return digest_part(transfer, error);
    transfer->size_bytes = UINT64_MAX;
    transfer->tag[0] = transfer->sha256[0] = '\0';
    return empty_part(transfer, error);
}

/* ---- what the server sends ---- */

static enum status check_room(const struct transfer *transfer, struct error *error) {
    struct statvfs system;
    if (transfer->size_bytes == UINT64_MAX || fstatvfs(transfer->file, &system) != 0) return STATUS_OK;
    const uint64_t room = (uint64_t)system.f_bavail * system.f_frsize, wanted = transfer->size_bytes - transfer->offset;
    char needs[32], has[32];
    if (wanted <= room) return STATUS_OK;
    return error_set(error, STATUS_IO, "%s: needs %s, and %s has %s: set LOAM_MODELS to a folder with more room",
                     transfer->download->name, bytes_text(wanted, needs, sizeof needs), transfer->download->folder,
                     bytes_text(room, has, sizeof has));
}

/* The part is of these bytes: what the server said of it then is what it says now. */
static bool is_same(const struct transfer *transfer, const struct http_response *response) {
    return response->begin == transfer->offset && response->size_bytes == transfer->size_bytes &&
           strcmp(response->sha256, transfer->sha256) == 0 &&
           (response->sha256[0] != '\0' || (response->tag[0] != '\0' && strcmp(response->tag, transfer->tag) == 0));
}

static enum status begins(void *context, const struct http_response *response, struct error *error) {
    struct transfer *transfer = context;
    const bool goes_on = response->status == 206;
    if (response->status == 416 || (goes_on && !is_same(transfer, response))) {
        transfer->begins_anew = true;
        return error_set(error, STATUS_IO, "%s: the server has other bytes than those that came",
                         transfer->download->name);
    }
    if (response->status != 200 && !goes_on)
        return source_refused(transfer->download->source, response->status, transfer->download->address, error);
    if (!goes_on) {
        if (transfer->offset > 0) TRY(empty_part(transfer, error)); /* the server has no ranges */
        transfer->size_bytes = response->size_bytes;
        memcpy(transfer->tag, response->tag, sizeof transfer->tag);
        memcpy(transfer->sha256, response->sha256, sizeof transfer->sha256);
    }
    TRY(check_room(transfer, error));
    TRY(write_origin(transfer, error));
    if (!transfer->is_shown)
        transfer->listener->begins(transfer->listener->context, transfer->size_bytes, transfer->offset);
    transfer->is_shown = true;
    return STATUS_OK;
}

/* A page that explains why there is no file is no file. */
static enum status check_magic(const struct transfer *transfer, struct error *error) {
    char magic[MAGIC_BYTES];
    if (transfer->offset < MAGIC_BYTES || pread(transfer->file, magic, MAGIC_BYTES, 0) != MAGIC_BYTES ||
        memcmp(magic, "GGUF", MAGIC_BYTES) == 0)
        return STATUS_OK;
    if (ftruncate(transfer->file, 0) != 0) return error_set_os(error, STATUS_IO, errno, "%s", transfer->part);
    return error_set(error, STATUS_MODEL, "%.200s: found %s, expected a GGUF file", transfer->download->address,
                     magic[0] == '<' ? "a web page" : "something else");
}

static enum status body(void *context, const void *bytes, size_t count, struct error *error) {
    struct transfer *transfer = context;
    const char *next = bytes;
    const bool is_head = transfer->offset < MAGIC_BYTES;
    TRY(digest_add(&transfer->digest, bytes, count, error));
    while (count > 0) {
        ssize_t written = pwrite(transfer->file, next, count, (off_t)transfer->offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return error_set_os(error, STATUS_IO, errno, "%s", transfer->part);
        transfer->offset += (uint64_t)written;
        next += written;
        count -= (size_t)written;
    }
    if (is_head) TRY(check_magic(transfer, error));
    transfer->listener->progress(transfer->listener->context, transfer->offset, transfer->size_bytes);
    return STATUS_OK;
}

static bool stops(void *context) {
    const struct transfer *transfer = context;
    return transfer->listener->stops != NULL && transfer->listener->stops(transfer->listener->context);
}

/* Asks until all came.  A connection that breaks is asked again where it brought something; one that brings nothing,
 * TRIES times. */
static enum status fetch(struct transfer *transfer, struct error *error) {
    const struct http_listener listener = {.context = transfer, .begins = begins, .body = body, .stops = stops};
    for (unsigned tries = 0; tries < TRIES; tries++) {
        struct http_response response;
        const struct http_request request = {
            .url = transfer->download->address, .token = transfer->download->source->token, .offset = transfer->offset};
        const uint64_t before = transfer->offset;
        if (transfer->offset > 0 && transfer->offset == transfer->size_bytes) return STATUS_OK;
        transfer->begins_anew = false;
        enum status status = http_get(&request, &listener, &response, error);
        if (status == STATUS_OK && transfer->size_bytes != UINT64_MAX && transfer->offset != transfer->size_bytes) {
            status = error_set(error, STATUS_IO, "%s: %llu bytes came of %llu", transfer->download->name,
                               (unsigned long long)transfer->offset, (unsigned long long)transfer->size_bytes);
            transfer->begins_anew = transfer->offset > transfer->size_bytes;
        }
        if (status == STATUS_OK) return STATUS_OK;
        if (transfer->begins_anew) {
            struct error none;
            if (before == 0 || empty_part(transfer, &none) != STATUS_OK) return status;
            continue;
        }
        if (!response.is_cut) return status;
        if (transfer->offset > before) tries = 0;
        if (tries + 1 < TRIES) transfer->listener->note(transfer->listener->context, error->message);
    }
    return error->status;
}

/* ---- the whole ---- */

static enum status check_digest(struct transfer *transfer, struct error *error) {
    char found[SHA256_TEXT_BYTES];
    const char *expected = transfer->download->sha256 != NULL ? transfer->download->sha256 : transfer->sha256;
    TRY(digest_end(&transfer->digest, found, error));
    if (expected[0] != '\0' && strcasecmp(found, expected) != 0) {
        (void)unlink(transfer->part);
        (void)unlink(transfer->origin);
        return error_set(error, STATUS_MODEL, "%.100s: its SHA-256 is %s, expected %s: removed",
                         transfer->download->name, found, expected);
    }
    memcpy(transfer->sha256, found, sizeof found);
    return STATUS_OK;
}

static enum status put_in_place(const struct transfer *transfer, struct error *error) {
    TRY(write_origin(transfer, error));
    if (fsync(transfer->file) != 0) return error_set_os(error, STATUS_IO, errno, "%s", transfer->part);
    if (rename(transfer->part, transfer->path) != 0) return error_set_os(error, STATUS_IO, errno, "%s", transfer->path);
    int folder = open(transfer->download->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        (void)fsync(folder);
        close(folder);
    }
    return STATUS_OK;
}

static enum status check_present(struct transfer *transfer, bool *was_there, struct error *error) {
    const char *expected = transfer->download->sha256;
    *was_there = access(transfer->path, F_OK) == 0;
    if (!*was_there) return STATUS_OK;
    if (!read_origin(transfer))
        return error_set(error, STATUS_USAGE, "%s is there already, from elsewhere: move it away first",
                         transfer->path);
    if (expected != NULL && strcasecmp(expected, transfer->sha256) != 0)
        return error_set(error, STATUS_MODEL, "%.200s is there already: its SHA-256 is %s", transfer->path,
                         transfer->sha256);
    return STATUS_OK;
}

enum status download_file(const struct download *download, const struct download_listener *listener, bool *was_there,
                          struct error *error) {
    struct transfer transfer = {.download = download, .listener = listener, .file = -1};
    transfer.digest.child = (struct child){.input = -1, .output = -1, .errors = -1};
    enum status status = STATUS_OK;
    if (asprintf(&transfer.path, "%s/%s", download->folder, download->name) < 0) transfer.path = NULL;
    if (asprintf(&transfer.part, "%s/%s.part", download->folder, download->name) < 0) transfer.part = NULL;
    if (asprintf(&transfer.origin, "%s/.%s.json", download->folder, download->name) < 0) transfer.origin = NULL;
    if (transfer.path == NULL || transfer.part == NULL || transfer.origin == NULL) status = no_memory(error);
    if (status == STATUS_OK) status = check_present(&transfer, was_there, error);
    if (status == STATUS_OK && !*was_there) {
        status = open_part(&transfer, error);
        if (status == STATUS_OK) status = fetch(&transfer, error);
        if (status == STATUS_OK) status = check_digest(&transfer, error);
        if (status == STATUS_OK) status = put_in_place(&transfer, error);
    }
    digest_abort(&transfer.digest);
    if (status != STATUS_OK && transfer.file >= 0 && lseek(transfer.file, 0, SEEK_END) == 0) { /* no model came */
        (void)unlink(transfer.part);
        (void)unlink(transfer.origin);
    }
    if (transfer.file >= 0) close(transfer.file);
    free(transfer.path);
    free(transfer.part);
    free(transfer.origin);
    return status;
}
