/* Tasks: what was asked for and has not run yet.  One may run when all that it comes after is done; which of those runs
 * next, and whether one does at all before a call returns, the seed decides.
 *
 * A programmatic edge lets a kernel start before the one in front of it: that one then runs when a thread of the kernel
 * first waits for it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "device/cuda/fake/fake_internal.h"

enum { EARLY_DEPTH_MAX = 2 }; /* kernels that have started and wait for each other */

struct task {
    uint64_t number;
    struct fake_work work;
    struct fake_needed *needed; /* owned */
    size_t needed_count;
    uint32_t lane;
    bool is_running;
};

static struct task **tasks; /* owned, in the order of their numbers */
static size_t task_count, task_capacity;
static uint64_t last_number, kernel_count, write_count;
static struct random chance;
static bool is_seeded;
enum cu_result fake_error;

uint64_t fake_random(uint64_t bound) {
    if (!is_seeded) random_init(&chance, fake_settings.seed);
    is_seeded = true;
    return random_below(&chance, bound);
}

/* A stretch of calls in which the card is slow or quick and one lane is served last: what is read too early is not
 * there yet, and a queue that runs far ahead of another is what a missing wait does not survive. */
static struct {
    uint64_t calls_left;
    bool is_slow;
    uint32_t last_lane;
} stretch;

/* ---- work ---- */

void fake_work_copy(struct fake_work *target, const struct fake_work *source) {
    *target = *source;
    if (source->arguments == NULL) return;
    const size_t bytes = fake_kernel_arguments(source->kernel);
    target->arguments = aligned_alloc(64, (bytes + 63) / 64 * 64); /* as tensor maps in it must be */
    if (target->arguments == NULL) abort();
    memcpy(target->arguments, source->arguments, bytes);
}

void fake_work_free(struct fake_work *work) {
    free(work->arguments);
    work->arguments = NULL;
}

static bool operations_reach(const struct fake_work *work) {
    bool can_wait = true; /* once, and as a stream's operation the first */
    for (uint32_t i = 0; i < work->operation_count; i++) {
        const struct cu_memory_operation *operation = &work->operations[i];
        const bool is_wait = operation->operation == CU_OPERATION_WAIT_VALUE_32;
        if ((is_wait && !can_wait) || (!is_wait && operation->operation != CU_OPERATION_WRITE_VALUE_32)) {
            fake_complain("an operation on memory that the fake driver does not know");
            return false;
        }
        can_wait = can_wait && !is_wait;
        if (operation->address % 4 != 0 || !fake_memory_reaches(operation->address, 4, "a flag"))
            return false;
    }
    return true;
}

enum cu_result fake_work_check(const struct fake_work *work) {
    bool is_right = true;
    switch (work->kind) {
    case FAKE_TASK_KERNEL:
        for (int i = 0; i < 3; i++) is_right = is_right && work->grid[i] > 0 && work->block[i] > 0;
        is_right = is_right && (uint64_t)work->block[0] * work->block[1] * work->block[2] <= 1024;
        is_right = is_right && work->grid[0] <= INT32_MAX && work->grid[1] <= 65535 && work->grid[2] <= 65535;
        break;
    case FAKE_TASK_COPY:
        is_right = fake_memory_reaches(work->source, work->size_bytes, "a copy's source") &&
                   fake_memory_reaches(work->target, work->size_bytes, "a copy's target");
        break;
    case FAKE_TASK_FILL: is_right = fake_memory_reaches(work->target, work->size_bytes, "a fill"); break;
    case FAKE_TASK_OPERATIONS: is_right = operations_reach(work); break;
    case FAKE_TASK_EMPTY: break;
    }
    return is_right ? CU_SUCCESS : CU_INVALID_VALUE;
}

/* ---- the list ---- */

static struct task *task_find(uint64_t number) { /* NULL: it is done */
    size_t begin = 0, end = task_count;
    while (begin < end) {
        const size_t middle = (begin + end) / 2;
        if (tasks[middle]->number < number)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin < task_count && tasks[begin]->number == number ? tasks[begin] : NULL;
}

bool fake_task_is_done(uint64_t task) { return task_find(task) == NULL; }

bool fake_task_is_kernel(uint64_t task) {
    const struct task *found = task_find(task);
    return found != NULL && found->work.kind == FAKE_TASK_KERNEL;
}

uint64_t fake_task_add(struct fake_work *work, const struct fake_needed *needed, size_t needed_count,
                       uint32_t lane) {
    struct task *made = calloc(1, sizeof *made);
    if (task_count == task_capacity) {
        task_capacity = task_capacity == 0 ? 256 : 2 * task_capacity;
        tasks = realloc(tasks, task_capacity * sizeof *tasks);
    }
    if (made == NULL || tasks == NULL) abort();
    *made = (struct task){.number = ++last_number, .work = *work, .lane = lane % FAKE_LANES};
    made->needed = calloc(needed_count + 1, sizeof *made->needed);
    if (made->needed == NULL) abort();
    for (size_t i = 0; i < needed_count; i++)
        if (!fake_task_is_done(needed[i].task)) made->needed[made->needed_count++] = needed[i];
    tasks[task_count++] = made;
    return made->number;
}

static void task_free(struct task *task) {
    fake_work_free(&task->work);
    free(task->needed);
    free(task);
}

static void task_remove(struct task *task) {
    size_t at = 0;
    while (tasks[at] != task) at++;
    memmove(&tasks[at], &tasks[at + 1], (--task_count - at) * sizeof *tasks);
    task_free(task);
}

static void tasks_drop(void) {
    for (size_t i = 0; i < task_count; i++) task_free(tasks[i]);
    task_count = 0;
}

void fake_queue_count_anew(void) { kernel_count = write_count = 0; }

void fake_queue_forget(void) {
    tasks_drop();
    free(tasks);
    tasks = NULL;
    task_capacity = 0;
    fake_queue_count_anew();
    is_seeded = false;
    stretch.calls_left = 0;
    fake_error = CU_SUCCESS;
}

/* ---- running ---- */

static uint32_t word_read(uint64_t address) {
    /* acquire: what was written before the flag was raised is seen by later tasks */
    return __atomic_load_n((const uint32_t *)(uintptr_t)address, __ATOMIC_ACQUIRE);
}

static bool wait_holds(const struct fake_work *work) {
    if (work->kind != FAKE_TASK_OPERATIONS || work->operations[0].operation != CU_OPERATION_WAIT_VALUE_32)
        return true;
    const struct cu_memory_operation *wait = &work->operations[0];
    return (int32_t)(word_read(wait->address) - (uint32_t)wait->value) >= 0;
}

static bool may_start(const struct task *task, int depth) {
    if (task->is_running) return false;
    for (size_t i = 0; i < task->needed_count; i++) {
        const struct task *before = task_find(task->needed[i].task);
        if (before == NULL) continue;
        const bool is_early = task->needed[i].is_early && fake_settings.stuck == 0; /* behind that one nothing ends */
        if (!is_early || depth == EARLY_DEPTH_MAX || !may_start(before, depth + 1)) return false;
    }
    return wait_holds(&task->work);
}

static void task_run(struct task *task);

/* What a kernel that started early waits for. */
static void before_run(void *context) {
    const struct task *task = context;
    for (size_t i = 0; i < task->needed_count; i++) {
        struct task *before = task_find(task->needed[i].task);
        if (before != NULL && !before->is_running && fake_error == CU_SUCCESS) task_run(before);
    }
}

static void kernel_run(struct task *task) {
    const struct fake_work *work = &task->work;
    const enum cu_result fault = fake_fault_of_kernel();
    if (fault != CU_SUCCESS) {
        fake_error = fault;
        return;
    }
    bool is_early = false;
    for (size_t i = 0; i < task->needed_count; i++)
        is_early = is_early || !fake_task_is_done(task->needed[i].task);
    if (work->is_dropped) {
        before_run(task);
        return;
    }
    fake_kernel_launch(work->kernel, work->grid, work->block, work->shared_bytes, work->arguments,
                       fake_random(UINT64_MAX), is_early && work->can_wait ? before_run : NULL, task);
}

static void operations_run(const struct fake_work *work) {
    for (uint32_t i = 0; i < work->operation_count; i++) {
        const struct cu_memory_operation *operation = &work->operations[i];
        if (operation->operation != CU_OPERATION_WRITE_VALUE_32) continue;
        if (++write_count == fake_settings.lose) continue;
        /* release: what earlier tasks wrote is seen by a host that sees the value */
        __atomic_store_n((uint32_t *)(uintptr_t)operation->address, (uint32_t)operation->value,
                         __ATOMIC_RELEASE);
    }
}

static void task_run(struct task *task) {
    const struct fake_work *work = &task->work;
    task->is_running = true;
    switch (work->kind) {
    case FAKE_TASK_KERNEL:
        if (++kernel_count == fake_settings.stuck) return; /* for ever */
        kernel_run(task);
        break;
    case FAKE_TASK_COPY:
        memmove((void *)(uintptr_t)work->target, (const void *)(uintptr_t)work->source, work->size_bytes);
        break;
    case FAKE_TASK_FILL: memset((void *)(uintptr_t)work->target, work->value, work->size_bytes); break;
    case FAKE_TASK_OPERATIONS: operations_run(work); break;
    case FAKE_TASK_EMPTY: break;
    }
    task_remove(task);
}

static void stretch_go_on(void) {
    enum { STRETCH_MAX = 48 };
    if (stretch.calls_left == 0) {
        stretch.calls_left = 1 + fake_random(STRETCH_MAX);
        stretch.is_slow = fake_random(2) == 0;
        stretch.last_lane = (uint32_t)fake_random(FAKE_LANES);
    }
    stretch.calls_left--;
}

/* The oldest or the newest of those that may start, or any. */
static struct task *task_pick(uint64_t newest, bool forced) {
    const uint64_t policy = fake_random(4);
    struct task *picked = NULL, *last = NULL;
    uint64_t seen = 0, last_seen = 0;
    for (size_t i = 0; i < task_count && tasks[i]->number <= newest; i++) {
        if (!may_start(tasks[i], 0)) continue;
        const bool is_last = tasks[i]->lane == stretch.last_lane;
        if (!is_last && policy == 0) return tasks[i];
        if (fake_random(is_last ? ++last_seen : ++seen) == 0 || policy == 1)
            *(is_last ? &last : &picked) = tasks[i];
    }
    return picked != NULL || !forced ? picked : last;
}

/* forced: also of the last lane where nothing else may run.  true: the memory is open; the caller closes it, so that
 * it is opened once for several. */
static bool one_run(uint64_t newest, bool forced) {
    struct task *task = task_pick(newest, forced);
    if (task == NULL) return false;
    fake_memory_open();
    task_run(task);
    if (fake_error != CU_SUCCESS) tasks_drop();
    return true;
}

static void memory_close(unsigned open_count) {
    for (; open_count > 0; open_count--) fake_memory_close();
}

void fake_progress(uint64_t awaited) {
    enum { STEPS_MAX = 3 };
    stretch_go_on();
    if (task_count == 0 || (stretch.is_slow && awaited == 0) || fake_random(2) == 0) return;
    const uint64_t newest = stretch.is_slow ? awaited : UINT64_MAX;
    unsigned open_count = 0;
    for (uint64_t count = fake_random(STEPS_MAX + 1); count > 0 && one_run(newest, awaited != 0); count--)
        open_count++;
    memory_close(open_count);
}

void fake_drain(const char *why) {
    enum { PAUSES_MAX = 10000 };
    for (int pauses = 0; task_count > 0 && fake_error == CU_SUCCESS;) {
        unsigned open_count = 0;
        while (task_count > 0 && fake_error == CU_SUCCESS && one_run(UINT64_MAX, true)) open_count++;
        memory_close(open_count);
        if (open_count > 0) continue;
        /* another thread of the host may raise a flag */
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        if (++pauses < PAUSES_MAX) continue;
        fake_complain("%s waits for ever: %zu tasks do not end", why, task_count);
        abort();
    }
}
