/* matmul of weights in Q5_K (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q5_k, type_q5_k, 2)
