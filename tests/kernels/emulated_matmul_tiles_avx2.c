#define matmul_amx_init emulated_amx_init
#include "matmul_emulated.h"
#include "tiles_emulated.h"

#include "kernels/matmul/matmul_amx.c"
