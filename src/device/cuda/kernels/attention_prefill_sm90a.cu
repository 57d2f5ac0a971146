/* Attention of prompts on an H100 (attention_prefill_wgmma.h). */
#include "device/cuda/attention_prefill_wgmma.h"

KERNEL(attention_prefill_wgmma_64, cuda_prefill_args, PREFILL_WGMMA_THREADS, 1) { prefill_wgmma_run<64>(args); }
KERNEL(attention_prefill_wgmma_128, cuda_prefill_args, PREFILL_WGMMA_THREADS, 1) { prefill_wgmma_run<128>(args); }
