/* engine: sequences, batches and steps over one model.
 *
 *   engine_create -> sequence_create -> engine_prefill(prompt) -> sampler_pick -> engine_step ...
 *
 * A step takes any mix of sequences: up to 64 that decode together share each weight read.  Thread: one.
 */
#ifndef LOAM_ENGINE_ENGINE_H
#define LOAM_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"
#include "plan/plan.h"

enum { ENGINE_SEQUENCES_MOST = PLAN_SEQUENCES_MAX };

struct engine;
struct sequence;

/* What is no part of a plan.  Zeros: none of it. */
struct engine_options {
    struct trace *trace; /* borrowed until the engine is destroyed: a timeline of its work */
    bool found_damage; /* by an engine before: where that cannot be flagged, nothing that is saved is used */
    const struct io_faults *io_faults; /* tests: what fails of the directory's files (platform/io_file.h) */
    const char *sqlite_vfs;            /* tests: the file system of its catalog; NULL: SQLite's own */
};

/* A calibration for the plan's selection is looked for beside the model (model/calibration.h).  options NULL: zeros. */
enum status engine_create(struct engine **engine, struct model *model, const struct plan *plan,
                          const struct engine_options *options, struct error *error) STATUS_CHECKED;
void engine_destroy(struct engine *engine);
/* What is wrong in the folder of saved documents and was left alone, a line for the user; NULL: nothing. */
const char *engine_documents_warning(const struct engine *engine);

enum status sequence_create(struct sequence **sequence, struct engine *engine, struct error *error)
    STATUS_CHECKED;
void sequence_destroy(struct sequence *sequence);
uint64_t sequence_length(const struct sequence *sequence);
/* Forgets tokens from token_count on (a shorter prefix is kept). */
void sequence_truncate(struct sequence *sequence, uint64_t token_count);

/* How the sequence's decode steps select; from the start, as the engine's plan says.  STATUS_USAGE: a method that
 * the engine has no metadata for (all and window need none). */
enum status sequence_set_select(struct sequence *sequence, const struct select_method *method,
                                struct select_keep keep, struct error *error) STATUS_CHECKED;

/* Another method, or other parameters: metadata of the sequences that live are built from their stored KV and their
 * rules become the new one's, so one prefill serves several methods.  A method with watches_prefill (h2o) starts from
 * nothing: prefill again.  When it fails the engine selects everything. */
enum status engine_set_select(struct engine *engine, const struct select_options *options,
                              struct error *error) STATUS_CHECKED;
/* NULL: everything is attended to.  For observers, statistics and the fallback notice. */
struct select *engine_select(struct engine *engine);
/* Its statistics, and an observer of what is chosen. */
struct attention *engine_attention(struct engine *engine);
/* Post-RoPE q, k, v and outputs of every layer of every batch; NULL: none. */
void engine_set_attention_observer(struct engine *engine, attention_observer *observer, void *context);

/* Called during a long prefill, after each block of each layer, with the work done expressed in tokens: it never
 * falls and ends at total.  Returning true stops the prefill with STATUS_INTERRUPTED: the sequence holds the segments
 * that are complete, and a prefill of the rest gives what would have come. */
typedef bool engine_progress(void *context, uint64_t done, uint64_t total);

enum logits_wanted { LOGITS_LAST, LOGITS_ALL };

/* Appends tokens to the sequence in segments, each layer by layer.  *logits: the last token's [vocabulary_size].  With
 * LOGITS_ALL `each` is called for every token instead, in order, with its logits. */
typedef enum status engine_each_logits(void *context, uint64_t index, const float *logits,
                                       struct error *error);
struct prefill_request {
    const int32_t *tokens;
    size_t token_count;
    engine_progress *progress; /* may be NULL */
    void *progress_context;
    engine_each_logits *each; /* may be NULL: only the last token's logits are computed */
    void *each_context;
    /* Every token attends as it would in an engine_step of its own, by the sequence's selection: for evaluation. */
    bool selects;
};
enum status engine_prefill(struct engine *engine, struct sequence *sequence,
                           const struct prefill_request *request, const float **logits, struct error *error)
    STATUS_CHECKED;

/* One token for each of several sequences; *logits: [count][vocabulary_size], valid until the next call. */
enum status engine_step(struct engine *engine, struct sequence *const *sequences, const int32_t *tokens,
                        size_t count, const float **logits, struct error *error) STATUS_CHECKED;

/* Adds rows of made-up KV (seeded normal values) without computing them: for benchmarks at depths where
 * prefill would take too long.  Says so in its name. */
enum status engine_fill_random(struct engine *engine, struct sequence *sequence, uint64_t token_count,
                               uint64_t seed, struct error *error) STATUS_CHECKED;

/* Fills an empty sequence to a replay's depth with rows of a recording (recording.h).  STATUS_USAGE: the recording's
 * heads have other dimensions. */
struct replay;
enum status engine_fill_replay(struct engine *engine, struct sequence *sequence, const struct replay *replay,
                               struct error *error) STATUS_CHECKED;
/* From here on a step's sequence number i attends with the rows of replays[i], which is at its depth or behind it;
 * borrowed, NULL: with what the model computes. */
void engine_set_replay(struct engine *engine, const struct replay *const *replays);

/* The same as engine_fill_random for an empty sequence of an engine with documents, saved as the KV of these tokens:
 * for benchmarks of opening.  Whoever asks for the tokens in this folder later gets the made-up rows. */
enum status engine_fill_document(struct engine *engine, struct sequence *sequence, const int32_t *tokens,
                                 uint64_t token_count, uint64_t seed, struct error *error) STATUS_CHECKED;

/* Puts the KV of the first token_count tokens of a sequence of another engine over the same model into an empty one:
 * for comparing, in one run, what several engines do after the same prompt.  It may go to the disk and is not saved.
 * The source's KV is all in memory, f16 as the target's.  STATUS_UNSUPPORTED: it is not, or the target's selection
 * watches prompts. */
enum status engine_copy(struct engine *engine, struct sequence *sequence, const struct sequence *source,
                        uint64_t token_count, struct error *error) STATUS_CHECKED;

/* Of the first prefill: tokens whose KV came from a saved document.  Less than 64 in common is nothing. */
uint64_t sequence_reused_tokens(const struct sequence *sequence);
/* Of these tokens' successors in that prefill: how many selected (struct plan.suffix). */
uint64_t sequence_selected_tokens(const struct sequence *sequence);
/* Why a saved document was not used, or nothing is saved; "" when there is nothing to say. */
const char *sequence_notice(const struct sequence *sequence);
/* By which its chunks are in 4 bits or not (cache/page_shares.h), once its first prefill has begun; NULL: they are all
 * of one form. */
const struct page_shares *sequence_shares(const struct sequence *sequence);
/* Waits until what a prefill saved is durable.  A failure names the file: from that write on nothing more of the
 * sequence was saved, and it lives on in RAM. */
enum status sequence_flush(struct sequence *sequence, struct error *error) STATUS_CHECKED;
/* Zeros without host_bytes. */
struct kv_tier_statistics engine_tier_statistics(const struct engine *engine);
/* What the shares of new documents were chosen by (plan/quantized_pages.h); NULL: nothing was measured. */
struct page_costs;
const struct page_costs *engine_page_costs(const struct engine *engine);

uint64_t engine_kv_used_bytes(const struct engine *engine);
uint64_t engine_kv_bytes_per_token(const struct engine *engine); /* metadata included */
/* KV and metadata that a decode step of a sequence so long must read, by the engine's selection. */
uint64_t engine_step_bytes(const struct engine *engine, uint64_t length);
const struct model_config *engine_config(const struct engine *engine);
/* Where logits are no numbers: STATUS_MODEL if the model's weights are none (model_check_numbers). */
enum status engine_check_weights(const struct engine *engine, struct error *error) STATUS_CHECKED;
uint64_t engine_context_size(const struct engine *engine);

#endif
