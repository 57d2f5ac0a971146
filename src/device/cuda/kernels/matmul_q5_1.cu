/* matmul of weights in Q5_1 (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q5_1, type_q5_1, 2)
