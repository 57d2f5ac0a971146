#include "kernels/attention/store_floats.h"
