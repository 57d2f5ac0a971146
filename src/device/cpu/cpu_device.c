/* The cpu device's table: life, streams and copies.  A stream has no queue: work is done when the call returns, so
 * order holds by itself. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"
#include "device/cpu/cpu_graph.h"
#include "device/cpu/cpu_scorer_internal.h"

/* One core copies about 10 GB/s here: below this, waking threads gains nothing. */
enum { COPY_BYTES_ALONE = 256 << 10 };

static struct pool *cpu_pool(struct device *device) { return ((struct cpu_device *)device)->pool; }

static enum status cpu_set_threads(struct device *base, size_t thread_count, struct error *error) {
    struct cpu_device *device = (struct cpu_device *)base;
    struct pool *pool;
    TRY(pool_create(&pool, thread_count, error));
    pool_destroy(device->pool);
    device->pool = pool;
    device->thread_count = pool_thread_count(pool);
    return STATUS_OK;
}

static void cpu_destroy(struct device *base) {
    struct cpu_device *device = (struct cpu_device *)base;
    cpu_release(base, &device->scratch);
    pool_destroy(device->pool);
    free(device);
}

static enum status cpu_weight_load(struct device *base, struct weight *weight, struct error *error) {
    const struct cpu_device *device = (const struct cpu_device *)base;
    const struct matrix *matrix = &weight->matrix;
    if (device->kernels.matvec.run[matrix->type] == NULL && device->kernels.matmul.method[matrix->type].run == NULL)
        return error_set(error, STATUS_UNSUPPORTED, "cpu device: no kernel multiplies weights of type %s",
                         tensor_type_info(matrix->type)->name);
    weight->memory = (struct buffer){.device = base,
                                     .kind = MEMORY_SHARED,
                                     .address = (uintptr_t)matrix->data,
                                     .bytes = matrix->rows * matrix->row_bytes};
    return STATUS_OK;
}

static void cpu_weight_release(struct device *base, struct weight *weight) {
    (void)base;
    weight->memory = (struct buffer){.device = NULL};
}

static enum status cpu_stream_create(struct device *device, struct stream **stream, struct error *error) {
    *stream = malloc(sizeof **stream);
    if (*stream == NULL) return error_set(error, STATUS_MEMORY, "cpu device: no memory for a stream");
    **stream = (struct stream){.device = (struct cpu_device *)device};
    return STATUS_OK;
}

static void cpu_stream_destroy(struct stream *stream) { free(stream); }

static struct ticket cpu_ticket_of(struct stream *stream) {
    (void)stream;
    return (struct ticket){NULL, 0};
}

static bool cpu_ticket_done(struct ticket ticket) {
    (void)ticket;
    return true;
}

static enum status cpu_ticket_wait(struct ticket ticket, struct error *error) {
    (void)ticket;
    (void)error;
    return STATUS_OK;
}

static void cpu_overlap(struct stream *stream, void (*work)(void *context), void *context) {
    ASSERT(stream->device->overlap == NULL);
    stream->device->overlap = work;
    stream->device->overlap_context = context;
}

static enum status cpu_stream_synchronize(struct stream *stream, struct error *error) {
    const struct error *first = &stream->device->error;
    ASSERT(stream->graph == NULL);
    cpu_run_overlap(stream->device);
    if (first->status != STATUS_OK && error != NULL) *error = *first;
    return first->status;
}

struct copy_run {
    uint8_t *target;
    const uint8_t *source;
    size_t size_bytes;
};

static void copy_task(void *context, const struct pool_worker *worker) {
    const struct copy_run *run = context;
    struct range part = pool_range(worker, run->size_bytes, 4096);
    if (part.end > part.begin) memcpy(run->target + part.begin, run->source + part.begin, part.end - part.begin);
}

static void copy(struct stream *stream, void *target, const void *source, size_t size_bytes) {
    ASSERT(stream->graph == NULL);
    if (size_bytes == 0) return;
    struct copy_run run = {target, source, size_bytes};
    cpu_run(stream->device, size_bytes <= COPY_BYTES_ALONE, copy_task, &run);
}

static void cpu_copy(struct stream *stream, struct span target, struct span source, size_t size_bytes) {
    copy(stream, cpu_address(target), cpu_address(source), size_bytes);
}

static void cpu_upload(struct stream *stream, struct span target, const void *source, size_t size_bytes) {
    copy(stream, cpu_address(target), source, size_bytes);
}

static void cpu_download(struct stream *stream, void *target, struct span source, size_t size_bytes) {
    copy(stream, target, cpu_address(source), size_bytes);
}

struct device_operations cpu_operations = {
    .destroy = cpu_destroy,
    .pool = cpu_pool,
    .set_threads = cpu_set_threads,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .weight_load = cpu_weight_load,
    .weight_release = cpu_weight_release,
    .stream_create = cpu_stream_create,
    .stream_destroy = cpu_stream_destroy,
    .stream_synchronize = cpu_stream_synchronize,
    .ticket = cpu_ticket_of,
    .ticket_done = cpu_ticket_done,
    .ticket_wait = cpu_ticket_wait,
    .overlap = cpu_overlap,
    .graph_begin = cpu_graph_begin,
    .graph_end = cpu_graph_end,
    .graph_launch = cpu_graph_launch,
    .graph_destroy = cpu_graph_destroy,
    .copy = cpu_copy,
    .upload = cpu_upload,
    .download = cpu_download,
    .embed = cpu_captured_embed,
    .matmul = cpu_captured_matmul,
    .norm = cpu_captured_norm,
    .rope_angles = cpu_captured_rope_angles,
    .rope = cpu_captured_rope,
    .activation = cpu_captured_activation,
    .route = cpu_captured_route,
    .matmul_experts = cpu_captured_matmul_experts,
    .convolve = cpu_captured_convolve,
    .delta = cpu_captured_delta,
    .gate = cpu_captured_gate,
    .update_places = cpu_captured_update_places,
    .append = cpu_captured_append,
    .attend = cpu_captured_attend,
    .gather = cpu_captured_gather,
    .key_index_build = cpu_captured_key_index_build,
    .compare_labels = cpu_captured_compare_labels,
    .choose = cpu_captured_choose,
    .fetch = cpu_captured_fetch,
    .attend_rows = cpu_captured_attend_rows,
    .host_turn = cpu_host_turn,
    .sample_mass = cpu_sample_mass,
};

enum status device_cpu_create(struct device **result, const struct device_options *options, struct error *error) {
    struct cpu_device *device = calloc(1, sizeof *device);
    if (device == NULL) return error_set(error, STATUS_MEMORY, "cpu device: out of memory");
    device->device = (struct device){.operations = &cpu_operations,
                                     .name = "cpu",
                                     .model = cpu_model_name(),
                                     .key_indexes = cpu_scorer_kinds()};
    enum status status = pool_create(&device->pool, options->thread_count, error);
    if (status != STATUS_OK) {
        free(device);
        return status;
    }
    device->thread_count = pool_thread_count(device->pool);
    kernels_init(&device->kernels, options->mask);
    cpu_matmul_init(device, options->mask);
    *result = &device->device;
    return STATUS_OK;
}
