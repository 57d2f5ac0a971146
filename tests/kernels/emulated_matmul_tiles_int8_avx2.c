#define LOAM_SIMDE
#define matmul_int8_amx_init emulated_int8_amx_init
#include "kernels/vector.h"
#include "matmul_emulated.h"

#include "amx_emulation.h"
#include "kernels/matmul/matmul_int8_amx.c"
