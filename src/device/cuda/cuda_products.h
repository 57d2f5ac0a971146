/* cuda_products: the parts of a matmul on a card, for cuda_products.c, cuda_experts.c and cuda_fused.c. */
#pragma once

#include "device/cuda/cuda_device_internal.h"

struct product {
    struct stream *stream;
    const struct matmul_operation *operation;
    uint32_t columns, row_count;
    uint64_t floats, bytes;           /* inputs: as they are; of 8 bits */
    uint64_t halves, scales;          /* of many rows */
    uint64_t y[DEVICE_GROUP_MAX];     /* where the outputs are made */
    bool is_copied[DEVICE_GROUP_MAX]; /* from there to operation->y */
    /* Of many rows, which read a weight more than once: where one of RAM is copied to; 0: it is used in place */
    uint64_t weights[DEVICE_GROUP_MAX];
};

void product_init(struct product *p, struct stream *stream, const struct matmul_operation *operation);
bool product_type_is_plain(enum tensor_type type); /* of what cuda_weight_type gives: takes inputs of floats */
/* All, or any, of its weights take inputs of 8 bits. */
bool product_is_quantized(const struct matmul_operation *operation);
bool product_quantizes(const struct matmul_operation *operation);
/* The offset of so many bytes of scratch behind those that are used. */
uint64_t cuda_scratch_add(size_t *used, size_t bytes);
/* Scratch for inputs, for weights of RAM, and for outputs that are copied; where outputs are made.  False: the device
 * is broken. */
bool product_take_places(struct product *p);
/* Inputs of 8 bits, of the norm of its x or, NULL, of the operation's x. */
void product_quantize(const struct product *p, const struct norm_operation *norm);
/* Inputs in halves, of the operation's x. */
void product_halve(const struct product *p);
/* The weights of a type, in their order: [MATVEC_PARTS]; how many. */
size_t product_parts(const struct product *p, enum tensor_type type, struct matvec_part *parts);
/* The grid of a matvec whose blocks take so many rows a round. */
uint32_t product_blocks(const struct product *p, const struct matvec_part *parts, size_t part_count, uint32_t rows);

/* One launch for the weights of each type; then what goes to the host's memory is copied. */
typedef void product_kernel(const struct product *p, const void *context, enum tensor_type type,
                            const struct matvec_part *parts, size_t part_count);
void product_launch(const struct product *p, product_kernel *launch, const void *context);
/* Of the inputs that were made. */
product_kernel product_of_inputs;
