/* Bytes of files as people have them become their text with marks; what is no text is refused by name. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "document/document.h"
#include "document/encoding.h"
#include "document/folder.h"
#include "document/html.h"
#include "document/mark.h"
#include "document/sample_files.h"
#include "platform/clock.h"
#include "platform/filter.h"
#include "platform/scratch.h"

static enum status read_as(struct document *document, const char *name, const char *bytes, size_t length,
                           const char *encoding, struct error *error) {
    char *exact = malloc(length + 1); /* no byte behind them may be read */
    memcpy(exact + 1, bytes, length);
    const struct document_source source = {
        .name = name, .bytes = exact + 1, .length = length, .encoding = encoding};
    const enum status status = document_read(document, &source, error);
    free(exact);
    return status;
}

#define BYTES(literal) literal, sizeof literal - 1

static void expect(const char *name, const char *bytes, size_t length, const char *encoding, const char *text,
                   const char *note) {
    struct document document;
    struct error error;
    assert_ok(read_as(&document, name, bytes, length, encoding, &error), error);
    assert_string_equal(document.text, text);
    assert_int_equal(document.length, strlen(text));
    assert_string_equal(document.note, note);
    document_deinit(&document);
}

static void refuse(const char *name, const char *bytes, size_t length, const char *encoding,
                   const char *words) {
    struct document document;
    struct error error;
    assert_int_equal(read_as(&document, name, bytes, length, encoding, &error), STATUS_USAGE);
    if (strncmp(error.message, name, strlen(name)) != 0 || strstr(error.message, words) == NULL)
        fail_msg("found '%s', expected '%s: ... %s'", error.message, name, words);
    assert_null(document.text);
}

static void encodings_are_found(void **state) {
    (void)state;
    static const char plain[] = "The gate is green; the miller lives in K\xC3\xB6ln, by the river.\n";
    expect("a.txt", BYTES(plain), NULL, plain, "");
    expect("a.txt", BYTES("\xEF\xBB\xBFgate"), NULL, "gate", "read without its byte order mark");
    expect("a.md", BYTES("# A <b>\r\n"), NULL, "# A <b>\r\n", "");
    expect("empty", BYTES(""), NULL, "", "");
    for (int order = 0; order < 2; order++) { /* little, then big */
        char wide[400];
        size_t length = 0;
        for (int pass = 0; pass < 2; pass++) { /* with a mark, then without */
            length = 0;
            if (pass == 0) memcpy(wide, order ? "\xFE\xFF" : "\xFF\xFE", 2), length = 2;
            for (const char *c = plain; *c != '\0'; c++) {
                const bool is_two = *c == '\xC3';
                const char low = is_two ? '\xF6' : *c;
                wide[length++] = order ? '\0' : low;
                wide[length++] = order ? low : '\0';
                c += is_two ? 1 : 0;
            }
            expect("a.txt", wide, length, NULL, plain, order ? "read as UTF-16BE" : "read as UTF-16LE");
        }
        refuse("a.txt", wide, 40, NULL, "byte "); /* too short to be sure */
        expect("a.txt", wide, 6, order ? "utf-16be" : "UTF-16LE", "The",
               order ? "read as UTF-16BE" : "read as UTF-16LE");
    }
    expect("a.txt", BYTES("K\xF6ln \x96 \x80"), "latin1", "K\xC3\xB6ln \xE2\x80\x93 \xE2\x82\xAC",
           "read as WINDOWS-1252");
    expect("a.txt", BYTES("K\xF6ln"), "utf-8", "K\xEF\xBF\xBDln", "");
    expect("a.txt", BYTES("\xFE\xFF\0A"), "utf-16", "A", "read as UTF-16BE");
    refuse("a.txt", BYTES("one\nK\xF6ln"), NULL,
           "is no UTF-8: byte 6, 0xF6 in line 2; say what it is, as in --encoding latin1");
    refuse("a.txt", BYTES("one"), "klingon", "encoding: found 'klingon', expected one of utf-8, ");
    refuse("a.txt", BYTES("a\0b\0c\n"), NULL, "is no text: byte 2 is zero");
    refuse("a.txt",
           BYTES("\xFF\xFE"
                 "a\0\0\0"),
           NULL, "it has zeros");
    expect("a.txt", BYTES("one\vtwo\fthree"), NULL, "one two\fthree",
           ""); /* nobody's file sets marks of parts */
}

static void other_files_are_named(void **state) {
    (void)state;
    refuse("a.png", BYTES("\x89PNG\r\n\x1A\n\0\0"), NULL, "is a PNG picture, no text");
    refuse("a.docx", BYTES("PK\3\4\0\0\0"), NULL, "libreoffice --convert-to txt");
    refuse("a.rtf", BYTES("{\\rtf1 x}"), NULL, "is an RTF file");
    refuse("a.gz", BYTES("\x1F\x8B\x08\0"), NULL, "is packed by gzip, no text: unpack it first");
    refuse("m.gguf", BYTES("GGUF\3\0\0\0"), NULL, "is a model");
    expect("a.txt", BYTES("GGUF is a format."), NULL, "GGUF is a format.", "");
}

static void pages_become_text(void **state) {
    (void)state;
    static const struct {
        const char *page, *text;
    } cases[] = {
        {"<html><body>a<p>b</p><p>c<br>d<br><br>e", "a\n\nb\n\nc\nd\n\ne\n"},
        {"<html><script>if (a</b) '</p>'</script><style>p{}</style><template>x</template>seen<svg/>",
         "seen\n"},
        {"<html><head><title>T &amp; U</title></head><body>  a \n <b>b</b>c ", "T & U\n\na bc\n"},
        {"<html>&lt;i&gt; &copy 5 &#x41;&#66; &notit; &mdash; &#128; &#0; &amp",
         "<i> \xC2\xA9 5 AB \xC2\xACit; \xE2\x80\x94 \xE2\x82\xAC \xEF\xBF\xBD &\n"},
        {"<html><!-- a > b --><!---->x<!> y <? z > <a title='>'>l</a>ink 1 < 2 </ 3",
         "x y link 1 < 2 </ 3\n"},
        {"<html><ul><li>one<li>two</ul><table><tr><td>a<td>b<tr><td>c</table>", "- one\n- two\n\na\tb\nc\n"},
        {"<html><pre>  x\n y</pre>z", "  x\n y\n\nz\n"},
        {"<html><textarea><p>raw</textarea>x<title", "<p>rawx\n"},
        {"<html>a&#12;b&#11;c<pre>&#12;", "a b c\n\n \n"},
        {"<html>\xE9t\xE9", "\xC3\xA9t\xC3\xA9\n"},
        {"<html><meta charset=koi8-r>\xC1", "\xD0\xB0\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect("a", cases[i].page, strlen(cases[i].page), NULL, cases[i].text, "read as HTML");
    expect("a.HTM", BYTES("x<p>y"), NULL, "x\n\ny\n", "read as HTML");
    expect("a.htm", BYTES("x<p>y"), "utf-8", "x<p>y", "");
    expect("a.txt", BYTES("<!doctype html><p>x"), NULL, "x\n", "read as HTML");
    expect("a.txt", BYTES("<?xml version='1.0'?>\n<!-- -->\n<html><p>x"), NULL, "x\n", "read as HTML");
    expect("a.txt", BYTES("<htmlx>"), NULL, "<htmlx>", "");
    /* A megabyte of what could be looked at again and again. */
    static const char *const hostile[] = {
        "<",  "<a =\"",    "<!--", "&",     "<script>",
        "&#", "<![CDATA[", "</a",  "<svg>", "&CounterClockwiseContourIntegra"};
    const double begin = clock_seconds();
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct text text = {0}, read = {0};
        struct error error;
        text_add(&text, "<html>");
        while (text.length < 1000000) text_add(&text, hostile[i]);
        assert_ok(html_read(text.bytes, text.length, i % 2 == 1, &read, &error), error);
        assert_true(read.length <= 2 * text.length);
        text_deinit(&text), text_deinit(&read);
    }
    assert_true(clock_seconds() - begin < 60); /* each byte looked at as often as there are bytes: an hour */
}

/* ---- EPUB ---- */

static const char container[] =
    "<container><rootfiles><rootfile full-path='OPS/book.opf'/></rootfiles></container>";
static const char package[] =
    "<opf:package><opf:manifest><opf:item id=\"b\" href=\"text/two%20.xhtml#x\"/>"
    "<opf:item id='pic' href='../cover.xhtml'/><opf:item id=\"a\" href=\"text/one.xhtml\"/>"
    "</opf:manifest><opf:spine><opf:itemref idref='pic'/><opf:itemref idref='a'/>"
    "<opf:itemref idref='gone'/><opf:itemref idref='b'/></opf:spine></opf:package>";
static const struct sample_member book[] = {
    {"mimetype", "application/epub+zip"},
    {"META-INF/container.xml", container},
    {"OPS/text/two .xhtml", "<?xml version='1.0'?><html><head><title/><script src='x'/></head><body><p>The "
                            "gate is green.</p></body></html>"},
    {"OPS/text/one.xhtml", "<html><head><title>no</title></head><body><h1>One</h1>The mill &amp; "
                           "<![CDATA[<door>]]> are red.</body></html>"},
    {"OPS/book.opf", package},
    {"cover.xhtml", "<html><body><img src='c.png'/></body></html>"},
};
enum { BOOK_COUNT = sizeof book / sizeof *book };

static void books_have_chapters(void **state) {
    (void)state;
    struct text zip = {0};
    sample_zip(&zip, book, BOOK_COUNT);
    expect("b.epub", zip.bytes, zip.length, NULL,
           "One\n\nThe mill & <door> are red.\n\v\nThe gate is green.\n\v", "an EPUB, chapters: 2");
    /* Each byte that is another gives the text, another text, or an error, and reads nothing beyond (ASan). */
    for (size_t i = 0; i < zip.length; i++) {
        struct document document;
        struct error error;
        zip.bytes[i] = (char)(zip.bytes[i] ^ 0x41);
        if (read_as(&document, "b.epub", zip.bytes, zip.length, NULL, &error) == STATUS_OK)
            document_deinit(&document);
        zip.bytes[i] = (char)(zip.bytes[i] ^ 0x41);
    }
    char *mill = memmem(zip.bytes, zip.length, "The gate", 8);
    assert_non_null(mill);
    mill[0] = 'X';
    refuse("b.epub", zip.bytes, zip.length, NULL, "is damaged (its checksum)");
    mill[0] = 'T';
    const struct document_source small = {
        .name = "b.epub", .bytes = zip.bytes, .length = zip.length, .text_bytes_max = 300};
    struct document document;
    struct error error;
    assert_int_equal(document_read(&document, &small, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "b.epub: the archive unpacks to more"));
    text_deinit(&zip);
    struct sample_member locked[BOOK_COUNT + 2];
    memcpy(locked, book, sizeof book);
    locked[BOOK_COUNT] = (struct sample_member){"META-INF/encryption.xml", "<encryption/>"};
    sample_zip(&zip, locked, BOOK_COUNT + 1); /* disguised fonts */
    expect("b.epub", zip.bytes, zip.length, NULL,
           "One\n\nThe mill & <door> are red.\n\v\nThe gate is green.\n\v", "an EPUB, chapters: 2");
    text_deinit(&zip);
    locked[BOOK_COUNT + 1] = (struct sample_member){"META-INF/rights.xml", "x"};
    sample_zip(&zip, locked, BOOK_COUNT + 2);
    refuse("b.epub", zip.bytes, zip.length, NULL, "(DRM)");
    text_deinit(&zip);
    struct sample_member missing[BOOK_COUNT];
    memcpy(missing, book, sizeof book);
    missing[3].name = "OPS/text/three.xhtml";
    sample_zip(&zip, missing, BOOK_COUNT);
    refuse("b.epub", zip.bytes, zip.length, NULL, "it has no file OPS/text/one.xhtml");
    text_deinit(&zip);
}

/* A file of zeros in the archive, a thousand times as large as the archive says it may be. */
static void bombs_are_not_unpacked(void **state) {
    (void)state;
    struct text page = {0}, zip = {0}, spine = {0};
    struct document document;
    struct error error;
    text_add(&page, "<html><body>");
    while (page.length < 60000) text_add(&page, "                ");
    text_add(&spine, "<package><item id='a' href='a.xhtml'/>");
    for (int i = 0; i < 4000; i++) text_add(&spine, "<itemref idref='a'/>");
    const struct sample_member bomb[] = {{"META-INF/container.xml", "<rootfile full-path='a.opf'/>"},
                                         {"a.xhtml", page.bytes},
                                         {"a.opf", spine.bytes}};
    sample_zip(&zip, bomb, 3);
    const struct document_source source = {
        .name = "bomb", .bytes = zip.bytes, .length = zip.length, .text_bytes_max = 1 << 20};
    assert_int_equal(document_read(&document, &source, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "unpacks to more"));
    text_deinit(&page), text_deinit(&zip), text_deinit(&spine);
}

/* ---- PDF, and programs ---- */

static void programs_are_bounded(void **state) {
    (void)state;
    static const struct {
        const char *script;
        unsigned seconds; /* few only where they are to pass */
        size_t output_bytes;
        enum status status;
        int code;
        const char *words;
    } cases[] = {
        {"tr a-z A-Z", 60, 100, STATUS_OK, 0, "HELLO"},
        {"cat; exit 7", 60, 100, STATUS_OK, 7, "hello"},
        {"exec sleep 100", 1, 100, STATUS_FULL, 0, "sh took longer than 1 s"},
        {"exec yes", 60, 5000, STATUS_FULL, 0, "sh wrote more than 5000 bytes"},
        {"exec >&-; sleep 100", 1, 100, STATUS_OK, 128 + 9, ""}, /* killed, though it wrote nothing */
        {"echo complaint >&2", 60, 100, STATUS_OK, 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const arguments[] = {"sh", "-c", cases[i].script, NULL};
        const struct filter filter = {.arguments = arguments,
                                      .input = "hello",
                                      .input_bytes = 5,
                                      .seconds = cases[i].seconds,
                                      .memory_bytes = UINT64_C(1) << 30,
                                      .output_bytes = cases[i].output_bytes};
        struct text output = {0};
        struct error error = {0};
        int code = -1;
        const double begin = clock_seconds();
        assert_int_equal(filter_run(&filter, &output, &code, &error), cases[i].status);
        assert_true(clock_seconds() - begin < 60);
        if (cases[i].status == STATUS_OK) {
            assert_int_equal(code, cases[i].code);
            assert_string_equal(output.bytes != NULL ? output.bytes : "", cases[i].words);
        } else {
            assert_non_null(strstr(error.message, cases[i].words));
            assert_true(output.length <= cases[i].output_bytes);
        }
        text_deinit(&output);
    }
    const char *const hungry[] = {"python3", "-c",
                                  /* The bound comes a moment later. */
                                  "from resource import *\nwhile getrlimit(RLIMIT_AS)[0] < 0: pass\n"
                                  "bytearray(1 << 30); print('had it')",
                                  NULL};
    const struct filter filter = {.arguments = hungry,
                                  .input = "",
                                  .seconds = 60,
                                  .memory_bytes = UINT64_C(512) << 20,
                                  .output_bytes = 100};
    struct text output = {0};
    struct error error;
    int code;
    assert_ok(filter_run(&filter, &output, &code, &error), error);
    assert_true(code != 0 && output.length == 0);
    const char *const none[] = {"no-such-program", NULL};
    const struct filter missing = {.arguments = none, .input = "", .seconds = 1, .memory_bytes = 1 << 30};
    assert_int_equal(filter_run(&missing, &output, &code, &error), STATUS_UNSUPPORTED);
}

/* A folder whose `pdftotext` is this script, alone in PATH with the system's. */
static void put_pdftotext(const struct scratch *scratch, const char *script, const char *path) {
    char line[8192];
    FILE *file = fopen(scratch_name(scratch, "pdftotext"), "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", script);
    assert_int_equal(fchmod(fileno(file), 0755), 0);
    fclose(file);
    assert_true((size_t)snprintf(line, sizeof line, "%s:%s", scratch->path, path) < sizeof line);
    setenv("PATH", line, 1);
}

static void pdfs_have_pages(void **state) {
    (void)state;
    static const char *const texts[] = {"The mill is red.", "The gate is green.", "The river is long."};
    struct scratch scratch;
    struct text pdf = {0};
    char *path = strdup(getenv("PATH"));
    scratch_create(&scratch, SCRATCH_MEMORY);
    sample_pdf(&pdf, texts, 3);
    put_pdftotext(&scratch,
                  "[ \"$*\" = '-q -enc UTF-8 -eol unix - -' ] && head -c 8 && printf ' one\\f two\\f'", path);
    expect("b.pdf", pdf.bytes, pdf.length, NULL, "%PDF-1.4 one\f two\f", "a PDF, pages: 2");
    put_pdftotext(&scratch, "exit 1", path);
    refuse("b.pdf", pdf.bytes, pdf.length, NULL,
           "is a PDF that pdftotext cannot read: damaged, or locked by a password");
    put_pdftotext(&scratch, "exit 3", path);
    refuse("b.pdf", pdf.bytes, pdf.length, NULL, "may not be copied from");
    put_pdftotext(&scratch, "printf ' \\f\\f'", path);
    refuse("b.pdf", pdf.bytes, pdf.length, NULL, "without text, perhaps scanned");
    put_pdftotext(&scratch, "kill -9 $$", path);
    refuse("b.pdf", pdf.bytes, pdf.length, NULL, "more time or memory than it may (signal 9)");
    setenv("PATH", "/nowhere", 1);
    refuse("b.pdf", pdf.bytes, pdf.length, NULL,
           "is a PDF; install poppler-utils (pdftotext), or give its text");
    setenv("PATH", path, 1);
    if (system("pdftotext -v >/dev/null 2>&1") == 0)
        expect("b.pdf", pdf.bytes, pdf.length, NULL,
               "The mill is red.\n\n\fThe gate is green.\n\n\fThe river is long.\n\n\f", "a PDF, pages: 3");
    else
        print_message("pdftotext is not installed: PDFs were read by what stands in for it\n");
    free(path);
    text_deinit(&pdf);
    scratch_destroy(&scratch);
}

/* ---- marks and folders ---- */

static void marks_are_places(void **state) {
    (void)state;
    struct text text = {0};
    text_add(&text, "no file\nline two\f\n");
    mark_add_file(&text, "sub/a\nb.pdf");
    text_add(&text, "first\n\fsecond\n\f\n");
    mark_add_file(&text, "c.epub");
    text_add(&text, "one\n\vtwo\nthree ==> x <==\n\v\n");
    mark_add_file(&text, "d.txt");
    text_add(&text, "end");
    static const struct {
        const char *words, *name;
        struct mark_place place;
        const char *told;
    } cases[] = {
        {"no file", NULL, {.line = 1, .page = 1}, "page 1"},
        {"line two", NULL, {.line = 2, .page = 1}, "page 1"},
        {"first", "sub/a?b.pdf", {.line = 1, .page = 1}, "page 1"},
        {"second", "sub/a?b.pdf", {.line = 2, .page = 2}, "page 2"},
        {"one", "c.epub", {.line = 1, .chapter = 1}, "chapter 1"},
        {"three", "c.epub", {.line = 3, .chapter = 2}, "chapter 2"},
        {"end", "d.txt", {.line = 1}, "line 1"},
    };
    struct mark_walk walk;
    mark_walk_begin(&walk, text.bytes, text.length);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char told[MARK_TEXT_BYTES];
        mark_walk_to(&walk, (size_t)(strstr(text.bytes, cases[i].words) - text.bytes));
        assert_int_equal(walk.place.line, cases[i].place.line);
        assert_int_equal(walk.place.page, cases[i].place.page);
        assert_int_equal(walk.place.chapter, cases[i].place.chapter);
        assert_string_equal(mark_place_text(&walk.place, told), cases[i].told);
        assert_int_equal(walk.place.name != NULL, cases[i].name != NULL);
        if (cases[i].name == NULL) continue;
        assert_int_equal(walk.place.name_length, strlen(cases[i].name));
        assert_memory_equal(walk.place.name, cases[i].name, strlen(cases[i].name));
    }
    text_deinit(&text);
}

static void folders_have_an_order(void **state) {
    (void)state;
    static const char *const names[] = {"b10.txt", "b9.txt", "a/z.txt", ".hidden", "b9.txt~", "a/y/x.txt"};
    static const char *const expected[] = {"a/y/x.txt", "a/z.txt", "b9.txt", "b9.txt~", "b10.txt"};
    struct scratch scratch;
    struct folder folder;
    struct error error;
    scratch_create(&scratch, SCRATCH_MEMORY);
    assert_int_equal(mkdir(scratch_name(&scratch, "a"), 0700) | mkdir(scratch_name(&scratch, "a/y"), 0700),
                     0);
    assert_int_equal(symlink("..", scratch_name(&scratch, "a/up")), 0);
    assert_int_equal(mkfifo(scratch_name(&scratch, "fifo"), 0600), 0);
    for (size_t i = 0; i < 6; i++) fclose(fopen(scratch_name(&scratch, names[i]), "w"));
    assert_true(folder_is(scratch.path) && !folder_is(scratch_name(&scratch, "b9.txt")));
    assert_ok(folder_open(&folder, scratch.path, &error), error);
    assert_int_equal(folder.count, 5);
    for (size_t i = 0; i < 5; i++) assert_string_equal(folder.names[i], expected[i]);
    folder_close(&folder);
    assert_int_equal(folder_open(&folder, "/nonexistent", &error), STATUS_IO);
    folder_close(&folder);
    static const char *const nested[] = {"a/y/x.txt", "a/y", "a/z.txt", "a/up", "a"};
    for (size_t i = 0; i < 5; i++) assert_int_equal(remove(scratch_name(&scratch, nested[i])), 0);
    scratch_destroy(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodings_are_found),    cmocka_unit_test(other_files_are_named),
        cmocka_unit_test(pages_become_text),      cmocka_unit_test(books_have_chapters),
        cmocka_unit_test(bombs_are_not_unpacked), cmocka_unit_test(programs_are_bounded),
        cmocka_unit_test(pdfs_have_pages),        cmocka_unit_test(marks_are_places),
        cmocka_unit_test(folders_have_an_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
