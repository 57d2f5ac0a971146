/* make_model SHAPE TYPE OUT.gguf [SEED]: a GGUF file with the shape of a real model and random weights.
 *
 * Speed depends on shapes and types only, so random weights measure what real ones would.  Weights are
 * normal with deviation 0.02, rounded by loam's own quantisers; norms are one.  To be done in seconds, not
 * minutes, a pool of POOL_BLOCKS random blocks of 256 weights is quantised once, and every row of every
 * matrix is drawn from it block by block: no two rows are alike, but blocks repeat across the file.
 * The vocabulary is made up: the 256 bytes as BPE writes them, one merge, numbered fillers, BOS and EOS;
 * llama.cpp loads it too.  Q4_K_M is mixed as llama.cpp mixes it: Q6_K for half of attn_v and ffn_down and
 * for the output matrix, which is Q6_K beside Q4_0 as well.  A shape with experts is qwen3moe's, one with delta nets
 * qwen35's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "format/gguf.h"
#include "lab/quantize/quantizers.h"
#include "model/rope_scaling.h"
#include "platform/clock.h"
#include "platform/pool.h"

enum { POOL_BLOCKS = 8192, BLOCK = 256, PIECE_BYTES = 32 << 20, TYPE_SLOTS = 32 };

struct shape {
    const char *name;
    uint32_t layers, hidden, heads, kv_heads, head_dimension, ffn, vocabulary, context;
    bool tied;
    float rope_base, rope_factor;   /* factor of the llama3 kind, 0: none */
    uint32_t experts, used_experts; /* of ffn each; 0: none */
    uint32_t delta_heads;           /* of head_dimension, in all but every fourth layer; 0: all attend */
};

enum { DELTA_PERIOD = 4, DELTA_TAPS = 4 };

static const struct shape shapes[] = {
    {"llama-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true, 500000, 32, 0, 0, 0},
    {"llama-3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, true, 500000, 32, 0, 0, 0},
    {"llama-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, false, 500000, 8, 0, 0, 0},
    {"kv-1b", 16, 512, 8, 8, 64, 512, 512, 1048576, true, 500000,
     0, 0, 0, 0}, /* the KV of llama-1b, and little else */
    {"kv-8b", 32, 1024, 8, 8, 128, 512, 512, 1048576, true, 500000, 0, 0, 0, 0}, /* the same of llama-8b */
    {"moe-2b", 8, 2048, 32, 4, 64, 512, 32000, 32768, true, 1000000, 0, 64, 8, 0},
    {"moe-5b", 24, 2048, 32, 4, 64, 512, 32000, 32768, true, 1000000, 0, 64, 8, 0}, /* three times as deep */
    {"mha-200m", 12, 1024, 16, 16, 64, 2816, 4096, 8192, true, 10000, 0, 0, 0, 0}, /* a KV head for each query head */
    {"mha-7b-8", 8, 4096, 32, 32, 128, 11008, 32000, 131072, true, 10000, 0, 0, 0, 0}, /* OPT-6.7B's, 8 layers of 32 */
    {"mha-tiny", 2, 256, 4, 4, 64, 512, 512, 4096, true, 10000, 0, 0, 0, 0},
    {"hybrid-100m", 12, 768, 8, 2, 128, 2048, 8192, 262144, true, 10000000, 0, 0, 0, 8},
    {"tiny", 2, 256, 4, 2, 64, 512, 512, 4096, true, 10000, 0, 0, 0, 0},
};

struct mix {
    const char *name;
    enum tensor_type base, better, output; /* better: of every second attn_v and ffn_down */
    uint32_t file_type;                    /* llama.cpp's number for the whole file */
};

static const struct mix mixes[] = {
    {"F32", TENSOR_F32, TENSOR_F32, TENSOR_F32, 0},
    {"F16", TENSOR_F16, TENSOR_F16, TENSOR_F16, 1},
    {"BF16", TENSOR_BF16, TENSOR_BF16, TENSOR_BF16, 32},
    {"Q8_0", TENSOR_Q8_0, TENSOR_Q8_0, TENSOR_Q8_0, 7},
    {"Q4_0", TENSOR_Q4_0, TENSOR_Q4_0, TENSOR_Q6_K, 2},
    {"Q4_K_M", TENSOR_Q4_K, TENSOR_Q6_K, TENSOR_Q6_K, 15},
    {"Q6_K", TENSOR_Q6_K, TENSOR_Q6_K, TENSOR_Q6_K, 18},
};

struct maker {
    const struct shape *shape;
    const struct mix *mix;
    uint64_t seed, tensor_number;
    struct gguf_writer *gguf;
    struct pool *threads;
    uint8_t *blocks[TYPE_SLOTS]; /* [POOL_BLOCKS] quantised blocks of 256, by type; NULL until needed */
    uint8_t *piece;              /* [PIECE_BYTES] rows on their way to the file */
    bool writing;                /* second round: the first one declares */
    struct error error;
};

/* 256 weights take this many bytes. */
static size_t block_bytes(enum tensor_type type) {
    uint64_t bytes = 0;
    return tensor_row_bytes(type, BLOCK, &bytes) ? bytes : 0;
}

struct fill {
    struct maker *maker;
    enum tensor_type type;
    size_t row_first, row_count, row_blocks;
};

static void quantise_pool(void *context, const struct pool_worker *worker) {
    const struct fill *fill = context;
    struct range range = pool_range(worker, POOL_BLOCKS, 1);
    size_t bytes = block_bytes(fill->type);
    float values[BLOCK];
    for (size_t i = range.begin; i < range.end; i++) {
        struct random random; /* seeded by place, so that threads do not matter */
        random_init(&random, fill->maker->seed * 1000003 + i);
        for (size_t j = 0; j < BLOCK; j++) values[j] = 0.02F * (float)random_normal(&random);
        uint8_t *target = fill->maker->blocks[fill->type] + i * bytes;
        if (fill->type == TENSOR_F32)
            memcpy(target, values, sizeof values);
        else
            row_quantizer_of(fill->type)(values, target, BLOCK);
    }
}

static void draw_rows(void *context, const struct pool_worker *worker) {
    const struct fill *fill = context;
    struct range range = pool_range(worker, fill->row_count, 1);
    size_t bytes = block_bytes(fill->type);
    uint8_t *target = fill->maker->piece + range.begin * fill->row_blocks * bytes;
    for (size_t row = range.begin; row < range.end; row++) {
        struct random random;
        random_init(&random,
                    (fill->maker->seed + fill->maker->tensor_number * 7919) << 32 ^ (fill->row_first + row));
        for (size_t i = 0; i < fill->row_blocks; i++, target += bytes)
            memcpy(target, fill->maker->blocks[fill->type] + random_below(&random, POOL_BLOCKS) * bytes,
                   bytes);
    }
}

static enum status write_matrix(struct maker *maker, enum tensor_type type, size_t rows, size_t columns) {
    struct fill fill = {.maker = maker, .type = type, .row_blocks = columns / BLOCK};
    size_t row_bytes = fill.row_blocks * block_bytes(type);
    if (maker->blocks[type] == NULL) {
        maker->blocks[type] = malloc(POOL_BLOCKS * block_bytes(type));
        if (maker->blocks[type] == NULL) return error_set(&maker->error, STATUS_MEMORY, "no memory");
        pool_run(maker->threads, quantise_pool, &fill);
    }
    for (fill.row_first = 0; fill.row_first < rows; fill.row_first += fill.row_count) {
        fill.row_count = PIECE_BYTES / row_bytes;
        if (fill.row_count > rows - fill.row_first) fill.row_count = rows - fill.row_first;
        pool_run(maker->threads, draw_rows, &fill);
        TRY(gguf_writer_write(maker->gguf, maker->piece, fill.row_count * row_bytes, &maker->error));
    }
    return STATUS_OK;
}

/* Declares in the first round, writes in the second. */
static enum status matrix(struct maker *maker, const char *name, enum tensor_type type, size_t rows,
                          size_t columns) {
    maker->tensor_number++;
    if (maker->writing) return write_matrix(maker, type, rows, columns);
    return gguf_writer_declare_tensor(maker->gguf, name, type, 2, (uint64_t[2]){columns, rows},
                                      &maker->error);
}

/* One for each expert. */
static enum status matrices(struct maker *maker, const char *name, enum tensor_type type, size_t rows,
                            size_t columns) {
    const size_t experts = maker->shape->experts;
    maker->tensor_number++;
    if (maker->writing) return write_matrix(maker, type, experts * rows, columns);
    return gguf_writer_declare_tensor(maker->gguf, name, type, 3, (uint64_t[3]){columns, rows, experts},
                                      &maker->error);
}

static enum status vector(struct maker *maker, const char *name, const float *values, size_t count) {
    if (!maker->writing)
        return gguf_writer_declare_tensor(maker->gguf, name, TENSOR_F32, 1, (uint64_t[1]){count},
                                          &maker->error);
    return gguf_writer_write(maker->gguf, values, count * sizeof *values, &maker->error);
}

static enum status constants(struct maker *maker, const char *name, float value, size_t count) {
    float *values = (float *)(void *)maker->piece;
    for (size_t i = 0; i < count; i++) values[i] = value;
    return vector(maker, name, values, count);
}

static enum status ones(struct maker *maker, const char *name, size_t count) {
    return constants(maker, name, 1, count);
}

/* The first and last eighth of the layers and every third between get the better type. */
static enum tensor_type type_in_layer(const struct maker *maker, uint32_t layer) {
    uint32_t count = maker->shape->layers, eighth = count / 8;
    bool better = layer < eighth || layer >= 7 * count / 8 || (layer - eighth) % 3 == 2;
    return better ? maker->mix->better : maker->mix->base;
}

static bool is_delta(const struct shape *shape, uint32_t layer) {
    return shape->delta_heads > 0 && layer % DELTA_PERIOD != DELTA_PERIOD - 1;
}

/* A delta net has as many key heads as value heads. */
static enum status delta_tensors(struct maker *maker, uint32_t layer) {
    const struct shape *s = maker->shape;
    const enum tensor_type base = maker->mix->base;
    const size_t inner = s->delta_heads * s->head_dimension;
    char name[64];
#define NAME(suffix) (snprintf(name, sizeof name, "blk.%u." suffix, layer), name)
    TRY(matrix(maker, NAME("attn_qkv.weight"), base, 3 * inner, s->hidden));
    TRY(matrix(maker, NAME("attn_gate.weight"), base, inner, s->hidden));
    TRY(matrix(maker, NAME("ssm_alpha.weight"), base, s->delta_heads, s->hidden));
    TRY(matrix(maker, NAME("ssm_beta.weight"), base, s->delta_heads, s->hidden));
    TRY(constants(maker, NAME("ssm_dt.bias"), -4, s->delta_heads));
    TRY(constants(maker, NAME("ssm_a"), -1, s->delta_heads));
    TRY(ones(maker, NAME("ssm_norm.weight"), s->head_dimension));
    TRY(matrix(maker, NAME("ssm_out.weight"), base, s->hidden, inner));
    if (!maker->writing)
        return gguf_writer_declare_tensor(maker->gguf, NAME("ssm_conv1d.weight"), TENSOR_F32, 2,
                                          (uint64_t[2]){DELTA_TAPS, 3 * inner}, &maker->error);
    return ones(maker, NAME("ssm_conv1d.weight"), DELTA_TAPS * 3 * inner);
#undef NAME
}

static enum status layer_tensors(struct maker *maker, uint32_t layer) {
    const struct shape *s = maker->shape;
    enum tensor_type base = maker->mix->base, better = type_in_layer(maker, layer);
    size_t q_size = s->heads * s->head_dimension, kv_size = s->kv_heads * s->head_dimension;
    char name[64];
#define NAME(suffix) (snprintf(name, sizeof name, "blk.%u." suffix ".weight", layer), name)
    TRY(ones(maker, NAME("attn_norm"), s->hidden));
    if (is_delta(s, layer)) {
        TRY(delta_tensors(maker, layer));
    } else {
        TRY(matrix(maker, NAME("attn_q"), base, s->delta_heads > 0 ? 2 * q_size : q_size, s->hidden)); /* and gates */
        TRY(matrix(maker, NAME("attn_k"), base, kv_size, s->hidden));
        TRY(matrix(maker, NAME("attn_v"), better, kv_size, s->hidden));
        TRY(matrix(maker, NAME("attn_output"), base, s->hidden, q_size));
    }
    if (s->delta_heads > 0)
        TRY(ones(maker, NAME("post_attention_norm"), s->hidden));
    else
        TRY(ones(maker, NAME("ffn_norm"), s->hidden));
    if (!is_delta(s, layer) && (s->experts > 0 || s->delta_heads > 0)) {
        TRY(ones(maker, NAME("attn_q_norm"), s->head_dimension));
        TRY(ones(maker, NAME("attn_k_norm"), s->head_dimension));
    }
    if (s->experts > 0) {
        TRY(matrix(maker, NAME("ffn_gate_inp"), TENSOR_F32, s->experts, s->hidden));
        TRY(matrices(maker, NAME("ffn_gate_exps"), base, s->ffn, s->hidden));
        TRY(matrices(maker, NAME("ffn_up_exps"), base, s->ffn, s->hidden));
        return matrices(maker, NAME("ffn_down_exps"), better, s->hidden, s->ffn);
    }
    TRY(matrix(maker, NAME("ffn_gate"), base, s->ffn, s->hidden));
    TRY(matrix(maker, NAME("ffn_up"), base, s->ffn, s->hidden));
    return matrix(maker, NAME("ffn_down"), better, s->hidden, s->ffn);
#undef NAME
}

static enum status tensors(struct maker *maker, bool writing) {
    const struct shape *s = maker->shape;
    maker->writing = writing;
    maker->tensor_number = 0;
    TRY(matrix(maker, "token_embd.weight", s->tied ? maker->mix->output : maker->mix->base, s->vocabulary,
               s->hidden));
    if (s->rope_factor > 0) {
        double divisors[ROPE_PAIRS_MAX];
        float values[ROPE_PAIRS_MAX];
        rope_llama3_divisors(s->rope_base, s->head_dimension, s->rope_factor, 1, 4, 8192, divisors);
        for (size_t i = 0; i < s->head_dimension / 2; i++) values[i] = (float)divisors[i];
        TRY(vector(maker, "rope_freqs.weight", values, s->head_dimension / 2));
    }
    for (uint32_t layer = 0; layer < s->layers; layer++) TRY(layer_tensors(maker, layer));
    TRY(ones(maker, "output_norm.weight", s->hidden));
    if (s->tied) return STATUS_OK;
    return matrix(maker, "output.weight", maker->mix->output, s->vocabulary, s->hidden);
}

/* How byte-level BPE writes a byte: itself where it is printable Latin-1, else a letter from U+0100 on. */
static size_t byte_text(unsigned byte, char *text) {
    unsigned code = byte, shifted = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (!printable) code = b == byte ? 256 + shifted : code, shifted++;
    }
    if (code < 128) {
        text[0] = (char)code;
        return 1;
    }
    text[0] = (char)(0xc0 | code >> 6), text[1] = (char)(0x80 | (code & 63));
    return 2;
}

static enum status vocabulary(struct maker *maker) {
    enum { TEXT_BYTES = 16 };
    size_t count = maker->shape->vocabulary;
    struct gguf_string *tokens = calloc(count, sizeof *tokens);
    int32_t *types = calloc(count, sizeof *types);
    char *texts = calloc(count, TEXT_BYTES);
    enum status status = STATUS_MEMORY;
    struct error *error = &maker->error;
    if (tokens == NULL || types == NULL || texts == NULL) goto done;
    for (size_t i = 0; i < count; i++) {
        char *text = texts + i * TEXT_BYTES;
        types[i] = i + 2 >= count ? 3 : 1; /* control, normal */
        if (i < 256)
            tokens[i].length = byte_text((unsigned)i, text);
        else if (i == 256)
            tokens[i].length = (uint64_t)snprintf(text, TEXT_BYTES, "th");
        else if (i + 2 >= count)
            tokens[i].length = (uint64_t)snprintf(text, TEXT_BYTES, i + 1 == count ? "<|end|>" : "<|begin|>");
        else
            tokens[i].length = (uint64_t)snprintf(text, TEXT_BYTES, "fill%zu", i);
        tokens[i].text = text;
    }
    static const struct gguf_string merge = {"t h", 3};
#define STEP(call) \
    if ((status = (call)) != STATUS_OK) goto done
    STEP(gguf_writer_add_string(maker->gguf, "tokenizer.ggml.model", "gpt2", 4, error));
    STEP(gguf_writer_add_string(maker->gguf, "tokenizer.ggml.pre", "llama-bpe", 9, error));
    STEP(gguf_writer_add_strings(maker->gguf, "tokenizer.ggml.tokens", tokens, count, error));
    STEP(gguf_writer_add_ints(maker->gguf, "tokenizer.ggml.token_type", types, count, error));
    STEP(gguf_writer_add_strings(maker->gguf, "tokenizer.ggml.merges", &merge, 1, error));
    STEP(gguf_writer_add_uint(maker->gguf, "tokenizer.ggml.bos_token_id", (uint32_t)count - 2, error));
    STEP(gguf_writer_add_uint(maker->gguf, "tokenizer.ggml.eos_token_id", (uint32_t)count - 1, error));
#undef STEP
done:
    free(tokens);
    free(types);
    free(texts);
    return status;
}

static enum status key_index(struct maker *maker) {
    const struct shape *s = maker->shape;
    struct gguf_writer *gguf = maker->gguf;
    struct error *error = &maker->error;
    char name[64];
    int length = snprintf(name, sizeof name, "random %s %s", s->name, maker->mix->name);
    const char *family = s->delta_heads > 0 ? "qwen35" : s->experts > 0 ? "qwen3moe" : "llama";
    TRY(gguf_writer_add_string(gguf, "general.architecture", family, strlen(family), error));
    TRY(gguf_writer_add_string(gguf, "general.name", name, (uint64_t)length, error));
    TRY(gguf_writer_add_uint(gguf, "general.file_type", maker->mix->file_type, error));
    TRY(gguf_writer_add_uint(gguf, "general.quantization_version", 2, error));
#define KEY(suffix) (snprintf(name, sizeof name, "%s." suffix, family), name)
    TRY(gguf_writer_add_uint(gguf, KEY("block_count"), s->layers, error));
    TRY(gguf_writer_add_uint(gguf, KEY("context_length"), s->context, error));
    TRY(gguf_writer_add_uint(gguf, KEY("embedding_length"), s->hidden, error));
    TRY(gguf_writer_add_uint(gguf, KEY("feed_forward_length"), s->ffn, error));
    TRY(gguf_writer_add_uint(gguf, KEY("attention.head_count"), s->heads, error));
    TRY(gguf_writer_add_uint(gguf, KEY("attention.head_count_kv"), s->kv_heads, error));
    TRY(gguf_writer_add_uint(gguf, KEY("attention.key_length"), s->head_dimension, error));
    TRY(gguf_writer_add_uint(gguf, KEY("attention.value_length"), s->head_dimension, error));
    TRY(gguf_writer_add_float(gguf, KEY("attention.layer_norm_rms_epsilon"), 1e-5F, error));
    TRY(gguf_writer_add_float(gguf, KEY("rope.freq_base"), s->rope_base, error));
    const uint32_t rotated = s->delta_heads > 0 ? s->head_dimension / 4 : s->head_dimension;
    TRY(gguf_writer_add_uint(gguf, KEY("rope.dimension_count"), rotated, error));
    if (s->delta_heads > 0) {
        static const int32_t sections[] = {6, 5, 5, 0};
        TRY(gguf_writer_add_ints(gguf, KEY("rope.dimension_sections"), sections, 4, error));
        TRY(gguf_writer_add_uint(gguf, KEY("full_attention_interval"), DELTA_PERIOD, error));
        TRY(gguf_writer_add_uint(gguf, KEY("ssm.conv_kernel"), DELTA_TAPS, error));
        TRY(gguf_writer_add_uint(gguf, KEY("ssm.group_count"), s->delta_heads, error));
        TRY(gguf_writer_add_uint(gguf, KEY("ssm.time_step_rank"), s->delta_heads, error));
        TRY(gguf_writer_add_uint(gguf, KEY("ssm.state_size"), s->head_dimension, error));
        TRY(gguf_writer_add_uint(gguf, KEY("ssm.inner_size"), s->delta_heads * s->head_dimension, error));
    }
    TRY(gguf_writer_add_uint(gguf, KEY("vocab_size"), s->vocabulary, error));
    if (s->experts > 0) {
        TRY(gguf_writer_add_uint(gguf, KEY("expert_count"), s->experts, error));
        TRY(gguf_writer_add_uint(gguf, KEY("expert_used_count"), s->used_experts, error));
        TRY(gguf_writer_add_uint(gguf, KEY("expert_feed_forward_length"), s->ffn, error));
    }
#undef KEY
    return vocabulary(maker);
}

static enum status make(struct maker *maker, const char *path) {
    maker->piece = malloc(PIECE_BYTES);
    if (maker->piece == NULL) return error_set(&maker->error, STATUS_MEMORY, "no memory");
    TRY(pool_create(&maker->threads, 0, &maker->error));
    TRY(gguf_writer_create(&maker->gguf, path, &maker->error));
    TRY(key_index(maker));
    TRY(tensors(maker, false));
    TRY(gguf_writer_begin_data(maker->gguf, &maker->error));
    TRY(tensors(maker, true));
    return gguf_writer_commit(maker->gguf, &maker->error);
}

static int usage(void) {
    fprintf(stderr, "usage: make_model SHAPE TYPE OUT.gguf [SEED]\nshapes:");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) fprintf(stderr, " %s", shapes[i].name);
    fprintf(stderr, "\ntypes:");
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) fprintf(stderr, " %s", mixes[i].name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argument_count, char **arguments) {
    struct maker maker = {.seed = 1};
    if (argument_count < 4 || argument_count > 5) return usage();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, arguments[1]) == 0) maker.shape = &shapes[i];
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++)
        if (strcmp(mixes[i].name, arguments[2]) == 0) maker.mix = &mixes[i];
    if (maker.shape == NULL || maker.mix == NULL) return usage();
    if (argument_count == 5) maker.seed = strtoull(arguments[4], NULL, 10);
    double start = clock_seconds();
    enum status status = make(&maker, arguments[3]);
    if (status == STATUS_OK)
        fprintf(stderr, "%s: %s %s in %.1f s\n", arguments[3], maker.shape->name, maker.mix->name,
                clock_seconds() - start);
    else
        fprintf(stderr, "make_model: %s\n", maker.error.message);
    gguf_writer_destroy(maker.gguf);
    pool_destroy(maker.threads);
    for (size_t i = 0; i < TYPE_SLOTS; i++) free(maker.blocks[i]);
    free(maker.piece);
    return status == STATUS_OK ? 0 : 1;
}
