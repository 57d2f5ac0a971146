/* A service and its jobs, for the files of this folder:
 *
 *   service     the functions of service.h, and the thread
 *   job         a request: its copy, its callbacks, its end
 *   scheduler   a turn of the loop: admission, passes
 *   passes      steps, slices of prompts, short prompts together
 *   repair      preemption; what a failed step or slice asks for
 *   accounts    computing time by owner
 *   sharing     prompts that begin alike: one is read, the others wait
 *   resident    sequences that stay in memory without a request
 *   saved       saved documents, for other threads
 *   prompt_logits  the logits behind prompts that were asked of late (prompt_logits.h)
 *
 * The mutex guards what other threads touch: the queue of new jobs, the flags of jobs, the copy of the statistics.
 * Everything else is the service's thread's.
 */
#pragma once

#include <pthread.h>

#include "base/text.h"
#include "rates/rates.h"
#include "server/prompt_logits.h"
#include "server/service.h"

enum job_state {
    JOB_QUEUED,
    JOB_PREFILL, /* has a slot: tokens that exist are stored, by prefill or, after a preemption, by steps */
    JOB_DECODE,  /* the last token was sampled and is not stored */
    JOB_SAVE,    /* its prompt is stored, which is all that it wants, once that is durable */
};

/* What its client asked for: copies. */
struct job_request {
    size_t prompt_count;
    size_t turn_end; /* sequence_set_turn; 0: not known */
    bool drops_answer;
    struct generation generation; /* stops: owned copies */
    struct sampler_options sampling;
    struct token_bias *biases; /* owned */
    struct logit_mask mask;
    bool has_mask, log_probabilities, prompt_log_probabilities;
    size_t top_count;
    struct service_observer observer; /* zeros: none */
    enum service_priority priority;
    char owner[SERVICE_OWNER_MAX], document_name[SERVICE_NAME_MAX];
    uint64_t bytes; /* that it takes in the queue */
};

struct job_client {
    struct service_listener listener;
    bool cancelled, resumed; /* guarded by the mutex */
    bool paused;             /* it does not read; also in the queue */
    double paused_since;
    bool is_told; /* it has left, and the job reads for others */
};

/* Of the reading that jobs share whose prompts begin alike (sharing.c). */
struct job_sharing {
    /* In the queue, of the running job that reads what this one shares with it: its admission, 0: none; up to which
     * admission running jobs have been compared; for which one it waits; how many tokens both share. */
    uint64_t reader, compared, awaits;
    size_t common;
    /* While it runs: behind which token somebody can begin first, and behind which it stops for those that can begin
     * there, 0: it does not; how many wait for what it reads. */
    size_t stop_first, stop, awaited;
};

struct job_progress {
    size_t done, told; /* tokens of its prompt */
};

struct job_times {
    double submitted, queued_since, admitted, computed; /* computed: seconds of computing for it */
    double slot_since, decode_since; /* since it has its slot: its first new token; 0: it has made none */
    double queued, first_token;      /* queued: seconds in the queue */
    double disk_deadline;            /* until which it waits in the queue for the writes of others; 0: it does not */
};

struct job {
    service_ticket ticket;
    struct job *next;
    enum job_state state;
    struct job_client client;
    struct job_request request;
    struct token_list tokens; /* the prompt, then what was sampled */

    /* While it runs. */
    struct answer answer;
    bool was_admitted;
    bool observes; /* the observer's work on the last step is not done */
    size_t reused;
    struct job_progress progress;
    /* enum token_origin of tokens that were stored before a preemption or damage */
    struct token_list history;
    uint64_t admission; /* its number */
    struct job_sharing sharing;
    /* Owned; behind the prompt, which was asked before (prompt_logits.h); NULL: they are computed */
    float *logits;
    struct text text; /* whole characters not yet handed out */
    struct token_probability top[SERVICE_TOP_MAX];
    struct job_times times;
    uint32_t preemptions;
    /* Tokens that it had stored when the disk failed it; it steps alone until it has more.  SIZE_MAX: it did not. */
    size_t failed_at;
};

/* A sequence in memory that no request uses. */
struct resident {
    struct sequence *sequence;
    struct token_list stored, origins;
    /* Of the segment in which a cancelled prefill has paused: a prompt with these tokens, too, goes on there. */
    struct token_list begun;
    char owner[SERVICE_OWNER_MAX], document_name[SERVICE_NAME_MAX];
    enum service_priority priority; /* of the request that left it */
    uint64_t used;                  /* the number of the turn when it was left */
    double used_seconds;            /* the time then */
    service_ticket ticket;          /* of a preempted request, which goes on with it; 0: none */
};

/* Computing time by owner, for turns. */
struct owner_account {
    char owner[SERVICE_OWNER_MAX];
    double seconds;
};

struct service_caller {
    service_function *function;
    void *context;
    bool finished, refused;
    struct service_caller *next;
};

/* What other threads touch, under the mutex. */
struct service_shared {
    pthread_mutex_t mutex;
    pthread_cond_t work, idle; /* something to do; no job is left, or a call was made */
    struct job *queue;         /* in order of arrival */
    size_t queue_count;
    uint64_t queue_bytes;
    struct job *admitted; /* left the queue, and does not run yet; NULL: none */
    uint64_t admissions;  /* so far */
    service_ticket last_ticket;
    bool stopping, draining;
    bool has_cancelled; /* since the last turn of the loop looked for cancelled jobs */
    double drain_deadline;
    struct service_caller *callers;
    struct service_statistics published;
    size_t job_count; /* queued and running */
    uint64_t submitted, refused, cancelled;
};

struct service_rates {
    /* Of tokens of prompts: of a slice, which for a long prompt is mostly attention to what it has; of what a pass
     * takes longer for the rows of prompts; of both. */
    struct rate slice, beside, prompt;
    struct rate step; /* of tokens of steps */
};

struct running_jobs {
    struct job *jobs[ENGINE_SEQUENCES_MAX]; /* in order of admission; changed under the mutex */
    size_t count;
    size_t max; /* fewer than `parallel` where memory did not hold so many; until one ends */
};

struct owner_accounts {
    struct owner_account *items; /* owned */
    size_t count, capacity;
};

struct service {
    struct service_options options;
    size_t vocabulary_size, sequence_capacity;
    uint64_t context_size;
    pthread_t thread;
    struct service_shared shared;

    /* The thread's. */
    struct engine *engine;
    bool stays_cold;   /* reading ahead has failed (resident_warm) */
    bool has_observed; /* the last slice was of an observer */
    bool awaits_disk;  /* in this turn something waited for writes */
    struct service_rates rates;
    struct running_jobs running;
    struct resident residents[ENGINE_SEQUENCES_MAX];
    size_t resident_count;
    struct prompt_logits prompts;
    struct owner_accounts accounts;
    uint64_t turn;
    struct service_statistics statistics;
};

/* Its client does not take what is there.  Under the mutex. */
static inline bool job_is_unread(const struct job *job) { return job->client.paused && !job->client.resumed; }

/* job.c */
enum status job_create(struct job **job, struct service *service, const struct service_request *request,
                       const struct service_listener *listener, struct error *error) STATUS_CHECKED;
void job_destroy(struct job *job); /* the mask too, unless has_mask was cleared */
/* Tokens that the sequence must have before the next one is sampled. */
static inline size_t job_wanted_tokens(const struct job *job) {
    return job->tokens.count - (job->answer.tokens.count > 0);
}
/* Of these, those that may come from memory or a saved document: at least one is computed where logits are lacking. */
static inline size_t job_shareable_tokens(const struct job *job) {
    return job_wanted_tokens(job) - (job->answer.tokens.count == 0 && job->logits == NULL);
}
/* Whether all of the prompt is stored, and its logits are known: the first token can be sampled. */
static inline bool job_has_logits(const struct job *job) {
    return job->state == JOB_PREFILL && job->logits != NULL && job->answer.tokens.count == 0 &&
           job->answer.stored.count == job->request.prompt_count;
}
/* A copy of the logits behind its prompt, if it was asked before. */
void job_recall(struct job *job, struct service *service);
/* How the KV of a token is to be computed: as before, where it was computed before. */
enum token_origin job_origin(const struct job *job, size_t index);
/* An empty sequence takes the longest saved prefix. */
enum status job_attach(struct job *job, struct service *service, struct error *error) STATUS_CHECKED;
/* What a live sequence has computed of its prompt is being written, and found once it is durable; or its place has a
 * sequence that is.  The job stays in the queue meanwhile, so that others go on: for a sequence that still computes no
 * longer than a second. */
bool job_awaits_disk(struct job *job, const struct service *service);
/* Ends the jobs whose prompt is durable; waits: those that wait for it, too.  Whether there was one. */
bool job_end_saved(struct service *service, bool waits);
/* The sequence is about to go: how its tokens were computed stays known. */
enum status job_remember(struct job *job, struct error *error) STATUS_CHECKED;
/* Samples from a row of logits and hands the token out.  The job may stop by it. */
enum status job_take(struct job *job, struct service *service, const float *logits, struct error *error) STATUS_CHECKED;
/* Never less than it was told before: what damage lost is computed again in silence. */
void job_tell_progress(struct job *job);
/* Tells the client that the request is over; nothing is told it later. */
void job_tell_done(struct job *job, struct service *service, enum stop_reason reason, const struct error *error);
/* The request's end: done, unless that was told, and its memory.  error: NULL where it has none. */
void job_done(struct job *job, struct service *service, enum stop_reason reason, const struct error *error);
/* Under the mutex: it is none of service->running any more. */
void job_leave_running(struct service *service, struct job *job);
/* job_done for a job that runs: it gives up its slot, and its sequence is saved. */
void job_end_running(struct service *service, struct job *job, enum stop_reason reason, const struct error *error);
void job_fail_running(struct service *service, struct job *job, const struct error *error);

/* accounts.c: computing time by owner.  An owner who comes back starts where the others are: time without requests
 * gives no advance. */
void account_open(struct service *service, const char *owner);
void account_charge(struct service *service, struct job *job, double seconds);
double account_seconds(const struct service *service, const struct job *job);

/* repair.c.  A step or slice of these jobs failed.  true: what can be done about it was done, so it can be tried
 * again: room made, or everything computed anew after damage.  Jobs may have gone back to the queue.  Where a page
 * could not be read, those that use its document try once more, each alone, with a new engine; one that fails again
 * ends. */
bool service_repair(struct service *service, struct job *const *jobs, size_t count, enum status status,
                    const struct error *error);
static inline bool job_is_alone(const struct job *job) { return job->failed_at != SIZE_MAX; }
/* job_attach of a job that runs, with room made as long as memory lacks, and another engine where the device broke.
 * status, *error: of the sequence that it has.  false: it does not run any more; it failed, or waits in the queue
 * again. */
bool service_attach(struct service *service, struct job *job, enum status status, struct error *error);
/* Ends a failed engine, and makes another one; what runs is computed anew, as far as it was not saved. */
void service_recover(struct service *service);
/* After a recovery that failed there is no engine: tries again. */
enum status service_need_engine(struct service *service, struct error *error) STATUS_CHECKED;
/* A running job gives up its slot, and goes on later.  false: it failed instead, or goes on with another engine. */
bool service_preempt(struct service *service, struct job *job);

/* passes.c.  What the running jobs need next: a step of those that decode, a slice of a prompt, short prompts. */
void passes_run(struct service *service);
bool passes_wait(struct service *service); /* there is something to compute */
/* What the device has counted of its slots, in statistics: waits for it, so every so many steps, and when idle. */
void passes_count_fetched(struct service *service);

/* scheduler.c: one turn; false: nothing can be done before something comes. */
bool scheduler_turn(struct service *service);
/* Ends every job that is left, and destroys the sequences. */
void scheduler_end(struct service *service);

/* sharing.c: prompts that begin alike. */
/* Under the mutex: whether a job of the queue waits for what a running one reads. */
bool sharing_waits(struct service *service, struct job *job);
/* Who is waited for, and where they stop: stop and awaited of struct job_sharing. */
void sharing_plan(struct service *service);
/* The client of a running job leaves.  true: others wait for what the job reads, so it reads on without a client. */
bool sharing_reads_on(struct service *service, struct job *job);
/* Ends those that read without a client, and that nobody waits for any more. */
void sharing_end(struct service *service);

/* resident.c */
/* The sequence of a job, or a new one: the prefix that it shares with a resident one need not be computed. */
enum status resident_take(struct service *service, struct job *job, struct error *error) STATUS_CHECKED;
enum resident_place {
    RESIDENT_NONE,   /* a new sequence has a place, or gets one at once */
    RESIDENT_SERVES, /* one is a prefix of the job's prompt */
    RESIDENT_WRITES, /* the one that would go is being written */
};
enum resident_place resident_place_of(const struct service *service, const struct job *job);
/* Takes the sequence over from a job that ends or is preempted. */
void resident_leave(struct service *service, struct job *job);
/* Destroys the one that was used longest ago; false: there is none. */
bool resident_evict(struct service *service);
/* Saves and destroys those that nobody has used for service_options.idle_ms.  What cannot be saved stays. */
void resident_unload_idle(struct service *service);
void resident_clear(struct service *service);
/* While nobody asks: reads some of what they have on disk into RAM that nothing is in.  *more: there is more. */
enum status resident_warm(struct service *service, bool *more, struct error *error) STATUS_CHECKED;
/* Destroys those of the owner that use this document. */
void resident_forget_document(struct service *service, const char *owner, uint64_t document);
