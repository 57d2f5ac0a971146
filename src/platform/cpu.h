/* cpu: which instruction sets may be used.
 *
 * Kernels pick their variant once, at start, from a mask: what the processor
 * has, what the kernel permits (AMX must be asked for), and what --cpu-mask
 * leaves.  Thread: cpu_features may be called from any.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum cpu_feature {
    CPU_AVX2 = 1 << 0,        /* AVX2, FMA, F16C, BMI2 */
    CPU_AVX512 = 1 << 1,      /* F, BW, DQ, VL and VNNI */
    CPU_AVX512_BF16 = 1 << 2, /* VDPBF16PS */
    CPU_VPOPCNTDQ = 1 << 3,   /* VPOPCNTDQ and BITALG: bits counted in quadwords down to bytes */
    CPU_AMX = 1 << 4,         /* tiles of bf16, granted by the kernel */
    CPU_NEON = 1 << 5,        /* AArch64 */
    CPU_DOTPROD = 1 << 6,     /* SDOT, UDOT */
};

typedef uint32_t cpu_mask; /* a set of enum cpu_feature */

/* What this processor and kernel allow.  Asks the kernel for AMX once. */
cpu_mask cpu_features(void);

/* What is used where nothing else is asked for: all but AMX, with which a token's result depends on the number of
 * tokens beside it (decision 0056). */
cpu_mask cpu_default(void);

/* --cpu-mask: "default", "ref", "avx2", "avx512", "amx", "neon" or "all": everything up to that level, within
 * cpu_features().  STATUS_USAGE for an unknown word. */
enum status cpu_mask_parse(const char *text, cpu_mask *mask, struct error *error) STATUS_CHECKED;

/* "avx2 avx512 amx", for tables; the text lives in buffer. */
const char *cpu_mask_text(cpu_mask mask, char *buffer, size_t buffer_bytes);

/* The processor's own name ("AMD EPYC ..."), for benchmark tables. */
const char *cpu_model_name(void);

/* Processors this process may run on. */
size_t cpu_count(void);
