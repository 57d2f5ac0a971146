/* Runs a task of the cpu device, on the pool or on the caller alone, and the caller's own work meanwhile. */
#include "device/cpu/cpu_device_internal.h"

struct error *cpu_device_error(struct cpu_device *device) {
    return device->error.status == STATUS_OK ? &device->error : NULL;
}

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
    struct overlap_run run = {
        .device = device, .work = device->overlap, .work_context = device->overlap_context};
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
