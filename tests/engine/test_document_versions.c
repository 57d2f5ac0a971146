/* A saved document of another version of the format: the prompt is computed anew, with the same bits, and one line says
 * so; the document stays as it is. */
#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "cache/store/store_internal.h"
#include "engine/document_rig.h"

enum { NO_NUMBER = 99 }; /* before version 2, and with everything of layers with windows */

/* Gives a document's row a version, with a valid checksum. */
static void set_version(const struct document_rig *rig, uint64_t id, unsigned version) {
    struct io_folder folder;
    struct catalog catalog;
    struct document_row row;
    struct error error;
    char rest[STORE_TEXT_MAX], number[24] = "";
    bool found;
    assert_ok(io_folder_open(&folder, rig->scratch.path, IO_FOLDER_READ, NULL, &error), error);
    assert_ok(catalog_open(&catalog, &folder, false, false, NULL, &error), error);
    assert_ok(catalog_find(&catalog, id, &row, &found, &error), error);
    assert_true(found && row.intact);
    snprintf(rest, sizeof rest, "%s", strstr(row.layout, "codec="));
    char *windows = strstr(rest, " windows=");
    assert_true((windows != NULL) == (version == NO_NUMBER));
    if (windows != NULL) memmove(windows, strchr(windows + 1, ' '), strlen(strchr(windows + 1, ' ')) + 1);
    if (version != NO_NUMBER) snprintf(number, sizeof number, "version=%u ", version);
    snprintf(row.layout, sizeof row.layout, "%s%.230s", number, rest);
    assert_ok(catalog_update(&catalog, &row, &error), error);
    catalog_close(&catalog);
    io_folder_close(&folder);
}

static uint64_t bytes_of(const struct document_rig *rig, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", rig->scratch.path, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const uint64_t bytes = (uint64_t)ftell(file);
    fclose(file);
    return bytes;
}

static void computed_anew(enum rig_pages pages, unsigned version) {
    struct document_rig rig;
    static struct rig_answer answer;
    char expected[512];
    document_rig_open(&rig, &select_all, pages);
    document_rig_reset(&rig);
    assert_int_equal(rig_ask_clean(&rig, RIG_FIRST, "saved", NULL), 0);
    const uint64_t bytes = bytes_of(&rig, "2.pages");
    set_version(&rig, 2, version);
    rig_ask(&rig, rig.model, &rig.options, NULL, RIG_FIRST, &answer);
    assert_int_equal(answer.status, STATUS_OK);
    assert_int_equal(answer.reused, 0);
    assert_true(rig_is_right(&rig, RIG_FIRST, &answer));
    snprintf(expected, sizeof expected,
             "%s/catalog.db: document 2: found version %u of documents, expected %d to %d; computed anew",
             rig.scratch.path, version, LAYOUT_VERSION_FIRST, LAYOUT_VERSION_LAST);
    if (version == NO_NUMBER)
        snprintf(expected, sizeof expected,
                 "document 2 has all K and V of layers with windows, expected version 4; computed anew");
    assert_string_equal(answer.notice, expected);
    assert_string_equal(answer.warning, "");
    assert_int_equal(bytes_of(&rig, "2.pages"), bytes);
    /* What was computed anew is saved, found, and nothing more is said. */
    assert_int_equal(rig_ask_clean(&rig, RIG_FIRST, "again", NULL), rig_reused_max(&rig, RIG_FIRST));
    document_rig_close(&rig);
}

static void test_rows(void **state) {
    (void)state;
    computed_anew(RIG_ROWS, LAYOUT_VERSION_FIRST - 1);
    computed_anew(RIG_ROWS, LAYOUT_VERSION_LAST + 1);
}

static void test_mixed(void **state) {
    (void)state;
    computed_anew(RIG_MIXED, LAYOUT_VERSION_FIRST - 1);
}

static void test_windows(void **state) {
    (void)state;
    computed_anew(RIG_WINDOWS, NO_NUMBER);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_mixed),
                                       cmocka_unit_test(test_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
