#include "plan/kld_table.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"
#include "platform/file.h"

enum { FILE_BYTES_MAX = 4 << 20 };

static enum status check_text(const json_t *root, const char *key, const char *expected, const char *path,
                              struct error *error) {
    const char *found = json_string_value(json_object_get(root, key));
    if (found != NULL && strcmp(found, expected) == 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s: %s: found %.60s, expected %s", path, key, found != NULL ? found : "none",
                     expected);
}

static enum status read_number(const json_t *row, const char *key, size_t index, const char *path, double *number,
                               struct error *error) {
    const json_t *value = json_object_get(row, key);
    *number = json_is_number(value) ? json_number_value(value) : NAN;
    if (*number >= 0 && *number < 1e15) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s: results[%zu].%s: expected a number from 0 on", path, index, key);
}

static enum status read_row(struct kld_row *row, const json_t *result, size_t index, const char *path,
                            struct error *error) {
    const char *label = json_string_value(json_object_get(result, "preset"));
    double length;
    if (label == NULL || strlen(label) >= KLD_LABEL_BYTES)
        return error_set(error, STATUS_USAGE, "%s: results[%zu].preset: expected a text of fewer than %d bytes", path,
                         index, KLD_LABEL_BYTES);
    memcpy(row->label, label, strlen(label) + 1);
    TRY(read_number(result, "length", index, path, &length, error));
    TRY(read_number(result, "kld", index, path, &row->kld, error));
    TRY(read_number(result, "kld_error", index, path, &row->error, error));
    row->length = (uint64_t)length;
    return STATUS_OK;
}

static enum status read_root(struct kld_table *table, const json_t *root, const char *path, const char *fingerprint,
                             struct error *error) {
    TRY(check_text(root, "evaluation", "kl", path, error));
    TRY(check_text(root, "fingerprint", fingerprint, path, error));
    const json_t *results = json_object_get(root, "results");
    if (!json_is_array(results) || json_array_size(results) > KLD_ROWS_MAX)
        return error_set(error, STATUS_USAGE, "%s: results: expected an array of up to %d", path, KLD_ROWS_MAX);
    for (size_t i = 0; i < json_array_size(results); i++)
        TRY(read_row(&table->rows[table->row_count++], json_array_get(results, i), i, path, error));
    return STATUS_OK;
}

enum status kld_table_load(struct kld_table *table, const char *path, const char *fingerprint, struct error *error) {
    char *text;
    size_t length;
    json_t *root = NULL;
    table->row_count = 0;
    TRY(file_read_all(path, FILE_BYTES_MAX, &text, &length, error));
    enum status status = json_parse_bytes(text, length, path, STATUS_USAGE, &root, error);
    if (status == STATUS_OK) status = read_root(table, root, path, fingerprint, error);
    json_decref(root);
    free(text);
    if (status != STATUS_OK) table->row_count = 0;
    return status;
}

/* "quest:select=meanstd" is "quest select=meanstd"; a label has its settings behind colons, in the order given. */
static bool is_of_plan(const char *label, const char *plan) {
    for (; *label != '\0' && *plan != '\0'; label++, plan++)
        if (*label != *plan && !(*label == ':' && (*plan == ' ' || *plan == ','))) return false;
    return *label == *plan;
}

double kld_table_at(const struct kld_table *table, const char *plan, uint64_t depth) {
    const struct kld_row *below = NULL, *above = NULL;
    for (size_t i = 0; i < table->row_count; i++) {
        const struct kld_row *row = &table->rows[i];
        if (!is_of_plan(row->label, plan)) continue;
        if (row->length <= depth && row->length >= depth / 2 && (below == NULL || row->length > below->length))
            below = row;
        if (row->length >= depth && row->length / 2 <= depth && (above == NULL || row->length < above->length))
            above = row;
    }
    if (below == NULL) below = above;
    if (above == NULL) above = below;
    return below == NULL ? NAN : fmax(below->kld + below->error, above->kld + above->error);
}
