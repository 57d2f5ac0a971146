/* matmul of weights in Q8_0 (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q8_0, type_q8_0, 2)
