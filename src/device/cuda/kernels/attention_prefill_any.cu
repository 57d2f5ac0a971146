/* Attention of prompts where K, V or both are in 8 bits (attention_prefill.h). */
#include "device/cuda/attention_prefill.h"

PREFILL_KERNELS(any, true)
