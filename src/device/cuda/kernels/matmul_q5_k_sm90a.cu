/* matmul of weights in Q5_K on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q5_k, type_q5_k)
