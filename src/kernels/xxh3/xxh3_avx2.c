#include <immintrin.h>

#define XXH3_VARIANT xxh3_avx2
/* gcc 12 leaves it out behind what is inlined here: what the caller does in SSE then takes twice as long. */
#define XXH3_LEAVE() _mm256_zeroupper()
#include "kernels/xxh3/xxh3_body.h"
