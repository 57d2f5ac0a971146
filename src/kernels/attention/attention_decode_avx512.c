#define FLOATS_512
#include "kernels/attention/decode_floats.h"
