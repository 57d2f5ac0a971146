/* generate: turns prompts into answers, for the command line's run and chat and for loam.h.
 *
 *   answer_create -> generation_run (prefill, then one step for all answers until each has stopped) -> answer_destroy
 *
 * An answer records the tokens of its sequence and how the KV of each was computed.  If a saved document turns out to
 * be damaged, the KV is recomputed in the same way and the answer continues.  Damage costs time, not the answer.
 *
 * Nothing is printed.  Text goes to the answer's sink, everything else to the listener.  Thread: the engine's.
 */
#pragma once

#include <stdbool.h>

#include "engine/engine.h"
#include "generate/draft.h"
#include "generate/sampler.h"
#include "generate/stop_scan.h"
#include "token/tokenizer.h"
#include "token/unicode.h"

enum stop_reason {
    STOP_NONE,        /* not yet */
    STOP_END,         /* the model ended its answer */
    STOP_STRING,      /* the answer's text reached a stop string */
    STOP_LENGTH,      /* token_max was reached */
    STOP_CONTEXT,     /* the context is full */
    STOP_LOOP,        /* the answer repeats itself without end (loop_guard.h); not with ignore_end */
    STOP_INTERRUPTED, /* the listener stopped it */
    STOP_FAILED,
};

const char *stop_reason_name(enum stop_reason reason);
/* The model would have gone on. */
bool stop_reason_is_cut(enum stop_reason reason);

/* The owner's callbacks, called on the thread that runs the generation.  Each may be NULL. */
struct generation_listener {
    void *context;
    /* Called before and after every prefill. */
    void (*prefill_begins)(void *context);
    void (*prefill_ends)(void *context);
    /* The prefill's progress in tokens; true stops it. */
    engine_progress *progress;
    /* Called after a prefill and before every step; true stops the generation. */
    bool (*stops)(void *context);
    /* A line for the user: why a saved document was not used, or why nothing is saved.  amid_answer: some of the
     * answer's text is already out. */
    void (*note)(void *context, const char *line, bool amid_answer);
};

struct generation_figures {
    uint64_t prefill_tokens;                  /* computed */
    uint64_t step_tokens;                     /* sampled behind steps */
    uint64_t drafted_tokens, accepted_tokens; /* drafts, and what of them was right */
    double prefill_seconds, decode_seconds;
};

/* Destroys *engine, whose sequences are gone, and creates a new one; *engine is NULL on failure. */
typedef enum status engine_maker(void *context, struct engine **engine, struct error *error);

struct generation {
    struct engine *engine;             /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed; NULL: there is no text and no end token */
    struct generation_listener listener;
    engine_maker *make_engine; /* recovers from a damaged document; NULL: damage is STATUS_DOCUMENT */
    void *make_engine_context;
    int64_t token_max; /* per answer; -1: no limit */
    bool ignore_end;
    size_t draft_max; /* tokens of a draft (draft.h), at most DRAFT_MAX; 0: none.  No answer changes by it. */
    /* Borrowed, [stop_count], none of them empty.  An answer ends before the first one in its text.  The tokens that
     * spell it stay in the answer. */
    const char *const *stops;
    size_t stop_count;
    size_t top_count; /* likeliest tokens recorded for each sampled one, max GENERATION_TOP_MAX */
    struct generation_figures figures;
};

enum { GENERATION_TOP_MAX = 100 };

/* Takes whole characters of an answer.  A failure ends the generation with its status. */
typedef enum status answer_sink(void *context, const char *bytes, size_t length, struct error *error);

/* How the KV of a token was computed.  Recovery must use the same way: another one gives other bits. */
enum token_origin {
    ORIGIN_DENSE,   /* prefilled, attending to everything */
    ORIGIN_SELECTS, /* prefilled, selecting (struct prefill_request.selects) */
    ORIGIN_STEP,    /* engine_step */
};

struct answer {
    struct sequence *sequence;       /* owned */
    struct sampler *sampler;         /* owned */
    const struct token_list *prompt; /* borrowed: the next tokens to prefill */
    uint64_t seed;
    struct token_list tokens;      /* all sampled tokens, with the end token */
    struct token_list stored;      /* the sequence's tokens, after a success or an interruption */
    struct token_list origins;     /* enum token_origin of each stored token */
    struct token_probability *top; /* owned; [tokens.count][top_count]; NULL: not wanted */
    size_t top_capacity;
    struct draft draft;
    bool lacks_prompt; /* its prefill found damage */
    bool noted;        /* the listener has the sequence's notice */
    enum stop_reason stop;
    struct stop_scan scan;
    struct utf8_stream utf8;
    answer_sink *sink; /* may be NULL */
    void *sink_context;
};

enum status answer_create(struct answer *answer, const struct generation *generation,
                          const struct sampler_options *sampling, struct error *error) STATUS_CHECKED;
void answer_destroy(struct answer *answer); /* safe on a zeroed one */

/* Cuts the sequence to its first token_count tokens. */
void answer_truncate(struct answer *answer, size_t token_count);
/* Prepares for another answer in the same sequence: no tokens, not stopped. */
void answer_begin(struct answer *answer);

/* Cuts the sequence to the prefix it shares with tokens, at most token_count - 1: the last token's logits are needed.
 * Returns the prefix's length. */
size_t answer_keep_shared(struct answer *answer, const token_id *tokens, size_t token_count);

/* The two halves of a generation, for callers that sample themselves.  feed appends the answer's prompt; step appends
 * one token to each answer.  *logits: feed: of the prompt's last token; step: [answer_count][vocabulary_size].  Valid
 * until the next call. */
enum status generation_feed(struct generation *generation, struct answer *answer, const float **logits,
                            struct error *error) STATUS_CHECKED;
enum status generation_step(struct generation *generation, struct answer *const *answers, const token_id *tokens,
                            size_t answer_count, const float **logits, struct error *error) STATUS_CHECKED;

/* The parts of a generation, for a scheduler that runs steps and prompts itself. */
/* Records that the sequence now holds this token. */
enum status answer_note_stored(struct answer *answer, token_id id, enum token_origin origin, struct error *error)
    STATUS_CHECKED;
/* Samples the next token from the answer's row of logits, and decides whether the answer stops. */
enum status answer_take(struct answer *answer, const struct generation *generation, const float *logits,
                        struct error *error) STATUS_CHECKED;
/* The tokens of a pass of this answer alone: its last one, and a draft; returns how many they are.  1: a step.  Others
 * go through engine_step_ahead, and are noted, taken and kept one by one, as long as what was sampled last goes on as
 * was drafted. */
size_t answer_draft(struct answer *answer, const struct generation *generation, token_id tokens[ENGINE_AHEAD_MAX]);
bool answer_goes_on(const struct answer *answer, const token_id *tokens, size_t count, size_t kept);
/* Sends the remaining text to the sink. */
enum status answer_finish(struct answer *answer, enum stop_reason reason, struct error *error) STATUS_CHECKED;

/* Prefills the prompts one after another, then steps until all answers have stopped.  STATUS_INTERRUPTED: the listener
 * stopped it; tokens so far stay.  figures grow, on failure too.  error must not be NULL. */
enum status generation_run(struct generation *generation, struct answer *const *answers, size_t answer_count,
                           struct error *error) STATUS_CHECKED;

/* Tokens per second; 0: there were no tokens. */
double generation_prefill_rate(const struct generation_figures *figures);
double generation_decode_rate(const struct generation_figures *figures);
