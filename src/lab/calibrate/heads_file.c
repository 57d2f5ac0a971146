/* Published head scores: DuoAttention's full_attention_heads.tsv. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/calibrate/calibrate.h"
#include "platform/file.h"

static const double tolerance = 0.05; /* published files have -0.0002 for 0 */
enum { FILE_BYTES_MAX = 1 << 24 };

struct line {
    const char *path;
    size_t number; /* from 1 on */
    char *text;
};

/* Reads the numbers of one line into row[count_max]; *count: how many. */
static enum status read_line(const struct line *line, double *row, size_t count_max, size_t *count,
                             struct error *error) {
    *count = 0;
    for (char *at = line->text;;) {
        at += strspn(at, " \t\r");
        if (*at == '\0') return STATUS_OK;
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end != '\0' && strchr(" \t\r", *end) == NULL))
            return error_set(error, STATUS_USAGE, "%s: line %zu: '%.20s' is no number", line->path, line->number, at);
        if (!(value >= -tolerance && value <= 1 + tolerance))
            return error_set(error, STATUS_USAGE, "%s: line %zu: score %g, expected 0 to 1", line->path, line->number,
                             value);
        if (*count < count_max) row[*count] = fmin(1, fmax(0, value));
        ++*count;
        at = end;
    }
}

static void take_row(struct calibration_result *result, size_t layer, const double *row, size_t count) {
    size_t group = result->head_count / count; /* 1, or the heads that share a KV head */
    for (size_t head = 0; head < result->head_count; head++)
        result->importance[layer * result->head_count + head] = (float)row[head / group];
}

static enum status read_lines(struct calibration_result *result, const char *path, char *text, double *row,
                              struct error *error) {
    size_t layer = 0, number = 1, count;
    for (char *line = text, *next; line != NULL; line = next, number++) {
        next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        TRY(read_line(&(struct line){path, number, line}, row, result->head_count, &count, error));
        if (count == 0) continue;
        if (count != result->kv_head_count && count != result->head_count)
            return error_set(error, STATUS_USAGE, "%s: line %zu: %zu scores; this model has %zu KV heads and %zu heads",
                             path, number, count, result->kv_head_count, result->head_count);
        if (layer == result->layer_count)
            return error_set(error, STATUS_USAGE, "%s: line %zu: this model has only %zu layers", path, number,
                             result->layer_count);
        take_row(result, layer++, row, count);
    }
    if (layer != result->layer_count)
        return error_set(error, STATUS_USAGE, "%s: %zu lines of scores; this model has %zu layers", path, layer,
                         result->layer_count);
    return STATUS_OK;
}

enum status calibrate_import_heads(struct calibration_result *result, const char *path, struct error *error) {
    char *text;
    size_t size;
    TRY(file_read_all(path, FILE_BYTES_MAX, &text, &size, error));
    double *row = calloc(result->head_count, sizeof *row);
    enum status status = row == NULL ? error_set(error, STATUS_MEMORY, "out of memory") : STATUS_OK;
    if (status == STATUS_OK && strlen(text) != size)
        status = error_set(error, STATUS_USAGE, "%s: this is no text", path);
    if (status == STATUS_OK) status = read_lines(result, path, text, row, error);
    if (status == STATUS_OK) result->importance_source = path;
    free(row);
    free(text);
    return status;
}
