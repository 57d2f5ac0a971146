/* matvec of weights in Q6_K (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q6_k, 1, 2)
