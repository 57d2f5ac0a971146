#include "device/cuda/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a block has without asking. */
enum { SHARED_BYTES_PLAIN = 48 << 10, CAPABILITY_ALONE = 90, LOG_BYTES = 2048 };
static const char ENTRY[] = ".visible .entry "; /* in front of a kernel's name and its "(" */

static bool is_for(const struct cuda_image *image, uint32_t capability) {
    return image->capability == CAPABILITY_ALONE ? capability == CAPABILITY_ALONE : capability >= image->capability;
}

/* The first line of what the driver's compiler complained of, which names the line of the PTX. */
static void log_append(struct error *error, char *log) {
    log[strcspn(log, "\n")] = '\0';
    const size_t length = strlen(error->message);
    if (log[0] != '\0') snprintf(error->message + length, sizeof error->message - length, ": %.200s", log);
}

/* The PTX of one kernel for this card, newly allocated; NULL: no memory.  A kernel that may start before the one in
 * front of it ends waits for it by words that only sm_90 and PTX 7.8 have: in PTX for sm_80 they are comments
 * (dialect.h).  Without them it reads what is not there yet. */
static char *entry_ptx(const struct cuda_modules *modules, const struct cuda_entry *entry) {
    static const char *const WORDS[][2] = {{".version 7.5", ".version 7.8"}, /* each as long as the other */
                                           {".target sm_80", ".target sm_90"},
                                           {"//griddepcontrol.", "  griddepcontrol."}};
    const char *const image = entry->image->ptx, *const end = strstr(entry->text, "\n}");
    const size_t head = (size_t)(strstr(image, ENTRY) - image);
    const size_t body = end == NULL ? strlen(entry->text) : (size_t)(end + 2 - entry->text);
    char *ptx = malloc(head + body + 1);
    if (ptx == NULL) return NULL;
    memcpy(ptx, image, head);
    memcpy(ptx + head, entry->text, body);
    ptx[head + body] = '\0';
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS && cuda_starts_early(modules->context); i++)
        for (char *at = ptx; (at = strstr(at, WORDS[i][0])) != NULL;) memcpy(at, WORDS[i][1], strlen(WORDS[i][1]));
    return ptx;
}

static enum status entry_load(struct cuda_modules *modules, const struct cuda_entry *entry, const char *name,
                              struct error *error) {
    const struct cuda_driver *driver = modules->context->driver;
    char log[LOG_BYTES] = "", what[200];
    int32_t options[] = {CU_JIT_ERROR_LOG, CU_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    struct cuda_loaded *grown = realloc(modules->loaded, (modules->loaded_count + 1) * sizeof *grown);
    if (grown != NULL) modules->loaded = grown;
    char *ptx = grown == NULL ? NULL : entry_ptx(modules, entry);
    if (ptx == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for a kernel");
    struct cuda_loaded loaded = {.entry = entry};
    enum cu_result result = driver->cuModuleLoadDataEx(&loaded.handle, ptx, 2, options, values);
    free(ptx);
    if (result == CU_SUCCESS) {
        modules->loaded[modules->loaded_count++] = loaded;
        return STATUS_OK;
    }
    snprintf(what, sizeof what, "loading kernel %s of %s", name, entry->image->name);
    enum status status = cuda_driver_error(driver, result, error, what);
    if (error != NULL) log_append(error, log);
    return status;
}

/* NULL: there is none.  In two turns: one for this card alone is found first. */
static const struct cuda_entry *entry_find(const struct cuda_modules *modules, const char *name) {
    const uint32_t capability = modules->context->properties.capability;
    const size_t length = strlen(name);
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < modules->entry_count; i++) {
            const struct cuda_entry *entry = &modules->entries[i];
            const char *const own_name = entry->text + strlen(ENTRY);
            if ((entry->image->capability != CAPABILITY_ALONE) == turn && is_for(entry->image, capability) &&
                strncmp(own_name, name, length) == 0 && own_name[length] == '(')
                return entry;
        }
    return NULL;
}

/* Once: the images are some 20 MB of text. */
static enum status list_entries(struct cuda_modules *modules, const struct cuda_image *images, size_t image_count,
                                struct error *error) {
    size_t capacity = 0;
    for (size_t i = 0; i < image_count; i++)
        for (const char *at = images[i].ptx; (at = strstr(at, ENTRY)) != NULL; at += strlen(ENTRY)) {
            if (modules->entry_count == capacity) {
                capacity = capacity == 0 ? 512 : 2 * capacity;
                struct cuda_entry *grown = realloc(modules->entries, capacity * sizeof *grown);
                if (grown == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for the list of kernels");
                modules->entries = grown;
            }
            modules->entries[modules->entry_count++] = (struct cuda_entry){.image = &images[i], .text = at};
        }
    return STATUS_OK;
}

enum status cuda_modules_open(struct cuda_modules *modules, struct cuda_context *context,
                              const struct cuda_image *images, size_t image_count, struct error *error) {
    *modules = (struct cuda_modules){.context = context};
    TRY(cuda_context_status(context, error));
    if (image_count == 0)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: %s",
                         cuda_images_missing == NULL ? "no kernels" : cuda_images_missing);
    return list_entries(modules, images, image_count, error);
}

void cuda_modules_close(struct cuda_modules *modules) {
    for (size_t i = 0; i < modules->loaded_count && !modules->context->is_stuck; i++)
        (void)modules->context->driver->cuModuleUnload(modules->loaded[i].handle);
    free(modules->loaded);
    free(modules->entries);
    *modules = (struct cuda_modules){.context = NULL};
}

enum status cuda_kernel_find(struct cuda_kernel *kernel, struct cuda_modules *modules, const char *name,
                             size_t shared_bytes, struct error *error) {
    const struct cuda_context *context = modules->context;
    const struct cuda_entry *entry = entry_find(modules, name);
    size_t index = 0;
    char what[160];
    *kernel = (struct cuda_kernel){.name = name};
    if (entry == NULL)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: no kernel %s for %s", name, context->properties.name);
    if (shared_bytes > context->properties.shared_bytes_max)
        return error_set(error, STATUS_UNSUPPORTED,
                         "cuda: kernel %s needs %zu bytes of shared memory, %s has %u a block", name, shared_bytes,
                         context->properties.name, context->properties.shared_bytes_max);
    while (index < modules->loaded_count && modules->loaded[index].entry != entry) index++;
    if (index == modules->loaded_count) TRY(entry_load(modules, entry, name, error));
    enum cu_result result =
        context->driver->cuModuleGetFunction(&kernel->function, modules->loaded[index].handle, name);
    if (result == CU_SUCCESS && shared_bytes > SHARED_BYTES_PLAIN)
        result = context->driver->cuFuncSetAttribute(kernel->function, CU_FUNCTION_DYNAMIC_SHARED_BYTES_MAX,
                                                     (int32_t)shared_bytes);
    if (result == CU_SUCCESS) return STATUS_OK;
    snprintf(what, sizeof what, "kernel %s", name);
    return cuda_driver_error(context->driver, result, error, what);
}
