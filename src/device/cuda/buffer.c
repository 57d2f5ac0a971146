#include "device/cuda/buffer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "platform/memory.h"

/* The driver's reason, with what was asked for. */
static enum status refused(struct cuda_context *context, enum cu_result result, size_t size_bytes, const char *where,
                           struct error *error) {
    char asked[32], what[240];
    snprintf(what, sizeof what, "%s of %s", where, bytes_text(size_bytes, asked, sizeof asked));
    return cuda_driver_error(context->driver, result, error, what);
}

/* And with what there is. */
static enum status refused_by_card(struct cuda_context *context, enum cu_result result, size_t size_bytes,
                                   struct error *error) {
    char available[32], total[32], where[160];
    uint64_t free_bytes = 0, total_bytes = 0;
    if (cuda_memory_read(context, &free_bytes, &total_bytes, NULL) != STATUS_OK)
        return refused(context, result, size_bytes, "device memory", error);
    snprintf(where, sizeof where, "%s of %s are free, device memory",
             bytes_text(free_bytes, available, sizeof available), bytes_text(total_bytes, total, sizeof total));
    return refused(context, result, size_bytes, where, error);
}

enum status cuda_buffer_create(struct cuda_buffer *buffer, struct cuda_context *context, size_t size_bytes,
                               struct error *error) {
    *buffer = (struct cuda_buffer){.context = context, .kind = CUDA_BUFFER_DEVICE};
    TRY(cuda_context_status(context, error));
    enum cu_result result = context->driver->cuMemAlloc(&buffer->address, size_bytes);
    if (result != CU_SUCCESS) return refused_by_card(context, result, size_bytes, error);
    buffer->size_bytes = size_bytes;
    return STATUS_OK;
}

static enum cu_result registered(const struct cuda_buffer *buffer, uint64_t *address) {
    const struct cuda_driver *driver = buffer->context->driver;
    enum cu_result result =
        driver->cuMemHostRegister(buffer->host, buffer->size_bytes, CU_HOST_PORTABLE | CU_HOST_DEVICE_MAPPED);
    if (result != CU_SUCCESS) return result;
    result = driver->cuMemHostGetDevicePointer(address, buffer->host, 0);
    if (result != CU_SUCCESS) (void)driver->cuMemHostUnregister(buffer->host);
    return result;
}

enum status cuda_buffer_register(struct cuda_buffer *buffer, struct cuda_context *context, void *memory,
                                 size_t size_bytes, struct error *error) {
    struct cuda_buffer made = {
        .context = context, .kind = CUDA_BUFFER_BORROWED, .host = memory, .size_bytes = size_bytes};
    *buffer = (struct cuda_buffer){.context = context};
    TRY(cuda_context_status(context, error));
    if (!context->properties.can_register_host)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: %s cannot use memory that is the host's",
                         context->properties.name);
    enum cu_result result = registered(&made, &made.address);
    if (result != CU_SUCCESS) return refused(context, result, size_bytes, "registering host memory", error);
    *buffer = made;
    return STATUS_OK;
}

static enum status create_of_driver(struct cuda_buffer *buffer, struct cuda_context *context, size_t size_bytes,
                                    struct error *error) {
    const struct cuda_driver *driver = context->driver;
    void *memory = NULL;
    enum cu_result result = driver->cuMemHostAlloc(&memory, size_bytes, CU_HOST_PORTABLE | CU_HOST_DEVICE_MAPPED);
    uint64_t address = 0;
    if (result == CU_SUCCESS) {
        result = driver->cuMemHostGetDevicePointer(&address, memory, 0);
        if (result != CU_SUCCESS) (void)driver->cuMemFreeHost(memory);
    }
    if (result != CU_SUCCESS) return refused(context, result, size_bytes, "pinned host memory", error);
    memset(memory, 0, size_bytes);
    *buffer = (struct cuda_buffer){context, CUDA_BUFFER_HOST, address, memory, size_bytes};
    return STATUS_OK;
}

enum status cuda_buffer_create_host(struct cuda_buffer *buffer, struct cuda_context *context, size_t size_bytes,
                                    struct error *error) {
    *buffer = (struct cuda_buffer){.context = context};
    TRY(cuda_context_status(context, error));
    if (!context->properties.can_register_host) return create_of_driver(buffer, context, size_bytes, error);
    void *area = memory_area_create(size_bytes);
    if (area == NULL) return error_set_os(error, STATUS_MEMORY, errno, "cuda: %zu bytes of host memory", size_bytes);
    if (cuda_buffer_register(buffer, context, area, size_bytes, NULL) != STATUS_OK) { /* some systems limit it */
        memory_area_destroy(area, size_bytes);
        return create_of_driver(buffer, context, size_bytes, error);
    }
    buffer->kind = CUDA_BUFFER_REGISTERED;
    return STATUS_OK;
}

void cuda_buffer_destroy(struct cuda_buffer *buffer) {
    if (buffer->size_bytes == 0) return;
    const struct cuda_driver *driver = buffer->context->driver;
    if (!buffer->context->is_stuck) { /* else the card may still write into it: it stays until the process ends */
        switch (buffer->kind) {
        case CUDA_BUFFER_DEVICE: (void)driver->cuMemFree(buffer->address); break;
        case CUDA_BUFFER_HOST: (void)driver->cuMemFreeHost(buffer->host); break;
        case CUDA_BUFFER_REGISTERED:
        case CUDA_BUFFER_BORROWED: (void)driver->cuMemHostUnregister(buffer->host); break;
        }
        if (buffer->kind == CUDA_BUFFER_REGISTERED) memory_area_destroy(buffer->host, buffer->size_bytes);
    }
    *buffer = (struct cuda_buffer){.context = NULL};
}

/* ---- tensors ---- */

_Static_assert(MATMUL_COLUMNS * 2 == 128, "as the swizzle has it");

bool cuda_tensor_map(struct cuda_context *context, struct tensor_map *map, uint64_t halves, uint32_t columns,
                     uint32_t rows, uint32_t box_rows) {
    const uint64_t sizes[] = {columns, rows}, stride_bytes = (uint64_t)columns * 2;
    const uint32_t box[] = {MATMUL_COLUMNS, box_rows}, steps[] = {1, 1};
    if (!cuda_context_works(context)) return false;
    const enum cu_result result =
        context->driver->cuTensorMapEncodeTiled(map, CU_TENSOR_FLOAT16, 2, halves, sizes, &stride_bytes, box, steps, 0,
                                                CU_TENSOR_SWIZZLE_128B, CU_TENSOR_L2_PROMOTION_256B, 0);
    return cuda_context_check(context, result, "a tensor map");
}
