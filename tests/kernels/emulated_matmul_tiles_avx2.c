#define matmul_amx_install emulated_amx_install
#include "matmul_emulated.h"
#include "tiles_emulated.h"

#include "kernels/matmul/matmul_amx.c"
