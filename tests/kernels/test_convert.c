/* convert: rows decoded as another implementation decodes them. */
#include "kernels/convert/convert.h"

#include "kernels/check.h"
#include "kernels/golden_blocks.h"
#include "kernels/weights.h"
#include "tensor/half.h"

static uint64_t hash_floats(const float *x, size_t count) {
    uint64_t hash = 0xcbf29ce484222325u;
    const uint8_t *bytes = (const uint8_t *)x;
    for (size_t i = 0; i < count * sizeof *x; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* Bit for bit, at every level. */
static void golden_blocks_decode(void **state) {
    (void)state;
    struct check_level levels[6];
    size_t level_count = check_levels(levels);
    for (size_t level = 0; level < level_count; level++) {
        struct convert_kernels kernels;
        convert_kernels_init(&kernels, levels[level].mask);
        for (size_t g = 0; g < sizeof golden_blocks / sizeof golden_blocks[0]; g++) {
            const struct golden_blocks *golden = &golden_blocks[g];
            const struct tensor_type_info *info = tensor_type_info(golden->type);
            size_t bytes = golden->elements / info->block_elements * info->block_bytes;
            struct guarded source = guarded_create(bytes),
                           target = guarded_create(golden->elements * sizeof(float));
            float *y = target.data;
            memcpy(source.data, golden->bytes, bytes);
            fill_nan(y, golden->elements);
            kernels.dequantize[golden->type](source.data, y, golden->elements);
            for (size_t i = 0; i < 4; i++)
                if (float_to_bits(y[i]) != golden->first[i])
                    fail_msg("%s %s: element %zu is %g, want %g", levels[level].name, info->name, i,
                             (double)y[i], (double)bits_to_float(golden->first[i]));
            if (hash_floats(y, golden->elements) != golden->hash)
                fail_msg("%s %s: a later element differs", levels[level].name, info->name);
            guarded_destroy(&source);
            guarded_destroy(&target);
        }
    }
}

/* Every half and bfloat there is, each level against the exact value. */
static void plain_types_decode(void **state) {
    (void)state;
    static uint16_t all[65536];
    static float y[65536];
    for (size_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    struct check_level levels[6];
    size_t level_count = check_levels(levels);
    for (size_t level = 0; level < level_count; level++) {
        struct convert_kernels kernels;
        convert_kernels_init(&kernels, levels[level].mask);
        for (size_t shift = 0; shift < 9; shift++) { /* odd beginnings and ends */
            fill_nan(y, 65536);
            kernels.dequantize[TENSOR_F16](all + shift, y + shift, 65536 - 2 * shift);
            for (size_t i = shift; i < 65536 - shift; i++) {
                uint32_t exponent = i >> 10 & 31, mantissa = i & 1023;
                double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                               : exponent     ? ldexp(1024 + mantissa, (int)exponent - 25)
                                              : ldexp(mantissa, -24);
                if (i & 0x8000) value = -value;
                if (isnan(value) ? !isnan(y[i]) : (double)y[i] != value)
                    fail_msg("%s F16 %zx: %g, want %g", levels[level].name, i, (double)y[i], value);
            }
            fill_nan(y, 65536);
            kernels.dequantize[TENSOR_BF16](all + shift, y + shift, 65536 - 2 * shift);
            for (size_t i = shift; i < 65536 - shift; i++)
                if (float_to_bits(y[i]) != (uint32_t)i << 16) fail_msg("%s BF16 %zx", levels[level].name, i);
        }
    }
}

/* Many random and extreme blocks: the same floats at every level, and nothing read past the row. */
static void levels_decode_alike(void **state) {
    (void)state;
    enum { COUNT = 256 * 7 };
    struct convert_kernels reference;
    convert_kernels_init(&reference, 0);
    struct check_level levels[6];
    size_t level_count = check_levels(levels);
    struct random random;
    random_init(&random, test_seed(11));
    for (size_t level = 1; level < level_count; level++)
        for (size_t l = 0; l < sizeof block_layouts / sizeof block_layouts[0]; l++)
            for (int kind = 0; kind < WEIGHT_KINDS; kind++) {
                enum tensor_type type = block_layouts[l].type;
                const struct tensor_type_info *info = tensor_type_info(type);
                struct guarded row = guarded_create(COUNT / info->block_elements * info->block_bytes);
                struct guarded got = guarded_create(COUNT * sizeof(float));
                float want[COUNT];
                weight_fill(&random, type, (enum weight_kind)kind, row.data, COUNT);
                reference.dequantize[type](row.data, want, COUNT);
                struct convert_kernels kernels;
                convert_kernels_init(&kernels, levels[level].mask);
                fill_nan(got.data, COUNT);
                kernels.dequantize[type](row.data, got.data, COUNT);
                if (memcmp(got.data, want, sizeof want) != 0)
                    fail_msg("%s %s kind %d differs", levels[level].name, info->name, kind);
                guarded_destroy(&row);
                guarded_destroy(&got);
            }
}

/* What a half holds is what a half gives back; what it does not hold, too large or too small, has as many digits. */
static void a_halfs_precision_at_any_size(void **state) {
    (void)state;
    struct random random;
    random_init(&random, test_seed(29));
    assert_true(round_to_half_precision(0) == 0 && isnan(round_to_half_precision(NAN)));
    assert_true(round_to_half_precision(1 + 0x1p-11f) == 1); /* ties to even */
    assert_true(round_to_half_precision(1 + 0x3p-11f) == 1 + 0x1p-9f);
    for (size_t i = 0; i < 100000; i++) {
        float x = ldexpf((float)random_normal(&random), (int)random_below(&random, 12) - 6);
        if (fabsf(x) < 0x1p-14f) continue;
        assert_true(round_to_half_precision(x) == half_to_float(float_to_half(x)));
        for (int exponent = -90; exponent <= 90; exponent += 45)
            assert_true(round_to_half_precision(ldexpf(x, exponent)) ==
                        ldexpf(half_to_float(float_to_half(x)), exponent));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_blocks_decode),
        cmocka_unit_test(plain_types_decode),
        cmocka_unit_test(levels_decode_alike),
        cmocka_unit_test(a_halfs_precision_at_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
