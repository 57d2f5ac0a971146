#include "kernels/activation/activation_floats.h"
