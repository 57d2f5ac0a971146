/* cuda_device: one of NVIDIA's cards as a device (device.h): the dense operations, and weights in planes
 * (weight_layout.h).
 *
 * Of up to CUDA_MATVEC_ROWS rows an output of matmul or attention depends on its own row alone, to the bit; the
 * products of more rows take them as halves, and rows of a prompt share attention's kernel, which gives other bits, but
 * always the same ones. */
#pragma once

#include "device/cuda/context.h"
#include "device/device.h"

enum { CUDA_MATVEC_ROWS = 8 };

struct cuda_device_options {
    const char *driver_file; /* NULL: libcuda.so.1, as the system finds it */
    uint32_t index;          /* of the card */
    size_t thread_count;     /* of the host, for what is the host's work; 0: one per processor */
    uint64_t wait_limit_ns;  /* struct cuda_options' */
};

/* STATUS_UNSUPPORTED: there is no driver, no card that loam can use, or no kernels in this build; the message says
 * which.  STATUS_USAGE: there is no card of that index. */
enum status device_cuda_create(struct device **device, const struct cuda_device_options *options, struct error *error)
    STATUS_CHECKED;

/* What was asked of a device that device_cuda_create made. */
struct cuda_counts device_cuda_counts(const struct device *device);
