/* Mixtures of experts: which experts a row has, and products with the matrices of these.
 *
 * Products.  The picks of all rows are sorted by expert, so that an expert's matrix is read once for all rows that
 * have it.  A unit is a panel of one matrix (or, where the products are mixed, a panel of outputs, with all experts
 * in turn), times all the inputs of its expert.  Few inputs go through matvec and many through matmul, whose sums
 * have one order (kernels/span.h): a row's outputs depend neither on the other rows nor on the thread count.  Where
 * matmul multiplies other numbers (NEON, the tiles of AMX) experts do without it: how many rows share an expert is
 * chance, and a row's bits must not depend on it. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

/* ---- routes ---- */

enum { ROUTE_ROWS_ALONE = 8 };

struct route_run {
    const struct route_operation *operation;
    uint8_t *scratch; /* a thread's: double [2][expert_count] */
    size_t thread_bytes;
};

/* The largest of `values`, the first among equals; none is taken twice, for it is -infinity then.  NaN counts as
 * -infinity: whatever is picked, its weight is NaN. */
static size_t take_best(double *values, size_t count) {
    size_t best = 0;
    while (best + 1 < count && isnan(values[best])) best++; /* no comparison with NaN is true */
    for (size_t i = best + 1; i < count; i++)
        if (values[i] > values[best]) best = i;
    values[best] = NAN;
    return best;
}

static void softmax(const double *x, const size_t *at, size_t count, double *y) {
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < count; i++) largest = fmax(largest, x[at != NULL ? at[i] : i]);
    for (size_t i = 0; i < count; i++) sum += y[i] = exp(x[at != NULL ? at[i] : i] - largest);
    for (size_t i = 0; i < count; i++) y[i] /= sum;
}

/* Leaves only experts of the best groups to choose from: a group is worth its two best. */
static void keep_groups(const struct route_operation *route, double *choice) {
    const size_t size = route->expert_count / route->group_count;
    double worth[ROUTE_GROUPS_MAX];
    bool is_kept[ROUTE_GROUPS_MAX] = {false};
    for (size_t g = 0; g < route->group_count; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (size_t i = g * size; i < (g + 1) * size; i++) {
            second = fmax(second, fmin(first, choice[i]));
            first = fmax(first, choice[i]);
        }
        worth[g] = first + second;
    }
    for (size_t n = 0; n < route->groups_used; n++) is_kept[take_best(worth, route->group_count)] = true;
    for (size_t i = 0; i < route->expert_count; i++)
        if (!is_kept[i / size]) choice[i] = -INFINITY;
}

static void route_row(const struct route_operation *route, size_t row, double *worth, double *choice) {
    const size_t count = route->expert_count, used = route->used;
    const float *scores = cpu_floats(route->scores) + row * count, *bias = cpu_floats(route->bias);
    const float *own = cpu_floats(route->scales);
    uint32_t *picks = (uint32_t *)cpu_address(route->picks) + row * used;
    float *weights = cpu_floats(route->weights) + row * used;
    size_t chosen[ROUTE_USED_MAX] = {0};
    double weight[ROUTE_USED_MAX] = {0}, sum = 0;
    for (size_t i = 0; i < count; i++) worth[i] = (double)scores[i];
    if (route->router == ROUTER_SOFTMAX) softmax(worth, NULL, count, worth);
    for (size_t i = 0; route->router == ROUTER_SIGMOID && i < count; i++) worth[i] = 1 / (1 + exp(-worth[i]));
    for (size_t i = 0; i < count; i++) choice[i] = worth[i] + (bias != NULL ? (double)bias[i] : 0);
    if (route->group_count > 1) keep_groups(route, choice);
    for (size_t j = 0; j < used; j++) chosen[j] = take_best(choice, count);
    for (size_t j = 0; j < used; j++) weight[j] = worth[chosen[j]];
    if (route->router == ROUTER_SOFTMAX_OF_CHOSEN) softmax(worth, chosen, used, weight);
    for (size_t j = 0; j < used; j++) sum += weight[j];
    const double factor = (double)route->scale / (route->normalises ? fmax(sum, 0x1p-14) : 1);
    for (size_t j = 0; j < used; j++) {
        picks[j] = (uint32_t)chosen[j];
        weights[j] = (float)(weight[j] * factor * (own != NULL ? (double)own[chosen[j]] : 1));
    }
}

static void route_task(void *context, const struct pool_worker *worker) {
    const struct route_run *run = context;
    double *own = (double *)(void *)(run->scratch + worker->index * run->thread_bytes);
    struct range rows = pool_range(worker, run->operation->row_count, 1);
    for (size_t row = rows.begin; row < rows.end; row++)
        route_row(run->operation, row, own, own + run->operation->expert_count);
}

void cpu_route(struct stream *stream, const struct route_operation *operation) {
    struct cpu_device *device = stream->device;
    ASSERT(operation->used >= 1 && operation->used <= operation->expert_count);
    ASSERT(operation->used <= ROUTE_USED_MAX && operation->group_count <= ROUTE_GROUPS_MAX);
    ASSERT(operation->group_count <= 1 ||
           (operation->expert_count % operation->group_count == 0 && operation->groups_used >= 1 &&
            operation->groups_used <= operation->group_count));
    struct route_run run = {.operation = operation,
                            .thread_bytes = align_up(2 * operation->expert_count * sizeof(double), 64)};
    run.scratch = cpu_scratch_reserve(device, run.thread_bytes * device->thread_count);
    if (run.scratch == NULL) return;
    cpu_run(device, operation->row_count <= ROUTE_ROWS_ALONE, route_task, &run);
}

/* ---- products ---- */

enum {
    PANEL_ROWS = 64, /* multiples of every method's row_granule */
    MIXED_ROWS = 32, /* of outputs, where a unit has all experts */
    PREPARE_ELEMENTS_ALONE = 32768
};

#define NOWHERE UINT32_MAX /* in place of a place */

/* The inputs of one expert: `count` places from `first` on, in the order of the experts. */
struct expert_inputs {
    uint32_t expert, first, count;
    size_t offset[EXPERT_GROUP_MAX]; /* of those prepared for each weight, in scratch */
};

struct expert_product {
    struct matrix weight;      /* the stack */
    const void *const *places; /* [expert_count]: its experts, or NULL */
    size_t rows;               /* of an expert */
    const float *scale, *bias;
    float *y;
    size_t y_stride, panel_count, unit_first;
    size_t form;        /* the product whose prepared inputs it has: itself, or one before it */
    size_t input_bytes; /* matvec */
};

struct experts_run {
    const struct cpu_device *device;
    const struct matmul_experts_operation *operation;
    size_t columns, pick_count, place_count; /* places: of picks that are not left out */
    size_t group_count, unit_count, product_count;
    struct expert_product products[EXPERT_GROUP_MAX];
    uint32_t *input_of;           /* [place]: row of x */
    uint32_t *group_of;           /* [place] */
    uint32_t *places_of;          /* [row][used]: the places of its picks, ascending, then NOWHERE */
    uint32_t *pick_at;            /* [place]: its pick */
    struct expert_inputs *groups; /* [group_count] */
    bool prepared;                /* by the caller */
    size_t alone_next;
    uint8_t *scratch;
    size_t threads_offset, thread_bytes, kernel_offset;
};

/* NULL: through matvec. */
static const struct matmul_method *method_of(const struct cpu_device *device, enum tensor_type type, size_t count) {
#if defined(__aarch64__)
    (void)device, (void)type, (void)count;
    return NULL;
#else
    const struct matmul_kernels *kernels = &device->kernels.matmul;
    if (count <= device->matvec_inputs[type]) return NULL;
    return kernels->few[type].run != NULL ? &kernels->few[type] : &kernels->method[type];
#endif
}

static bool is_left_out(const struct matmul_experts_operation *operation, uint32_t expert) {
    return operation->places[0] != NULL && operation->places[0][expert] == NULL;
}

/* The picks by expert: a place for each. */
static void sort_picks(struct experts_run *run) {
    const struct matmul_experts_operation *operation = run->operation;
    const uint32_t *picks = cpu_address(operation->picks);
    struct expert_inputs *groups = run->groups;
    for (size_t e = 0; e < operation->expert_count; e++) groups[e] = (struct expert_inputs){.expert = (uint32_t)e};
    run->place_count = 0;
    for (size_t i = 0; i < run->pick_count; i++) {
        ASSERT(picks[i] < operation->expert_count);
        if (is_left_out(operation, picks[i])) continue;
        groups[picks[i]].count++;
        run->place_count++;
    }
    for (size_t e = 1; e < operation->expert_count; e++) groups[e].first = groups[e - 1].first + groups[e - 1].count;
    for (size_t e = 0; e < operation->expert_count; e++) groups[e].count = 0;
    for (size_t i = 0; i < run->pick_count; i++) {
        struct expert_inputs *group = &groups[picks[i]];
        run->places_of[i] = NOWHERE;
        if (is_left_out(operation, picks[i])) continue;
        const uint32_t place = group->first + group->count++;
        run->pick_at[place] = (uint32_t)i;
        run->input_of[place] = (uint32_t)(operation->per_pick ? i : i / operation->used);
    }
    for (uint32_t place = 0; place < run->place_count; place++) {
        uint32_t *next = run->places_of + run->pick_at[place] / operation->used * operation->used;
        while (*next != NOWHERE) next++;
        *next = place;
    }
    for (size_t e = 0; e < operation->expert_count; e++) {
        if (groups[e].count == 0) continue;
        groups[run->group_count] = groups[e];
        for (uint32_t i = 0; i < groups[e].count; i++) run->group_of[groups[e].first + i] = (uint32_t)run->group_count;
        run->group_count++;
    }
}

static void add_product(struct experts_run *run, size_t index) {
    const struct matmul_experts_operation *operation = run->operation;
    struct expert_product *product = &run->products[index];
    const struct weight *weight = operation->weights[index];
    *product = (struct expert_product){.weight = cpu_matrix(weight),
                                       .places = operation->places[index],
                                       .rows = weight->matrix.rows / operation->expert_count,
                                       .scale = weight->scale,
                                       .bias = cpu_floats(operation->biases[index]),
                                       .y = cpu_floats(operation->y[index]),
                                       .y_stride = operation->y_stride[index],
                                       .unit_first = run->unit_count,
                                       .form = index};
    ASSERT(product->weight.columns == run->columns && weight->matrix.rows % operation->expert_count == 0);
    for (size_t i = 0; i < index; i++)
        if (run->products[i].weight.type == product->weight.type) product->form = run->products[i].form;
    const struct matvec_kernels *matvec = &run->device->kernels.matvec;
    product->input_bytes = matvec->input_bytes(matvec->form[product->weight.type], run->columns);
    const bool mixed = span_exists(operation->mix);
    product->panel_count = (product->rows + (mixed ? MIXED_ROWS : PANEL_ROWS) - 1) / (mixed ? MIXED_ROWS : PANEL_ROWS);
    run->unit_count += mixed ? product->panel_count : product->panel_count * run->group_count;
}

/* The inputs that each product has prepared, and what a thread needs. */
static void plan(struct experts_run *run, struct layout *scratch) {
    const bool mixed = span_exists(run->operation->mix);
    size_t kernel_bytes = 0, longest = 0;
    for (size_t i = 0; i < run->operation->weight_count; i++) add_product(run, i);
    run->product_count = run->operation->weight_count;
    for (size_t g = 0; g < run->group_count; g++) {
        struct expert_inputs *group = &run->groups[g];
        longest = max_size(longest, group->count);
        for (size_t i = 0; i < run->product_count; i++) {
            const struct expert_product *product = &run->products[i];
            const struct matmul_method *method = method_of(run->device, product->weight.type, group->count);
            if (method != NULL) kernel_bytes = max_size(kernel_bytes, method->scratch_bytes(run->columns));
            if (product->form != i) {
                group->offset[i] = group->offset[product->form];
                continue;
            }
            group->offset[i] = layout_offset(scratch, 1,
                                             method != NULL ? method->prepared_bytes(group->count, run->columns)
                                                            : group->count * product->input_bytes);
        }
    }
    const size_t outputs = mixed ? run->place_count * MIXED_ROWS : longest * PANEL_ROWS;
    struct layout thread = {0};
    (void)layout_offset(&thread, outputs, sizeof(float));
    run->kernel_offset = layout_offset(&thread, 1, kernel_bytes);
    run->thread_bytes = thread.used;
    run->threads_offset = layout_offset(scratch, run->device->thread_count, run->thread_bytes);
}

static void prepare_place(const struct experts_run *run, size_t place) {
    const struct expert_inputs *group = &run->groups[run->group_of[place]];
    const float *x = cpu_floats(run->operation->x) + run->input_of[place] * run->operation->x_stride;
    const size_t index = place - group->first;
    for (size_t i = 0; i < run->product_count; i++) {
        const struct expert_product *product = &run->products[i];
        if (product->form != i) continue;
        const enum tensor_type type = product->weight.type;
        const struct matmul_method *method = method_of(run->device, type, group->count);
        uint8_t *prepared = run->scratch + group->offset[i];
        if (method != NULL) { /* stride 0: every input would be this one, and one is prepared */
            ASSERT(method->input_granule == 1);
            method->prepare(x, 0, group->count, run->columns, index, index + 1, prepared);
        } else {
            const struct matvec_kernels *matvec = &run->device->kernels.matvec;
            matvec->prepare[matvec->form[type]](x, run->columns, prepared + index * product->input_bytes);
        }
    }
}

/* outputs[i][row - begin] of the expert's rows [begin, begin + rows), for all its inputs, with scale and bias. */
static void multiply(const struct experts_run *run, size_t index, const struct expert_inputs *group, size_t begin,
                     size_t rows, float *outputs, size_t stride, uint8_t *kernel_scratch) {
    const struct expert_product *product = &run->products[index];
    const struct matmul_method *method = method_of(run->device, product->weight.type, group->count);
    const size_t row_first = group->expert * product->rows + begin;
    struct matrix part = product->weight;
    part.data = product->places != NULL ? (const uint8_t *)product->places[group->expert] + begin * part.row_bytes
                                        : (const uint8_t *)part.data + row_first * part.row_bytes;
    part.rows = rows;
    cpu_multiply(run->device, method, product->input_bytes,
                 &(struct matmul_args){.weight = &part,
                                       .input_count = group->count,
                                       .prepared = run->scratch + group->offset[index],
                                       .outputs = outputs,
                                       .output_stride = stride,
                                       .row_end = rows,
                                       .scratch = kernel_scratch});
    const struct activation_kernels *kernels = &run->device->kernels.activation;
    for (size_t i = 0; i < group->count; i++) {
        float *y = outputs + i * stride;
        for (size_t r = 0; product->scale != NULL && r < rows; r++) y[r] *= product->scale[group->expert];
        if (product->bias != NULL) kernels->add(y, product->bias + row_first, rows, y);
    }
}

static void panel_run(const struct experts_run *run, size_t index, size_t unit, uint8_t *own) {
    const struct expert_product *product = &run->products[index];
    const struct expert_inputs *group = &run->groups[unit / product->panel_count];
    const size_t begin = unit % product->panel_count * PANEL_ROWS, rows = min_size(PANEL_ROWS, product->rows - begin);
    float *outputs = (float *)(void *)own;
    multiply(run, index, group, begin, rows, outputs, PANEL_ROWS, own + run->kernel_offset);
    for (size_t i = 0; i < group->count; i++)
        memcpy(product->y + run->pick_at[group->first + i] * product->y_stride + begin, outputs + i * PANEL_ROWS,
               rows * sizeof(float));
}

/* A row's products are added in the order of their places, which is that of the experts. */
static void mix_run(const struct experts_run *run, size_t unit, uint8_t *own) {
    const struct matmul_experts_operation *operation = run->operation;
    const struct expert_product *product = run->products;
    const size_t begin = unit * MIXED_ROWS, rows = min_size(MIXED_ROWS, product->rows - begin);
    float *outputs = (float *)(void *)own;
    for (size_t g = 0; g < run->group_count; g++)
        multiply(run, 0, &run->groups[g], begin, rows, outputs + run->groups[g].first * (size_t)MIXED_ROWS, MIXED_ROWS,
                 own + run->kernel_offset);
    for (size_t i = 0; i < operation->row_count; i++) {
        const uint32_t *places = run->places_of + i * operation->used;
        float sum[MIXED_ROWS], *y = product->y + i * product->y_stride + begin;
        for (size_t r = 0; r < rows; r++) sum[r] = operation->replaces ? 0 : y[r];
        for (size_t j = 0; j < operation->used && places[j] != NOWHERE; j++) {
            const float mix = cpu_floats(operation->mix)[run->pick_at[places[j]]];
            const float *output = outputs + places[j] * (size_t)MIXED_ROWS;
            for (size_t r = 0; r < rows; r++) sum[r] += mix * output[r];
        }
        memcpy(y, sum, rows * sizeof *y);
    }
}

static void experts_task(void *context, const struct pool_worker *worker) {
    struct experts_run *run = context;
    uint8_t *own = run->scratch + run->threads_offset + worker->index * run->thread_bytes;
    if (!run->prepared) {
        struct range places = pool_range(worker, run->place_count, 1);
        for (size_t place = places.begin; place < places.end; place++) prepare_place(run, place);
        cpu_barrier(worker);
    }
    for (;;) {
        const size_t unit = cpu_ticket(worker, &run->alone_next);
        if (unit >= run->unit_count) return;
        size_t index = run->product_count - 1;
        while (unit < run->products[index].unit_first) index--;
        if (span_exists(run->operation->mix))
            mix_run(run, unit, own);
        else
            panel_run(run, index, unit - run->products[index].unit_first, own);
    }
}

/* They come first in the scratch: their sizes do not depend on the picks. */
static void place_tables(struct experts_run *run, struct layout *layout) {
    uint32_t **const lists[] = {&run->input_of, &run->group_of, &run->places_of, &run->pick_at};
    run->groups = layout_take(layout, run->operation->expert_count, sizeof *run->groups);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        *lists[i] = layout_take(layout, run->pick_count, sizeof **lists);
}

void cpu_matmul_experts(struct stream *stream, const struct matmul_experts_operation *operation) {
    struct cpu_device *device = stream->device;
    const size_t picks = operation->row_count * operation->used;
    ASSERT(operation->weight_count >= 1 && operation->weight_count <= EXPERT_GROUP_MAX);
    ASSERT(!span_exists(operation->mix) || operation->weight_count == 1);
    ASSERT(operation->row_count <= DEVICE_BATCH_MAX && operation->used <= ROUTE_USED_MAX);
    if (picks == 0) return;
    struct experts_run run = {.device = device, .operation = operation, .pick_count = picks};
    run.columns = operation->weights[0]->matrix.columns;
    struct layout scratch = {0};
    place_tables(&run, &scratch);
    for (int round = 0; round < 2; round++) { /* sorted in a small area, then again in one for everything */
        run.scratch = cpu_scratch_reserve(device, scratch.used);
        if (run.scratch == NULL) return;
        scratch = (struct layout){.memory = run.scratch};
        place_tables(&run, &scratch);
        run.group_count = run.unit_count = 0;
        sort_picks(&run);
        plan(&run, &scratch);
    }
    if (run.place_count == 0 && !operation->replaces) return;
    if (run.place_count * run.columns <= PREPARE_ELEMENTS_ALONE) {
        for (size_t place = 0; place < run.place_count; place++) prepare_place(&run, place);
        run.prepared = true;
    }
    cpu_run(device, run.unit_count == 1, experts_task, &run);
}
