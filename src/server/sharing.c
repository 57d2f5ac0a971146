/* sharing: requests whose prompts begin alike.  One reads, the others wait in the queue until what they share with it
 * is there, and begin with that: with its chunks where all KV is in memory, behind its document where documents are
 * saved.
 *
 *   queued -> (waits for a reader) -> admitted with the shared tokens
 *   reader -> its client leaves -> reads on without one, up to what is still waited for -> ends
 *
 *   1  Who waits shares at least a chunk of tokens that the reader has not read yet, and waits no longer than it would
 *      take to read what both share beside the reader.
 *   2  A reader has a slot and computes.  So nobody waits for one who waits.
 *   3  A reader that ends, fails or is preempted is nobody's any more: who waited looks again, and one of them reads.
 */
#include <string.h>

#include "base/checked.h"
#include "server/service_internal.h"

enum {
    SHARED_MIN = KV_CHUNK_TOKENS, /* less is soon computed, and no search finds it in documents */
    BESIDE = 2,                   /* two that compute take twice as long */
};

/* Tokens of the prompt that others can begin with: computed, or to be computed, as theirs would be. */
static size_t lendable_tokens(const struct job *job) {
    size_t count = 0;
    if (job->history.count == 0) return job->request.prompt_count;
    while (count < job->request.prompt_count && job_origin(job, count) == ORIGIN_DENSE) count++;
    return count;
}

static size_t common_tokens(const token_id *a, size_t a_count, const token_id *b, size_t b_count) {
    const size_t count = min_size(a_count, b_count);
    size_t common = 0;
    while (common < count && a[common] == b[common]) common++;
    return common;
}

/* ---- who waits ---- */

static bool is_reader(const struct service *service, const struct job *job) {
    return job->state == JOB_PREFILL && !job->request.prompt_log_probabilities && job->answer.sequence != NULL &&
           !job_has_logits(job) && (engine_shares(service->engine) || sequence_saves(job->answer.sequence));
}

/* Each pair of jobs is compared once: what they share does not change. */
static struct job *compare_readers(const struct service *service, struct job *job) {
    struct job *reader = NULL;
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *other = service->running.jobs[i];
        if (!is_reader(service, other) || strcmp(other->request.owner, job->request.owner) != 0) continue;
        if (other->admission > job->sharing.compared) {
            const size_t common =
                common_tokens(job->tokens.ids, job_shareable_tokens(job), other->tokens.ids, lendable_tokens(other));
            if (common > job->sharing.common) {
                job->sharing.common = common;
                job->sharing.reader = other->admission;
            }
        }
        if (other->admission == job->sharing.reader) reader = other;
    }
    job->sharing.compared = service->shared.admissions;
    return reader;
}

/* The running job that shares most with a queued one; NULL: none. */
static struct job *find_reader(const struct service *service, struct job *job) {
    struct job *reader = compare_readers(service, job);
    if (reader != NULL || job->sharing.reader == 0) return reader;
    /* It reads no more; another one may. */
    job->sharing.reader = job->sharing.compared = job->sharing.common = 0;
    return compare_readers(service, job);
}

/* Behind which token of it the reader will stop first where the other one can begin: behind what both share, unless the
 * rest of its prompt is short, or its segment, which others cannot enter, goes further. */
static size_t stop_of(const struct job *reader, size_t common) {
    const size_t wanted = job_wanted_tokens(reader), stored = reader->answer.stored.count;
    size_t done;
    const size_t begun = stored + sequence_paused_tokens(reader->answer.sequence, &done);
    if (begun > common) return begun;
    return wanted - common < SHARED_MIN ? wanted : common;
}

/* Whether it is worth waiting for the reader: decided once, as what is left to read becomes less, and so does what it
 * spares. */
static bool is_worth(const struct job *job, const struct job *reader) {
    const size_t stored = reader->answer.stored.count, stop = stop_of(reader, job->sharing.common);
    if (job->sharing.common < stored + SHARED_MIN) return false;
    const size_t left = stop > reader->progress.done ? stop - reader->progress.done : 0;
    return left <= BESIDE * (job->sharing.common - stored);
}

bool sharing_waits(struct service *service, struct job *job) {
    if (job->was_admitted || job->request.prompt_log_probabilities || service->engine == NULL) return false;
    const struct job *reader = find_reader(service, job);
    if (reader == NULL || job->sharing.common <= reader->answer.stored.count) return false;
    if (job->sharing.awaits != reader->admission && is_worth(job, reader)) job->sharing.awaits = reader->admission;
    return job->sharing.awaits == reader->admission;
}

/* ---- who reads ---- */

void sharing_plan(struct service *service) {
    for (size_t i = 0; i < service->running.count; i++) {
        struct job *job = service->running.jobs[i];
        job->sharing.stop_first = job->sharing.stop = job->sharing.awaited = 0;
    }
    pthread_mutex_lock(&service->shared.mutex);
    for (struct job *job = service->shared.queue; job != NULL; job = job->next) {
        if (job->client.cancelled || !sharing_waits(service, job)) continue;
        struct job *reader = find_reader(service, job);
        const size_t stop = stop_of(reader, job->sharing.common);
        if (reader->sharing.awaited++ == 0 || stop < reader->sharing.stop_first) reader->sharing.stop_first = stop;
    }
    /* Those that can begin soon behind the first one wait with it: each stop is a pass over the weights. */
    for (struct job *job = service->shared.queue; job != NULL; job = job->next) {
        if (job->client.cancelled || !sharing_waits(service, job)) continue;
        struct job *reader = find_reader(service, job);
        const size_t stop = stop_of(reader, job->sharing.common);
        if (stop < reader->sharing.stop_first + SHARED_MIN && stop > reader->sharing.stop) reader->sharing.stop = stop;
    }
    pthread_mutex_unlock(&service->shared.mutex);
}

bool sharing_reads_on(struct service *service, struct job *job) {
    if (job->sharing.awaited == 0 || !is_reader(service, job)) return false;
    struct error error;
    (void)error_set(&error, STATUS_INTERRUPTED, "cancelled");
    job_tell_done(job, service, STOP_INTERRUPTED, &error);
    pthread_mutex_lock(&service->shared.mutex);
    job->client.cancelled = false;
    job->ticket = 0;
    pthread_mutex_unlock(&service->shared.mutex);
    return true;
}

void sharing_end(struct service *service) {
    for (size_t i = 0; i < service->running.count;) {
        struct job *job = service->running.jobs[i];
        if (job->client.is_told && (job->sharing.awaited == 0 || !is_reader(service, job)))
            job_end_running(service, job, STOP_INTERRUPTED, NULL);
        else
            i++;
    }
}
