/* A tensor is converted in bands of rows.  Each thread takes the next row of the band, decodes it to its own float
 * buffer and encodes it into the band.  Then the band is written.  Memory is one band and one row per thread,
 * whatever the model's size. */
#include "lab/import/quantize.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/checked.h"
#include "format/gguf.h"
#include "kernels/convert/convert.h"
#include "lab/quantize/quantizers.h"
#include "platform/cpu.h"
#include "platform/pool.h"

enum { BAND_BYTES = 16 << 20, QUANTIZATION_VERSION = 2 };

enum mix { MIX_NONE, MIX_Q3_K_M, MIX_Q4_K_M, MIX_Q5_K_M };

struct target {
    const char *name;
    enum tensor_type type;
    enum mix mix;
    uint32_t file_type; /* general.file_type, llama.cpp's numbers */
};

static const struct target targets[] = {
    {"F32", TENSOR_F32, MIX_NONE, 0},        {"F16", TENSOR_F16, MIX_NONE, 1},
    {"BF16", TENSOR_BF16, MIX_NONE, 32},     {"Q4_0", TENSOR_Q4_0, MIX_NONE, 2},
    {"Q4_1", TENSOR_Q4_1, MIX_NONE, 3},      {"Q5_0", TENSOR_Q5_0, MIX_NONE, 8},
    {"Q5_1", TENSOR_Q5_1, MIX_NONE, 9},      {"Q8_0", TENSOR_Q8_0, MIX_NONE, 7},
    {"Q2_K", TENSOR_Q2_K, MIX_NONE, 10},     {"Q3_K", TENSOR_Q3_K, MIX_NONE, 11},
    {"Q3_K_S", TENSOR_Q3_K, MIX_NONE, 11},   {"Q3_K_M", TENSOR_Q3_K, MIX_Q3_K_M, 12},
    {"Q4_K", TENSOR_Q4_K, MIX_NONE, 14},     {"Q4_K_S", TENSOR_Q4_K, MIX_NONE, 14},
    {"Q4_K_M", TENSOR_Q4_K, MIX_Q4_K_M, 15}, {"Q5_K", TENSOR_Q5_K, MIX_NONE, 16},
    {"Q5_K_S", TENSOR_Q5_K, MIX_NONE, 16},   {"Q5_K_M", TENSOR_Q5_K, MIX_Q5_K_M, 17},
    {"Q6_K", TENSOR_Q6_K, MIX_NONE, 18},     {"IQ4_NL", TENSOR_IQ4_NL, MIX_NONE, 25},
    {"IQ4_XS", TENSOR_IQ4_XS, MIX_NONE, 30},
};
enum { TARGET_COUNT = sizeof targets / sizeof targets[0] };

struct quantizer {
    struct gguf input;
    struct gguf_writer *writer;
    struct convert_kernels convert;
    struct pool *pool;
    size_t thread_count;
    const struct target *target;
    uint32_t layer_count;
    bool has_output; /* output.weight; without it the embedding is the output matrix */
    const struct quantize_options *options;
    struct quantize_report *report;
    struct error *error;
};

/* ---- which type a tensor gets ---- */

static bool name_is(struct gguf_string name, const char *text) {
    return name.length == strlen(text) && memcmp(name.text, text, name.length) == 0;
}

static bool name_ends(struct gguf_string name, const char *end) {
    size_t length = strlen(end);
    return name.length >= length && memcmp(name.text + name.length - length, end, length) == 0;
}

/* The N of blk.N.*, or -1. */
static int64_t layer_of(struct gguf_string name) {
    if (name.length < 5 || memcmp(name.text, "blk.", 4) != 0) return -1;
    int64_t layer = 0;
    uint64_t i = 4;
    for (; i < name.length && i < 12 && name.text[i] >= '0' && name.text[i] <= '9'; i++)
        layer = layer * 10 + (name.text[i] - '0');
    return i > 4 && i < name.length && name.text[i] == '.' ? layer : -1;
}

/* A router stays as it is: it is small, and what it rounds picks other experts.  So do a convolution's taps, of which
 * no type has a block. */
static bool is_matrix(const struct gguf_tensor *tensor) {
    static const char *const others[] = {"_norm.weight", ".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight",
                                         ".ssm_conv1d.weight", ".shortconv.conv.weight"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (name_ends(tensor->name, others[i])) return false;
    return tensor->dimension_count >= 2 && name_ends(tensor->name, "weight") &&
           !name_is(tensor->name, "position_embd.weight");
}

/* llama.cpp's rule of which layers matter more (use_more_bits in its llama-quant.cpp). */
static bool wants_more_bits(int64_t layer, int64_t layer_count) {
    return layer < layer_count / 8 || layer >= 7 * layer_count / 8 || (layer - layer_count / 8) % 3 == 2;
}

static enum tensor_type mixed_type(const struct quantizer *quantizer, const struct gguf_tensor *tensor) {
    struct gguf_string name = tensor->name;
    enum mix mix = quantizer->target->mix;
    enum tensor_type plain = quantizer->target->type;
    if (mix == MIX_NONE) return plain;
    if (name_is(name, quantizer->has_output ? "output.weight" : "token_embd.weight")) return TENSOR_Q6_K;
    int64_t layer = layer_of(name), count = quantizer->layer_count;
    if (layer < 0) return plain;
    bool more = wants_more_bits(layer, count);
    if (name_ends(name, ".attn_v.weight")) {
        if (mix == MIX_Q3_K_M) return layer < 2 ? TENSOR_Q5_K : TENSOR_Q4_K;
        return more ? TENSOR_Q6_K : plain;
    }
    if (name_ends(name, ".ffn_down.weight") || name_ends(name, ".ffn_down_exps.weight")) {
        if (mix == MIX_Q3_K_M) return layer < count / 16 ? TENSOR_Q5_K : TENSOR_Q4_K;
        return more ? TENSOR_Q6_K : plain;
    }
    if (name_ends(name, ".attn_output.weight") && mix == MIX_Q3_K_M) return TENSOR_Q4_K;
    return plain;
}

/* The type of rows that are not a multiple of the wanted type's block, by llama.cpp's table. */
static enum tensor_type fallback_type(enum tensor_type wanted, uint64_t row_length) {
    enum tensor_type smaller = wanted;
    switch ((int)wanted) {
    case TENSOR_Q2_K:
    case TENSOR_Q3_K:
    case TENSOR_IQ4_XS: smaller = TENSOR_IQ4_NL; break;
    case TENSOR_Q4_K: smaller = TENSOR_Q5_0; break;
    case TENSOR_Q5_K: smaller = TENSOR_Q5_1; break;
    case TENSOR_Q6_K: smaller = TENSOR_Q8_0; break;
    }
    return row_length % tensor_type_info(smaller)->block_elements == 0 ? smaller : TENSOR_F16;
}

static enum tensor_type type_for(const struct quantizer *quantizer, const struct gguf_tensor *tensor, bool *fell_back) {
    *fell_back = false;
    if (!is_matrix(tensor)) {
        bool is_float = tensor->type == TENSOR_F16 || tensor->type == TENSOR_BF16;
        bool is_position = name_is(tensor->name, "position_embd.weight");
        return is_float && !is_position ? TENSOR_F32 : tensor->type;
    }
    enum tensor_type wanted = mixed_type(quantizer, tensor);
    if (tensor->dimensions[0] % tensor_type_info(wanted)->block_elements == 0) return wanted;
    *fell_back = true;
    return fallback_type(wanted, tensor->dimensions[0]);
}

/* ---- converting ---- */

struct band {
    const struct quantizer *quantizer;
    const uint8_t *source; /* the band's first row */
    uint8_t *target;
    float *rows; /* [thread_count][columns] */
    size_t columns, row_count;
    uint64_t source_row_bytes, target_row_bytes;
    enum tensor_type from, to;
    _Atomic bool all_fit; /* cleared by any thread; read after pool_run, which is a barrier */
};

/* Finite, and small enough for F16. */
static bool all_fit(const float *values, size_t count, enum tensor_type type) {
    const float limit = type == TENSOR_F16 ? 65504.0f : FLT_MAX;
    bool fit = true;
    for (size_t i = 0; i < count; i++) fit &= fabsf(values[i]) <= limit; /* false for NaN */
    return fit;
}

static void convert_rows(void *context, const struct pool_worker *worker) {
    struct band *band = context;
    const struct convert_kernels *convert = &band->quantizer->convert;
    row_quantizer *quantize = row_quantizer_of(band->to);
    float *row = band->rows + worker->index * band->columns;
    for (size_t i; (i = pool_ticket(worker)) < band->row_count;) {
        convert->dequantize[band->from](band->source + i * band->source_row_bytes, row, band->columns);
        if (!all_fit(row, band->columns, band->to))
            atomic_store_explicit(&band->all_fit, false, memory_order_relaxed);
        else
            quantize(row, band->target + i * band->target_row_bytes, band->columns);
    }
}

static enum status fail(const struct quantizer *quantizer, const struct gguf_tensor *tensor, enum status status,
                        const char *what) {
    return error_set(quantizer->error, status, "%.140s: tensor '%.*s': %s", quantizer->input.path,
                     (int)min_size(tensor->name.length, GGUF_NAME_BYTES_MAX), tensor->name.text, what);
}

static enum status convert_bands(struct quantizer *quantizer, const struct gguf_tensor *tensor, struct band *band) {
    uint64_t rows = tensor->size_bytes / band->source_row_bytes;
    size_t band_rows = max_size(1, BAND_BYTES / band->target_row_bytes);
    if (band_rows > rows) band_rows = rows;
    uint64_t row_floats, band_bytes;
    bool fits = checked_multiply(band->columns, quantizer->thread_count, &row_floats) &&
                checked_multiply(band_rows, band->target_row_bytes, &band_bytes);
    band->rows = fits ? reallocarray(NULL, row_floats, sizeof *band->rows) : NULL;
    band->target = fits ? malloc(band_bytes) : NULL;
    enum status status = band->rows == NULL || band->target == NULL
                             ? fail(quantizer, tensor, STATUS_MEMORY, "out of memory for its rows")
                             : STATUS_OK;
    band->source = tensor->data;
    for (uint64_t done = 0; status == STATUS_OK && done < rows; done += band->row_count) {
        band->row_count = min_size(band_rows, rows - done);
        pool_run(quantizer->pool, convert_rows, band);
        if (!band->all_fit) {
            status = fail(quantizer, tensor, STATUS_MODEL,
                          "value: found one that is not finite or beyond the new type's range");
            break;
        }
        status = gguf_writer_write(quantizer->writer, band->target, band->row_count * band->target_row_bytes,
                                   quantizer->error);
        band->source += band->row_count * band->source_row_bytes;
    }
    free(band->rows);
    free(band->target);
    return status;
}

static enum status write_tensor(struct quantizer *quantizer, const struct gguf_tensor *tensor, enum tensor_type to) {
    if (tensor->type == to)
        return gguf_writer_write(quantizer->writer, tensor->data, tensor->size_bytes, quantizer->error);
    struct band band = {.quantizer = quantizer, .columns = tensor->dimensions[0], .from = tensor->type, .to = to};
    band.all_fit = true;
    bool fits = tensor_row_bytes(tensor->type, band.columns, &band.source_row_bytes) &&
                tensor_row_bytes(to, band.columns, &band.target_row_bytes);
    ASSERT(fits); /* the reader and type_for have checked both */
    if ((size_t)tensor->type >= CONVERT_TYPES || quantizer->convert.dequantize[tensor->type] == NULL ||
        row_quantizer_of(to) == NULL)
        return fail(quantizer, tensor, STATUS_UNSUPPORTED, "its type cannot be converted");
    return convert_bands(quantizer, tensor, &band);
}

/* ---- the file ---- */

static bool is_replaced(struct gguf_string key) {
    return name_is(key, "general.file_type") || name_is(key, "general.quantization_version") ||
           (key.length > 6 && memcmp(key.text, "split.", 6) == 0);
}

static enum status write_header(struct quantizer *quantizer) {
    const struct gguf *input = &quantizer->input;
    struct error *error = quantizer->error;
    for (uint64_t i = 0; i < input->entry_count; i++)
        if (!is_replaced(input->entries[i].key))
            TRY(gguf_writer_copy_entry(quantizer->writer, &input->entries[i], error));
    TRY(gguf_writer_add_uint(quantizer->writer, "general.file_type", quantizer->target->file_type, error));
    TRY(gguf_writer_add_uint(quantizer->writer, "general.quantization_version", QUANTIZATION_VERSION, error));
    for (uint64_t i = 0; i < input->tensor_count; i++) {
        const struct gguf_tensor *tensor = &input->tensors[i];
        char name[GGUF_NAME_BYTES_MAX + 1] = {0};
        bool fell_back;
        memcpy(name, tensor->name.text, tensor->name.length);
        TRY(gguf_writer_declare_tensor(quantizer->writer, name, type_for(quantizer, tensor, &fell_back),
                                       tensor->dimension_count, tensor->dimensions, error));
    }
    return gguf_writer_begin_data(quantizer->writer, error);
}

static enum status write_tensors(struct quantizer *quantizer) {
    const struct gguf *input = &quantizer->input;
    struct quantize_report *report = quantizer->report;
    struct quantize_step step = {.count = input->tensor_count};
    for (uint64_t i = 0; i < input->tensor_count; i++) step.all_bytes += input->tensors[i].size_bytes;
    for (uint64_t i = 0; i < input->tensor_count; i++) {
        const struct gguf_tensor *tensor = &input->tensors[i];
        char name[GGUF_NAME_BYTES_MAX + 1] = {0};
        memcpy(name, tensor->name.text, tensor->name.length);
        step.name = name;
        step.index = i;
        step.from = tensor->type;
        step.to = type_for(quantizer, tensor, &step.fell_back);
        TRY(write_tensor(quantizer, tensor, step.to));
        step.done_bytes += tensor->size_bytes;
        uint64_t row_bytes = 0, source_row_bytes = 1;
        bool fits = tensor_row_bytes(step.to, tensor->dimensions[0], &row_bytes) &&
                    tensor_row_bytes(step.from, tensor->dimensions[0], &source_row_bytes);
        ASSERT(fits);
        report->output_bytes += tensor->size_bytes / source_row_bytes * row_bytes;
        report->input_bytes += tensor->size_bytes;
        report->fallback_count += step.fell_back;
        report->tensor_count++;
        if (quantizer->options->observer != NULL)
            quantizer->options->observer(quantizer->options->observer_context, &step);
    }
    return STATUS_OK;
}

static enum status run(struct quantizer *quantizer, const char *input, const char *output) {
    struct error *error = quantizer->error;
    TRY(gguf_open(&quantizer->input, input, error));
    for (uint64_t i = 0; i < quantizer->input.tensor_count; i++) {
        int64_t layer = layer_of(quantizer->input.tensors[i].name);
        if (layer >= quantizer->layer_count) quantizer->layer_count = (uint32_t)layer + 1;
    }
    quantizer->has_output = gguf_find_tensor(&quantizer->input, "output.weight") != NULL;
    convert_kernels_init(&quantizer->convert, cpu_features());
    TRY(pool_create(&quantizer->pool, quantizer->options->thread_count, error));
    quantizer->thread_count = pool_thread_count(quantizer->pool);
    TRY(gguf_writer_create(&quantizer->writer, output, error));
    TRY(write_header(quantizer));
    TRY(write_tensors(quantizer));
    TRY(gguf_check(&quantizer->input, error));
    return gguf_writer_commit(quantizer->writer, error);
}

static enum status find_target(const char *name, const struct target **target, struct error *error) {
    for (size_t i = 0; i < TARGET_COUNT; i++)
        if (strcasecmp(targets[i].name, name) == 0) {
            *target = &targets[i];
            return STATUS_OK;
        }
    char known[256] = "";
    for (size_t i = 0; i < TARGET_COUNT; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, " %s", targets[i].name);
    }
    return error_set(error, STATUS_USAGE, "type '%.40s' is unknown; known are%s", name, known);
}

enum status model_quantize(const char *input, const char *output, const struct quantize_options *options,
                           struct quantize_report *report, struct error *error) {
    struct quantize_report own;
    struct quantizer quantizer = {.options = options, .report = report == NULL ? &own : report, .error = error};
    *quantizer.report = (struct quantize_report){0};
    TRY(find_target(options->type_name, &quantizer.target, error));
    enum status status = run(&quantizer, input, output);
    gguf_writer_destroy(quantizer.writer);
    pool_destroy(quantizer.pool);
    gguf_close(&quantizer.input);
    return status;
}
