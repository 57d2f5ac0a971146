/* job: a request from its copy to its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "platform/clock.h"
#include "server/service_internal.h"

static enum status no_memory(struct error *error) {
    return error_set(error, STATUS_MEMORY, "no memory for the request");
}

static enum status check(const struct service *service, const struct service_request *request, struct error *error) {
    if (request->prompt_count == 0) return error_set(error, STATUS_USAGE, "the prompt is empty");
    if (request->prompt_count > service->context_size)
        return error_set(error, STATUS_USAGE, "the prompt has %zu tokens, the context holds %llu",
                         request->prompt_count, (unsigned long long)service->context_size);
    for (size_t i = 0; i < request->prompt_count; i++)
        if (request->prompt[i] < 0 || (size_t)request->prompt[i] >= service->vocabulary_size)
            return error_set(error, STATUS_USAGE, "token %zu of the prompt: id %d, expected 0 to %zu", i,
                             request->prompt[i], service->vocabulary_size - 1);
    if (request->top_count > SERVICE_TOP_MAX)
        return error_set(error, STATUS_USAGE, "%zu likeliest tokens: expected at most %d", request->top_count,
                         SERVICE_TOP_MAX);
    if (request->stop_count > SERVICE_STOPS_MAX)
        return error_set(error, STATUS_USAGE, "%zu stop strings: expected at most %d", request->stop_count,
                         SERVICE_STOPS_MAX);
    for (size_t i = 0; i < request->stop_count; i++)
        if (request->stops[i][0] == '\0') return error_set(error, STATUS_USAGE, "stop string %zu is empty", i);
    if (request->owner != NULL && strlen(request->owner) >= SERVICE_OWNER_MAX)
        return error_set(error, STATUS_USAGE, "owner: %zu bytes, expected at most %d", strlen(request->owner),
                         SERVICE_OWNER_MAX - 1);
    if (request->document_name != NULL && strlen(request->document_name) >= SERVICE_NAME_MAX)
        return error_set(error, STATUS_USAGE, "name of the document: %zu bytes, expected at most %d",
                         strlen(request->document_name), SERVICE_NAME_MAX - 1);
    return STATUS_OK;
}

static enum status copy_stops(struct job *job, const struct service_request *request, struct error *error) {
    if (request->stop_count == 0) return STATUS_OK;
    char **stops = calloc(request->stop_count, sizeof *stops);
    job->request.generation.stops = (const char *const *)stops;
    if (stops == NULL) return no_memory(error);
    for (size_t i = 0; i < request->stop_count; i++) {
        stops[i] = strdup(request->stops[i]);
        if (stops[i] == NULL) return no_memory(error);
        job->request.generation.stop_count = i + 1;
        job->request.bytes += strlen(stops[i]);
    }
    return STATUS_OK;
}

static enum status copy_prompt(struct job *job, const struct service_request *request, struct error *error) {
    job->tokens.ids = malloc(request->prompt_count * sizeof *job->tokens.ids);
    if (job->tokens.ids == NULL) return no_memory(error);
    memcpy(job->tokens.ids, request->prompt, request->prompt_count * sizeof *job->tokens.ids);
    job->tokens.count = job->tokens.capacity = job->request.prompt_count = request->prompt_count;
    job->request.bytes += request->prompt_count * sizeof *job->tokens.ids;
    return STATUS_OK;
}

/* The sampler is made at once, so that a wrong parameter is told at once; the sequence comes with the slot. */
static enum status copy_sampling(struct job *job, const struct service *service, const struct service_request *request,
                                 struct error *error) {
    job->request.sampling = request->sampling;
    if (request->greedy) job->request.sampling = (struct sampler_options){.top_p = 1, .repeat_penalty = 1};
    job->answer.seed = job->request.sampling.seed;
    job->request.bytes += job->request.sampling.bias_count * sizeof *job->request.biases;
    return sampler_create(&job->answer.sampler, &job->request.sampling, service->options.tokenizer,
                          service->vocabulary_size, error);
}

/* Appends whole characters of the answer, to be handed out with its token. */
static enum status take_text(void *context, const char *bytes, size_t length, struct error *error) {
    struct job *job = context;
    if (!text_append(&job->text, bytes, length))
        return error_set(error, STATUS_MEMORY, "no memory for the answer's text");
    return STATUS_OK;
}

static enum status job_init(struct job *job, struct service *service, const struct service_request *request,
                            struct error *error) {
    job->request.bytes = sizeof *job;
    job->request.generation =
        (struct generation){.engine = service->engine,
                            .tokenizer = service->options.tokenizer,
                            .token_max = request->has_token_max ? (int64_t)request->token_max : -1,
                            .ignore_end = request->ignore_end,
                            .draft_max = service->options.draft_max};
    job->request.log_probabilities = request->log_probabilities;
    job->request.prompt_log_probabilities = request->prompt_log_probabilities;
    job->request.turn_end = request->turn_end < request->prompt_count ? request->turn_end : 0;
    job->request.drops_answer = request->drops_answer && job->request.turn_end > 0;
    job->request.top_count = request->top_count;
    job->request.priority = request->priority;
    job->request.observer = request->observer;
    snprintf(job->request.owner, sizeof job->request.owner, "%s", request->owner != NULL ? request->owner : "");
    snprintf(job->request.document_name, sizeof job->request.document_name, "%s",
             request->document_name != NULL ? request->document_name : "");
    job->answer.sink = take_text;
    job->answer.sink_context = job;
    job->answer.utf8.replace = request->replaces_invalid;
    TRY(copy_prompt(job, request, error));
    TRY(copy_stops(job, request, error));
    return copy_sampling(job, service, request, error);
}

enum status job_create(struct job **job, struct service *service, const struct service_request *request,
                       const struct service_listener *listener, struct error *error) {
    *job = NULL;
    TRY(check(service, request, error));
    struct job *made = calloc(1, sizeof *made);
    if (made == NULL) return no_memory(error);
    enum status status = job_init(made, service, request, error);
    if (status != STATUS_OK) {
        job_destroy(made);
        return status;
    }
    made->client.listener = *listener;
    made->failed_at = SIZE_MAX;
    made->times.submitted = made->times.queued_since = clock_seconds();
    if (request->mask != NULL) {
        made->request.mask = *request->mask;
        made->request.has_mask = true;
        sampler_set_mask(made->answer.sampler, &made->request.mask);
    }
    *job = made;
    return STATUS_OK;
}

void job_destroy(struct job *job) {
    for (size_t i = 0; i < job->request.generation.stop_count; i++) free((char *)job->request.generation.stops[i]);
    free((void *)job->request.generation.stops);
    ASSERT(job->answer.sequence == NULL);
    answer_destroy(&job->answer);
    if (job->request.has_mask && job->request.mask.destroy != NULL)
        job->request.mask.destroy(job->request.mask.context);
    token_list_deinit(&job->tokens);
    token_list_deinit(&job->history);
    free(job->logits);
    text_deinit(&job->text);
    free(job);
}

void job_recall(struct job *job, struct service *service) {
    if (job->logits != NULL || job->answer.tokens.count > 0 || job->request.prompt_log_probabilities ||
        job->request.generation.token_max == 0)
        return;
    const float *logits =
        prompt_logits_find(&service->prompts, job->request.owner, job->tokens.ids, job->request.prompt_count);
    const size_t bytes = service->vocabulary_size * sizeof *logits;
    if (logits != NULL) job->logits = malloc(bytes);
    if (job->logits != NULL) memcpy(job->logits, logits, bytes);
}

enum token_origin job_origin(const struct job *job, size_t index) {
    if (index < job->history.count) return (enum token_origin)job->history.ids[index];
    return index < job->request.prompt_count ? ORIGIN_DENSE : ORIGIN_STEP;
}

#define DISK_WAIT_SECONDS 1.0

/* Saved documents are found by their first page. */
static bool shares_page(const struct job *job, const char *owner, const struct token_list *stored) {
    return strcmp(owner, job->request.owner) == 0 && stored->count >= KV_CHUNK_TOKENS &&
           job->tokens.count >= KV_CHUNK_TOKENS &&
           memcmp(stored->ids, job->tokens.ids, KV_CHUNK_TOKENS * sizeof *stored->ids) == 0;
}

bool job_awaits_disk(struct job *job, const struct service *service) {
    bool awaits = false;
    const enum resident_place place = resident_place_of(service, job);
    if (place != RESIDENT_NONE || job->request.prompt_log_probabilities) return place == RESIDENT_WRITES;
    for (size_t i = 0; i < service->resident_count; i++) {
        const struct resident *resident = &service->residents[i];
        if (shares_page(job, resident->owner, &resident->stored) && !sequence_is_flushed(resident->sequence))
            return true;
    }
    for (size_t i = 0; i < service->running.count; i++) {
        const struct job *other = service->running.jobs[i];
        if (!shares_page(job, other->request.owner, &other->answer.stored) ||
            sequence_is_flushed(other->answer.sequence))
            continue;
        if (other->state == JOB_SAVE) return true;
        awaits = true;
    }
    if (awaits && job->times.disk_deadline == 0) job->times.disk_deadline = clock_seconds() + DISK_WAIT_SECONDS;
    return awaits && clock_seconds() < job->times.disk_deadline;
}

/* What live sequences of the same owner have computed of the prompt can be found once it is durable. */
static void flush_relatives(struct service *service, const struct job *job) {
    struct error ignored;
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *other = service->running.jobs[i];
        if (other == job || other->answer.sequence == NULL) continue; /* one to which service_recover has not come */
        if (shares_page(job, other->request.owner, &other->answer.stored))
            (void)!sequence_flush(other->answer.sequence, &ignored); /* its own end tells */
    }
    for (size_t i = 0; i < service->resident_count; i++) {
        const struct resident *resident = &service->residents[i];
        if (shares_page(job, resident->owner, &resident->stored)) (void)!sequence_flush(resident->sequence, &ignored);
    }
}

enum status job_attach(struct job *job, struct service *service, struct error *error) {
    struct answer *answer = &job->answer;
    job->request.generation.engine = service->engine;
    sequence_set_turn(answer->sequence, job->request.turn_end, job->request.drops_answer);
    if (sequence_length(answer->sequence) > 0) return STATUS_OK; /* a resident one */
    answer->stored.count = answer->origins.count = 0;
    if (job->request.prompt_log_probabilities) return STATUS_OK;
    sequence_set_owner(answer->sequence, job->request.owner, job->request.document_name);
    flush_relatives(service, job);
    TRY(sequence_attach(answer->sequence, job->tokens.ids, job_shareable_tokens(job), error));
    for (size_t i = 0; i < sequence_length(answer->sequence); i++)
        TRY(answer_note_stored(answer, job->tokens.ids[i], job_origin(job, i), error));
    return STATUS_OK;
}

enum status job_remember(struct job *job, struct error *error) {
    const struct token_list *origins = &job->answer.origins;
    for (size_t i = job->history.count; i < origins->count; i++)
        TRY(token_list_append(&job->history, origins->ids[i], error));
    return STATUS_OK;
}

/* Hands out the text that is ready, with the token that completed it, if any. */
static void deliver(struct job *job, struct service_token *token) {
    token->bytes = job->text.bytes != NULL ? job->text.bytes : "";
    token->length = job->text.length;
    job->text.length = 0;
    if (job->client.listener.token == NULL ||
        job->client.listener.token(job->client.listener.context, token) != SERVICE_PAUSE)
        return;
    if (!job->client.paused) job->client.paused_since = clock_seconds();
    job->client.paused = true;
}

enum status job_take(struct job *job, struct service *service, const float *logits, struct error *error) {
    struct answer *answer = &job->answer;
    size_t count = answer->tokens.count;
    enum status status = answer_take(answer, &job->request.generation, logits, error);
    if (answer->tokens.count == count) return status; /* nothing was sampled */
    token_id id = answer->tokens.ids[count];
    struct service_token token = {.id = id, .is_end = answer->stop == STOP_END};
    if (status == STATUS_OK) status = token_list_append(&job->tokens, id, error);
    if (count == 0) job->times.first_token = clock_seconds();
    service->statistics.tokens.answer++;
    if (job->request.log_probabilities) {
        token.log_probability = sampler_top_of(logits, service->vocabulary_size, id, job->top, job->request.top_count);
        token.top = job->top;
        token.top_count = job->request.top_count;
    }
    deliver(job, &token);
    return status;
}

/* Text that was held back, of an answer that ends in between. */
static void deliver_rest(struct job *job) {
    struct error ignored;
    if (job->answer.tokens.count == 0) return;
    if (answer_finish(&job->answer, job->answer.stop, &ignored) != STATUS_OK) return;
    if (job->text.length > 0) deliver(job, &(struct service_token){.id = TOKEN_NONE});
}

static void count_down(struct service *service) {
    pthread_mutex_lock(&service->shared.mutex);
    service->shared.job_count--;
    if (service->shared.job_count == 0) pthread_cond_broadcast(&service->shared.idle);
    pthread_mutex_unlock(&service->shared.mutex);
}

void job_tell_progress(struct job *job) {
    const struct service_listener *listener = &job->client.listener;
    if (listener->progress == NULL || job->answer.tokens.count > 0 || job->progress.done < job->progress.told) return;
    job->progress.told = job->progress.done;
    listener->progress(listener->context, job->progress.done, job->request.prompt_count);
}

void job_tell_done(struct job *job, struct service *service, enum stop_reason reason, const struct error *error) {
    double now = clock_seconds();
    struct service_done done = {.reason = reason, .was_admitted = job->was_admitted, .notice = ""};
    if (error != NULL) done.error = *error;
    if (job->answer.stop == STOP_NONE) {
        job->answer.stop = reason;
        deliver_rest(job);
    }
    done.stop_index = reason == STOP_STRING ? job->answer.scan.found : 0;
    done.figures = (struct service_figures){.prompt_tokens = job->request.prompt_count,
                                            .reused_tokens = job->reused,
                                            .answer_tokens = job->answer.tokens.count,
                                            .preemptions = job->preemptions,
                                            .queue_seconds = job->times.queued};
    if (!job->was_admitted) {
        done.figures.queue_seconds = now - job->times.submitted;
    } else {
        double first = job->times.first_token > 0 ? job->times.first_token : now;
        done.figures.prefill_seconds = first - job->times.admitted;
        done.figures.decode_seconds = now - first;
    }
    struct error notice = {.message = ""};
    if (job->answer.sequence != NULL)
        snprintf(notice.message, sizeof notice.message, "%s", sequence_notice(job->answer.sequence));
    done.notice = notice.message;
    if (job->answer.sequence != NULL) done.document = sequence_document(job->answer.sequence);
    service->statistics.done[reason]++;
    if (job->client.listener.done != NULL) job->client.listener.done(job->client.listener.context, &done);
    job->client.listener = (struct service_listener){0};
    job->request.observer = (struct service_observer){0};
    job->client.is_told = true;
}

void job_done(struct job *job, struct service *service, enum stop_reason reason, const struct error *error) {
    if (!job->client.is_told) job_tell_done(job, service, reason, error);
    resident_leave(service, job);
    job_destroy(job);
    count_down(service);
}

void job_leave_running(struct service *service, struct job *job) {
    struct running_jobs *running = &service->running;
    size_t at = 0;
    while (running->jobs[at] != job) at++;
    memmove(running->jobs + at, running->jobs + at + 1, (running->count - at - 1) * sizeof(struct job *));
    running->count--;
}

void job_end_running(struct service *service, struct job *job, enum stop_reason reason, const struct error *error) {
    struct error ignored;
    pthread_mutex_lock(&service->shared.mutex);
    job_leave_running(service, job);
    service->running.max = service->options.parallel;
    pthread_mutex_unlock(&service->shared.mutex);
    if (job->state == JOB_DECODE && reason != STOP_FAILED && job->request.observer.note == NULL)
        (void)!sequence_save(job->answer.sequence, &ignored); /* its notice says why not */
    job_done(job, service, reason, error);
}

void job_fail_running(struct service *service, struct job *job, const struct error *error) {
    job_end_running(service, job, error->status == STATUS_INTERRUPTED ? STOP_INTERRUPTED : STOP_FAILED, error);
}

bool job_end_saved(struct service *service, bool waits) {
    size_t ended = 0;
    for (size_t i = 0; i < service->running.count;) {
        struct job *job = service->running.jobs[i];
        struct error error;
        if (job->state != JOB_SAVE || !(waits || sequence_is_flushed(job->answer.sequence))) {
            if (job->state == JOB_SAVE) service->awaits_disk = true;
            i++;
            continue;
        }
        const bool durable = sequence_flush(job->answer.sequence, &error) == STATUS_OK;
        job_end_running(service, job, STOP_LENGTH, durable ? NULL : &error);
        ended++;
    }
    return ended > 0;
}
