/* How the cpu device runs a task: on the pool or on its caller, and what its caller does meanwhile. */
#include "device/cpu/cpu_device_internal.h"

struct error *cpu_device_error(struct cpu_device *device) {
    return device->error.status == STATUS_OK ? &device->error : NULL;
}

/* A run whose caller has something else to do first: the others draw the units meanwhile. */
struct beside_run {
    struct cpu_device *device;
    void (*work)(void *context);
    void *work_context;
    pool_task *task;
    void *context;
};

static void beside_task(void *context, const struct pool_worker *worker) {
    const struct beside_run *run = context;
    if (worker->index == 0) {
        run->device->runs_beside = true;
        run->work(run->work_context);
        run->device->runs_beside = false;
    }
    run->task(run->context, worker);
}

static struct beside_run take_beside(struct cpu_device *device) {
    struct beside_run run = {
        .device = device, .work = device->beside, .work_context = device->beside_context};
    device->beside = NULL;
    return run;
}

void cpu_run_beside(struct cpu_device *device) {
    if (device->beside == NULL) return;
    struct beside_run run = take_beside(device);
    run.work(run.work_context);
}

void cpu_run(struct cpu_device *device, bool alone, pool_task *task, void *context) {
    alone = alone || device->runs_beside; /* the pool is busy */
    if (!alone && device->beside != NULL) {
        struct beside_run run = take_beside(device);
        run.task = task;
        run.context = context;
        pool_run(device->pool, beside_task, &run);
        return;
    }
    if (!alone) {
        pool_run(device->pool, task, context);
        return;
    }
    const struct pool_worker self = {0, 1, NULL};
    task(context, &self);
}
