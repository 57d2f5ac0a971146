/* Checks that every weight is finite.  A file's scales may be NaN or infinite.  The check reads the whole file, so it
 * runs only after an output was NaN, to name the cause. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "format/path_tail.h"
#include "kernels/convert/convert.h"
#include "model/model.h"

/* The first row with a value that is not finite; UINT64_MAX: none.  row: [dimensions[0]]. */
static uint64_t find_row(const struct convert_kernels *convert, const struct gguf_tensor *tensor, float *row) {
    const size_t columns = (size_t)tensor->dimensions[0];
    uint64_t row_bytes;
    if ((size_t)tensor->type >= CONVERT_TYPES || convert->dequantize[tensor->type] == NULL ||
        !tensor_row_bytes(tensor->type, columns, &row_bytes) || row_bytes == 0)
        return UINT64_MAX;
    for (uint64_t i = 0; i < tensor->size_bytes / row_bytes; i++) {
        bool finite = true;
        convert->dequantize[tensor->type](tensor->data + i * row_bytes, row, columns);
        for (size_t j = 0; j < columns; j++) finite &= isfinite(row[j]) != 0;
        if (!finite) return i;
    }
    return UINT64_MAX;
}

enum status model_check_numbers(const struct model *model, struct error *error) {
    const struct gguf *gguf = &model->gguf;
    struct convert_kernels convert;
    convert_kernels_init(&convert, cpu_features());
    uint64_t longest = 1;
    for (uint64_t i = 0; i < gguf->tensor_count; i++)
        if (gguf->tensors[i].dimensions[0] > longest) longest = gguf->tensors[i].dimensions[0];
    float *row = calloc((size_t)longest, sizeof *row);
    if (row == NULL) return error_set(error, STATUS_MEMORY, "no memory to look at the weights");
    enum status status = STATUS_OK;
    for (uint64_t i = 0; status == STATUS_OK && i < gguf->tensor_count; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        const uint64_t found = find_row(&convert, tensor, row);
        if (found == UINT64_MAX) continue;
        status =
            error_set(error, STATUS_MODEL, "%s: tensor '%.*s': row %" PRIu64 ": found a value that is no number (%s)",
                      path_tail(gguf->path, PATH_TAIL_BYTES), (int)tensor->name.length, tensor->name.text, found,
                      tensor_type_info(tensor->type)->name);
    }
    free(row);
    return status;
}
