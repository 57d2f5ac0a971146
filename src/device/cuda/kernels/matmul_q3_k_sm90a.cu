/* matmul of weights in Q3_K on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q3_k, type_q3_k)
