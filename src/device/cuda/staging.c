#include "device/cuda/staging.h"

#include <string.h>

#include "base/assert.h"
#include "base/checked.h"

enum { ALIGNMENT = 64 };

enum status cuda_staging_create(struct cuda_staging *staging, struct cuda_stream *stream, size_t size_bytes,
                                struct error *error) {
    memset(staging, 0, sizeof *staging);
    staging->stream = stream;
    staging->part_bytes = align_up(max_size(size_bytes / CUDA_STAGING_PARTS, ALIGNMENT), ALIGNMENT);
    return cuda_buffer_create_host(&staging->memory, stream->context,
                                   staging->part_bytes * CUDA_STAGING_PARTS, error);
}

void cuda_staging_destroy(struct cuda_staging *staging) {
    cuda_buffer_destroy(&staging->memory);
    memset(staging, 0, sizeof *staging);
}

/* Those of that part and older ones, whose work is done. */
static void results_deliver(struct cuda_staging *staging, uint64_t part) {
    const uint8_t *memory = staging->memory.host;
    while (staging->result_count > 0 && staging->results[staging->result_first].part <= part) {
        const struct cuda_result *result = &staging->results[staging->result_first];
        if (cuda_context_works(staging->stream->context))
            memcpy(result->target, memory + result->offset, result->size_bytes);
        staging->result_first = (staging->result_first + 1) % CUDA_STAGING_RESULTS_MAX;
        staging->result_count--;
    }
}

static void part_begin(struct cuda_staging *staging) {
    const uint64_t part = ++staging->part;
    staging->used_bytes = 0;
    if (part >= 2) staging->tickets[(part - 2) % CUDA_STAGING_PARTS] = cuda_stream_mark(staging->stream);
    if (part < CUDA_STAGING_PARTS) return;
    const uint64_t before = part - CUDA_STAGING_PARTS; /* the one whose bytes it takes */
    (void)(cuda_ticket_wait(staging->stream, staging->tickets[before % CUDA_STAGING_PARTS], NULL) ==
           STATUS_OK);
    results_deliver(staging, before);
}

/* The offset of so many bytes in the memory. */
static size_t bytes_take(struct cuda_staging *staging, size_t size_bytes) {
    ASSERT(size_bytes <= staging->part_bytes && staging->stream->graph == NULL);
    if (size_bytes > staging->part_bytes - staging->used_bytes) part_begin(staging);
    const size_t offset = staging->part % CUDA_STAGING_PARTS * staging->part_bytes + staging->used_bytes;
    staging->used_bytes =
        min_size(align_up(staging->used_bytes + size_bytes, ALIGNMENT), staging->part_bytes);
    return offset;
}

uint64_t cuda_staging_put(struct cuda_staging *staging, const void *source, size_t size_bytes) {
    const size_t offset = bytes_take(staging, size_bytes);
    memcpy((uint8_t *)staging->memory.host + offset, source, size_bytes);
    return staging->memory.address + offset;
}

void cuda_staging_upload(struct cuda_staging *staging, uint64_t target, const void *source,
                         size_t size_bytes) {
    for (size_t done = 0; done < size_bytes;) {
        const size_t bytes = min_size(size_bytes - done, staging->part_bytes);
        const uint64_t staged = cuda_staging_put(staging, (const uint8_t *)source + done, bytes);
        cuda_stream_copy(staging->stream, target + done, staged, bytes);
        done += bytes;
    }
}

void cuda_staging_download(struct cuda_staging *staging, void *target, uint64_t source, size_t size_bytes) {
    for (size_t done = 0; done < size_bytes;) {
        const size_t bytes = min_size(size_bytes - done, staging->part_bytes);
        if (staging->result_count == CUDA_STAGING_RESULTS_MAX)
            (void)(cuda_staging_synchronize(staging, NULL) == STATUS_OK);
        const size_t offset = bytes_take(staging, bytes);
        cuda_stream_copy(staging->stream, staging->memory.address + offset, source + done, bytes);
        const size_t last = (staging->result_first + staging->result_count++) % CUDA_STAGING_RESULTS_MAX;
        staging->results[last] = (struct cuda_result){(uint8_t *)target + done, offset, bytes, staging->part};
        done += bytes;
    }
}

enum status cuda_staging_synchronize(struct cuda_staging *staging, struct error *error) {
    (void)(cuda_ticket_wait(staging->stream, cuda_stream_mark(staging->stream), NULL) == STATUS_OK);
    results_deliver(staging, staging->part);
    return cuda_context_status(staging->stream->context, error);
}
