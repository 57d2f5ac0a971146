#include "kernels/attention/prefill_floats.h"

void attention_prefill_avx2(const struct attention_prefill_args *args) { prefill_floats(args); }

size_t attention_prefill_avx2_scratch_bytes(size_t group, const struct kv_layout *layout) {
    return prefill_scratch_bytes(group, layout);
}

void attention_prefill_avx2_install(struct attention_kernels *kernels) {
    kernels->prefill = prefill_floats;
    kernels->prefill_scratch_bytes = prefill_scratch_bytes;
    kernels->prefill_block_rows = BLOCK_ROWS;
}
