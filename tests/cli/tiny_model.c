#include "cli/tiny_model.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "format/gguf.h"

static struct error error;

#define OK(expression) assert_ok(expression, error)

static void write_vocabulary(struct gguf_writer *writer) {
    static char names[TINY_VOCABULARY][16];
    struct gguf_string tokens[TINY_VOCABULARY];
    float scores[TINY_VOCABULARY];
    int32_t types[TINY_VOCABULARY];
    for (int i = 0; i < TINY_VOCABULARY; i++) {
        static const char *const first[] = {"<unk>", "<s>", "</s>"};
        static const int32_t first_types[] = {2, 3, 3};
        int byte = i - TINY_BYTE_FIRST, word = byte - 256;
        scores[i] = (float)-i;
        types[i] = i < 3 ? first_types[i] : word < 0 ? 6 : 1;
        if (i < 3)
            snprintf(names[i], sizeof names[i], "%s", first[i]);
        else if (word < 0)
            snprintf(names[i], sizeof names[i], "<0x%02X>", (unsigned)byte);
        else if (word < 26)
            snprintf(names[i], sizeof names[i], "%c", 'a' + word);
        else if (word == 26)
            snprintf(names[i], sizeof names[i], "\xe2\x96\x81"); /* the blank of SentencePiece */
        else
            snprintf(names[i], sizeof names[i], "\xe2\x96\x81%c%c", 'a' + word % 26, 'a' + word / 2 % 26);
        tokens[i] = (struct gguf_string){names[i], strlen(names[i])};
    }
    OK(gguf_writer_add_string(writer, "tokenizer.ggml.model", "llama", 5, &error));
    OK(gguf_writer_add_strings(writer, "tokenizer.ggml.tokens", tokens, TINY_VOCABULARY, &error));
    OK(gguf_writer_add_floats(writer, "tokenizer.ggml.scores", scores, TINY_VOCABULARY, &error));
    OK(gguf_writer_add_ints(writer, "tokenizer.ggml.token_type", types, TINY_VOCABULARY, &error));
    OK(gguf_writer_add_uint(writer, "tokenizer.ggml.bos_token_id", 1, &error));
    OK(gguf_writer_add_uint(writer, "tokenizer.ggml.eos_token_id", 2, &error));
    OK(gguf_writer_add_uint(writer, "tokenizer.ggml.unknown_token_id", 0, &error));
}

static uint32_t layers_of(const struct tiny_model *model) {
    assert_true(model->layers <= TINY_LAYERS_MAX);
    return model->layers != 0 ? model->layers : TINY_LAYERS;
}

static uint32_t heads_of(const struct tiny_model *model) {
    assert_true(model->heads <= TINY_HEADS_MAX);
    return model->heads != 0 ? model->heads : TINY_HEADS;
}

static uint32_t kv_heads_of(const struct tiny_model *model) {
    return model->kv_heads != 0 ? model->kv_heads : TINY_KV_HEADS;
}

static uint32_t head_dimension_of(const struct tiny_model *model) {
    assert_true(model->head_dimension <= TINY_HEAD_DIMENSION_MAX);
    return model->head_dimension != 0 ? model->head_dimension : TINY_HEAD_DIMENSION;
}

static void write_keys(struct gguf_writer *writer, const struct tiny_model *model) {
    uint64_t context = model->context != 0 ? model->context : TINY_CONTEXT;
    OK(gguf_writer_add_string(writer, "general.architecture", "llama", 5, &error));
    OK(gguf_writer_add_string(writer, "general.name", "tiny", 4, &error));
    OK(gguf_writer_add_uint(writer, "llama.context_length", (uint32_t)context, &error));
    if (model->window != 0)
        OK(gguf_writer_add_uint(writer, "llama.attention.sliding_window", model->window, &error));
    OK(gguf_writer_add_uint(writer, "llama.embedding_length", TINY_HIDDEN, &error));
    OK(gguf_writer_add_uint(writer, "llama.block_count", layers_of(model), &error));
    OK(gguf_writer_add_uint(writer, "llama.feed_forward_length", TINY_FFN, &error));
    OK(gguf_writer_add_uint(writer, "llama.attention.head_count", heads_of(model), &error));
    OK(gguf_writer_add_uint(writer, "llama.attention.head_count_kv", kv_heads_of(model), &error));
    OK(gguf_writer_add_uint(writer, "llama.attention.key_length", head_dimension_of(model), &error));
    OK(gguf_writer_add_uint(writer, "llama.attention.value_length", head_dimension_of(model), &error));
    OK(gguf_writer_add_uint(writer, "llama.rope.dimension_count", head_dimension_of(model), &error));
    OK(gguf_writer_add_uint(writer, "llama.vocab_size", TINY_VOCABULARY, &error));
    OK(gguf_writer_add_float(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5F, &error));
    if (model->chat_template != NULL)
        OK(gguf_writer_add_string(writer, "tokenizer.chat_template", model->chat_template,
                                  strlen(model->chat_template), &error));
}

struct shape {
    char name[40];
    uint32_t dimension_count;
    uint64_t dimensions[2];
};

static size_t list_shapes(const struct tiny_model *model, struct shape *shapes) {
    const uint64_t layers = layers_of(model), head = head_dimension_of(model);
    const struct {
        const char *name;
        uint64_t columns, rows; /* rows 0: a vector */
    } layer[] = {
        {"attn_norm", TINY_HIDDEN, 0},
        {"attn_q", TINY_HIDDEN, heads_of(model) * head},
        {"attn_k", TINY_HIDDEN, kv_heads_of(model) * head},
        {"attn_v", TINY_HIDDEN, kv_heads_of(model) * head},
        {"attn_output", heads_of(model) * head, TINY_HIDDEN},
        {"ffn_norm", TINY_HIDDEN, 0},
        {"ffn_gate", TINY_HIDDEN, TINY_FFN},
        {"ffn_up", TINY_HIDDEN, TINY_FFN},
        {"ffn_down", TINY_FFN, TINY_HIDDEN},
    };
    size_t count = 0;
    shapes[count++] = (struct shape){"token_embd.weight", 2, {TINY_HIDDEN, TINY_VOCABULARY}};
    for (uint32_t l = 0; l < layers; l++)
        for (size_t i = 0; i < sizeof layer / sizeof layer[0]; i++) {
            struct shape *shape = &shapes[count++];
            snprintf(shape->name, sizeof shape->name, "blk.%u.%s.weight", l, layer[i].name);
            shape->dimension_count = layer[i].rows > 0 ? 2 : 1;
            shape->dimensions[0] = layer[i].columns;
            shape->dimensions[1] = layer[i].rows > 0 ? layer[i].rows : 1;
        }
    shapes[count++] = (struct shape){"output_norm.weight", 1, {TINY_HIDDEN, 1}};
    shapes[count++] = (struct shape){"output.weight", 2, {TINY_HIDDEN, TINY_VOCABULARY}};
    return count;
}

/* Every token's embedding shares a large first element; the end token's output row answers to it alone. */
static float weight_value(const struct tiny_model *model, const struct shape *shape, uint64_t index,
                          struct random *random) {
    float value = (float)random_normal(random);
    uint64_t column = index % shape->dimensions[0], row = index / shape->dimensions[0];
    if (shape->dimension_count == 1) return 1;
    if (model->never_ends && strcmp(shape->name, "output.weight") == 0 && row == 2) return 0;
    if (model->always_ends && strcmp(shape->name, "token_embd.weight") == 0 && column == 0) return 100;
    if (model->always_ends && strcmp(shape->name, "output.weight") == 0 && column == 0)
        return row == 2 ? 10 : -10;
    return value * (strcmp(shape->name, "token_embd.weight") == 0 ? 1.0F : 0.15F);
}

static void write_tensors(struct gguf_writer *writer, const struct tiny_model *model) {
    struct shape shapes[9 * TINY_LAYERS_MAX + 3];
    size_t count = list_shapes(model, shapes);
    for (size_t i = 0; i < count; i++)
        OK(gguf_writer_declare_tensor(writer, shapes[i].name, TENSOR_F32, shapes[i].dimension_count,
                                      shapes[i].dimensions, &error));
    OK(gguf_writer_begin_data(writer, &error));
    struct random random;
    random_init(&random, model->seed);
    for (size_t i = 0; i < count; i++)
        for (uint64_t row = 0; row < shapes[i].dimensions[1]; row++) {
            float values[TINY_HEADS_MAX * TINY_HEAD_DIMENSION_MAX];
            for (uint64_t c = 0; c < shapes[i].dimensions[0]; c++)
                values[c] = weight_value(model, &shapes[i], row * shapes[i].dimensions[0] + c, &random);
            OK(gguf_writer_write(writer, values, shapes[i].dimensions[0] * sizeof(float), &error));
        }
}

void tiny_model_write(const char *path, const struct tiny_model *model) {
    struct gguf_writer *writer;
    OK(gguf_writer_create(&writer, path, &error));
    write_keys(writer, model);
    if (!model->without_tokenizer) write_vocabulary(writer);
    if (model->vocabulary_only)
        OK(gguf_writer_begin_data(writer, &error));
    else
        write_tensors(writer, model);
    OK(gguf_writer_commit(writer, &error));
    gguf_writer_destroy(writer);
}
