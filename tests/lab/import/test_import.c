/* import: configuration and tensors.  The tensors' numbers show their origin, so each element of the GGUF file can be
 * traced. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "format/gguf.h"
#include "lab/import/hf_folder.h"
#include "lab/import/import.h"
#include "model/model.h"
#include "tensor/half.h"

static enum status import_folder(struct hf_folder *folder, const char *type_name,
                                 struct import_report *report, struct error *error) {
    char output[128];
    struct import_options options = {.type_name = type_name};
    hf_folder_write(folder);
    snprintf(output, sizeof output, "%s/out.gguf", folder->path);
    *error = (struct error){0};
    return model_import(folder->path, output, &options, report, error);
}

static void open_output(const struct hf_folder *folder, struct gguf *gguf) {
    char path[128];
    struct error error;
    snprintf(path, sizeof path, "%s/out.gguf", folder->path);
    assert_ok(gguf_open(gguf, path, &error), error);
}

static double element_of(const struct gguf_tensor *tensor, uint64_t index) {
    float value;
    uint16_t half;
    if (tensor->type == TENSOR_F32) {
        memcpy(&value, tensor->data + 4 * index, 4);
        return (double)value;
    }
    memcpy(&half, tensor->data + 2 * index, 2);
    return (double)(tensor->type == TENSOR_F16 ? half_to_float(half) : bfloat_to_float(half));
}

/* Row of the GGUF tensor that transformers' row must have become. */
static uint64_t target_row(const struct hf_tensor *tensor, uint64_t row) {
    if (tensor->order == ' ') return row;
    uint64_t head = row / HF_HEAD, within = row % HF_HEAD, half = within / (HF_HEAD / 2);
    return head * HF_HEAD + 2 * (within % (HF_HEAD / 2)) + half;
}

/* Every element of every tensor is where it belongs; tensors that the folder does not have are not in the file. */
static void check_tensors(const struct hf_folder *folder, const struct gguf *gguf, const char *matrix_type,
                          double relative_error) {
    assert_int_equal(gguf->tensor_count, folder->tensor_count);
    for (size_t i = 0; i < folder->tensor_count; i++) {
        const struct hf_tensor *tensor = &folder->tensors[i];
        const struct gguf_tensor *found = gguf_find_tensor(gguf, tensor->target);
        if (found == NULL) fail_msg("%s is missing", tensor->target);
        bool is_vector = tensor->columns == 0;
        uint64_t columns = is_vector ? 1 : tensor->columns;
        assert_int_equal(found->dimension_count, is_vector ? 1 : 2);
        assert_int_equal(found->dimensions[0], is_vector ? tensor->rows : columns);
        if (!is_vector) assert_int_equal(found->dimensions[1], tensor->rows);
        bool is_position = strcmp(tensor->target, "position_embd.weight") == 0;
        assert_string_equal(tensor_type_info(found->type)->name, is_vector     ? "F32"
                                                                 : is_position ? folder->dtype
                                                                               : matrix_type);
        for (uint64_t row = 0; row < tensor->rows; row++)
            for (uint64_t column = 0; column < columns; column++) {
                double expected = (double)(i * 4096 + row * columns + column);
                double value = element_of(found, target_row(tensor, row) * columns + column);
                if (!(fabs(value - expected) <= relative_error * expected))
                    fail_msg("%s row %d: found %g, expected %g", tensor->target, (int)row, value, expected);
            }
    }
}

static void families(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "mistral", "qwen2", "qwen3", "opt"};
    static const char *const architectures[] = {"llama", "llama", "qwen2", "qwen3", "opt"};
    static const enum model_family kinds[] = {FAMILY_LLAMA, FAMILY_LLAMA, FAMILY_QWEN2, FAMILY_QWEN3,
                                              FAMILY_OPT};
    for (size_t i = 0; i < 5; i++) {
        struct hf_folder folder;
        struct import_report report;
        struct error error;
        struct gguf gguf;
        struct model_config config;
        struct arena arena;
        hf_folder_init(&folder, names[i]);
        folder.sharded = i % 2 == 1;
        assert_ok(import_folder(&folder, NULL, &report, &error), error);
        assert_string_equal(report.architecture, architectures[i]);
        assert_int_equal(report.tensor_count, folder.tensor_count);
        open_output(&folder, &gguf);
        check_tensors(&folder, &gguf, "F32", 0);
        arena_init(&arena);
        assert_ok(model_config_read(&config, &gguf, &arena, &error), error);
        assert_int_equal(config.family, kinds[i]);
        assert_int_equal(config.layer_count, HF_LAYERS);
        assert_int_equal(config.hidden_size, HF_HIDDEN);
        assert_int_equal(config.head_count, HF_HEADS);
        assert_int_equal(config.kv_head_count, i == 4 ? HF_HEADS : HF_KV_HEADS);
        assert_int_equal(config.k_dimension, HF_HEAD);
        assert_int_equal(config.ffn_size, HF_FFN);
        assert_int_equal(config.vocabulary_size, HF_VOCABULARY);
        assert_int_equal(config.context_length, HF_CONTEXT);
        assert_true(config.norm_epsilon == 1e-5f);
        assert_int_equal(config.rope_scaling, ROPE_SCALING_NONE);
        if (i < 4) assert_true(config.rope_base == 500000.0f);
        arena_deinit(&arena);
        gguf_close(&gguf);
        hf_folder_remove(&folder);
    }
}

/* The model is really one that loam runs: model_load checks every shape again. */
static void imported_models_load(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "qwen2", "qwen3", "opt"};
    struct device *device;
    struct error error;
    const struct device_options options = {.thread_count = 1};
    assert_ok(device_cpu_create(&device, &options, &error), error);
    for (size_t i = 0; i < 4; i++) {
        struct hf_folder folder;
        struct model *model;
        char path[128];
        hf_folder_init(&folder, names[i]);
        assert_ok(import_folder(&folder, NULL, NULL, &error), error);
        snprintf(path, sizeof path, "%s/out.gguf", folder.path);
        assert_ok(model_load(&model, path, device, &error), error);
        model_destroy(model);
        hf_folder_remove(&folder);
    }
    device_destroy(device);
}

static void element_types(void **state) {
    (void)state;
    static const struct {
        const char *from, *option, *to;
        double relative_error;
        uint64_t file_type;
    } cases[] = {
        {"F32", NULL, "F32", 0, 0},         {"F16", NULL, "F16", 5e-4, 1},
        {"BF16", NULL, "BF16", 4e-3, 32},   {"BF16", "f32", "F32", 4e-3, 0},
        {"F32", "BF16", "BF16", 4e-3, 32},  {"F16", "F32", "F32", 5e-4, 0},
        {"BF16", "BF16", "BF16", 4e-3, 32},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    for (size_t n = 0; n < 2 * CASES; n++) { /* with rows of q and k reordered, and not */
        struct hf_folder folder;
        struct error error;
        struct gguf gguf;
        uint64_t file_type = 99;
        size_t i = n % CASES;
        hf_folder_init(&folder, n < CASES ? "llama" : "qwen2");
        folder.dtype = cases[i].from;
        /* The first layer is made the only one: its numbers, up to 15 * 4096, fit F16. */
        folder.tensor_count = n < CASES ? 12 : 15;
        hf_patch(folder.config, "{\"num_hidden_layers\":1}");
        assert_ok(import_folder(&folder, cases[i].option, NULL, &error), error);
        open_output(&folder, &gguf);
        check_tensors(&folder, &gguf, cases[i].to, cases[i].relative_error);
        assert_ok(gguf_get_uint(&gguf, "general.file_type", 99, &file_type, &error), error);
        assert_int_equal(file_type, cases[i].file_type);
        gguf_close(&gguf);
        hf_folder_remove(&folder);
    }
}

static void quantized_on_the_way(void **state) {
    (void)state;
    struct hf_folder folder;
    struct error error;
    struct gguf gguf;
    hf_folder_init(&folder, "llama");
    folder.tensor_count = 12;
    hf_patch(folder.config, "{\"num_hidden_layers\":1}");
    assert_ok(import_folder(&folder, "Q8_0", NULL, &error), error);
    open_output(&folder, &gguf);
    assert_int_equal(gguf_find_tensor(&gguf, "blk.0.attn_q.weight")->type, TENSOR_Q8_0);
    assert_int_equal(gguf_find_tensor(&gguf, "blk.0.ffn_down.weight")->type, TENSOR_F16); /* rows of 24 */
    assert_int_equal(gguf_find_tensor(&gguf, "blk.0.ffn_norm.weight")->type, TENSOR_F32);
    gguf_close(&gguf);
    hf_folder_remove(&folder);
    hf_folder_init(&folder, "opt");
    assert_int_equal(import_folder(&folder, "F16", NULL, &error),
                     STATUS_MODEL); /* numbers beyond its range */
    assert_non_null(strstr(error.message, "which F16 cannot hold"));
    hf_folder_remove(&folder);
    hf_folder_init(&folder, "opt");
    assert_int_equal(import_folder(&folder, "Q4_K", NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "use quantize for others"));
    hf_folder_remove(&folder);
}

static void tied_embeddings(void **state) {
    (void)state;
    struct hf_folder folder;
    struct error error;
    struct gguf gguf;
    hf_folder_init(&folder, "qwen2"); /* the folder still has lm_head.weight: a copy */
    hf_patch(folder.config, "{\"tie_word_embeddings\":true}");
    assert_ok(import_folder(&folder, NULL, NULL, &error), error);
    open_output(&folder, &gguf);
    assert_null(gguf_find_tensor(&gguf, "output.weight"));
    assert_non_null(gguf_find_tensor(&gguf, "token_embd.weight"));
    gguf_close(&gguf);
    hf_folder_remove(&folder);
}

static void biases_are_reordered_too(void **state) {
    (void)state;
    struct hf_folder folder;
    struct error error;
    struct gguf gguf;
    hf_folder_init(&folder, "llama");
    hf_folder_add(&folder, "model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias", HF_HEADS * HF_HEAD, 0,
                  'q');
    hf_folder_add(&folder, "model.layers.0.self_attn.k_proj.bias", "blk.0.attn_k.bias", HF_KV_HEADS * HF_HEAD,
                  0, 'k');
    assert_ok(import_folder(&folder, NULL, NULL, &error), error);
    open_output(&folder, &gguf);
    check_tensors(&folder, &gguf, "F32", 0);
    gguf_close(&gguf);
    hf_folder_remove(&folder);
}

/* ---- RoPE and sliding windows, through what model_config_read makes of the file ---- */

static void import_config_of(const char *family, const char *patch, struct model_config *config,
                             struct arena *arena, struct gguf *gguf, struct hf_folder *folder) {
    struct error error;
    hf_folder_init(folder, family);
    hf_patch(folder->config, patch);
    assert_ok(import_folder(folder, NULL, NULL, &error), error);
    open_output(folder, gguf);
    arena_init(arena);
    assert_ok(model_config_read(config, gguf, arena, &error), error);
}

static void done(struct arena *arena, struct gguf *gguf, struct hf_folder *folder) {
    arena_deinit(arena);
    gguf_close(gguf);
    hf_folder_remove(folder);
}

static void rope_kinds(void **state) {
    (void)state;
    struct model_config config;
    struct arena arena;
    struct gguf gguf;
    struct hf_folder folder;
    import_config_of("llama", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}}", &config, &arena, &gguf,
                     &folder);
    assert_int_equal(config.rope_scaling, ROPE_SCALING_LINEAR);
    assert_true(config.rope_factor == 8);
    done(&arena, &gguf, &folder);

    import_config_of(
        "qwen2",
        "{\"rope_theta\":null,\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1000000.0,"
        "\"factor\":4,\"original_max_position_embeddings\":16,\"beta_fast\":24}}",
        &config, &arena, &gguf, &folder);
    assert_int_equal(config.rope_scaling, ROPE_SCALING_YARN);
    assert_true(config.rope_base == 1000000.0f && config.rope_factor == 4 && config.yarn_beta_fast == 24);
    assert_int_equal(config.rope_original_context, 16);
    assert_int_equal(config.context_length, 64); /* what the scaling reaches */
    assert_true(fabs((double)config.rope_attention_factor - (0.1 * log(4) + 1)) < 1e-6);
    done(&arena, &gguf, &folder);

    import_config_of("llama",
                     "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":1.5,"
                     "\"original_max_position_embeddings\":16}}",
                     &config, &arena, &gguf, &folder);
    assert_true(fabs((double)config.rope_attention_factor - 1.5) < 1e-6);
    done(&arena, &gguf, &folder);

    import_config_of("llama",
                     "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                     "\"high_freq_factor\":4,\"original_max_position_embeddings\":128}}",
                     &config, &arena, &gguf, &folder);
    assert_int_equal(config.rope_scaling, ROPE_SCALING_LLAMA3);
    const struct gguf_tensor *divisors = gguf_find_tensor(&gguf, "rope_freqs.weight");
    assert_non_null(divisors);
    assert_int_equal(divisors->dimensions[0], HF_HEAD / 2);
    /* wavelengths 2 pi 500000^(j/4): 6.3 and 167 and over 4000 against bounds of 32 and 128 */
    const double expected[] = {1, 8, 8, 8};
    for (uint64_t i = 0; i < HF_HEAD / 2; i++)
        assert_true(fabs(element_of(divisors, i) - expected[i]) < 1e-6);
    done(&arena, &gguf, &folder);
}

static void sliding_windows(void **state) {
    (void)state;
    static const struct {
        const char *family, *patch;
        uint64_t windows[HF_LAYERS];
    } cases[] = {
        {"llama", "{\"sliding_window\":null}", {0, 0}},
        {"mistral", "{\"sliding_window\":16}", {16, 16}},
        {"qwen2", "{\"sliding_window\":16}", {0, 0}}, /* only with use_sliding_window */
        {"qwen2", "{\"sliding_window\":16,\"use_sliding_window\":true}", {0, 0}}, /* from layer 28 on */
        {"qwen2", "{\"sliding_window\":16,\"use_sliding_window\":true,\"max_window_layers\":1}", {0, 16}},
        {"qwen3",
         "{\"sliding_window\":16,\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\","
         "\"full_attention\"]}",
         {16, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config config;
        struct arena arena;
        struct gguf gguf;
        struct hf_folder folder;
        import_config_of(cases[i].family, cases[i].patch, &config, &arena, &gguf, &folder);
        for (size_t layer = 0; layer < HF_LAYERS; layer++)
            assert_int_equal(config.layers[layer].window, cases[i].windows[layer]);
        done(&arena, &gguf, &folder);
    }
}

/* ---- refusals ---- */

struct bad_config {
    const char *family, *patch, *found;
};

static const struct bad_config bad_configs[] = {
    {"llama", "{\"architectures\":[\"GemmaForCausalLM\"]}",
     "config.json: architectures: found 'GemmaForCausalLM'"},
    {"llama", "{\"architectures\":null}", "config.json: architectures: found 'nothing'"},
    {"llama", "{\"architectures\":null,\"model_type\":\"gpt2\"}", "config.json: architectures: found 'gpt2'"},
    {"llama", "{\"hidden_size\":null}", "config.json: hidden_size: not found"},
    {"llama", "{\"hidden_size\":\"32\"}", "config.json: hidden_size: found no whole number"},
    {"llama", "{\"hidden_size\":0}", "config.json: hidden_size: found 0, expected 1 to"},
    {"llama", "{\"hidden_size\":-32}", "config.json: hidden_size: found -32, expected 1 to"},
    {"llama", "{\"hidden_size\":99999999999}", "config.json: hidden_size: found 99999999999"},
    {"llama", "{\"hidden_size\":34}", "config.json: num_attention_heads: does not divide hidden_size"},
    {"llama", "{\"hidden_size\":36,\"head_dim\":9}", "config.json: head_dim: found an odd number"},
    {"llama", "{\"num_hidden_layers\":100000}", "config.json: num_hidden_layers: found 100000"},
    {"llama", "{\"num_hidden_layers\":3}",
     "tensor 'model.layers.2.input_layernorm.weight': not found, llama needs it"},
    {"llama", "{\"num_hidden_layers\":1}",
     "tensor 'model.layers.1.input_layernorm.weight': llama has no use for it"},
    {"llama", "{\"num_key_value_heads\":3}",
     "config.json: num_key_value_heads: found 3, expected a divisor of 4"},
    {"llama", "{\"num_key_value_heads\":4}",
     "tensor 'model.layers.0.self_attn.k_proj.weight': shape: found [16, 32], expected [32, 32]"},
    {"llama", "{\"vocab_size\":41}",
     "tensor 'model.embed_tokens.weight': shape: found [40, 32], expected [41, 32]"},
    {"llama", "{\"vocab_size\":39}",
     "tokenizer.json: added_tokens: token '[more]' has id 39, expected 0 to 38"},
    {"llama", "{\"hidden_act\":\"gelu\"}", "config.json: hidden_act: found 'gelu', expected 'silu'"},
    {"llama", "{\"mlp_bias\":true}", "config.json: mlp_bias: true is not supported"},
    {"llama", "{\"mlp_bias\":1}", "config.json: mlp_bias: expected true or false"},
    {"llama", "{\"rms_norm_eps\":0}", "config.json: rms_norm_eps: found 0"},
    {"llama", "{\"rope_theta\":-1}", "config.json: rope_theta: found -1"},
    {"llama", "{\"partial_rotary_factor\":0.5}", "config.json: partial_rotary_factor: only 1"},
    {"llama", "{\"rope_scaling\":[]}", "config.json: rope_scaling: expected an object"},
    {"llama", "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
     "config.json: rope_type: found 'dynamic'"},
    {"llama", "{\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "config.json: rope_type: found 'longrope'"},
    {"llama", "{\"rope_scaling\":{\"type\":\"linear\"}}", "config.json: factor: not found"},
    {"llama",
     "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}}",
     "config.json: high_freq_factor: expected more than low_freq_factor"},
    {"llama", "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
     "config.json: rope_parameters: differs between layers"},
    {"llama", "{\"quantization_config\":{\"bits\":4}}",
     "config.json: quantization_config: quantised weights"},
    {"qwen2", "{\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":[\"full_attention\"]}",
     "config.json: layer_types: expected one name per layer"},
    {"qwen2", "{\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":[\"full_attention\",\"x\"]}",
     "config.json: layer_types: expected full_attention or sliding_attention"},
    {"opt", "{\"do_layer_norm_before\":false}", "config.json: do_layer_norm_before: false is not supported"},
    {"opt", "{\"word_embed_proj_dim\":16}", "config.json: word_embed_proj_dim: found 16"},
    {"opt", "{\"activation_function\":\"gelu\"}", "config.json: activation_function: found 'gelu'"},
    {"opt", "{\"enable_bias\":false}", "config.json: enable_bias: false is not supported"},
    {"opt", "{\"max_position_embeddings\":32}",
     "tensor 'model.decoder.embed_positions.weight': shape: found [32, 32], expected [34, 32]"},
};

static void refused_configurations(void **state) {
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof bad_configs / sizeof bad_configs[0]; i++) {
        struct hf_folder folder;
        struct error error;
        hf_folder_init(&folder, bad_configs[i].family);
        hf_patch(folder.config, bad_configs[i].patch);
        enum status status = import_folder(&folder, NULL, NULL, &error);
        if (status != STATUS_MODEL || strstr(error.message, bad_configs[i].found) == NULL) {
            print_error("%s: expected '%s' in (%s): %s\n", bad_configs[i].patch, bad_configs[i].found,
                        status_name(status), error.message);
            wrong++;
        }
        hf_folder_remove(&folder); /* fails when the import left a file behind */
    }
    assert_int_equal(wrong, 0);
}

static void refused_tensors(void **state) {
    (void)state;
    struct hf_folder folder;
    struct error error;
    hf_folder_init(&folder, "llama");
    hf_folder_add(&folder, "model.layers.0.mlp.experts.weight", "", 4, 4, ' ');
    assert_int_equal(import_folder(&folder, NULL, NULL, &error), STATUS_MODEL);
    assert_non_null(
        strstr(error.message, "tensor 'model.layers.0.mlp.experts.weight': llama has no use for it"));
    hf_folder_remove(&folder);
    hf_folder_init(&folder, "llama");
    hf_folder_add(&folder, "model.layers.0.self_attn.rotary_emb.inv_freq", "", 4, 0, ' ');
    assert_ok(import_folder(&folder, NULL, NULL, &error), error); /* a table of old checkpoints */
    hf_folder_remove(&folder);
    hf_folder_init(&folder, "llama");
    folder.dtype = "I16"; /* two bytes each, as the folder writes them */
    assert_int_equal(import_folder(&folder, NULL, NULL, &error), STATUS_MODEL);
    assert_non_null(strstr(error.message, "dtype: found I16, expected F32, F16 or BF16"));
    hf_folder_remove(&folder);
    assert_int_equal(model_import("/nowhere", "/tmp/x.gguf", NULL, NULL, &error), STATUS_IO);
    assert_non_null(strstr(error.message, "/nowhere/config.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(imported_models_load),
        cmocka_unit_test(element_types),
        cmocka_unit_test(quantized_on_the_way),
        cmocka_unit_test(tied_embeddings),
        cmocka_unit_test(biases_are_reordered_too),
        cmocka_unit_test(rope_kinds),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(refused_configurations),
        cmocka_unit_test(refused_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
