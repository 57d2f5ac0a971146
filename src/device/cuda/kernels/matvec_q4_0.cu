/* matvec of weights in Q4_0 (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q4_0, 4, 4)
