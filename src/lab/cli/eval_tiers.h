/* eval_tiers: evaluates presets over KV that is partly on disk.
 *
 * A prompt is prefilled once, with full attention and all KV in RAM.  Its KV is copied to a separate engine for each
 * preset, which has the budget and disk of `loam run` with the same options and answers from there. */
#pragma once

#include <jansson.h>

#include "cli/kv_disk.h"
#include "engine/engine.h"
#include "measure/kv_scratch.h"

struct evaluation;

/* --kv-host: bytes, or the fraction of a sample's chunks that may be in RAM.  A fraction does not include the key
 * index, tables and buffers. */
struct eval_budget {
    uint64_t bytes;              /* 0: a fraction */
    uint64_t numerator, divisor; /* divisor 0: not given */
};
enum status eval_budget_parse(struct eval_budget *budget, const char *text, struct error *error) STATUS_CHECKED;

struct eval_tiers {
    bool used;
    struct kv_disk disk;       /* owned */
    struct kv_scratch scratch; /* in that folder; the engines' documents, of which none is reused */
    uint64_t disk_bytes;       /* their limit; 0: none */
    struct eval_budget budget;
    struct engine **engines;     /* owned; one per preset, over the session's model */
    struct sequence **sequences; /* owned, of these; NULL: not filled */
    uint64_t *budget_bytes;
    uint64_t context_size;
};

/* --kv-disk and --kv-host; used is false without the former.  STATUS_USAGE: only one of them. */
enum status eval_tiers_read(struct eval_tiers *tiers, const struct evaluation *evaluation, struct error *error)
    STATUS_CHECKED;
/* An engine per preset for context_size tokens.  STATUS_MEMORY: the budget is too small, with what is needed. */
enum status eval_tiers_open(struct evaluation *evaluation, uint64_t context_size, struct error *error) STATUS_CHECKED;
/* The preset's sequence then holds the first token_count tokens of the evaluation's, and nothing else. */
enum status eval_tiers_fill(struct evaluation *evaluation, size_t preset, uint64_t token_count, struct error *error)
    STATUS_CHECKED;
/* What decode steps read from disk, where the chunks were that they attended to, and the time of the steps alone. */
struct eval_tier_work {
    uint64_t tokens, read_bytes, hits, misses, prefetched, prefetched_used;
    double seconds;
    size_t resident_heads; /* struct kv_tier_statistics.resident_heads */
};
struct eval_tier_steps {
    uint64_t prefix_tokens; /* of the evaluation's sequence, before the first step */
    const int32_t *tokens;  /* [count] */
    size_t count;
    engine_each_logits *each; /* gets the logits of every step */
    void *context;
};
/* Fills the preset's sequence with the prefix and decodes the tokens one by one.  work: of the steps behind the first
 * quarter, which finds RAM empty; added to. */
enum status eval_tiers_decode(struct evaluation *evaluation, size_t preset, const struct eval_tier_steps *steps,
                              struct eval_tier_work *work, struct error *error) STATUS_CHECKED;
void eval_tiers_close(struct evaluation *evaluation);  /* the engines */
void eval_tiers_deinit(struct evaluation *evaluation); /* all of it; safe on zeros */
/* Of a preset: its budget, and what was read from disk and hit in RAM since eval_tiers_open. */
json_t *eval_tiers_json(const struct evaluation *evaluation, size_t preset);
