/* repair: jobs that give up their slot, and what a failed step or slice asks for. */

#include "platform/clock.h"
#include "server/service_internal.h"

/* To the end of the queue, which takes it back even if it is full. */
static void enqueue(struct service *service, struct job *job) {
    struct job **end = &service->shared.queue;
    while (*end != NULL) end = &(*end)->next;
    job->next = NULL;
    *end = job;
    service->shared.queue_count++;
    service->shared.queue_bytes += job->request.bytes;
}

static bool device_broke(const struct service *service) {
    return service->engine != NULL && engine_device_state(service->engine, NULL) != STATUS_OK &&
           service->options.make_engine != NULL;
}

bool service_preempt(struct service *service, struct job *job) {
    struct error error;
    if (job->client.is_told) {
        job_end_running(service, job, STOP_INTERRUPTED, NULL);
        return false;
    }
    enum status status = job_remember(job, &error);
    if (status == STATUS_OK && job->state == JOB_DECODE) status = sequence_save(job->answer.sequence, &error);
    if (status != STATUS_OK) {
        if (device_broke(service))
            service_recover(service);
        else
            job_end_running(service, job, STOP_FAILED, &error);
        return false;
    }
    size_t residents = service->resident_count;
    resident_leave(service, job);
    if (service->resident_count > residents) service->residents[residents].ticket = job->ticket;
    job->state = JOB_QUEUED;
    job->preemptions++;
    service->statistics.preemptions++;
    pthread_mutex_lock(&service->shared.mutex);
    job_leave_running(service, job);
    job->times.queued_since = clock_seconds();
    enqueue(service, job);
    pthread_mutex_unlock(&service->shared.mutex);
    return true;
}

/* Memory does not hold all of them: what nobody uses goes, then the job that came last waits. */
static bool make_room(struct service *service) {
    if (resident_evict(service) || job_end_saved(service, true)) return true;
    if (service->running.count < 2) return false;
    struct job *job = service->running.jobs[service->running.count - 1];
    if (!service_preempt(service, job)) return true;
    service->running.max = service->running.count;
    (void)resident_evict(service);
    return true;
}

static bool runs(const struct service *service, const struct job *job) {
    for (size_t i = 0; i < service->running.count; i++)
        if (service->running.jobs[i] == job) return true;
    return false;
}

/* An attachment that failed cannot be tried again with the same sequence. */
static enum status renew(struct service *service, struct job *job, struct error *error) {
    sequence_destroy(job->answer.sequence);
    job->answer.sequence = NULL;
    return sequence_create(&job->answer.sequence, service->engine, error);
}

bool service_attach(struct service *service, struct job *job, enum status status, struct error *error) {
    if (status == STATUS_OK) status = job_attach(job, service, error);
    while (service->engine != NULL && (status == STATUS_FULL || status == STATUS_MEMORY) && make_room(service)) {
        if (!runs(service, job)) return false;
        status = renew(service, job, error);
        if (status == STATUS_OK) status = job_attach(job, service, error);
    }
    if (status == STATUS_OK) return true;
    if (device_broke(service)) {
        service_recover(service);
        return runs(service, job);
    }
    job_fail_running(service, job, error);
    return false;
}

enum status service_need_engine(struct service *service, struct error *error) {
    if (device_broke(service)) service_recover(service);
    if (service->engine != NULL) return STATUS_OK;
    enum status status = service->options.make_engine(service->options.make_engine_context, &service->engine, error);
    if (status != STATUS_OK) service->engine = NULL;
    return status;
}

void service_recover(struct service *service) {
    struct error error = {.status = STATUS_OK};
    resident_clear(service);
    service->statistics.recoveries++;
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *job = service->running.jobs[i];
        (void)!job_remember(job, &error); /* without memory: computed as a prompt */
        sequence_destroy(job->answer.sequence);
        job->answer.sequence = NULL;
        job->state = JOB_PREFILL;
    }
    enum status made = service->options.make_engine(service->options.make_engine_context, &service->engine, &error);
    if (made != STATUS_OK) service->engine = NULL;
    for (size_t i = 0; i < service->running.count;) {
        struct job *job = service->running.jobs[i];
        enum status status = made;
        if (status == STATUS_OK) status = sequence_create(&job->answer.sequence, service->engine, &error);
        if (status == STATUS_OK) status = job_attach(job, service, &error);
        if (status != STATUS_OK)
            job_end_running(service, job, STOP_FAILED, &error);
        else
            i++;
    }
}

/* A page could not be read: perhaps the next time it can.  Who did not get on alone either has met it. */
static void try_alone(struct service *service, struct job *const *jobs, size_t count, uint64_t document,
                      const struct error *error) {
    bool is_theirs = false; /* else it was read for an earlier pass, or nobody knows */
    for (size_t i = 0; i < count; i++)
        is_theirs = is_theirs || kv_sequence_uses_document(sequence_kv(jobs[i]->answer.sequence), document);
    for (size_t i = 0; i < count; i++) {
        struct job *job = jobs[i];
        if (is_theirs && !kv_sequence_uses_document(sequence_kv(job->answer.sequence), document)) continue;
        if (count == 1 && job->failed_at != SIZE_MAX)
            job_fail_running(service, job, error);
        else
            job->failed_at = job->answer.stored.count;
    }
}

bool service_repair(struct service *service, struct job *const *jobs, size_t count, enum status status,
                    const struct error *error) {
    if (device_broke(service)) {
        service_recover(service);
        return true;
    }
    if (status == STATUS_MEMORY || status == STATUS_FULL) return make_room(service);
    const uint64_t document = engine_failed_document(service->engine);
    if ((status != STATUS_DOCUMENT && document == 0) || service->options.make_engine == NULL) return false;
    if (status != STATUS_DOCUMENT) try_alone(service, jobs, count, document, error);
    service_recover(service);
    return true;
}
