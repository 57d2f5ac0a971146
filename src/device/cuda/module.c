#include "device/cuda/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a block has without asking. */
enum { SHARED_BYTES_PLAIN = 48 << 10, CAPABILITY_ALONE = 90, LOG_BYTES = 2048 };

static bool is_for(const struct cuda_image *image, uint32_t capability) {
    return image->capability == CAPABILITY_ALONE ? capability == CAPABILITY_ALONE
                                                 : capability >= image->capability;
}

/* The first line of what the driver's compiler complained of, which names the line of the PTX. */
static void log_append(struct error *error, char *log) {
    log[strcspn(log, "\n")] = '\0';
    const size_t length = strlen(error->message);
    if (log[0] != '\0') snprintf(error->message + length, sizeof error->message - length, ": %.200s", log);
}

static enum status image_load(struct cuda_modules *modules, const struct cuda_image *image,
                              struct error *error) {
    const struct cuda_driver *driver = modules->context->driver;
    char log[LOG_BYTES] = "", what[120];
    int32_t options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    enum cu_result result =
        driver->cuModuleLoadDataEx(&modules->handles[modules->count], image->ptx, 2, options, values);
    if (result == CU_SUCCESS) {
        modules->count++;
        return STATUS_OK;
    }
    snprintf(what, sizeof what, "loading the kernels of %s", image->name);
    enum status status = cuda_driver_error(driver, result, error, what);
    if (error != NULL) log_append(error, log);
    return status;
}

/* In two turns, so that the variants for this card alone are found first. */
static enum status images_load(struct cuda_modules *modules, const struct cuda_image *images,
                               size_t image_count, struct error *error) {
    const uint32_t capability = modules->context->properties.capability;
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < image_count; i++)
            if ((images[i].capability != CAPABILITY_ALONE) == turn && is_for(&images[i], capability))
                TRY(image_load(modules, &images[i], error));
    return STATUS_OK;
}

enum status cuda_modules_load(struct cuda_modules *modules, struct cuda_context *context,
                              const struct cuda_image *images, size_t image_count, struct error *error) {
    *modules = (struct cuda_modules){.context = context};
    TRY(cuda_context_status(context, error));
    if (image_count == 0)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: %s",
                         cuda_images_missing == NULL ? "no kernels" : cuda_images_missing);
    modules->handles = calloc(image_count, sizeof *modules->handles);
    if (modules->handles == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for modules");
    enum status status = images_load(modules, images, image_count, error);
    if (status != STATUS_OK) cuda_modules_unload(modules);
    return status;
}

void cuda_modules_unload(struct cuda_modules *modules) {
    while (modules->count > 0) {
        struct cu_module *module = modules->handles[--modules->count];
        if (!modules->context->is_stuck) (void)modules->context->driver->cuModuleUnload(module);
    }
    free(modules->handles);
    *modules = (struct cuda_modules){.context = NULL};
}

enum status cuda_kernel_find(struct cuda_kernel *kernel, const struct cuda_modules *modules, const char *name,
                             size_t shared_bytes, struct error *error) {
    const struct cuda_context *context = modules->context;
    const struct cuda_driver *driver = context->driver;
    char what[160];
    enum cu_result result = CU_NOT_FOUND;
    *kernel = (struct cuda_kernel){.name = name};
    for (size_t i = 0; i < modules->count && result == CU_NOT_FOUND; i++)
        result = driver->cuModuleGetFunction(&kernel->function, modules->handles[i], name);
    if (result == CU_NOT_FOUND)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: no kernel %s for %s", name,
                         context->properties.name);
    if (shared_bytes > context->properties.shared_bytes_max)
        return error_set(error, STATUS_UNSUPPORTED,
                         "cuda: kernel %s needs %zu bytes of shared memory, %s has %u a block", name,
                         shared_bytes, context->properties.name, context->properties.shared_bytes_max);
    if (result == CU_SUCCESS && shared_bytes > SHARED_BYTES_PLAIN)
        result = driver->cuFuncSetAttribute(kernel->function, CU_FUNCTION_DYNAMIC_SHARED_BYTES_MAX,
                                            (int32_t)shared_bytes);
    if (result == CU_SUCCESS) return STATUS_OK;
    snprintf(what, sizeof what, "kernel %s", name);
    return cuda_driver_error(driver, result, error, what);
}
