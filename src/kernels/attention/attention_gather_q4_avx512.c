#define FLOATS_512
#include "kernels/attention/gather_q4_floats.h"
