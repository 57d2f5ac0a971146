#define XXH3_VARIANT xxh3_ref
#define XXH3_LEAVE() (void)0
#include "kernels/xxh3/xxh3_body.h"

#include "platform/cpu.h"

const struct xxh3 *xxh3_best(void) {
#if defined(__x86_64__)
    if ((cpu_features() & CPU_AVX2) != 0) return &xxh3_avx2;
#endif
    return &xxh3_ref;
}
