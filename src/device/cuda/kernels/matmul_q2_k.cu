/* matmul of weights in Q2_K (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q2_k, type_q2_k, 2)
