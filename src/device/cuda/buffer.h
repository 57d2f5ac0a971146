/* buffer: memory of a card, and memory of the host that it reads and writes over the bus. */
#pragma once

#include "device/cuda/context.h"
#include "device/cuda/kernels_sm90a.h"

enum cuda_buffer_kind {
    CUDA_BUFFER_DEVICE,     /* the host never touches it */
    CUDA_BUFFER_HOST,       /* pinned, of the driver */
    CUDA_BUFFER_REGISTERED, /* pinned, of an area of our own */
    CUDA_BUFFER_BORROWED,   /* pinned, of somebody else's memory */
};

struct cuda_buffer {
    struct cuda_context *context;
    enum cuda_buffer_kind kind;
    uint64_t address; /* for kernels and copies */
    void *host;       /* for the host; NULL: CUDA_BUFFER_DEVICE */
    size_t size_bytes;
};

/* What it holds is not known.  STATUS_MEMORY: the message says what is free. */
enum status cuda_buffer_create(struct cuda_buffer *buffer, struct cuda_context *context, size_t size_bytes,
                               struct error *error) STATUS_CHECKED;
/* Zeros, in whole pages, of our own where the card can use such memory. */
enum status cuda_buffer_create_host(struct cuda_buffer *buffer, struct cuda_context *context, size_t size_bytes,
                                    struct error *error) STATUS_CHECKED;
/* Memory that is there already, of whole pages, and stays until the buffer is destroyed.  STATUS_UNSUPPORTED: this card
 * cannot use it. */
enum status cuda_buffer_register(struct cuda_buffer *buffer, struct cuda_context *context, void *memory,
                                 size_t size_bytes, struct error *error) STATUS_CHECKED;
/* No work that uses it is under way.  Zeros: allowed. */
void cuda_buffer_destroy(struct cuda_buffer *buffer);

/* The map of [rows][columns] halves from a multiple of 16 on, columns a multiple of 8, in boxes of box_rows rows by
 * MATMUL_COLUMNS columns, whose 128 bytes a row are swizzled.  False: the context is broken. */
bool cuda_tensor_map(struct cuda_context *context, struct tensor_map *map, uint64_t halves, uint32_t columns,
                     uint32_t rows, uint32_t box_rows);
