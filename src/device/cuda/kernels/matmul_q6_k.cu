/* matmul of weights in Q6_K (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q6_k, type_q6_k, 2)
