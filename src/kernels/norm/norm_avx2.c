#include "kernels/norm/norm_floats.h"
