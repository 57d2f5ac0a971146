/* matmul of weights in Q4_0 (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q4_0, type_q4_0, 2)
