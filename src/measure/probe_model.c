#include "measure/probe_model.h"

#include <stdio.h>

#include "base/random.h"
#include "format/gguf.h"
#include "tensor/block.h"
#include "tensor/half.h"

struct probe {
    struct gguf_writer *gguf;
    struct random random;
    uint32_t layers, group;
    bool is_writing; /* second round: the first one declares */
    struct error *error;
};

static enum status matrix(struct probe *probe, const char *name, size_t rows, size_t columns) {
    struct block_q8_0 row[PROBE_HIDDEN * 64 / BLOCK_32];
    if (!probe->is_writing)
        return gguf_writer_declare_tensor(probe->gguf, name, TENSOR_Q8_0, 2, (uint64_t[2]){columns, rows},
                                          probe->error);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < columns; i++) {
            row[i / BLOCK_32].d = float_to_half(0.05F / 127); /* values of -0.05 to 0.05 */
            row[i / BLOCK_32].qs[i % BLOCK_32] = (int8_t)(random_below(&probe->random, 255) - 127);
        }
        TRY(gguf_writer_write(probe->gguf, row, columns / BLOCK_32 * sizeof *row, probe->error));
    }
    return STATUS_OK;
}

static enum status ones(struct probe *probe, const char *name) {
    float values[PROBE_HIDDEN];
    if (!probe->is_writing)
        return gguf_writer_declare_tensor(probe->gguf, name, TENSOR_F32, 1, (uint64_t[1]){PROBE_HIDDEN}, probe->error);
    for (size_t i = 0; i < PROBE_HIDDEN; i++) values[i] = 1;
    return gguf_writer_write(probe->gguf, values, sizeof values, probe->error);
}

static enum status layer_tensors(struct probe *probe, uint32_t layer) {
    const size_t kv_size = PROBE_KV_HEADS * PROBE_DIMENSION, q_size = kv_size * probe->group;
    const struct {
        const char *name;
        size_t rows, columns;
    } matrices[] = {{"attn_q", q_size, PROBE_HIDDEN},         {"attn_k", kv_size, PROBE_HIDDEN},
                    {"attn_v", kv_size, PROBE_HIDDEN},        {"attn_output", PROBE_HIDDEN, q_size},
                    {"ffn_gate", PROBE_HIDDEN, PROBE_HIDDEN}, {"ffn_up", PROBE_HIDDEN, PROBE_HIDDEN},
                    {"ffn_down", PROBE_HIDDEN, PROBE_HIDDEN}};
    char name[48];
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", layer, matrices[i].name);
        TRY(matrix(probe, name, matrices[i].rows, matrices[i].columns));
    }
    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", layer);
    TRY(ones(probe, name));
    snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", layer);
    return ones(probe, name);
}

static enum status tensors(struct probe *probe, bool is_writing) {
    probe->is_writing = is_writing;
    random_init(&probe->random, 1);
    TRY(matrix(probe, "token_embd.weight", PROBE_VOCABULARY, PROBE_HIDDEN));
    for (uint32_t layer = 0; layer < probe->layers; layer++) TRY(layer_tensors(probe, layer));
    return ones(probe, "output_norm.weight");
}

static enum status configuration(struct probe *probe) {
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"llama.block_count", probe->layers},
                   {"llama.context_length", PROBE_CONTEXT},
                   {"llama.embedding_length", PROBE_HIDDEN},
                   {"llama.feed_forward_length", PROBE_HIDDEN},
                   {"llama.attention.head_count", PROBE_KV_HEADS * probe->group},
                   {"llama.attention.head_count_kv", PROBE_KV_HEADS},
                   {"llama.attention.key_length", PROBE_DIMENSION},
                   {"llama.attention.value_length", PROBE_DIMENSION},
                   {"llama.rope.dimension_count", PROBE_DIMENSION},
                   {"llama.vocab_size", PROBE_VOCABULARY}};
    TRY(gguf_writer_add_string(probe->gguf, "general.architecture", "llama", 5, probe->error));
    TRY(gguf_writer_add_string(probe->gguf, "general.name", "probe", 5, probe->error));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(gguf_writer_add_uint(probe->gguf, numbers[i].key, numbers[i].value, probe->error));
    TRY(gguf_writer_add_float(probe->gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5F, probe->error));
    return gguf_writer_add_float(probe->gguf, "llama.rope.freq_base", 10000, probe->error);
}

static enum status write_all(struct probe *probe) {
    TRY(configuration(probe));
    TRY(tensors(probe, false));
    TRY(gguf_writer_begin_data(probe->gguf, probe->error));
    TRY(tensors(probe, true));
    return gguf_writer_commit(probe->gguf, probe->error);
}

enum status probe_model_write(const char *path, uint32_t layers, uint32_t group, struct error *error) {
    struct probe probe = {.layers = layers, .group = group, .error = error};
    TRY(gguf_writer_create(&probe.gguf, path, error));
    enum status status = write_all(&probe);
    gguf_writer_destroy(probe.gguf);
    return status;
}
