#include "platform/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Linux hands out the 8 KiB of tile state only to processes that ask. */
static int amx_permitted(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static uint64_t saved_state(void) { /* XCR0: the registers that the system saves */
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static cpu_mask detect(void) {
    unsigned a, b, c, d, b7, c7, d7, a71, unused;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return 0;
    int has_fma = (c & bit_FMA) != 0, has_f16c = (c & bit_F16C) != 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 0;
    uint64_t state = saved_state();
    cpu_mask mask = 0;
    if ((state & 0x6) == 0x6 && (b7 & bit_AVX2) != 0 && (b7 & bit_BMI2) != 0 && has_fma && has_f16c) mask |= CPU_AVX2;
    unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((mask & CPU_AVX2) != 0 && (state & 0xe6) == 0xe6 && (b7 & wanted) == wanted &&
        (c7 & (1u << 11)) != 0) /* AVX512_VNNI */
        mask |= CPU_AVX512;
    if ((mask & CPU_AVX512) == 0) return mask;
    unsigned counts = 1u << 14 | 1u << 12; /* AVX512_VPOPCNTDQ, AVX512_BITALG: together since Ice Lake and Zen 4 */
    if ((c7 & counts) == counts) mask |= CPU_VPOPCNTDQ;
    if (__get_cpuid_count(7, 1, &a71, &unused, &unused, &unused) && (a71 & (1u << 5)) != 0) mask |= CPU_AVX512_BF16;
    unsigned amx = 1u << 24 | 1u << 25 | 1u << 22; /* tile, int8, bf16 */
    if ((mask & CPU_AVX512_BF16) != 0 && (d7 & amx) == amx && (state & 0x60000) == 0x60000 && amx_permitted())
        mask |= CPU_AMX;
    return mask;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
static cpu_mask detect(void) {
    enum { HWCAP_DOTPROD = 1 << 20 };
    return CPU_NEON | ((getauxval(AT_HWCAP) & HWCAP_DOTPROD) != 0 ? CPU_DOTPROD : 0);
}
#else
static cpu_mask detect(void) { return 0; }
#endif

cpu_mask cpu_features(void) {
    static cpu_mask known;
    static int done;
    if (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&known, detect(), __ATOMIC_RELAXED);
        __atomic_store_n(&done, 1, __ATOMIC_RELEASE); /* pairs with the load above */
    }
    return __atomic_load_n(&known, __ATOMIC_RELAXED);
}

cpu_mask cpu_default(void) { return cpu_features() & ~(cpu_mask)CPU_AMX; }

static const struct {
    const char *name;
    cpu_mask allows;
} levels[] = {
    {"default", ~(cpu_mask)CPU_AMX},
    {"ref", 0},
    {"avx2", CPU_AVX2},
    {"avx512", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_VPOPCNTDQ},
    {"amx", CPU_AVX2 | CPU_AVX512 | CPU_AVX512_BF16 | CPU_VPOPCNTDQ | CPU_AMX},
    {"neon", CPU_NEON | CPU_DOTPROD},
    {"all", ~(cpu_mask)0},
};

enum status cpu_mask_parse(const char *text, cpu_mask *mask, struct error *error) {
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(text, levels[i].name) == 0) {
            *mask = levels[i].allows & cpu_features();
            return STATUS_OK;
        }
    return error_set(error, STATUS_USAGE,
                     "--cpu-mask: found '%s', expected default, ref, avx2, avx512, amx, neon or all", text);
}

const char *cpu_mask_text(cpu_mask mask, char *buffer, size_t buffer_bytes) {
    static const char *const names[] = {"avx2", "avx512", "avx512-bf16", "vpopcntdq", "amx", "neon", "dotprod"};
    size_t used = 0;
    if (buffer_bytes == 0) return "";
    buffer[0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if ((mask >> i & 1) == 0) continue;
        int length = snprintf(buffer + used, buffer_bytes - used, "%s%s", used ? " " : "", names[i]);
        if (length < 0 || (size_t)length >= buffer_bytes - used) break;
        used += (size_t)length;
    }
    if (used == 0) snprintf(buffer, buffer_bytes, "ref");
    return buffer;
}

const char *cpu_model_name(void) {
    static char name[128];
    if (name[0] != '\0') return name;
    snprintf(name, sizeof name, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL) return name;
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        colon += 1 + (colon[1] == ' ');
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(name, sizeof name, "%s", colon);
        break;
    }
    fclose(file);
    return name;
}

size_t cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int count = CPU_COUNT(&set);
    return count < 1 ? 1 : (size_t)count;
}
