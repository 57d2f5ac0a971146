#include "kernels/codec/codec_floats.h"
