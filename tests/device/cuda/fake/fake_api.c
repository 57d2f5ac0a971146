/* The driver's calls, as src/device/cuda/driver.h declares them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/executor.h"
#include "device/cuda/fake/fake_control.h"
#include "device/cuda/fake/fake_internal.h"

#define EXPORT                           __attribute__((visibility("default")))
#define CALL(member, symbol, parameters) EXPORT enum cu_result symbol parameters;
CUDA_DRIVER_CALLS(CALL)
CUDA_DRIVER_CALLS_OPTIONAL(CALL)
#undef CALL
EXPORT fake_leak_count_function fake_leak_count;
EXPORT fake_count_from_here_function fake_count_from_here;
EXPORT fake_start_anew_function fake_start_anew;

static const struct {
    enum cu_device_attribute attribute;
    int32_t value;
} attributes[] = {{CU_MULTIPROCESSOR_COUNT, 4},
                  {CU_CAN_MAP_HOST_MEMORY, 1},
                  {CU_ASYNC_ENGINE_COUNT, 2},
                  {CU_UNIFIED_ADDRESSING, 1}};
static const struct {
    enum cu_result result;
    const char *name, *text;
} errors[] = {{CU_SUCCESS, "CUDA_SUCCESS", "no error"},
              {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
              {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
              {CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
              {CU_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
              {CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
              {CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
              {CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
              {CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
              {CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
              {CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"}};
enum { ERROR_COUNT = sizeof errors / sizeof errors[0] };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_started;
static int32_t retained;
static uint64_t leak_count;
static struct cu_context *primary;
static __thread struct cu_context *current;
static struct fake_object *objects;
static uint32_t next_lane;

uint64_t fake_leak_count(void) { return leak_count; }

void fake_count_from_here(const char *setting) {
    (void)pthread_mutex_lock(&lock);
    fake_settings_heal();
    fake_settings_add(setting);
    fake_queue_count_anew();
    (void)pthread_mutex_unlock(&lock);
}

/* ---- objects ---- */

void *fake_object_create(enum fake_kind kind, size_t size_bytes) {
    struct fake_object *made = calloc(1, size_bytes);
    if (made == NULL) abort();
    *made = (struct fake_object){kind, true, objects};
    objects = made;
    return made;
}

bool fake_object_is(const void *object, enum fake_kind kind) {
    const struct fake_object *o = object;
    return o != NULL && o->kind == kind && o->is_alive;
}

/* What an object owns; the object itself stays, so that a late user of it is told apart. */
static void object_empty(struct fake_object *object) {
    switch (object->kind) {
    case FAKE_STREAM:
        free(((struct cu_stream *)object)->needed);
        ((struct cu_stream *)object)->needed = NULL;
        break;
    case FAKE_MODULE:
        free(((struct cu_module *)object)->ptx);
        ((struct cu_module *)object)->ptx = NULL;
        break;
    case FAKE_GRAPH: fake_graph_free((struct cu_graph *)object); break;
    case FAKE_EXEC: fake_exec_free((struct cu_graph_exec *)object); break;
    case FAKE_CONTEXT:
    case FAKE_EVENT:
    case FAKE_FUNCTION: break;
    }
}

void fake_object_destroy(void *object) {
    ((struct fake_object *)object)->is_alive = false;
    object_empty(object);
}

uint64_t fake_objects_forget(void) {
    uint64_t alive = 0;
    while (objects != NULL) {
        struct fake_object *object = objects;
        objects = object->next;
        if (object->is_alive && object->kind != FAKE_FUNCTION && object->kind != FAKE_CONTEXT) alive++;
        object_empty(object);
        free(object);
    }
    return alive;
}

/* ---- entering and leaving ---- */

/* With the lock, whatever it returns. */
static enum cu_result begin(const char *symbol) {
    (void)pthread_mutex_lock(&lock);
    return fake_fault_of(symbol);
}

static enum cu_result end(enum cu_result result) {
    if (fake_is_fatal(result) && retained > 0) fake_error = result;
    (void)pthread_mutex_unlock(&lock);
    return result;
}

/* For calls that need a context. */
static enum cu_result begin_in_context(const char *symbol) {
    const enum cu_result fault = begin(symbol);
    if (fault != CU_SUCCESS) return fault;
    if (!is_started) return (enum cu_result)3;                        /* not initialised */
    if (current == NULL || retained == 0) return (enum cu_result)201; /* no context */
    return fake_error;
}

/* For calls that put work on a queue: some of what is there may run first. */
static enum cu_result begin_with_progress(const char *symbol) {
    const enum cu_result result = begin_in_context(symbol);
    if (result != CU_SUCCESS) return result;
    fake_progress(0);
    return fake_error;
}

/* ---- the driver and its devices ---- */

enum cu_result cuInit(unsigned flags) {
    (void)pthread_mutex_lock(&lock);
    if (retained == 0) {
        fake_settings_read();
        fake_queue_forget();
        (void)fake_objects_forget();
        next_lane = 0;
    }
    is_started = true;
    enum cu_result result = fake_fault_of("cuInit");
    if (result == CU_SUCCESS && fake_settings.device_count == 0) result = CU_NO_DEVICE;
    if (result == CU_SUCCESS && flags != 0) result = CU_INVALID_VALUE;
    return end(result);
}

enum cu_result cuDriverGetVersion(int32_t *version) {
    enum cu_result result = begin("cuDriverGetVersion");
    if (!is_started) fake_settings_read(); /* it may be asked before all else */
    *version = fake_settings.version;
    return end(result);
}

static size_t error_find(enum cu_result result) {
    size_t i = 0;
    while (i < ERROR_COUNT && errors[i].result != result) i++;
    return i;
}

enum cu_result cuGetErrorName(enum cu_result result, const char **text) {
    const size_t i = error_find(result);
    if (i < ERROR_COUNT) *text = errors[i].name;
    return i < ERROR_COUNT ? CU_SUCCESS : CU_INVALID_VALUE;
}

enum cu_result cuGetErrorString(enum cu_result result, const char **text) {
    const size_t i = error_find(result);
    if (i < ERROR_COUNT) *text = errors[i].text;
    return i < ERROR_COUNT ? CU_SUCCESS : CU_INVALID_VALUE;
}

enum cu_result cuDeviceGetCount(int32_t *count) {
    enum cu_result result = begin("cuDeviceGetCount");
    *count = fake_settings.device_count;
    return end(result);
}

static bool is_device(int32_t device) { return device >= 0 && device < fake_settings.device_count; }

enum cu_result cuDeviceGet(int32_t *device, int32_t index) {
    enum cu_result result = begin("cuDeviceGet");
    *device = index;
    return end(result != CU_SUCCESS || is_device(index) ? result : (enum cu_result)101);
}

enum cu_result cuDeviceGetName(char *name, int32_t size, int32_t device) {
    enum cu_result result = begin("cuDeviceGetName");
    if (result == CU_SUCCESS) snprintf(name, (size_t)size, "Fake GPU %d", device);
    return end(result);
}

/* What a block may ask for, by the programming guide: an A100 has more than later cards for desktops. */
static int32_t shared_bytes_max(void) {
    const int32_t capability = fake_settings.capability;
    return (capability >= 90 && capability < 120 ? 227 : capability == 80 || capability == 87 ? 163 : 99) << 10;
}

enum cu_result cuDeviceGetAttribute(int32_t *value, enum cu_device_attribute attribute, int32_t device) {
    enum cu_result result = begin("cuDeviceGetAttribute");
    (void)device;
    *value = 0;
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (attributes[i].attribute == attribute) *value = attributes[i].value;
    if (attribute == CU_CAPABILITY_MAJOR) *value = fake_settings.capability / 10;
    if (attribute == CU_CAPABILITY_MINOR) *value = fake_settings.capability % 10;
    if (attribute == CU_SHARED_BYTES_PER_BLOCK_MAX) *value = shared_bytes_max();
    if (attribute == CU_INTEGRATED) *value = fake_settings.is_integrated;
    if (attribute == CU_HOST_REGISTER_SUPPORTED) *value = fake_settings.can_register != 0;
    return end(result);
}

enum cu_result cuDeviceTotalMem_v2(size_t *size_bytes, int32_t device) {
    enum cu_result result = begin("cuDeviceTotalMem_v2");
    (void)device;
    *size_bytes = fake_settings.memory_bytes;
    return end(result);
}

enum cu_result cuDevicePrimaryCtxRetain(struct cu_context **context, int32_t device) {
    enum cu_result result = begin("cuDevicePrimaryCtxRetain");
    if (result != CU_SUCCESS) return end(result);
    if (!is_device(device)) return end((enum cu_result)101);
    if (retained++ == 0) primary = fake_object_create(FAKE_CONTEXT, sizeof(struct fake_object));
    *context = primary;
    return end(CU_SUCCESS);
}

/* A driver would free silently what is left; here it is counted. */
static void forget(void) {
    fake_queue_forget();
    leak_count = fake_memory_forget();
    leak_count += fake_objects_forget();
    current = NULL;
}

enum cu_result cuDevicePrimaryCtxRelease_v2(int32_t device) {
    enum cu_result result = begin("cuDevicePrimaryCtxRelease_v2");
    (void)device;
    if (result != CU_SUCCESS) return end(result);
    if (retained == 0) return end((enum cu_result)201);
    if (--retained == 0) forget();
    return end(CU_SUCCESS);
}

void fake_start_anew(void) {
    (void)pthread_mutex_lock(&lock);
    forget();
    retained = 0;
    (void)pthread_mutex_unlock(&lock);
}

/* A program that could not release its context leaves with it. */
__attribute__((destructor)) static void unload(void) {
    fake_queue_forget();
    (void)fake_memory_forget();
    (void)fake_objects_forget();
}

enum cu_result cuCtxSetCurrent(struct cu_context *context) {
    enum cu_result result = begin("cuCtxSetCurrent");
    if (result == CU_SUCCESS) current = context;
    return end(result);
}

/* ---- memory ---- */

enum cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    enum cu_result result = begin_in_context("cuMemGetInfo_v2");
    *free_bytes = fake_memory_free_bytes();
    *total_bytes = fake_settings.memory_bytes;
    return end(result);
}

enum cu_result cuMemAlloc_v2(uint64_t *address, size_t size_bytes) {
    enum cu_result result = begin_in_context("cuMemAlloc_v2");
    void *area = NULL;
    if (result == CU_SUCCESS) result = fake_memory_create(FAKE_DEVICE, NULL, size_bytes, &area);
    *address = (uint64_t)(uintptr_t)area;
    return end(result);
}

enum cu_result cuMemFree_v2(uint64_t address) {
    enum cu_result result = begin_in_context("cuMemFree_v2");
    if (result != CU_SUCCESS) return end(result);
    fake_drain("cuMemFree");
    return end(fake_memory_destroy(FAKE_DEVICE, (void *)(uintptr_t)address));
}

enum cu_result cuMemHostAlloc(void **address, size_t size_bytes, unsigned flags) {
    enum cu_result result = begin_in_context("cuMemHostAlloc");
    *address = NULL;
    if (result == CU_SUCCESS && (flags & CU_HOST_DEVICE_MAPPED) == 0) result = CU_INVALID_VALUE;
    if (result == CU_SUCCESS) result = fake_memory_create(FAKE_HOST, NULL, size_bytes, address);
    return end(result);
}

enum cu_result cuMemFreeHost(void *address) {
    enum cu_result result = begin_in_context("cuMemFreeHost");
    if (result != CU_SUCCESS) return end(result);
    fake_drain("cuMemFreeHost");
    return end(fake_memory_destroy(FAKE_HOST, address));
}

enum cu_result cuMemHostRegister_v2(void *address, size_t size_bytes, unsigned flags) {
    enum cu_result result = begin_in_context("cuMemHostRegister_v2");
    if (result == CU_SUCCESS && fake_settings.can_register != 1) result = CU_NOT_SUPPORTED;
    if (result == CU_SUCCESS && (flags & CU_HOST_DEVICE_MAPPED) == 0) result = CU_INVALID_VALUE;
    if (result == CU_SUCCESS) result = fake_memory_create(FAKE_REGISTERED, address, size_bytes, NULL);
    return end(result);
}

enum cu_result cuMemHostUnregister(void *address) {
    enum cu_result result = begin_in_context("cuMemHostUnregister");
    if (result != CU_SUCCESS) return end(result);
    fake_drain("cuMemHostUnregister");
    return end(fake_memory_destroy(FAKE_REGISTERED, address));
}

enum cu_result cuMemHostGetDevicePointer_v2(uint64_t *address, void *host_address, unsigned flags) {
    enum cu_result result = begin_in_context("cuMemHostGetDevicePointer_v2");
    (void)flags;
    *address = (uint64_t)(uintptr_t)host_address;
    if (result == CU_SUCCESS && !fake_memory_is_host(host_address)) result = CU_INVALID_VALUE;
    return end(result);
}

/* ---- kernels ---- */

enum cu_result cuModuleLoadDataEx(struct cu_module **module, const void *image, unsigned option_count,
                                  int32_t *options, void **values) {
    enum cu_result result = begin_in_context("cuModuleLoadDataEx");
    char *log = NULL;
    size_t log_bytes = 0;
    for (unsigned i = 0; i < option_count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG) log = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BYTES) log_bytes = (size_t)(uintptr_t)values[i];
    }
    if (result == CU_SUCCESS) result = fake_module_load(module, image, log, log_bytes);
    return end(result);
}

enum cu_result cuModuleUnload(struct cu_module *module) {
    enum cu_result result = begin_in_context("cuModuleUnload");
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(module, FAKE_MODULE)) return end(CU_INVALID_HANDLE);
    fake_drain("cuModuleUnload");
    fake_object_destroy(module);
    return end(CU_SUCCESS);
}

enum cu_result cuModuleGetFunction(struct cu_function **function, struct cu_module *module,
                                   const char *name) {
    enum cu_result result = begin_in_context("cuModuleGetFunction");
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(module, FAKE_MODULE)) return end(CU_INVALID_HANDLE);
    return end(fake_module_function(function, module, name));
}

enum cu_result cuFuncSetAttribute(struct cu_function *function, int32_t attribute, int32_t value) {
    enum cu_result result = begin_in_context("cuFuncSetAttribute");
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(function, FAKE_FUNCTION)) return end(CU_INVALID_HANDLE);
    if (attribute != CU_FUNCTION_DYNAMIC_SHARED_BYTES_MAX || value < 0 || value > shared_bytes_max())
        return end(CU_INVALID_VALUE);
    function->shared_bytes_max = (uint32_t)value;
    return end(CU_SUCCESS);
}

static enum cu_result kernel_work(struct fake_work *work, const struct cu_function *function,
                                  const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                                  void **parameters) {
    if (!fake_object_is(function, FAKE_FUNCTION)) return CU_INVALID_HANDLE;
    const struct fake_work named = {.kind = FAKE_TASK_KERNEL,
                                    .kernel = function->kernel,
                                    .grid = {grid[0], grid[1], grid[2]},
                                    .block = {block[0], block[1], block[2]},
                                    .shared_bytes = shared_bytes,
                                    .arguments = parameters[0],
                                    .is_dropped = function->is_dropped,
                                    .can_wait = function->can_wait};
    if (shared_bytes > function->shared_bytes_max || block[0] * block[1] * block[2] > function->threads_max)
        return CU_INVALID_VALUE;
    const enum cu_result result = fake_work_check(&named);
    if (result == CU_SUCCESS) fake_work_copy(work, &named); /* the struct is read now */
    return result;
}

/* What the manual asks for of a map of this kind; the executor reads its own kind of map. */
static bool is_tensor(uint32_t type, const uint64_t *sizes, const uint64_t *strides_bytes,
                      const uint32_t *box, const uint32_t *steps, uint32_t swizzle) {
    bool is_right = type == CU_TENSOR_FLOAT16 && strides_bytes[0] % 16 == 0 &&
                    strides_bytes[0] >= sizes[0] * 2 && strides_bytes[0] < (uint64_t)1 << 40 &&
                    box[0] * 2 % 16 == 0;
    for (int i = 0; i < 2; i++)
        is_right = is_right && sizes[i] > 0 && sizes[i] <= (uint64_t)1 << 32 && box[i] > 0 && box[i] <= 256 &&
                   steps[i] == 1;
    return is_right && (swizzle == 0 || (swizzle == CU_TENSOR_SWIZZLE_128B && box[0] * 2 <= 128));
}

enum cu_result cuTensorMapEncodeTiled(void *map, uint32_t type, uint32_t rank, uint64_t address,
                                      const uint64_t *sizes, const uint64_t *strides_bytes,
                                      const uint32_t *box, const uint32_t *steps, uint32_t interleave,
                                      uint32_t swizzle, uint32_t promotion, uint32_t fill) {
    enum cu_result result = begin_in_context("cuTensorMapEncodeTiled");
    if (result != CU_SUCCESS) return end(result);
    if ((uintptr_t)map % 64 != 0 || rank != 2 || address % 16 != 0 || interleave != 0 || promotion > 3 ||
        fill != 0 || !is_tensor(type, sizes, strides_bytes, box, steps, swizzle))
        return end(CU_INVALID_VALUE);
    const struct executor_tensor tensor = {EXECUTOR_TENSOR_MARK,  address, sizes[0], sizes[1],
                                           strides_bytes[0],      box[0],  box[1],   2,
                                           swizzle == 0 ? 0 : 128};
    memcpy(map, &tensor, sizeof tensor);
    return end(fake_memory_reaches(address, (sizes[1] - 1) * strides_bytes[0] + sizes[0] * 2, "a tensor map")
                   ? CU_SUCCESS
                   : CU_INVALID_VALUE);
}

/* ---- streams ---- */

enum cu_result cuStreamCreate(struct cu_stream **stream, unsigned flags) {
    enum cu_result result = begin_in_context("cuStreamCreate");
    if (result == CU_SUCCESS && flags != CU_STREAM_NON_BLOCKING) result = CU_INVALID_VALUE;
    if (result != CU_SUCCESS) return end(result);
    *stream = fake_object_create(FAKE_STREAM, sizeof **stream);
    (*stream)->lane = next_lane++;
    return end(CU_SUCCESS);
}

enum cu_result cuStreamDestroy_v2(struct cu_stream *stream) {
    enum cu_result result = begin_in_context("cuStreamDestroy_v2");
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(stream, FAKE_STREAM)) return end(CU_INVALID_HANDLE);
    fake_object_destroy(stream); /* what is on it still runs */
    return end(CU_SUCCESS);
}

static enum cu_result stream_put(struct cu_stream *stream, struct fake_work *work, enum cu_result result) {
    if (result == CU_SUCCESS && !fake_object_is(stream, FAKE_STREAM)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) result = fake_work_check(work);
    if (result == CU_SUCCESS) (void)fake_stream_add(stream, work, false);
    return result;
}

enum cu_result cuMemcpyAsync(uint64_t target, uint64_t source, size_t size_bytes, struct cu_stream *stream) {
    enum cu_result result = begin_with_progress("cuMemcpyAsync");
    struct fake_work work = {
        .kind = FAKE_TASK_COPY, .target = target, .source = source, .size_bytes = size_bytes};
    return end(stream_put(stream, &work, result));
}

enum cu_result cuMemsetD8Async(uint64_t target, unsigned char value, size_t size_bytes,
                               struct cu_stream *stream) {
    enum cu_result result = begin_with_progress("cuMemsetD8Async");
    struct fake_work work = {
        .kind = FAKE_TASK_FILL, .target = target, .size_bytes = size_bytes, .value = value};
    return end(stream_put(stream, &work, result));
}

static struct fake_work operation_work(uint32_t operation, uint64_t address, uint32_t value) {
    return (struct fake_work){.kind = FAKE_TASK_OPERATIONS,
                              .operations = {{.operation = operation, .address = address, .value = value}},
                              .operation_count = 1};
}

enum cu_result cuStreamWaitValue32_v2(struct cu_stream *stream, uint64_t address, uint32_t value,
                                      unsigned flags) {
    enum cu_result result = begin_with_progress("cuStreamWaitValue32_v2");
    if (result == CU_SUCCESS && !fake_settings.has_waits) result = CU_NOT_SUPPORTED;
    if (result == CU_SUCCESS && flags != CU_STREAM_WAIT_VALUE_GEQ) result = CU_INVALID_VALUE;
    struct fake_work work = operation_work(CU_OPERATION_WAIT_VALUE_32, address, value);
    return end(stream_put(stream, &work, result));
}

enum cu_result cuStreamWriteValue32_v2(struct cu_stream *stream, uint64_t address, uint32_t value,
                                       unsigned flags) {
    enum cu_result result = begin_with_progress("cuStreamWriteValue32_v2");
    if (result == CU_SUCCESS && !fake_settings.has_waits) result = CU_NOT_SUPPORTED;
    if (result == CU_SUCCESS && flags != 0) result = CU_INVALID_VALUE;
    struct fake_work work = operation_work(CU_OPERATION_WRITE_VALUE_32, address, value);
    return end(stream_put(stream, &work, result));
}

enum cu_result cuLaunchKernelEx(const struct cu_launch_config *config, struct cu_function *function,
                                void **parameters, void **extra) {
    enum cu_result result = begin_with_progress("cuLaunchKernelEx");
    struct fake_work work = {.kind = FAKE_TASK_EMPTY};
    bool is_early = false;
    for (uint32_t i = 0; i < config->attribute_count; i++) {
        if (config->attributes[i].id != CU_LAUNCH_PROGRAMMATIC_SERIALIZATION) return end(CU_INVALID_VALUE);
        is_early = config->attributes[i].value.allowed != 0;
        if (fake_settings.capability < 90) return end(CU_NOT_SUPPORTED);
    }
    if (result == CU_SUCCESS && extra != NULL) result = CU_INVALID_VALUE;
    if (result == CU_SUCCESS && !fake_object_is(config->stream, FAKE_STREAM)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS)
        result = kernel_work(&work, function, config->grid, config->block, config->shared_bytes, parameters);
    if (result == CU_SUCCESS) (void)fake_stream_add(config->stream, &work, is_early);
    return end(result);
}

/* ---- events ---- */

enum cu_result cuEventCreate(struct cu_event **event, unsigned flags) {
    enum cu_result result = begin_in_context("cuEventCreate");
    (void)flags;
    if (result == CU_SUCCESS) *event = fake_object_create(FAKE_EVENT, sizeof **event);
    return end(result);
}

enum cu_result cuEventDestroy_v2(struct cu_event *event) {
    enum cu_result result = begin_in_context("cuEventDestroy_v2");
    if (result == CU_SUCCESS && !fake_object_is(event, FAKE_EVENT)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) fake_object_destroy(event);
    return end(result);
}

enum cu_result cuEventRecord(struct cu_event *event, struct cu_stream *stream) {
    enum cu_result result = begin_with_progress("cuEventRecord");
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(event, FAKE_EVENT) || !fake_object_is(stream, FAKE_STREAM))
        return end(CU_INVALID_HANDLE);
    struct fake_work nothing = {.kind =
                                    FAKE_TASK_EMPTY}; /* also after what the stream was made to wait for */
    event->task = fake_stream_add(stream, &nothing, false);
    return end(CU_SUCCESS);
}

enum cu_result cuEventQuery(struct cu_event *event) {
    enum cu_result result = begin_in_context("cuEventQuery");
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(event, FAKE_EVENT)) return end(CU_INVALID_HANDLE);
    fake_progress(event->task);
    if (fake_error != CU_SUCCESS) return end(fake_error);
    return end(fake_task_is_done(event->task) ? CU_SUCCESS : CU_NOT_READY);
}

enum cu_result cuStreamQuery(struct cu_stream *stream) {
    enum cu_result result = begin_in_context("cuStreamQuery");
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(stream, FAKE_STREAM)) return end(CU_INVALID_HANDLE);
    fake_progress(stream->last);
    if (fake_error != CU_SUCCESS) return end(fake_error);
    return end(fake_task_is_done(stream->last) ? CU_SUCCESS : CU_NOT_READY);
}

enum cu_result cuStreamWaitEvent(struct cu_stream *stream, struct cu_event *event, unsigned flags) {
    enum cu_result result = begin_with_progress("cuStreamWaitEvent");
    (void)flags;
    if (result != CU_SUCCESS) return end(result);
    if (!fake_object_is(event, FAKE_EVENT) || !fake_object_is(stream, FAKE_STREAM))
        return end(CU_INVALID_HANDLE);
    fake_stream_need(stream, event->task);
    return end(CU_SUCCESS);
}

/* ---- graphs ---- */

enum cu_result cuGraphCreate(struct cu_graph **graph, unsigned flags) {
    enum cu_result result = begin_in_context("cuGraphCreate");
    (void)flags;
    if (result == CU_SUCCESS) *graph = fake_object_create(FAKE_GRAPH, sizeof **graph);
    return end(result);
}

enum cu_result cuGraphDestroy(struct cu_graph *graph) {
    enum cu_result result = begin_in_context("cuGraphDestroy");
    if (result == CU_SUCCESS && !fake_object_is(graph, FAKE_GRAPH)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) fake_object_destroy(graph);
    return end(result);
}

static enum cu_result node_put(struct cu_graph_node **node, struct cu_graph *graph,
                               struct cu_graph_node *const *needed, size_t needed_count,
                               struct fake_work *work, enum cu_result result) {
    if (result == CU_SUCCESS && !fake_object_is(graph, FAKE_GRAPH)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) result = fake_work_check(work);
    if (result == CU_SUCCESS) result = fake_graph_add(node, graph, needed, needed_count, work);
    return result;
}

enum cu_result cuGraphAddKernelNode_v2(struct cu_graph_node **node, struct cu_graph *graph,
                                       struct cu_graph_node *const *needed, size_t needed_count,
                                       const struct cu_kernel_node *parameters) {
    enum cu_result result = begin_in_context("cuGraphAddKernelNode_v2");
    struct fake_work work = {.kind = FAKE_TASK_EMPTY};
    if (result == CU_SUCCESS)
        result = kernel_work(&work, parameters->function, parameters->grid, parameters->block,
                             parameters->shared_bytes, parameters->parameters);
    return end(node_put(node, graph, needed, needed_count, &work, result));
}

static bool is_flat(const struct cu_copy_node *copy) {
    return copy->source.memory == CU_MEMORY_UNIFIED && copy->target.memory == CU_MEMORY_UNIFIED &&
           copy->height == 1 && copy->depth == 1 && copy->width_bytes <= copy->source.pitch &&
           copy->width_bytes <= copy->target.pitch &&
           copy->width_bytes <= INT32_MAX; /* the largest pitch */
}

enum cu_result cuGraphAddMemcpyNode(struct cu_graph_node **node, struct cu_graph *graph,
                                    struct cu_graph_node *const *needed, size_t needed_count,
                                    const struct cu_copy_node *parameters, struct cu_context *context) {
    enum cu_result result = begin_in_context("cuGraphAddMemcpyNode");
    if (result == CU_SUCCESS && (!is_flat(parameters) || context != primary)) result = CU_INVALID_VALUE;
    struct fake_work work = {.kind = FAKE_TASK_COPY,
                             .target = parameters->target.device,
                             .source = parameters->source.device,
                             .size_bytes = parameters->width_bytes};
    return end(node_put(node, graph, needed, needed_count, &work, result));
}

enum cu_result cuGraphAddMemsetNode(struct cu_graph_node **node, struct cu_graph *graph,
                                    struct cu_graph_node *const *needed, size_t needed_count,
                                    const struct cu_fill_node *parameters, struct cu_context *context) {
    enum cu_result result = begin_in_context("cuGraphAddMemsetNode");
    if (result == CU_SUCCESS &&
        (parameters->element_bytes != 1 || parameters->height != 1 || context != primary))
        result = CU_INVALID_VALUE;
    struct fake_work work = {.kind = FAKE_TASK_FILL,
                             .target = parameters->target,
                             .size_bytes = parameters->width,
                             .value = (uint8_t)parameters->value};
    return end(node_put(node, graph, needed, needed_count, &work, result));
}

enum cu_result cuGraphAddBatchMemOpNode(struct cu_graph_node **node, struct cu_graph *graph,
                                        struct cu_graph_node *const *needed, size_t needed_count,
                                        const struct cu_memory_operations_node *parameters) {
    enum cu_result result = begin_in_context("cuGraphAddBatchMemOpNode");
    if (result == CU_SUCCESS && !fake_settings.has_waits) result = CU_NOT_SUPPORTED;
    if (result == CU_SUCCESS &&
        (parameters->count == 0 || parameters->count > FAKE_OPERATIONS_MAX || parameters->context != primary))
        result = CU_INVALID_VALUE;
    if (result != CU_SUCCESS) return end(result);
    struct fake_work work = {.kind = FAKE_TASK_OPERATIONS, .operation_count = parameters->count};
    memcpy(work.operations, parameters->operations, parameters->count * sizeof *work.operations);
    return end(node_put(node, graph, needed, needed_count, &work, result));
}

enum cu_result cuGraphAddDependencies_v2(struct cu_graph *graph, struct cu_graph_node *const *from,
                                         struct cu_graph_node *const *to, const struct cu_edge *edges,
                                         size_t edge_count) {
    enum cu_result result = begin_in_context("cuGraphAddDependencies_v2");
    if (result == CU_SUCCESS && !fake_object_is(graph, FAKE_GRAPH)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) result = fake_graph_edges(graph, from, to, edges, edge_count);
    return end(result);
}

enum cu_result cuGraphInstantiateWithFlags(struct cu_graph_exec **exec, struct cu_graph *graph,
                                           uint64_t flags) {
    enum cu_result result = begin_in_context("cuGraphInstantiateWithFlags");
    (void)flags;
    if (result == CU_SUCCESS && !fake_object_is(graph, FAKE_GRAPH)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) result = fake_graph_instantiate(exec, graph);
    return end(result);
}

enum cu_result cuGraphExecKernelNodeSetParams_v2(struct cu_graph_exec *exec, struct cu_graph_node *node,
                                                 const struct cu_kernel_node *parameters) {
    enum cu_result result = begin_in_context("cuGraphExecKernelNodeSetParams_v2");
    struct fake_work work = {.kind = FAKE_TASK_EMPTY};
    if (result == CU_SUCCESS && !fake_object_is(exec, FAKE_EXEC)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS)
        result = kernel_work(&work, parameters->function, parameters->grid, parameters->block,
                             parameters->shared_bytes, parameters->parameters);
    if (result == CU_SUCCESS) result = fake_graph_change(exec, node, &work);
    return end(result);
}

enum cu_result cuGraphExecDestroy(struct cu_graph_exec *exec) {
    enum cu_result result = begin_in_context("cuGraphExecDestroy");
    if (result == CU_SUCCESS && !fake_object_is(exec, FAKE_EXEC)) result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) fake_object_destroy(exec); /* replays under way have copies */
    return end(result);
}

enum cu_result cuGraphLaunch(struct cu_graph_exec *exec, struct cu_stream *stream) {
    enum cu_result result = begin_with_progress("cuGraphLaunch");
    if (result == CU_SUCCESS && (!fake_object_is(exec, FAKE_EXEC) || !fake_object_is(stream, FAKE_STREAM)))
        result = CU_INVALID_HANDLE;
    if (result == CU_SUCCESS) fake_graph_launch(exec, stream);
    return end(result);
}
