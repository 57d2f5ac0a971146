/* matmul of plain weights on an H100 (matmul_wgmma.h).  Those of F32 and BF16 are rounded to halves: 65,504 is the
 * largest. */
#include "device/cuda/matmul_wgmma.h"

MATMUL_WGMMA_KERNEL(f32, plain_f32)
MATMUL_WGMMA_KERNEL(f16, plain_f16)
MATMUL_WGMMA_KERNEL(bf16, plain_bf16)
