/* A stream's work: kernels by name, launches, host arrays on their way to the card and results on their way back. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_graph_memory.h"

enum { STAGING_ALIGN = 64, SCRATCH_STEP = 1 << 20, RESULTS_BYTES = 1 << 20 };

/* ---- the device ---- */

void cuda_device_enter(struct cuda_device *device) {
    static _Thread_local uint64_t entered; /* the number of the device whose context this thread has */
    if (entered == device->number || device->context.handle == NULL) return;
    const enum cu_result result = device->driver.cuCtxSetCurrent(device->context.handle);
    if (cuda_context_check(&device->context, result, "entering a device")) entered = device->number;
}

struct error *cuda_device_error(struct cuda_device *device) {
    return cuda_context_works(&device->context) ? &device->context.error : NULL;
}

enum status cuda_device_failed(struct cuda_device *device, enum status status, const struct error *error) {
    struct error *own = &device->context.error;
    if (status == STATUS_MEMORY && own->status == STATUS_MEMORY) *own = (struct error){.status = STATUS_OK};
    if (status != STATUS_OK && status != STATUS_MEMORY && own->status == STATUS_OK) *own = *error;
    return status;
}

void cuda_work_lacks(struct stream *stream) {
    struct error *error = &stream->device->context.error;
    if (error->status != STATUS_MEMORY) return;
    if (stream->lack.status == STATUS_OK) stream->lack = *error;
    *error = (struct error){.status = STATUS_OK};
}

void cuda_kernel_name(char name[CUDA_KERNEL_NAME_MAX], const char *what, enum tensor_type type, unsigned suffix) {
    int length = snprintf(name, CUDA_KERNEL_NAME_MAX, "%s_%s", what, tensor_type_info(type)->name);
    if (suffix > 0) length += snprintf(name + length, (size_t)(CUDA_KERNEL_NAME_MAX - length), "_%u", suffix);
    ASSERT(length < CUDA_KERNEL_NAME_MAX);
    for (char *c = name; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
}

const struct cuda_kernel *cuda_device_kernel(struct cuda_device *device, const char *name, size_t shared_bytes) {
    size_t index = 0;
    while (index < device->found_count && strcmp(device->found[index].name, name) != 0) index++;
    struct cuda_found *found = &device->found[index];
    /* A launch that asks for more than the ones before it asks anew: the driver keeps one number for a kernel. */
    if (index < device->found_count && shared_bytes <= found->shared_bytes) return &found->kernel;
    if (!cuda_context_works(&device->context)) return NULL;
    ASSERT(index < CUDA_KERNELS_MAX && strlen(name) < CUDA_KERNEL_NAME_MAX);
    if (index == device->found_count) snprintf(found->name, sizeof found->name, "%s", name);
    if (cuda_kernel_find(&found->kernel, &device->modules, found->name, shared_bytes, &device->context.error) !=
        STATUS_OK)
        return NULL;
    found->shared_bytes = shared_bytes;
    if (index == device->found_count) device->found_count++;
    return &found->kernel;
}

void cuda_work_launch_kept(struct stream *stream, const char *name, struct cuda_shape shape, const void *arguments) {
    struct cuda_device *device = stream->device;
    const struct cuda_kernel *kernel = cuda_device_kernel(device, name, shape.shared_bytes);
    if (kernel == NULL) return;
    const struct cuda_launch launch = {
        .kernel = kernel,
        .grid = {shape.x, shape.y, shape.z},
        .block = {shape.threads, 1, 1},
        .shared_bytes = (uint32_t)shape.shared_bytes,
        .arguments = arguments,
        .is_early = true,
    };
    cuda_stream_launch(&stream->queue, &launch);
}

void cuda_work_launch(struct stream *stream, const char *name, struct cuda_shape shape, const void *arguments) {
    if (stream->lack.status != STATUS_OK) return;
    cuda_work_launch_kept(stream, name, shape, arguments);
    cuda_work_lacks(stream);
}

static void overlap_run(struct cuda_device *device) {
    void (*work)(void *context) = device->overlap;
    if (work == NULL) return;
    device->overlap = NULL;
    work(device->overlap_context);
}

void cuda_work_done(struct stream *stream) {
    cuda_work_lacks(stream);
    overlap_run(stream->device);
}

/* ---- host arrays on their way to the card ---- */

/* A larger ring in place of the one that is there, which stays where there is no memory. */
static enum status staging_grow(struct stream *stream, size_t segment_bytes, struct error *error) {
    struct staging *staging = &stream->staging;
    struct staging grown = {.segment_bytes = segment_bytes};
    struct cuda_context *context = &stream->device->context;
    TRY(cuda_buffer_create_host(&grown.host, context, segment_bytes * STAGING_SEGMENTS, error));
    if (staging->card.size_bytes > 0) {
        const enum status status = cuda_buffer_create(&grown.card, context, segment_bytes * STAGING_SEGMENTS, error);
        if (status != STATUS_OK) {
            cuda_buffer_destroy(&grown.host);
            return status;
        }
    }
    cuda_stream_drain(&stream->queue);
    cuda_buffer_destroy(&staging->host);
    cuda_buffer_destroy(&staging->card);
    *staging = grown;
    return cuda_context_status(context, error);
}

/* Segments are used in turn; what was put on the stream since one was begun is behind the mark that ends it. */
bool staging_take(struct stream *stream, size_t size_bytes, bool has_card, struct staged *staged) {
    struct staging *staging = &stream->staging;
    const size_t bytes = align_up(max_size(size_bytes, 1), STAGING_ALIGN);
    if (!cuda_context_works(&stream->device->context)) return false;
    if (stream->made != NULL) return graph_memory_stage(stream->made, size_bytes, staged);
    if (bytes > staging->segment_bytes) {
        size_t grown = staging->segment_bytes;
        while (grown < bytes) grown *= 2;
        if (staging_grow(stream, grown, cuda_device_error(stream->device)) != STATUS_OK) {
            cuda_work_lacks(stream);
            return false;
        }
    }
    ASSERT(!has_card || staging->card.size_bytes > 0);
    if (staging->used + bytes > staging->segment_bytes) {
        staging->tickets[staging->segment] = cuda_stream_mark(&stream->queue);
        staging->segment = (staging->segment + 1) % STAGING_SEGMENTS;
        staging->used = 0;
        const enum status status = cuda_ticket_wait(&stream->queue, staging->tickets[staging->segment], NULL);
        cuda_work_lacks(stream);
        if (status != STATUS_OK) return false;
    }
    const size_t at = staging->segment * staging->segment_bytes + staging->used;
    staging->used += bytes;
    *staged = (struct staged){.host = (uint8_t *)staging->host.host + at,
                              .pinned = staging->host.address + at,
                              .card = has_card ? staging->card.address + at : 0,
                              .size_bytes = size_bytes};
    return true;
}

void staging_send(struct stream *stream, const struct staged *staged) {
    if (stream->made != NULL) return; /* once, when the graph is made */
    cuda_stream_copy(&stream->queue, staged->card, staged->pinned, staged->size_bytes);
}

void cuda_work_upload(struct stream *stream, struct span target, const void *source, size_t size_bytes) {
    const size_t part_max = stream->staging.segment_bytes;
    struct staged staged;
    ASSERT(stream->captured == NULL);
    cuda_device_enter(stream->device);
    for (size_t done = 0, part; done < size_bytes; done += part) {
        part = min_size(part_max, size_bytes - done);
        if (!staging_take(stream, part, false, &staged)) return;
        memcpy(staged.host, (const uint8_t *)source + done, part);
        cuda_stream_copy(&stream->queue, cuda_address(target) + done, staged.pinned, part);
    }
    cuda_work_done(stream);
}

/* ---- results on their way back ---- */

static void deliver(struct stream *stream) {
    for (size_t i = 0; i < stream->delivery_count; i++) {
        const struct delivery *delivery = &stream->deliveries[i];
        memcpy(delivery->target, delivery->source, delivery->size_bytes);
    }
}

/* Waits for all that is on the stream, and delivers; what it lacked until then is told, once. */
static enum status finish(struct stream *stream, struct error *error) {
    ASSERT(stream->captured == NULL);
    cuda_work_lacks(stream);
    const uint64_t ticket = cuda_stream_mark(&stream->queue);
    enum status status = cuda_ticket_wait(&stream->queue, ticket, error);
    if (status == STATUS_MEMORY) { /* for a ticket */
        cuda_work_lacks(stream);
        cuda_stream_drain(&stream->queue);
        status = cuda_context_status(&stream->device->context, error);
    }
    if (status == STATUS_OK && stream->lack.status != STATUS_OK) {
        status = stream->lack.status;
        if (error != NULL) *error = stream->lack;
        stream->lack = (struct error){.status = STATUS_OK};
    }
    if (status == STATUS_OK) deliver(stream);
    stream->delivery_count = stream->results_used = 0;
    return status;
}

static bool results_create(struct stream *stream) {
    struct cuda_device *device = stream->device;
    if (stream->results.size_bytes > 0) return true;
    if (cuda_context_works(&device->context) &&
        cuda_buffer_create_host(&stream->results, &device->context, RESULTS_BYTES, cuda_device_error(device)) ==
            STATUS_OK)
        return true;
    cuda_work_lacks(stream);
    return false;
}

/* What is lacked until then is told to who synchronises. */
static bool results_leave(struct stream *stream) {
    struct error error;
    const enum status status = finish(stream, &error);
    if (status == STATUS_MEMORY) stream->lack = error;
    return status == STATUS_OK;
}

/* What does not fit beside what is on its way comes in parts, for each of which the host waits. */
void cuda_work_download(struct stream *stream, void *target, struct span source, size_t size_bytes) {
    cuda_device_enter(stream->device);
    if (!results_create(stream)) return;
    for (size_t done = 0, part; done < size_bytes; done += part) {
        part = min_size(RESULTS_BYTES, size_bytes - done);
        if ((stream->results_used + part > RESULTS_BYTES || stream->delivery_count == DELIVERIES_MAX) &&
            !results_leave(stream))
            return;
        const size_t at = stream->results_used;
        stream->deliveries[stream->delivery_count++] =
            (struct delivery){(uint8_t *)target + done, (const uint8_t *)stream->results.host + at, part};
        stream->results_used = align_up(at + part, STAGING_ALIGN);
        cuda_stream_copy(&stream->queue, stream->results.address + at, cuda_address(source) + done, part);
    }
    cuda_work_done(stream);
}

/* ---- scratch ---- */

uint64_t cuda_scratch(struct stream *stream, size_t size_bytes) {
    struct cuda_device *device = stream->device;
    if (!cuda_context_works(&device->context)) return 0;
    if (stream->made != NULL) return graph_memory_scratch(stream->made, size_bytes);
    if (size_bytes <= stream->scratch.size_bytes && stream->scratch.size_bytes > 0) return stream->scratch.address;
    cuda_stream_drain(&stream->queue);
    cuda_buffer_destroy(&stream->scratch);
    if (!cuda_context_works(&device->context)) return 0;
    const enum status status = cuda_buffer_create(
        &stream->scratch, &device->context, align_up(max_size(size_bytes, 1), SCRATCH_STEP), cuda_device_error(device));
    if (status != STATUS_OK) cuda_work_lacks(stream);
    return status == STATUS_OK ? stream->scratch.address : 0;
}

/* ---- life ---- */

static enum status work_init(struct stream *stream, size_t segment_bytes, bool has_card, struct error *error) {
    struct staging *staging = &stream->staging;
    struct cuda_context *context = &stream->device->context;
    TRY(cuda_stream_create(&stream->queue, context, error));
    staging->segment_bytes = segment_bytes;
    TRY(cuda_buffer_create_host(&staging->host, context, segment_bytes * STAGING_SEGMENTS, error));
    if (!has_card) return STATUS_OK;
    return cuda_buffer_create(&staging->card, context, segment_bytes * STAGING_SEGMENTS, error);
}

enum status cuda_work_create(struct cuda_device *device, struct stream **result, size_t segment_bytes, bool has_card,
                             struct error *error) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) return error_set(error, STATUS_MEMORY, "cuda: no memory for a stream");
    stream->device = device;
    stream->next = device->streams;
    device->streams = stream;
    const enum status status = work_init(stream, segment_bytes, has_card, error);
    if (status == STATUS_OK)
        *result = stream;
    else
        cuda_work_destroy(stream);
    return status;
}

void cuda_work_destroy(struct stream *stream) {
    if (stream == NULL) return;
    struct stream **at = &stream->device->streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    cuda_stream_destroy(&stream->queue);
    cuda_buffer_destroy(&stream->staging.host);
    cuda_buffer_destroy(&stream->staging.card);
    cuda_buffer_destroy(&stream->scratch);
    cuda_buffer_destroy(&stream->results);
    ASSERT(stream->graph_count == 0);
    free(stream);
}

enum status cuda_work_synchronize(struct stream *stream, struct error *error) {
    overlap_run(stream->device);
    return finish(stream, error);
}
