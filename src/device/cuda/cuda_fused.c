#include "device/cuda/cuda_fused.h"

#include "base/checked.h"
#include "device/cuda/cuda_products.h"

enum { QUANTIZED_BLOCK = 32 };
_Static_assert(sizeof(struct rope_append_shared) / sizeof(float) == CUDA_HEAD_MAX, "a head");

/* ---- who reads what ---- */

static bool same(struct span a, struct span b) { return cuda_address(a) == cuda_address(b); }

static bool reads(const struct operation *operation, struct span span) {
    switch (operation->kind) {
    case OPERATION_MATMUL: {
        const struct matmul_operation *matmul = &operation->as.matmul;
        bool adds = false;
        for (size_t i = 0; i < matmul->weight_count; i++)
            adds = adds || (matmul->accumulate && same(matmul->y[i], span));
        return adds || same(matmul->x, span);
    }
    case OPERATION_NORM:
        return same(operation->as.norm.x, span) || (operation->as.norm.adds && same(operation->as.norm.y, span));
    case OPERATION_ROPE: return same(operation->as.rope.x, span);
    case OPERATION_ACTIVATION:
        return same(operation->as.activation.gate, span) || same(operation->as.activation.up, span);
    case OPERATION_ROUTE: return same(operation->as.route.scores, span);
    case OPERATION_MATMUL_EXPERTS: {
        const struct matmul_experts_operation *experts = &operation->as.matmul_experts;
        return same(experts->x, span) || same(experts->picks, span) ||
               (span_exists(experts->mix) && (same(experts->mix, span) || same(experts->y[0], span)));
    }
    case OPERATION_CONVOLVE: /* x and the gates are parts of one row */
        return same(operation->as.convolve.x, span) || same(operation->as.convolve.in_gate, span) ||
               same(operation->as.convolve.out_gate, span);
    case OPERATION_DELTA:
        return same(operation->as.delta.x, span) || same(operation->as.delta.alpha, span) ||
               same(operation->as.delta.beta, span) || same(operation->as.delta.z, span);
    case OPERATION_GATE: return same(operation->as.gate.gates, span) || same(operation->as.gate.y, span);
    case OPERATION_GATHER: return same(operation->as.gather.x, span);
    case OPERATION_APPEND: return same(operation->as.append.k, span) || same(operation->as.append.v, span);
    case OPERATION_ATTEND: return same(operation->as.attend.q, span);
    case OPERATION_COMPARE_LABELS: return same(operation->as.compare_labels.q, span);
    case OPERATION_CHOOSE: return same(operation->as.choose.q, span);
    case OPERATION_ATTEND_ROWS: return same(operation->as.attend_rows.q, span);
    case OPERATION_KEEP_ROWS: return !operation->as.keep_rows.restores && same(operation->as.keep_rows.x, span);
    case OPERATION_BESIDE:
    case OPERATION_HOST_TURN: /* the host sees shared memory alone */
    case OPERATION_UPDATE_PLACES:
    case OPERATION_EMBED:
    case OPERATION_ROPE_ANGLES:
    case OPERATION_KEY_INDEX_BUILD:
    case OPERATION_FETCH: return false; /* of floats */
    default: return true;               /* no operation of a graph */
    }
}

static bool writes(const struct operation *operation, struct span span) {
    switch (operation->kind) {
    case OPERATION_EMBED: return same(operation->as.embed.y, span);
    case OPERATION_NORM: return same(operation->as.norm.y, span);
    case OPERATION_ACTIVATION: return same(operation->as.activation.y, span);
    case OPERATION_ATTEND: return same(operation->as.attend.out, span);
    case OPERATION_ATTEND_ROWS: return same(operation->as.attend_rows.out, span);
    case OPERATION_MATMUL:
        for (size_t i = 0; i < operation->as.matmul.weight_count; i++)
            if (same(operation->as.matmul.y[i], span)) return true;
        return false;
    case OPERATION_CONVOLVE: return same(operation->as.convolve.y, span);
    case OPERATION_DELTA: return same(operation->as.delta.y, span);
    case OPERATION_GATHER: return same(operation->as.gather.y, span);
    case OPERATION_KEEP_ROWS: return operation->as.keep_rows.restores && same(operation->as.keep_rows.x, span);
    case OPERATION_ROUTE: return same(operation->as.route.picks, span) || same(operation->as.route.weights, span);
    case OPERATION_MATMUL_EXPERTS:
        for (size_t i = 0; i < operation->as.matmul_experts.weight_count; i++)
            if (same(operation->as.matmul_experts.y[i], span)) return true;
        return false;
    default: return false;
    }
}

/* Behind this operation, before it is written again.  What the host sees is read. */
static bool is_read_behind(const struct operation *operation, struct span span) {
    if (span.buffer->kind == MEMORY_SHARED) return true;
    for (operation = operation->next; operation != NULL; operation = operation->next) {
        if (reads(operation, span)) return true;
        if (writes(operation, span)) return false;
    }
    return false;
}

static bool is(const struct operation *operation, enum operation_kind kind) {
    return operation != NULL && operation->kind == kind;
}

/* ---- norm, and the products of what it gives ---- */

static bool is_row_norm(const struct operation *operation) {
    return is(operation, OPERATION_NORM) && operation->as.norm.segment_count == 1 && !operation->as.norm.adds &&
           !same(operation->as.norm.x, operation->as.norm.y);
}

/* The matmul takes the norm's rows, few of them, as inputs of 8 bits. */
static bool takes_norm(const struct operation *matmul, const struct norm_operation *norm) {
    if (!is(matmul, OPERATION_MATMUL)) return false;
    const struct matmul_operation *products = &matmul->as.matmul;
    return same(products->x, norm->y) && products->row_count == norm->row_count &&
           products->row_count <= CUDA_MATVEC_ROWS && products->x_stride == norm->y_stride &&
           norm->segment_size == products->weights[0]->matrix.columns && norm->segment_size % QUANTIZED_BLOCK == 0 &&
           product_is_quantized(products);
}

static struct cuda_decode_matvec_args decode_args(const struct product *p, const struct norm_operation *norm,
                                                  const struct matvec_part *parts, size_t part_count) {
    struct cuda_decode_matvec_args args = {
        .matvec = {.input = cuda_address(norm->x),
                   .columns = p->columns,
                   .input_count = 1,
                   .accumulate = p->operation->accumulate},
        .norm_w = cuda_address(norm->w),
        .norm_b = norm->kind == NORM_LAYER ? cuda_address(norm->b) : 0,
        .epsilon = norm->epsilon,
    };
    for (size_t i = 0; i < part_count; i++) args.matvec.part[i] = parts[i];
    return args;
}

static void decode_norm_launch(const struct product *p, const void *norm, enum tensor_type type,
                               const struct matvec_part *parts, size_t part_count) {
    const struct cuda_decode_matvec_args args = decode_args(p, norm, parts, part_count);
    char name[CUDA_KERNEL_NAME_MAX];
    cuda_kernel_name(name, "decode_norm", type, 0);
    cuda_work_launch(p->stream, name,
                     (struct cuda_shape){product_blocks(p, parts, part_count, MATVEC_BLOCK_ROWS), 1, 1, MATVEC_THREADS,
                                         decode_matvec_shared(p->columns)},
                     &args);
}

static size_t norm_products(struct stream *stream, const struct operation *first) {
    if (!is_row_norm(first) || !takes_norm(first->next, &first->as.norm)) return 0;
    const struct norm_operation *norm = &first->as.norm;
    struct product p;
    /* Every block norms for itself, while others have outputs already. */
    if (is_read_behind(first->next, norm->y) || writes(first->next, norm->x)) return 0;
    product_init(&p, stream, &first->next->as.matmul);
    if (!product_take_places(&p)) return 2;
    if (p.row_count == 1) {
        product_launch(&p, decode_norm_launch, norm);
    } else {
        product_quantize(&p, norm);
        product_launch(&p, product_of_inputs, NULL);
    }
    return 2;
}

/* ---- norm, gate and up, their product, and its own with down ---- */

static bool is_gate(const struct matmul_operation *gate) {
    if (gate->weight_count != 2 || gate->row_count != 1 || gate->accumulate) return false;
    const struct matrix *a = &gate->weights[0]->matrix, *b = &gate->weights[1]->matrix;
    return a->type == b->type && a->rows == b->rows && a->rows % QUANTIZED_BLOCK == 0 &&
           !span_exists(gate->biases[0]) && !span_exists(gate->biases[1]);
}

/* Its outputs are made in place, so that its inputs may be in scratch. */
static bool is_in_place(const struct matmul_operation *operation) {
    for (size_t i = 0; i < operation->weight_count; i++)
        if (operation->y[i].buffer->kind == MEMORY_SHARED) return false;
    return true;
}

static void products_of(struct stream *stream, const struct matmul_operation *operation, uint64_t inputs) {
    struct product p;
    product_init(&p, stream, operation);
    p.bytes = inputs;
    for (size_t i = 0; i < operation->weight_count; i++) p.y[i] = cuda_address(operation->y[i]);
    product_launch(&p, product_of_inputs, NULL);
}

static size_t feed_forward(struct stream *stream, const struct operation *first) {
    const struct operation *gate = first->next;
    if (!is_row_norm(first) || !takes_norm(gate, &first->as.norm) || !is_gate(&gate->as.matmul)) return 0;
    const struct operation *product = gate->next, *down = product != NULL ? product->next : NULL;
    if (!is(product, OPERATION_ACTIVATION) || !is(down, OPERATION_MATMUL)) return 0;
    const struct matmul_operation *gates = &gate->as.matmul, *downs = &down->as.matmul;
    const struct activation_operation *silu = &product->as.activation;
    const size_t width = gates->weights[0]->matrix.rows;
    if (silu->kind != ACTIVATION_SILU_MULTIPLY || !same(silu->gate, gates->y[0]) || !same(silu->up, gates->y[1]) ||
        silu->count != width || !same(downs->x, silu->y) || downs->row_count != 1 ||
        downs->weights[0]->matrix.columns != width || !product_is_quantized(downs) || !is_in_place(downs))
        return 0;
    const struct span left_out[] = {first->as.norm.y, gates->y[0], gates->y[1], silu->y};
    for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++)
        if (is_read_behind(down, left_out[i])) return 0;
    struct product p;
    struct matvec_part parts[MATVEC_PARTS];
    const enum tensor_type type = cuda_weight_type(gates->weights[0]);
    const uint64_t inputs = cuda_scratch(stream, input_row_bytes((uint32_t)width));
    product_init(&p, stream, gates);
    if (inputs == 0) return 4;
    struct cuda_decode_matvec_args args = decode_args(&p, &first->as.norm, parts, product_parts(&p, type, parts));
    args.input_out = inputs;
    char name[CUDA_KERNEL_NAME_MAX];
    cuda_kernel_name(name, "decode_gate", type, 0);
    cuda_work_launch(stream, name,
                     (struct cuda_shape){product_blocks(&p, parts, 1, MATVEC_BLOCK_ROWS), 1, 1, MATVEC_THREADS,
                                         decode_matvec_shared(p.columns)},
                     &args);
    products_of(stream, downs, inputs);
    return 4;
}

/* ---- norms of heads, rotation, append ---- */

/* A norm of heads in place, if it is the next; by warps, as the node does it. */
static const struct operation *head_norm(const struct operation *operation, struct span x, size_t head_count,
                                         const struct norm_operation **norm) {
    *norm = NULL;
    if (!is(operation, OPERATION_NORM) || !same(operation->as.norm.x, x)) return operation;
    const struct norm_operation *own = &operation->as.norm;
    if (own->kind != NORM_RMS || !same(own->y, x) || own->segment_count != head_count || head_count == 1)
        return operation;
    *norm = own;
    return operation->next;
}

static size_t distance(const struct operation *from, const struct operation *to) {
    size_t count = 0;
    for (; from != to; from = from->next) count++;
    return count;
}

static size_t heads_append(struct stream *stream, const struct operation *first) {
    const struct norm_operation *k_norm, *q_norm;
    const struct operation *k = first;
    if (is(first, OPERATION_NORM))
        k = head_norm(first, first->as.norm.x, first->as.norm.segment_count, &k_norm);
    else
        k_norm = NULL;
    if (!is(k, OPERATION_ROPE) || !is(k->next, OPERATION_APPEND)) return 0;
    const struct rope_operation *k_rope = &k->as.rope;
    const struct append_operation *append = &k->next->as.append;
    const struct operation *build = is(k->next->next, OPERATION_KEY_INDEX_BUILD) ? k->next->next : NULL;
    const struct operation *after = build != NULL ? build->next : k->next->next;
    const struct span q_span = is(after, OPERATION_NORM)   ? after->as.norm.x
                               : is(after, OPERATION_ROPE) ? after->as.rope.x
                                                           : (struct span){.buffer = NULL};
    const size_t q_heads = is(after, OPERATION_NORM) ? after->as.norm.segment_count : 0;
    const struct operation *q = head_norm(after, q_span, q_heads, &q_norm);
    if (!is(q, OPERATION_ROPE)) return 0;
    const struct rope_operation *q_rope = &q->as.rope;
    const struct kv_layout *layout = append->items[0].view.layout;
    const bool fits = same(k_rope->x, append->k) && k_rope->head_count == append->kv_head_count &&
                      k_rope->x_stride == append->k_stride && k_rope->head_stride == layout->k_dimension &&
                      q_rope->head_stride == layout->k_dimension && same(k_rope->cosine_sine, q_rope->cosine_sine) &&
                      k_rope->order == q_rope->order && k_rope->pair_count == q_rope->pair_count &&
                      k_rope->row_count == q_rope->row_count && k_rope->row_count == append->item_count &&
                      layout->k_dimension <= CUDA_HEAD_MAX;
    const bool norms_fit =
        (k_norm == NULL) == (q_norm == NULL) &&
        (k_norm == NULL ||
         (same(k_norm->x, append->k) && same(q_norm->x, q_rope->x) && k_norm->segment_count == k_rope->head_count &&
          q_norm->segment_count == q_rope->head_count && k_norm->segment_size == layout->k_dimension &&
          q_norm->segment_size == layout->k_dimension && k_norm->epsilon == q_norm->epsilon));
    if (!fits || !norms_fit || is_read_behind(q, append->k)) return 0;
    const struct span none = {.buffer = NULL};
    cuda_rope_append(stream, &(struct rope_append){.q = q_rope,
                                                   .append = append,
                                                   .q_norm = q_norm != NULL ? q_norm->w : none,
                                                   .k_norm = k_norm != NULL ? k_norm->w : none,
                                                   .epsilon = k_norm != NULL ? k_norm->epsilon : 0});
    if (build != NULL) operation_launch(build, stream->device->device.operations, stream); /* of K alone */
    return distance(first, q->next);
}

/* ---- attention, and the products of what it gives ---- */

static size_t attend_output(struct stream *stream, const struct operation *first) {
    const bool is_listed = is(first, OPERATION_ATTEND_ROWS);
    if ((!is(first, OPERATION_ATTEND) && !is_listed) || !is(first->next, OPERATION_MATMUL)) return 0;
    const struct attend_operation *attend = &first->as.attend;
    const struct attend_rows_operation *rows = &first->as.attend_rows;
    const struct matmul_operation *output = &first->next->as.matmul;
    const struct kv_view *view = is_listed ? &rows->items[0].view : &attend->items[0].view;
    const struct span out = is_listed ? rows->out : attend->out;
    const size_t items = is_listed ? rows->item_count : attend->item_count,
                 width = (is_listed ? rows->head_count : attend->head_count) * view->layout->v_dimension;
    if (!same(output->x, out) || output->row_count != items || output->row_count > CUDA_MATVEC_ROWS ||
        view->layout->v_dimension % QUANTIZED_BLOCK != 0 || output->weights[0]->matrix.columns != width ||
        (is_listed ? rows->out_stride : attend->out_stride) != width || !product_is_quantized(output) ||
        !is_in_place(output) || is_read_behind(first->next, out) || (!is_listed && attend->ranges != NULL))
        return 0;
    const uint64_t inputs = is_listed ? cuda_attend_rows_inputs(stream, rows) : cuda_attend_inputs(stream, attend);
    if (inputs != 0) products_of(stream, output, inputs);
    return 2;
}

size_t cuda_fused_launch(struct stream *stream, const struct operation *first) {
    size_t (*const all[])(struct stream *, const struct operation *) = {feed_forward, norm_products, heads_append,
                                                                        attend_output};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const size_t count = all[i](stream, first);
        if (count > 0) return count;
    }
    return 0;
}
