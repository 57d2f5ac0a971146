/* matmul of weights in Q4_0 on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q4_0, type_q4_0)
