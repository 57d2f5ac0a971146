/* The definition: the key of the k-th largest by its digits from the top, a histogram for each; then all keys
 * above it, and as many equal to it as are missing, from the lowest index on. */
#include <string.h>

#include "kernels/top_k/top_k_internal.h"

enum { DIGIT_BITS = 8, DIGITS = TOP_K_REF_SCRATCH_BYTES / sizeof(size_t) };

static size_t scratch_bytes(size_t count, size_t k) {
    (void)count, (void)k;
    return TOP_K_REF_SCRATCH_BYTES;
}

void top_k_ref(const struct top_k_args *args) {
    size_t *histogram = args->scratch, rest = args->k; /* how many are taken among those with the prefix */
    uint32_t prefix = 0, known = 0;                    /* the bits of the k-th key found so far */
    if (args->k >= args->count) {
        for (size_t i = 0; i < args->count; i++) args->indices[i] = (uint32_t)(args->index_first + i);
        return;
    }
    if (args->k == 0) return;
    for (int shift = 32 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        memset(histogram, 0, DIGITS * sizeof *histogram);
        for (size_t i = 0; i < args->count; i++) {
            uint32_t key = top_k_key(args->scores[i]);
            if ((key & known) == prefix) histogram[key >> shift & (DIGITS - 1)]++;
        }
        uint32_t digit = DIGITS - 1;
        while (histogram[digit] < rest) rest -= histogram[digit--];
        prefix |= digit << shift;
        known |= (uint32_t)(DIGITS - 1) << shift;
    }
    for (size_t i = 0, taken = 0; i < args->count; i++) {
        uint32_t key = top_k_key(args->scores[i]);
        if (key > prefix || (key == prefix && rest > 0)) {
            if (key == prefix) rest--;
            args->indices[taken++] = (uint32_t)(args->index_first + i);
        }
    }
}

void top_k_ref_install(struct top_k_kernels *kernels) {
    *kernels = (struct top_k_kernels){.select = top_k_ref, .scratch_bytes = scratch_bytes};
}
