#define LOAM_SIMDE
#define attention_prefill_amx_install emulated_prefill_amx_install
#include "attention_emulated.h"

#include "kernels/vector.h"

#include "amx_emulation.h"
#include "kernels/attention/attention_prefill_amx.c"
