#include "kernels/attention/gather_floats.h"
