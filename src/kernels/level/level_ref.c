/* The definition: sums in double, coordinate after coordinate. */
#include <math.h>

#include "kernels/level/level_internal.h"
#include "tensor/half.h"

static void score(const struct level_score_args *args) {
    const struct level_layout *layout = args->layout;
    int levels[LEVEL_DIMENSION_MAX];
    for (uint64_t token = args->token_begin; token < args->token_end; token++) {
        const char *block = args->blocks[token / KV_CHUNK_TOKENS];
        const uint16_t *center = (const uint16_t *)(const void *)(block + layout->center_offset);
        float factor;
        level_load(layout, block, token % KV_CHUNK_TOKENS, levels, &factor);
        for (size_t head = 0; head < args->heads; head++) {
            const char *query = (const char *)args->queries + head * level_query_bytes(layout);
            const struct level_query *q = (const struct level_query *)(const void *)query;
            const float *floats = level_query_floats(query);
            const int8_t *integers = level_query_integers(layout, query);
            double common = 0, own = 0;
            for (size_t j = 0; j < layout->dimension; j++) {
                common += (double)floats[j] * (double)half_to_float(center[j]);
                own += (double)(levels[j] * integers[j]);
            }
            args->scores[head * args->stride + (token - args->token_begin)] =
                (float)(common + (double)factor * own * (double)q->step);
        }
    }
}

static void chunks(const struct level_chunks_args *args) {
    const struct level_layout *layout = args->layout;
    for (size_t i = 0; i < args->count; i++) {
        const char *block = args->blocks[i];
        const uint16_t *center = (const uint16_t *)(const void *)(block + layout->center_offset);
        const uint8_t *spread = (const uint8_t *)block + layout->spread_offset;
        for (size_t head = 0; head < args->heads; head++) {
            const char *query = (const char *)args->queries + head * level_query_bytes(layout);
            const float *q = args->q + head * args->q_stride;
            double sum = 0;
            for (size_t j = 0; j < layout->dimension; j++) {
                sum += (double)level_query_floats(query)[j] * (double)half_to_float(center[j]);
                sum += fabs((double)q[j]) * (double)half_to_float(level_spread_half(spread[j]));
            }
            args->scores[head * args->stride + i] = (float)sum;
        }
    }
}

void level_ref_install(struct level_kernels *kernels) {
    *kernels = (struct level_kernels){.score = score, .chunks = chunks};
}
