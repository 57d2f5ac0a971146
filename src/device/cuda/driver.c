#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

#include "base/assert.h"

/* ---- errors ---- */

static enum status status_of(enum cu_result result) {
    if (result == CU_OUT_OF_MEMORY) return STATUS_MEMORY;
    if (result == CU_NO_DEVICE || result == CU_NO_BINARY_FOR_GPU || result == CU_UNSUPPORTED_PTX_VERSION ||
        result == CU_NOT_SUPPORTED)
        return STATUS_UNSUPPORTED;
    return STATUS_FAILED;
}

enum status cuda_driver_error(const struct cuda_driver *driver, enum cu_result result, struct error *error,
                              const char *what) {
    const char *name = NULL, *text = NULL;
    ASSERT(result != CU_SUCCESS);
    if (driver->cuGetErrorName(result, &name) != CU_SUCCESS || name == NULL) name = "an unknown error";
    if (driver->cuGetErrorString(result, &text) != CU_SUCCESS || text == NULL) text = "no text";
    return error_set(error, status_of(result), "cuda: %s: %s (%d, %s)", what, name, (int)result, text);
}

/* ---- the library ---- */

/* A symbol's address as a pointer to a function: ISO C has no conversion between the two, POSIX promises that the bits
 * are the same. */
static bool symbol_load(void *library, const char *symbol, void *member, size_t member_bytes) {
    void *address = dlsym(library, symbol);
    ASSERT(member_bytes == sizeof address);
    memcpy(member, &address, sizeof address);
    return address != NULL;
}

/* The name of a call that the library lacks; NULL: it has all. */
static const char *symbols_load(struct cuda_driver *driver) {
    const char *missing = NULL;
#define CALL(member, symbol, parameters) \
    if (!symbol_load(driver->handle, #symbol, &driver->member, sizeof driver->member)) missing = #symbol;
    CUDA_DRIVER_CALLS_OPTIONAL(CALL)
    missing = NULL;
    CUDA_DRIVER_CALLS(CALL)
#undef CALL
    return missing;
}

static enum status too_old(int32_t version, struct error *error) {
    return error_set(error, STATUS_UNSUPPORTED,
                     "cuda: the NVIDIA driver is of CUDA %d.%d, expected %d.%d or newer (driver 525)", version / 1000,
                     version % 1000 / 10, CUDA_DRIVER_VERSION_MIN / 1000, CUDA_DRIVER_VERSION_MIN % 1000 / 10);
}

/* The version first: a driver that is too old also lacks calls, and its version is the better reason. */
static enum status driver_check(struct cuda_driver *driver, struct error *error) {
    const char *missing = symbols_load(driver);
    if (driver->cuDriverGetVersion != NULL && driver->cuDriverGetVersion(&driver->version) == CU_SUCCESS &&
        driver->version < CUDA_DRIVER_VERSION_MIN)
        return too_old(driver->version, error);
    if (missing != NULL) return error_set(error, STATUS_UNSUPPORTED, "cuda: the NVIDIA driver lacks %s", missing);
    enum cu_result result = driver->cuInit(0);
    if (result == CU_NO_DEVICE) return error_set(error, STATUS_UNSUPPORTED, "cuda: no NVIDIA GPU was found");
    if (result != CU_SUCCESS) return cuda_driver_error(driver, result, error, "starting the driver");
    result = driver->cuDriverGetVersion(&driver->version);
    if (result != CU_SUCCESS) return cuda_driver_error(driver, result, error, "the driver's version");
    return STATUS_OK;
}

enum status cuda_driver_open(struct cuda_driver *driver, const char *library, struct error *error) {
    *driver = (struct cuda_driver){.handle = NULL};
    const char *name = library == NULL ? "libcuda.so.1" : library;
    driver->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (driver->handle == NULL) {
        const char *reason = dlerror();
        return error_set(error, STATUS_UNSUPPORTED, "cuda: no NVIDIA driver: %s", reason == NULL ? name : reason);
    }
    enum status status = driver_check(driver, error);
    if (status != STATUS_OK) cuda_driver_close(driver);
    return status;
}

void cuda_driver_close(struct cuda_driver *driver) {
    if (driver->handle != NULL) (void)dlclose(driver->handle);
    *driver = (struct cuda_driver){.handle = NULL};
}

/* ---- cards ---- */

enum status cuda_device_count(const struct cuda_driver *driver, uint32_t *count, struct error *error) {
    int32_t found = 0;
    enum cu_result result = driver->cuDeviceGetCount(&found);
    if (result != CU_SUCCESS) return cuda_driver_error(driver, result, error, "counting devices");
    *count = found > 0 ? (uint32_t)found : 0;
    return STATUS_OK;
}

struct attribute_reader {
    const struct cuda_driver *driver;
    int32_t device;
    enum cu_result result; /* the first that failed */
};

static uint32_t attribute_read(struct attribute_reader *reader, enum cu_device_attribute attribute) {
    int32_t value = 0;
    if (reader->result == CU_SUCCESS)
        reader->result = reader->driver->cuDeviceGetAttribute(&value, attribute, reader->device);
    return value > 0 ? (uint32_t)value : 0;
}

enum status cuda_properties_read(const struct cuda_driver *driver, uint32_t index, struct cuda_properties *properties,
                                 struct error *error) {
    *properties = (struct cuda_properties){.index = (int32_t)index};
    int32_t device = 0;
    enum cu_result result = driver->cuDeviceGet(&device, (int32_t)index);
    if (result == CU_SUCCESS)
        result = driver->cuDeviceGetName(properties->name, (int32_t)sizeof properties->name - 1, device);
    size_t memory_bytes = 0;
    if (result == CU_SUCCESS) result = driver->cuDeviceTotalMem(&memory_bytes, device);
    struct attribute_reader reader = {driver, device, result};
    properties->memory_bytes = memory_bytes;
    properties->capability =
        10 * attribute_read(&reader, CU_CAPABILITY_MAJOR) + attribute_read(&reader, CU_CAPABILITY_MINOR);
    properties->multiprocessor_count = attribute_read(&reader, CU_MULTIPROCESSOR_COUNT);
    properties->shared_bytes_max = attribute_read(&reader, CU_SHARED_BYTES_PER_BLOCK_MAX);
    properties->copy_engine_count = attribute_read(&reader, CU_ASYNC_ENGINE_COUNT);
    properties->is_integrated = attribute_read(&reader, CU_INTEGRATED) != 0;
    properties->has_unified_addresses = attribute_read(&reader, CU_UNIFIED_ADDRESSING) != 0;
    properties->can_register_host = attribute_read(&reader, CU_CAN_MAP_HOST_MEMORY) != 0 &&
                                    attribute_read(&reader, CU_HOST_REGISTER_SUPPORTED) != 0;
    if (reader.result == CU_SUCCESS) return STATUS_OK;
    return cuda_driver_error(driver, reader.result, error, "what a device is");
}
