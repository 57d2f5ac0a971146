/* import: a Hugging Face model folder as one GGUF file.
 *
 * Reads config.json, model.safetensors (or its shards), tokenizer.json, and where they are
 * tokenizer_config.json, generation_config.json and chat_template.jinja.  Families: LlamaForCausalLM and
 * MistralForCausalLM (architecture "llama"), Qwen2ForCausalLM, Qwen3ForCausalLM, OPTForCausalLM (docs/formats.md).
 * Keys and tensor names are llama.cpp's.  What the folder asks for and loam could not compute is refused by
 * its field's name; a tensor that the family does not use is refused too, so that nothing is lost silently.
 */
#ifndef LOAM_MODEL_IMPORT_H
#define LOAM_MODEL_IMPORT_H

#include <stdint.h>

#include "base/status.h"

typedef void import_observer(void *context, const char *tensor_name, uint64_t index, uint64_t count);

struct import_options {
    const char *type_name;     /* of matrices: F32, F16, BF16 or Q8_0; NULL keeps each as it is */
    const char *pre;           /* tokenizer.ggml.pre; NULL: recognised from tokenizer.json */
    import_observer *observer; /* called after each tensor; may be NULL */
    void *observer_context;
};

struct import_report {
    uint64_t tensor_count, output_bytes; /* of the tensors */
    const char *architecture;            /* a constant */
    const char *pre;                     /* tokenizer.ggml.pre as written; a constant or options->pre */
    char warning[300];                   /* what the file format could not express, or empty */
};

/* report may be NULL. STATUS_MODEL for what the folder holds, STATUS_IO for files, STATUS_USAGE for options;
 * nothing is left behind on failure. */
enum status model_import(const char *folder, const char *output, const struct import_options *options,
                         struct import_report *report, struct error *error) STATUS_CHECKED;

#endif
