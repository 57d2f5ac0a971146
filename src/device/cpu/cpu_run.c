/* Runs a task of the cpu device, on the pool or on the caller alone, and the caller's own work meanwhile. */
#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"

/* A run whose caller has other work first; the other threads draw units meanwhile. */
struct overlap_run {
    struct cpu_device *device;
    void (*work)(void *context);
    void *work_context;
    pool_task *task;
    void *context;
};

static void overlap_task(void *context, const struct pool_worker *worker) {
    const struct overlap_run *run = context;
    if (worker->index == 0) {
        run->device->runs_overlap = true;
        run->work(run->work_context);
        run->device->runs_overlap = false;
    }
    run->task(run->context, worker);
}

static struct overlap_run take_overlap(struct cpu_device *device) {
    struct overlap_run run = {.device = device, .work = device->overlap, .work_context = device->overlap_context};
    device->overlap = NULL;
    return run;
}

void cpu_run_overlap(struct cpu_device *device) {
    if (device->overlap == NULL) return;
    struct overlap_run run = take_overlap(device);
    run.work(run.work_context);
}

void cpu_run(struct cpu_device *device, bool alone, pool_task *task, void *context) {
    alone = alone || device->runs_overlap; /* the pool is busy */
    if (!alone && device->overlap != NULL) {
        struct overlap_run run = take_overlap(device);
        run.task = task;
        run.context = context;
        pool_run(device->pool, overlap_task, &run);
        return;
    }
    if (!alone) {
        pool_run(device->pool, task, context);
        return;
    }
    const struct pool_worker self = {0, 1, NULL};
    task(context, &self);
}

/* ---- lists, looked at again ---- */

struct heads_task {
    const struct heads_run *run;
    head_function *function;
    uint8_t *threads;
    size_t thread_bytes, alone_next;
};

static void heads_task(void *context, const struct pool_worker *worker) {
    struct heads_task *task = context;
    const struct heads_run *run = task->run;
    const struct attend_rows_operation *rows = run->rows;
    const size_t heads = rows->kv_head_count;
    for (size_t i; (i = cpu_ticket(worker, &task->alone_next)) < rows->item_count * heads;) {
        const struct rows_item *item = &rows->items[i / heads];
        struct layout scratch = {.memory = task->threads + worker->index * task->thread_bytes};
        struct head_unit unit = {.item = item,
                                 .list = item->lists[i % heads],
                                 .places = cpu_places(item->view.key_index) + i % heads * item->view.chunk_stride,
                                 .head_first = i * run->group,
                                 .head = i % heads * run->group,
                                 .sums = cpu_sums(rows->sums) + i * run->group};
        unit.q = cpu_floats(rows->q) + item->row * rows->q_stride + unit.head * run->kv->k_dimension;
        task->function(run, &unit, &scratch);
    }
}

struct heads_run cpu_heads_of(struct stream *stream, const void *operation, const struct attend_rows_operation *rows) {
    const size_t group = rows->head_count / rows->kv_head_count;
    ASSERT(group * rows->kv_head_count == rows->head_count && group <= GROUP_MAX);
    for (size_t i = 0; i < rows->item_count; i++) ASSERT(span_exists(rows->items[i].view.key_index));
    return (struct heads_run){stream->device, operation, rows, rows->items[0].view.layout, group};
}

void cpu_run_heads(const struct heads_run *run, size_t scratch_bytes, bool alone, head_function *function) {
    struct heads_task task = {.run = run, .function = function, .thread_bytes = align_up(scratch_bytes, 64)};
    task.threads = cpu_scratch_reserve(run->device, run->device->thread_count * task.thread_bytes);
    if (task.threads != NULL) cpu_run(run->device, alone, heads_task, &task);
}
