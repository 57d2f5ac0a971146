/* service: answers many requests at once with one engine.
 *
 *   service_create -> service_submit ... -> callbacks: admitted, progress, token ..., done -> service_destroy
 *
 * One thread, the service's, owns the engine and runs this loop: cancel what was cancelled; one engine_step of all
 * sequences that decode; one slice of one prompt.  Prompts take turns by owner: who got the least computing time goes
 * next.
 *
 * A request waits in a queue until a slot is free (service_options.parallel).  Then its prompt attaches to the longest
 * prefix that this owner's live sequences or saved documents have, and the rest is computed in slices.  Sequences stay
 * in memory after their answer as long as no other request needs their place.  With a folder of documents, prompts
 * and answers are saved, also those of a request that is cancelled.
 *
 * Threads.  Every function here may be called from any thread.  Callbacks come on the service's thread, without a lock
 * held.  They may call any function here but service_destroy, service_wait and service_call, and must not block,
 * because every other request waits meanwhile.  What a callback is given is valid during the call.
 *
 * Order of the callbacks of one request: admitted (at most once), progress (any number), prompt_token (only if asked
 * for), token (any number), done (exactly once, the last one).  A request that never got a slot has done alone.  The
 * first callback may come before service_submit returns.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "cache/kv_tier.h"
#include "engine/engine.h"
#include "generate/generate.h"
#include "generate/logit_mask.h"
#include "generate/sampler.h"
#include "token/tokenizer.h"

struct service;
/* Names a request.  Never reused; 0 is none.  Functions ignore a ticket whose request is done. */
typedef uint64_t service_ticket;

enum {
    SERVICE_QUEUE_DEFAULT = 256,
    SERVICE_SLICE_MS_DEFAULT = 225, /* with a step and what looks at the clock it stays below 300 */
    SERVICE_TOP_MAX = GENERATION_TOP_MAX,
    SERVICE_STOPS_MAX = 64,
    SERVICE_OWNER_MAX = 128, /* bytes, with the zero */
    SERVICE_NAME_MAX = 256,  /* the same of a document's name */
};
#define SERVICE_QUEUE_BYTES_DEFAULT (UINT64_C(256) << 20)

/* Zeros are the defaults. */
struct service_options {
    struct engine *engine;             /* borrowed until service_destroy; nobody else uses it */
    const struct tokenizer *tokenizer; /* borrowed */
    /* Recovers from a damaged document (generate.h), and from a device that broke (engine_device_state).  The new
     * engine is borrowed too.  NULL: the requests that meet either end. */
    engine_maker *make_engine;
    void *make_engine_context;
    size_t parallel;          /* requests that run at once; 0: the engine's sequences */
    size_t queue_max;         /* requests that wait; 0: SERVICE_QUEUE_DEFAULT */
    uint64_t queue_bytes_max; /* of their prompts; 0: SERVICE_QUEUE_BYTES_DEFAULT */
    uint32_t slice_ms;        /* of a prompt, while others wait; 0: SERVICE_SLICE_MS_DEFAULT */
    /* A sequence that no request has used for so long leaves memory, if it is saved; 0: never. */
    uint32_t idle_ms;
    /* Preemption: the head of the queue waited this long, and a sequence has made new tokens for this long, and for as
     * long as it took to compute again what an earlier preemption had cost.  0: 10 s, 60 s. */
    uint32_t preempt_wait_ms, preempt_run_ms;
    /* A client that has not read for so long gives its slot to one that waits; its answer goes on once it reads.
     * 0: 3 s. */
    uint32_t unread_ms;
    size_t draft_max; /* generate.h */
};

enum status service_create(struct service **service, const struct service_options *options, struct error *error)
    STATUS_CHECKED;
/* Every request that is left is cancelled and gets done.  Sequences are destroyed; the engine stays.  NULL: allowed. */
void service_destroy(struct service *service);
/* The engine in use, for its owner to destroy after service_destroy: damage may have replaced it. */
struct engine *service_engine(const struct service *service);

/* Facts of the model and the plan, for messages. */
uint64_t service_context_size(const struct service *service); /* tokens of prompt and answer together */
size_t service_vocabulary_size(const struct service *service);
size_t service_parallel(const struct service *service);

enum service_priority {
    SERVICE_NORMAL,
    SERVICE_LOW, /* gets a slot only when no normal request waits, and never replaces a sequence in memory
                    that another request left there unless no other place is free */
};

/* What a callback of text answers. */
enum service_flow {
    SERVICE_CONTINUE,
    SERVICE_PAUSE, /* no more tokens until service_resume; the request keeps its slot */
};

struct service_token {
    token_id id; /* TOKEN_NONE: text alone, held back until now */
    /* [length] whole characters that can be shown now; may be none, or those of earlier tokens */
    const char *bytes;
    size_t length;
    bool is_end; /* an end token: not shown */
    /* With log_probabilities: of the model's logits, before biases, penalties and temperature (log-softmax); and the
     * likeliest tokens, best first.  A greedy answer's equals top[0]'s, bit for bit. */
    float log_probability;
    const struct token_probability *top; /* [top_count] */
    size_t top_count;
};

struct service_prompt_token {
    size_t index; /* ascending from 0 */
    token_id id;
    float log_probability; /* given the tokens before it; NAN for the first */
    const struct token_probability *top;
    size_t top_count; /* 0 for the first */
};

struct service_admission {
    size_t prompt_tokens;
    size_t reused_tokens; /* of these, whose KV is not computed: from memory or a saved document */
    double queue_seconds;
};

struct service_figures {
    size_t prompt_tokens, reused_tokens;
    size_t answer_tokens; /* sampled, with the end token */
    uint32_t preemptions;
    /* prefill: from admission to the first token, the work on others in between included.  decode: from there on. */
    double queue_seconds, prefill_seconds, decode_seconds;
};

struct service_done {
    enum stop_reason reason;
    /* STOP_STRING: which one of the request's stops. */
    size_t stop_index;
    /* STOP_FAILED and STOP_INTERRUPTED: why, one line.  STATUS_INTERRUPTED: service_cancel, drain or destroy. */
    struct error error;
    bool was_admitted;
    struct service_figures figures;
    const char *notice; /* why nothing was saved or reused, a line; "": no notice */
    /* The saved document that has the prompt and answer; 0: none. */
    uint64_t document;
};

/* Each may be NULL. */
struct service_listener {
    void *context;
    /* The request has a slot. */
    void (*admitted)(void *context, const struct service_admission *admission);
    /* Tokens of the prompt that are computed; a part of a segment counts as so many tokens.  The first call has done ==
     * reused tokens.  Steps back only when something has to be computed again (preemption, damage). */
    void (*progress)(void *context, size_t done, size_t total);
    /* With prompt_log_probabilities. */
    void (*prompt_token)(void *context, const struct service_prompt_token *token);
    enum service_flow (*token)(void *context, const struct service_token *token);
    void (*done)(void *context, const struct service_done *done);
};

/* Looks at the attention of an answer's steps, on the service's thread. */
struct service_observer {
    attention_observer *note; /* of the request's own row of each step; holds up the steps of others */
    /* After a step, before the next one of this request: goes on until pauses says so; true: there is more.  The
     * sequence has the rows of that step. */
    bool (*work)(void *context, struct sequence *sequence, bool (*pauses)(void *context), void *pauses_context);
    void *context;
};

/* Zeros but for the prompt are a greedy answer up to the end of the context.  Everything but the mask is copied. */
struct service_request {
    const token_id *prompt; /* [prompt_count], at least one */
    size_t prompt_count;
    size_t turn_end;   /* sequence_set_turn; 0: not known */
    bool drops_answer; /* with turn_end */
    /* sampler_options_default() or one's own; zeros are not valid (top_p 0) */
    struct sampler_options sampling;
    bool greedy; /* `sampling` is ignored */
    bool has_token_max;
    size_t token_max; /* 0: the prompt alone is computed, and made durable where it is saved */
    const char *const *stops;
    size_t stop_count;
    bool ignore_end;
    bool replaces_invalid; /* bytes that are not UTF-8 become U+FFFD: text for JSON */
    bool log_probabilities;
    size_t top_count; /* at most SERVICE_TOP_MAX; counts for the prompt too */
    /* prompt_token for every token.  The whole prompt is then computed: nothing is reused. */
    bool prompt_log_probabilities;
    /* Whose it is: reuse of sequences and saved documents, and fairness, are by owner.  NULL: "", the documents that
     * the command line uses. */
    const char *owner;
    enum service_priority priority;
    const struct logit_mask *mask;    /* once submitted, the service's, which destroys its context; NULL: none */
    const char *document_name;        /* given to a new document; NULL: none */
    struct service_observer observer; /* zeros: none */
};

/* Takes a request, or says why not; then no callback comes and the mask stays the caller's.
 *   STATUS_FULL         the queue is full; try again after service_wait_estimate seconds
 *   STATUS_INTERRUPTED  the service is draining
 *   STATUS_USAGE        the request: an id out of range, a parameter of the sampler, longer than the context */
enum status service_submit(struct service *service, const struct service_request *request,
                           const struct service_listener *listener, service_ticket *ticket, struct error *error)
    STATUS_CHECKED;
/* Ends a request wherever it is: done comes with STOP_INTERRUPTED, at the latest one slice later, unless it has
 * already come.  What was computed stays saved. */
void service_cancel(struct service *service, service_ticket ticket);
/* After SERVICE_PAUSE.  A resume that comes before its pause counts: at worst one more token comes. */
void service_resume(struct service *service, service_ticket ticket);

/* Nothing is accepted any more and what is queued ends with STATUS_INTERRUPTED.  What has a slot goes on for
 * `seconds`, then it ends too.  Returns at once. */
void service_drain(struct service *service, double seconds);
/* Waits until no request is left; false: `seconds` passed first. */
bool service_wait(struct service *service, double seconds);
/* Seconds until a place in the queue is likely free, by the work that is waiting: 1 to 120. */
uint32_t service_wait_estimate(struct service *service);

enum { SERVICE_STOPS = STOP_FAILED + 1 };

struct service_levels {
    size_t queued, prefilling, decoding, paused;
    size_t resident; /* sequences in memory without a request */
    uint64_t queued_bytes;
    uint64_t resident_tokens, running_tokens; /* whose KV these sequences have */
    bool draining;
    double prefill_rate, decode_rate; /* tokens a second of late; 0: none yet */
    uint64_t kv_used_bytes, kv_device_bytes, kv_unit_bytes;
};

struct service_tokens {
    uint64_t prompt;     /* of admitted requests */
    uint64_t reused;     /* of these, from memory or saved documents */
    uint64_t prefill;    /* computed, recomputed ones included */
    uint64_t recomputed; /* after preemption or damage */
    uint64_t answer;
    uint64_t drafted, accepted; /* drafts, and what of them was right */
};

struct service_statistics {
    struct service_levels levels;
    /* Since the service was made. */
    uint64_t submitted, refused, cancelled;
    uint64_t done[SERVICE_STOPS]; /* by enum stop_reason */
    struct service_tokens tokens;
    uint64_t steps, slices, preemptions, recoveries;
    uint64_t unloaded;                      /* sequences that left memory because nobody used them */
    double prefill_seconds, decode_seconds; /* of computing */
    struct kv_tier_statistics tiers;        /* zeros without tiers */
    struct select_statistics select;        /* of answers' steps; zeros where attention is full */
    struct weight_figures weights;          /* zeros where all of them are in RAM */
    struct device_counts device;            /* zeros on the cpu; anew where another device goes on */
    struct fetch_counts fetched;            /* the same, of units: as of a step of the last 64, or of all when idle */
    char documents_damage[256];             /* of their catalog, which was sound at the start; "": none */
};
extern const struct counter_table service_counters; /* of its numbers, but for done and the structs of others */

/* Calls `function` on the service's thread, between two turns of the loop, and waits for it: for what only the engine
 * knows (what is in memory, statistics of its parts).  It may read the engine, and set observers.  live: the sequences
 * in memory, those of running requests first.  STATUS_INTERRUPTED: the service ended.  Not from a callback. */
struct service_live {
    service_ticket ticket; /* 0: no request, it stays for a next one */
    const char *owner;
    struct sequence *sequence;
};
typedef void service_function(void *context, struct engine *engine, const struct service_live *live, size_t live_count);
enum status service_call(struct service *service, service_function *function, void *context, struct error *error)
    STATUS_CHECKED;

/* The owner's saved documents, by the functions of engine.h, between two turns of the loop.  Removing lets go of the
 * sequences in memory that have no request; a running request's is STATUS_FULL. */
enum status service_list_documents(struct service *service, const char *owner,
                                   void (*see)(void *context, const struct document_info *info), void *context,
                                   struct error *error) STATUS_CHECKED;
enum status service_remove_document(struct service *service, const char *owner, uint64_t id, struct error *error)
    STATUS_CHECKED;
enum status service_document_tokens(struct service *service, const char *owner, uint64_t id, int32_t **tokens,
                                    uint64_t *count, struct error *error) STATUS_CHECKED;
/* To carry documents to and from the folder on another thread (engine/document_terms.h). */
struct document_terms;
enum status service_document_terms(struct service *service, const char *owner, bool stores,
                                   struct document_terms *terms, struct error *error) STATUS_CHECKED;

/* A copy that is at most one turn of the loop old. */
struct service_statistics service_get_statistics(struct service *service);
