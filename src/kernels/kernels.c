#include "kernels/kernels.h"

#include "kernels/attention/attention_internal.h"
#include "kernels/hash/hash_internal.h"
#include "kernels/matmul/matmul_internal.h"
#include "kernels/matvec/matvec_internal.h"

#define IF(features, install) \
    if ((mask & (features)) == (features)) install(kernels);
#if defined(__x86_64__)
#define AVX2(part)         IF(CPU_AVX2, part##_avx2_install)
#define AVX512(part)       IF(CPU_AVX512, part##_avx512_install)
#define AVX512POPCNT(part) IF(CPU_AVX512 | CPU_VPOPCNTDQ, part##_avx512popcnt_install)
#define AMX(part)          IF(CPU_AMX, part##_amx_install)
#else
#define AVX2(part)
#define AVX512(part)
#define AVX512POPCNT(part)
#define AMX(part)
#endif
#if defined(__aarch64__)
#define NEON(part)    IF(CPU_NEON, part##_neon_install)
#define DOTPROD(part) IF(CPU_DOTPROD, part##_dotprod_install)
#else
#define NEON(part)
#define DOTPROD(part)
#endif

#define OPERATION(name, variants)                                             \
    void name##_kernels_init(struct name##_kernels *kernels, cpu_mask mask) { \
        name##_ref_install(kernels);                                          \
        variants(void) mask;                                                  \
    }

/* What is installed later may overwrite entries of what is before it, and use them. */
OPERATION(abstract, AVX2(abstract) AVX512(abstract) NEON(abstract))
OPERATION(activation, AVX2(activation) AVX512(activation) NEON(activation))
OPERATION(attention,
          AVX2(attention_store) AVX2(attention_decode) AVX2(attention_prefill) AVX2(attention_gather)
              AVX2(attention_gather_q4) AVX512(attention_decode) AVX512(attention_prefill) AVX512(attention_gather)
                  AVX512(attention_gather_q4) AMX(attention_prefill) NEON(attention_store) NEON(attention_decode)
                      NEON(attention_prefill) NEON(attention_gather) NEON(attention_gather_q4))
OPERATION(codec, AVX2(codec) AVX512(codec) NEON(codec))
OPERATION(convert, AVX2(convert))
OPERATION(group, AVX2(group) AVX512(group) NEON(group))
OPERATION(hash, AVX2(hash) AVX512(hash) AVX512POPCNT(hash) NEON(hash))
OPERATION(level, AVX2(level) AVX512(level) NEON(level))
OPERATION(mass, AVX2(mass) AVX512(mass) NEON(mass))
OPERATION(matmul,
          AVX2(matmul_int8) AVX2(matmul_float) AVX512(matmul_int8) AVX512(matmul_float) AMX(matmul) NEON(matmul_float))
OPERATION(matvec, AVX2(matvec_prepare) AVX2(matvec_plain) AVX2(matvec_q8_32) AVX2(matvec_q8_256) AVX2(matvec_grid)
                      AVX512(matvec_q8_32) AVX512(matvec_q45_k) AVX512(matvec_q6_k) NEON(matvec_plain) NEON(matvec_q8)
                          DOTPROD(matvec_q8))
OPERATION(norm, AVX2(norm) AVX512(norm) NEON(norm))
OPERATION(project, AVX2(project) AVX512(project) NEON(project))
OPERATION(recurrence, AVX2(recurrence) AVX512(recurrence))
OPERATION(rope, AVX2(rope) NEON(rope))
OPERATION(score, AVX2(score) AVX512(score) NEON(score))
OPERATION(top_k, AVX2(top_k) AVX512(top_k) NEON(top_k))

void kernels_init(struct kernels *kernels, cpu_mask mask) {
    abstract_kernels_init(&kernels->abstract, mask);
    activation_kernels_init(&kernels->activation, mask);
    attention_kernels_init(&kernels->attention, mask);
    codec_kernels_init(&kernels->codec, mask);
    convert_kernels_init(&kernels->convert, mask);
    group_kernels_init(&kernels->group, mask);
    hash_kernels_init(&kernels->hash, mask);
    level_kernels_init(&kernels->level, mask);
    mass_kernels_init(&kernels->mass, mask);
    matmul_kernels_init(&kernels->matmul, mask);
    matvec_kernels_init(&kernels->matvec, mask);
    norm_kernels_init(&kernels->norm, mask);
    project_kernels_init(&kernels->project, mask);
    recurrence_kernels_init(&kernels->recurrence, mask);
    rope_kernels_init(&kernels->rope, mask);
    score_kernels_init(&kernels->score, mask);
    top_k_kernels_init(&kernels->top_k, mask);
}
