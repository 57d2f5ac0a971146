/* matmul: up to CUDA_MATVEC_ROWS inputs by matvec, which streams the weights once for them; more by the tensor cores.
 * The inputs are made once for all weights; weights of one type are one launch.  What goes to the host's memory is
 * made in the card's and copied behind: outputs one by one would cross the bus in pieces of 4 bytes. */
#include "device/cuda/cuda_products.h"

#include "base/assert.h"
#include "base/checked.h"

enum { PLACE_ALIGN = 256, MATVEC_BLOCKS = 2 /* on a multiprocessor */ };

bool product_type_is_plain(enum tensor_type type) {
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
}

uint64_t cuda_scratch_add(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += align_up(bytes, PLACE_ALIGN);
    return at;
}

void product_init(struct product *p, struct stream *stream, const struct matmul_operation *operation) {
    *p = (struct product){.stream = stream,
                          .operation = operation,
                          .columns = (uint32_t)operation->weights[0]->matrix.columns,
                          .row_count = (uint32_t)operation->row_count,
                          .floats = cuda_address(operation->x)};
    ASSERT(operation->x_stride % 4 == 0 && p->floats % 16 == 0); /* four floats are read at once */
}

bool product_is_quantized(const struct matmul_operation *operation) {
    for (size_t i = 0; i < operation->weight_count; i++)
        if (product_type_is_plain(cuda_weight_type(operation->weights[i]))) return false;
    return true;
}

bool product_quantizes(const struct matmul_operation *operation) {
    for (size_t i = 0; i < operation->weight_count; i++)
        if (!product_type_is_plain(cuda_weight_type(operation->weights[i]))) return true;
    return false;
}

/* Many rows read a weight once for each tile of rows; over the bus it comes once. */
static bool weight_crosses(const struct product *p, size_t i) {
    return p->row_count > CUDA_MATVEC_ROWS && p->operation->weights[i]->kind == MEMORY_SHARED;
}

/* Offsets first, then addresses. */
bool product_take_places(struct product *p) {
    const struct matmul_operation *operation = p->operation;
    const size_t rows = p->row_count;
    size_t used = 0;
    if (rows <= CUDA_MATVEC_ROWS) {
        p->bytes = cuda_scratch_add(&used, rows * input_row_bytes(p->columns));
    } else {
        p->halves = cuda_scratch_add(&used, rows * p->columns * sizeof(uint16_t));
        p->scales = cuda_scratch_add(&used, rows * sizeof(float));
    }
    for (size_t i = 0; i < operation->weight_count; i++) {
        const size_t outputs = operation->weights[i]->matrix.rows;
        p->is_copied[i] = operation->y[i].buffer->kind == MEMORY_SHARED && !operation->accumulate &&
                          operation->y_stride[i] == outputs;
        if (p->is_copied[i]) p->y[i] = cuda_scratch_add(&used, rows * outputs * sizeof(float));
        if (weight_crosses(p, i)) p->weights[i] = cuda_scratch_add(&used, cuda_planes_bytes(operation->weights[i]));
    }
    const uint64_t base = cuda_scratch(p->stream, used);
    p->bytes += base, p->halves += base, p->scales += base;
    for (size_t i = 0; i < operation->weight_count; i++)
        p->y[i] = p->is_copied[i] ? p->y[i] + base : cuda_address(operation->y[i]);
    if (base == 0) return false;
    for (size_t i = 0; i < operation->weight_count; i++) {
        const struct weight *weight = operation->weights[i];
        if (!weight_crosses(p, i)) continue;
        p->weights[i] += base;
        cuda_stream_copy(&p->stream->queue, p->weights[i], weight->memory.address, cuda_planes_bytes(weight));
    }
    return true;
}

void product_quantize(const struct product *p, const struct norm_operation *norm) {
    struct cuda_quantize_args args = {.x = p->floats,
                                      .y = p->bytes,
                                      .row_count = p->row_count,
                                      .x_stride = (uint32_t)p->operation->x_stride,
                                      .columns = p->columns,
                                      .norm = QUANTIZE_PLAIN};
    if (norm != NULL) {
        args.x = cuda_address(norm->x);
        args.x_stride = (uint32_t)norm->x_stride;
        args.w = cuda_address(norm->w);
        args.b = cuda_address(norm->b);
        args.norm = norm->kind == NORM_RMS ? QUANTIZE_RMS : QUANTIZE_LAYER;
        args.epsilon = norm->epsilon;
    }
    cuda_work_launch(p->stream, "quantize_rows",
                     (struct cuda_shape){p->row_count, 1, 1, 256, sizeof(struct norm_shared)}, &args);
}

void product_halve(const struct product *p) {
    const struct cuda_halve_args args = {.x = p->floats,
                                         .y = p->halves,
                                         .scales = p->scales,
                                         .row_count = p->row_count,
                                         .x_stride = (uint32_t)p->operation->x_stride,
                                         .columns = p->columns};
    cuda_work_launch(p->stream, "halve_rows", (struct cuda_shape){p->row_count, 1, 1, 256, sizeof(struct norm_shared)},
                     &args);
}

uint32_t product_blocks(const struct product *p, const struct matvec_part *parts, size_t part_count, uint32_t rows) {
    const uint32_t blocks = p->stream->device->context.properties.multiprocessor_count * MATVEC_BLOCKS;
    uint32_t groups = 0;
    for (size_t i = 0; i < part_count; i++) groups += (parts[i].rows + rows - 1) / rows;
    return (uint32_t)min_size(groups, blocks);
}

static void matvec_launch(const struct product *p, enum tensor_type type, const struct matvec_part *parts,
                          size_t part_count) {
    const bool plain = product_type_is_plain(type);
    struct cuda_matvec_args args = {.input = plain ? p->floats : p->bytes,
                                    .columns = p->columns,
                                    .input_count = p->row_count,
                                    .input_stride =
                                        plain ? (uint32_t)p->operation->x_stride * 4 : input_row_bytes(p->columns),
                                    .accumulate = p->operation->accumulate};
    uint32_t inputs = 1;
    for (size_t i = 0; i < part_count; i++) args.part[i] = parts[i];
    while (inputs < p->row_count) inputs *= 2;
    char name[CUDA_KERNEL_NAME_MAX];
    cuda_kernel_name(name, "matvec", type, inputs);
    const uint32_t rows = inputs == 1 && !plain ? MATVEC_BLOCK_ROWS / 2 : MATVEC_BLOCK_ROWS;
    cuda_work_launch(p->stream, name,
                     (struct cuda_shape){product_blocks(p, parts, part_count, rows), 1, 1, MATVEC_THREADS, 0}, &args);
}

/* Wide tiles or narrow ones, whichever are done first by so many blocks; a row's bits are the same.  64 columns of a
 * tile keep shared memory busy for 1,024 cycles, of a narrow one for 640. */
static uint32_t wgmma_rows(uint32_t row_count, uint32_t output_tiles, uint32_t blocks) {
    const uint32_t wide = ((row_count + 255) / 256 * output_tiles + blocks - 1) / blocks,
                   narrow = ((row_count + 127) / 128 * output_tiles + blocks - 1) / blocks;
    return wide * 1024 <= narrow * 640 ? 256 : 128;
}

static void wgmma_launch(const struct product *p, enum tensor_type type, struct cuda_matmul_wgmma_args *args,
                         uint32_t output_tiles) {
    struct cuda_context *context = &p->stream->device->context;
    const uint32_t blocks = context->properties.multiprocessor_count;
    const uint32_t rows = wgmma_rows(p->row_count, output_tiles, blocks);
    const uint32_t tiles = (p->row_count + rows - 1) / rows * output_tiles;
    char name[CUDA_KERNEL_NAME_MAX];
    if (!cuda_tensor_map(context, &args->x, p->halves, p->columns, p->row_count, rows)) {
        cuda_work_lacks(p->stream);
        return;
    }
    context->counts.wgmma_products++;
    cuda_kernel_name(name, "matmul_wgmma", type, rows);
    cuda_work_launch(
        p->stream, name,
        (struct cuda_shape){tiles < blocks ? tiles : blocks, 1, 1, MATMUL_WGMMA_THREADS, matmul_wgmma_shared(rows)},
        args);
}

/* By wgmma on every card that has it, however few the rows: a row's bits must not depend on its company. */
static void matmul_launch(const struct product *p, enum tensor_type type, const struct matvec_part *parts,
                          size_t part_count) {
    struct cuda_matmul_wgmma_args both = {.matmul = {.x = p->halves,
                                                     .scales = p->scales,
                                                     .columns = p->columns,
                                                     .row_count = p->row_count,
                                                     .accumulate = p->operation->accumulate}};
    uint32_t tiles = 0;
    for (size_t i = 0; i < part_count; i++) {
        both.matmul.part[i] = parts[i];
        tiles += matmul_tiles(parts[i].rows);
    }
    p->stream->device->context.counts.products++;
    if (cuda_has_wgmma(p->stream->device)) {
        wgmma_launch(p, type, &both, tiles);
        return;
    }
    char name[CUDA_KERNEL_NAME_MAX];
    cuda_kernel_name(name, "matmul", type, 0);
    cuda_work_launch(p->stream, name,
                     (struct cuda_shape){(p->row_count + MATMUL_ROWS - 1) / MATMUL_ROWS, tiles, 1, 256, MATMUL_SHARED},
                     &both.matmul);
}

size_t product_parts(const struct product *p, enum tensor_type type, struct matvec_part *parts) {
    const struct matmul_operation *operation = p->operation;
    size_t count = 0;
    for (size_t i = 0; i < operation->weight_count; i++) {
        const struct weight *weight = operation->weights[i];
        const struct matrix *matrix = &weight->matrix;
        if (cuda_weight_type(weight) != type) continue;
        const uint64_t at = weight_crosses(p, i) ? p->weights[i] : weight->memory.address;
        parts[count++] = (struct matvec_part){.weight = cuda_planes_at(weight, at),
                                              .bias = cuda_address(operation->biases[i]),
                                              .y = p->y[i],
                                              .rows = (uint32_t)matrix->rows,
                                              .y_stride = (uint32_t)operation->y_stride[i]};
    }
    return count;
}

_Static_assert((int)MATVEC_PARTS == (int)DEVICE_GROUP_MAX, "an operation's weights are one launch at most");

void product_launch(const struct product *p, product_kernel *launch, const void *context) {
    const struct matmul_operation *operation = p->operation;
    for (size_t i = 0; i < operation->weight_count; i++) {
        const enum tensor_type type = cuda_weight_type(operation->weights[i]);
        struct matvec_part parts[MATVEC_PARTS];
        size_t first = 0;
        while (cuda_weight_type(operation->weights[first]) != type) first++;
        if (first == i) launch(p, context, type, parts, product_parts(p, type, parts));
    }
    for (size_t i = 0; i < operation->weight_count; i++)
        if (p->is_copied[i])
            cuda_stream_copy(&p->stream->queue, cuda_address(operation->y[i]), p->y[i],
                             operation->row_count * operation->weights[i]->matrix.rows * sizeof(float));
}

void product_of_inputs(const struct product *p, const void *context, enum tensor_type type,
                       const struct matvec_part *parts, size_t part_count) {
    (void)context;
    if (p->row_count <= CUDA_MATVEC_ROWS)
        matvec_launch(p, type, parts, part_count);
    else
        matmul_launch(p, type, parts, part_count);
}

void cuda_matmul(struct stream *stream, const struct matmul_operation *operation) {
    struct product p;
    if (operation->row_count == 0) return;
    product_init(&p, stream, operation);
    cuda_device_enter(stream->device);
    if (!product_take_places(&p)) return;
    if (p.row_count > CUDA_MATVEC_ROWS)
        product_halve(&p);
    else if (product_quantizes(operation))
        product_quantize(&p, NULL);
    product_launch(&p, product_of_inputs, NULL);
    cuda_work_done(stream);
}
