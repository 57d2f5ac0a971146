/* dialect_sm90a: further words for kernels that an H100 or H200 alone has (name_sm90a.cu): barriers in shared
 * memory that count arrivals and bytes, copies of tiles by the card's own engine (TMA), products by four warps at once
 * (wgmma).
 *
 * Copies of tiles and products read and write shared memory by another way than a thread's loads and stores, the async
 * proxy.  What a thread stores for them it stores by store16_async, and async_fence is between the two. */
#pragma once

#include "device/cuda/dialect.h"

#ifdef LOAM_EXECUTOR
#include "device/cuda/executor_sm90a.h"
#else

/* The struct that this kernel was launched with, where it lies: a copy of it would be none that the card knows. */
#define ARGUMENTS_OF(kernel)                                                                              \
    __extension__({                                                                                       \
        uint64_t where = 0;                                                                               \
        PTX_PURE("{ .reg .u64 t; mov.b64 t, " #kernel "_param_0; cvta.param.u64 %0, t; }" : "=l"(where)); \
        (const void *)where;                                                                              \
    })

/* A barrier: 8 bytes.  A phase ends when all arrivals and all bytes that were expected have come; phases are even and
 * odd in turn, from even on.  Before any use: mbarriers_publish, by the thread that made them, and a block_barrier. */
DEVICE void mbarrier_init(shared_address barrier, uint32_t arrivals) {
    PTX("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void mbarriers_publish(void) { PTX("fence.mbarrier_init.release.cluster;\n fence.proxy.async;" ::: "memory"); }
DEVICE void mbarrier_arrive(shared_address barrier) {
    PTX("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and so many bytes of copies are to come in this phase. */
DEVICE void mbarrier_expect(shared_address barrier, uint32_t bytes) {
    PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Until the phase of this parity (0: even) is over; at once where the one under way is of the other. */
DEVICE void mbarrier_wait(shared_address barrier, uint32_t parity) {
    PTX("{ .reg .pred p;\n"
        "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra AGAIN; }" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

/* The box of `map` (struct tensor_map) whose first element is (column, row), to shared memory, in the map's swizzle:
 * zeros where the tensor has ended.  Its bytes come to the barrier. */
DEVICE void tensor_copy_async(shared_address to, const void *map, shared_address barrier, uint32_t column,
                              uint32_t row) {
    PTX("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
        "%4}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}

DEVICE void store16_async(shared_address to, struct u32x4 v) {
    PTX("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
/* This thread's store16_async so far come before what follows by the async proxy. */
DEVICE void async_fence(void) { PTX("fence.proxy.async.shared::cta;" ::: "memory"); }

/* A warpgroup, four warps, gives registers back down to so many a thread, or waits for as many. */
template <int REGISTERS> DEVICE void registers_lower(void) {
    PTX("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> DEVICE void registers_raise(void) {
    PTX("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* The address as descriptors have it. */
DEVICE uint32_t shared_number(shared_address address) { return address; }

/* Products of a warpgroup go on by themselves: a fence in front of the first of a group, commit behind the last, wait
 * until at most so many groups are under way.  Until then nobody touches d, nor what the descriptors name. */
DEVICE void wgmma_fence(void) { PTX("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit(void) { PTX("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int GROUPS> DEVICE void wgmma_wait(void) {
    PTX("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
/* Behind the wait: the compiler may not read d before it. */
template <uint32_t COUNT> DEVICE void wgmma_results(float (&d)[COUNT]) {
    UNROLL
    for (uint32_t i = 0; i < COUNT; i++) PTX("" : "+f"(d[i])::"memory");
}

#define WGMMA_8(i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define WGMMA_32(i) WGMMA_8(i), WGMMA_8(i + 8), WGMMA_8(i + 16), WGMMA_8(i + 24)
#define WGMMA_TEXT_32                                                                            \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
    "%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_TEXT_64                                                                       \
    WGMMA_TEXT_32                                                                           \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52," \
    "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_TEXT_128                                                                           \
    WGMMA_TEXT_64                                                                                \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,"              \
    "%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,"   \
    "%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121," \
    "%122,%123,%124,%125,%126,%127"

/* d[64 x 2 COUNT] = a[64 x 16] b[16 x 2 COUNT], added to d where it adds: halves into floats, of matrices that
 * descriptors name, 16 halves of a row of each side by side.  With g = lane / 4, t = lane % 4: d[4 j + e] is row
 * 16 (warp % 4) + g + 8 (e / 2), column 8 j + 2 t + e % 2. */
DEVICE void wgmma(float (&d)[32], uint64_t a, uint64_t b) {
    PTX("{ .reg .pred adds; setp.eq.u32 adds, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WGMMA_TEXT_32 "}, %32, %33, adds, 1, 1, 0, 0; }"
        : WGMMA_32(0)
        : "l"(a), "l"(b));
}
DEVICE void wgmma(float (&d)[64], uint64_t a, uint64_t b, bool adds = true) {
    PTX("{ .reg .pred adds; setp.ne.u32 adds, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" WGMMA_TEXT_64 "}, %64, %65, adds, 1, 1, 0, 0; }"
        : WGMMA_32(0), WGMMA_32(32)
        : "l"(a), "l"(b), "r"((uint32_t)adds));
}
DEVICE void wgmma(float (&d)[128], uint64_t a, uint64_t b) {
    PTX("{ .reg .pred adds; setp.eq.u32 adds, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" WGMMA_TEXT_128 "}, %128, %129, adds, 1, 1, 0, 0; }"
        : WGMMA_32(0), WGMMA_32(32), WGMMA_32(64), WGMMA_32(96)
        : "l"(a), "l"(b));
}
/* Adds, a of registers: of a warp's 16 rows as matrix_multiply has it, untouched until the wait; b's descriptor is a
 * wgmma_descriptor_turned. */
DEVICE void wgmma_turned(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    PTX("{ .reg .pred adds; setp.eq.u32 adds, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" WGMMA_TEXT_32
        "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 1; }"
        : WGMMA_32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void wgmma_turned(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    PTX("{ .reg .pred adds; setp.eq.u32 adds, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" WGMMA_TEXT_64
        "}, {%64, %65, %66, %67}, %68, adds, 1, 1, 1; }"
        : WGMMA_32(0), WGMMA_32(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif

/* A matrix of halves in shared memory, in rows of 128 bytes whose eighths are swizzled (matmul.h): where its first 16
 * columns begin, 1,024 bytes from one 8 rows to the next, the swizzle of 128 bytes. */
DEVICE uint64_t wgmma_descriptor(shared_address first) {
    return (uint64_t)(shared_number(first) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
/* The same of a matrix whose rows are columns of the product's, 64 to a panel: where the first 16 of them begin. */
DEVICE uint64_t wgmma_descriptor_turned(shared_address first, uint32_t panel_bytes) {
    return wgmma_descriptor(first) ^ (uint64_t)1 << 16 ^ (uint64_t)(panel_bytes >> 4) << 16;
}
