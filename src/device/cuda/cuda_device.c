/* The cuda device's table, and its life. */
#include "device/cuda/cuda_device.h"

#include <stdlib.h>

#include "base/assert.h"
#include "device/cuda/cuda_capture.h"

enum { SEGMENT_BYTES = 256 << 10, LOADING_SEGMENT_BYTES = 4 << 20 };

static struct pool *cuda_threads(struct device *device) { return ((struct cuda_device *)device)->pool; }

static enum status cuda_set_threads(struct device *base, size_t thread_count, struct error *error) {
    struct cuda_device *device = (struct cuda_device *)base;
    struct pool *pool;
    TRY(pool_create(&pool, thread_count, error));
    pool_destroy(device->pool);
    device->pool = pool;
    return STATUS_OK;
}

static void cuda_destroy(struct device *base) {
    struct cuda_device *device = (struct cuda_device *)base;
    cuda_device_enter(device);
    cuda_work_destroy(device->loading);
    ASSERT(device->streams == NULL && device->areas == NULL);
    cuda_modules_close(&device->modules);
    cuda_context_close(&device->context);
    if (!device->context.is_stuck) cuda_driver_close(&device->driver); /* its threads still wait for the card */
    pool_destroy(device->pool);
    free(device);
}

static enum status cuda_stream_new(struct device *base, struct stream **stream, struct error *error) {
    struct cuda_device *device = (struct cuda_device *)base;
    struct error reason;
    cuda_device_enter(device);
    const enum status status = cuda_work_create(device, stream, SEGMENT_BYTES, true, &reason);
    if (cuda_device_failed(device, status, &reason) != STATUS_OK && error != NULL) *error = reason;
    return status;
}

static void cuda_stream_end(struct stream *stream) {
    cuda_device_enter(stream->device);
    cuda_work_destroy(stream);
}

static enum status cuda_synchronize(struct stream *stream, struct error *error) {
    cuda_device_enter(stream->device);
    return cuda_work_synchronize(stream, error);
}

static struct ticket cuda_ticket(struct stream *stream) {
    cuda_device_enter(stream->device);
    const struct ticket ticket = {stream, cuda_stream_mark(&stream->queue)};
    cuda_work_lacks(stream);
    return ticket;
}

static bool cuda_is_done(struct ticket ticket) {
    if (ticket.stream == NULL) return true;
    cuda_device_enter(ticket.stream->device);
    return cuda_ticket_done(&ticket.stream->queue, ticket.value);
}

static enum status cuda_wait(struct ticket ticket, struct error *error) {
    if (ticket.stream == NULL) return STATUS_OK;
    cuda_device_enter(ticket.stream->device);
    return cuda_ticket_wait(&ticket.stream->queue, ticket.value, error);
}

static void cuda_overlap(struct stream *stream, void (*work)(void *context), void *context) {
    ASSERT(stream->device->overlap == NULL);
    stream->device->overlap = work;
    stream->device->overlap_context = context;
}

static enum status cuda_state(const struct device *device, struct error *error) {
    return cuda_context_status(&((const struct cuda_device *)device)->context, error);
}

static struct device_counts cuda_counts_read(const struct device *device) {
    const struct cuda_counts counts = device_cuda_counts(device);
    return (struct device_counts){counts.launches,       counts.graphs,       counts.graph_changes,
                                  counts.graph_launches, counts.copied_bytes, counts.products,
                                  counts.wgmma_products};
}

static void cuda_copy(struct stream *stream, struct span target, struct span source, size_t size_bytes) {
    cuda_device_enter(stream->device);
    cuda_stream_copy(&stream->queue, cuda_address(target), cuda_address(source), size_bytes);
    cuda_work_done(stream);
}

static const struct device_operations CUDA_OPERATIONS = {
    .destroy = cuda_destroy,
    .pool = cuda_threads,
    .set_threads = cuda_set_threads,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .memory_free = cuda_memory_free,
    .state = cuda_state,
    .counts = cuda_counts_read,
    .weight_load = cuda_weight_load,
    .weight_release = cuda_weight_release,
    .stream_create = cuda_stream_new,
    .stream_destroy = cuda_stream_end,
    .stream_synchronize = cuda_synchronize,
    .ticket = cuda_ticket,
    .ticket_done = cuda_is_done,
    .ticket_wait = cuda_wait,
    .overlap = cuda_overlap,
    .graph_begin = cuda_capture_begin,
    .graph_end = cuda_capture_end,
    .graph_launch = cuda_capture_launch,
    .graph_destroy = cuda_capture_destroy,
    .copy = cuda_copy,
    .upload = cuda_work_upload,
    .download = cuda_work_download,
    .embed = cuda_captured_embed,
    .matmul = cuda_captured_matmul,
    .norm = cuda_captured_norm,
    .rope_angles = cuda_captured_rope_angles,
    .rope = cuda_captured_rope,
    .activation = cuda_captured_activation,
    .route = cuda_captured_route,
    .matmul_experts = cuda_captured_matmul_experts,
    .convolve = cuda_captured_convolve,
    .delta = cuda_captured_delta,
    .gate = cuda_captured_gate,
    .update_places = cuda_captured_update_places,
    .append = cuda_captured_append,
    .attend = cuda_captured_attend,
    .gather = cuda_captured_gather,
    .keep_rows = cuda_captured_keep_rows,
    .beside = cuda_captured_beside,
    .host_turn = cuda_captured_host_turn,
    .key_index_build = cuda_captured_key_index_build,
    .choose = cuda_captured_choose,
    .compare_labels = cuda_captured_compare_labels,
    .fetch = cuda_captured_fetch,
    .attend_rows = cuda_captured_attend_rows,
};

/* What is there already is taken down by cuda_destroy. */
static enum status device_init(struct cuda_device *device, const struct cuda_device_options *options,
                               struct error *error) {
    const struct cuda_options context = {.wait_limit_ns = options->wait_limit_ns};
    TRY(cuda_driver_open(&device->driver, options->driver_file, error));
    TRY(cuda_context_open(&device->context, &device->driver, options->index, &context, error));
    TRY(cuda_modules_open(&device->modules, &device->context, cuda_images, cuda_image_count, error));
    TRY(pool_create(&device->pool, options->thread_count, error));
    /* Loaded before memory runs out: a change of a page table is never dropped. */
    if (cuda_device_kernel(device, "update_places", 0) == NULL) return cuda_context_status(&device->context, error);
    return cuda_work_create(device, &device->loading, LOADING_SEGMENT_BYTES, false, error);
}

enum status device_cuda_create(struct device **result, const struct cuda_device_options *options, struct error *error) {
    static uint64_t count; /* of devices that were made */
    struct cuda_device *device = calloc(1, sizeof *device);
    if (device == NULL) return error_set(error, STATUS_MEMORY, "cuda: out of memory");
    device->operations = CUDA_OPERATIONS;
    device->device =
        (struct device){.operations = &device->operations,
                        .name = "cuda",
                        .model = device->context.properties.name,
                        .key_indexes = 1U << KEY_INDEX_LEVEL | 1U << KEY_INDEX_ABSTRACT | 1U << KEY_INDEX_TREE,
                        .scores_leaves = true,
                        .chooses_by = cuda_chooses_by,
                        .head_max = CUDA_HEAD_MAX,
                        .rows_few = CUDA_MATVEC_ROWS,
                        .range_form = &cuda_range_form,
                        .lacks_tokens = true};
    device->number = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    const enum status status = device_init(device, options, error);
    if (status != STATUS_OK) {
        cuda_destroy(&device->device);
        return status;
    }
    device->device.shares_memory = device->context.properties.is_integrated;
    if (!device->context.has_stream_waits) device->operations.host_turn = NULL;
    *result = &device->device;
    return STATUS_OK;
}

struct cuda_counts device_cuda_counts(const struct device *device) {
    return ((const struct cuda_device *)device)->context.counts;
}
