/* matmul of weights in Q3_K (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(q3_k, type_q3_k, 2)
