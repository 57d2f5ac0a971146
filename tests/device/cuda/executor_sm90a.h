/* executor_sm90a: the words of src/device/cuda/dialect_sm90a.h for the executor, which that file includes. */
#pragma once

#include "device/cuda/executor_dialect.h"

void executor_mbarrier_init(char *barrier, uint32_t arrivals, HERE);
void executor_mbarriers_publish(void);
void executor_mbarrier_arrive(char *barrier, uint32_t bytes, HERE);
void executor_mbarrier_wait(char *barrier, uint32_t parity, HERE);
void executor_tensor_copy(char *to, const void *map, char *barrier, uint32_t column, uint32_t row, HERE);
void executor_store_async(char *to, const void *from, HERE);
void executor_async_fence(void);
void executor_registers(uint32_t count, bool raises, HERE);
uint32_t executor_shared_number(const char *address);
void executor_wgmma_fence(void);
struct executor_operands {
    uint64_t a; /* a descriptor */
    const uint32_t *fragment; /* or, not NULL, a's part of this thread; b is turned then */
    uint64_t b;
    uint32_t columns;
    bool adds;
};
void executor_wgmma(float *d, const struct executor_operands *operands, HERE);
void executor_wgmma_commit(void);
void executor_wgmma_wait(uint32_t groups, HERE);

#define ARGUMENTS_OF(kernel) ((const void *)&args)

DEVICE void mbarrier_init(shared_address barrier, uint32_t arrivals, HERE) {
    executor_mbarrier_init(barrier, arrivals, file, line);
}
DEVICE void mbarriers_publish(void) { executor_mbarriers_publish(); }
DEVICE void mbarrier_arrive(shared_address barrier, HERE) {
    executor_mbarrier_arrive(barrier, 0, file, line);
}
DEVICE void mbarrier_expect(shared_address barrier, uint32_t bytes, HERE) {
    executor_mbarrier_arrive(barrier, bytes, file, line);
}
DEVICE void mbarrier_wait(shared_address barrier, uint32_t parity, HERE) {
    executor_mbarrier_wait(barrier, parity, file, line);
}
DEVICE void tensor_copy_async(shared_address to, const void *map, shared_address barrier, uint32_t column,
                              uint32_t row, HERE) {
    executor_tensor_copy(to, map, barrier, column, row, file, line);
}
DEVICE void store16_async(shared_address to, struct u32x4 v, HERE) {
    EXECUTOR_WRITES(to, 16);
    executor_store_async(to, &v, file, line);
}
DEVICE void async_fence(void) { executor_async_fence(); }
template <int REGISTERS> DEVICE void registers_lower(HERE) {
    executor_registers(REGISTERS, false, file, line);
}
template <int REGISTERS> DEVICE void registers_raise(HERE) {
    executor_registers(REGISTERS, true, file, line);
}
DEVICE uint32_t shared_number(shared_address address) { return executor_shared_number(address); }
DEVICE void wgmma_fence(void) { executor_wgmma_fence(); }
template <uint32_t COUNT> DEVICE void wgmma(float (&d)[COUNT], uint64_t a, uint64_t b, bool adds = true, HERE) {
    const struct executor_operands operands = {a, NULL, b, COUNT * 2, adds};
    executor_wgmma(d, &operands, file, line);
}
template <uint32_t COUNT> DEVICE void wgmma_turned(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b, HERE) {
    const struct executor_operands operands = {0, a, b, COUNT * 2, true};
    executor_wgmma(d, &operands, file, line);
}
DEVICE void wgmma_commit(void) { executor_wgmma_commit(); }
template <int GROUPS> DEVICE void wgmma_wait(HERE) { executor_wgmma_wait(GROUPS, file, line); }
template <uint32_t COUNT> DEVICE void wgmma_results(float (&)[COUNT]) {}
