#define LOAM_SIMDE
#define codec_avx512_install emulated_codec_avx512_install
#include "kernels/codec/codec_avx512.c"
#include "selection_emulated.h"
