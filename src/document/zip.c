#include "document/zip.h"

#include <string.h>
#include <zlib.h>

enum {
    END_BYTES = 22, /* of the record at the archive's end, before its comment */
    COMMENT_MAX = 0xFFFF,
    ENTRY_BYTES = 46,  /* of a file's record in the directory, before its name */
    HEADER_BYTES = 30, /* of the one before its bytes */
    METHOD_STORED = 0,
    METHOD_DEFLATED = 8,
    FLAG_ENCRYPTED = 1,
};

static uint16_t get_16(const unsigned char *bytes) { return (uint16_t)(bytes[0] | bytes[1] << 8); }
static uint32_t get_32(const unsigned char *bytes) { return get_16(bytes) | (uint32_t)get_16(bytes + 2) << 16; }

bool zip_open(struct zip *zip, const char *bytes, size_t length, uint64_t budget) {
    const unsigned char *own = (const unsigned char *)bytes;
    *zip = (struct zip){.bytes = own, .length = length, .budget = budget};
    if (length < END_BYTES) return false;
    const size_t last = length - END_BYTES, first = last > COMMENT_MAX ? last - COMMENT_MAX : 0;
    for (size_t at = last + 1; at-- > first;) {
        if (memcmp(own + at, "PK\5\6", 4) != 0 || at + END_BYTES + get_16(own + at + 20) != length) continue;
        zip->file_count = get_16(own + at + 10);
        zip->directory = get_32(own + at + 16);
        return zip->directory <= at && zip->file_count <= ZIP_FILES_MAX;
    }
    return false;
}

bool zip_find(const struct zip *zip, const char *name, size_t name_length, struct zip_file *file) {
    size_t at = zip->directory;
    for (size_t i = 0; i < zip->file_count; i++) {
        const unsigned char *entry = zip->bytes + at;
        if (zip->length - at < ENTRY_BYTES || memcmp(entry, "PK\1\2", 4) != 0) return false;
        const size_t own = get_16(entry + 28), whole = ENTRY_BYTES + own + get_16(entry + 30) + get_16(entry + 32);
        if (zip->length - at < whole) return false;
        if (own == name_length && memcmp(entry + ENTRY_BYTES, name, own) == 0) {
            *file = (struct zip_file){.offset = get_32(entry + 42),
                                      .packed_bytes = get_32(entry + 20),
                                      .bytes = get_32(entry + 24),
                                      .checksum = get_32(entry + 16),
                                      .method = get_16(entry + 10),
                                      .flags = get_16(entry + 8)};
            return true;
        }
        at += whole;
    }
    return false;
}

static enum status damaged(struct error *error, const char *what) {
    return error_set(error, STATUS_USAGE, "a file in the archive is damaged (%s)", what);
}

/* The archive says how many bytes come out, and no more are taken. */
static enum status unpack(const struct zip_file *file, const unsigned char *packed, struct text *text,
                          struct error *error) {
    unsigned char block[16384];
    z_stream stream = {.next_in = (unsigned char *)packed, .avail_in = file->packed_bytes};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return error_set(error, STATUS_MEMORY, "no memory to unpack");
    uint64_t left = file->bytes;
    int state = Z_OK;
    while (state == Z_OK && !text->failed) {
        stream.next_out = block;
        stream.avail_out = sizeof block;
        state = inflate(&stream, Z_NO_FLUSH);
        const size_t made = sizeof block - stream.avail_out;
        if (made > left) break;
        left -= made;
        text_append(text, (const char *)block, made);
        if (made == 0 && state == Z_OK) break;
    }
    inflateEnd(&stream);
    if (text->failed || state == Z_MEM_ERROR) return error_set(error, STATUS_MEMORY, "no memory to unpack");
    return state == Z_STREAM_END && left == 0 ? STATUS_OK : damaged(error, "its packed bytes");
}

enum status zip_read(struct zip *zip, const struct zip_file *file, struct text *text, struct error *error) {
    if (file->flags & FLAG_ENCRYPTED) return error_set(error, STATUS_USAGE, "a file in the archive is encrypted");
    if (file->method != METHOD_STORED && file->method != METHOD_DEFLATED)
        return error_set(error, STATUS_USAGE, "a file in the archive is packed by method %u, expected 0 or 8",
                         file->method);
    if (file->offset > zip->length || zip->length - file->offset < HEADER_BYTES) return damaged(error, "its place");
    const unsigned char *header = zip->bytes + file->offset;
    if (memcmp(header, "PK\3\4", 4) != 0) return damaged(error, "its header");
    const size_t begin = file->offset + HEADER_BYTES + get_16(header + 26) + get_16(header + 28);
    if (begin > zip->length || zip->length - begin < file->packed_bytes) return damaged(error, "its size");
    if (file->bytes > zip->budget)
        return error_set(error, STATUS_USAGE, "the archive unpacks to more than this program takes");
    zip->budget -= file->bytes;
    const size_t before = text->length;
    if (file->method == METHOD_DEFLATED) {
        TRY(unpack(file, zip->bytes + begin, text, error));
    } else {
        if (file->bytes != file->packed_bytes) return damaged(error, "its size");
        text_append(text, (const char *)zip->bytes + begin, file->bytes);
        if (text->failed) return error_set(error, STATUS_MEMORY, "no memory to unpack");
    }
    const uLong sum = crc32(0, (const unsigned char *)text->bytes + before, file->bytes);
    return sum == file->checksum ? STATUS_OK : damaged(error, "its checksum");
}
