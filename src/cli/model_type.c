#include "cli/model_type.h"

#include <math.h>
#include <stdio.h>

#include "cli/utf8.h"
#include "model/model_size.h"

/* general.file_type by its GGUF number. */
static const struct {
    uint64_t number;
    const char *name;
} file_types[] = {
    {0, "all F32"},
    {1, "F16"},
    {2, "Q4_0"},
    {3, "Q4_1"},
    {7, "Q8_0"},
    {8, "Q5_0"},
    {9, "Q5_1"},
    {10, "Q2_K - Medium"},
    {11, "Q3_K - Small"},
    {12, "Q3_K - Medium"},
    {13, "Q3_K - Large"},
    {14, "Q4_K - Small"},
    {15, "Q4_K - Medium"},
    {16, "Q5_K - Small"},
    {17, "Q5_K - Medium"},
    {18, "Q6_K"},
    {19, "IQ2_XXS - 2.0625 bpw"},
    {20, "IQ2_XS - 2.3125 bpw"},
    {21, "Q2_K - Small"},
    {22, "IQ3_XS - 3.3 bpw"},
    {23, "IQ3_XXS - 3.0625 bpw"},
    {24, "IQ1_S - 1.5625 bpw"},
    {25, "IQ4_NL - 4.5 bpw"},
    {26, "IQ3_S - 3.4375 bpw"},
    {27, "IQ3_S mix - 3.66 bpw"},
    {28, "IQ2_S - 2.5 bpw"},
    {29, "IQ2_M - 2.7 bpw"},
    {30, "IQ4_XS - 4.25 bpw"},
    {31, "IQ1_M - 1.75 bpw"},
    {32, "BF16"},
    {38, "MXFP4 MoE"},
    {39, "NVFP4"},
};

uint64_t model_tensor_bytes(const struct gguf *gguf) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) bytes += gguf->tensors[i].size_bytes;
    return bytes;
}

uint64_t model_parameter_count(const struct gguf *gguf) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        uint64_t elements = 1;
        for (uint32_t d = 0; d < gguf->tensors[i].dimension_count; d++) elements *= gguf->tensors[i].dimensions[d];
        count += elements;
    }
    return count;
}

uint64_t model_step_bytes(const struct model *model) {
    double bytes = 0;
    for (uint64_t i = 0; i < model->gguf.tensor_count; i++) {
        const struct gguf_tensor *tensor = &model->gguf.tensors[i];
        bytes += (double)tensor->size_bytes * model_step_share(&model->gguf, &model->config, tensor);
    }
    return (uint64_t)llround(bytes); /* shares of experts are fractions */
}

static const char *main_type(const struct gguf *gguf) {
    enum { NUMBER_MAX = 64 };
    uint64_t bytes[NUMBER_MAX] = {0};
    size_t best = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        size_t type = (size_t)gguf->tensors[i].type;
        if (type >= NUMBER_MAX) continue;
        bytes[type] += gguf->tensors[i].size_bytes;
        if (bytes[type] > bytes[best]) best = type;
    }
    return tensor_type_info((enum tensor_type)best)->name;
}

void model_type_text(const struct gguf *gguf, char *buffer, size_t buffer_bytes) {
    struct error ignored;
    struct gguf_string architecture = {"?", 1};
    uint64_t number = UINT64_MAX, parameters = model_parameter_count(gguf);
    const char *type = main_type(gguf);
    (void)!gguf_get_string(gguf, "general.architecture", &architecture, &ignored);
    (void)!gguf_get_uint(gguf, "general.file_type", UINT32_MAX, &number, &ignored);
    for (size_t i = 0; i < sizeof file_types / sizeof file_types[0]; i++)
        if (file_types[i].number == number) type = file_types[i].name;
    char name[32], size[24];
    utf8_escape(architecture.text, architecture.length, name, sizeof name);
    if (parameters >= 1000000000)
        snprintf(size, sizeof size, "%.2fB", (double)parameters * 1e-9);
    else
        snprintf(size, sizeof size, "%.1fM", (double)parameters * 1e-6);
    snprintf(buffer, buffer_bytes, "%s %s %s", name, size, type);
}
