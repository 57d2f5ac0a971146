#include "device/cuda/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a block has without asking. */
enum { SHARED_BYTES_PLAIN = 48 << 10, CAPABILITY_ALONE = 90, CAPABILITY_EARLY = 90, LOG_BYTES = 2048 };

static bool is_for(const struct cuda_image *image, uint32_t capability) {
    return image->capability == CAPABILITY_ALONE ? capability == CAPABILITY_ALONE : capability >= image->capability;
}

/* The first line of what the driver's compiler complained of, which names the line of the PTX. */
static void log_append(struct error *error, char *log) {
    log[strcspn(log, "\n")] = '\0';
    const size_t length = strlen(error->message);
    if (log[0] != '\0') snprintf(error->message + length, sizeof error->message - length, ": %.200s", log);
}

/* The PTX of an image for this card, newly allocated; NULL: no memory.  A kernel that may start before the one in front
 * of it ends waits for it by words that only sm_90 and PTX 7.8 have: in PTX for sm_80 they are comments (dialect.h).
 * Without them it reads what is not there yet. */
static char *image_ptx(const struct cuda_modules *modules, const struct cuda_image *image) {
    static const char *const WORDS[][2] = {{".version 7.5", ".version 7.8"}, /* each as long as the other */
                                           {".target sm_80", ".target sm_90"},
                                           {"//griddepcontrol.", "  griddepcontrol."}};
    char *ptx = strdup(image->ptx);
    if (ptx == NULL || modules->context->properties.capability < CAPABILITY_EARLY) return ptx;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        for (char *at = ptx; (at = strstr(at, WORDS[i][0])) != NULL;) memcpy(at, WORDS[i][1], strlen(WORDS[i][1]));
    return ptx;
}

static enum status image_load(struct cuda_modules *modules, size_t index, struct error *error) {
    const struct cuda_driver *driver = modules->context->driver;
    char log[LOG_BYTES] = "", what[120];
    int32_t options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    char *ptx = image_ptx(modules, &modules->images[index]);
    if (ptx == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for a module");
    enum cu_result result = driver->cuModuleLoadDataEx(&modules->handles[index], ptx, 2, options, values);
    free(ptx);
    if (result == CU_SUCCESS) return STATUS_OK;
    modules->handles[index] = NULL;
    snprintf(what, sizeof what, "loading the kernels of %s", modules->images[index].name);
    enum status status = cuda_driver_error(driver, result, error, what);
    if (error != NULL) log_append(error, log);
    return status;
}

static bool has_entry(const struct cuda_image *image, const char *name) {
    char pattern[160];
    snprintf(pattern, sizeof pattern, ".entry %s(", name);
    return strstr(image->ptx, pattern) != NULL;
}

/* The image that has the kernel; count: none.  In two turns, so that one for this card alone is found first. */
static size_t image_find(const struct cuda_modules *modules, const char *name) {
    const uint32_t capability = modules->context->properties.capability;
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < modules->count; i++) {
            const struct cuda_image *image = &modules->images[i];
            if ((image->capability != CAPABILITY_ALONE) == turn && is_for(image, capability) && has_entry(image, name))
                return i;
        }
    return modules->count;
}

enum status cuda_modules_open(struct cuda_modules *modules, struct cuda_context *context,
                              const struct cuda_image *images, size_t image_count, struct error *error) {
    *modules = (struct cuda_modules){.context = context, .images = images};
    TRY(cuda_context_status(context, error));
    if (image_count == 0)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: %s",
                         cuda_images_missing == NULL ? "no kernels" : cuda_images_missing);
    modules->handles = calloc(image_count, sizeof *modules->handles);
    if (modules->handles == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for modules");
    modules->count = image_count;
    return STATUS_OK;
}

void cuda_modules_close(struct cuda_modules *modules) {
    for (size_t i = 0; i < modules->count; i++)
        if (modules->handles[i] != NULL && !modules->context->is_stuck)
            (void)modules->context->driver->cuModuleUnload(modules->handles[i]);
    free(modules->handles);
    *modules = (struct cuda_modules){.context = NULL};
}

enum status cuda_kernel_find(struct cuda_kernel *kernel, struct cuda_modules *modules, const char *name,
                             size_t shared_bytes, struct error *error) {
    const struct cuda_context *context = modules->context;
    const size_t index = image_find(modules, name);
    char what[160];
    *kernel = (struct cuda_kernel){.name = name};
    if (index == modules->count)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: no kernel %s for %s", name, context->properties.name);
    if (shared_bytes > context->properties.shared_bytes_max)
        return error_set(error, STATUS_UNSUPPORTED,
                         "cuda: kernel %s needs %zu bytes of shared memory, %s has %u a block", name, shared_bytes,
                         context->properties.name, context->properties.shared_bytes_max);
    if (modules->handles[index] == NULL) TRY(image_load(modules, index, error));
    enum cu_result result = context->driver->cuModuleGetFunction(&kernel->function, modules->handles[index], name);
    if (result == CU_SUCCESS && shared_bytes > SHARED_BYTES_PLAIN)
        result = context->driver->cuFuncSetAttribute(kernel->function, CU_FUNCTION_DYNAMIC_SHARED_BYTES_MAX,
                                                     (int32_t)shared_bytes);
    if (result == CU_SUCCESS) return STATUS_OK;
    snprintf(what, sizeof what, "kernel %s", name);
    return cuda_driver_error(context->driver, result, error, what);
}
