/* matmul of weights in Q2_K on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q2_k, type_q2_k)
