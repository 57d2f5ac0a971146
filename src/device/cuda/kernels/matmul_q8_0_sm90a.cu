/* matmul of weights in Q8_0 on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q8_0, type_q8_0)
