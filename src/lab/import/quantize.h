/* quantize: a GGUF model with its matrices in another element type.
 *
 * Names: every weight type of tensor/type.h (all matrices become it; Q4_K_S is Q4_K, Q5_K_S is Q5_K and
 * Q3_K_S is Q3_K), and the mixes Q3_K_M, Q4_K_M and Q5_K_M, which follow llama.cpp's choice of tensors:
 * more bits for the output matrix (or the embedding that stands in for it), and for attn_v and ffn_down
 * in the first and last eighth of the layers and each third between.
 * Norms, biases and other vectors are written as F32; position_embd.weight is copied.  A matrix whose rows
 * are no multiple of 256 gets the type with blocks of 32 that is next in bits.  One whose rows are no multiple of 32
 * becomes F16.  The report counts both.  Values that are not finite are rejected: they would corrupt whole blocks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tensor/type.h"

struct quantize_step { /* one tensor, when it has been written */
    const char *name;
    uint64_t index, count;          /* tensors: this one, of how many */
    uint64_t done_bytes, all_bytes; /* of the input's tensors */
    enum tensor_type from, to;
    bool fell_back; /* the rows do not fit the wanted type */
};

typedef void quantize_observer(void *context, const struct quantize_step *step);

struct quantize_options {
    const char *type_name;       /* case does not matter */
    size_t thread_count;         /* 0: one per processor */
    quantize_observer *observer; /* may be NULL */
    void *observer_context;
};

struct quantize_report {
    uint64_t tensor_count, fallback_count;
    uint64_t input_bytes, output_bytes; /* of the tensors */
};

/* STATUS_USAGE: unknown type.  STATUS_MODEL: the input.  STATUS_IO: the output.  Nothing is left behind on failure.
 * input may be split; output is one file. */
enum status model_quantize(const char *input, const char *output, const struct quantize_options *options,
                           struct quantize_report *report, struct error *error) STATUS_CHECKED;
