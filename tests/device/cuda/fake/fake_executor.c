/* The kernels of the device, run by the executor. */
#include "device/cuda/executor.h"
#include "device/cuda/fake/fake_internal.h"

static const struct executor_kernel *of_executor(const struct fake_kernel *kernel) {
    return (const struct executor_kernel *)kernel;
}

const struct fake_kernel *fake_kernel_find(const char *name) {
    return (const struct fake_kernel *)executor_find(name);
}

size_t fake_kernel_arguments(const struct fake_kernel *kernel) { return of_executor(kernel)->args_bytes; }

void fake_kernel_launch(const struct fake_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                        uint32_t shared_bytes, const void *arguments, uint64_t seed,
                        void (*precede)(void *context), void *context) {
    if (precede != NULL) executor_precede(precede, context);
    executor_launch(of_executor(kernel), grid, block, shared_bytes, arguments, seed);
}
