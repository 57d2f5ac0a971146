/* matmul of weights in Q5_0 on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(q5_0, type_q5_0)
