/* matvec of weights in Q5_K (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(q5_k, 2, 2)
