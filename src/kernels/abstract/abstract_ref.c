/* The definition: mean and deviation in double, over two passes. */
#include <math.h>

#include "kernels/abstract/abstract_internal.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/score/score.h"
#include "tensor/half.h"

/* The largest half that is not above x. */
static uint16_t half_below(float x) {
    uint16_t half = float_to_half(x);
    if (!(half_to_float(half) > x)) return half; /* NaN too */
    if ((half & 0x8000u) != 0) return (uint16_t)(half + 1);
    return half == 0 ? 0x8001 : (uint16_t)(half - 1);
}

static uint16_t half_above(float x) { return half_below(-x) ^ 0x8000u; }

static float key_load(const struct kv_layout *kv, const void *chunk, size_t token, size_t d) {
    const uint8_t *row = kv_k_row(kv, chunk, token);
    if (kv->k_type == KV_F16) return half_to_float(((const uint16_t *)(const void *)row)[d]);
    return half_to_float(kv_k_scales(kv, chunk, token)[d / KV_SCALE_GROUP]) * (float)((const int8_t *)row)[d];
}

static void page_build(const struct abstract_build_args *args, size_t page, size_t begin, size_t end) {
    const struct abstract_layout *layout = args->layout;
    for (size_t d = 0; d < layout->dimension; d++) {
        float low = INFINITY, high = -INFINITY, poison = 0;
        double sum = 0, squares = 0;
        for (size_t token = begin; token < end; token++) {
            float k = key_load(args->kv, args->chunk, token, d);
            if (k < low) low = k;
            if (k > high) high = k;
            if (isnan(k)) poison = k;
            sum += (double)k;
        }
        double mean = sum / (double)(end - begin);
        for (size_t token = begin; token < end; token++) {
            double off = (double)key_load(args->kv, args->chunk, token, d) - mean;
            squares += off * off;
        }
        if (layout->has[ABSTRACT_MIN_MAX]) {
            uint16_t *pair = abstract_page(layout, ABSTRACT_MIN_MAX, args->abstract, page);
            pair[d] = half_below(low + poison);
            pair[layout->dimension + d] = half_above(high + poison);
        }
        if (layout->has[ABSTRACT_MEAN_DEVIATION]) {
            uint16_t *pair = abstract_page(layout, ABSTRACT_MEAN_DEVIATION, args->abstract, page);
            pair[d] = float_to_half((float)mean);
            pair[layout->dimension + d] = float_to_half((float)sqrt(squares / (double)(end - begin)));
        }
    }
}

static void build(const struct abstract_build_args *args) {
    const size_t tokens = args->layout->page_tokens;
    for (size_t page = args->token_begin / tokens; page * tokens < args->token_end; page++) {
        size_t begin = page * tokens, end = begin + tokens;
        page_build(args, page, begin, end < args->token_end ? end : args->token_end);
    }
}

static void score(const struct abstract_score_args *args) {
    struct score_kernels kernels;
    score_ref_install(&kernels);
    abstract_score_over(&kernels, args);
}

static size_t score_scratch_bytes(const struct abstract_layout *layout, size_t group) {
    return (group + 1) * 2 * layout->dimension * sizeof(float);
}

void abstract_ref_install(struct abstract_kernels *kernels) {
    *kernels = (struct abstract_kernels){.build = build, .score = score, .score_scratch_bytes = score_scratch_bytes};
}
