#define FLOATS_512
#include "kernels/attention/gather_floats.h"
