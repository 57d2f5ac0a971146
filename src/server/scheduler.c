/* scheduler: one turn of the loop.
 *
 *   calls, cancelled jobs -> admission -> a step of all jobs that decode -> a slice of one prompt
 *
 * A slice goes to the prompt of the owner, and of it to the job, that had the least computing time.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "platform/clock.h"
#include "server/service_internal.h"

static void fail(struct service *service, struct job *job, const struct error *error) {
    job_end_running(service, job, error->status == STATUS_INTERRUPTED ? STOP_INTERRUPTED : STOP_FAILED,
                    error);
}

/* ---- the queue ---- */

static bool queue_remove(struct service *service, struct job *job) {
    for (struct job **at = &service->queue; *at != NULL; at = &(*at)->next)
        if (*at == job) {
            *at = job->next;
            job->next = NULL;
            service->queue_count--;
            service->queue_bytes -= job->bytes;
            return true;
        }
    return false;
}

/* The job that gets the next slot: no low priority before a normal one, then by owner, then who came first. */
static struct job *queue_head(struct service *service) {
    struct job *best = NULL;
    for (struct job *job = service->queue; job != NULL; job = job->next) {
        if (job->cancelled) continue;
        if (best == NULL || job->priority < best->priority ||
            (job->priority == best->priority &&
             account_seconds(service, job) < account_seconds(service, best)))
            best = job;
    }
    return best;
}

/* A cancelled job of the queue, taken out; NULL: there is none. */
static struct job *take_cancelled(struct service *service, bool all) {
    struct job *job = service->queue;
    while (job != NULL && !job->cancelled && !all) job = job->next;
    if (job != NULL) (void)queue_remove(service, job);
    return job;
}

static void end_queued(struct service *service, bool all, const char *why) {
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "%s", why);
    for (;;) {
        pthread_mutex_lock(&service->mutex);
        struct job *job = take_cancelled(service, all);
        pthread_mutex_unlock(&service->mutex);
        if (job == NULL) return;
        job_done(job, service, STOP_INTERRUPTED, &error);
    }
}

static void end_cancelled(struct service *service) {
    end_queued(service, false, "cancelled");
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "cancelled");
    for (size_t i = 0; i < service->running_count;) {
        struct job *job = service->running[i];
        pthread_mutex_lock(&service->mutex);
        bool cancelled = job->cancelled;
        if (job->resumed) job->paused = job->resumed = false;
        pthread_mutex_unlock(&service->mutex);
        if (cancelled)
            job_end_running(service, job, STOP_INTERRUPTED, &error);
        else
            i++;
    }
}

/* ---- admission ---- */

static void admit(struct service *service, struct job *job) {
    struct error error = {.status = STATUS_OK};
    double now = clock_seconds();
    job->queue_seconds += now - job->queued_since;
    account_open(service, job->owner);
    enum status status = service_need_engine(service, &error);
    if (status == STATUS_OK) status = resident_take(service, job, &error);
    job->state = JOB_PREFILL;
    pthread_mutex_lock(&service->mutex);
    service->running[service->running_count++] = job;
    pthread_mutex_unlock(&service->mutex);
    if (status == STATUS_OK) status = job_attach(job, service, &error);
    job->progress_done = job->answer.stored.count;
    if (job->was_admitted) {
        if (status != STATUS_OK) fail(service, job, &error);
        return;
    }
    job->admitted_at = now;
    if (status != STATUS_OK) {
        fail(service, job, &error);
        return;
    }
    job->was_admitted = true;
    job->reused = job->answer.stored.count;
    service->statistics.prompt_tokens += job->prompt_count;
    service->statistics.reused_tokens += job->reused;
    for (size_t i = 0; i < job->prompt_count; i++) sampler_accept(job->answer.sampler, job->tokens.ids[i]);
    const struct service_listener *listener = &job->listener;
    if (listener->admitted != NULL)
        listener->admitted(listener->context,
                           &(struct service_admission){job->prompt_count, job->reused, job->queue_seconds});
    if (listener->progress != NULL) listener->progress(listener->context, job->reused, job->prompt_count);
}

static void admit_all(struct service *service) {
    while (service->running_count < service->running_max) {
        pthread_mutex_lock(&service->mutex);
        struct job *job = queue_head(service);
        if (job != NULL) (void)queue_remove(service, job);
        pthread_mutex_unlock(&service->mutex);
        if (job == NULL) return;
        admit(service, job);
    }
}

/* The head of the queue has waited long, and somebody has decoded long: they change places. */
static void preempt(struct service *service) {
    double now = clock_seconds();
    if (service->running_count < service->running_max || service->engine == NULL ||
        !engine_saves(service->engine))
        return;
    pthread_mutex_lock(&service->mutex);
    const struct job *head = queue_head(service);
    bool waited = head != NULL && now - head->queued_since >= service->options.preempt_wait_ms * 1e-3;
    pthread_mutex_unlock(&service->mutex);
    struct job *victim = NULL;
    for (size_t i = 0; i < service->running_count && waited; i++) {
        struct job *job = service->running[i];
        if (job->state != JOB_DECODE || now - job->decode_since < service->options.preempt_run_ms * 1e-3)
            continue;
        if (victim == NULL || job->decode_since < victim->decode_since) victim = job;
    }
    if (victim != NULL) (void)service_preempt(service, victim);
}

/* ---- steps ---- */

/* Of several slices: one alone may be of few tokens. */
static void note_rate(double *rate, double now) { *rate = *rate > 0 ? 0.75 * *rate + 0.25 * now : now; }

/* Jobs whose next token goes through a step: those that decode, and those that store again what a step had stored. */
static size_t find_steppers(struct service *service, struct job **steppers) {
    size_t count = 0;
    for (size_t i = 0; i < service->running_count; i++) {
        struct job *job = service->running[i];
        bool steps = job->state == JOB_DECODE ? !job->paused
                                              : job_origin(job, job->answer.stored.count) == ORIGIN_STEP;
        if (steps) steppers[count++] = job;
    }
    return count;
}

/* The step's token is stored.  What follows is sampled, unless it had been before. */
static void take_step(struct service *service, struct job *job, const float *logits) {
    struct error error = {.status = STATUS_OK};
    struct answer *answer = &job->answer;
    enum status status =
        answer_note_stored(answer, job->tokens.ids[answer->stored.count], ORIGIN_STEP, &error);
    bool known = answer->stored.count < job->tokens.count;
    if (known) service->statistics.recomputed_tokens++;
    if (answer->stored.count + 1 >= job->tokens.count) job->state = JOB_DECODE;
    if (status == STATUS_OK && !known) status = job_take(job, service, logits, &error);
    if (status != STATUS_OK)
        fail(service, job, &error);
    else if (answer->stop != STOP_NONE)
        job_end_running(service, job, answer->stop, NULL);
}

static void fail_all(struct service *service, struct job *const *jobs, size_t count,
                     const struct error *error) {
    for (size_t i = 0; i < count; i++) fail(service, jobs[i], error);
}

static void step(struct service *service) {
    struct job *steppers[ENGINE_SEQUENCES_MAX];
    struct sequence *sequences[ENGINE_SEQUENCES_MAX];
    token_id tokens[ENGINE_SEQUENCES_MAX];
    size_t count = find_steppers(service, steppers);
    if (count == 0) return;
    for (size_t i = 0; i < count; i++) {
        sequences[i] = steppers[i]->answer.sequence;
        tokens[i] = steppers[i]->tokens.ids[steppers[i]->answer.stored.count];
    }
    const float *logits;
    struct error error = {.status = STATUS_OK};
    double began = clock_seconds();
    enum status status = engine_step(service->engine, sequences, tokens, count, &logits, &error);
    double seconds = clock_seconds() - began;
    if (status != STATUS_OK) {
        if (!service_repair(service, status, &error)) fail_all(service, steppers, count, &error);
        return;
    }
    service->statistics.steps++;
    service->statistics.decode_seconds += seconds;
    note_rate(&service->statistics.decode_rate, (double)count / seconds);
    for (size_t i = 0; i < count; i++) {
        account_charge(service, steppers[i], seconds / (double)count);
        take_step(service, steppers[i], logits + i * service->vocabulary_size);
    }
}

/* ---- slices of prompts ---- */

static struct job *find_prompt(struct service *service) {
    struct job *best = NULL;
    for (size_t i = 0; i < service->running_count; i++) {
        struct job *job = service->running[i];
        if (job->state != JOB_PREFILL || job_origin(job, job->answer.stored.count) == ORIGIN_STEP) continue;
        double mine = account_seconds(service, job), its = best != NULL ? account_seconds(service, best) : 0;
        bool same = best != NULL && strcmp(best->owner, job->owner) == 0;
        if (best == NULL || (same ? job->seconds < best->seconds : mine < its)) best = job;
    }
    return best;
}

struct slice {
    struct service *service;
    struct job *job;
    size_t first; /* of the tokens, in the job's */
    double deadline;
};

static bool is_cancelled(struct service *service, struct job *job) {
    pthread_mutex_lock(&service->mutex);
    bool cancelled = job->cancelled || service->stopping;
    pthread_mutex_unlock(&service->mutex);
    return cancelled;
}

static bool slice_progress(void *context, uint64_t done, uint64_t total) {
    const struct slice *slice = context;
    struct job *job = slice->job;
    const struct service_listener *listener = &job->listener;
    (void)total;
    job->progress_done = slice->first + (size_t)done;
    if (listener->progress != NULL && job->answer.tokens.count == 0)
        listener->progress(listener->context, job->progress_done, job->prompt_count);
    return is_cancelled(slice->service, job);
}

/* The slice's time is over, and somebody else wants to compute. */
static bool slice_pauses(void *context) {
    const struct slice *slice = context;
    struct service *service = slice->service;
    if (clock_seconds() < slice->deadline) return false;
    pthread_mutex_lock(&service->mutex);
    bool waits = service->running_count > 1 || service->queue != NULL || service->callers != NULL;
    pthread_mutex_unlock(&service->mutex);
    return waits;
}

/* Rows a layer at a time such that a slice has several places to pause at, by the rate of late; 0: nobody waits. */
static size_t slice_block_size(struct service *service) {
    enum { PAUSES = 4, ROWS_MIN = 32 };
    if (service->running_count < 2) return 0;
    double rate = service->statistics.prefill_rate; /* tokens through all layers */
    if (rate <= 0) return ROWS_MIN;
    double layers = (double)engine_config(service->engine)->layer_count;
    double rows = rate * layers * service->options.slice_ms * 1e-3 / PAUSES;
    size_t size = ROWS_MIN;
    while ((double)(2 * size) <= rows) size *= 2;
    return size;
}

/* The logits behind token `index` of the run: the log-probability of the token that follows it. */
static enum status slice_each(void *context, uint64_t index, const float *logits, struct error *error) {
    const struct slice *slice = context;
    struct job *job = slice->job;
    const struct service_listener *listener = &job->listener;
    (void)error;
    if (listener->prompt_token == NULL) return STATUS_OK;
    size_t at = slice->first + (size_t)index;
    if (at == 0)
        listener->prompt_token(listener->context, &(struct service_prompt_token){.id = job->tokens.ids[0],
                                                                                 .log_probability = NAN});
    if (at + 1 == job->prompt_count) return STATUS_OK;
    token_id id = job->tokens.ids[at + 1];
    float probability = sampler_top_of(logits, slice->service->vocabulary_size, id, job->top, job->top_count);
    listener->prompt_token(listener->context, &(struct service_prompt_token){.index = at + 1,
                                                                             .id = id,
                                                                             .log_probability = probability,
                                                                             .top = job->top,
                                                                             .top_count = job->top_count});
    return STATUS_OK;
}

/* Tokens from `first` on that are computed in the same way. */
static size_t run_end(const struct job *job, size_t first) {
    size_t end = first, limit = job_wanted_tokens(job);
    while (end < limit && job_origin(job, end) == job_origin(job, first)) end++;
    return end;
}

static enum status note_run(struct service *service, struct job *job, size_t first, struct error *error) {
    struct answer *answer = &job->answer;
    size_t length = (size_t)sequence_length(answer->sequence);
    size_t selecting = (size_t)sequence_reused_tokens(answer->sequence);
    size_t selecting_end = selecting + (size_t)sequence_selected_tokens(answer->sequence);
    bool was_selecting = job_origin(job, first) == ORIGIN_SELECTS;
    service->statistics.prefill_tokens += length - first;
    for (size_t i = first; i < length; i++) {
        bool selects = was_selecting || (i >= selecting && i < selecting_end);
        if (i < job->history.count) service->statistics.recomputed_tokens++;
        TRY(answer_note_stored(answer, job->tokens.ids[i], selects ? ORIGIN_SELECTS : ORIGIN_DENSE, error));
    }
    return STATUS_OK;
}

/* The prompt is stored, all of it. */
static void take_prompt(struct service *service, struct job *job, const float *logits) {
    struct error error = {.status = STATUS_OK};
    job->decode_since = clock_seconds();
    job->state = JOB_DECODE;
    if (job->answer.tokens.count > 0) return; /* sampled before a preemption */
    if (job->generation.token_max == 0) {     /* all that is wanted is that it is saved */
        const bool durable = sequence_flush(job->answer.sequence, &error) == STATUS_OK;
        job_end_running(service, job, STOP_LENGTH, durable ? NULL : &error);
        return;
    }
    if (job_take(job, service, logits, &error) != STATUS_OK)
        fail(service, job, &error);
    else if (job->answer.stop != STOP_NONE)
        job_end_running(service, job, job->answer.stop, NULL);
}

static void prefill_slice(struct service *service, struct job *job) {
    struct error error = {.status = STATUS_OK};
    double began = clock_seconds();
    size_t first = job->answer.stored.count, last = run_end(job, first), before = job->progress_done;
    struct slice slice = {
        .service = service, .job = job, .first = first, .deadline = began + service->options.slice_ms * 1e-3};
    const struct prefill_request request = {.tokens = job->tokens.ids + first,
                                            .token_count = last - first,
                                            .progress = slice_progress,
                                            .progress_context = &slice,
                                            .pauses = slice_pauses,
                                            .pauses_context = &slice,
                                            .block_size = slice_block_size(service),
                                            .each = job->prompt_log_probabilities ? slice_each : NULL,
                                            .each_context = &slice,
                                            .selects = job_origin(job, first) == ORIGIN_SELECTS};
    const float *logits = NULL;
    enum status status = engine_prefill(service->engine, job->answer.sequence, &request, &logits, &error);
    double seconds = clock_seconds() - began;
    account_charge(service, job, seconds);
    service->statistics.slices++;
    service->statistics.prefill_seconds += seconds;
    if (job->progress_done > before)
        note_rate(&service->statistics.prefill_rate, (double)(job->progress_done - before) / seconds);
    struct error unnoted = {.status = STATUS_OK};
    if (note_run(service, job, first, &unnoted) != STATUS_OK && status == STATUS_OK) {
        status = unnoted.status;
        error = unnoted;
    }
    if (status != STATUS_OK) {
        if (!service_repair(service, status, &error)) fail(service, job, &error);
    } else if (job->answer.stored.count == job_wanted_tokens(job)) {
        take_prompt(service, job, logits);
    }
}

/* ---- the turn ---- */

static void call_with_live(struct service *service, const struct service_caller *caller) {
    struct service_live live[2 * ENGINE_SEQUENCES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < service->running_count; i++)
        live[count++] = (struct service_live){service->running[i]->ticket, service->running[i]->owner,
                                              service->running[i]->answer.sequence};
    for (size_t i = 0; i < service->resident_count; i++)
        live[count++] = (struct service_live){0, service->residents[i].owner, service->residents[i].sequence};
    caller->function(caller->context, service->engine, live, count);
}

static void answer_callers(struct service *service) {
    pthread_mutex_lock(&service->mutex);
    struct service_caller *callers = service->callers;
    service->callers = NULL;
    pthread_mutex_unlock(&service->mutex);
    if (callers == NULL) return;
    for (struct service_caller *caller = callers; caller != NULL && service->engine != NULL;
         caller = caller->next)
        call_with_live(service, caller);
    pthread_mutex_lock(&service->mutex);
    for (struct service_caller *caller = callers, *next; caller != NULL; caller = next) {
        next = caller->next;
        caller->finished = true; /* from here on it is its caller's */
        caller->refused = service->engine == NULL;
    }
    pthread_cond_broadcast(&service->idle);
    pthread_mutex_unlock(&service->mutex);
}

/* Draining: what waits ends now, and what runs when its time is over. */
static void drain(struct service *service) {
    pthread_mutex_lock(&service->mutex);
    bool draining = service->draining, late = draining && clock_seconds() >= service->drain_deadline;
    pthread_mutex_unlock(&service->mutex);
    if (!draining) return;
    end_queued(service, true, "the server is stopping");
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "the server is stopping");
    while (late && service->running_count > 0)
        job_end_running(service, service->running[0], STOP_INTERRUPTED, &error);
}

static void publish(struct service *service) {
    struct service_statistics *statistics = &service->statistics;
    statistics->prefilling = statistics->decoding = statistics->paused = 0;
    statistics->resident_tokens = statistics->running_tokens = 0;
    statistics->resident = service->resident_count;
    for (size_t i = 0; i < service->running_count; i++) {
        const struct job *job = service->running[i];
        if (job->paused)
            statistics->paused++;
        else if (job->state == JOB_DECODE)
            statistics->decoding++;
        else
            statistics->prefilling++;
        statistics->running_tokens += job->answer.stored.count;
    }
    for (size_t i = 0; i < service->resident_count; i++)
        statistics->resident_tokens += service->residents[i].stored.count;
    if (service->engine != NULL) {
        statistics->kv_used_bytes = engine_kv_used_bytes(service->engine);
        statistics->tiers = engine_tier_statistics(service->engine);
    }
    pthread_mutex_lock(&service->mutex);
    service->published = *statistics;
    pthread_mutex_unlock(&service->mutex);
}

static bool has_work(struct service *service) {
    struct job *steppers[ENGINE_SEQUENCES_MAX];
    return find_steppers(service, steppers) > 0 || find_prompt(service) != NULL;
}

bool scheduler_turn(struct service *service) {
    service->turn++;
    answer_callers(service);
    end_cancelled(service);
    drain(service);
    preempt(service);
    admit_all(service);
    step(service);
    struct job *prompt = find_prompt(service);
    if (prompt != NULL) prefill_slice(service, prompt);
    publish(service);
    return has_work(service);
}

void scheduler_end(struct service *service) {
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "the server is stopping");
    end_queued(service, true, error.message);
    while (service->running_count > 0)
        job_end_running(service, service->running[0], STOP_INTERRUPTED, &error);
    resident_clear(service);
    answer_callers(service);
    publish(service);
}
