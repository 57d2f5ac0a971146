/* The definition: projections in double, bits counted one code after the other. */
#include <math.h>
#include <string.h>

#include "kernels/hash/hash_internal.h"
#include "tensor/half.h"

static void encode(const struct hash_encode_args *args) {
    memset(args->codes, 0, args->count * args->bits / 8);
    for (size_t i = 0; i < args->count; i++) {
        const float *x = args->x + i * args->x_stride;
        double squares = 0;
        for (size_t d = 0; d < args->dimension; d++) squares += (double)x[d] * (double)x[d];
        if (args->norms != NULL) args->norms[i] = (float)sqrt(squares);
        for (size_t j = 0; j < args->bits; j++) {
            double sum = 0;
            for (size_t d = 0; d < args->dimension; d++)
                sum += (double)x[d] * (double)half_to_float(args->weights[d * args->bits + j]);
            if (sum > 0) args->codes[i * args->bits / 8 + j / 8] |= (uint8_t)(1u << j % 8);
        }
    }
}

static void score(const struct hash_score_args *args) {
    const struct hash_layout *layout = args->layout;
    uint8_t code[HASH_CODE_BYTES_MAX];
    for (uint64_t token = args->token_begin; token < args->token_end; token++) {
        float norm;
        int distance = 0;
        hash_load(layout, args->blocks[token / KV_CHUNK_TOKENS], token % KV_CHUNK_TOKENS, code, &norm);
        for (size_t head = 0; head < args->group; head++)
            for (size_t byte = 0; byte < layout->code_bytes; byte++)
                distance += __builtin_popcount((unsigned)(args->codes[head * layout->code_bytes + byte] ^ code[byte]));
        /* The integer numerator is exact, and so is its product with 1 / bits where bits is a power of two. */
        float agreement = (float)((int)(args->group * layout->bits) - 2 * distance) / (float)layout->bits;
        args->scores[token - args->token_begin] = args->use_norms ? agreement * norm : (float)-distance;
    }
}

static size_t score_scratch_bytes(const struct hash_layout *layout, size_t group) {
    (void)layout, (void)group;
    return 0;
}

void hash_ref_install(struct hash_kernels *kernels) {
    *kernels = (struct hash_kernels){.encode = encode, .score = score, .score_scratch_bytes = score_scratch_bytes};
}
