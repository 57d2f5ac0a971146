#include "kernels/attention/gather_q4_floats.h"
