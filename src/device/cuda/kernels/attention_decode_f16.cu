/* Decode attention over K and V in halves (attention_decode.h). */
#include "device/cuda/attention_decode.h"

ATTENTION_KERNELS(f16, false, 4)
