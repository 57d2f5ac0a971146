#define LOAM_SIMDE
#define attention_decode_avx512_install emulated_decode_avx512_install
#include "attention_emulated.h"
#include "kernels/attention/attention_decode_avx512.c"
