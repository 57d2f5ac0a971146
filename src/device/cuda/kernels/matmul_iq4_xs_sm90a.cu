/* matmul of weights in IQ4_XS on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(iq4_xs, type_iq4_xs)
