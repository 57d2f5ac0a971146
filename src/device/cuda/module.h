/* module: kernels, as the driver compiled them for this card. */
#pragma once

#include "device/cuda/context.h"
#include "device/cuda/images.h"

struct cuda_modules {
    struct cuda_context *context;
    struct cuda_entry {                 /* a kernel */
        const struct cuda_image *image; /* borrowed */
        const char *text;               /* within its PTX */
    } *entries;                         /* owned, [entry_count] */
    size_t entry_count;
    struct cuda_loaded { /* a kernel and what its image has for all */
        const struct cuda_entry *entry;
        struct cu_module *handle;
    } *loaded; /* owned, [loaded_count] */
    size_t loaded_count;
};

/* A kernel takes one struct by value.  name: as the file of kernels/ spells it; it must last. */
struct cuda_kernel {
    struct cu_function *function;
    const char *name;
};

/* Nothing is compiled yet.  STATUS_UNSUPPORTED: there are no images, and why. */
enum status cuda_modules_open(struct cuda_modules *modules, struct cuda_context *context,
                              const struct cuda_image *images, size_t image_count, struct error *error) STATUS_CHECKED;
void cuda_modules_close(struct cuda_modules *modules); /* zeros: allowed */

/* The variant for this card alone where there is one.  The driver compiles a kernel when it is first asked for, alone,
 * which takes it some tenths of a second, and keeps the result on disk.  shared_bytes: the most dynamic shared memory
 * that launches will ask for.  STATUS_UNSUPPORTED: no image for this card has it. */
enum status cuda_kernel_find(struct cuda_kernel *kernel, struct cuda_modules *modules, const char *name,
                             size_t shared_bytes, struct error *error) STATUS_CHECKED;
