/* What engine.c and fill.c share. */
#ifndef LOAM_ENGINE_ENGINE_INTERNAL_H
#define LOAM_ENGINE_ENGINE_INTERNAL_H

#include "engine/documents.h"
#include "engine/engine.h"
#include "engine/recording.h"
#include "plan/quantized_pages.h"

struct sequence {
    struct engine *engine;
    struct kv_sequence *kv; /* owned */
    struct select_rule rule;
    struct sequence *next, *previous; /* of the engine's list */
    int32_t *tokens;                  /* owned; [context_size]: the stored tokens; NULL: nothing is saved */
    bool attached;                    /* the first prefill has begun, with or without a document */
    uint64_t selected;                /* tokens of the first prefill that selected */
    struct documents_outcome saved;   /* what the first prefill found */
};

struct engine {
    struct model *model; /* borrowed */
    struct forward *forward;
    struct kv_cache *cache;
    struct kv_cache_config kv;
    uint64_t context_size;
    size_t sequence_capacity, sequence_count, batch_size, segment_size, logit_rows_max;
    enum plan_suffix suffix;
    bool watched;          /* an observer is set: prompts run block by block, in the order of their rows */
    uint64_t *positions;   /* [row capacity] */
    uint32_t *logit_rows;  /* [row capacity] 0, 1, 2, ... */
    struct select *select; /* owned; NULL: attention is full */
    struct stream *stream; /* owned; builds key indexes outside of a step */
    struct sequence *sequences;
    struct attention *attention;         /* owned */
    struct documents *documents;         /* owned; NULL: nothing is saved */
    bool traced;                         /* the device's pool writes to our trace */
    uint64_t wanted_tokens;              /* struct plan.wanted_tokens */
    bool hides_reads;                    /* reads overlap with the computation of the previous layer */
    const struct replay *const *replays; /* borrowed, of the sequences of a step; NULL: nothing is replayed */
    float *replay_rows;                  /* owned, of a step: queries, keys and values of every layer */
    bool has_costs;
    struct page_costs costs; /* the measured costs behind the fractions, if has_costs */
};

/* Reserves space for token_count more tokens, or says why there is none. */
enum status sequence_grow(struct sequence *sequence, uint64_t token_count, struct error *error)
    STATUS_CHECKED;
/* Notes the tokens stored from position on, if the sequence is saved. */
void sequence_note_tokens(struct sequence *sequence, uint64_t position, const int32_t *tokens, size_t count);

struct replay_shape replay_shape_of(const struct engine *engine);
/* The recorded rows for a step of count sequences; valid until the next call. */
enum status replay_step(struct engine *engine, size_t count, struct forward_replay *replay,
                        struct error *error) STATUS_CHECKED;

#endif
