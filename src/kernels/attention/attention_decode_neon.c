#include "kernels/attention/decode_floats.h"
