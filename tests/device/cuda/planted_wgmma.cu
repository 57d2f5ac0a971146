/* planted_wgmma: products and attention by wgmma, and decode attention, in halves, from headers with bugs to choose
 * from (plant.py). */
#include <stdint.h>

#include "device/cuda/planted_text.h"

extern "C" uint32_t planted_bug; /* enum planted_text_bug */
uint32_t planted_bug;
#define planted(name) (planted_bug == name)

#include "device/cuda/attention_decode.h"
#include "device/cuda/attention_prefill_wgmma.h"
#include "device/cuda/matmul_wgmma.h"

KERNEL(planted_experts, cuda_matmul_experts_args, MATMUL_WGMMA_THREADS, 1) {
    matmul_wgmma_experts_run<plain_f16>(args);
}
KERNEL(planted_dense, cuda_matmul_wgmma_args, MATMUL_WGMMA_THREADS, 1) {
    matmul_wgmma_run<plain_f16, MATMUL_ROWS>(args, ARGUMENTS_OF(planted_dense));
}
KERNEL(planted_matmul, cuda_matmul_args, 256, 1) { matmul_run<plain_f16>(args); }
KERNEL(planted_decode, cuda_attention_args, 128, 1) {
    attention_run<16, 1, CACHE_F16, false>(args, 0, 0, 0, 0);
}
KERNEL(planted_prefill, cuda_prefill_args, PREFILL_WGMMA_THREADS, 1) { prefill_wgmma_run<128>(args); }
