/* Decode attention over K and V in halves (attention_decode.h). */
#include "device/cuda/attention_decode.h"

ATTENTION_KERNELS(ATTENTION_KERNEL, f16, CACHE_F16, 4)
