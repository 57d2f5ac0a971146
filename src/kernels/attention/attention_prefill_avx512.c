#define FLOATS_512
#include "kernels/attention/prefill_floats.h"
