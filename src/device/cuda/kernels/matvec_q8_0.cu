/* matvec of weights in Q8_0 (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q8_0, 2, 2)
