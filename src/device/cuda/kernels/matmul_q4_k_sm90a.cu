/* matmul of weights in Q4_K on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q4_k, type_q4_k)
