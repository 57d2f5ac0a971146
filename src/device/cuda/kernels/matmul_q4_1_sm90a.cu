/* matmul of weights in Q4_1 on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q4_1, type_q4_1)
