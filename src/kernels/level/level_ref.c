/* The definition: sums in double, coordinate after coordinate. */
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

void level_ref_install(struct level_kernels *kernels) { *kernels = (struct level_kernels){.score = score}; }
