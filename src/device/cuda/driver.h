/* driver: NVIDIA's driver, found at run time.
 *
 * Nothing of NVIDIA is needed to build loam: the calls in use are declared here, and libcuda.so.1 is opened when a
 * device is asked for.  A symbol is named with its version (cuMemAlloc_v2): the name without one is the interface of
 * CUDA 3, with other types.
 *
 * Types and figures are those of the CUDA driver interface, and sizes of structs are asserted.  Handles are pointers to
 * structs that are never defined; an address in the device's memory is an integer.  A member of the table has the
 * driver's own name: driver->cuMemAlloc(&address, size_bytes).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct cu_context;
struct cu_module;
struct cu_function;
struct cu_stream;
struct cu_event;
struct cu_graph;
struct cu_graph_node;
struct cu_graph_exec;

/* Those that loam treats differently from others; the driver has the names of all. */
enum cu_result {
    CU_SUCCESS = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_INVALID_PTX = 218,
    CU_UNSUPPORTED_PTX_VERSION = 222,
    CU_INVALID_HANDLE = 400,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_FAILED = 719,
    CU_NOT_SUPPORTED = 801,
    CU_UNKNOWN = 999,
};

enum cu_device_attribute {
    CU_MULTIPROCESSOR_COUNT = 16,
    CU_INTEGRATED = 18,
    CU_CAN_MAP_HOST_MEMORY = 19,
    CU_ASYNC_ENGINE_COUNT = 40,
    CU_UNIFIED_ADDRESSING = 41,
    CU_CAPABILITY_MAJOR = 75,
    CU_CAPABILITY_MINOR = 76,
    CU_SHARED_BYTES_PER_BLOCK_MAX = 97,
    CU_HOST_REGISTER_SUPPORTED = 99,
};

enum { CU_FUNCTION_DYNAMIC_SHARED_BYTES_MAX = 8 }; /* of cuFuncSetAttribute */
enum { CU_JIT_ERROR_LOG = 5, CU_JIT_ERROR_LOG_BYTES = 6 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_HOST_PORTABLE = 1, CU_HOST_DEVICE_MAPPED = 2 }; /* of cuMemHostAlloc and cuMemHostRegister */
enum { CU_STREAM_WAIT_VALUE_GEQ = 0 };                    /* (int32_t)(*address - value) >= 0 */
enum { CU_MEMORY_UNIFIED = 4 };
enum { CU_TENSOR_FLOAT16 = 6, CU_TENSOR_SWIZZLE_128B = 3, CU_TENSOR_L2_PROMOTION_256B = 3 }; /* of tensor maps */
enum { CU_EDGE_PROGRAMMATIC = 1, CU_PORT_PROGRAMMATIC = 1 };
enum { CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };
enum { CU_OPERATION_WAIT_VALUE_32 = 1, CU_OPERATION_WRITE_VALUE_32 = 2 };

struct cu_launch_attribute {
    int32_t id;
    uint32_t padding;
    union {
        int32_t allowed;
        uint8_t bytes[64];
    } value;
};
_Static_assert(sizeof(struct cu_launch_attribute) == 72, "as in the driver interface");

struct cu_launch_config {
    uint32_t grid[3], block[3], shared_bytes;
    struct cu_stream *stream;
    struct cu_launch_attribute *attributes;
    uint32_t attribute_count;
};
_Static_assert(sizeof(struct cu_launch_config) == 56, "as in the driver interface");

struct cu_kernel_node {
    struct cu_function *function;
    uint32_t grid[3], block[3], shared_bytes;
    void **parameters;
    void **extra;
    void *kernel;               /* NULL: function is used */
    struct cu_context *context; /* NULL: the function's */
};
_Static_assert(sizeof(struct cu_kernel_node) == 72, "as in the driver interface");

struct cu_copy_side {
    size_t x_bytes, y, z, level;
    uint32_t memory; /* CU_MEMORY_UNIFIED */
    void *host;
    uint64_t device; /* either side's address with CU_MEMORY_UNIFIED */
    void *array, *reserved;
    size_t pitch, height;
};

struct cu_copy_node {
    struct cu_copy_side source, target;
    size_t width_bytes, height, depth;
};
_Static_assert(sizeof(struct cu_copy_node) == 200, "as in the driver interface");

struct cu_fill_node {
    uint64_t target;
    size_t pitch;
    uint32_t value, element_bytes;
    size_t width, height;
};
_Static_assert(sizeof(struct cu_fill_node) == 40, "as in the driver interface");

struct cu_memory_operation { /* wait for a value or write one */
    uint32_t operation;
    uint64_t address;
    uint64_t value; /* the lower half */
    uint32_t flags;
    uint64_t alias; /* the driver's */
    uint64_t padding;
};
_Static_assert(sizeof(struct cu_memory_operation) == 48, "as in the driver interface");

struct cu_memory_operations_node {
    struct cu_context *context;
    uint32_t count;
    struct cu_memory_operation *operations;
    uint32_t flags;
};
_Static_assert(sizeof(struct cu_memory_operations_node) == 32, "as in the driver interface");

struct cu_edge {
    uint8_t from_port, to_port, type, reserved[5];
};
_Static_assert(sizeof(struct cu_edge) == 8, "as in the driver interface");

/* CALL(the member, the library's symbol, parameters): every call that loam makes. */
#define CUDA_DRIVER_CALLS(CALL)                                                                                      \
    CALL(cuInit, cuInit, (unsigned flags))                                                                           \
    CALL(cuDriverGetVersion, cuDriverGetVersion, (int32_t * version))                                                \
    CALL(cuGetErrorName, cuGetErrorName, (enum cu_result result, const char **text))                                 \
    CALL(cuGetErrorString, cuGetErrorString, (enum cu_result result, const char **text))                             \
    CALL(cuDeviceGetCount, cuDeviceGetCount, (int32_t * count))                                                      \
    CALL(cuDeviceGet, cuDeviceGet, (int32_t * device, int32_t index))                                                \
    CALL(cuDeviceGetName, cuDeviceGetName, (char *name, int32_t size, int32_t device))                               \
    CALL(cuDeviceGetAttribute, cuDeviceGetAttribute,                                                                 \
         (int32_t * value, enum cu_device_attribute attribute, int32_t device))                                      \
    CALL(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t * size_bytes, int32_t device))                               \
    CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (struct cu_context * *context, int32_t device))         \
    CALL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int32_t device))                                  \
    CALL(cuCtxSetCurrent, cuCtxSetCurrent, (struct cu_context * context))                                            \
    CALL(cuMemGetInfo, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                 \
    CALL(cuModuleLoadDataEx, cuModuleLoadDataEx,                                                                     \
         (struct cu_module * *module, const void *image, unsigned option_count, int32_t *options, void **values))    \
    CALL(cuModuleUnload, cuModuleUnload, (struct cu_module * module))                                                \
    CALL(cuModuleGetFunction, cuModuleGetFunction,                                                                   \
         (struct cu_function * *function, struct cu_module * module, const char *name))                              \
    CALL(cuFuncSetAttribute, cuFuncSetAttribute, (struct cu_function * function, int32_t attribute, int32_t value))  \
    CALL(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled,                                                             \
         (void *map, uint32_t type, uint32_t rank, uint64_t address, const uint64_t *sizes,                          \
          const uint64_t *strides_bytes, const uint32_t *box, const uint32_t *steps, uint32_t interleave,            \
          uint32_t swizzle, uint32_t promotion, uint32_t fill))                                                      \
    CALL(cuMemAlloc, cuMemAlloc_v2, (uint64_t * address, size_t size_bytes))                                         \
    CALL(cuMemFree, cuMemFree_v2, (uint64_t address))                                                                \
    CALL(cuMemHostAlloc, cuMemHostAlloc, (void **address, size_t size_bytes, unsigned flags))                        \
    CALL(cuMemFreeHost, cuMemFreeHost, (void *address))                                                              \
    CALL(cuMemHostRegister, cuMemHostRegister_v2, (void *address, size_t size_bytes, unsigned flags))                \
    CALL(cuMemHostUnregister, cuMemHostUnregister, (void *address))                                                  \
    CALL(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                                    \
         (uint64_t * address, void *host_address, unsigned flags))                                                   \
    CALL(cuMemcpyAsync, cuMemcpyAsync,                                                                               \
         (uint64_t target, uint64_t source, size_t size_bytes, struct cu_stream * stream))                           \
    CALL(cuMemsetD8Async, cuMemsetD8Async,                                                                           \
         (uint64_t target, unsigned char value, size_t size_bytes, struct cu_stream *stream))                        \
    CALL(cuStreamCreate, cuStreamCreate, (struct cu_stream * *stream, unsigned flags))                               \
    CALL(cuStreamDestroy, cuStreamDestroy_v2, (struct cu_stream * stream))                                           \
    CALL(cuStreamQuery, cuStreamQuery, (struct cu_stream * stream))                                                  \
    CALL(cuStreamWaitEvent, cuStreamWaitEvent, (struct cu_stream * stream, struct cu_event * event, unsigned flags)) \
    CALL(cuStreamWaitValue32, cuStreamWaitValue32_v2,                                                                \
         (struct cu_stream * stream, uint64_t address, uint32_t value, unsigned flags))                              \
    CALL(cuStreamWriteValue32, cuStreamWriteValue32_v2,                                                              \
         (struct cu_stream * stream, uint64_t address, uint32_t value, unsigned flags))                              \
    CALL(cuEventCreate, cuEventCreate, (struct cu_event * *event, unsigned flags))                                   \
    CALL(cuEventDestroy, cuEventDestroy_v2, (struct cu_event * event))                                               \
    CALL(cuEventRecord, cuEventRecord, (struct cu_event * event, struct cu_stream * stream))                         \
    CALL(cuEventQuery, cuEventQuery, (struct cu_event * event))                                                      \
    CALL(cuLaunchKernelEx, cuLaunchKernelEx,                                                                         \
         (const struct cu_launch_config *config, struct cu_function *function, void **parameters, void **extra))     \
    CALL(cuGraphCreate, cuGraphCreate, (struct cu_graph * *graph, unsigned flags))                                   \
    CALL(cuGraphDestroy, cuGraphDestroy, (struct cu_graph * graph))                                                  \
    CALL(cuGraphAddKernelNode, cuGraphAddKernelNode_v2,                                                              \
         (struct cu_graph_node * *node, struct cu_graph * graph, struct cu_graph_node *const *needed,                \
          size_t needed_count, const struct cu_kernel_node *parameters))                                             \
    CALL(cuGraphAddMemcpyNode, cuGraphAddMemcpyNode,                                                                 \
         (struct cu_graph_node * *node, struct cu_graph * graph, struct cu_graph_node *const *needed,                \
          size_t needed_count, const struct cu_copy_node *parameters, struct cu_context *context))                   \
    CALL(cuGraphAddMemsetNode, cuGraphAddMemsetNode,                                                                 \
         (struct cu_graph_node * *node, struct cu_graph * graph, struct cu_graph_node *const *needed,                \
          size_t needed_count, const struct cu_fill_node *parameters, struct cu_context *context))                   \
    CALL(cuGraphAddBatchMemOpNode, cuGraphAddBatchMemOpNode,                                                         \
         (struct cu_graph_node * *node, struct cu_graph * graph, struct cu_graph_node *const *needed,                \
          size_t needed_count, const struct cu_memory_operations_node *parameters))                                  \
    CALL(cuGraphInstantiate, cuGraphInstantiateWithFlags,                                                            \
         (struct cu_graph_exec * *exec, struct cu_graph * graph, uint64_t flags))                                    \
    CALL(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2,                                          \
         (struct cu_graph_exec * exec, struct cu_graph_node * node, const struct cu_kernel_node *parameters))         \
    CALL(cuGraphExecDestroy, cuGraphExecDestroy, (struct cu_graph_exec * exec))                                      \
    CALL(cuGraphLaunch, cuGraphLaunch, (struct cu_graph_exec * exec, struct cu_stream * stream))

/* Those that an older driver than the newest lacks; a member is NULL then.
 * cuGraphAddDependencies: of CUDA 12.3, with programmatic edges. */
#define CUDA_DRIVER_CALLS_OPTIONAL(CALL)                                                               \
    CALL(cuGraphAddDependencies, cuGraphAddDependencies_v2,                                            \
         (struct cu_graph * graph, struct cu_graph_node *const *from, struct cu_graph_node *const *to, \
          const struct cu_edge *edges, size_t edge_count))

/* 12.0, NVIDIA's drivers from 525 on: the first with kernel nodes of this kind, and PTX 8.0, which the kernels for
 * sm_90a are in.  Debian 12 ships 535, which is of 12.2. */
enum { CUDA_DRIVER_VERSION_MIN = 12000 };

struct cuda_driver {
    void *handle;    /* owned; NULL: closed */
    int32_t version; /* 1000 * major + 10 * minor, of CUDA */
#define CALL(member, symbol, parameters) enum cu_result(*member) parameters;
    CUDA_DRIVER_CALLS(CALL)
    CUDA_DRIVER_CALLS_OPTIONAL(CALL)
#undef CALL
};

/* library: NULL for "libcuda.so.1", as the system's loader finds it.  STATUS_UNSUPPORTED where there is no driver, it
 * is too old, or it has no device; the message says which. */
enum status cuda_driver_open(struct cuda_driver *driver, const char *library, struct error *error) STATUS_CHECKED;
void cuda_driver_close(struct cuda_driver *driver); /* a closed one: allowed */

/* Fills *error with "cuda: WHAT: NAME (the driver's text)" and returns the status that the result stands for. */
enum status cuda_driver_error(const struct cuda_driver *driver, enum cu_result result, struct error *error,
                              const char *what) STATUS_CHECKED;

/* What a card is. */
struct cuda_properties {
    char name[128];
    int32_t index;
    uint32_t capability; /* 10 * major + minor: 80, 90, 120 */
    uint64_t memory_bytes;
    uint32_t multiprocessor_count;
    uint32_t shared_bytes_max; /* of a block */
    uint32_t copy_engine_count;
    bool is_integrated;     /* its memory is the host's */
    bool can_register_host; /* our own mappings can be read and written by kernels */
    bool has_unified_addresses;
};

enum status cuda_device_count(const struct cuda_driver *driver, uint32_t *count, struct error *error) STATUS_CHECKED;
enum status cuda_properties_read(const struct cuda_driver *driver, uint32_t index, struct cuda_properties *properties,
                                 struct error *error) STATUS_CHECKED;
