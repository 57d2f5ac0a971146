/* import: converts a Hugging Face model folder to one GGUF file.
 *
 * Reads config.json, model.safetensors (or its shards), tokenizer.json, and, if present, tokenizer_config.json,
 * generation_config.json and chat_template.jinja.  Families: LlamaForCausalLM and MistralForCausalLM (architecture
 * "llama"), Qwen2ForCausalLM, Qwen3ForCausalLM, OPTForCausalLM (docs/formats.md).  Keys and tensor names are
 * llama.cpp's.  An unsupported feature is rejected with its field's name.  So is a tensor that the family does not use:
 * nothing is lost silently.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"

typedef void import_observer(void *context, const char *tensor_name, uint64_t index, uint64_t count);

struct import_options {
    const char *type_name;     /* type of matrices: F32, F16, BF16 or Q8_0; NULL: as in the folder */
    const char *pre;           /* tokenizer.ggml.pre; NULL: recognised from tokenizer.json */
    import_observer *observer; /* called after each tensor; may be NULL */
    void *observer_context;
};

struct import_report {
    uint64_t tensor_count, output_bytes; /* the bytes are those of the tensors */
    const char *architecture;            /* a constant */
    const char *pre;                     /* tokenizer.ggml.pre as written; a constant or options->pre */
    char warning[300];                   /* what the file format cannot express; empty: none */
};

/* report may be NULL.  STATUS_MODEL: bad content of the folder.  STATUS_IO: a file failed.  STATUS_USAGE: a bad option.
 * A failure leaves no file. */
enum status model_import(const char *folder, const char *output, const struct import_options *options,
                         struct import_report *report, struct error *error) STATUS_CHECKED;
