/* matvec of weights in Q4_1 (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q4_1, 4, 4)
