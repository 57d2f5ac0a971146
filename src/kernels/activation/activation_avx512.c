#define FLOATS_512
#include "kernels/activation/activation_floats.h"
