/* Flags of the cpu device.  It has no queue, so the waiting thread is the engine's.  It polls for a while, since most
 * flags are raised by then, and then sleeps until the flag is raised or the limit has passed. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/assert.h"
#include "device/cpu/cpu_device_internal.h"
#include "platform/clock.h"

enum { SPIN_ROUNDS = 1000 };

struct flag {
    pthread_mutex_t mutex;
    pthread_cond_t raised;
    uint32_t value; /* written under the mutex, read by atomic loads */
};

enum status cpu_flag_create(struct device *device, struct flag **flag, struct error *error) {
    (void)device;
    pthread_condattr_t attributes;
    struct flag *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "cpu device: no memory for a flag");
    int failed = pthread_condattr_init(&attributes);
    if (failed == 0) {
        (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        failed = pthread_cond_init(&made->raised, &attributes);
        (void)pthread_condattr_destroy(&attributes);
    }
    if (failed != 0) {
        free(made);
        return error_set_os(error, STATUS_FAILED, failed, "cpu device: cannot make a flag");
    }
    (void)pthread_mutex_init(&made->mutex, NULL); /* cannot fail without attributes */
    *flag = made;
    return STATUS_OK;
}

void cpu_flag_destroy(struct flag *flag) {
    (void)pthread_cond_destroy(&flag->raised);
    (void)pthread_mutex_destroy(&flag->mutex);
    free(flag);
}

uint32_t cpu_flag_value(struct flag *flag) {
    /* acquire: pairs with the release store of cpu_flag_raise */
    return __atomic_load_n(&flag->value, __ATOMIC_ACQUIRE);
}

void cpu_flag_raise(struct device *device, struct flag *flag, uint32_t value) {
    (void)device;
    (void)pthread_mutex_lock(&flag->mutex);
    /* release: pairs with the acquire of cpu_flag_value */
    if (value > flag->value) __atomic_store_n(&flag->value, value, __ATOMIC_RELEASE);
    (void)pthread_cond_broadcast(&flag->raised);
    (void)pthread_mutex_unlock(&flag->mutex);
}

void cpu_flag_signal(struct stream *stream, struct flag *flag, uint32_t value) {
    cpu_flag_raise(&stream->device->device, flag, value);
}

/* Whether it is raised before the clock says end_ns. */
static bool sleep_until(struct flag *flag, uint32_t value, uint64_t end_ns) {
    const struct timespec end = {.tv_sec = (time_t)(end_ns / 1000000000u),
                                 .tv_nsec = (long)(end_ns % 1000000000u)};
    int failed = 0;
    (void)pthread_mutex_lock(&flag->mutex);
    while (flag->value < value && failed == 0)
        failed = pthread_cond_timedwait(&flag->raised, &flag->mutex, &end);
    bool raised = flag->value >= value;
    (void)pthread_mutex_unlock(&flag->mutex);
    ASSERT(raised || failed == ETIMEDOUT);
    return raised;
}

void cpu_flag_wait(struct stream *stream, struct flag *flag, uint32_t value) {
    struct cpu_device *device = stream->device;
    for (unsigned round = 0; round < SPIN_ROUNDS; round++)
        if (cpu_flag_value(flag) >= value) return;
    if (device->error.status != STATUS_OK) return; /* broken: later results do not count */
    uint64_t begin_ns = clock_ns();
    if (sleep_until(flag, value, begin_ns + device->flag_wait_limit_ns)) return;
    error_set(cpu_device_error(device), STATUS_FAILED,
              "cpu device: a flag stayed at %u for %.1f s, expected %u", cpu_flag_value(flag),
              (double)(clock_ns() - begin_ns) * 1e-9, value);
}
