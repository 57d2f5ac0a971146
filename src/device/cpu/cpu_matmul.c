/* y = x w^T for up to four weights that share their input, in one run of the pool:
 *
 *   prepare   every form that a weight multiplies with is made of x once; few rows by the caller before
 *             the others are woken, more by all threads with a barrier after
 *   panels    the rows of all weights, cut into panels of about equal bytes, drawn as tickets: a thread
 *             that the machine slows takes fewer.  Neighbouring tickets are neighbouring memory, so all
 *             threads together stream through the weights in file order
 *   finish    bias and accumulation on the panel while it is in the cache
 *
 * Few inputs go through the matvec kernels (the weights stream through registers as they are), many
 * through matmul (a panel is unpacked, then used for all inputs), with AMX more than FEW_INPUTS_AMX through its tiles.
 * All but these and NEON add in one order (kernels/span.h), so an input's result does not depend on how many others
 * there are.  Panels are cut at multiples of MATVEC_ROW_GRANULE or of the method's row_granule and a row's result does
 * not depend on the panel it is in: bit-identical for any thread count. */
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "device/cpu/cpu_device_internal.h"

enum {
    /* Measured by bench/device/bench_matvec_or_matmul, AVX2, two threads, ten types of 15: up to 6 inputs matvec
     * takes 0.6-0.9 of matmul's time, at 8 0.7-1.0, at 10 1.0-1.2 (Q6_K 0.7, F32 0.7), at 16 1.0-1.7. */
    MATVEC_INPUTS = MATVEC_INPUTS_MAX,
    /* Quantised weights on AVX-512 (Zen 5, weights in L2, preparing included): at 4 inputs 0.7-0.9, at 5 1.1-1.2. */
    MATVEC_INPUTS_512 = 4,
    /* Quantised weights with AMX (Xeon, 2 threads, from memory): at 5 inputs AVX-512 takes 0.4-0.6 of AMX's time, at 16
     * 0.7-0.9 (Q3_K 1.1), at 24 0.7-1.1, at 32 0.8-1.4. */
    FEW_INPUTS_AMX = 24,
    MATVEC_ROW_GRANULE = 16,
    PANELS_PER_THREAD = 16, /* enough that the last panels end at about the same time on all threads */
    PANEL_BYTES_MIN = 32 << 10,
    PANEL_BYTES_MAX = 256 << 10,
    PANEL_ROWS_MAX = 1024,         /* bounds a thread's sums under accumulate */
    MATMUL_PANEL_ROWS_MAX = 256,   /* the same for many inputs */
    PREPARE_ELEMENTS_ALONE = 32768 /* quantising these costs the caller less than a fork and a barrier */
};

/* One form of x, shared by the weights that multiply with it. */
struct prepared_input {
    const struct matmul_method *method; /* prepares it; NULL: matvec */
    int form;
    size_t offset;      /* in scratch */
    size_t input_bytes; /* matvec: from one input to the next */
    size_t unit_inputs; /* inputs that one call prepares */
    size_t unit_first, unit_count;
};

struct product {
    struct matrix weight;
    const struct prepared_input *input;
    const struct matmul_method *method; /* its type's: others may share the input; NULL: matvec */
    const float *scale;                 /* NULL: none */
    const float *bias;
    float *y;
    size_t y_stride;
    size_t panel_rows, panel_first, panel_count;
};

struct matmul_run {
    const struct cpu_device *device;
    const struct matmul_operation *operation;
    size_t columns, product_count, input_count, unit_count, panel_count;
    struct prepared_input inputs[DEVICE_GROUP_MAX];
    struct product products[DEVICE_GROUP_MAX];
    bool prepared; /* by the caller */
    size_t alone_next;
    uint8_t *scratch;
    size_t threads_offset, thread_bytes; /* per thread: sums, then the kernel's own scratch */
    size_t kernel_offset;                /* in a thread's part */
};

void cpu_matmul_init(struct cpu_device *device, cpu_mask mask) {
    for (size_t type = 0; type < MATVEC_TYPES; type++) {
        bool has_matvec = device->kernels.matvec.run[type] != NULL;
        bool has_matmul = device->kernels.matmul.method[type].run != NULL;
        if ((mask & (CPU_AVX2 | CPU_NEON)) == 0) has_matmul = false; /* the reference multiplies other inputs */
        size_t inputs = MATVEC_INPUTS;
        if ((mask & CPU_AVX512) != 0 && device->kernels.matvec.form[type] != MATVEC_FORM_F32)
            inputs = MATVEC_INPUTS_512;
        device->matvec_inputs[type] = (uint16_t)(!has_matmul ? UINT16_MAX : has_matvec ? inputs : 0);
        const bool has_few = device->kernels.matmul.few[type].run != NULL;
        if (has_few && device->kernels.matvec.form[type] != MATVEC_FORM_F32) device->few_inputs[type] = FEW_INPUTS_AMX;
    }
}

const struct matmul_method *cpu_matmul_method(const struct cpu_device *device, enum tensor_type type,
                                              size_t input_count) {
    const struct matmul_kernels *kernels = &device->kernels.matmul;
    if (input_count <= device->matvec_inputs[type]) return NULL;
    return input_count <= device->few_inputs[type] ? &kernels->few[type] : &kernels->method[type];
}

static void add_form(struct matmul_run *run, struct product *product, struct layout *scratch) {
    const struct kernels *kernels = &run->device->kernels;
    enum tensor_type type = product->weight.type;
    size_t rows = run->operation->row_count;
    product->method = cpu_matmul_method(run->device, type, rows);
    struct prepared_input input = {.method = product->method};
    input.form = input.method != NULL ? input.method->form : (int)kernels->matvec.form[type];
    for (size_t i = 0; i < run->input_count; i++) {
        const struct prepared_input *old = &run->inputs[i];
        if ((old->method != NULL) == (input.method != NULL) && old->form == input.form) {
            product->input = old;
            return;
        }
    }
    size_t bytes;
    if (input.method != NULL) {
        input.unit_inputs = input.method->input_granule;
        bytes = input.method->prepared_bytes(rows, run->columns);
    } else {
        ASSERT(kernels->matvec.run[type] != NULL); /* weight_load refuses other types */
        input.unit_inputs = 1;
        input.input_bytes = kernels->matvec.input_bytes((enum matvec_form)input.form, run->columns);
        bytes = rows * input.input_bytes;
    }
    input.offset = layout_offset(scratch, 1, bytes);
    input.unit_first = run->unit_count;
    input.unit_count = (rows + input.unit_inputs - 1) / input.unit_inputs;
    run->unit_count += input.unit_count;
    run->inputs[run->input_count] = input;
    product->input = &run->inputs[run->input_count++];
}

static void cut_panels(struct matmul_run *run, struct product *product, size_t total_bytes) {
    const struct matmul_method *method = product->method;
    size_t granule = method != NULL ? method->row_granule : MATVEC_ROW_GRANULE;
    size_t rows_max = method != NULL ? MATMUL_PANEL_ROWS_MAX : PANEL_ROWS_MAX;
    size_t bytes = total_bytes / (run->device->thread_count * PANELS_PER_THREAD);
    bytes = min_size(max_size(bytes, PANEL_BYTES_MIN), PANEL_BYTES_MAX);
    size_t rows = min_size(bytes / max_size(product->weight.row_bytes, 1), rows_max);
    product->panel_rows = max_size(rows / granule, 1) * granule;
    product->panel_first = run->panel_count;
    product->panel_count = (product->weight.rows + product->panel_rows - 1) / product->panel_rows;
    run->panel_count += product->panel_count;
}

static void plan(struct matmul_run *run, struct layout *scratch) {
    const struct matmul_operation *operation = run->operation;
    uint64_t total_bytes = 0;
    size_t sums_bytes = 0, kernel_bytes = 0;
    for (size_t i = 0; i < operation->weight_count; i++)
        total_bytes += operation->weights[i]->matrix.rows * operation->weights[i]->matrix.row_bytes;
    for (size_t i = 0; i < operation->weight_count; i++) {
        struct product *product = &run->products[i];
        *product = (struct product){.weight = cpu_matrix(operation->weights[i]),
                                    .scale = operation->weights[i]->scale,
                                    .bias = cpu_floats(operation->biases[i]),
                                    .y = cpu_floats(operation->y[i]),
                                    .y_stride = operation->y_stride[i]};
        ASSERT(product->weight.columns == run->columns);
        add_form(run, product, scratch);
        cut_panels(run, product, total_bytes);
        const struct matmul_method *method = product->method;
        if (method != NULL) kernel_bytes = max_size(kernel_bytes, method->scratch_bytes(run->columns));
        if (operation->accumulate)
            sums_bytes = max_size(sums_bytes, operation->row_count * product->panel_rows * sizeof(float));
    }
    run->product_count = operation->weight_count;
    struct layout thread = {0};
    (void)layout_offset(&thread, 1, sums_bytes);
    run->kernel_offset = layout_offset(&thread, 1, kernel_bytes);
    run->thread_bytes = thread.used;
    run->threads_offset = layout_offset(scratch, run->device->thread_count, run->thread_bytes);
}

static void prepare_unit(const struct matmul_run *run, size_t unit) {
    const struct prepared_input *input = run->inputs;
    while (unit >= input->unit_first + input->unit_count) input++;
    const struct matmul_operation *operation = run->operation;
    size_t begin = (unit - input->unit_first) * input->unit_inputs;
    uint8_t *prepared = run->scratch + input->offset;
    if (input->method == NULL) {
        run->device->kernels.matvec.prepare[input->form](cpu_floats(operation->x) + begin * operation->x_stride,
                                                         run->columns, prepared + begin * input->input_bytes);
        return;
    }
    input->method->prepare(cpu_floats(operation->x), operation->x_stride, operation->row_count, run->columns, begin,
                           min_size(begin + input->unit_inputs, operation->row_count), prepared);
}

void cpu_multiply(const struct cpu_device *device, const struct matmul_method *method, size_t input_bytes,
                  const struct matmul_args *args) {
    if (method != NULL) {
        method->run(args);
        return;
    }
    for (size_t first = 0; first < args->input_count; first += MATVEC_INPUTS_MAX) {
        const struct matvec_args some = {.weight = args->weight,
                                         .input_count = min_size(MATVEC_INPUTS_MAX, args->input_count - first),
                                         .inputs = (const uint8_t *)args->prepared + first * input_bytes,
                                         .outputs = args->outputs + first * args->output_stride,
                                         .output_stride = args->output_stride,
                                         .row_begin = args->row_begin,
                                         .row_end = args->row_end};
        device->kernels.matvec.run[args->weight->type](&some);
    }
}

static void run_panel(const struct matmul_run *run, size_t panel, const struct pool_worker *worker) {
    const struct product *product = run->products;
    while (panel >= product->panel_first + product->panel_count) product++;
    const struct activation_kernels *kernels = &run->device->kernels.activation;
    size_t begin = (panel - product->panel_first) * product->panel_rows;
    size_t rows = min_size(product->panel_rows, product->weight.rows - begin);
    struct matrix part = product->weight; /* these rows as a matrix of their own */
    part.data = (const uint8_t *)part.data + begin * part.row_bytes;
    part.rows = rows;
    uint8_t *own = run->scratch + run->threads_offset + worker->index * run->thread_bytes;
    float *y = product->y + begin, *sums = y;
    size_t sums_stride = product->y_stride;
    if (run->operation->accumulate) {
        sums = (float *)(void *)own;
        sums_stride = rows;
    }
    cpu_multiply(run->device, product->method, product->input->input_bytes,
                 &(struct matmul_args){.weight = &part,
                                       .input_count = run->operation->row_count,
                                       .prepared = run->scratch + product->input->offset,
                                       .outputs = sums,
                                       .output_stride = sums_stride,
                                       .row_end = rows,
                                       .scratch = own + run->kernel_offset});
    if (product->scale == NULL && product->bias == NULL && sums == y) return;
    for (size_t i = 0; i < run->operation->row_count; i++) {
        float *sum = sums + i * sums_stride;
        for (size_t r = 0; product->scale != NULL && r < rows; r++) sum[r] *= *product->scale;
        if (product->bias != NULL) kernels->add(sum, product->bias + begin, rows, sum);
        if (sums != y) kernels->add(y + i * product->y_stride, sum, rows, y + i * product->y_stride);
    }
}

static void matmul_task(void *context, const struct pool_worker *worker) {
    struct matmul_run *run = context;
    if (!run->prepared) {
        struct range units = pool_range(worker, run->unit_count, 1);
        for (size_t unit = units.begin; unit < units.end; unit++) prepare_unit(run, unit);
        cpu_barrier(worker);
    }
    for (;;) {
        size_t panel = cpu_ticket(worker, &run->alone_next);
        if (panel >= run->panel_count) return;
        run_panel(run, panel, worker);
    }
}

void cpu_matmul(struct stream *stream, const struct matmul_operation *operation) {
    struct cpu_device *device = stream->device;
    ASSERT(operation->weight_count >= 1 && operation->weight_count <= DEVICE_GROUP_MAX);
    ASSERT(operation->row_count <= DEVICE_BATCH_MAX);
    if (operation->row_count == 0) return;
    struct matmul_run run = {.device = device, .operation = operation};
    run.columns = operation->weights[0]->matrix.columns;
    struct layout scratch = {0};
    plan(&run, &scratch);
    run.scratch = cpu_scratch_reserve(device, scratch.used);
    if (run.scratch == NULL) return;
    if (run.input_count * operation->row_count * run.columns <= PREPARE_ELEMENTS_ALONE) {
        for (size_t unit = 0; unit < run.unit_count; unit++) prepare_unit(&run, unit);
        run.prepared = true;
    }
    cpu_run(device, run.panel_count == 1, matmul_task, &run);
}
