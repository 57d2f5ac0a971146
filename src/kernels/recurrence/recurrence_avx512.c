#define FLOATS_512
#include "kernels/recurrence/recurrence_floats.h"
