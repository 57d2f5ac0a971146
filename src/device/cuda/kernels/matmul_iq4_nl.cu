/* matmul of weights in IQ4_NL (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(iq4_nl, type_iq4_nl, 2)
