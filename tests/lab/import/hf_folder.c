#include "lab/import/hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "tensor/half.h"

void hf_patch(json_t *object, const char *text) {
    json_error_t error;
    json_t *patch = json_loads(text, 0, &error);
    if (patch == NULL) fprintf(stderr, "%s: %s\n", text, error.text);
    ASSERT(patch != NULL);
    const char *key;
    json_t *value;
    json_object_foreach(patch, key, value) {
        if (json_is_null(value))
            json_object_del(object, key);
        else
            json_object_set(object, key, value);
    }
    json_decref(patch);
}

static void add_tokens(json_t *tokenizer, const char *tokens[][2], size_t count, int first_id) {
    json_t *list = json_object_get(tokenizer, "added_tokens");
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:b}", "id", first_id + (int)i, "content",
                                              tokens[i][0], "special", tokens[i][1][0] == 's'));
}

static json_t *new_tokenizer(const char *model_extra) {
    json_t *tokenizer =
        json_pack("{s:[], s:{s:s, s:{}, s:[]}}", "added_tokens", "model", "type", "BPE", "vocab", "merges");
    ASSERT(tokenizer != NULL);
    hf_patch(json_object_get(tokenizer, "model"), model_extra);
    return tokenizer;
}

static void put_words(json_t *tokenizer, const char *const *words, size_t count, int first_id) {
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    for (size_t i = 0; i < count; i++)
        json_object_set_new(vocab, words[i], json_integer(first_id + (json_int_t)i));
}

json_t *hf_byte_level_tokenizer(void) {
    static const char *words[] = {"t",
                                  "h",
                                  "e",
                                  "a",
                                  "\xc4\xa0",
                                  "th",
                                  "the",
                                  ("\xc4\xa0"
                                   "a")};
    static const char *added[][2] = {{"<|begin|>", "s"}, {"<|end|>", "s"}, {"[more]", "n"}};
    json_t *tokenizer = new_tokenizer("{\"byte_fallback\":false}");
    put_words(tokenizer, words, 8, 0);
    add_tokens(tokenizer, added, 3, 37);
    hf_patch(tokenizer,
             "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}}");
    hf_patch(json_object_get(tokenizer, "model"),
             "{\"merges\":[[\"t\",\"h\"],[\"th\",\"e\"],\"\\u0120 a\"]}");
    return tokenizer;
}

json_t *hf_sentencepiece_tokenizer(void) {
    static const char *words[] = {"<unk>", "<s>", "</s>", "<0x00>", "<0x0A>", "<0xFF>", "\xe2\x96\x81",
                                  "t",     "h",   "e",    "the",    "th",     "he",     "\xe2\x96\x81t"};
    static const char *special[][2] = {{"<unk>", "s"}, {"<s>", "s"}, {"</s>", "s"}};
    static const char *added[][2] = {{"[more]", "n"}};
    json_t *tokenizer = new_tokenizer("{\"byte_fallback\":true,\"unk_token\":\"<unk>\"}");
    put_words(tokenizer, words, 14, 0);
    add_tokens(tokenizer, special, 3, 0);
    add_tokens(tokenizer, added, 1, 39);
    hf_patch(tokenizer, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
                        "\"prepend\":\"\\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                        "\"content\":\"\\u2581\"}]}}");
    hf_patch(json_object_get(tokenizer, "model"),
             "{\"merges\":[\"t h\",\"h e\",\"th e\",\"t he\",\"\\u2581 t\"]}");
    return tokenizer;
}

void hf_folder_add(struct hf_folder *folder, const char *name, const char *target, uint64_t rows,
                   uint64_t columns, char order) {
    ASSERT(folder->tensor_count < HF_TENSORS_MAX);
    struct hf_tensor *tensor = &folder->tensors[folder->tensor_count++];
    *tensor = (struct hf_tensor){.rows = rows, .columns = columns, .order = order};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    snprintf(tensor->target, sizeof tensor->target, "%s", target);
}

static void add_layer(struct hf_folder *folder, int layer, const char *prefix, const char *name,
                      const char *target, uint64_t rows, uint64_t columns, char order) {
    char from[96], to[64];
    snprintf(from, sizeof from, "%s%d.%s", prefix, layer, name);
    snprintf(to, sizeof to, "blk.%d.%s", layer, target);
    hf_folder_add(folder, from, to, rows, columns, order);
}

static void add_llama_tensors(struct hf_folder *folder) {
    enum { Q = HF_HEADS * HF_HEAD, KV = HF_KV_HEADS * HF_HEAD, H = HF_HIDDEN, F = HF_FFN };
    const char *l = "model.layers.";
    bool qwen2 = strcmp(folder->family, "qwen2") == 0, qwen3 = strcmp(folder->family, "qwen3") == 0;
    char q = qwen2 || qwen3 ? ' ' : 'q', k = q == 'q' ? 'k' : ' ';
    hf_folder_add(folder, "model.embed_tokens.weight", "token_embd.weight", HF_VOCABULARY, H, ' ');
    hf_folder_add(folder, "model.norm.weight", "output_norm.weight", H, 0, ' ');
    hf_folder_add(folder, "lm_head.weight", "output.weight", HF_VOCABULARY, H, ' ');
    for (int i = 0; i < HF_LAYERS; i++) {
        add_layer(folder, i, l, "self_attn.q_proj.weight", "attn_q.weight", Q, H, q);
        add_layer(folder, i, l, "self_attn.k_proj.weight", "attn_k.weight", KV, H, k);
        add_layer(folder, i, l, "self_attn.v_proj.weight", "attn_v.weight", KV, H, ' ');
        add_layer(folder, i, l, "self_attn.o_proj.weight", "attn_output.weight", H, Q, ' ');
        add_layer(folder, i, l, "mlp.gate_proj.weight", "ffn_gate.weight", F, H, ' ');
        add_layer(folder, i, l, "mlp.up_proj.weight", "ffn_up.weight", F, H, ' ');
        add_layer(folder, i, l, "mlp.down_proj.weight", "ffn_down.weight", H, F, ' ');
        add_layer(folder, i, l, "input_layernorm.weight", "attn_norm.weight", H, 0, ' ');
        add_layer(folder, i, l, "post_attention_layernorm.weight", "ffn_norm.weight", H, 0, ' ');
        if (qwen2) {
            add_layer(folder, i, l, "self_attn.q_proj.bias", "attn_q.bias", Q, 0, ' ');
            add_layer(folder, i, l, "self_attn.k_proj.bias", "attn_k.bias", KV, 0, ' ');
            add_layer(folder, i, l, "self_attn.v_proj.bias", "attn_v.bias", KV, 0, ' ');
        }
        if (qwen3) {
            add_layer(folder, i, l, "self_attn.q_norm.weight", "attn_q_norm.weight", HF_HEAD, 0, ' ');
            add_layer(folder, i, l, "self_attn.k_norm.weight", "attn_k_norm.weight", HF_HEAD, 0, ' ');
        }
    }
}

static void add_opt_tensors(struct hf_folder *folder) {
    enum { H = HF_HIDDEN, F = HF_FFN };
    const char *l = "model.decoder.layers.";
    hf_folder_add(folder, "model.decoder.embed_tokens.weight", "token_embd.weight", HF_VOCABULARY, H, ' ');
    hf_folder_add(folder, "model.decoder.embed_positions.weight", "position_embd.weight", HF_CONTEXT + 2, H,
                  ' ');
    hf_folder_add(folder, "model.decoder.final_layer_norm.weight", "output_norm.weight", H, 0, ' ');
    hf_folder_add(folder, "model.decoder.final_layer_norm.bias", "output_norm.bias", H, 0, ' ');
    for (int i = 0; i < HF_LAYERS; i++) {
        add_layer(folder, i, l, "self_attn.q_proj.weight", "attn_q.weight", H, H, ' ');
        add_layer(folder, i, l, "self_attn.q_proj.bias", "attn_q.bias", H, 0, ' ');
        add_layer(folder, i, l, "self_attn.k_proj.weight", "attn_k.weight", H, H, ' ');
        add_layer(folder, i, l, "self_attn.k_proj.bias", "attn_k.bias", H, 0, ' ');
        add_layer(folder, i, l, "self_attn.v_proj.weight", "attn_v.weight", H, H, ' ');
        add_layer(folder, i, l, "self_attn.v_proj.bias", "attn_v.bias", H, 0, ' ');
        add_layer(folder, i, l, "self_attn.out_proj.weight", "attn_output.weight", H, H, ' ');
        add_layer(folder, i, l, "self_attn.out_proj.bias", "attn_output.bias", H, 0, ' ');
        add_layer(folder, i, l, "self_attn_layer_norm.weight", "attn_norm.weight", H, 0, ' ');
        add_layer(folder, i, l, "self_attn_layer_norm.bias", "attn_norm.bias", H, 0, ' ');
        add_layer(folder, i, l, "final_layer_norm.weight", "ffn_norm.weight", H, 0, ' ');
        add_layer(folder, i, l, "final_layer_norm.bias", "ffn_norm.bias", H, 0, ' ');
        add_layer(folder, i, l, "fc1.weight", "ffn_up.weight", F, H, ' ');
        add_layer(folder, i, l, "fc1.bias", "ffn_up.bias", F, 0, ' ');
        add_layer(folder, i, l, "fc2.weight", "ffn_down.weight", H, F, ' ');
        add_layer(folder, i, l, "fc2.bias", "ffn_down.bias", H, 0, ' ');
    }
}

void hf_folder_init(struct hf_folder *folder, const char *family) {
    *folder = (struct hf_folder){.family = family, .dtype = "F32"};
    bool opt = strcmp(family, "opt") == 0;
    const char *class_name = opt                              ? "OPTForCausalLM"
                             : strcmp(family, "mistral") == 0 ? "MistralForCausalLM"
                             : strcmp(family, "qwen2") == 0   ? "Qwen2ForCausalLM"
                             : strcmp(family, "qwen3") == 0   ? "Qwen3ForCausalLM"
                                                              : "LlamaForCausalLM";
    folder->config = json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i}", "architectures", class_name, "hidden_size",
                               HF_HIDDEN, "num_hidden_layers", HF_LAYERS, "num_attention_heads", HF_HEADS,
                               "vocab_size", HF_VOCABULARY, "max_position_embeddings", HF_CONTEXT);
    ASSERT(folder->config != NULL);
    if (opt)
        hf_patch(folder->config,
                 "{\"ffn_dim\":24,\"word_embed_proj_dim\":32,\"activation_function\":\"relu\","
                 "\"do_layer_norm_before\":true}");
    else
        hf_patch(folder->config,
                 "{\"intermediate_size\":24,\"num_key_value_heads\":2,\"rms_norm_eps\":1e-5,"
                 "\"rope_theta\":500000.0,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}");
    folder->tokenizer = hf_byte_level_tokenizer();
    if (opt)
        add_opt_tensors(folder);
    else
        add_llama_tensors(folder);
}

struct hf_tensor *hf_folder_tensor(struct hf_folder *folder, const char *name) {
    for (size_t i = 0; i < folder->tensor_count; i++)
        if (strcmp(folder->tensors[i].name, name) == 0) return &folder->tensors[i];
    ASSERT(false && "the folder has this tensor");
    return NULL;
}

static FILE *open_in(const struct hf_folder *folder, const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    FILE *file = fopen(path, "wb");
    ASSERT(file != NULL);
    return file;
}

static void write_json(const struct hf_folder *folder, const char *name, const json_t *value) {
    if (value == NULL) return;
    FILE *file = open_in(folder, name);
    ASSERT(json_dumpf(value, file, JSON_ENCODE_ANY) == 0 && fclose(file) == 0);
}

static size_t element_bytes(const struct hf_folder *folder) {
    return strcmp(folder->dtype, "F32") == 0 ? 4 : 2;
}

static void write_element(const struct hf_folder *folder, float value, FILE *file) {
    uint16_t half = strcmp(folder->dtype, "BF16") == 0 ? float_to_bfloat(value) : float_to_half(value);
    const void *data = element_bytes(folder) == 4 ? (const void *)&value : &half;
    ASSERT(fwrite(data, element_bytes(folder), 1, file) == 1);
}

/* Tensors [begin, end) as one safetensors file. */
static void write_weights(const struct hf_folder *folder, const char *name, size_t begin, size_t end) {
    json_t *header = json_object();
    uint64_t offset = 0;
    for (size_t i = begin; i < end; i++) {
        const struct hf_tensor *tensor = &folder->tensors[i];
        uint64_t count = tensor->rows * (tensor->columns == 0 ? 1 : tensor->columns);
        json_t *shape = json_pack("[I]", (json_int_t)tensor->rows);
        if (tensor->columns > 0) json_array_append_new(shape, json_integer((json_int_t)tensor->columns));
        uint64_t next = offset + count * element_bytes(folder);
        json_object_set_new(header, tensor->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", folder->dtype, "shape", shape,
                                      "data_offsets", (json_int_t)offset, (json_int_t)next));
        offset = next;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    ASSERT(text != NULL);
    uint64_t length = strlen(text);
    FILE *file = open_in(folder, name);
    ASSERT(fwrite(&length, 8, 1, file) == 1 && fwrite(text, 1, length, file) == length);
    for (size_t i = begin; i < end; i++) {
        const struct hf_tensor *tensor = &folder->tensors[i];
        uint64_t count = tensor->rows * (tensor->columns == 0 ? 1 : tensor->columns);
        for (uint64_t j = 0; j < count; j++) write_element(folder, (float)(i * 4096 + j), file);
    }
    ASSERT(fclose(file) == 0);
    free(text);
    json_decref(header);
}

static void write_shards(const struct hf_folder *folder) {
    json_t *map = json_object();
    size_t half = folder->tensor_count / 2;
    for (size_t i = 0; i < folder->tensor_count; i++)
        json_object_set_new(map, folder->tensors[i].name,
                            json_string(i < half ? "a.safetensors" : "b.safetensors"));
    json_t *index = json_pack("{s:o}", "weight_map", map);
    write_json(folder, "model.safetensors.index.json", index);
    json_decref(index);
    write_weights(folder, "a.safetensors", 0, half);
    write_weights(folder, "b.safetensors", half, folder->tensor_count);
}

void hf_folder_write(struct hf_folder *folder) {
    snprintf(folder->path, sizeof folder->path, "/tmp/loam-hf-XXXXXX");
    ASSERT(mkdtemp(folder->path) != NULL);
    write_json(folder, "config.json", folder->config);
    write_json(folder, "tokenizer.json", folder->tokenizer);
    write_json(folder, "tokenizer_config.json", folder->tokenizer_config);
    write_json(folder, "generation_config.json", folder->generation);
    if (folder->chat_template != NULL) {
        FILE *file = open_in(folder, "chat_template.jinja");
        ASSERT(fputs(folder->chat_template, file) >= 0 && fclose(file) == 0);
    }
    if (folder->sharded)
        write_shards(folder);
    else
        write_weights(folder, "model.safetensors", 0, folder->tensor_count);
}

void hf_folder_remove(struct hf_folder *folder) {
    static const char *const names[] = {
        "config.json",         "tokenizer.json",    "tokenizer_config.json",        "generation_config.json",
        "chat_template.jinja", "model.safetensors", "model.safetensors.index.json", "a.safetensors",
        "b.safetensors",       "out.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s", folder->path, names[i]);
        unlink(path);
    }
    if (folder->path[0] != '\0') ASSERT(rmdir(folder->path) == 0);
    json_decref(folder->config);
    json_decref(folder->tokenizer);
    json_decref(folder->tokenizer_config);
    json_decref(folder->generation);
    *folder = (struct hf_folder){0};
}
