/* matvec of weights in Q2_K (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q2_k, 2, 2)
