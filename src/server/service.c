/* service: its functions for other threads, and its own thread. */
#include "server/service.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "platform/clock.h"
#include "server/service_internal.h"

enum { PREEMPT_WAIT_MS = 10000, PREEMPT_RUN_MS = 60000, UNREAD_MS = 3000, WAIT_MAX_SECONDS = 120 };
#define DISK_POLL_SECONDS 1e-3

static struct timespec after(double seconds) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    seconds = fmin(fmax(seconds, 0), 1e9);
    at.tv_sec += (time_t)seconds;
    at.tv_nsec += (long)((seconds - floor(seconds)) * 1e9);
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

/* Under the mutex.  Whether a job of the queue would begin with a slot. */
static bool queue_has_takers(const struct service *service) {
    for (const struct job *job = service->shared.queue; job != NULL; job = job->next)
        if (job->client.cancelled || !job_is_unread(job)) return true;
    return false;
}

/* Waits for something to do, or for the end of draining. */
static void wait_for_work(struct service *service) {
    if (service->awaits_disk) {
        const struct timespec soon = after(DISK_POLL_SECONDS);
        if (service->shared.callers == NULL && !service->shared.stopping)
            (void)pthread_cond_timedwait(&service->shared.work, &service->shared.mutex, &soon);
        return;
    }
    const bool has_takers = queue_has_takers(service);
    bool waits = !has_takers && service->shared.callers == NULL && !service->shared.stopping;
    for (size_t i = 0; i < service->running.count; i++)
        if (service->running.jobs[i]->client.cancelled || service->running.jobs[i]->client.resumed) waits = false;
    if (service->shared.draining && service->shared.drain_deadline <= clock_seconds())
        waits = waits && service->shared.job_count == 0;
    if (has_takers && service->running.count > 0 && !service->shared.stopping && service->shared.callers == NULL)
        waits = service->running.count >= service->running.max; /* all slots are paused */
    if (!waits) return;
    struct timespec until = after(1); /* preemption and draining look at the time */
    (void)pthread_cond_timedwait(&service->shared.work, &service->shared.mutex, &until);
}

static void *run(void *context) {
    struct service *service = context;
    for (;;) {
        bool more = scheduler_turn(service);
        pthread_mutex_lock(&service->shared.mutex);
        if (!more) wait_for_work(service);
        bool stopping = service->shared.stopping;
        pthread_mutex_unlock(&service->shared.mutex);
        if (stopping) break;
    }
    scheduler_end(service);
    return NULL;
}

static void take_options(struct service *service, const struct service_options *options) {
    struct service_options *own = &service->options;
    *own = *options;
    service->engine = options->engine;
    service->vocabulary_size = engine_config(options->engine)->vocabulary_size;
    service->context_size = engine_context_size(options->engine);
    service->sequence_capacity = engine_sequence_capacity(options->engine);
    if (own->parallel == 0 || own->parallel > service->sequence_capacity) own->parallel = service->sequence_capacity;
    if (own->queue_max == 0) own->queue_max = SERVICE_QUEUE_DEFAULT;
    if (own->queue_bytes_max == 0) own->queue_bytes_max = SERVICE_QUEUE_BYTES_DEFAULT;
    if (own->slice_ms == 0) own->slice_ms = SERVICE_SLICE_MS_DEFAULT;
    if (own->preempt_wait_ms == 0) own->preempt_wait_ms = PREEMPT_WAIT_MS;
    if (own->preempt_run_ms == 0) own->preempt_run_ms = PREEMPT_RUN_MS;
    if (own->unread_ms == 0) own->unread_ms = UNREAD_MS;
    service->running.max = own->parallel;
}

static void free_service(struct service *service) {
    pthread_mutex_destroy(&service->shared.mutex);
    pthread_cond_destroy(&service->shared.work);
    pthread_cond_destroy(&service->shared.idle);
    prompt_logits_deinit(&service->prompts);
    free(service->accounts.items);
    free(service);
}

enum status service_create(struct service **service, const struct service_options *options, struct error *error) {
    *service = NULL;
    struct service *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for the service");
    take_options(made, options);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&made->shared.mutex, NULL);
    pthread_cond_init(&made->shared.work, &attributes);
    pthread_cond_init(&made->shared.idle, &attributes);
    pthread_condattr_destroy(&attributes);
    int failed = pthread_create(&made->thread, NULL, run, made);
    if (failed != 0) {
        free_service(made);
        return error_set_os(error, STATUS_FAILED, failed, "the service's thread");
    }
    *service = made;
    return STATUS_OK;
}

void service_destroy(struct service *service) {
    if (service == NULL) return;
    pthread_mutex_lock(&service->shared.mutex);
    service->shared.stopping = service->shared.draining = true;
    pthread_cond_broadcast(&service->shared.work);
    pthread_mutex_unlock(&service->shared.mutex);
    pthread_join(service->thread, NULL);
    free_service(service);
}

struct engine *service_engine(const struct service *service) {
    return service->engine;
}
uint64_t service_context_size(const struct service *service) { return service->context_size; }
size_t service_vocabulary_size(const struct service *service) { return service->vocabulary_size; }
size_t service_parallel(const struct service *service) { return service->options.parallel; }

/* Under the mutex. */
static enum status accept(struct service *service, struct job *job, struct error *error) {
    const struct service_options *options = &service->options;
    if (service->shared.draining) return error_set(error, STATUS_INTERRUPTED, "the server is stopping");
    /* Beside those that could have a slot: they may wait for what another one reads. */
    const size_t taken = service->running.count + (service->shared.admitted != NULL),
                 left = options->parallel > taken ? options->parallel - taken : 0;
    if (service->shared.queue_count >= options->queue_max + left)
        return error_set(error, STATUS_FULL, "the queue is full: %zu requests wait", service->shared.queue_count);
    if (service->shared.queue_bytes + job->request.bytes > options->queue_bytes_max)
        return error_set(error, STATUS_FULL, "the queue is full: its prompts have %llu bytes of %llu",
                         (unsigned long long)service->shared.queue_bytes, (unsigned long long)options->queue_bytes_max);
    struct job **end = &service->shared.queue;
    while (*end != NULL) end = &(*end)->next;
    *end = job;
    service->shared.queue_count++;
    service->shared.queue_bytes += job->request.bytes;
    service->shared.job_count++;
    job->ticket = ++service->shared.last_ticket;
    return STATUS_OK;
}

enum status service_submit(struct service *service, const struct service_request *request,
                           const struct service_listener *listener, service_ticket *ticket, struct error *error) {
    struct job *job;
    *ticket = 0;
    TRY(job_create(&job, service, request, listener, error));
    pthread_mutex_lock(&service->shared.mutex);
    enum status status = accept(service, job, error);
    if (status == STATUS_OK) {
        *ticket = job->ticket;
        service->shared.submitted++;
        pthread_cond_broadcast(&service->shared.work);
    } else {
        service->shared.refused++;
    }
    pthread_mutex_unlock(&service->shared.mutex);
    if (status == STATUS_OK) return status; /* the job may be gone by now */
    job->request.has_mask = false;
    job_destroy(job);
    return status;
}

/* Under the mutex; NULL: it is done. */
static struct job *find_job(struct service *service, service_ticket ticket) {
    for (size_t i = 0; i < service->running.count; i++)
        if (service->running.jobs[i]->ticket == ticket) return service->running.jobs[i];
    if (service->shared.admitted != NULL && service->shared.admitted->ticket == ticket) return service->shared.admitted;
    struct job *job = service->shared.queue;
    while (job != NULL && job->ticket != ticket) job = job->next;
    return job;
}

void service_cancel(struct service *service, service_ticket ticket) {
    pthread_mutex_lock(&service->shared.mutex);
    struct job *job = find_job(service, ticket);
    if (job != NULL && !job->client.cancelled) service->shared.cancelled++;
    if (job != NULL) job->client.cancelled = service->shared.has_cancelled = true;
    pthread_cond_broadcast(&service->shared.work);
    pthread_mutex_unlock(&service->shared.mutex);
}

void service_resume(struct service *service, service_ticket ticket) {
    pthread_mutex_lock(&service->shared.mutex);
    struct job *job = find_job(service, ticket);
    if (job != NULL) job->client.resumed = true;
    pthread_cond_broadcast(&service->shared.work);
    pthread_mutex_unlock(&service->shared.mutex);
}

void service_drain(struct service *service, double seconds) {
    pthread_mutex_lock(&service->shared.mutex);
    service->shared.draining = true;
    service->shared.drain_deadline = clock_seconds() + seconds;
    pthread_cond_broadcast(&service->shared.work);
    pthread_mutex_unlock(&service->shared.mutex);
}

bool service_wait(struct service *service, double seconds) {
    struct timespec until = after(seconds);
    pthread_mutex_lock(&service->shared.mutex);
    while (service->shared.job_count > 0)
        if (pthread_cond_timedwait(&service->shared.idle, &service->shared.mutex, &until) == ETIMEDOUT) break;
    bool waited = service->shared.job_count == 0;
    pthread_mutex_unlock(&service->shared.mutex);
    return waited;
}

enum status service_call(struct service *service, service_function *function, void *context, struct error *error) {
    struct service_caller caller = {.function = function, .context = context};
    pthread_mutex_lock(&service->shared.mutex);
    if (service->shared.stopping) {
        pthread_mutex_unlock(&service->shared.mutex);
        return error_set(error, STATUS_INTERRUPTED, "the server is stopping");
    }
    caller.next = service->shared.callers;
    service->shared.callers = &caller;
    pthread_cond_broadcast(&service->shared.work);
    while (!caller.finished) pthread_cond_wait(&service->shared.idle, &service->shared.mutex);
    pthread_mutex_unlock(&service->shared.mutex);
    return caller.refused ? error_set(error, STATUS_FAILED, "there is no engine") : STATUS_OK;
}

/* Until the first of the queue is admitted, as if the tokens that wait were computed at the rates of late. */
uint32_t service_wait_estimate(struct service *service) {
    enum { ANSWER_TOKENS = 128 }; /* a guess of what an answer has */
    pthread_mutex_lock(&service->shared.mutex);
    const struct service_levels *now = &service->shared.published.levels;
    double prompt_tokens = 0, seconds = 0;
    for (const struct job *job = service->shared.queue; job != NULL; job = job->next)
        prompt_tokens += (double)(job->request.prompt_count - job->sharing.common);
    if (now->prefill_rate > 0) seconds += prompt_tokens / now->prefill_rate;
    if (now->decode_rate > 0) seconds += (double)service->shared.queue_count * ANSWER_TOKENS / now->decode_rate;
    double share = fmax((double)service->shared.queue_count, 1);
    pthread_mutex_unlock(&service->shared.mutex);
    seconds = fmin(fmax(ceil(seconds / share), 1), WAIT_MAX_SECONDS);
    return (uint32_t)seconds;
}

#define ROW(KIND, UNIT, MEMBER, NAME, HELP) COUNTER_ROW(KIND, UNIT, struct service_statistics, MEMBER, NAME, HELP)
static const struct counter counter_rows[] = {
    ROW(LEVEL, ITEMS, levels.queued, "requests_queued", "Requests that wait for a slot."),
    ROW(LEVEL, ITEMS, levels.prefilling, "requests_prefilling", "Requests whose prompt is computed."),
    ROW(LEVEL, ITEMS, levels.decoding, "requests_decoding", "Requests that are answered."),
    ROW(LEVEL, ITEMS, levels.paused, "requests_paused", "Requests whose client does not take what is there."),
    ROW(LEVEL, BYTES, levels.queued_bytes, "queued_bytes", "Memory of the requests that wait."),
    ROW(LEVEL, ITEMS, levels.draining, "draining", "1: the server is stopping."),
    ROW(TOTAL, ITEMS, submitted, "requests_submitted", "Requests taken."),
    ROW(TOTAL, ITEMS, refused, "requests_refused", "Requests not taken: full, or stopping."),
    ROW(TOTAL, ITEMS, cancelled, "requests_cancelled", "Requests whose client left."),
    ROW(TOTAL, ITEMS, tokens.prompt, "prompt_tokens", "Tokens of the prompts of admitted requests."),
    ROW(TOTAL, ITEMS, tokens.reused, "reused_tokens", "Of these, tokens whose KV came from memory or saved documents."),
    ROW(TOTAL, ITEMS, tokens.prefill, "prefill_tokens", "Tokens of prompts that were computed."),
    ROW(TOTAL, ITEMS, tokens.recomputed, "recomputed_tokens",
        "Tokens computed once more, after a preemption or damage."),
    ROW(TOTAL, ITEMS, tokens.answer, "answer_tokens", "Tokens sampled."),
    ROW(TOTAL, ITEMS, tokens.drafted, "drafted_tokens", "Tokens of drafts, of which a pass has rows beside a step's."),
    ROW(TOTAL, ITEMS, tokens.accepted, "accepted_tokens", "Of these, those that the answer went on with."),
    ROW(TOTAL, ITEMS, steps, "steps", "Decode steps, of all sequences together."),
    ROW(TOTAL, ITEMS, slices, "slices", "Slices of prompts."),
    ROW(TOTAL, ITEMS, preemptions, "preemptions", "Requests that gave up their slot for a while."),
    ROW(TOTAL, ITEMS, unloaded, "unloaded_sequences", "Sequences that left memory because no request used them."),
    ROW(TOTAL, ITEMS, recoveries, "recoveries", "Recoveries from damaged documents."),
    ROW(TOTAL, SECONDS, prefill_seconds, "prefill_seconds", "Time of computing prompts."),
    ROW(TOTAL, SECONDS, decode_seconds, "decode_seconds", "Time of decode steps."),
    ROW(LEVEL, PER_SECOND, levels.prefill_rate, "prefill_tokens_per_second", "Of late."),
    ROW(LEVEL, PER_SECOND, levels.decode_rate, "decode_tokens_per_second", "Of late."),
    ROW(LEVEL, ITEMS, levels.resident, "resident_sequences", "Sequences in memory without a request."),
    ROW(LEVEL, ITEMS, levels.resident_tokens, "resident_tokens", "Their tokens."),
    ROW(LEVEL, ITEMS, levels.running_tokens, "running_tokens", "Tokens of the requests that run."),
    ROW(LEVEL, BYTES, levels.kv_used_bytes, "kv_used_bytes", "Memory of the KV cache in use."),
    ROW(LEVEL, BYTES, levels.kv_device_bytes, "kv_device_bytes", "KV and key index in the device's own memory."),
    ROW(LEVEL, BYTES, levels.kv_unit_bytes, "kv_unit_bytes", "The device's slots, into which units of 8 tokens come."),
};
#undef ROW
const struct counter_table service_counters = COUNTER_TABLE("", struct service_statistics, counter_rows);

struct service_statistics service_get_statistics(struct service *service) {
    pthread_mutex_lock(&service->shared.mutex);
    struct service_statistics statistics = service->shared.published;
    statistics.levels.queued = service->shared.queue_count;
    statistics.levels.queued_bytes = service->shared.queue_bytes;
    statistics.submitted = service->shared.submitted;
    statistics.refused = service->shared.refused;
    statistics.cancelled = service->shared.cancelled;
    statistics.levels.draining = service->shared.draining;
    pthread_mutex_unlock(&service->shared.mutex);
    return statistics;
}
