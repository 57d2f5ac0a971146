#pragma once

#include "kernels/activation/activation.h"

/* Of swiglu_clamped. */
#define SWIGLU_LIMIT 7.0
#define SWIGLU_SLOPE 1.702
