/* matvec of weights in Q3_K (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q3_k, 2, 2)
