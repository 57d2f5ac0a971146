/* Decode attention where K, V or both are in 8 bits (attention_decode.h). */
#include "device/cuda/attention_decode.h"

ATTENTION_KERNELS(ATTENTION_KERNEL, any, CACHE_ANY, 3)
