#define LOAM_SIMDE
#define attention_prefill_avx512_install emulated_prefill_avx512_install
#include "attention_emulated.h"
#include "kernels/attention/attention_prefill_avx512.c"
