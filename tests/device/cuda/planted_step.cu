/* planted_step: norms, products, scores, choices, fetches and states of a decode step, with bugs to choose from
 * (plant.py). */
#include <stdint.h>

#include "device/cuda/planted_text.h"

extern "C" uint32_t planted_bug; /* enum planted_text_bug */
uint32_t planted_bug;
#define planted(name) (planted_bug == name)

#include "device/cuda/attention_decode.h"
#include "device/cuda/kernels/choose.cu"
#include "device/cuda/kernels/fetch.cu"
#include "device/cuda/kernels/level_score.cu"
#include "device/cuda/kernels/norm.cu"
#include "device/cuda/kernels/recurrence.cu"
#include "device/cuda/matvec.h"

ATTENTION_LIST(8, 1, f16, CACHE_F16, 4)
ATTENTION_LIST(8, 1, q4, CACHE_Q4, 4)
MATVEC_KERNELS(q4_0, 4, 4)
