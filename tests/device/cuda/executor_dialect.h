/* executor_dialect: the words of src/device/cuda/dialect.h for the executor, which that file includes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "device/cuda/executor.h"

#define DEVICE        static inline
#define DEVICE_MEMBER inline
#define UNROLL
#define UNROLL_BY(times)
#define ROLLED

/* Links a kernel into the executor's table before main. */
struct executor_entry {
    struct executor_kernel kernel;
    struct executor_entry *next;
    executor_entry(const char *name, void (*run)(const void *), size_t args_bytes, uint32_t threads);
};

#define KERNEL(name, parameters, threads, blocks)                                                     \
    static void name(const struct parameters args);                                                   \
    static void name##_run(const void *args) { name(*(const struct parameters *)args); }              \
    static struct executor_entry name##_entry(#name, name##_run, sizeof(struct parameters), threads); \
    static_assert((threads) % 32 == 0 && (threads) <= 1024 && sizeof(struct parameters) <= 4096,      \
                  "a kernel");                                                                        \
    static void name(const struct parameters args)

/* What happens in a warp or block together, and where, for the lines of the executor. */
struct executor_site {
    const char *file;
    int line;
};
#define HERE      const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define AND_HERE  , HERE
#define PASS_HERE , file, line

/* Every word of a kernel asks where it is: a thread's own memory without a call, also in the fake driver's library. */
#define EXECUTOR_LOCAL __attribute__((tls_model("initial-exec"))) thread_local

extern EXECUTOR_LOCAL struct executor_thread {
    uint32_t index;             /* in the block */
    uint32_t block[3], grid[3]; /* of this launch */
} executor_now;

void *executor_shared(size_t bytes); /* checked against the launch */
void executor_barrier(HERE);
uint32_t executor_lane(int kind, uint32_t value, uint32_t operand, HERE);
void executor_dependency_wait(void);
void executor_copy(void *to, const void *from, bool takes, HERE);
void executor_copy_commit(void);
void executor_copy_wait(uint32_t groups);
void executor_matrix_load(uint32_t *r, const char *row, bool turned, HERE);
void executor_matrix_multiply(float *d, const uint32_t *a, uint32_t b0, uint32_t b1, HERE);
void executor_matrix_multiply_bytes(int32_t *d, const uint32_t *a, uint32_t b0, uint32_t b1, HERE);
float executor_exp2(float x);
float executor_log2(float x);
extern float executor_half_values[65536];
uint32_t executor_half_of(float x);
[[noreturn]] void executor_fault(const char *what, struct executor_site site);

/* What the executor reads and writes for a lane counts as the lane's own, at its line. */
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(const void *address, unsigned long bytes);
extern "C" void __tsan_write_range(void *address, unsigned long bytes);
#define EXECUTOR_READS(address, bytes)  __tsan_read_range(address, bytes)
#define EXECUTOR_WRITES(address, bytes) __tsan_write_range(address, bytes)
#else
#define EXECUTOR_READS(address, bytes)
#define EXECUTOR_WRITES(address, bytes)
#endif

enum {
    EXECUTOR_XOR,
    EXECUTOR_GET,
    EXECUTOR_BELOW,
    EXECUTOR_BALLOT,
    EXECUTOR_WARP,
    EXECUTOR_SUM, /* of floats; its operand, and of the next two: how many lanes */
    EXECUTOR_LARGEST,
    EXECUTOR_LARGEST_WORD
};

#define SHARED(type)       (*(type *)executor_shared(sizeof(type)))
#define SHARED_ARRAY(type) ((type *)executor_shared(0))

DEVICE uint32_t thread_index(void) { return executor_now.index; }
DEVICE uint32_t lane_index(void) { return executor_now.index & 31; }
DEVICE uint32_t block_x(void) { return executor_now.block[0]; }
DEVICE uint32_t block_y(void) { return executor_now.block[1]; }
DEVICE uint32_t block_y_again(void) { return executor_now.block[1]; }
DEVICE uint32_t block_z(void) { return executor_now.block[2]; }
DEVICE uint32_t grid_x(void) { return executor_now.grid[0]; }
DEVICE uint32_t grid_y(void) { return executor_now.grid[1]; }

DEVICE void block_barrier(HERE) { executor_barrier(file, line); }
DEVICE void warp_barrier(HERE) { executor_lane(EXECUTOR_WARP, 0, 0, file, line); }
DEVICE uint32_t lane_xor(uint32_t value, uint32_t mask, HERE) {
    return executor_lane(EXECUTOR_XOR, value, mask, file, line);
}
DEVICE uint32_t lane_get(uint32_t value, uint32_t lane, HERE) {
    return executor_lane(EXECUTOR_GET, value, lane, file, line);
}
DEVICE uint32_t lane_below(uint32_t value, uint32_t by, HERE) {
    return executor_lane(EXECUTOR_BELOW, value, by, file, line);
}
DEVICE uint32_t warp_ballot(bool holds, HERE) { return executor_lane(EXECUTOR_BALLOT, holds, 0, file, line); }
DEVICE float executor_fold(int kind, float value, uint32_t lanes, HERE) {
    return __builtin_bit_cast(
        float, executor_lane(kind, __builtin_bit_cast(uint32_t, value), lanes, file, line));
}
template <uint32_t LANES = 32> DEVICE float warp_sum(float value, HERE) {
    return executor_fold(EXECUTOR_SUM, value, LANES, file, line);
}
DEVICE float warp_largest(float value, HERE) { return executor_fold(EXECUTOR_LARGEST, value, 32, file, line); }
DEVICE uint32_t warp_largest(uint32_t value, HERE) {
    return executor_lane(EXECUTOR_LARGEST_WORD, value, 32, file, line);
}
DEVICE uint32_t warp_index(void) { return executor_now.index >> 5; }

DEVICE void dependents_start(void) {}
DEVICE void dependency_wait(void) { executor_dependency_wait(); }

template <typename T> DEVICE T executor_load(const void *p, HERE) {
    if ((uintptr_t)p % sizeof(T) != 0) executor_fault("a load that is not aligned", {file, line});
    return *(const T *)p;
}
DEVICE struct u32x4 load16_once(const void *p, HERE) { return executor_load<struct u32x4>(p, file, line); }
DEVICE struct u32x2 load8_once(const void *p, HERE) { return executor_load<struct u32x2>(p, file, line); }
DEVICE uint32_t load4_once(const void *p, HERE) { return executor_load<uint32_t>(p, file, line); }
DEVICE uint32_t load2_weight(const void *p, HERE) { return executor_load<uint16_t>(p, file, line); }
DEVICE uint32_t load2_written(const void *p, HERE) { return executor_load<uint16_t>(p, file, line); }
DEVICE uint32_t load4_weight(const void *p, HERE) { return executor_load<uint32_t>(p, file, line); }
DEVICE struct u32x2 load8_weight(const void *p, HERE) { return executor_load<struct u32x2>(p, file, line); }
DEVICE struct u32x2 load8_written(const void *p, HERE) { return executor_load<struct u32x2>(p, file, line); }
DEVICE struct u32x4 load16_weight(const void *p, HERE) { return executor_load<struct u32x4>(p, file, line); }
DEVICE struct u32x4 load16_written(const void *p, HERE) { return executor_load<struct u32x4>(p, file, line); }
DEVICE struct u32x4 load16_bus(const void *p, HERE) { return executor_load<struct u32x4>(p, file, line); }
DEVICE void system_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE uint32_t atomic_add(uint32_t *p, uint32_t value) {
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
DEVICE uint64_t atomic_max64(uint64_t *p, uint64_t value) {
    uint64_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < value &&
           !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}

typedef char *shared_address;
DEVICE shared_address shared_of(const void *p) { return (char *)p; }
DEVICE void copy_async16(shared_address to, const void *from, HERE) {
    EXECUTOR_READS(from, 16);
    EXECUTOR_WRITES(to, 16);
    executor_copy(to, from, true, file, line);
}
DEVICE void copy_async16_if(shared_address to, const void *from, bool takes, HERE) {
    if (takes) { EXECUTOR_READS(from, 16); }
    EXECUTOR_WRITES(to, 16);
    executor_copy(to, from, takes, file, line);
}
DEVICE void copy_async_commit(void) { executor_copy_commit(); }
template <int GROUPS> DEVICE void copy_async_wait(void) { executor_copy_wait(GROUPS); }
DEVICE void matrix_load4(uint32_t r[4], shared_address row, HERE) {
    EXECUTOR_READS(row, 16);
    executor_matrix_load(r, row, false, file, line);
}
DEVICE void matrix_load4_turned(uint32_t r[4], shared_address row, HERE) {
    EXECUTOR_READS(row, 16);
    executor_matrix_load(r, row, true, file, line);
}
DEVICE void matrix_multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, HERE) {
    executor_matrix_multiply(d, a, b0, b1, file, line);
}
DEVICE void matrix_multiply_bytes(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, HERE) {
    executor_matrix_multiply_bytes(d, a, b0, b1, file, line);
}

DEVICE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
    for (int i = 0; i < 32; i += 8) sum += (int8_t)(a >> i) * (int8_t)(b >> i);
    return sum;
}
DEVICE uint32_t bytes_pick(uint32_t a, uint32_t b, uint32_t s) {
    const uint64_t both = a | (uint64_t)b << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t pick = s >> 4 * i & 15, byte = both >> 8 * (pick & 7) & 255;
        r |= (pick & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return r;
}
DEVICE uint32_t bits_count(uint32_t x) { return (uint32_t)__builtin_popcount(x); }
DEVICE float exp2_near(float x) { return executor_exp2(x); }
DEVICE float log2_near(float x) { return executor_log2(x); }
DEVICE float half_value(uint32_t half) { return executor_half_values[half & 0xffff]; }
DEVICE uint32_t half_of(float x) { return executor_half_of(x); }
DEVICE uint32_t halves_of(float low, float high) { return half_of(low) | half_of(high) << 16; }
DEVICE float executor_half_at(uint32_t halves, int shift) { return half_value(halves >> shift & 0xffff); }
/* In float and then rounded to a half: for a sum or product of halves that is as if rounded once (24 >= 2 * 11
 * + 2); the fused one may be off by one last place where the float was a tie. */
DEVICE uint32_t halves_subtract(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) r |= half_of(executor_half_at(a, i) - executor_half_at(b, i)) << i;
    return r;
}
DEVICE uint32_t halves_multiply(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) r |= half_of(executor_half_at(a, i) * executor_half_at(b, i)) << i;
    return r;
}
DEVICE uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16)
        r |= half_of(__builtin_fmaf(executor_half_at(a, i), executor_half_at(b, i), executor_half_at(c, i)))
             << i;
    return r;
}
DEVICE void kernel_fault(HERE) { executor_fault("kernel_fault", {file, line}); }
