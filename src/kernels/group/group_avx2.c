#include "kernels/group/group_floats.h"
