#include "kernels/mass/mass_floats.h"
