/* matmul of weights in IQ4_XS (matmul.h). */
#include "device/cuda/matmul.h"

MATMUL_KERNEL(iq4_xs, type_iq4_xs, 2)
