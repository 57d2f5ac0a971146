/* The parts of the cuda device.
 *
 *   1  An operation stages the host arrays that it names in its stream's ring, and launches kernels; the call returns.
 *   2  Scratch is the stream's, so that operations of two streams do not share any.  It grows when the stream is empty.
 *   3  What cannot be done (a kernel that is not there, a card that is gone) breaks the device: it keeps the first
 *      error, and later work is dropped.
 *   4  Memory that an operation does not get is the stream's lack: its work is dropped until the next synchronisation
 *      returns the error, and what comes behind runs.  Page tables are brought up to date all the same, since the
 *      cache sends a change once.
 */
#pragma once

#include "device/cuda/buffer.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/kernels.h"
#include "device/cuda/stream.h"
#include "platform/pool.h"

enum {
    CUDA_KERNELS_MAX = 192, /* that a device has found */
    CUDA_KERNEL_NAME_MAX = 40,
    CUDA_HEAD_MAX = 512, /* elements of a head, of the widest kernels of attention */
};

struct cuda_found {
    char name[CUDA_KERNEL_NAME_MAX];
    struct cuda_kernel kernel;
    size_t shared_bytes; /* that it was found for, the most so far */
};

/* Memory that was allocated; struct buffer has the rest. */
struct cuda_area {
    struct cuda_area *next;
    struct cuda_buffer buffer;
};

struct cuda_device {
    struct device device; /* first: a struct device * is a struct cuda_device * */
    struct device_operations operations;
    uint64_t number; /* of this process's devices, from 1 on */
    struct cuda_driver driver;
    struct cuda_context context;
    struct cuda_modules modules;
    struct cuda_found found[CUDA_KERNELS_MAX];
    size_t found_count;
    struct pool *pool;      /* owned */
    struct stream *streams; /* owned by their users */
    struct cuda_area *areas;
    struct stream *loading;         /* owned: for what allocate and weight_load put on a stream */
    void (*overlap)(void *context); /* the caller's work behind the next launch; NULL: none */
    void *overlap_context;
};

/* Host arrays on their way to the card: a ring of segments in pinned memory, and the same in the card's.  A segment is
 * used again when all work is done that was put on the stream before the next one was begun. */
enum { STAGING_SEGMENTS = 4 };
struct staging {
    struct cuda_buffer host, card;
    size_t segment_bytes, segment, used;
    uint64_t tickets[STAGING_SEGMENTS]; /* after which a segment is free */
};

/* A result that waits for the stream to be synchronised. */
struct delivery {
    void *target;
    const void *source;
    size_t size_bytes;
};
enum { DELIVERIES_MAX = 32 };

/* Scratch of graphs, which have addresses of it: each larger than the one before. */
enum { GRAPH_SCRATCH_MAX = 24 };
struct graph_scratch {
    struct cuda_buffer list[GRAPH_SCRATCH_MAX];
    size_t count;
};

struct stream {
    struct cuda_device *device; /* borrowed */
    struct stream *next;        /* of the device */
    struct cuda_stream queue;
    struct staging staging;
    struct graph *captured;    /* owned: that operations are kept for; NULL: they are launched */
    struct graph_memory *made; /* of the graph whose nodes launches are (cuda_capture.h); NULL: they run */
    struct graph_scratch graph_scratch[2]; /* of nodes, and of those beside them (beside of device.h) */
    size_t graph_count;
    struct error lack;         /* of memory (4 above); STATUS_OK: none */
    struct cuda_buffer scratch;
    struct cuda_buffer results; /* pinned; used for deliveries and free again when they are done */
    size_t results_used;
    struct delivery deliveries[DELIVERIES_MAX];
    size_t delivery_count;
};

/* ---- cuda_work.c: kernels, launches, staging and scratch ---- */

/* The driver's calls are for the thread that has the context: before the first of an operation. */
void cuda_device_enter(struct cuda_device *device);
/* Products of more than CUDA_MATVEC_ROWS rows, and attention of prompts, are by wgmma, which later cards lack. */
static inline bool cuda_has_wgmma(const struct cuda_device *device) {
    return device->context.properties.capability == 90;
}
/* Where to write the device's error; NULL if it has one already. */
struct error *cuda_device_error(struct cuda_device *device);
/* What failed is the device's error, unless it has one; a lack of memory is the caller's alone.  Returns status. */
enum status cuda_device_failed(struct cuda_device *device, enum status status, const struct error *error);
/* The device's error, if it is one of memory, is from here on the stream's lack. */
void cuda_work_lacks(struct stream *stream);

/* NULL: there is none, and the device is broken. */
const struct cuda_kernel *cuda_device_kernel(struct cuda_device *device, const char *name, size_t shared_bytes);
/* "matvec_q4_k_8": of a type's kernel; suffix 0: none. */
void cuda_kernel_name(char name[CUDA_KERNEL_NAME_MAX], const char *what, enum tensor_type type, unsigned suffix);

struct cuda_shape {
    uint32_t x, y, z, threads;
    size_t shared_bytes;
};
void cuda_work_launch(struct stream *stream, const char *name, struct cuda_shape shape, const void *arguments);
/* The same, though the stream lacks memory. */
void cuda_work_launch_kept(struct stream *stream, const char *name, struct cuda_shape shape, const void *arguments);
/* The caller's overlapped work, behind an operation that has been put on the stream. */
void cuda_work_done(struct stream *stream);

/* Room for so many bytes, which the host writes, and with has_card as much in the card's ring; staging_send puts the
 * copy there on the stream.  Good until the operation's end.  False: the device is broken. */
struct staged {
    uint8_t *host;         /* pinned */
    uint64_t pinned, card; /* its address for the card, and the copy's */
    size_t size_bytes;
};
bool staging_take(struct stream *stream, size_t size_bytes, bool has_card, struct staged *staged);
void staging_send(struct stream *stream, const struct staged *staged);

/* Memory of the card for this operation; 0: the device is broken. */
uint64_t cuda_scratch(struct stream *stream, size_t bytes);

static inline uint64_t cuda_address(struct span span) {
    return span.buffer == NULL ? 0 : span.buffer->address + span.offset;
}

/* has_card: its ring is in the card's memory, too, for operations that stage arrays. */
enum status cuda_work_create(struct cuda_device *device, struct stream **stream, size_t segment_bytes, bool has_card,
                             struct error *error) STATUS_CHECKED;
void cuda_work_destroy(struct stream *stream);
enum status cuda_work_synchronize(struct stream *stream, struct error *error) STATUS_CHECKED;
void cuda_work_upload(struct stream *stream, struct span target, const void *source, size_t size_bytes);
void cuda_work_download(struct stream *stream, void *target, struct span source, size_t size_bytes);

/* ---- cuda_weights.c ---- */

enum tensor_type cuda_weight_type(const struct weight *weight); /* that kernels know it by */
struct weight_planes cuda_planes(const struct weight *weight);
struct weight_planes cuda_planes_at(const struct weight *weight, uint64_t first); /* or a copy of it */
struct weight_planes cuda_planes_behind(const struct weight *weight, size_t row); /* from a row on */
size_t cuda_planes_bytes(const struct weight *weight);
enum status cuda_weight_load(struct device *device, struct weight *weight, struct error *error) STATUS_CHECKED;
void cuda_weight_release(struct device *device, struct weight *weight);

/* ---- cuda_memory.c ---- */

enum status cuda_allocate(struct device *device, enum memory_kind kind, size_t size_bytes, struct buffer *buffer,
                          struct error *error) STATUS_CHECKED;
void cuda_release(struct device *device, struct buffer *buffer);
uint64_t cuda_memory_free(struct device *device);

/* ---- cuda_rows.c, cuda_products.c, cuda_experts.c, cuda_attend.c ---- */

void cuda_embed(struct stream *stream, const struct embed_operation *operation);
void cuda_norm(struct stream *stream, const struct norm_operation *operation);
void cuda_rope_angles(struct stream *stream, const struct rope_angles_operation *operation);
void cuda_rope(struct stream *stream, const struct rope_operation *operation);
void cuda_activation(struct stream *stream, const struct activation_operation *operation);
void cuda_gather(struct stream *stream, const struct gather_operation *operation);
void cuda_keep_rows(struct stream *stream, const struct keep_rows_operation *operation);
void cuda_matmul(struct stream *stream, const struct matmul_operation *operation);
void cuda_route(struct stream *stream, const struct route_operation *operation);
void cuda_matmul_experts(struct stream *stream, const struct matmul_experts_operation *operation);
void cuda_update_places(struct stream *stream, const struct update_places_operation *operation);
void cuda_append(struct stream *stream, const struct append_operation *operation);
void cuda_attend(struct stream *stream, const struct attend_operation *operation);

/* ---- cuda_recurrence.c ---- */

void cuda_convolve(struct stream *stream, const struct convolve_operation *operation);
void cuda_delta(struct stream *stream, const struct delta_operation *operation);
void cuda_gate(struct stream *stream, const struct gate_operation *operation);

/* ---- cuda_labels.c ---- */

void cuda_compare_labels(struct stream *stream, const struct compare_labels_operation *operation);

/* ---- cuda_key_index.c, cuda_select.c ---- */

const char *cuda_chooses_by(const struct key_index_layout *layout, float alpha);
extern const struct range_form cuda_range_form;
void cuda_key_index_build(struct stream *stream, const struct key_index_build_operation *operation);
void cuda_choose(struct stream *stream, const struct choose_operation *operation);
void cuda_fetch(struct stream *stream, const struct fetch_operation *operation);
void cuda_attend_rows(struct stream *stream, const struct attend_rows_operation *operation);
