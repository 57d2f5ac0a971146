#include "tensor/type.h"

#include <strings.h>

#include "base/assert.h"
#include "base/checked.h"

static const struct {
    uint32_t number;
    struct tensor_type_info info;
} types[] = {
    {TENSOR_F32, {"F32", 1, 4, true}},
    {TENSOR_F16, {"F16", 1, 2, true}},
    {TENSOR_Q4_0, {"Q4_0", 32, 18, true}},
    {TENSOR_Q4_1, {"Q4_1", 32, 20, true}},
    {TENSOR_Q5_0, {"Q5_0", 32, 22, true}},
    {TENSOR_Q5_1, {"Q5_1", 32, 24, true}},
    {TENSOR_Q8_0, {"Q8_0", 32, 34, true}},
    {TENSOR_Q2_K, {"Q2_K", 256, 84, true}},
    {TENSOR_Q3_K, {"Q3_K", 256, 110, true}},
    {TENSOR_Q4_K, {"Q4_K", 256, 144, true}},
    {TENSOR_Q5_K, {"Q5_K", 256, 176, true}},
    {TENSOR_Q6_K, {"Q6_K", 256, 210, true}},
    {TENSOR_Q8_K, {"Q8_K", 256, 292, false}},
    {TENSOR_IQ4_NL, {"IQ4_NL", 32, 18, true}},
    {TENSOR_IQ4_XS, {"IQ4_XS", 256, 136, true}},
    {TENSOR_I8, {"I8", 1, 1, false}},
    {TENSOR_I16, {"I16", 1, 2, false}},
    {TENSOR_I32, {"I32", 1, 4, false}},
    {TENSOR_I64, {"I64", 1, 8, false}},
    {TENSOR_F64, {"F64", 1, 8, false}},
    {TENSOR_BF16, {"BF16", 1, 2, true}},
    {TENSOR_MXFP4, {"MXFP4", 32, 17, true}},
    {TENSOR_NVFP4, {"NVFP4", 64, 36, true}},
    {TENSOR_IQ3_S, {"IQ3_S", 256, 110, true}},
    {TENSOR_IQ3_XXS, {"IQ3_XXS", 256, 98, true}},
    {TENSOR_IQ2_S, {"IQ2_S", 256, 82, true}},
    {TENSOR_IQ2_XS, {"IQ2_XS", 256, 74, true}},
    {TENSOR_IQ2_XXS, {"IQ2_XXS", 256, 66, true}},
    {TENSOR_IQ1_M, {"IQ1_M", 256, 56, true}},
    {TENSOR_IQ1_S, {"IQ1_S", 256, 50, true}},
};

const struct tensor_type_info *tensor_type_find(uint32_t number) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].number == number) return &types[i].info;
    return NULL;
}

const struct tensor_type_info *tensor_type_info(enum tensor_type type) {
    const struct tensor_type_info *info = tensor_type_find((uint32_t)type);
    ASSERT(info != NULL);
    return info;
}

bool tensor_type_parse(const char *name, enum tensor_type *type) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcasecmp(types[i].info.name, name) == 0) {
            *type = (enum tensor_type)types[i].number;
            return true;
        }
    return false;
}

bool tensor_row_bytes(enum tensor_type type, uint64_t elements, uint64_t *bytes) {
    const struct tensor_type_info *info = tensor_type_info(type);
    if (elements % info->block_elements != 0) return false;
    return checked_multiply(elements / info->block_elements, info->block_bytes, bytes);
}
