/* matvec of weights in Q4_K (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q4_k, 2, 2)
