/* passes: what the running jobs compute next.
 *
 *   a slice of one prompt, or several short prompts together, -> a step of all jobs that decode
 *   or a slice of what an observer makes of its last step
 *   before them: the first token of a prompt whose logits are known
 *
 * A slice goes to the owner who had the least computing time, and of its prompts to the one that is read soonest.
 * Where attention is full the step and the short prompts, or a part of one, are one pass over the weights.
 */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "platform/clock.h"
#include "server/service_internal.h"

/* ---- steps ---- */

/* Of a slice, or of the prompts' part of a shared pass; and of both. */
static void note_prompts(struct service *service, struct rate *rate, double tokens, double seconds) {
    rate_note(rate, tokens, seconds);
    rate_note(&service->rates.prompt, tokens, seconds);
    service->statistics.levels.prefill_rate = rate_per_second(&service->rates.prompt);
}

/* An observer has work on the last step.  Not of a job whose tokens are stored again: it sees that step once more. */
static bool is_behind(const struct job *job) {
    return job->observes && job->answer.stored.count + 1 >= job->tokens.count;
}

static bool is_stepper(const struct job *job) {
    if (job->state == JOB_SAVE || is_behind(job) || job_has_logits(job)) return false;
    return job->state == JOB_DECODE ? !job->client.paused : job_origin(job, job->answer.stored.count) == ORIGIN_STEP;
}

/* Jobs whose next token goes through a step: those that decode, and those that store again what a step had stored.
 * Those that the disk has failed step alone. */
static size_t find_steppers(struct service *service, struct job **steppers) {
    size_t count = 0;
    for (size_t i = 0; i < service->running.count; i++)
        if (is_stepper(service->running.jobs[i]) && !job_is_alone(service->running.jobs[i]))
            steppers[count++] = service->running.jobs[i];
    return count;
}

/* The one that had the least computing time. */
static struct job *find_alone(struct service *service) {
    struct job *best = NULL;
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *job = service->running.jobs[i];
        if (is_stepper(job) && job_is_alone(job) && (best == NULL || job->times.computed < best->times.computed))
            best = job;
    }
    return best;
}

/* It got on where the disk had failed it. */
static void note_progress(struct job *job) {
    if (job->failed_at != SIZE_MAX && job->answer.stored.count > job->failed_at) job->failed_at = SIZE_MAX;
}

/* The step's token is stored.  What follows is sampled, unless it had been before.  Returns whether the job goes on
 * now. */
static bool take_step(struct service *service, struct job *job, const float *logits) {
    struct error error = {.status = STATUS_OK};
    struct answer *answer = &job->answer;
    enum status status = answer_note_stored(answer, job->tokens.ids[answer->stored.count], ORIGIN_STEP, &error);
    note_progress(job);
    bool known = answer->stored.count < job->tokens.count;
    if (known) service->statistics.tokens.recomputed++;
    if (answer->stored.count + 1 >= job->tokens.count) job->state = JOB_DECODE;
    if (!known && job->times.decode_since == 0) job->times.decode_since = clock_seconds();
    if (status == STATUS_OK && !known) status = job_take(job, service, logits, &error);
    const bool goes_on = status == STATUS_OK && answer->stop == STOP_NONE && !job->client.paused;
    if (status != STATUS_OK)
        job_fail_running(service, job, &error);
    else if (answer->stop != STOP_NONE && !job->observes)
        job_end_running(service, job, answer->stop, NULL);
    return goes_on;
}

/* The rows of a step, each for the observer of its job. */
struct observed_step {
    struct job *const *jobs;
    const struct model_config *config;
};

static void note_rows(void *context, const struct attention_event *event) {
    const struct observed_step *step = context;
    const struct model_config *config = step->config;
    for (size_t i = 0; i < event->item_count; i++) {
        const struct service_observer *observer = &step->jobs[i]->request.observer;
        if (observer->note == NULL) continue;
        struct attend_item item = event->items[i];
        const struct layer_config *layer = &config->layers[event->layer_index];
        const struct kv_geometry kv = layer->kv;
        item.row_first = 0;
        observer->note(observer->context,
                       &(struct attention_event){.layer_index = event->layer_index,
                                                 .row_count = 1,
                                                 .q = event->q + i * layer->head_count * kv.k_dimension,
                                                 .k = event->k + i * kv.kv_head_count * kv.k_dimension,
                                                 .v = event->v + i * kv.kv_head_count * kv.v_dimension,
                                                 .attended = event->attended + i * layer->head_count * kv.v_dimension,
                                                 .positions = event->positions + i,
                                                 .items = &item,
                                                 .sequences = event->sequences + i,
                                                 .item_count = 1});
    }
}

static bool are_observed(struct job *const *jobs, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (jobs[i]->request.observer.note != NULL) return true;
    return false;
}

static enum status run_step(struct service *service, struct job *const *steppers, size_t count, const float **logits,
                            struct error *error) {
    struct sequence *sequences[ENGINE_SEQUENCES_MAX];
    token_id tokens[ENGINE_SEQUENCES_MAX];
    struct observed_step observed = {.jobs = steppers, .config = engine_config(service->engine)};
    for (size_t i = 0; i < count; i++) {
        sequences[i] = steppers[i]->answer.sequence;
        tokens[i] = steppers[i]->tokens.ids[steppers[i]->answer.stored.count];
    }
    const bool is_observed = are_observed(steppers, count);
    if (is_observed) engine_set_attention_observer(service->engine, note_rows, &observed);
    enum status status = engine_step(service->engine, sequences, tokens, count, logits, error);
    if (is_observed) engine_set_attention_observer(service->engine, NULL, NULL);
    return status;
}

static void fail_all(struct service *service, struct job *const *jobs, size_t count, const struct error *error) {
    for (size_t i = 0; i < count; i++) job_fail_running(service, jobs[i], error);
}

enum { FETCHED_STEPS = 64 }; /* between two readings */

void passes_count_fetched(struct service *service) {
    struct fetch_counts fetched; /* a failure is left to requests, of which none is under way */
    if (engine_fetch_counts(service->engine, &fetched, NULL) == STATUS_OK) service->statistics.fetched = fetched;
}

static void step(struct service *service, struct job *const *steppers, size_t count) {
    if (count == 0) return;
    const float *logits;
    struct error error = {.status = STATUS_OK};
    double began = clock_seconds();
    enum status status = run_step(service, steppers, count, &logits, &error);
    double seconds = clock_seconds() - began;
    if (status != STATUS_OK) {
        if (!service_repair(service, steppers, count, status, &error)) fail_all(service, steppers, count, &error);
        return;
    }
    if (count == 1) draft_learn(&steppers[0]->answer.draft, 0, 0, seconds);
    if (service->statistics.steps++ % FETCHED_STEPS == 0) passes_count_fetched(service);
    service->statistics.decode_seconds += seconds;
    rate_note(&service->rates.step, (double)count, seconds);
    service->statistics.levels.decode_rate = rate_per_second(&service->rates.step);
    for (size_t i = 0; i < count; i++) {
        account_charge(service, steppers[i], seconds / (double)count);
        steppers[i]->observes = steppers[i]->request.observer.note != NULL;
        (void)take_step(service, steppers[i], logits + i * service->vocabulary_size);
    }
}

/* A job that runs alone drafts: others would wait for its rows. */
static size_t draft(const struct service *service, struct job *job, token_id tokens[ENGINE_AHEAD_MAX]) {
    const bool is_next = job->answer.tokens.count > 0 && job->answer.stored.count + 1 == job->tokens.count;
    if (service->running.count > 1 || !is_next || job->request.observer.note != NULL) return 1;
    return answer_draft(&job->answer, &job->request.generation, tokens);
}

static void step_ahead(struct service *service, struct job *job, const token_id *tokens, size_t count) {
    const float *logits;
    struct error error = {.status = STATUS_OK};
    const double began = clock_seconds();
    enum status status = engine_step_ahead(service->engine, job->answer.sequence, tokens, count, &logits, &error);
    const double seconds = clock_seconds() - began;
    size_t kept = 1;
    if (status != STATUS_OK) {
        if (!service_repair(service, &job, 1, status, &error)) fail_all(service, &job, 1, &error);
        return;
    }
    account_charge(service, job, seconds);
    bool goes_on;
    while ((goes_on = take_step(service, job, logits)) && answer_goes_on(&job->answer, tokens, count, kept)) {
        status = sequence_keep_next(job->answer.sequence, &error);
        if (status != STATUS_OK) break;
        logits += service->vocabulary_size;
        kept++;
    }
    if (status != STATUS_OK) job_fail_running(service, job, &error);
    if (goes_on && status == STATUS_OK) /* else it may be gone */
        draft_learn(&job->answer.draft, count - 1, kept - 1, seconds);
    struct service_statistics *statistics = &service->statistics;
    statistics->steps++;
    statistics->tokens.drafted += count - 1;
    statistics->tokens.accepted += kept - 1;
    statistics->decode_seconds += seconds;
    rate_note(&service->rates.step, (double)kept, seconds);
    statistics->levels.decode_rate = rate_per_second(&service->rates.step);
}

static void step_all(struct service *service) {
    struct job *steppers[ENGINE_SEQUENCES_MAX];
    token_id tokens[ENGINE_AHEAD_MAX];
    const size_t count = find_steppers(service, steppers);
    const size_t drafted = count == 1 ? draft(service, steppers[0], tokens) : 1;
    if (drafted > 1)
        step_ahead(service, steppers[0], tokens, drafted);
    else
        step(service, steppers, count);
}

/* One of them a turn. */
static void step_alone(struct service *service) {
    struct job *alone = find_alone(service);
    if (alone == NULL) return;
    step(service, &alone, 1);
}

/* ---- slices of prompts ---- */

/* Seconds until the prompt is read, by the rate of late, less those since it was admitted: in this order prompts that
 * came together have their first tokens one after another, not all with the last; a short one does not wait for a long
 * one, nor a long one forever for short ones. */
static double prompt_order(const struct service *service, const struct job *job, double now) {
    const double rate = service->statistics.levels.prefill_rate > 0 ? service->statistics.levels.prefill_rate : 1;
    const size_t wanted = job_wanted_tokens(job);
    const size_t left = wanted > job->progress.done ? wanted - job->progress.done : 0;
    return (double)left / rate - (now - job->times.admitted);
}

static bool is_prompt(const struct job *job) {
    return job->state == JOB_PREFILL && !job_has_logits(job) &&
           job_origin(job, job->answer.stored.count) != ORIGIN_STEP;
}

/* Whether a is read before b: by owner, who had less computing time, then in order. */
static bool goes_before(const struct service *service, const struct job *a, const struct job *b, double now) {
    if (strcmp(a->request.owner, b->request.owner) == 0)
        return prompt_order(service, a, now) < prompt_order(service, b, now);
    return account_seconds(service, a) < account_seconds(service, b);
}

static struct job *find_prompt(struct service *service) {
    struct job *best = NULL;
    const double now = clock_seconds();
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *job = service->running.jobs[i];
        if (is_prompt(job) && (best == NULL || goes_before(service, job, best, now))) best = job;
    }
    return best;
}

struct slice {
    struct service *service;
    struct job *job;
    size_t first;               /* of the tokens, in the job's */
    double deadline, looked_at; /* looked_at: when it last was asked whether it is over */
};

static double slice_seconds(const struct service *service) { return service->options.slice_ms * 1e-3; }

static bool is_cancelled(struct service *service, struct job *job) {
    pthread_mutex_lock(&service->shared.mutex);
    bool cancelled = (job->client.cancelled && job->sharing.awaited == 0) || service->shared.stopping;
    pthread_mutex_unlock(&service->shared.mutex);
    return cancelled;
}

/* Within a segment: a cancelled one pauses otherwise, so that the same prompt goes on there (resident.c). */
static bool cannot_pause(const struct service *service, const struct job *job) {
    return engine_reads_weights(service->engine) || job->request.prompt_log_probabilities;
}

static bool slice_progress(void *context, uint64_t done, uint64_t total) {
    const struct slice *slice = context;
    struct job *job = slice->job;
    (void)total;
    job->progress.done = slice->first + (size_t)done;
    job_tell_progress(job);
    return cannot_pause(slice->service, job) && is_cancelled(slice->service, job);
}

/* A client has left, whose slot is wanted back; or somebody else wants to compute and the slice's time is over, or will
 * be before it is asked again: as long again as since it was asked last. */
static bool slice_is_over(void *context) {
    struct slice *slice = context;
    struct service *service = slice->service;
    const double now = clock_seconds(), next = now + (now - slice->looked_at);
    slice->looked_at = now;
    pthread_mutex_lock(&service->shared.mutex);
    const bool leaves = service->shared.has_cancelled || service->shared.stopping;
    const bool waits = service->running.count > 1 || service->shared.queue != NULL || service->shared.callers != NULL;
    pthread_mutex_unlock(&service->shared.mutex);
    return leaves || (waits && next >= slice->deadline);
}

static bool slice_pauses(void *context) {
    struct slice *slice = context;
    return !engine_reads_weights(slice->service->engine) && slice_is_over(context);
}

/* Rows a layer at a time such that a slice has several places to pause at, by the rate of late; 0: nobody waits. */
static size_t slice_block_size(struct service *service) {
    enum { PAUSES = 4, ROWS_MIN = 16 };
    if (service->running.count < 2) return 0;
    double rate = rate_per_second(&service->rates.slice); /* tokens through all layers */
    if (rate <= 0) return ROWS_MIN;
    double layers = (double)engine_config(service->engine)->layer_count;
    double rows = rate * layers * slice_seconds(service) / PAUSES;
    size_t size = ROWS_MIN;
    while ((double)(2 * size) <= rows) size *= 2;
    return size;
}

/* The logits behind token `index` of the run: the log-probability of the token that follows it. */
static enum status slice_each(void *context, uint64_t index, const float *logits, struct error *error) {
    const struct slice *slice = context;
    struct job *job = slice->job;
    const struct service_listener *listener = &job->client.listener;
    (void)error;
    if (listener->prompt_token == NULL) return STATUS_OK;
    size_t at = slice->first + (size_t)index;
    if (at == 0)
        listener->prompt_token(listener->context,
                               &(struct service_prompt_token){.id = job->tokens.ids[0], .log_probability = NAN});
    if (at + 1 == job->request.prompt_count) return STATUS_OK;
    token_id id = job->tokens.ids[at + 1];
    float probability = sampler_top_of(logits, slice->service->vocabulary_size, id, job->top, job->request.top_count);
    listener->prompt_token(listener->context, &(struct service_prompt_token){.index = at + 1,
                                                                             .id = id,
                                                                             .log_probability = probability,
                                                                             .top = job->top,
                                                                             .top_count = job->request.top_count});
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
    service->statistics.tokens.prefill += length - first;
    for (size_t i = first; i < length; i++) {
        bool selects = was_selecting || (i >= selecting && i < selecting_end);
        if (i < job->history.count) service->statistics.tokens.recomputed++;
        TRY(answer_note_stored(answer, job->tokens.ids[i], selects ? ORIGIN_SELECTS : ORIGIN_DENSE, error));
    }
    return STATUS_OK;
}

/* The prompt is stored, all of it. */
static void take_prompt(struct service *service, struct job *job, const float *logits) {
    struct error error = {.status = STATUS_OK};
    job->state = job->request.generation.token_max == 0 ? JOB_SAVE : JOB_DECODE;
    if (job->answer.tokens.count > 0) return; /* sampled before a preemption */
    if (logits != NULL && logits != job->logits && job->request.prompt_count >= KV_CHUNK_TOKENS &&
        job->request.priority != SERVICE_LOW)
        prompt_logits_note(&service->prompts, job->request.owner, job->tokens.ids, job->request.prompt_count, logits,
                           service->vocabulary_size);
    if (job->client.is_told) {
        job_end_running(service, job, STOP_INTERRUPTED, NULL);
        return;
    }
    if (job->state == JOB_SAVE) return;
    job->times.decode_since = clock_seconds();
    if (job_take(job, service, logits, &error) != STATUS_OK)
        job_fail_running(service, job, &error);
    else if (job->answer.stop != STOP_NONE)
        job_end_running(service, job, job->answer.stop, NULL);
}

/* The same, but for what others can begin with once the job has read so far. */
static size_t stop_behind(const struct job *job, size_t first) {
    const size_t end = run_end(job, first);
    size_t done;
    const size_t begun = sequence_paused_tokens(job->answer.sequence, &done);
    if (begun > 0 && job->sharing.awaited > 0)
        return first + begun; /* what is stored for others is committed at once */
    const size_t stop = job->sharing.stop > first && job->sharing.stop < end ? job->sharing.stop : end;
    const bool is_turn = job->request.drops_answer && job->request.turn_end > first && job->request.turn_end < stop;
    return is_turn ? job->request.turn_end : stop; /* it is saved up to there */
}

static void prefill_slice(struct service *service, struct job *job) {
    struct error error = {.status = STATUS_OK};
    double began = clock_seconds();
    size_t first = job->answer.stored.count, last = stop_behind(job, first), before = job->progress.done;
    struct slice slice = {
        .service = service, .job = job, .first = first, .deadline = began + slice_seconds(service), .looked_at = began};
    const struct prefill_request request = {.tokens = job->tokens.ids + first,
                                            .token_count = last - first,
                                            .tokens_after = run_end(job, first) - last,
                                            .progress = slice_progress,
                                            .progress_context = &slice,
                                            .pauses = slice_pauses,
                                            .pauses_context = &slice,
                                            .block_size = slice_block_size(service),
                                            .each = job->request.prompt_log_probabilities ? slice_each : NULL,
                                            .each_context = &slice,
                                            .selects = job_origin(job, first) == ORIGIN_SELECTS};
    const float *logits = NULL;
    enum status status = engine_prefill(service->engine, job->answer.sequence, &request, &logits, &error);
    double seconds = clock_seconds() - began;
    account_charge(service, job, seconds);
    service->statistics.slices++;
    service->statistics.prefill_seconds += seconds;
    if (job->progress.done > before)
        note_prompts(service, &service->rates.slice, (double)(job->progress.done - before), seconds);
    struct error unnoted = {.status = STATUS_OK};
    if (note_run(service, job, first, &unnoted) != STATUS_OK && status == STATUS_OK) {
        status = unnoted.status;
        error = unnoted;
    }
    note_progress(job);
    if (status != STATUS_OK) {
        if (!service_repair(service, &job, 1, status, &error)) job_fail_running(service, job, &error);
    } else if (job->answer.stored.count == job_wanted_tokens(job)) {
        take_prompt(service, job, logits);
    }
}

/* A prompt that was asked before, and whose KV is there. */
static struct job *find_known(const struct service *service) {
    for (size_t i = 0; i < service->running.count; i++)
        if (job_has_logits(service->running.jobs[i])) return service->running.jobs[i];
    return NULL;
}

static void take_known(struct service *service) {
    for (struct job *job; (job = find_known(service)) != NULL;) take_prompt(service, job, job->logits);
}

/* ---- slices of what observers do ---- */

/* The one that had the least computing time. */
static struct job *find_behind(struct service *service) {
    struct job *best = NULL;
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *job = service->running.jobs[i];
        if (is_behind(job) && (best == NULL || job->times.computed < best->times.computed)) best = job;
    }
    return best;
}

static void observe_slice(struct service *service, struct job *job) {
    const double began = clock_seconds();
    struct slice slice = {
        .service = service, .job = job, .deadline = began + slice_seconds(service), .looked_at = began};
    const struct service_observer *observer = &job->request.observer;
    job->observes = observer->work(observer->context, job->answer.sequence, slice_is_over, &slice);
    account_charge(service, job, clock_seconds() - began);
    if (!job->observes && job->answer.stop != STOP_NONE) job_end_running(service, job, job->answer.stop, NULL);
}

/* ---- short prompts together ---- */

struct together {
    struct job *jobs[ENGINE_SEQUENCES_MAX];
    struct prefill_part parts[ENGINE_SEQUENCES_MAX];
    size_t count, step_count, rows;
};

/* What is stored then is saved. */
static bool ends_at(const struct job *job, size_t token_count) {
    return token_count == job->sharing.stop || (job->request.drops_answer && token_count == job->request.turn_end);
}

static void add(struct together *together, struct job *job, size_t token_count, size_t tokens_after, bool is_step) {
    together->jobs[together->count] = job;
    together->parts[together->count++] =
        (struct prefill_part){.sequence = job->answer.sequence,
                              .tokens = job->tokens.ids + job->answer.stored.count,
                              .token_count = token_count,
                              .tokens_after = tokens_after,
                              .saves = ends_at(job, job->answer.stored.count + token_count),
                              .is_step = is_step};
    together->rows += token_count;
    together->step_count += is_step;
}

/* Rows of a pass: those of its steps, and as many of prompts as nine tenths of a slice compute at the recent rate.  So
 * it lasts nearly as long as a step and a slice one after the other, or a little longer where those are a few rows;
 * prompts that leave a late pass cost more than the tenth.  Where weights are read for each pass, rows cost little. */
static size_t together_rows(const struct service *service, size_t step_count) {
    enum { BESIDE_MIN = 8, ALONE_MIN = 32, OF_TEN = 9 };
    const size_t max = engine_batch_size(service->engine);
    const size_t least = step_count > 0 ? step_count + BESIDE_MIN : ALONE_MIN;
    if (engine_reads_weights(service->engine)) return max;
    const double rate =
        rate_per_second(service->rates.beside.count > 0 ? &service->rates.beside : &service->rates.slice);
    const double rows = (double)step_count + rate * slice_seconds(service) * OF_TEN / 10;
    return rows <= (double)least ? min_size(least, max) : rows < (double)max ? (size_t)rows : max;
}

/* Seconds of a pass that its prompts took: what it took beyond a recent step.  At most their part of the rows, as the
 * first rows of a pass cost most; at least half of that, in case recent steps ran on a busy machine. */
static double prompt_seconds(const struct service *service, const struct together *together, double seconds) {
    const double share = seconds * (double)(together->rows - together->step_count) / (double)together->rows;
    const double rate = service->statistics.levels.decode_rate;
    const double more = rate > 0 ? seconds - (double)together->step_count / rate : share;
    return fmin(fmax(more, share / 2), share);
}

/* The rest of a prompt, if it or a part of it can share a pass; 0: it cannot. */
static size_t short_rest(const struct job *job) {
    const size_t first = job->answer.stored.count;
    if (job->state != JOB_PREFILL || job->request.prompt_log_probabilities || job->failed_at != SIZE_MAX ||
        job_origin(job, first) != ORIGIN_DENSE || run_end(job, first) < job_wanted_tokens(job) ||
        !sequence_prefills_together(job->answer.sequence))
        return 0;
    return job_wanted_tokens(job) - first;
}

/* Tokens of a prompt for a pass with room for so many; 0: none.  Beside steps, which wait for its end, a pass is
 * filled with a part of a prompt, unless that is long: each part reads all KV before it, which costs as much as the
 * weights. */
static size_t part_of(const struct together *together, const struct job *job, size_t room) {
    enum { LENGTH_MAX = 4096 };
    const size_t rest = short_rest(job), first = job->answer.stored.count;
    const size_t part = rest > 0 ? stop_behind(job, first) - first : 0;
    if (part <= room) return part;
    return together->step_count > 0 && job_wanted_tokens(job) <= LENGTH_MAX ? room : 0;
}

static bool has(const struct together *together, const struct job *job) {
    for (size_t i = 0; i < together->count; i++)
        if (together->jobs[i] == job) return true;
    return false;
}

/* Of the prompts that have no part in the pass yet the one that is read first of those that can. */
static struct job *find_next(struct service *service, const struct together *together, size_t room) {
    struct job *best = NULL;
    const double now = clock_seconds();
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *job = service->running.jobs[i];
        if (has(together, job) || part_of(together, job, room) == 0) continue;
        if (best == NULL || goes_before(service, job, best, now)) best = job;
    }
    return best;
}

/* From the prompt on whose turn it is.  In the order in which they are read they fill the pass, since its first rows
 * cost most: the last one may have a part of itself there, and goes on in the next pass as the first one. */
static void find_together(struct service *service, struct job *prompt, struct together *together) {
    struct job *steppers[ENGINE_SEQUENCES_MAX];
    const size_t step_count = find_steppers(service, steppers);
    if (engine_mixes(service->engine) && !are_observed(steppers, step_count))
        for (size_t i = 0; i < step_count; i++) add(together, steppers[i], 1, 0, true);
    const size_t rows_max = together_rows(service, step_count);
    for (struct job *next = prompt; next != NULL && together->rows < rows_max;) {
        const size_t room = rows_max - together->rows, part = part_of(together, next, room);
        if (part == 0) return;
        add(together, next, part, short_rest(next) - part, false);
        next = find_next(service, together, room - part);
    }
}

/* A pass whose prompts may leave it. */
struct pass {
    struct service *service;
    double began, deadline;
    double step_seconds; /* of a pass of its steps alone, by the rate of late */
    bool is_cut;         /* a client has left */
};

/* Without a step that waits for its end it has no deadline. */
static struct pass begin_pass(struct service *service, const struct together *together) {
    struct job *steppers[ENGINE_SEQUENCES_MAX];
    const double rate = service->statistics.levels.decode_rate;
    struct pass pass = {.service = service, .began = clock_seconds(), .deadline = INFINITY};
    if (rate > 0) pass.step_seconds = (double)together->step_count / rate;
    if (find_steppers(service, steppers) > 0) pass.deadline = pass.began + pass.step_seconds + slice_seconds(service);
    return pass;
}

static bool has_left(struct service *service) {
    pthread_mutex_lock(&service->shared.mutex);
    bool left = service->shared.stopping;
    for (size_t i = 0; i < service->running.count; i++) left = left || service->running.jobs[i]->client.cancelled;
    pthread_mutex_unlock(&service->shared.mutex);
    return left;
}

/* A client has left, whose slot is wanted back; or the pass is slower than its rows were chosen for: with one more
 * layer of prompts it would be late, and much later at its end. */
static bool pass_is_over(void *context, size_t done, size_t layer_count) {
    enum { SLACK = 10 };
    struct pass *pass = context;
    pass->is_cut = has_left(pass->service);
    if (pass->is_cut) return true;
    const double now = clock_seconds(), layer = (now - pass->began) / (double)done;
    const double steps = pass->step_seconds / (double)layer_count, left = (double)(layer_count - done);
    return now + layer + steps * (left - 1) > pass->deadline &&
           now + layer * left > pass->deadline + slice_seconds(pass->service) / SLACK;
}

/* Tokens of its prompts that a pass was enough for. */
static double done_tokens(const struct together *together) {
    double done = 0;
    for (size_t i = together->step_count; i < together->count; i++) {
        size_t begun;
        const size_t paused = sequence_paused_tokens(together->jobs[i]->answer.sequence, &begun);
        done += (double)(paused > 0 ? begun : together->parts[i].token_count);
    }
    return done;
}

static void take_together(struct service *service, struct job *job, const float *logits) {
    struct error error = {.status = STATUS_OK};
    if (note_run(service, job, job->answer.stored.count, &error) != STATUS_OK) {
        job_fail_running(service, job, &error);
        return;
    }
    size_t begun;
    (void)sequence_paused_tokens(job->answer.sequence, &begun);
    job->progress.done = job->answer.stored.count + begun;
    job_tell_progress(job);
    if (job->answer.stored.count == job_wanted_tokens(job)) take_prompt(service, job, logits);
}

static void run_together(struct service *service, const struct together *together) {
    struct error error = {.status = STATUS_OK};
    struct service_statistics *statistics = &service->statistics;
    const float *logits;
    struct pass pass = begin_pass(service, together);
    const struct prefill_pauses pauses = {.asks = pass_is_over, .context = &pass};
    enum status status =
        engine_prefill_together(service->engine, together->parts, together->count, &pauses, &logits, &error);
    const double seconds = clock_seconds() - pass.began, row_seconds = seconds / (double)together->rows;
    if (status != STATUS_OK) {
        if (!service_repair(service, together->jobs, together->count, status, &error))
            fail_all(service, together->jobs, together->count, &error);
        return;
    }
    const double prompt_rows = done_tokens(together);
    statistics->slices++;
    statistics->steps += together->step_count > 0;
    statistics->decode_seconds += row_seconds * (double)together->step_count;
    statistics->prefill_seconds += row_seconds * (double)(together->rows - together->step_count);
    if (!pass.is_cut)
        note_prompts(service, &service->rates.beside, prompt_rows, prompt_seconds(service, together, seconds));
    for (size_t i = 0; i < together->count; i++) {
        struct job *job = together->jobs[i];
        const float *own = logits != NULL ? logits + i * service->vocabulary_size : NULL;
        account_charge(service, job, row_seconds * (double)together->parts[i].token_count);
        if (together->parts[i].is_step)
            (void)take_step(service, job, own);
        else
            take_together(service, job, own);
    }
}

/* ---- all of them ---- */

bool passes_wait(struct service *service) {
    struct job *steppers[ENGINE_SEQUENCES_MAX];
    return find_known(service) != NULL || find_steppers(service, steppers) > 0 || find_alone(service) != NULL ||
           find_behind(service) != NULL || find_prompt(service) != NULL;
}

/* Steps come last, whichever way the turn goes: the time between two tokens is that of one turn. */
void passes_run(struct service *service) {
    struct together together = {.count = 0};
    take_known(service);
    step_alone(service);
    struct job *prompt = find_prompt(service);
    /* Prompts and observers take turns. */
    const bool observes = prompt == NULL || (!service->has_observed && find_behind(service) != NULL);
    service->has_observed = observes;
    if (!observes) find_together(service, prompt, &together);
    const bool mixes = together.step_count > 0 && together.count > together.step_count;
    struct job *behind = observes ? find_behind(service) : NULL;
    if (mixes || (together.step_count == 0 && together.count > 1))
        run_together(service, &together);
    else if (behind != NULL)
        observe_slice(service, behind);
    else if (prompt != NULL)
        prefill_slice(service, prompt);
    if (!mixes) step_all(service);
}
