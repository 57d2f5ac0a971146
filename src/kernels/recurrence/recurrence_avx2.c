#include "kernels/recurrence/recurrence_floats.h"
