#define FLOATS_512
#include "kernels/codec/codec_floats.h"
