/* import_internal: what the files of the importer share. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/arena.h"
#include "format/gguf.h"
#include "format/path_tail.h"
#include "kernels/convert/convert.h"
#include "lab/import/import.h"
#include "lab/import/safetensors.h"
#include "model/model.h"

enum { IMPORT_FOLDER_SHOWN = 100 }; /* longest part of the folder's path in a message, in bytes */

/* A JSON object and its file's name, for messages. */
struct import_source {
    const char *file; /* "config.json" */
    json_t *object;   /* owned; NULL when the file is absent */
};

struct import_rope {
    double base;
    enum rope_scaling scaling;
    double factor, attention_factor, beta_fast, beta_slow, low_factor, high_factor;
    uint64_t original_context;
};

struct import_config {
    enum model_family family;
    const char *architecture; /* general.architecture and the prefix of keys */
    uint64_t hidden, layers, heads, kv_heads, head_dimension, ffn, vocabulary, context;
    bool explicit_head_dimension; /* given, rather than hidden / heads */
    bool tied;                    /* the embedding is the output matrix */
    double norm_epsilon;
    struct import_rope rope;
    uint64_t window;    /* tokens; 0: no layer slides */
    const bool *slides; /* [layers] when window > 0 */
};

struct import {
    const char *folder, *output;
    const struct import_options *options;
    struct import_report *report;
    struct error *error;
    struct arena arena;
    struct import_source config_source, generation, tokenizer_config, tokenizer;
    char *chat_template; /* owned, zero-terminated; NULL: there is no separate one */
    size_t chat_template_bytes;
    struct import_config config;
    struct safetensors weights;
    bool *used; /* [weights.tensor_count] */
    enum tensor_type type;
    bool keep_type; /* matrices keep their type */
    uint32_t file_type;
    struct convert_kernels convert;
    struct gguf_writer *writer;
};

/* ---- import_field.c: fields of JSON objects; null counts as absent ---- */

__attribute__((format(printf, 4, 5))) enum status import_refuse(const struct import *import, const char *file,
                                                                const char *field, const char *format, ...);
/* A member of an object of that source. */
struct import_field {
    const struct import_source *source;
    const json_t *object;
    const char *name;
    bool required; /* an absent field leaves *value unchanged, unless it is required */
};
enum status import_uint(const struct import *import, struct import_field field, uint64_t min, uint64_t max,
                        uint64_t *value) STATUS_CHECKED;
enum status import_number(const struct import *import, struct import_field field, double min, double max, double *value)
    STATUS_CHECKED;
enum status import_bool(const struct import *import, const struct import_source *source, const json_t *object,
                        const char *field, bool *value) STATUS_CHECKED;
/* Borrowed from the object; holds no zero byte. */
enum status import_text(const struct import *import, const struct import_source *source, const json_t *object,
                        const char *field, const char **value) STATUS_CHECKED;
/* The member, or NULL when it is absent or null. */
json_t *import_member(const json_t *object, const char *field);

/* ---- the parts ---- */

/* import_config.c */
enum status import_read_config(struct import *import) STATUS_CHECKED;
enum status import_write_config(struct import *import) STATUS_CHECKED;
/* import_tensor.c: declare before gguf_writer_begin_data, write after it. */
enum status import_declare_tensors(struct import *import) STATUS_CHECKED;
enum status import_write_tensors(struct import *import) STATUS_CHECKED;
/* import_tokenizer.c */
enum status import_write_tokenizer(struct import *import) STATUS_CHECKED;
/* import_pre.c: the name of tokenizer.ggml.pre for a byte-level tokenizer.json. */
enum status import_find_pre(struct import *import, const char **pre) STATUS_CHECKED;
/* import_special.c: special tokens (bos, eos, ...), whether they are added automatically, and the chat template. */
enum status import_write_special(struct import *import) STATUS_CHECKED;
