#define FLOATS_512
#include "kernels/norm/norm_floats.h"
