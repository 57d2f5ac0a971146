#define FLOATS_512
#include "kernels/group/group_floats.h"
