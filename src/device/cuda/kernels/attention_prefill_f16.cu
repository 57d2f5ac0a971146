/* Attention of prompts over K and V in halves (attention_prefill.h). */
#include "device/cuda/attention_prefill.h"

PREFILL_KERNELS(f16, false)
