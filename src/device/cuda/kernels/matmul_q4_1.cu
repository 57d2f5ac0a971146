/* matmul of weights in Q4_1 (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q4_1, type_q4_1, 2)
