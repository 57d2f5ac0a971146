/* matmul of weights in Q5_0 (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q5_0, type_q5_0, 2)
