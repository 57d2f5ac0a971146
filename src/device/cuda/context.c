#include "device/cuda/context.h"

#include <string.h>
#include <time.h>

#include "platform/clock.h"

static const uint64_t WAIT_LIMIT_NS = 20000000000u, PROBE_LIMIT_NS = 2000000000u;

enum status cuda_context_status(const struct cuda_context *context, struct error *error) {
    if (context->error.status != STATUS_OK && error != NULL) *error = context->error;
    return context->error.status;
}

bool cuda_context_check(struct cuda_context *context, enum cu_result result, const char *what) {
    if (result == CU_SUCCESS) return true;
    struct error failure;
    enum status status = cuda_driver_error(context->driver, result, &failure, what);
    if (status != STATUS_OK && context->error.status == STATUS_OK) context->error = failure;
    return false;
}

enum status cuda_memory_read(struct cuda_context *context, uint64_t *free_bytes, uint64_t *total_bytes,
                             struct error *error) {
    size_t available = 0, total = 0;
    enum cu_result result = context->driver->cuMemGetInfo(&available, &total);
    if (result != CU_SUCCESS) return cuda_driver_error(context->driver, result, error, "free memory");
    *free_bytes = available;
    *total_bytes = total;
    return STATUS_OK;
}

/* ---- life ---- */

static enum status card_check(const struct cuda_properties *card, struct error *error) {
    if (card->capability < CUDA_CAPABILITY_MIN)
        return error_set(error, STATUS_UNSUPPORTED,
                         "cuda: device %d, %s, has compute capability %u.%u, expected %d.%d or newer", card->index,
                         card->name, card->capability / 10, card->capability % 10, CUDA_CAPABILITY_MIN / 10,
                         CUDA_CAPABILITY_MIN % 10);
    if (!card->has_unified_addresses)
        return error_set(error, STATUS_UNSUPPORTED, "cuda: device %d, %s, has no unified addresses", card->index,
                         card->name);
    return STATUS_OK;
}

static enum cu_result flags_create(struct cuda_context *context) {
    const struct cuda_driver *driver = context->driver;
    void *words = NULL;
    enum cu_result result = driver->cuMemHostAlloc(&words, (size_t)CUDA_FLAGS_MAX * CUDA_FLAG_BYTES,
                                                   CU_HOST_PORTABLE | CU_HOST_DEVICE_MAPPED);
    if (result != CU_SUCCESS) return result;
    context->flag_words = words;
    memset(words, 0, (size_t)CUDA_FLAGS_MAX * CUDA_FLAG_BYTES);
    return driver->cuMemHostGetDevicePointer(&context->flag_address, words, 0);
}

/* CU_NOT_READY: not within the limit. */
static enum cu_result probe_wait(const struct cuda_context *context, struct cu_stream *stream) {
    enum { ASKS_MIN = 500 };
    const uint64_t begin_ns = clock_ns();
    for (int asked = 0;; asked++) {
        const enum cu_result result = context->driver->cuStreamQuery(stream);
        if (result != CU_NOT_READY || (asked > ASKS_MIN && clock_ns() - begin_ns > PROBE_LIMIT_NS)) return result;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

/* Whether the driver takes the node of a turn (stream.h), which no graph runs here. */
static bool takes_turns(const struct cuda_context *context) {
    const struct cuda_driver *driver = context->driver;
    struct cu_memory_operation all[] = {
        {.operation = CU_OPERATION_WRITE_VALUE_32, .address = context->flag_address, .value = 1},
        {.operation = CU_OPERATION_WAIT_VALUE_32, .address = context->flag_address, .value = 1},
        {.operation = CU_OPERATION_WRITE_VALUE_32, .address = context->flag_address, .value = 0}};
    const struct cu_memory_operations_node list = {.context = context->handle, .count = 3, .operations = all};
    struct cu_graph *graph = NULL;
    struct cu_graph_node *node = NULL;
    if (driver->cuGraphCreate(&graph, 0) != CU_SUCCESS) return false;
    const enum cu_result result = driver->cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &list);
    (void)driver->cuGraphDestroy(graph);
    return result == CU_SUCCESS;
}

/* Whether a stream can write a word and wait for it, also within a graph.  The driver has no attribute for it and says
 * so at the call, and with which error is its own: what fails then and breaks nothing, nobody asks for. */
static enum cu_result waits_probe(struct cuda_context *context) {
    const struct cuda_driver *driver = context->driver;
    struct cu_stream *stream = NULL;
    enum cu_result result = driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CU_SUCCESS) return result;
    result = driver->cuStreamWriteValue32(stream, context->flag_address, 1, 0);
    if (result == CU_SUCCESS)
        result = driver->cuStreamWaitValue32(stream, context->flag_address, 1, CU_STREAM_WAIT_VALUE_GEQ);
    const bool can_put = result == CU_SUCCESS;
    result = probe_wait(context, stream); /* a context that broke says so here, too */
    context->has_stream_waits = can_put && result == CU_SUCCESS;
    /* What may still wait for the word must end, so that it can be freed; only then it is 0 for its first flag. */
    if (result != CU_SUCCESS) __atomic_store_n((uint32_t *)(void *)context->flag_words, 1, __ATOMIC_RELEASE);
    if (result == CU_NOT_READY) { /* the host does not see what the stream writes, nor the other way round */
        result = probe_wait(context, stream);
        context->is_stuck = result == CU_NOT_READY;
    }
    if (!context->is_stuck) (void)driver->cuStreamDestroy(stream);
    if (result == CU_SUCCESS) memset(context->flag_words, 0, sizeof(uint32_t));
    context->has_stream_waits = context->has_stream_waits && takes_turns(context);
    return result;
}

static enum status context_fill(struct cuda_context *context, struct error *error) {
    const struct cuda_driver *driver = context->driver;
    enum cu_result result = driver->cuCtxSetCurrent(context->handle);
    if (result == CU_SUCCESS) result = flags_create(context);
    if (result == CU_SUCCESS) result = waits_probe(context);
    if (result == CU_SUCCESS) return STATUS_OK;
    return cuda_driver_error(driver, result, error, "opening a device");
}

enum status cuda_context_open(struct cuda_context *context, const struct cuda_driver *driver, uint32_t index,
                              const struct cuda_options *options, struct error *error) {
    *context = (struct cuda_context){.driver = driver, .wait_limit_ns = options->wait_limit_ns};
    if (context->wait_limit_ns == 0) context->wait_limit_ns = WAIT_LIMIT_NS;
    uint32_t count = 0;
    TRY(cuda_device_count(driver, &count, error));
    if (index >= count)
        return error_set(error, STATUS_USAGE, "cuda: there is no device %u, expected one of %u", index, count);
    TRY(cuda_properties_read(driver, index, &context->properties, error));
    TRY(card_check(&context->properties, error));
    enum cu_result result = driver->cuDeviceGet(&context->device, (int32_t)index);
    if (result == CU_SUCCESS) result = driver->cuDevicePrimaryCtxRetain(&context->handle, context->device);
    if (result != CU_SUCCESS) {
        context->handle = NULL;
        return cuda_driver_error(driver, result, error, "opening a device");
    }
    enum status status = context_fill(context, error);
    if (status != STATUS_OK) cuda_context_close(context);
    return status;
}

void cuda_context_close(struct cuda_context *context) {
    const struct cuda_driver *driver = context->driver;
    if (context->handle == NULL) return;
    if (!context->is_stuck) {
        if (context->flag_words != NULL) (void)driver->cuMemFreeHost(context->flag_words);
        (void)driver->cuCtxSetCurrent(NULL);
        (void)driver->cuDevicePrimaryCtxRelease(context->device);
    }
    context->handle = NULL;
}
