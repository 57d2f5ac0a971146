/* Mixtures of experts: which experts rows pick, and products with these.  What is picked stays on the card: grids are
 * of as many blocks as there may be, whatever is picked.
 *
 * Products, as a matmul's (cuda_products.c): those of few rows by matvec, a pick at a time; those of more sorted by
 * expert, in tiles of one expert each, by the tensor cores.  Weights in RAM are read in place, since a copy would have
 * all experts.  Products that are mixed go through scratch, of many rows in slices of outputs, and are added in the
 * order of the picks: a row's bits depend neither on the other rows nor on where its picks lie among theirs. */
#include "base/assert.h"
#include "base/checked.h"
#include "device/cuda/cuda_products.h"

_Static_assert((int)ROUTE_PICKS == (int)ROUTE_USED_MAX && (int)ROUTE_GROUPS == (int)ROUTE_GROUPS_MAX,
               "what a row may pick");

void cuda_route(struct stream *stream, const struct route_operation *operation) {
    cuda_device_enter(stream->device);
    ASSERT(operation->used >= 1 && operation->used <= operation->expert_count);
    ASSERT(operation->used <= ROUTE_USED_MAX && operation->group_count <= ROUTE_GROUPS_MAX);
    if (operation->row_count == 0) return;
    const struct cuda_route_args args = {.scores = cuda_address(operation->scores),
                                         .bias = cuda_address(operation->bias),
                                         .scales = cuda_address(operation->scales),
                                         .picks = cuda_address(operation->picks),
                                         .weights = cuda_address(operation->weights),
                                         .expert_count = (uint32_t)operation->expert_count,
                                         .used = (uint32_t)operation->used,
                                         .group_count = (uint32_t)operation->group_count,
                                         .groups_used = (uint32_t)operation->groups_used,
                                         .router = (uint32_t)operation->router,
                                         .normalises = operation->normalises,
                                         .scale = operation->scale};
    cuda_work_launch(
        stream, "route",
        (struct cuda_shape){(uint32_t)operation->row_count, 1, 1, 32, route_shared_bytes(args.expert_count)}, &args);
    cuda_work_done(stream);
}

struct experts_run {
    struct stream *stream;
    const struct matmul_experts_operation *operation;
    struct product inputs; /* of x, once for all weights */
    uint32_t pick_count, tile_count;
    uint32_t used; /* picks of an input */
    bool many;
    uint64_t places, tiles;
    uint64_t mixed; /* floats [pick_count][slice] */
    uint32_t slice; /* outputs at once, of products that are mixed */
};

static size_t expert_rows(const struct experts_run *run, size_t i) {
    return run->operation->weights[i]->matrix.rows / run->operation->expert_count;
}

/* Offsets first, then addresses. */
static bool take_places(struct experts_run *run) {
    struct product *inputs = &run->inputs;
    size_t used = 0;
    if (run->many) {
        inputs->halves = cuda_scratch_add(&used, (size_t)inputs->row_count * inputs->columns * sizeof(uint16_t));
        inputs->scales = cuda_scratch_add(&used, inputs->row_count * sizeof(float));
        run->places = cuda_scratch_add(&used, run->pick_count * sizeof(uint32_t));
        run->tiles = cuda_scratch_add(&used, run->tile_count * sizeof(struct expert_tile));
    } else {
        inputs->bytes = cuda_scratch_add(&used, (size_t)inputs->row_count * input_row_bytes(inputs->columns));
    }
    if (span_exists(run->operation->mix)) {
        const size_t rows = expert_rows(run, 0); /* slices as wide as the inputs: they take about as much */
        run->slice = (uint32_t)(run->many ? min_size(align_up(inputs->columns, MATMUL_OUTPUTS), rows) : rows);
        run->mixed = cuda_scratch_add(&used, (size_t)run->pick_count * run->slice * sizeof(float));
    }
    const uint64_t base = cuda_scratch(run->stream, used);
    inputs->bytes += base, inputs->halves += base, inputs->scales += base;
    run->places += base, run->tiles += base, run->mixed += base;
    return base != 0;
}

static void order(const struct experts_run *run) {
    const struct cuda_experts_order_args args = {.picks = cuda_address(run->operation->picks),
                                                 .places = run->places,
                                                 .tiles = run->tiles,
                                                 .pick_count = run->pick_count,
                                                 .expert_count = (uint32_t)run->operation->expert_count,
                                                 .tile_count = run->tile_count};
    cuda_work_launch(run->stream, "experts_order",
                     (struct cuda_shape){args.expert_count, 1, 1, 256, experts_order_shared(args.expert_count)}, &args);
}

static void matvec(const struct experts_run *run, enum tensor_type type, const struct matvec_part *parts,
                   size_t part_count, uint32_t rows) {
    const struct product *inputs = &run->inputs;
    const bool plain = product_type_is_plain(type);
    struct cuda_matvec_experts_args args = {
        .matvec = {.input = plain ? inputs->floats : inputs->bytes,
                   .columns = inputs->columns,
                   .input_count = 1,
                   .input_stride = plain ? (uint32_t)run->operation->x_stride * 4 : input_row_bytes(inputs->columns)},
        .picks = cuda_address(run->operation->picks),
        .used = run->used,
        .expert_rows = rows};
    for (size_t i = 0; i < part_count; i++) args.matvec.part[i] = parts[i];
    char name[CUDA_KERNEL_NAME_MAX];
    cuda_kernel_name(name, "matvec_experts", type, 0);
    cuda_work_launch(run->stream, name,
                     (struct cuda_shape){product_blocks(inputs, parts, part_count, MATVEC_BLOCK_ROWS), run->pick_count,
                                         1, MATVEC_THREADS, 0},
                     &args);
}

static void matmul(const struct experts_run *run, enum tensor_type type, const struct matvec_part *parts,
                   size_t part_count, uint32_t rows) {
    const struct product *inputs = &run->inputs;
    struct cuda_matmul_experts_args args = {
        .matmul = {.x = inputs->halves, .scales = inputs->scales, .columns = inputs->columns},
        .places = run->places,
        .tiles = run->tiles,
        .used = run->used,
        .expert_rows = rows};
    uint32_t tiles = 0;
    for (size_t i = 0; i < part_count; i++) {
        args.matmul.part[i] = parts[i];
        tiles += matmul_tiles(parts[i].rows);
    }
    const bool by_wgmma = cuda_has_wgmma(run->stream->device); /* however few the rows, as in cuda_products.c */
    struct cuda_counts *counts = &run->stream->device->context.counts;
    counts->products++, counts->wgmma_products += by_wgmma;
    char name[CUDA_KERNEL_NAME_MAX];
    cuda_kernel_name(name, by_wgmma ? "matmul_wgmma_experts" : "matmul_experts", type, 0);
    cuda_work_launch(run->stream, name,
                     (struct cuda_shape){run->tile_count, tiles, 1, by_wgmma ? MATMUL_WGMMA_THREADS : 256,
                                         by_wgmma ? matmul_wgmma_experts_shared() : MATMUL_EXPERTS_SHARED},
                     &args);
}

/* Of each expert's rows those from `first` on. */
static struct matvec_part part_of(const struct experts_run *run, size_t i, size_t first, size_t count) {
    const struct matmul_experts_operation *operation = run->operation;
    const uint64_t bias = cuda_address(operation->biases[i]);
    return (struct matvec_part){.weight = cuda_planes_behind(operation->weights[i], first),
                                .bias = bias == 0 ? 0 : bias + first * sizeof(float),
                                .y = cuda_address(operation->y[i]),
                                .rows = (uint32_t)count,
                                .y_stride = (uint32_t)operation->y_stride[i]};
}

/* Weights of one type and shape are one launch. */
static void multiply(const struct experts_run *run) {
    const struct matmul_experts_operation *operation = run->operation;
    for (size_t i = 0, count; i < operation->weight_count; i += count) {
        const enum tensor_type type = cuda_weight_type(operation->weights[i]);
        const size_t rows = expert_rows(run, i);
        struct matvec_part parts[EXPERT_GROUP_MAX];
        for (count = 0; i + count < operation->weight_count &&
                        cuda_weight_type(operation->weights[i + count]) == type && expert_rows(run, i + count) == rows;
             count++)
            parts[count] = part_of(run, i + count, 0, rows);
        (run->many ? matmul : matvec)(run, type, parts, count, (uint32_t)rows);
    }
}

static void mix(const struct experts_run *run) {
    const struct matmul_experts_operation *operation = run->operation;
    const enum tensor_type type = cuda_weight_type(operation->weights[0]);
    const size_t rows = expert_rows(run, 0);
    for (size_t first = 0; first < rows; first += run->slice) {
        struct matvec_part part = part_of(run, 0, first, min_size(run->slice, rows - first));
        const struct cuda_experts_mix_args args = {.products = run->mixed,
                                                   .mix = cuda_address(operation->mix),
                                                   .y = part.y + first * sizeof(float),
                                                   .used = (uint32_t)operation->used,
                                                   .count = part.rows,
                                                   .y_stride = part.y_stride,
                                                   .replaces = operation->replaces};
        part.y = run->mixed;
        part.y_stride = part.rows;
        (run->many ? matmul : matvec)(run, type, &part, 1, (uint32_t)rows);
        cuda_work_launch(run->stream, "experts_mix",
                         (struct cuda_shape){(uint32_t)operation->row_count, (part.rows + 1023) / 1024, 1, 256, 0},
                         &args);
    }
}

void cuda_matmul_experts(struct stream *stream, const struct matmul_experts_operation *operation) {
    const size_t picks = operation->row_count * operation->used;
    const bool is_mixed = span_exists(operation->mix);
    ASSERT(operation->weight_count >= 1 && operation->weight_count <= EXPERT_GROUP_MAX);
    ASSERT(!is_mixed || operation->weight_count == 1);
    ASSERT(operation->row_count <= DEVICE_BATCH_MAX && operation->used <= ROUTE_USED_MAX);
    if (picks == 0) return;
    /* x as a matmul has it, for what makes inputs of it */
    struct matmul_operation rows = {.x = operation->x,
                                    .x_stride = operation->x_stride,
                                    .row_count = operation->per_pick ? picks : operation->row_count,
                                    .weight_count = operation->weight_count};
    for (size_t i = 0; i < operation->weight_count; i++) rows.weights[i] = operation->weights[i];
    struct experts_run run = {.stream = stream,
                              .operation = operation,
                              .pick_count = (uint32_t)picks,
                              .tile_count = experts_tiles((uint32_t)picks, (uint32_t)operation->expert_count),
                              .used = operation->per_pick ? 1 : (uint32_t)operation->used,
                              .many = operation->row_count > CUDA_MATVEC_ROWS};
    product_init(&run.inputs, stream, &rows);
    cuda_device_enter(stream->device);
    if (!take_places(&run)) return;
    if (run.many)
        product_halve(&run.inputs);
    else if (product_quantizes(&rows))
        product_quantize(&run.inputs, NULL);
    if (run.many) order(&run);
    if (is_mixed)
        mix(&run);
    else
        multiply(&run);
    cuda_work_done(stream);
}
