/* Attention over lists of an f16 cache that has chunks in 4 bits among its rows (attention_decode.h): elements become
 * the halves that the codec decodes, so the sums are those of decoded chunks, to the bit. */
#include "device/cuda/attention_decode.h"

ATTENTION_KERNELS(ATTENTION_LIST, q4, CACHE_Q4, 3)
