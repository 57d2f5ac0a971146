/* tiny_model: a model file of a few hundred kilobytes with random weights and a vocabulary of bytes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    TINY_LAYERS = 2,
    TINY_LAYERS_MAX = 16,
    TINY_HIDDEN = 64,
    TINY_HEADS = 4,
    TINY_HEADS_MAX = 8,
    TINY_KV_HEADS = 2,
    TINY_HEAD_DIMENSION = 32,
    TINY_HEAD_DIMENSION_MAX = 64,
    TINY_FFN = 96,
    TINY_CONTEXT = 256,
    TINY_BYTE_FIRST = 3, /* <unk> <s> </s>, then the 256 bytes */
    TINY_VOCABULARY = 320,
};

/* In the shape of Llama 2's. */
#define TINY_CHAT_TEMPLATE                                                                                \
    "{% if messages[0].role == 'system' %}{% set s = '<<SYS>>\\n' ~ messages[0].content ~ "               \
    "'\\n<</SYS>>\\n\\n' %}"                                                                              \
    "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"         \
    "{% for m in rest %}{% if m.role == 'user' %}{{ bos_token ~ '[INST] ' ~ (s if loop.first else '') ~ " \
    "m.content | trim ~ ' [/INST]' }}{% else %}{{ ' ' ~ m.content | trim ~ ' ' ~ eos_token }}{% endif %}" \
    "{% endfor %}"

struct tiny_model {
    uint64_t seed;
    bool vocabulary_only; /* no tensors */
    bool without_tokenizer;
    const char *chat_template; /* NULL: none */
    uint64_t context;          /* 0: TINY_CONTEXT */
    uint32_t window;           /* all layers attend to one of so many tokens; 0: none does */
    uint32_t layers;           /* 0: TINY_LAYERS; at most TINY_LAYERS_MAX */
    uint32_t heads;            /* 0: TINY_HEADS; at most TINY_HEADS_MAX */
    uint32_t kv_heads;         /* 0: TINY_KV_HEADS; divides the heads */
    uint32_t head_dimension;   /* 0: TINY_HEAD_DIMENSION; at most TINY_HEAD_DIMENSION_MAX */
    bool never_ends;           /* the end token's logit is 0 everywhere, which is never the greatest of 320 */
    bool always_ends;          /* the end token is likeliest everywhere (as far as a bias row can make it) */
};

/* llama architecture, F32 weights.  Fails the test when it cannot be written. */
void tiny_model_write(const char *path, const struct tiny_model *model);
