/* matmul of weights in Q4_K (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q4_k, type_q4_k, 2)
