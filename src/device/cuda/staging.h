/* staging: pinned memory between the host's own arrays and a stream.
 *
 * What a launch needs of the host is copied here at once, so that the caller may change its array, and the card reads
 * it when the launch's turn comes.  Results come here first and reach the host's array at the next synchronize, or
 * sooner.
 *
 * A ring of CUDA_STAGING_PARTS parts.  A part is taken again when the work that uses it is done: its ticket is taken
 * when the ring is two parts further, since a launch is put on the stream after its bytes, which may lie in two parts.
 * So the bytes for one launch are no more than one part has.  Not for a stream that records. */
#ifndef LOAM_DEVICE_CUDA_STAGING_H
#define LOAM_DEVICE_CUDA_STAGING_H

#include "device/cuda/buffer.h"
#include "device/cuda/stream.h"

enum { CUDA_STAGING_PARTS = 8, CUDA_STAGING_RESULTS_MAX = 256 };

struct cuda_result {
    void *target; /* the host's */
    size_t offset, size_bytes;
    uint64_t part; /* counted from the beginning, as all parts here */
};

struct cuda_staging {
    struct cuda_stream *stream; /* borrowed */
    struct cuda_buffer memory;
    size_t part_bytes;
    uint64_t part;                        /* the one that is being filled */
    size_t used_bytes;                    /* of it */
    uint64_t tickets[CUDA_STAGING_PARTS]; /* of the parts two and more behind */
    struct cuda_result results[CUDA_STAGING_RESULTS_MAX];
    size_t result_first, result_count; /* a ring */
};

/* size_bytes: of all parts, rounded up. */
enum status cuda_staging_create(struct cuda_staging *staging, struct cuda_stream *stream, size_t size_bytes,
                                struct error *error) STATUS_CHECKED;
/* Its stream is empty.  Zeros: allowed. */
void cuda_staging_destroy(struct cuda_staging *staging);

/* Copies so many bytes, at most part_bytes; the card's address of them, aligned to 64 bytes, for what is put on the
 * stream next. */
uint64_t cuda_staging_put(struct cuda_staging *staging, const void *source, size_t size_bytes);
/* Of any size.  source is read before the call returns; target is written by the next synchronize and must last until
 * then. */
void cuda_staging_upload(struct cuda_staging *staging, uint64_t target, const void *source,
                         size_t size_bytes);
void cuda_staging_download(struct cuda_staging *staging, void *target, uint64_t source, size_t size_bytes);
/* Waits for all that is on the stream; then results are where they belong.  In a broken context they are not. */
enum status cuda_staging_synchronize(struct cuda_staging *staging, struct error *error) STATUS_CHECKED;

#endif
