/* module: kernels, as the driver compiled them for this card. */
#ifndef LOAM_DEVICE_CUDA_MODULE_H
#define LOAM_DEVICE_CUDA_MODULE_H

#include "device/cuda/context.h"
#include "device/cuda/images.h"

struct cuda_modules {
    struct cuda_context *context;
    struct cu_module **handles; /* owned, [count]: those for this card alone first */
    size_t count;
};

/* A kernel takes one struct by value.  name: as the file of kernels/ spells it; it must last. */
struct cuda_kernel {
    struct cu_function *function;
    const char *name;
};

/* Loads what this card can run.  STATUS_UNSUPPORTED: there is nothing to load, and why. */
enum status cuda_modules_load(struct cuda_modules *modules, struct cuda_context *context,
                              const struct cuda_image *images, size_t image_count, struct error *error)
    STATUS_CHECKED;
void cuda_modules_unload(struct cuda_modules *modules); /* zeros: allowed */

/* The variant for this card where there is one.  shared_bytes: the most dynamic shared memory that launches will ask
 * for.  STATUS_UNSUPPORTED: no image that was loaded has it. */
enum status cuda_kernel_find(struct cuda_kernel *kernel, const struct cuda_modules *modules, const char *name,
                             size_t shared_bytes, struct error *error) STATUS_CHECKED;

#endif
