/* resident: sequences that stay in memory after their request, for the next turn of a conversation. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "platform/clock.h"
#include "server/service_internal.h"

static void remove_at(struct service *service, size_t index) {
    ASSERT(index < service->resident_count);
    struct resident *residents = service->residents;
    memmove(residents + index, residents + index + 1, (service->resident_count - index - 1) * sizeof *residents);
    service->resident_count--;
}

static void drop(struct service *service, size_t index) {
    struct resident *resident = &service->residents[index];
    sequence_destroy(resident->sequence);
    token_list_deinit(&resident->stored);
    token_list_deinit(&resident->origins);
    token_list_deinit(&resident->begun);
    remove_at(service, index);
}

/* Whether a goes before b: what a request of low priority left, then what was used longest ago.  What is being written
 * goes later, as its end has to be waited for, and what a preempted request goes on with is last. */
static bool goes_first(const struct resident *a, const struct resident *b) {
    if ((a->ticket != 0) != (b->ticket != 0)) return b->ticket != 0;
    const bool is_flushed = sequence_is_flushed(a->sequence);
    if (is_flushed != sequence_is_flushed(b->sequence)) return is_flushed;
    if (a->priority != b->priority) return a->priority == SERVICE_LOW;
    return a->used < b->used;
}

/* SIZE_MAX: there is none. */
static size_t find_victim(const struct service *service) {
    size_t victim = service->resident_count > 0 ? 0 : SIZE_MAX;
    for (size_t i = 1; i < service->resident_count; i++)
        if (goes_first(&service->residents[i], &service->residents[victim])) victim = i;
    return victim;
}

bool resident_evict(struct service *service) {
    const size_t victim = find_victim(service);
    if (victim == SIZE_MAX) return false;
    drop(service, victim);
    return true;
}

static bool is_full(const struct service *service) {
    return service->running.count + service->resident_count >= service->sequence_capacity;
}

void resident_clear(struct service *service) {
    while (service->resident_count > 0) drop(service, service->resident_count - 1);
}

/* What no other prompt has. */
static void drop_chosen(struct resident *resident) {
    const size_t whole = (size_t)sequence_cut_of(resident->sequence, sequence_whole_tokens(resident->sequence));
    if (whole >= resident->stored.count) return;
    sequence_truncate(resident->sequence, whole);
    resident->stored.count = resident->origins.count = whole;
}

/* A paused segment is not complete: it goes. */
static void forget_begun(struct resident *resident) {
    if (resident->begun.count == 0) return;
    sequence_truncate(resident->sequence, sequence_length(resident->sequence));
    token_list_deinit(&resident->begun);
}

/* What is too short to be saved is soon computed again. */
static bool may_leave(const struct service *service, struct resident *resident) {
    struct sequence *sequence = resident->sequence;
    struct error ignored; /* it stays */
    forget_begun(resident);
    drop_chosen(resident);
    if (sequence_length(sequence) == 0) return true;
    if (engine_saves(service->engine) && sequence_length(sequence) < KV_CHUNK_TOKENS) return true;
    return sequence_save(sequence, &ignored) == STATUS_OK && sequence_is_saved(sequence) &&
           sequence_is_flushed(sequence) && /* else a later turn sees it */
           sequence_flush(sequence, &ignored) == STATUS_OK && sequence_is_saved(sequence);
}

void resident_unload_idle(struct service *service) {
    if (service->options.idle_ms == 0) return;
    const double before = clock_seconds() - service->options.idle_ms * 1e-3;
    for (size_t i = service->resident_count; i > 0; i--) {
        struct resident *resident = &service->residents[i - 1];
        if (resident->ticket != 0 || resident->used_seconds > before || !may_leave(service, resident)) continue;
        drop(service, i - 1);
        service->statistics.unloaded++;
        if (service->running.count + service->resident_count == 0) engine_give_back_memory(service->engine);
    }
}

enum status resident_warm(struct service *service, bool *more, struct error *error) {
    *more = false;
    for (size_t i = service->resident_count; i > 0 && !*more; i--)
        TRY(sequence_warm(service->residents[i - 1].sequence, more, error));
    return STATUS_OK;
}

static size_t shared_tokens(const struct job *job, const struct resident *resident) {
    size_t shared = 0;
    const struct sequence *sequence = resident->sequence;
    size_t limit = job_shareable_tokens(job);
    if (resident->ticket == 0) limit = min_size(limit, (size_t)sequence_whole_tokens(sequence));
    while (shared < limit && shared < resident->stored.count && resident->stored.ids[shared] == job->tokens.ids[shared])
        shared++;
    if (shared == resident->stored.count || resident->ticket != 0) return shared;
    return (size_t)sequence_cut_of(sequence, shared);
}

static bool same_ids(const token_id *a, const token_id *b, size_t count) {
    return count == 0 || memcmp(a, b, count * sizeof *a) == 0;
}

/* The job has all tokens of the resident one, those of its paused segment included. */
static bool goes_on(const struct job *job, const struct resident *resident) {
    const struct token_list *stored = &resident->stored, *begun = &resident->begun;
    size_t done;
    return begun->count > 0 && sequence_paused_tokens(resident->sequence, &done) == begun->count &&
           job->history.count == 0 && strcmp(resident->owner, job->request.owner) == 0 &&
           strcmp(resident->document_name, job->request.document_name) == 0 &&
           job_wanted_tokens(job) >= stored->count + begun->count &&
           same_ids(job->tokens.ids, stored->ids, stored->count) &&
           same_ids(job->tokens.ids + stored->count, begun->ids, begun->count);
}

/* True where documents are saved and the job asks for another answer to a prompt whose last answer was not saved. */
static bool is_asked_again(const struct job *job, const struct resident *resident, size_t shared) {
    return job->logits != NULL && shared == job->request.prompt_count && !sequence_is_saved(resident->sequence) &&
           sequence_cuts_at(resident->sequence, shared);
}

/* Whether the sequence may be cut back to what it shares with the job.  A sequence that is saved is not cut: the job
 * attaches to its document instead.  Of any other one what is cut off is lost, and every conversation begins like every
 * other.  So the cut must take less than it leaves, or the job ask once more, or the place be needed in any case.  A
 * sequence that is saved, but for what is behind the cut, goes on in its document. */
static bool may_cut(const struct service *service, const struct job *job, size_t index, size_t shared) {
    const struct resident *resident = &service->residents[index];
    if (engine_saves(service->engine))
        return is_asked_again(job, resident, shared) || sequence_cut_stays_saved(resident->sequence, shared);
    if (is_full(service) && index == find_victim(service)) return true;
    if (job->request.priority == SERVICE_LOW && resident->priority != SERVICE_LOW) return false;
    return shared > resident->stored.count - shared || shared == job_shareable_tokens(job);
}

static bool may_take(const struct service *service, const struct job *job, size_t index, size_t shared) {
    const struct resident *resident = &service->residents[index];
    if (resident->ticket != 0) return resident->ticket == job->ticket;
    if (goes_on(job, resident)) return true;
    if (strcmp(resident->owner, job->request.owner) != 0 || shared == 0) return false;
    /* What is uploaded becomes a document of that name, whatever was cancelled with the same prefix. */
    if (job->request.document_name[0] != '\0' && strcmp(resident->document_name, job->request.document_name) != 0)
        return false;
    return shared == resident->stored.count || may_cut(service, job, index, shared);
}

static void take_over(struct service *service, struct job *job, size_t index, size_t shared) {
    struct resident *resident = &service->residents[index];
    struct answer *answer = &job->answer;
    token_list_deinit(&answer->stored);
    token_list_deinit(&answer->origins);
    answer->sequence = resident->sequence;
    answer->stored = resident->stored;
    answer->origins = resident->origins;
    if (!goes_on(job, resident)) {
        answer_truncate(answer, shared);
        if (resident->ticket == 0) sequence_begin_suffix(answer->sequence);
    }
    token_list_deinit(&resident->begun);
    remove_at(service, index);
}

void resident_forget_document(struct service *service, const char *owner, uint64_t document) {
    for (size_t i = service->resident_count; i > 0; i--) {
        const struct resident *resident = &service->residents[i - 1];
        if (resident->ticket != 0 || strcmp(resident->owner, owner) != 0) continue;
        if (kv_sequence_uses_document(sequence_kv(resident->sequence), document)) drop(service, i - 1);
    }
}

/* The resident with the longest prefix of the job's prompt; SIZE_MAX: there is none. */
static size_t find_best(const struct service *service, const struct job *job, size_t *shared_count) {
    size_t best = SIZE_MAX, most = 0;
    for (size_t i = 0; i < service->resident_count && !job->request.prompt_log_probabilities; i++) {
        size_t shared = shared_tokens(job, &service->residents[i]);
        if (!may_take(service, job, i, shared)) continue;
        if (goes_on(job, &service->residents[i])) shared += service->residents[i].begun.count;
        if (best != SIZE_MAX && shared <= most) continue;
        best = i;
        most = shared;
    }
    *shared_count = most;
    return best;
}

enum resident_place resident_place_of(const struct service *service, const struct job *job) {
    size_t shared;
    if (find_best(service, job, &shared) != SIZE_MAX) return RESIDENT_SERVES;
    const size_t victim = is_full(service) ? find_victim(service) : SIZE_MAX;
    const bool waits = victim != SIZE_MAX && !sequence_is_flushed(service->residents[victim].sequence);
    return waits ? RESIDENT_WRITES : RESIDENT_NONE;
}

/* There is one place, and another prompt behind the same document wants it: the document stays. */
static bool adopt(struct service *service, struct job *job) {
    struct error ignored; /* it is destroyed, and the prompt attaches to what is saved */
    uint64_t kept = 0;
    if (service->sequence_capacity > 1 || service->resident_count == 0 || job->request.prompt_log_probabilities ||
        job->request.document_name[0] != '\0') /* that is saved */
        return false;
    const struct resident *resident = &service->residents[0];
    if (resident->ticket != 0 || strcmp(resident->owner, job->request.owner) != 0) return false;
    const size_t count = job_shareable_tokens(job);
    if (sequence_adopt(resident->sequence, job->tokens.ids, count, &kept, &ignored) != STATUS_OK || kept == 0)
        return false;
    take_over(service, job, 0, (size_t)kept);
    return true;
}

/* One that the job begins like, and whose own answer is not saved, would keep its document from being continued. */
static void release_documents(struct service *service, const struct job *job) {
    if (!engine_saves(service->engine)) return;
    for (size_t i = service->resident_count; i > 0; i--) {
        const struct resident *resident = &service->residents[i - 1];
        const uint64_t whole = sequence_whole_tokens(resident->sequence);
        if (resident->ticket != 0 || strcmp(resident->owner, job->request.owner) != 0 ||
            whole == resident->stored.count)
            continue;
        const size_t shared = shared_tokens(job, resident);
        if (shared > 0 && shared == sequence_cut_of(resident->sequence, whole)) drop(service, i - 1);
    }
}

enum { LENT_MIN = KV_CHUNK_TOKENS }; /* less is soon computed */

struct lender {
    const struct sequence *sequence;
    size_t common;
};

static void consider(struct lender *best, const struct job *job, const struct sequence *sequence,
                     const struct token_list *stored, const struct token_list *origins) {
    const size_t whole = min_size(stored->count, (size_t)sequence_whole_tokens(sequence)),
                 limit = min_size(job_shareable_tokens(job), whole);
    size_t common = 0;
    while (common < limit && job->tokens.ids[common] == stored->ids[common] && origins->ids[common] == ORIGIN_DENSE)
        common++;
    common = (size_t)sequence_cut_of(sequence, common);
    if (common > best->common) *best = (struct lender){sequence, common};
}

/* Of the sequences in memory the one that shares most with the job's prompt. */
static struct lender find_lender(const struct service *service, const struct job *job) {
    struct lender best = {.common = 0};
    if (!engine_shares(service->engine) || job->request.prompt_log_probabilities || job->history.count > 0) return best;
    for (size_t i = 0; i < service->running.count; i++) {
        const struct job *other = service->running.jobs[i];
        if (other != job && other->answer.sequence != NULL && strcmp(other->request.owner, job->request.owner) == 0)
            consider(&best, job, other->answer.sequence, &other->answer.stored, &other->answer.origins);
    }
    for (size_t i = 0; i < service->resident_count; i++) {
        const struct resident *resident = &service->residents[i];
        if (strcmp(resident->owner, job->request.owner) == 0)
            consider(&best, job, resident->sequence, &resident->stored, &resident->origins);
    }
    return best;
}

static bool lends_more(const struct service *service, const struct job *job, size_t than) {
    return find_lender(service, job).common >= than + LENT_MIN;
}

/* A new sequence begins with what another one has, which goes on. */
static enum status begin_shared(struct service *service, struct job *job, struct error *error) {
    const struct lender lender = find_lender(service, job);
    struct answer *answer = &job->answer;
    if (lender.common < LENT_MIN) return STATUS_OK;
    TRY(sequence_share(answer->sequence, lender.sequence, lender.common, error));
    for (size_t i = 0; i < lender.common; i++) TRY(answer_note_stored(answer, job->tokens.ids[i], ORIGIN_DENSE, error));
    return STATUS_OK;
}

enum status resident_take(struct service *service, struct job *job, struct error *error) {
    size_t shared;
    const size_t best = find_best(service, job, &shared);
    if (best != SIZE_MAX && !lends_more(service, job, shared)) {
        take_over(service, job, best, shared);
        return STATUS_OK;
    }
    if (adopt(service, job)) return STATUS_OK;
    release_documents(service, job);
    while (is_full(service))
        if (!resident_evict(service)) break;
    TRY(sequence_create(&job->answer.sequence, service->engine, error));
    return begin_shared(service, job, error);
}

/* Tokens of the segment in which the job's prefill has paused.  It is dropped where there is no memory for them. */
static struct token_list take_begun(struct job *job) {
    const struct answer *answer = &job->answer;
    const token_id *ids = job->tokens.ids + answer->stored.count;
    struct token_list begun = {0};
    struct error ignored;
    size_t done;
    const size_t count = sequence_paused_tokens(answer->sequence, &done);
    for (size_t i = 0; i < count; i++)
        if (token_list_append(&begun, ids[i], &ignored) != STATUS_OK) break;
    if (begun.count < count || count == 0) {
        token_list_deinit(&begun);
        sequence_truncate(answer->sequence, sequence_length(answer->sequence));
    }
    return begun;
}

void resident_leave(struct service *service, struct job *job) {
    struct answer *answer = &job->answer;
    struct sequence *sequence = answer->sequence;
    if (sequence == NULL) return;
    const uint64_t length = sequence_length(sequence);
    struct token_list begun = take_begun(job);
    answer->sequence = NULL;
    if ((length == 0 && begun.count == 0) || length != answer->stored.count || job->request.prompt_log_probabilities ||
        service->resident_count == ENGINE_SEQUENCES_MAX) {
        token_list_deinit(&begun);
        sequence_destroy(sequence);
        return;
    }
    struct resident *resident = &service->residents[service->resident_count++];
    *resident = (struct resident){.sequence = sequence,
                                  .stored = answer->stored,
                                  .origins = answer->origins,
                                  .begun = begun,
                                  .priority = job->request.priority,
                                  .used = service->turn,
                                  .used_seconds = clock_seconds()};
    snprintf(resident->owner, sizeof resident->owner, "%s", job->request.owner);
    snprintf(resident->document_name, sizeof resident->document_name, "%s", job->request.document_name);
    answer->stored = answer->origins = (struct token_list){0};
}
