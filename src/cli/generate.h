/* generate: from a prompt to an answer, for run and chat.
 *
 *   answer_create -> generation_prefill (first token) -> generation_decode (the rest) -> answer_destroy
 *
 * Several answers decode together, one step for all.  An answer notes what its sequence holds and how that came to be,
 * so that it can be computed once more when a saved document turns out to be damaged. */
#ifndef LOAM_CLI_GENERATE_H
#define LOAM_CLI_GENERATE_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/session.h"
#include "engine/sampler.h"
#include "token/unicode.h"

enum stop_reason {
    STOP_NONE,        /* not yet */
    STOP_END,         /* the model ended its answer */
    STOP_LENGTH,      /* -n tokens */
    STOP_CONTEXT,     /* the context is full */
    STOP_INTERRUPTED, /* Ctrl-C */
    STOP_FAILED,
};

const char *stop_reason_name(enum stop_reason reason);

/* How the KV of a token came to be: computing it again in another way would give other bits. */
enum token_origin {
    ORIGIN_DENSE,   /* prefilled, attending to everything */
    ORIGIN_SELECTS, /* prefilled, selecting (struct prefill_request.selects) */
    ORIGIN_STEP,    /* engine_step */
};

typedef void answer_sink(void *context, const char *bytes, size_t length);

struct answer {
    struct sequence *sequence; /* owned */
    struct sampler *sampler;   /* owned */
    uint64_t seed;
    struct token_list tokens;  /* everything sampled, an end token included */
    struct token_list stored;  /* what the sequence holds, after a success or an interruption */
    struct token_list origins; /* enum token_origin of each */
    bool accepted;             /* the sampler has seen the prompt whose prefill came upon damage */
    json_t *top_logprobs;      /* owned, one entry per token; NULL: not wanted */
    enum stop_reason stop;
    struct utf8_stream utf8;
    answer_sink *sink; /* gets whole characters */
    void *sink_context;
    bool streams; /* the sink writes to standard output, which is flushed after every token */
};

struct generation {
    const struct session *session;
    int64_t token_most; /* per answer; -1: no limit */
    bool ignore_end;
    bool quiet;
    size_t top_count;                     /* of top_logprobs */
    uint64_t prefill_tokens, step_tokens; /* steps: rows of engine_step */
    double prefill_seconds, decode_seconds;
};

/* A sampler from the sampling options, with this seed. */
enum status answer_create(struct answer *answer, const struct generation *generation,
                          const struct options *options, uint64_t seed, struct error *error) STATUS_CHECKED;
void answer_destroy(struct answer *answer);

/* Appends the prompt to the answer's sequence, with progress, and samples the first token.  prefill_seconds
 * and prefill_tokens grow, also when Ctrl-C stopped it (STATUS_INTERRUPTED).  STATUS_DOCUMENT as below. */
enum status generation_prefill(struct generation *generation, struct answer *answer, const token_id *tokens,
                               size_t token_count, struct error *error) STATUS_CHECKED;
/* Steps until every answer has stopped.  STATUS_INTERRUPTED after Ctrl-C.  STATUS_DOCUMENT: a saved document turned
 * out to be damaged; answers that have not stopped may go on after generation_compute_again, or be abandoned. */
enum status generation_decode(struct generation *generation, struct answer *answers, size_t answer_count,
                              struct error *error) STATUS_CHECKED;

/* Its sequence keeps the first token_count tokens. */
void answer_truncate(struct answer *answer, size_t token_count);

/* After STATUS_DOCUMENT, for `reason`, which is told: a saved document that is damaged costs time, not the answers.
 * It has been flagged, so, with a new engine, which make has to make when the sequences are gone, everything that those
 * of answers which have not stopped, or not begun, held is computed anew, in the way it was; the tokens that were
 * sampled, all of them from pages that were right, are fed again.  Then generation_decode may go on.  prompt: what
 * generation_prefill was given, for answers whose prefill failed.  prefill_seconds and prefill_tokens grow. */
typedef enum status engine_maker(void *context, struct error *error);
enum status generation_compute_again(struct generation *generation, struct answer *answers,
                                     size_t answer_count, const struct token_list *prompt, engine_maker *make,
                                     void *context, const struct error *reason, struct error *error)
    STATUS_CHECKED;
/* Why a saved document was not used, or nothing is saved, on standard error. */
void generation_tell_notice(const struct generation *generation, const struct answer *answer);
/* Those that have not stopped do, for this reason. */
void generation_abandon(struct answer *answers, size_t answer_count, enum stop_reason reason);

/* Tokens per second of the steps; 0 when there were none. */
double generation_decode_rate(const struct generation *generation);
double generation_prefill_rate(const struct generation *generation);

#endif
