/* matmul of weights in IQ4_NL on an H100 (matmul_wgmma.h). */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(iq4_nl, type_iq4_nl)
