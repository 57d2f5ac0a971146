/* matvec of weights in IQ4_XS (matvec.h): a module of its own, loaded with a model that has some. */
#include "device/cuda/matvec.h"

MATVEC_KERNELS(iq4_xs, 2, 2)
