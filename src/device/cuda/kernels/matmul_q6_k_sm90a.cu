/* matmul of weights in Q6_K on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q6_k, type_q6_k)
