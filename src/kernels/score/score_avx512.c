#define FLOATS_512
#include "kernels/score/score_floats.h"
