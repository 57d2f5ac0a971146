/* planted_experts: products of experts by wgmma, in halves, from headers with bugs to choose from (plant.py). */
#include <stdint.h>

#include "device/cuda/planted_experts.h"

extern "C" uint32_t planted_bug; /* enum planted_experts_bug */
uint32_t planted_bug;
#define planted(name) (planted_bug == EXPERTS_##name)

#include "device/cuda/matmul_wgmma.h"

KERNEL(planted_experts, cuda_matmul_experts_args, MATMUL_WGMMA_THREADS, 1) {
    matmul_wgmma_experts_run<plain_f16>(args);
}
