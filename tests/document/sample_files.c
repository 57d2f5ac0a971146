#include "document/sample_files.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "testing.h"

void sample_pdf(struct text *pdf, const char *const *pages, size_t count) {
    size_t offsets[64] = {0}, object = 0;
    assert_true(3 + 2 * count < 64);
    text_add(pdf, "%PDF-1.4\n");
    const char *const first[] = {"<</Type/Catalog/Pages 2 0 R>>", NULL,
                                 "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"};
    for (size_t i = 0; i < 3; i++) {
        offsets[++object] = pdf->length;
        text_format(pdf, "%zu 0 obj\n", object);
        if (first[i] != NULL) {
            text_add(pdf, first[i]);
        } else {
            text_add(pdf, "<</Type/Pages/Kids[");
            for (size_t page = 0; page < count; page++) text_format(pdf, "%zu 0 R ", 4 + 2 * page);
            text_format(pdf, "]/Count %zu>>", count);
        }
        text_add(pdf, "\nendobj\n");
    }
    for (size_t page = 0; page < count; page++) {
        char stream[400];
        snprintf(stream, sizeof stream, "BT /F1 12 Tf 72 720 Td (%s) Tj ET", pages[page]);
        offsets[++object] = pdf->length;
        text_format(
            pdf,
            "%zu 0 obj\n<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
            "/Contents %zu 0 R>>\nendobj\n",
            object, object + 1);
        offsets[++object] = pdf->length;
        text_format(pdf, "%zu 0 obj\n<</Length %zu>>stream\n%s\nendstream\nendobj\n", object, strlen(stream),
                    stream);
    }
    const size_t table = pdf->length;
    text_format(pdf, "xref\n0 %zu\n0000000000 65535 f \n", object + 1);
    for (size_t i = 1; i <= object; i++) text_format(pdf, "%010zu 00000 n \n", offsets[i]);
    text_format(pdf, "trailer<</Size %zu/Root 1 0 R>>\nstartxref\n%zu\n%%%%EOF\n", object + 1, table);
    assert_false(pdf->failed);
}

static void put(struct text *zip, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) text_append(zip, &(char){(char)(value >> 8 * i)}, 1);
}

/* The fields that a file's header and its entry in the directory share. */
static void put_file(struct text *zip, const struct sample_member *member, size_t packed, bool is_packed) {
    const size_t length = strlen(member->bytes);
    put(zip, 20, 2), put(zip, 0, 2), put(zip, is_packed ? 8 : 0, 2), put(zip, 0, 4);
    put(zip, crc32(0, (const unsigned char *)member->bytes, (unsigned)length), 4);
    put(zip, packed, 4), put(zip, length, 4), put(zip, strlen(member->name), 2), put(zip, 0, 2);
}

void sample_zip(struct text *zip, const struct sample_member *members, size_t count) {
    struct text directory = {0};
    for (size_t i = 0; i < count; i++) {
        static unsigned char packed[1 << 16];
        z_stream stream = {.next_in = (unsigned char *)members[i].bytes,
                           .avail_in = (unsigned)strlen(members[i].bytes),
                           .next_out = packed,
                           .avail_out = sizeof packed};
        assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
        const bool is_packed = i % 2 == 1;
        if (is_packed) assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
        const size_t bytes = is_packed ? stream.total_out : strlen(members[i].bytes), offset = zip->length;
        deflateEnd(&stream);
        text_append(zip, "PK\3\4", 4);
        put_file(zip, &members[i], bytes, is_packed);
        text_add(zip, members[i].name);
        text_append(zip, is_packed ? (const char *)packed : members[i].bytes, bytes);
        text_append(&directory, "PK\1\2", 4);
        put(&directory, 20, 2);
        put_file(&directory, &members[i], bytes, is_packed);
        put(&directory, 0, 8), put(&directory, 0, 2),
            put(&directory, offset, 4); /* comment, disk, attributes; place */
        text_add(&directory, members[i].name);
    }
    const size_t place = zip->length;
    text_append(zip, directory.bytes, directory.length);
    text_append(zip, "PK\5\6", 4);
    put(zip, 0, 4), put(zip, count, 2), put(zip, count, 2), put(zip, directory.length, 4), put(zip, place, 4);
    put(zip, 0, 2);
    text_deinit(&directory);
    assert_false(zip->failed);
}
