/* model_type: describes a model file in a word and in bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "format/gguf.h"
#include "model/model.h"

/* "llama 1.24B Q4_K - Medium": architecture, parameters, quantisation (general.file_type, else the type that
 * most bytes have).  Safe to print. */
void model_type_text(const struct gguf *gguf, char *buffer, size_t buffer_bytes);

uint64_t model_parameter_count(const struct gguf *gguf);
uint64_t model_tensor_bytes(const struct gguf *gguf);
/* Weight bytes that a decode step of one sequence reads (model_step_share). */
uint64_t model_step_bytes(const struct model *model);
