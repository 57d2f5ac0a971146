/* matvec of weights in IQ4_NL (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(iq4_nl, 4, 2)
