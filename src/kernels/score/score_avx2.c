#include "kernels/score/score_floats.h"
