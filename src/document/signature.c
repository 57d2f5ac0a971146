#include "document/signature.h"

#include <string.h>

static const struct {
    size_t at;
    const char *bytes;
    size_t length;
    struct signature signature;
} table[] = {
#define BEGINS(bytes, what, way_out)                         \
    {                                                        \
        0, bytes, sizeof bytes - 1, { what, way_out, false } \
    }
#define OFFICE "convert it first (libreoffice --convert-to txt, pandoc -t plain)"
#define UNPACK "unpack it first"
    BEGINS("PK\3\4", "a ZIP archive (docx, odt, xlsx, ...)", OFFICE),
    BEGINS("PK\5\6", "an empty ZIP archive", NULL),
    BEGINS("\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", "an Office file (doc, xls, ...)", OFFICE),
    {0, "{\\rtf", 5, {"an RTF file", OFFICE, true}},
    {0, "%!PS", 4, {"a PostScript file", "convert it first (ps2pdf)", true}},
    BEGINS("AT&TFORM", "a DjVu file", "convert it first (djvutxt)"),
    {60, "BOOKMOBI", 8, {"a Kindle book", "convert it to EPUB first (ebook-convert)", false}},
    BEGINS("\x1F\x8B", "packed by gzip", UNPACK),
    BEGINS("BZh", "packed by bzip2", UNPACK),
    BEGINS("\xFD"
           "7zXZ",
           "packed by xz", UNPACK),
    BEGINS("\x28\xB5\x2F\xFD", "packed by zstd", UNPACK),
    BEGINS("7z\xBC\xAF\x27\x1C", "a 7z archive", UNPACK),
    BEGINS("Rar!\x1A\x07", "a RAR archive", UNPACK),
    {257, "ustar", 5, {"a tar archive", UNPACK, false}},
    BEGINS("\x89PNG", "a PNG picture", "loam reads text alone"),
    BEGINS("\xFF\xD8\xFF", "a JPEG picture", "loam reads text alone"),
    BEGINS("GIF8", "a GIF picture", "loam reads text alone"),
    BEGINS("II*\0", "a TIFF picture", "loam reads text alone"),
    BEGINS("MM\0*", "a TIFF picture", "loam reads text alone"),
    {8, "WEBP", 4, {"a WebP picture", "loam reads text alone", false}},
    {4, "ftyp", 4, {"a film or a sound", "loam reads text alone", false}},
    BEGINS("ID3", "a sound", "loam reads text alone"),
    BEGINS("OggS", "a film or a sound", "loam reads text alone"),
    BEGINS("\x7F"
           "ELF",
           "a program", NULL),
    BEGINS("MZ\x90", "a program", NULL),
    BEGINS("GGUF", "a model", "-m takes models"),
    BEGINS("SQLite format 3", "an SQLite database", NULL),
};

const struct signature *signature_find(const char *bytes, size_t length) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (length >= table[i].at + table[i].length &&
            memcmp(bytes + table[i].at, table[i].bytes, table[i].length) == 0)
            return &table[i].signature;
    return NULL;
}
