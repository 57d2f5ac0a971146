#define FLOATS_512
#include "kernels/mass/mass_floats.h"
