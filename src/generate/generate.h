/* generate: from prompts to answers: the command line's run and chat, and loam.h.
 *
 *   answer_create -> generation_run (prefill, then one step for all answers until each has stopped) -> answer_destroy
 *
 * An answer notes what its sequence holds and how that came to be.  When a saved document turns out to be damaged,
 * everything is computed once more that way, and the answer goes on: damage costs time, not the answer.
 *
 * Nothing is printed: text goes to the answer's sink, everything else to the listener.  Thread: the engine's.
 */
#ifndef LOAM_GENERATE_GENERATE_H
#define LOAM_GENERATE_GENERATE_H

#include <stdbool.h>

#include "engine/engine.h"
#include "generate/sampler.h"
#include "token/tokenizer.h"
#include "token/unicode.h"

enum stop_reason {
    STOP_NONE,        /* not yet */
    STOP_END,         /* the model ended its answer */
    STOP_LENGTH,      /* as many tokens as were asked for */
    STOP_CONTEXT,     /* the context is full */
    STOP_INTERRUPTED, /* the listener stopped it */
    STOP_FAILED,
};

const char *stop_reason_name(enum stop_reason reason);

/* What its owner hears of a generation, on the thread that runs it.  Each member may be NULL. */
struct generation_listener {
    void *context;
    /* Around every prefill. */
    void (*prefill_begins)(void *context);
    void (*prefill_ends)(void *context);
    /* How far the prefill is, in tokens; true stops it. */
    engine_progress *progress;
    /* Asked after a prefill and before every step; true stops the generation. */
    bool (*stops)(void *context);
    /* A line for the user: why a saved document was not used, or nothing is saved.  amid_answer: after some of its
     * text. */
    void (*note)(void *context, const char *line, bool amid_answer);
};

struct generation_figures {
    uint64_t prefill_tokens; /* computed */
    uint64_t step_tokens;    /* rows of engine_step */
    double prefill_seconds, decode_seconds;
};

/* Destroys *engine (its sequences are gone) and puts a new one there, or NULL when it fails. */
typedef enum status engine_maker(void *context, struct engine **engine, struct error *error);

struct generation {
    struct engine *engine;             /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed; NULL: no text, and no token ends an answer */
    struct generation_listener listener;
    engine_maker *make_engine; /* when a saved document is damaged; NULL: that is STATUS_DOCUMENT */
    void *make_engine_context;
    int64_t token_max; /* per answer; -1: no limit */
    bool ignore_end;
    size_t top_count; /* likeliest tokens noted beside each one, at most GENERATION_TOP_MAX */
    struct generation_figures figures;
};

enum { GENERATION_TOP_MAX = 100 };

/* Whole characters of an answer.  A failure ends the generation with it. */
typedef enum status answer_sink(void *context, const char *bytes, size_t length, struct error *error);

struct answer {
    struct sequence *sequence;       /* owned */
    struct sampler *sampler;         /* owned */
    const struct token_list *prompt; /* borrowed: what is prefilled next */
    uint64_t seed;
    struct token_list tokens;      /* everything sampled, an end token included */
    struct token_list stored;      /* what the sequence holds, after a success or an interruption */
    struct token_list origins;     /* how each of them came to be there: private to generate.c */
    struct token_probability *top; /* owned; [tokens.count][top_count]; NULL: not wanted */
    size_t top_capacity;
    bool lacks_prompt; /* its prefill came upon damage */
    bool noted;        /* the sequence's notice went to the listener */
    enum stop_reason stop;
    struct utf8_stream utf8;
    answer_sink *sink; /* may be NULL */
    void *sink_context;
};

enum status answer_create(struct answer *answer, const struct generation *generation,
                          const struct sampler_options *sampling, struct error *error) STATUS_CHECKED;
void answer_destroy(struct answer *answer); /* safe on a zeroed one */

/* Its sequence keeps the first token_count tokens. */
void answer_truncate(struct answer *answer, size_t token_count);
/* Before it answers again in the same sequence: no tokens, not stopped. */
void answer_begin(struct answer *answer);

/* The sequence becomes one that begins like tokens: what it shares with them is kept, at most all but the last (its
 * logits are needed), the rest is cut off.  Returns how many it has. */
size_t answer_keep_shared(struct answer *answer, const token_id *tokens, size_t token_count);

/* The two halves of a generation, for who samples: the prompt is appended, or one token for each of several answers.
 * *logits: of the prompt's last token; [answer_count][vocabulary_size]; valid until the next call. */
enum status generation_feed(struct generation *generation, struct answer *answer, const float **logits,
                            struct error *error) STATUS_CHECKED;
enum status generation_step(struct generation *generation, struct answer *const *answers,
                            const token_id *tokens, size_t answer_count, const float **logits,
                            struct error *error) STATUS_CHECKED;

/* Prefills the prompt of each answer, one after another, and steps until all have stopped.  STATUS_INTERRUPTED: the
 * listener stopped it; what is there stays.  figures grow, also when it fails.  error is needed. */
enum status generation_run(struct generation *generation, struct answer *const *answers, size_t answer_count,
                           struct error *error) STATUS_CHECKED;

/* Tokens per second; 0 when there were none. */
double generation_prefill_rate(const struct generation_figures *figures);
double generation_decode_rate(const struct generation_figures *figures);

#endif
