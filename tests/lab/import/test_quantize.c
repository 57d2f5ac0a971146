/* quantize: each tensor gets its type, and its values stay near. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "format/gguf.h"
#include "kernels/convert/convert.h"
#include "lab/import/quantize.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/loam-quantize-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

static void path_of(char path[128], const char *name) { snprintf(path, 128, "%s/%s", folder, name); }

enum { LAYERS = 16, WIDTH = 256, NARROW = 96, ODD = 40, ROWS = 5 };

struct plan_tensor {
    const char *suffix; /* after "blk.N." */
    uint64_t columns, rows;
};

static const struct plan_tensor layer_tensors[] = {
    {"attn_norm.weight", WIDTH, 0},        {"attn_q.weight", WIDTH, ROWS},
    {"attn_v.weight", WIDTH, ROWS},        {"attn_output.weight", WIDTH, ROWS},
    {"ffn_down.weight", WIDTH, ROWS},      {"ffn_up.weight", NARROW, ROWS},
    {"ffn_gate.weight", ODD, ROWS},        {"ffn_gate_inp.weight", WIDTH, 4},
    {"ffn_down_exps.weight", WIDTH, ROWS}, {"ssm_conv1d.weight", 4, ROWS},
    {"shortconv.conv.weight", 3, ROWS},
};
enum { LAYER_TENSORS = sizeof layer_tensors / sizeof layer_tensors[0] };

static void declare(struct gguf_writer *writer, const char *name, uint64_t columns, uint64_t rows) {
    struct error error;
    const uint64_t dimensions[] = {columns, rows};
    assert_ok(gguf_writer_declare_tensor(writer, name, TENSOR_F32, rows == 0 ? 1 : 2, dimensions, &error),
              error);
}

static void put_values(struct gguf_writer *writer, struct random *random, size_t count, float bad) {
    struct error error;
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) values[i] = (float)random_normal(random);
    if (bad != 0) values[count / 2] = bad;
    assert_ok(gguf_writer_write(writer, values, count * sizeof *values, &error), error);
    free(values);
}

/* bad: a value put into the middle of the embedding, or 0. */
static void write_input(const char *path, bool has_output, float bad) {
    struct gguf_writer *writer;
    struct error error;
    struct random random;
    char name[64];
    random_init(&random, 5);
    assert_ok(gguf_writer_create(&writer, path, &error), error);
    assert_ok(gguf_writer_add_string(writer, "general.architecture", "llama", 5, &error), error);
    assert_ok(gguf_writer_add_uint(writer, "general.file_type", 0, &error), error);
    assert_ok(gguf_writer_add_uint(writer, "llama.block_count", LAYERS, &error), error);
    declare(writer, "token_embd.weight", WIDTH, 7);
    if (has_output) declare(writer, "output.weight", WIDTH, 7);
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < LAYER_TENSORS; i++) {
            snprintf(name, sizeof name, "blk.%d.%s", layer, layer_tensors[i].suffix);
            declare(writer, name, layer_tensors[i].columns, layer_tensors[i].rows);
        }
    declare(writer, "position_embd.weight", WIDTH, 3);
    assert_ok(gguf_writer_begin_data(writer, &error), error);
    put_values(writer, &random, 7 * WIDTH, bad);
    if (has_output) put_values(writer, &random, 7 * WIDTH, 0);
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < LAYER_TENSORS; i++) {
            uint64_t rows = layer_tensors[i].rows == 0 ? 1 : layer_tensors[i].rows;
            put_values(writer, &random, layer_tensors[i].columns * rows, 0);
        }
    put_values(writer, &random, 3 * WIDTH, 0);
    assert_ok(gguf_writer_commit(writer, &error), error);
    gguf_writer_destroy(writer);
}

static enum status quantize(const char *type_name, size_t thread_count, struct quantize_report *report,
                            struct error *error) {
    char input[128], output[128];
    struct quantize_options options = {.type_name = type_name, .thread_count = thread_count};
    path_of(input, "in.gguf");
    path_of(output, "out.gguf");
    return model_quantize(input, output, &options, report, error);
}

static void open_output(struct gguf *gguf) {
    char path[128];
    struct error error;
    path_of(path, "out.gguf");
    assert_ok(gguf_open(gguf, path, &error), error);
}

static void drop_files(void) {
    char path[128];
    path_of(path, "in.gguf");
    unlink(path);
    path_of(path, "out.gguf");
    unlink(path);
}

static enum tensor_type type_of(const struct gguf *gguf, const char *name) {
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
    assert_non_null(tensor);
    return tensor->type;
}

/* Relative root mean square error of one tensor against the input. */
static double error_of(const struct gguf *input, const struct gguf_tensor *tensor) {
    static float decoded[WIDTH * 8];
    struct convert_kernels convert;
    char name[65] = {0};
    memcpy(name, tensor->name.text, tensor->name.length);
    const struct gguf_tensor *source = gguf_find_tensor(input, name);
    assert_non_null(source);
    convert_kernels_init(&convert, 0);
    size_t count = source->size_bytes / 4;
    convert.dequantize[tensor->type](tensor->data, decoded, count);
    double wrong = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, source->data + 4 * i, 4);
        wrong += pow((double)(decoded[i] - value), 2);
        all += (double)value * (double)value;
    }
    return sqrt(wrong / all);
}

static void every_type(void **state) {
    (void)state;
    /* Bounds for normal values: about 0.29 of a step of (range / codes), as test_convert has them per type. */
    static const struct {
        const char *name;
        enum tensor_type type;
        uint32_t file_type;
        double bound;
    } cases[] = {
        {"F32", TENSOR_F32, 0, 0},          {"F16", TENSOR_F16, 1, 3e-4},
        {"BF16", TENSOR_BF16, 32, 3e-3},    {"Q4_0", TENSOR_Q4_0, 2, 0.11},
        {"Q4_1", TENSOR_Q4_1, 3, 0.1},      {"Q5_0", TENSOR_Q5_0, 8, 0.06},
        {"Q5_1", TENSOR_Q5_1, 9, 0.05},     {"Q8_0", TENSOR_Q8_0, 7, 0.01},
        {"Q2_K", TENSOR_Q2_K, 10, 0.4},     {"q3_k", TENSOR_Q3_K, 11, 0.25},
        {"Q4_K", TENSOR_Q4_K, 14, 0.1},     {"Q4_K_S", TENSOR_Q4_K, 14, 0.1},
        {"Q5_K", TENSOR_Q5_K, 16, 0.05},    {"Q6_K", TENSOR_Q6_K, 18, 0.03},
        {"IQ4_NL", TENSOR_IQ4_NL, 25, 0.1}, {"IQ4_XS", TENSOR_IQ4_XS, 30, 0.1},
    };
    char path[128];
    struct gguf input, output;
    struct error error;
    path_of(path, "in.gguf");
    write_input(path, true, 0);
    assert_ok(gguf_open(&input, path, &error), error);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct quantize_report report;
        uint64_t file_type = 99, version = 99, layers = 0;
        assert_ok(quantize(cases[i].name, 2, &report, &error), error);
        open_output(&output);
        assert_int_equal(output.tensor_count, input.tensor_count);
        assert_int_equal(report.tensor_count, input.tensor_count);
        assert_int_equal(type_of(&output, "blk.3.attn_q.weight"), cases[i].type);
        assert_int_equal(type_of(&output, "output.weight"), cases[i].type);
        assert_int_equal(type_of(&output, "blk.3.attn_norm.weight"), TENSOR_F32);
        assert_int_equal(type_of(&output, "position_embd.weight"), TENSOR_F32);
        assert_ok(gguf_get_uint(&output, "general.file_type", 99, &file_type, &error), error);
        assert_int_equal(file_type, cases[i].file_type);
        assert_ok(gguf_get_uint(&output, "general.quantization_version", 99, &version, &error), error);
        assert_int_equal(version, 2);
        assert_ok(gguf_get_uint(&output, "llama.block_count", 99, &layers, &error), error);
        assert_int_equal(layers, LAYERS);
        uint64_t bytes = 0;
        for (uint64_t j = 0; j < output.tensor_count; j++) {
            double found = error_of(&input, &output.tensors[j]);
            bytes += output.tensors[j].size_bytes;
            if (!(found <= cases[i].bound)) fail_msg("%s: tensor %d: error %g", cases[i].name, (int)j, found);
        }
        assert_int_equal(bytes, report.output_bytes);
        gguf_close(&output);
    }
    gguf_close(&input);
    drop_files();
}

/* Rows of 96 and of 40 do not fit blocks of 256; rows of 40 do not fit 32 either. */
static void narrow_rows(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum tensor_type narrow, odd;
        uint64_t fallbacks;
    } cases[] = {
        {"Q4_K", TENSOR_Q5_0, TENSOR_F16, 2 * LAYERS},   {"Q5_K", TENSOR_Q5_1, TENSOR_F16, 2 * LAYERS},
        {"Q6_K", TENSOR_Q8_0, TENSOR_F16, 2 * LAYERS},   {"Q2_K", TENSOR_IQ4_NL, TENSOR_F16, 2 * LAYERS},
        {"Q3_K", TENSOR_IQ4_NL, TENSOR_F16, 2 * LAYERS}, {"IQ4_XS", TENSOR_IQ4_NL, TENSOR_F16, 2 * LAYERS},
        {"Q8_0", TENSOR_Q8_0, TENSOR_F16, LAYERS},       {"F16", TENSOR_F16, TENSOR_F16, 0},
    };
    char path[128];
    struct error error;
    path_of(path, "in.gguf");
    write_input(path, true, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gguf output;
        struct quantize_report report;
        assert_ok(quantize(cases[i].name, 1, &report, &error), error);
        open_output(&output);
        assert_int_equal(type_of(&output, "blk.0.ffn_up.weight"), cases[i].narrow);
        assert_int_equal(type_of(&output, "blk.0.ffn_gate.weight"), cases[i].odd);
        assert_int_equal(report.fallback_count, cases[i].fallbacks);
        gguf_close(&output);
    }
    drop_files();
}

static void mixes(void **state) {
    (void)state;
    char path[128], name[64];
    struct error error;
    struct gguf output;
    struct quantize_report report;
    path_of(path, "in.gguf");
    write_input(path, true, 0);
    assert_ok(quantize("Q4_K_M", 2, &report, &error), error);
    open_output(&output);
    assert_int_equal(type_of(&output, "output.weight"), TENSOR_Q6_K);
    assert_int_equal(type_of(&output, "token_embd.weight"), TENSOR_Q4_K);
    for (int layer = 0; layer < LAYERS; layer++) {
        /* of 16 layers: 0 1, then 4 7 10 13, then 14 15 */
        bool more = layer < 2 || layer >= 14 || layer == 4 || layer == 7 || layer == 10 || layer == 13;
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", layer);
        assert_int_equal(type_of(&output, name), more ? TENSOR_Q6_K : TENSOR_Q4_K);
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", layer);
        assert_int_equal(type_of(&output, name), more ? TENSOR_Q6_K : TENSOR_Q4_K);
        snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", layer);
        assert_int_equal(type_of(&output, name), more ? TENSOR_Q6_K : TENSOR_Q4_K);
        snprintf(name, sizeof name, "blk.%d.attn_q.weight", layer);
        assert_int_equal(type_of(&output, name), TENSOR_Q4_K);
        static const char *const stay[] = {"ffn_gate_inp", "ssm_conv1d", "shortconv.conv"};
        for (size_t i = 0; i < sizeof stay / sizeof *stay; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, stay[i]);
            assert_int_equal(type_of(&output, name), TENSOR_F32);
        }
    }
    gguf_close(&output);
    assert_ok(quantize("Q5_K_M", 2, &report, &error), error);
    open_output(&output);
    assert_int_equal(type_of(&output, "blk.0.attn_v.weight"), TENSOR_Q6_K);
    assert_int_equal(type_of(&output, "blk.2.attn_v.weight"), TENSOR_Q5_K);
    gguf_close(&output);
    assert_ok(quantize("Q3_K_M", 2, &report, &error), error);
    open_output(&output);
    assert_int_equal(type_of(&output, "blk.1.attn_v.weight"), TENSOR_Q5_K);
    assert_int_equal(type_of(&output, "blk.2.attn_v.weight"), TENSOR_Q4_K);
    assert_int_equal(type_of(&output, "blk.0.ffn_down.weight"), TENSOR_Q5_K);
    assert_int_equal(type_of(&output, "blk.1.ffn_down.weight"), TENSOR_Q4_K);
    assert_int_equal(type_of(&output, "blk.1.attn_output.weight"), TENSOR_Q4_K);
    assert_int_equal(type_of(&output, "blk.1.attn_q.weight"), TENSOR_Q3_K);
    gguf_close(&output);
    drop_files();
    write_input(path, false, 0); /* tied: the embedding is the output matrix */
    assert_ok(quantize("Q4_K_M", 2, &report, &error), error);
    open_output(&output);
    assert_int_equal(type_of(&output, "token_embd.weight"), TENSOR_Q6_K);
    gguf_close(&output);
    drop_files();
}

static char *read_output(size_t *size) {
    char path[128];
    path_of(path, "out.gguf");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *size = fread(bytes, 1, 1 << 20, file);
    assert_int_equal(fclose(file), 0);
    return bytes;
}

static void threads_do_not_matter(void **state) {
    (void)state;
    char path[128];
    struct error error;
    size_t one_size, three_size;
    path_of(path, "in.gguf");
    write_input(path, true, 0);
    assert_ok(quantize("Q4_K_M", 1, NULL, &error), error);
    char *one = read_output(&one_size);
    assert_ok(quantize("Q4_K_M", 3, NULL, &error), error);
    char *three = read_output(&three_size);
    assert_int_equal(one_size, three_size);
    assert_memory_equal(one, three, one_size);
    free(one);
    free(three);
    drop_files();
}

struct seen {
    uint64_t count, done_bytes;
};

static void observe(void *context, const struct quantize_step *step) {
    struct seen *seen = context;
    assert_int_equal(step->index, seen->count);
    assert_true(step->done_bytes > seen->done_bytes && step->done_bytes <= step->all_bytes);
    seen->count++;
    seen->done_bytes = step->done_bytes;
}

static void quantized_again(void **state) {
    (void)state;
    char input[128], output[128];
    struct error error;
    struct gguf gguf;
    struct seen seen = {0};
    path_of(input, "in.gguf");
    path_of(output, "out.gguf");
    write_input(input, true, 0);
    struct quantize_options options = {.type_name = "Q8_0", .observer = observe, .observer_context = &seen};
    assert_ok(model_quantize(input, input, &options, NULL, &error), error); /* in place */
    assert_int_equal(seen.count, 3 + LAYERS * LAYER_TENSORS);
    options = (struct quantize_options){.type_name = "Q4_0"};
    assert_ok(model_quantize(input, output, &options, NULL, &error), error);
    open_output(&gguf);
    assert_int_equal(type_of(&gguf, "output.weight"), TENSOR_Q4_0);
    gguf_close(&gguf);
    drop_files();
}

static void refused(void **state) {
    (void)state;
    char path[128], output[128];
    struct error error;
    path_of(path, "in.gguf");
    path_of(output, "out.gguf");
    assert_int_equal(quantize("Q8_0", 1, NULL, &error), STATUS_IO);
    write_input(path, true, 0);
    assert_int_equal(quantize("Q9_Z", 1, NULL, &error), STATUS_USAGE);
    assert_non_null(strstr(error.message, "type 'Q9_Z' is unknown; known are F32 F16"));
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        write_input(path, true, bad[i]);
        assert_int_equal(quantize("Q8_0", 2, NULL, &error), STATUS_MODEL);
        assert_non_null(
            strstr(error.message, "tensor 'token_embd.weight': value: found one that is not finite"));
        assert_int_equal(access(output, F_OK), -1);
    }
    write_input(path, true, 70000.0f);
    assert_int_equal(quantize("F16", 2, NULL, &error), STATUS_MODEL);
    assert_ok(quantize("BF16", 2, NULL, &error), error);
    drop_files();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type),      cmocka_unit_test(narrow_rows),
        cmocka_unit_test(mixes),           cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(quantized_again), cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
