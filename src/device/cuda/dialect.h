/* dialect: the words in which kernels are written, for two compilers.
 *
 * clang makes PTX of a kernel file (cmake/cuda.cmake has the flags; no CUDA toolkit is needed): the words
 * below are single instructions.  The host's compiler makes the same file part of the tests, where threads are
 * fibres and the same words are functions of the executor (tests/device/cuda/executor_dialect.h).
 *
 * A kernel takes one struct by value (kernels.h), has blocks of one dimension, and keeps everything that a block
 * shares in one struct at SHARED.  All 32 lanes of a warp take part in whatever a warp does together.  Nothing is
 * contracted (-ffp-contract=off): what is fused says `multiply_add`, so that both compilers round alike. */
#pragma once

#include <stdint.h>

struct alignas(16) u32x4 {
    uint32_t x, y, z, w;
};
struct alignas(8) u32x2 {
    uint32_t x, y;
};
struct alignas(16) f32x4 {
    float x, y, z, w;
};
struct alignas(8) f32x2 {
    float x, y;
};

#ifdef LOAM_EXECUTOR
#include "device/cuda/executor_dialect.h"
#else

#define DEVICE        static __attribute__((device)) inline __attribute__((always_inline))
#define DEVICE_MEMBER __attribute__((device)) inline __attribute__((always_inline))
/* name, parameter struct, threads of a block, blocks that must fit on a multiprocessor */
#define KERNEL(name, parameters, threads, blocks)                                                 \
    extern "C" __attribute__((global)) __attribute__((launch_bounds(threads, blocks))) void name( \
        const struct parameters args)
#define UNROLL            _Pragma("unroll")
#define UNROLL_TEXT(text) _Pragma(#text)
#define UNROLL_BY(times)  UNROLL_TEXT(unroll times)
#define AND_HERE          /* the executor adds a parameter: the line that asks */
#define PASS_HERE
#define ROLLED             _Pragma("unroll 1")

extern __attribute__((shared)) __attribute__((aligned(1024))) char shared_bytes[];
/* The block's shared memory as a struct; its size is what the launch asks for. */
#define SHARED(type)       (*(type *)(void *)shared_bytes)
/* The same, followed by bytes of a size that the launch decides. */
#define SHARED_ARRAY(type) ((type *)(void *)shared_bytes)

/* clang also reads a kernel for the host, where it only needs to be C++. */
#if defined(__CUDA_ARCH__)
#define PTX(...)      __asm__ volatile(__VA_ARGS__)
#define PTX_PURE(...) __asm__(__VA_ARGS__)
#define SREG(name)    ((uint32_t)__nvvm_read_ptx_sreg_##name())
#else
#define PTX(...)
#define PTX_PURE(...)
#define SREG(name) 0u
#endif

/* Where a thread is. */
DEVICE uint32_t thread_index(void) { return SREG(tid_x); }
DEVICE uint32_t lane_index(void) { return SREG(tid_x) & 31; }
DEVICE uint32_t block_x(void) { return SREG(ctaid_x); }
DEVICE uint32_t block_y(void) { return SREG(ctaid_y); }
DEVICE uint32_t block_z(void) { return SREG(ctaid_z); }
/* Asked anew, so that what follows from it needs no register in between. */
DEVICE uint32_t block_y_again(void) {
    uint32_t r = SREG(ctaid_y);
    PTX("mov.u32 %0, %%ctaid.y;" : "=r"(r));
    return r;
}
DEVICE uint32_t grid_x(void) { return SREG(nctaid_x); }
DEVICE uint32_t grid_y(void) { return SREG(nctaid_y); }

/* Threads that wait for each other, with what they wrote. */
DEVICE void block_barrier(void) { PTX("bar.sync 0;" ::: "memory"); }
DEVICE void warp_barrier(void) { PTX("bar.warp.sync 0xffffffff;" ::: "memory"); }

/* Values of other lanes. */
DEVICE uint32_t lane_xor(uint32_t value, uint32_t mask) {
    uint32_t r = value;
    PTX("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(value), "r"(mask));
    return r;
}
DEVICE uint32_t lane_get(uint32_t value, uint32_t lane) {
    uint32_t r = value;
    PTX("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(value), "r"(lane));
    return r;
}
/* Of the lane `by` below; the lane's own where there is none. */
DEVICE uint32_t lane_below(uint32_t value, uint32_t by) {
    uint32_t r = value;
    PTX("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(r) : "r"(value), "r"(by));
    return r;
}
/* Bit i: of lane i. */
DEVICE uint32_t warp_ballot(bool holds) {
    uint32_t r = holds;
    PTX("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(r) : "r"(r));
    return r;
}
/* The warp's number, in a way that tells the compiler that all lanes agree. */
DEVICE uint32_t warp_index(void) { return lane_get(SREG(tid_x) >> 5, 0); }

/* A dependent kernel may start; what precedes this one in the stream is complete (programmatic dependent launch).  In
 * PTX for older cards than sm_90 the words are comments, which module.c makes words again on a newer one. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PTX_OF_SM90(words) PTX(words ::: "memory")
#else
#define PTX_OF_SM90(words) PTX("//" words ::: "memory")
#endif
DEVICE void dependents_start(void) { PTX_OF_SM90("griddepcontrol.launch_dependents;"); }
DEVICE void dependency_wait(void) { PTX_OF_SM90("griddepcontrol.wait;"); }

/* Memory.  _once and _weight: what nobody writes while a step runs, the first read by this block only, so that it need
 * not stay in the first cache.  _bus: from the host's memory. */
DEVICE struct u32x4 load16_once(const void *p) {
    struct u32x4 v = {0, 0, 0, 0};
    PTX("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}
DEVICE struct u32x2 load8_once(const void *p) {
    struct u32x2 v = {0, 0};
    PTX("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEVICE uint32_t load4_once(const void *p) {
    uint32_t v = 0;
    PTX("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
/* A scale, which neighbours in its sector follow: cached. */
DEVICE uint32_t load2_weight(const void *p) {
    uint16_t v = 0;
    PTX("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
DEVICE uint32_t load4_weight(const void *p) {
    uint32_t v = 0;
    PTX("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE struct u32x2 load8_weight(const void *p) {
    struct u32x2 v = {0, 0};
    PTX("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEVICE struct u32x4 load16_weight(const void *p) {
    struct u32x4 v = {0, 0, 0, 0};
    PTX("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
/* What a kernel before this one has written: with programmatic dependent launch it may still write when this one
 * starts, and .nc is for what nobody writes as long as a kernel lives.  Behind dependency_wait. */
DEVICE uint32_t load2_written(const void *p) {
    uint16_t v = 0;
    PTX("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
DEVICE struct u32x2 load8_written(const void *p) {
    struct u32x2 v = {0, 0};
    PTX("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEVICE struct u32x4 load16_written(const void *p) {
    struct u32x4 v = {0, 0, 0, 0};
    PTX("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE struct u32x4 load16_bus(const void *p) {
    struct u32x4 v = {0, 0, 0, 0};
    PTX("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
/* Writes so far are seen by the host before later ones. */
DEVICE void system_fence(void) { PTX("fence.acq_rel.sys;" ::: "memory"); }

/* Old values. */
DEVICE uint32_t atomic_add(uint32_t *p, uint32_t value) {
    uint32_t old = 0;
    PTX("atom.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(value) : "memory");
    return old;
}
DEVICE uint64_t atomic_max64(uint64_t *p, uint64_t value) {
    uint64_t old = 0;
    PTX("atom.max.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(value) : "memory");
    return old;
}

/* Shared memory by its own addresses: copies that go on by themselves, and matrices of 8 x 8 halves. */
typedef uint32_t shared_address;
DEVICE shared_address shared_of(const void *p) {
    uint32_t r = 0;
    PTX_PURE("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(r) : "l"(p));
    return r;
}
DEVICE void copy_async16(shared_address to, const void *from) {
    PTX("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* 16 bytes of zeros where not `takes`; `from` is not read then. */
DEVICE void copy_async16_if(shared_address to, const void *from, bool takes) {
    const uint32_t bytes = takes ? 16 : 0;
    PTX("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    (void)bytes;
}
DEVICE void copy_async_commit(void) { PTX("cp.async.commit_group;" ::: "memory"); }
/* Until at most so many groups of this thread's copies are under way. */
template <int GROUPS> DEVICE void copy_async_wait(void) { PTX("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory"); }
/* r[i]: of matrix i, whose row j begins at the address that lane 8 i + j gives, row lane / 4, columns 2 (lane
 * % 4) and the next.  _turned: of its transpose. */
DEVICE void matrix_load4(uint32_t r[4], shared_address row) {
    PTX("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(row)
        : "memory");
}
DEVICE void matrix_load4_turned(uint32_t r[4], shared_address row) {
    PTX("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(row)
        : "memory");
}
/* d[16 x 8] += a[16 x 16] b[16 x 8], halves into floats.  With g = lane / 4 and t = lane % 4: d[0], d[1] are
 * row g, columns 2t and 2t + 1, d[2], d[3] row g + 8; a[0] row g, columns 2t.., a[1] row g + 8, a[2] and a[3]
 * the same 8 columns on; b0 rows 2t.. of column g, b1 8 rows on. */
DEVICE void matrix_multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    PTX("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* d[16 x 8] += a[16 x 32] b[32 x 8], signed bytes into integers: a[0] row g, columns 4t.., a[1] row g + 8,
 * a[2] and a[3] 16 columns on; b0 rows 4t.. of column g, b1 16 rows on; d as above. */
DEVICE void matrix_multiply_bytes(int32_t d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    PTX("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Arithmetic.  sum + the four products of signed bytes. */
DEVICE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
    int32_t r = sum;
    PTX_PURE("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sum));
    return r;
}
/* Byte i is byte (s >> 4 i & 7) of b:a; with bit 3 of the nibble, its sign eight times. */
DEVICE uint32_t bytes_pick(uint32_t a, uint32_t b, uint32_t s) {
    uint32_t r = 0;
    PTX_PURE("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s));
    return r;
}
DEVICE uint32_t bits_count(uint32_t x) { return (uint32_t)__builtin_popcount(x); }
/* 2^x, good to 2^-22 of itself; log2(x), good to 2^-22, or to as much of itself where x is beyond 1/2 and 2. */
DEVICE float exp2_near(float x) {
    float r = x;
    PTX_PURE("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEVICE float log2_near(float x) {
    float r = x;
    PTX_PURE("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/* Two halves in a word, the first in the low bits; rounds to the nearest. */
DEVICE uint32_t halves_of(float low, float high) {
    uint32_t r = 0;
    PTX_PURE("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEVICE float half_value(uint32_t half) {
    float r = 0;
    PTX_PURE("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((uint16_t)half));
    return r;
}
DEVICE uint32_t half_of(float x) {
    uint16_t r = 0;
    PTX_PURE("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
/* Of two halves at once. */
DEVICE uint32_t halves_subtract(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    PTX_PURE("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEVICE uint32_t halves_multiply(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    PTX_PURE("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
DEVICE uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t r = 0;
    PTX_PURE("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
/* A bug: the kernel stops and the device is broken. */
DEVICE void kernel_fault(void) { PTX("trap;"); }

#endif

/* ---- what both compilers share */

DEVICE uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
DEVICE float bits_float(uint32_t x) { return __builtin_bit_cast(float, x); }
DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float larger(float a, float b) { return a > b ? a : b; } /* b where either is NaN */
DEVICE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
DEVICE float magnitude(float x) { return bits_float(float_bits(x) & 0x7fffffffu); }
DEVICE float lane_xor(float value, uint32_t mask AND_HERE) {
    return bits_float(lane_xor(float_bits(value), mask PASS_HERE));
}
DEVICE float lane_get(float value, uint32_t lane AND_HERE) {
    return bits_float(lane_get(float_bits(value), lane PASS_HERE));
}

/* Each step of a butterfly adds what half as many lanes have.  The executor takes all steps at once. */
#ifndef LOAM_EXECUTOR
template <uint32_t LANES = 32> DEVICE float warp_sum(float value) { /* of each LANES neighbours */
    UNROLL
    for (uint32_t by = LANES / 2; by > 0; by >>= 1) value += lane_xor(value, by);
    return value;
}
DEVICE float warp_largest(float value) {
    UNROLL
    for (uint32_t by = 16; by > 0; by >>= 1) value = larger(lane_xor(value, by), value);
    return value;
}
DEVICE uint32_t warp_largest(uint32_t value) {
    UNROLL
    for (uint32_t by = 16; by > 0; by >>= 1) {
        const uint32_t other = lane_xor(value, by);
        value = other > value ? other : value;
    }
    return value;
}
#endif

/* e^x to some 2^-21 of itself at any x: what x log2 e loses in one float is made good. */
DEVICE float exp_near(float x) {
    const float log2e = 1.44269504f, log2e_rest = 1.92596303e-8f;
    const float high = x * log2e, low = multiply_add(x, log2e, -high) + x * log2e_rest;
    const float power = exp2_near(high);
    return x < -87 ? 0.0f : x > 88 ? __builtin_inff() : multiply_add(power, low * 0.693147182f, power);
}
DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp_near(-x)); }
/* tanh, good to some 2^-21 of 1. */
DEVICE float tanh_near(float x) { return 1.0f - 2.0f / (1.0f + exp_near(2 * x)); }

template <typename T> DEVICE T *at(uint64_t address) { return (T *)(uintptr_t)address; }
