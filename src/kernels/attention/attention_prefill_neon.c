#include "kernels/attention/prefill_floats.h"

void attention_prefill_neon_install(struct attention_kernels *kernels) {
    kernels->prefill = prefill_floats;
    kernels->prefill_scratch_bytes = prefill_scratch_bytes;
    kernels->prefill_block_rows = BLOCK_ROWS;
}
