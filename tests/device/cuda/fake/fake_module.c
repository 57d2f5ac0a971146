/* Modules are PTX, of which the fake driver reads the head and the entries; their kernels are the host's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/fake/fake_internal.h"

static enum cu_result refused(enum cu_result result, char *log, size_t log_bytes, const char *why) {
    if (log != NULL) snprintf(log, log_bytes, "ptxas fatal   : %s\n", why);
    return result;
}

enum cu_result fake_module_load(struct cu_module **module, const char *ptx, char *log, size_t log_bytes) {
    unsigned major = 0, minor = 0, capability = 0;
    char letter = '\0';
    const char *version = strstr(ptx, ".version"), *target = strstr(ptx, ".target");
    if (version == NULL || target == NULL || sscanf(version, ".version %u.%u", &major, &minor) != 2 ||
        sscanf(target, ".target sm_%u%c", &capability, &letter) < 1)
        return refused(CU_INVALID_PTX, log, log_bytes, "no .version and .target");
    /* CUDA 12.x reads PTX 8.x */
    if (major * 10 + minor > 80 + (unsigned)(fake_settings.version - 12000) / 10)
        return refused(CU_UNSUPPORTED_PTX_VERSION, log, log_bytes, "a newer .version than the driver's");
    const unsigned card = (unsigned)fake_settings.capability;
    if (letter == 'a' ? card != capability : card < capability)
        return refused(CU_NO_BINARY_FOR_GPU, log, log_bytes, "a .target that is not this card's");
    struct cu_module *made = fake_object_create(FAKE_MODULE, sizeof *made);
    made->ptx = strdup(ptx);
    if (made->ptx == NULL) abort();
    *module = made;
    return CU_SUCCESS;
}

/* Bytes of the entry's one parameter; 0: there is no such entry. */
static size_t entry_bytes(const char *ptx, const char *name) {
    char pattern[200];
    snprintf(pattern, sizeof pattern, ".entry %s(", name);
    const char *entry = strstr(ptx, pattern), *end = entry == NULL ? NULL : strchr(entry, ')');
    if (end == NULL) return 0;
    snprintf(pattern, sizeof pattern, "%s_param_0[", name);
    const char *size = strstr(entry, pattern);
    if (size == NULL || size > end) return sizeof(uint64_t); /* a plain .u64 */
    return (size_t)strtoull(size + strlen(pattern), NULL, 10);
}

/* Whether the entry has griddepcontrol.wait, not as a comment: without it a card's kernel that starts early waits for
 * nothing, whatever the host's does. */
static bool entry_waits(const char *ptx, const char *name) {
    char pattern[200];
    snprintf(pattern, sizeof pattern, ".entry %s(", name);
    const char *entry = strstr(ptx, pattern), *end = strstr(entry + 1, ".entry ");
    for (const char *at = entry;
         (at = strstr(at, "griddepcontrol.wait")) != NULL && (end == NULL || at < end); at++)
        if (at[-1] != '/') return true;
    return false;
}

/* .maxntid, which a launch may not exceed; without it what any block may have. */
static uint32_t entry_threads(const char *ptx, const char *name) {
    char pattern[200];
    snprintf(pattern, sizeof pattern, ".entry %s(", name);
    const char *entry = strstr(ptx, pattern), *body = strchr(entry, '{'), *threads = strstr(entry, ".maxntid ");
    return threads == NULL || threads > body ? 1024 : (uint32_t)strtoul(threads + strlen(".maxntid "), NULL, 10);
}

enum cu_result fake_module_function(struct cu_function **function, const struct cu_module *module,
                                    const char *name) {
    const size_t bytes = entry_bytes(module->ptx, name);
    if (bytes == 0) return CU_NOT_FOUND;
    const struct fake_kernel *kernel = fake_kernel_find(name);
    if (kernel == NULL) {
        fake_complain("%s is in the PTX, and the host has no such kernel", name);
        return CU_NOT_FOUND;
    }
    if (fake_kernel_arguments(kernel) != bytes) {
        fake_complain("%s takes %zu bytes by the PTX and %zu on the host", name, bytes,
                      fake_kernel_arguments(kernel));
        return CU_INVALID_VALUE;
    }
    struct cu_function *made = fake_object_create(FAKE_FUNCTION, sizeof *made);
    made->kernel = kernel;
    made->can_wait = entry_waits(module->ptx, name);
    made->is_dropped = fake_is_dropped(name);
    made->shared_bytes_max = 48 << 10;
    made->threads_max = entry_threads(module->ptx, name);
    *function = made;
    return CU_SUCCESS;
}
