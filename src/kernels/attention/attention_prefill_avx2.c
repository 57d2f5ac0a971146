#include "kernels/attention/prefill_floats.h"
