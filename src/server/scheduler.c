/* scheduler: one turn of the loop.
 *
 *   calls, cancelled jobs -> idle sequences -> admission -> passes over the weights (passes.c)
 *
 * Jobs of the queue that wait for what another one reads (sharing.c) are passed over.
 */
#include <stdio.h>

#include "attention/attention.h"
#include "platform/clock.h"
#include "server/service_internal.h"

/* ---- the queue ---- */

static bool queue_remove(struct service *service, struct job *job) {
    for (struct job **at = &service->shared.queue; *at != NULL; at = &(*at)->next)
        if (*at == job) {
            *at = job->next;
            job->next = NULL;
            service->shared.queue_count--;
            service->shared.queue_bytes -= job->request.bytes;
            return true;
        }
    return false;
}

/* The job that gets the next slot: no low priority before a normal one, then by owner, then who came first. */
static struct job *queue_head(struct service *service) {
    struct job *best = NULL;
    for (struct job *job = service->shared.queue; job != NULL; job = job->next) {
        if (job->client.cancelled || job_is_unread(job)) continue;
        const bool goes_first = best == NULL || job->request.priority < best->request.priority ||
                                (job->request.priority == best->request.priority &&
                                 account_seconds(service, job) < account_seconds(service, best));
        if (goes_first && !sharing_waits(service, job)) best = job;
    }
    return best;
}

/* A cancelled job of the queue, taken out; NULL: there is none. */
static struct job *take_cancelled(struct service *service, bool all) {
    struct job *job = service->shared.queue;
    while (job != NULL && !job->client.cancelled && !all) job = job->next;
    if (job != NULL) (void)queue_remove(service, job);
    return job;
}

static void end_queued(struct service *service, bool all, const char *why) {
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "%s", why);
    for (;;) {
        pthread_mutex_lock(&service->shared.mutex);
        struct job *job = take_cancelled(service, all);
        pthread_mutex_unlock(&service->shared.mutex);
        if (job == NULL) return;
        job_done(job, service, STOP_INTERRUPTED, &error);
    }
}

/* Whether there was a cancelled one. */
static bool end_cancelled(struct service *service) {
    pthread_mutex_lock(&service->shared.mutex);
    const bool has_cancelled = service->shared.has_cancelled;
    service->shared.has_cancelled = false; /* one that comes from here on may be seen twice */
    pthread_mutex_unlock(&service->shared.mutex);
    end_queued(service, false, "cancelled");
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "cancelled");
    if (has_cancelled) sharing_plan(service);
    for (size_t i = 0; i < service->running.count;) {
        struct job *job = service->running.jobs[i];
        pthread_mutex_lock(&service->shared.mutex);
        bool cancelled = job->client.cancelled;
        if (job->client.resumed) job->client.paused = job->client.resumed = false;
        pthread_mutex_unlock(&service->shared.mutex);
        if (cancelled && !sharing_reads_on(service, job))
            job_end_running(service, job, STOP_INTERRUPTED, &error);
        else
            i++;
    }
    return has_cancelled;
}

/* ---- admission ---- */

/* The first time that it runs. */
static void tell_admission(struct service *service, struct job *job) {
    job->was_admitted = true;
    job->reused = job->answer.stored.count;
    service->statistics.tokens.prompt += job->request.prompt_count;
    service->statistics.tokens.reused += job->reused;
    for (size_t i = 0; i < job->request.prompt_count; i++) sampler_accept(job->answer.sampler, job->tokens.ids[i]);
    const struct service_listener *listener = &job->client.listener;
    if (listener->admitted != NULL)
        listener->admitted(listener->context,
                           &(struct service_admission){job->request.prompt_count, job->reused, job->times.queued});
    job->progress.done = job->reused;
    job_tell_progress(job);
}

static void admit(struct service *service, struct job *job) {
    struct error error = {.status = STATUS_OK};
    double now = clock_seconds();
    job->times.queued += now - job->times.queued_since;
    if (!job->was_admitted) job->times.admitted = now;
    job->times.slot_since = now;
    job->times.decode_since = 0;
    account_open(service, job->request.owner);
    enum status status = service_need_engine(service, &error);
    if (status == STATUS_OK) status = resident_take(service, job, &error);
    job->state = JOB_PREFILL;
    pthread_mutex_lock(&service->shared.mutex);
    job->admission = ++service->shared.admissions;
    service->running.jobs[service->running.count++] = job;
    service->shared.admitted = NULL;
    pthread_mutex_unlock(&service->shared.mutex);
    if (!service_attach(service, job, status, &error)) return;
    size_t begun; /* of a segment that has paused */
    (void)sequence_paused_tokens(job->answer.sequence, &begun);
    job->progress.done = job->answer.stored.count + begun;
    if (!job->was_admitted) tell_admission(service, job);
}

static void admit_all(struct service *service) {
    while (service->running.count < service->running.max) {
        pthread_mutex_lock(&service->shared.mutex);
        struct job *job = queue_head(service);
        if (job != NULL) job_recall(job, service);
        if (job != NULL && job_awaits_disk(job, service)) {
            service->awaits_disk = true;
            job = NULL;
        }
        if (job != NULL) (void)queue_remove(service, job);
        if (job != NULL) job->client.paused = job->client.resumed = false;
        service->shared.admitted = job;
        pthread_mutex_unlock(&service->shared.mutex);
        if (job == NULL) return;
        admit(service, job);
    }
}

/* It has decoded long: made new tokens, for at least as long as it took to compute again what a preemption had cost.
 * So each stay in a slot brings an answer on, however slow a step is.  Of a client that does not read the whole stay
 * counts. */
static bool has_decoded_long(const struct service *service, const struct job *job, double now) {
    const double least = service->options.preempt_run_ms * 1e-3;
    if (job->state != JOB_DECODE) return false;
    if (job->times.decode_since == 0) return job->client.paused && now - job->times.slot_since >= least;
    const double again = job->preemptions > 0 ? job->times.decode_since - job->times.slot_since : 0;
    return now - job->times.decode_since >= (again > least ? again : least);
}

/* Whose client has read nothing for longest, and for long; NULL: there is none. */
static struct job *find_unread(struct service *service, double now) {
    struct job *found = NULL;
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *job = service->running.jobs[i];
        if (!job->client.paused || now - job->client.paused_since < service->options.unread_ms * 1e-3) continue;
        if (found == NULL || job->client.paused_since < found->client.paused_since) found = job;
    }
    return found;
}

/* The head of the queue has waited long, and somebody has decoded long: they change places.  For one whose client does
 * not read nobody waits long. */
static void preempt(struct service *service) {
    double now = clock_seconds();
    if (service->running.count < service->running.max || service->engine == NULL) return;
    pthread_mutex_lock(&service->shared.mutex);
    const struct job *head = queue_head(service);
    const bool waits = head != NULL;
    const bool waited = waits && now - head->times.queued_since >= service->options.preempt_wait_ms * 1e-3 &&
                        engine_saves(service->engine);
    pthread_mutex_unlock(&service->shared.mutex);
    struct job *victim = waits ? find_unread(service, now) : NULL;
    const bool decides = waited && victim == NULL;
    for (size_t i = 0; i < service->running.count && decides; i++) {
        struct job *job = service->running.jobs[i];
        if (!has_decoded_long(service, job, now)) continue;
        if (victim == NULL || job->times.decode_since < victim->times.decode_since) victim = job;
    }
    if (victim != NULL) (void)service_preempt(service, victim);
}

/* ---- the turn ---- */

static void call_with_live(struct service *service, const struct service_caller *caller) {
    struct service_live live[2 * ENGINE_SEQUENCES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < service->running.count; i++)
        live[count++] = (struct service_live){service->running.jobs[i]->ticket, service->running.jobs[i]->request.owner,
                                              service->running.jobs[i]->answer.sequence};
    for (size_t i = 0; i < service->resident_count; i++)
        live[count++] = (struct service_live){0, service->residents[i].owner, service->residents[i].sequence};
    caller->function(caller->context, service->engine, live, count);
}

static void answer_callers(struct service *service) {
    pthread_mutex_lock(&service->shared.mutex);
    struct service_caller *callers = service->shared.callers;
    service->shared.callers = NULL;
    pthread_mutex_unlock(&service->shared.mutex);
    if (callers == NULL) return;
    for (struct service_caller *caller = callers; caller != NULL && service->engine != NULL; caller = caller->next)
        call_with_live(service, caller);
    pthread_mutex_lock(&service->shared.mutex);
    for (struct service_caller *caller = callers, *next; caller != NULL; caller = next) {
        next = caller->next;
        caller->finished = true; /* from here on it is its caller's */
        caller->refused = service->engine == NULL;
    }
    pthread_cond_broadcast(&service->shared.idle);
    pthread_mutex_unlock(&service->shared.mutex);
}

/* Draining: what waits ends now, and what runs when its time is over. */
static void drain(struct service *service) {
    pthread_mutex_lock(&service->shared.mutex);
    bool draining = service->shared.draining, late = draining && clock_seconds() >= service->shared.drain_deadline;
    pthread_mutex_unlock(&service->shared.mutex);
    if (!draining) return;
    end_queued(service, true, "the server is stopping");
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "the server is stopping");
    while (late && service->running.count > 0)
        job_end_running(service, service->running.jobs[0], STOP_INTERRUPTED, &error);
}

static void publish(struct service *service) {
    struct service_statistics *statistics = &service->statistics;
    statistics->levels.prefilling = statistics->levels.decoding = statistics->levels.paused = 0;
    statistics->levels.resident_tokens = statistics->levels.running_tokens = 0;
    statistics->levels.resident = service->resident_count;
    for (size_t i = 0; i < service->running.count; i++) {
        const struct job *job = service->running.jobs[i];
        if (job->client.paused)
            statistics->levels.paused++;
        else if (job->state == JOB_DECODE)
            statistics->levels.decoding++;
        else
            statistics->levels.prefilling++;
        statistics->levels.running_tokens += job->answer.stored.count;
    }
    for (size_t i = 0; i < service->resident_count; i++)
        statistics->levels.resident_tokens += service->residents[i].stored.count;
    if (service->engine != NULL) {
        statistics->levels.kv_used_bytes = engine_kv_used_bytes(service->engine);
        statistics->levels.kv_device_bytes = engine_kv_device_bytes(service->engine);
        statistics->levels.kv_unit_bytes = engine_unit_bytes(service->engine);
        statistics->tiers = engine_tier_statistics(service->engine);
        statistics->select = attention_statistics(engine_attention(service->engine));
        statistics->device = engine_device_counts(service->engine);
        if (service->running.count == 0) passes_count_fetched(service);
        statistics->weights = engine_weight_figures(service->engine);
        const char *damage = engine_documents_damage(service->engine);
        snprintf(statistics->documents_damage, sizeof statistics->documents_damage, "%s", damage != NULL ? damage : "");
    }
    pthread_mutex_lock(&service->shared.mutex);
    service->shared.published = *statistics;
    pthread_mutex_unlock(&service->shared.mutex);
}

/* With nothing to compute, and nobody who waits.  Whether to come back at once.  A page that cannot be read is no
 * request's: an engine without its failure answers them, and reads what they want. */
static bool warm(struct service *service) {
    struct error error;
    bool more;
    pthread_mutex_lock(&service->shared.mutex);
    const bool is_idle = service->shared.job_count == 0 && service->shared.callers == NULL && !service->shared.draining;
    pthread_mutex_unlock(&service->shared.mutex);
    if (!is_idle || service->engine == NULL || service->stays_cold) return false;
    if (resident_warm(service, &more, &error) == STATUS_OK) return more;
    service->stays_cold = true;
    if (service->options.make_engine != NULL) service_recover(service);
    return false;
}

bool scheduler_turn(struct service *service) {
    service->turn++;
    service->awaits_disk = false;
    answer_callers(service);
    if (end_cancelled(service)) publish(service); /* a slot is free: it is seen before the next pass */
    drain(service);
    preempt(service);
    resident_unload_idle(service);
    sharing_plan(service);
    sharing_end(service);
    admit_all(service);
    sharing_plan(service);
    passes_run(service);
    (void)job_end_saved(service, false);
    publish(service);
    return passes_wait(service) || warm(service);
}

void scheduler_end(struct service *service) {
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "the server is stopping");
    end_queued(service, true, error.message);
    while (service->running.count > 0) job_end_running(service, service->running.jobs[0], STOP_INTERRUPTED, &error);
    resident_clear(service);
    answer_callers(service);
    publish(service);
}
