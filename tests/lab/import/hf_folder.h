/* hf_folder: tiny Hugging Face model folders for tests, made of jansson objects and of numbers that show their origin:
 * element e of the n-th tensor is n * 4096 + e. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

enum {
    HF_HIDDEN = 32,
    HF_HEADS = 4,
    HF_KV_HEADS = 2,
    HF_HEAD = 8,
    HF_FFN = 24,
    HF_LAYERS = 2,
    HF_VOCABULARY = 40,
    HF_CONTEXT = 30,
};

struct hf_tensor {
    char name[96];          /* transformers' */
    char target[64];        /* as the GGUF file must call it */
    uint64_t rows, columns; /* columns 0: a vector */
    char order;             /* ' ' as it is, 'q' or 'k' */
};

enum { HF_TENSORS_MAX = 64 };

struct hf_folder {
    char path[64];
    const char *family; /* "llama", "mistral", "qwen2", "qwen3", "opt" */
    json_t *config, *tokenizer, *tokenizer_config, *generation; /* owned; the last two may be NULL: no file */
    const char *chat_template;                                  /* NULL: no file */
    struct hf_tensor tensors[HF_TENSORS_MAX];
    size_t tensor_count;
    const char *dtype; /* "F32", "F16", "BF16" */
    bool sharded;
};

/* A sound folder in memory: change it, then hf_folder_write. */
void hf_folder_init(struct hf_folder *folder, const char *family);
void hf_folder_add(struct hf_folder *folder, const char *name, const char *target, uint64_t rows,
                   uint64_t columns, char order);
struct hf_tensor *hf_folder_tensor(struct hf_folder *folder, const char *name);
void hf_folder_write(struct hf_folder *folder);  /* to a new folder */
void hf_folder_remove(struct hf_folder *folder); /* the files and what init made */

/* Merges a JSON text over an object; a value of null removes the member. */
void hf_patch(json_t *object, const char *text);

/* tokenizer.json of the two kinds, with merges that make "th" and "the" and "<|begin|>" 37, "<|end|>" 38 special,
 * "[more]" 39 not special; in the SentencePiece kind "<unk>" 0, "<s>" 1, "</s>" 2. */
json_t *hf_byte_level_tokenizer(void);
json_t *hf_sentencepiece_tokenizer(void);
