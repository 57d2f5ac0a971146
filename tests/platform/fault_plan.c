#include "platform/fault_plan.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct io_fault decide(void *context, enum io_call call, const char *path, uint64_t offset,
                              size_t bytes) {
    (void)path, (void)offset;
    return fault_plan_decide(context, call, bytes);
}

void fault_plan_init(struct fault_plan *plan, enum fault_kind kind, uint64_t first, bool for_ever,
                     uint32_t calls) {
    *plan = (struct fault_plan){
        .faults = {plan, decide}, .kind = kind, .first = first, .for_ever = for_ever, .calls = calls};
}

static bool is_of(enum fault_kind kind, enum io_call call) {
    if (call == IO_CALL_CLOSE) return kind == FAULT_CLOSE || kind == FAULT_KILL;
    switch (kind) {
    case FAULT_EDQUOT:
        return call == IO_CALL_OPEN || call == IO_CALL_WRITE || call == IO_CALL_SYNC ||
               call == IO_CALL_TRUNCATE;
    case FAULT_EACCES: return call == IO_CALL_OPEN || call == IO_CALL_REMOVE;
    case FAULT_EROFS: return call != IO_CALL_READ && call != IO_CALL_SYNC;
    case FAULT_EMFILE: return call == IO_CALL_OPEN;
    case FAULT_EAGAIN: return call == IO_CALL_READ || call == IO_CALL_WRITE || call == IO_CALL_SYNC;
    case FAULT_CLOSE: return false;
    case FAULT_NONE:
    case FAULT_EIO:
    case FAULT_ENOSPC:
    case FAULT_EINTR:
    case FAULT_SHORT_ONE:
    case FAULT_SHORT_HALF:
    case FAULT_KILL:
    case FAULT_KINDS: return true;
    }
    return true;
}

static struct io_fault decide_call(struct fault_plan *plan, enum io_call call, size_t bytes) {
    const struct io_fault let_through = {0, SIZE_MAX};
    if (call == IO_CALL_READ) plan->read_bytes += bytes;
    if (call == IO_CALL_WRITE) plan->written_bytes += bytes;
    if (plan->calls != 0 && (plan->calls & 1u << call) == 0) return let_through;
    if (!is_of(plan->kind, call)) return let_through;
    uint64_t number = plan->count++;
    if (plan->kind == FAULT_NONE || (plan->for_ever ? number < plan->first : number != plan->first))
        return let_through;
    bool moves = call == IO_CALL_READ || call == IO_CALL_WRITE;
    switch (plan->kind) {
    case FAULT_NONE:
    case FAULT_KINDS: return let_through;
    case FAULT_EIO:
    case FAULT_CLOSE: plan->hits++; return (struct io_fault){EIO, SIZE_MAX};
    case FAULT_ENOSPC: plan->hits++; return (struct io_fault){ENOSPC, SIZE_MAX};
    case FAULT_EDQUOT: plan->hits++; return (struct io_fault){EDQUOT, SIZE_MAX};
    case FAULT_EACCES: plan->hits++; return (struct io_fault){EACCES, SIZE_MAX};
    case FAULT_EROFS: plan->hits++; return (struct io_fault){EROFS, SIZE_MAX};
    case FAULT_EMFILE: plan->hits++; return (struct io_fault){EMFILE, SIZE_MAX};
    case FAULT_EAGAIN: plan->hits++; return (struct io_fault){EAGAIN, SIZE_MAX};
    case FAULT_EINTR:
        if (!moves && call != IO_CALL_SYNC) return let_through; /* the others do not give it for files */
        plan->hits++;
        return (struct io_fault){EINTR, SIZE_MAX};
    case FAULT_SHORT_ONE: plan->hits += moves; return (struct io_fault){0, moves ? 1 : SIZE_MAX};
    case FAULT_SHORT_HALF:
        plan->hits += moves;
        return (struct io_fault){0, moves ? (bytes + 1) / 2 : SIZE_MAX};
    case FAULT_KILL: kill(getpid(), SIGKILL); return let_through;
    }
    return let_through;
}

struct io_fault fault_plan_decide(struct fault_plan *plan, enum io_call call, size_t bytes) {
    struct io_fault fault = decide_call(plan, call, bytes);
    if (fault.os_error != 0) plan->hit_calls |= 1u << call;
    return fault;
}

const char *fault_name(enum fault_kind kind) {
    static const char *const names[FAULT_KINDS] = {
        [FAULT_NONE] = "none",         [FAULT_EIO] = "EIO",
        [FAULT_ENOSPC] = "ENOSPC",     [FAULT_EINTR] = "EINTR",
        [FAULT_EAGAIN] = "EAGAIN",     [FAULT_SHORT_ONE] = "short by one",
        [FAULT_KILL] = "kill",         [FAULT_SHORT_HALF] = "short half",
        [FAULT_EDQUOT] = "EDQUOT",     [FAULT_EACCES] = "EACCES",
        [FAULT_EROFS] = "EROFS",       [FAULT_EMFILE] = "EMFILE",
        [FAULT_CLOSE] = "EIO of close"};
    return names[kind];
}

void fault_stay_here(void) {
    cpu_set_t here;
    const int processor = sched_getcpu();
    CPU_ZERO(&here);
    if (processor >= 0) CPU_SET((size_t)processor, &here);
    if (processor >= 0) (void)sched_setaffinity(0, sizeof here, &here);
}

void fault_kill_after(uint64_t ns) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    const struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) + (ns == 0)}};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0)
        abort();
}
