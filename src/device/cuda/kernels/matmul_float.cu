/* matmul of plain weights (matmul.h).  Those of F32 and BF16 are rounded to halves: 65,504 is the largest. */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(f32, plain_f32, 1)
MATMUL_KERNEL(f16, plain_f16, 1)
MATMUL_KERNEL(bf16, plain_bf16, 1)
