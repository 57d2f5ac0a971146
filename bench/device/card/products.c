/* Products with weights of every type: matvec, which streams them, and matmul, which computes.
 *
 * A weight is several copies, more than a card's caches hold, each a row further into the same random rows, so that an
 * output tells which copy it came from. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "card.h"
#include "kernels/convert/convert.h"
#include "lab/quantize/quantizers.h"
#include "platform/clock.h"

enum {
    RANDOM_ROWS = 32,
    COPIES_MAX = 16,
    NODES = 64,   /* matvecs of a recorded graph, about */
    CHECKED = 8,  /* outputs of a copy that are compared, and rows of a prompt */
    BLOCKS = 2,   /* of matvec on a multiprocessor, as cuda_products.c launches it */
    COPIED = 256, /* MiB of all copies */
};

static const enum tensor_type TYPES[15] = {
    TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0,   TENSOR_Q5_1,  TENSOR_Q8_0,
    TENSOR_Q2_K, TENSOR_Q3_K, TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K, TENSOR_IQ4_NL, TENSOR_IQ4_XS};

static bool is_plain(enum tensor_type type) {
    return type == TENSOR_F32 || type == TENSOR_F16 || type == TENSOR_BF16;
}

struct product_rig {
    enum tensor_type type;
    size_t rows, columns, copy_count;
    uint8_t *file; /* [rows + RANDOM_ROWS][row_bytes]; row r is that of values[r % RANDOM_ROWS] */
    float *values; /* [RANDOM_ROWS][columns] */
    struct weight copies[COPIES_MAX]; /* row r of copy i is values[(r + i) % RANDOM_ROWS] */
    double load_seconds, load_bytes;  /* of all copies but the first, with which kernels are compiled */
};

static void rows_make(struct card *card, struct product_rig *rig, size_t row_bytes) {
    struct convert_kernels convert;
    convert_kernels_init(&convert, cpu_features());
    rig->values = card_memory(card, RANDOM_ROWS * rig->columns * sizeof(float));
    rig->file = card_memory(card, (rig->rows + RANDOM_ROWS) * row_bytes);
    for (size_t r = 0; r < RANDOM_ROWS; r++) {
        float *row = rig->values + r * rig->columns;
        for (size_t c = 0; c < rig->columns; c++) row[c] = 0.1f * (float)random_normal(&card->random);
        row_quantizer_of(rig->type)(row, rig->file + r * row_bytes, rig->columns);
        convert.dequantize[rig->type](rig->file + r * row_bytes, row, rig->columns);
    }
    for (size_t r = RANDOM_ROWS; r < rig->rows + RANDOM_ROWS; r++)
        memcpy(rig->file + r * row_bytes, rig->file + r % RANDOM_ROWS * row_bytes, row_bytes);
}

static void product_make(struct card *card, struct product_rig *rig, enum tensor_type type, size_t rows,
                         size_t columns, size_t copy_count) {
    struct error error;
    uint64_t row_bytes;
    *rig = (struct product_rig){.type = type, .rows = rows, .columns = columns, .copy_count = copy_count};
    if (!tensor_row_bytes(type, columns, &row_bytes)) abort(); /* both are constants here */
    rows_make(card, rig, (size_t)row_bytes);
    for (size_t i = 0; i < copy_count; i++) {
        struct weight *copy = &rig->copies[i];
        copy->matrix =
            (struct matrix){type, rig->file + i * (size_t)row_bytes, rows, columns, (size_t)row_bytes};
        const double begin = clock_seconds();
        card_require(card, card->operations->weight_load(card->device, copy, &error), &error);
        if (i == 0) continue;
        rig->load_seconds += clock_seconds() - begin;
        rig->load_bytes += (double)copy->memory.bytes;
    }
}

static void product_free(struct card *card, struct product_rig *rig) {
    for (size_t i = 0; i < rig->copy_count; i++)
        card->operations->weight_release(card->device, &rig->copies[i]);
    free(rig->file), free(rig->values);
}

/* An output, and how far it may be off.  32 inputs share a scale: a code is off by half a step of 1/127 of the largest.
 * `halves`: inputs and weights are rounded to 11 bits, weights in up to three steps.  Roundings are independent: four
 * times the root of the sum of their squares; sums of floats are far below a millionth of their terms. */
static double output_of(const float *w, const float *x, size_t columns, bool plain, bool halves,
                        double *bound) {
    double sum = 0, squares = 0, magnitude = 0;
    for (size_t c = 0; c < columns; c += 32) {
        double x_largest = 0, w_largest = 0;
        for (size_t i = c; i < c + 32; i++) {
            x_largest = fmax(x_largest, fabs((double)x[i]));
            w_largest = fmax(w_largest, fabs((double)w[i]));
        }
        for (size_t i = c; i < c + 32; i++) {
            const double product = (double)w[i] * (double)x[i];
            double off = 0;
            if (halves)
                off = 0x1p-11 * (fabs(product) + 3 * w_largest * fabs((double)x[i]));
            else if (!plain)
                off = fabs((double)w[i]) * x_largest / 254;
            sum += product;
            squares += off * off;
            magnitude += fabs(product);
        }
    }
    *bound = 4 * sqrt(squares) + 2e-6 * magnitude;
    return sum;
}

/* ---- matvec ---- */

struct matvec_rig {
    struct product_rig product;
    struct buffer x, input, y; /* floats; of 8 bits; [copy][rows] */
    float *x_values;
    struct cuda_matvec_args args[COPIES_MAX];
};

static void args_make(struct matvec_rig *rig) {
    const struct product_rig *p = &rig->product;
    const bool plain = is_plain(p->type);
    for (size_t i = 0; i < p->copy_count; i++)
        rig->args[i] =
            (struct cuda_matvec_args){.part = {{.weight = cuda_planes(&p->copies[i]),
                                                .y = rig->y.address + i * p->rows * sizeof(float),
                                                .rows = (uint32_t)p->rows,
                                                .y_stride = (uint32_t)p->rows}},
                                      .input = plain ? rig->x.address : rig->input.address,
                                      .columns = (uint32_t)p->columns,
                                      .input_count = 1,
                                      .input_stride = plain ? (uint32_t)(p->columns * sizeof(float))
                                                            : input_row_bytes((uint32_t)p->columns)};
}

/* Once for all: the input in the form that the kernel takes. */
static void input_make(struct card *card, struct matvec_rig *rig) {
    const struct cuda_quantize_args args = {.x = rig->x.address,
                                            .y = rig->input.address,
                                            .row_count = 1,
                                            .x_stride = (uint32_t)rig->product.columns,
                                            .columns = (uint32_t)rig->product.columns,
                                            .norm = QUANTIZE_PLAIN};
    card_fill_nan(card, &rig->input);
    cuda_work_launch(card->stream, "quantize_rows",
                     (struct cuda_shape){1, 1, 1, 256, sizeof(struct norm_shared)}, &args);
}

static void copies_launch(struct card *card, const struct matvec_rig *rig) {
    char name[CUDA_KERNEL_NAME_MAX];
    const uint32_t rows = is_plain(rig->product.type) ? MATVEC_BLOCK_ROWS : MATVEC_BLOCK_ROWS / 2;
    const uint32_t groups = (uint32_t)(rig->product.rows + rows - 1) / rows;
    const uint32_t blocks = card->cuda->context.properties.multiprocessor_count * BLOCKS;
    cuda_kernel_name(name, "matvec", rig->product.type, 1);
    for (size_t i = 0; i < rig->product.copy_count; i++)
        cuda_work_launch(card->stream, name,
                         (struct cuda_shape){groups < blocks ? groups : blocks, 1, 1, MATVEC_THREADS, 0},
                         &rig->args[i]);
}

static void matvec_check(struct card *card, const struct matvec_rig *rig, struct verdict *verdict) {
    const struct product_rig *p = &rig->product;
    const size_t count = p->copy_count * p->rows;
    float *y = card_memory(card, count * sizeof *y);
    card->operations->download(card->stream, y, span_of(&rig->y, 0), count * sizeof *y);
    card_synchronize(card);
    for (size_t i = 0; i < p->copy_count; i++)
        for (size_t n = 0; n < CHECKED; n++) {
            const size_t row = n * (p->rows - 1) / (CHECKED - 1);
            double bound;
            const double want = output_of(p->values + (row + i) % RANDOM_ROWS * p->columns, rig->x_values,
                                          p->columns, is_plain(p->type), false, &bound);
            verdict_near(verdict, (double)y[i * p->rows + row], want, bound, "output", i * p->rows + row);
        }
    verdict_add(verdict, true, "; %zu outputs of %zu weights", p->copy_count * CHECKED, p->copy_count);
    free(y);
}

static void matvec_type(struct card *card, struct matvec_rig *rig) {
    const struct product_rig *p = &rig->product;
    const char *type = tensor_type_info(p->type)->name;
    struct verdict verdict = {.failed = false};
    struct cuda_graph graph;
    struct error error;
    char what[64];
    card_allocate(card, MEMORY_DEVICE, p->copy_count * p->rows * sizeof(float), &rig->y);
    args_make(rig);
    card_fill_nan(card, &rig->y);
    input_make(card, rig);
    const struct cuda_counts before = device_cuda_counts(card->device);
    const size_t turns = card->is_small ? 1 : (NODES + p->copy_count - 1) / p->copy_count,
                 times = card->is_small ? 1 : 8;
    card_require(card, cuda_graph_begin(&graph, card->queue, &error), &error);
    for (size_t i = 0; i < turns; i++) copies_launch(card, rig);
    card_require(card, cuda_graph_end(&graph, &error), &error);
    const struct card_time time = card_time_graph(card, &graph, times, turns * p->copy_count);
    verdict_launches(&verdict, card, before, card_rounds(card) * times * turns * p->copy_count);
    matvec_check(card, rig, &verdict);
    snprintf(what, sizeof what, "matvec %s", type);
    card_line(card, what, "GB/s", (double)p->copies[0].memory.bytes / time.seconds * 1e-9, time.spread,
              card->copy_rate * 1e-9, &verdict);
    if (p->type == TENSOR_Q4_0) { /* repacked on the way */
        snprintf(what, sizeof what, "weights to the card %s", type);
        card_line(card, what, "GB/s", p->load_bytes / p->load_seconds * 1e-9, 0, card->link_rate * 1e-9,
                  &verdict);
    }
    cuda_graph_destroy(&graph);
    card->operations->release(card->device, &rig->y);
}

/* A layer's gate, up or down of an 8B shape. */
void bench_matvec(struct card *card) {
    const size_t rows = card->is_small ? 64 : 4096, columns = card->is_small ? 512 : 14336;
    struct matvec_rig rig = {.x_values = card_memory(card, columns * sizeof(float))};
    card_fill_normal(card, &rig.x, columns, 1, rig.x_values);
    card_allocate(card, MEMORY_DEVICE, input_row_bytes((uint32_t)columns), &rig.input);
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++) {
        uint64_t row_bytes;
        if (!tensor_row_bytes(TYPES[t], columns, &row_bytes)) abort();
        const size_t fit = ((size_t)COPIED << 20) / (rows * (size_t)row_bytes) + 1;
        product_make(card, &rig.product, TYPES[t], rows, columns,
                     card->is_small ? 2 : min_size(fit, COPIES_MAX));
        matvec_type(card, &rig);
        product_free(card, &rig.product);
    }
    card->operations->release(card->device, &rig.x);
    card->operations->release(card->device, &rig.input);
    free(rig.x_values);
}

/* ---- matmul ---- */

struct matmul_rig {
    struct card *card;
    struct product_rig product;
    struct buffer x, y;
    float *x_values;
    size_t token_count, count; /* products of a round */
};

/* As the device does it for a prompt: rows as halves, then the product. */
static void matmuls_run(void *context) {
    const struct matmul_rig *rig = context;
    const struct matmul_operation operation = {.x = span_of(&rig->x, 0),
                                               .x_stride = rig->product.columns,
                                               .row_count = rig->token_count,
                                               .weight_count = 1,
                                               .weights = {&rig->product.copies[0]},
                                               .y = {span_of(&rig->y, 0)},
                                               .y_stride = {rig->product.rows}};
    for (size_t i = 0; i < rig->count; i++) rig->card->operations->matmul(rig->card->stream, &operation);
}

static void matmul_check(struct matmul_rig *rig, struct verdict *verdict) {
    const struct product_rig *p = &rig->product;
    float *y = card_memory(rig->card, p->rows * sizeof *y);
    for (size_t n = 0; n < CHECKED; n++) {
        const size_t token = n * (rig->token_count - 1) / (CHECKED - 1);
        rig->card->operations->download(
            rig->card->stream, y, span_floats(span_of(&rig->y, 0), token * p->rows), p->rows * sizeof *y);
        card_synchronize(rig->card);
        for (size_t m = 0; m < CHECKED; m++) {
            const size_t row = m * (p->rows - 1) / (CHECKED - 1);
            double bound;
            const double want =
                output_of(p->values + row % RANDOM_ROWS * p->columns, rig->x_values + token * p->columns,
                          p->columns, false, true, &bound);
            verdict_near(verdict, (double)y[row], want, bound, "output", token * p->rows + row);
        }
    }
    verdict_add(verdict, true, "; %d outputs", CHECKED * CHECKED);
    free(y);
}

void bench_matmul(struct card *card) {
    const size_t rows = card->is_small ? 64 : 4096, columns = card->is_small ? 256 : 4096;
    struct matmul_rig rig = {
        .card = card, .token_count = card->is_small ? 24 : 4096, .count = card->is_small ? 1 : 10};
    rig.x_values = card_memory(card, rig.token_count * columns * sizeof(float));
    card_fill_normal(card, &rig.x, rig.token_count * columns, 1, rig.x_values);
    card_allocate(card, MEMORY_DEVICE, rig.token_count * rows * sizeof(float), &rig.y);
    for (size_t t = 0; t < sizeof TYPES / sizeof *TYPES; t++) {
        struct verdict verdict = {.failed = false};
        char what[64];
        product_make(card, &rig.product, TYPES[t], rows, columns, 1);
        card_fill_nan(card, &rig.y);
        const struct cuda_counts before = device_cuda_counts(card->device);
        const struct card_time time = card_time(card, matmuls_run, &rig, rig.count);
        verdict_launches(&verdict, card, before, card_rounds(card) * rig.count * 2);
        verdict_wgmma(&verdict, card, before, card_rounds(card) * rig.count);
        matmul_check(&rig, &verdict);
        snprintf(what, sizeof what, "matmul %s", tensor_type_info(TYPES[t])->name);
        card_line(card, what, "TFLOP/s",
                  2 * (double)rows * (double)columns * (double)rig.token_count / time.seconds * 1e-12,
                  time.spread, 0, &verdict);
        product_free(card, &rig.product);
    }
    card->operations->release(card->device, &rig.x);
    card->operations->release(card->device, &rig.y);
    free(rig.x_values);
}
