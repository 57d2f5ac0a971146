#define FLOATS_512
#include "kernels/attention/prefill_floats.h"

/* As in decode: rows that are no multiple of the registers take the narrower variant. */
static void prefill(const struct attention_prefill_args *args) {
    if (args->layout->k_dimension % FLOATS == 0 && args->layout->v_dimension % FLOATS == 0)
        prefill_floats(args);
    else
        attention_prefill_avx2(args);
}

static size_t scratch_bytes(size_t group, const struct kv_layout *layout) {
    return max_size(prefill_scratch_bytes(group, layout), attention_prefill_avx2_scratch_bytes(group, layout));
}

void attention_prefill_avx512_install(struct attention_kernels *kernels) {
    kernels->prefill = prefill;
    kernels->prefill_scratch_bytes = scratch_bytes;
    kernels->prefill_block_rows = BLOCK_ROWS;
}
