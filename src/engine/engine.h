/* engine: sequences, batches and steps over one model.
 *
 *   engine_create -> sequence_create -> engine_prefill(prompt) -> sampler_pick -> engine_step ...
 *
 * A step takes any mix of sequences.  Up to 64 sequences that decode together share each read of the weights.
 * Thread: one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"
#include "model/weight_stream.h"
#include "plan/plan.h"

enum { ENGINE_SEQUENCES_MAX = PLAN_SEQUENCES_MAX };

struct engine;
struct sequence;
struct page_costs; /* plan/quantized_pages.h */

/* Options outside of the plan.  Zeros are the defaults. */
struct engine_options {
    struct trace *trace; /* borrowed until the engine is destroyed; records a timeline; NULL: none */
    /* An earlier engine found damage.  In a read-only folder, where damage cannot be flagged, saved documents are
     * then not used. */
    bool found_damage;
    /* Tests: injected failures of the folder's files (platform/io_file.h) */
    const struct io_faults *io_faults;
    const char *sqlite_vfs;              /* tests: the catalog's file system; NULL: SQLite's default */
    const struct page_costs *page_costs; /* tests: instead of measured ones; NULL: measured */
};

/* Looks for a calibration in the model's folder (model/calibration.h).  options NULL: zeros. */
enum status engine_create(struct engine **engine, struct model *model, const struct plan *plan,
                          const struct engine_options *options, struct error *error) STATUS_CHECKED;
void engine_destroy(struct engine *engine);
enum { ENGINE_OWNER_MAX = 128 }; /* bytes of an owner, with the zero */

/* A problem in the folder of saved documents that was not repaired, as a line for the user; NULL: none. */
const char *engine_documents_warning(const struct engine *engine);
const char *engine_documents_damage(const struct engine *engine); /* documents_damage; NULL: none */

enum status sequence_create(struct sequence **sequence, struct engine *engine, struct error *error) STATUS_CHECKED;
void sequence_destroy(struct sequence *sequence);
uint64_t sequence_length(const struct sequence *sequence);
/* Keeps the first token_count tokens and drops the rest.  Where layers keep a state, as many as one is there for: then
 * the length is less than was asked for, unless that was of sequence_cut_of. */
void sequence_truncate(struct sequence *sequence, uint64_t token_count);

/* Sets the selection of the sequence's decode steps; initially the plan's.  STATUS_USAGE: the method needs a key index
 * that the engine does not have (all and window need none). */
enum status sequence_set_select(struct sequence *sequence, const struct select_method *method, struct select_keep keep,
                                struct error *error) STATUS_CHECKED;

/* Switches to another method or other parameters.  The key index of every live sequence is rebuilt from its stored KV
 * and its rule is replaced, so one prefill serves several methods.  A method with watches_prefill (h2o) starts empty:
 * prefill again.  On failure the engine attends to everything. */
enum status engine_set_select(struct engine *engine, const struct select_options *options, struct error *error)
    STATUS_CHECKED;
/* The selection, for observers, statistics and the fallback notice; NULL: attention is full. */
struct select *engine_select(struct engine *engine);
/* The attention, for its statistics and its observer of chosen tokens. */
struct attention *engine_attention(struct engine *engine);
/* The observer sees post-RoPE q, k, v and the outputs of every layer of every batch; NULL: none. */
void engine_set_attention_observer(struct engine *engine, attention_observer *observer, void *context);

/* Called during a long prefill, after each block of each layer.  done is the finished work in tokens: it never
 * decreases and ends at total.  Returning true stops the prefill with STATUS_INTERRUPTED.  The sequence then holds the
 * complete segments, and a prefill of the rest gives the same result as one without the stop. */
typedef bool engine_progress(void *context, uint64_t done, uint64_t total);

/* Called for every token of a prefill, in order, with its logits [vocabulary_size]. */
typedef enum status engine_each_logits(void *context, uint64_t index, const float *logits, struct error *error);
struct prefill_request {
    const int32_t *tokens;
    size_t token_count;
    size_t tokens_after; /* of the prompt, in later requests; what is stored is saved at the end of this one, too */
    engine_progress *progress; /* may be NULL */
    void *progress_context;
    engine_each_logits *each; /* may be NULL: only the last token's logits are computed */
    void *each_context;
    /* May be NULL.  Asked in between; true: the prefill returns with *logits NULL.  The sequence's length then says how
     * many tokens it has, and a prefill of all the others goes on, with the same bits.  Other sequences may be
     * prefilled and stepped meanwhile; this one may be truncated or destroyed instead. */
    bool (*pauses)(void *context);
    void *pauses_context;
    /* Rows that go through a layer at a time, between two questions; 0: the plan's batch_size, which is the max. */
    size_t block_size;
    /* For evaluation: every token attends as in an engine_step of its own, by the sequence's selection. */
    bool selects;
};
/* Before the first tokens: whose saved documents the sequence finds and adds to, and a new one's name.  Both are
 * copied; NULL or "": the documents that have no owner, the plan's name.  A prompt with a name is saved as a document
 * also where it shares nearly all of another one. */
void sequence_set_owner(struct sequence *sequence, const char *owner, const char *name);
/* Before a prompt: its newest message ends at token `end` of the sequence, behind which the template asks for the
 * answer; 0: not known, as before the first call.  Later prompts begin with the tokens before `end`, so a state is kept
 * there.  is_dropped: they do not go on with those behind it, as templates drop what a model thought.  Then these are
 * not saved, and the next prompt goes on in the same document. */
void sequence_set_turn(struct sequence *sequence, uint64_t end, bool is_dropped);
/* Gives an empty sequence the KV of the longest saved prefix of these tokens; its length says how long that is.  The
 * first prefill does it by itself, for all of its prompt but the last token: this is for callers that ask before, or
 * whose tokens come from steps, too.  Does nothing where nothing is saved.  With a name, tokens[token_count] is read,
 * too: the prompt's last. */
enum status sequence_attach(struct sequence *sequence, const int32_t *tokens, size_t token_count, struct error *error)
    STATUS_CHECKED;
/* The next prefill is of a suffix (--suffix), as behind a saved document: what follows a sequence that stayed in memory
 * is computed as if it had come back from the disk.  Nothing where nothing is saved. */
void sequence_begin_suffix(struct sequence *sequence);
/* Makes a sequence that stayed in memory that of another prompt, which begins like it.  What follows the tokens that
 * both have goes, and the rest of the prompt is a suffix (sequence_begin_suffix), as if the sequence had attached to a
 * saved document.  Sets *kept to 0, and does nothing, where attaching to a saved document is cheaper: it has more of
 * the prompt, or what follows it would be saved.  The sequence's own tokens may be lost where they are not saved. */
enum status sequence_adopt(struct sequence *sequence, const int32_t *tokens, size_t token_count, uint64_t *kept,
                           struct error *error) STATUS_CHECKED;
/* How many of its first tokens have the rows that any prompt with this prefix would have: all of them, unless the
 * engine selects and prompts attend to everything (SUFFIX_DENSE); then those before the first one that chose. */
uint64_t sequence_whole_tokens(const struct sequence *sequence);
/* The most tokens, up to token_count, that the sequence may be cut to, or shared (sequence_cuts_at). */
uint64_t sequence_cut_of(const struct sequence *sequence, uint64_t token_count);
/* Whether sequences may share a prefix in memory: all KV is in memory, and depends on no query.  Where documents are
 * saved, sequences attach to these instead. */
bool engine_shares(const struct engine *engine);
/* Whether steps attend to a part of what is stored; false: to all of it. */
bool engine_selects(const struct engine *engine);
/* Where engine_shares: gives an empty sequence the first token_count tokens of another one, which may be cut to them
 * and goes on.  Full chunks exist once.  What follows has the bits that it has behind tokens that the sequence computed
 * itself.  STATUS_MEMORY: there is no room for the chunk that is not full. */
enum status sequence_share(struct sequence *sequence, const struct sequence *source, uint64_t token_count,
                           struct error *error) STATUS_CHECKED;
/* Whether the sequence, cut to token_count, goes on in its document: it has one, and nothing behind is saved. */
bool sequence_cut_stays_saved(const struct sequence *sequence, uint64_t token_count);
/* Whether other tokens may follow after sequence_truncate to token_count: not within a page in 4 bits, nor where layers
 * keep a state and that is not there. */
bool sequence_cuts_at(const struct sequence *sequence, uint64_t token_count);
/* Gives the memory that KV was in back to the system.  Call without sequences. */
void engine_give_back_memory(struct engine *engine);
/* Appends tokens to the sequence in segments, each layer by layer.  *logits: of the last token, [vocabulary_size].
 * With `each` the logits of every token go to it instead. */
enum status engine_prefill(struct engine *engine, struct sequence *sequence, const struct prefill_request *request,
                           const float **logits, struct error *error) STATUS_CHECKED;

/* Prompts of several sequences, or parts of them, in one pass: each layer's weights are read once for all of them.  Bit
 * for bit what engine_prefill gives each.  Sequences that have documents were attached before.  At most
 * plan.batch_size tokens, each of a sequence for which sequence_prefills_together says yes.  *logits:
 * [count][vocabulary_size], of each one's last token.  On a failure no sequence has become longer, or all have and some
 * are not saved. */
struct prefill_part {
    struct sequence *sequence;
    const int32_t *tokens;
    size_t token_count;  /* at least 1 */
    size_t tokens_after; /* of the prompt, in later passes: until the last one ends of segments are saved */
    bool saves;          /* and at the end of this part */
    bool is_step;        /* an answer's token, which is saved later; of an engine that mixes */
};
/* Steps come before prompts.  pauses: NULL, or asked between two layers, but of an engine that reads weights; true: the
 * prompts leave the pass, paused there as by prefill_request.pauses (sequence_paused_tokens), and the steps go on:
 * their logits are the first ones, and without steps *logits is NULL. */
struct prefill_pauses {
    bool (*asks)(void *context, size_t layers_done, size_t layer_count);
    void *context;
};
enum status engine_prefill_together(struct engine *engine, const struct prefill_part *parts, size_t count,
                                    const struct prefill_pauses *pauses, const float **logits, struct error *error)
    STATUS_CHECKED;
/* Whether steps and prompts may share a pass: attention is full. */
bool engine_mixes(const struct engine *engine);
size_t engine_batch_size(const struct engine *engine);                    /* plan.batch_size */
bool engine_reads_weights(const struct engine *engine);                   /* for each pass: model_limit_weights */
struct weight_figures engine_weight_figures(const struct engine *engine); /* of what is read; zeros: nothing is */
/* No: a selection watches prompts, a prefill has paused, or the sequence's next tokens follow a document and may
 * select. */
bool sequence_prefills_together(const struct sequence *sequence);

/* Appends one token to each of count sequences.  *logits: [count][vocabulary_size], valid until the next call. */
enum status engine_step(struct engine *engine, struct sequence *const *sequences, const int32_t *tokens, size_t count,
                        const float **logits, struct error *error) STATUS_CHECKED;

/* Rows that a product of few rows takes, whose bits do not depend on how many they are. */
enum { ENGINE_AHEAD_MAX = FORWARD_AHEAD_MAX };
/* How many tokens the next pass may append to the sequence as if by as many steps; 1: what a row leaves behind changes
 * what later ones choose, so that dropping it would not undo it. */
size_t sequence_ahead_max(const struct sequence *sequence);
/* Runs count tokens, 2 to sequence_ahead_max, as that many steps would, in one pass, which reads weights and KV once;
 * the same bits as theirs.  The first is appended, and others where sequence_keep_next says so, before the engine is
 * used otherwise.  *logits: [count][vocabulary_size], valid until the next call. */
enum status engine_step_ahead(struct engine *engine, struct sequence *sequence, const int32_t *tokens, size_t count,
                              const float **logits, struct error *error) STATUS_CHECKED;
enum status sequence_keep_next(struct sequence *sequence, struct error *error) STATUS_CHECKED;

/* Units that selections have fetched into the device's slots (cache/unit_cache.h); waits for the stream. */
enum status engine_fetch_counts(const struct engine *engine, struct fetch_counts *counts, struct error *error)
    STATUS_CHECKED;
/* device_counts of the engine's device. */
struct device_counts engine_device_counts(const struct engine *engine);
/* How many of its steps were captured, and launched as graphs of the device (model.h). */
struct step_graph_counts engine_step_graph_counts(const struct engine *engine);

/* Appends random KV (normal values from the seed) without computing it; states are zeros behind it.  For benchmarks at
 * depths where a prefill takes too long. */
enum status engine_fill_random(struct engine *engine, struct sequence *sequence, uint64_t token_count, uint64_t seed,
                               struct error *error) STATUS_CHECKED;

/* Rows that are not computed, of positions [position, position + count) of a layer: from a recording, or copied. */
struct rows_target {
    float *k, *v; /* out: [count][kv_head_count][k_dimension], and v_dimension */
    size_t count;
};
typedef enum status engine_rows(void *context, size_t layer, uint64_t position, const struct rows_target *target,
                                struct error *error);
/* Appends them, layer by layer; states are zeros behind them.  Nothing of the sequence is saved from then on. */
enum status engine_fill(struct engine *engine, struct sequence *sequence, engine_rows *rows, void *context,
                        uint64_t token_count, struct error *error) STATUS_CHECKED;
/* What later steps attend with, in place of computed queries, keys and values: asked in each, for rows at these
 * positions.  Borrowed; NULL: the model's own. */
struct step_replay {
    enum status (*rows)(void *context, const uint64_t *positions, size_t count, struct forward_replay *replay,
                        struct error *error);
    void *context;
};
void engine_replay_steps(struct engine *engine, const struct step_replay *replay);

/* Tokens, behind its length, of the segment in which the sequence's prefill has paused; 0: none.  *done: the work done
 * on them, as a number of tokens. */
size_t sequence_paused_tokens(const struct sequence *sequence, size_t *done);
/* Tokens of the first prefill whose KV came from a saved document.  A common prefix below 64 tokens counts as none. */
uint64_t sequence_reused_tokens(const struct sequence *sequence);
/* Tokens of that prefill's suffix, behind the reused tokens, that selected (struct plan.suffix). */
uint64_t sequence_selected_tokens(const struct sequence *sequence);
/* Why a saved document was not used, or why nothing is saved; "": no notice. */
const char *sequence_notice(const struct sequence *sequence);
/* The fraction of each layer's chunks that is in 4 bits (cache/page_fractions.h), known once the first prefill has
 * begun; NULL: all chunks have one form. */
const struct page_fractions *sequence_fractions(const struct sequence *sequence);
/* Saves what the sequence holds, steps included, behind the computation.  Nothing where some of it is not whole
 * (sequence_whole_tokens): what is was saved when its prompt was read.  The caller has seen that the logits of its
 * last token are numbers.  Nothing where nothing is saved, nor of less than 64 tokens without a name of its
 * own. */
enum status sequence_save(struct sequence *sequence, struct error *error) STATUS_CHECKED;
/* Whether it is being saved: what it has will be found once it is durable. */
bool sequence_saves(const struct sequence *sequence);
/* Waits until all that prefills saved is durable.  A failure names the file: nothing was saved from that write on, and
 * the sequence stays usable in RAM. */
enum status sequence_flush(struct sequence *sequence, struct error *error) STATUS_CHECKED;
bool sequence_is_flushed(const struct sequence *sequence); /* sequence_flush would not wait */
/* With the KV on disk: reads some of its pages into RAM that nothing is in (kv_sequence_warm), so that the next
 * question need not wait for them.  *more: there is more to read. */
enum status sequence_warm(struct sequence *sequence, bool *more, struct error *error) STATUS_CHECKED;
/* The saved document that has all of the sequence's tokens, or will have them once they are durable; 0: none. */
uint64_t sequence_document(const struct sequence *sequence);
/* All of its tokens are in that document, or the commit is under way. */
bool sequence_is_saved(const struct sequence *sequence);
/* The saved documents of this model and owner, damaged ones too; nothing where nothing is saved.  Texts are good during
 * the call. */
struct document_info;
enum status engine_list_documents(struct engine *engine, const char *owner,
                                  void (*see)(void *context, const struct document_info *info), void *context,
                                  struct error *error) STATUS_CHECKED;
/* STATUS_DOCUMENT: the owner has none of that id.  STATUS_FULL: a sequence uses it. */
enum status engine_remove_document(struct engine *engine, const char *owner, uint64_t id, struct error *error)
    STATUS_CHECKED;
/* Its tokens, newly allocated.  STATUS_DOCUMENT: the owner has none of that id, or it is damaged. */
enum status engine_document_tokens(struct engine *engine, const char *owner, uint64_t id, int32_t **tokens,
                                   uint64_t *count, struct error *error) STATUS_CHECKED;
/* For who carries documents to and from the folder on another thread (engine/document_terms.h).  stores: into it.
 * STATUS_USAGE: nothing is saved.  STATUS_IO: the folder cannot be written. */
struct document_terms;
enum status engine_document_terms(const struct engine *engine, const char *owner, bool stores,
                                  struct document_terms *terms, struct error *error) STATUS_CHECKED;
/* Its KV, for who reads stored rows between steps, or asks where chunks are (cache/kv_watch.h); as long as the
 * sequence. */
struct kv_sequence;
struct kv_sequence *sequence_kv(const struct sequence *sequence);
/* Zeros without host_bytes. */
struct kv_tier_statistics engine_tier_statistics(const struct engine *engine);
/* With rebuild=recompute: plan_inputs_ratio; from 1 on no inputs are kept.  0: nothing was to be computed again. */
double engine_inputs_ratio(const struct engine *engine);
/* With place=persistent: KV heads of later layers than those that stay that are hard to reuse.  They choose anew in
 * each step; struct kv_tier_statistics says how many of them stay in RAM. */
size_t engine_hard_heads(const struct engine *engine);
/* The measured costs behind the fractions of new documents (plan/quantized_pages.h); NULL: nothing was measured. */
const struct page_costs *engine_page_costs(const struct engine *engine);

uint64_t engine_kv_used_bytes(const struct engine *engine);
/* KV and key index in the memory of a device that has its own; 0: it has none.  Beside them are the slots into which
 * it fetches units of 8 tokens. */
uint64_t engine_kv_device_bytes(const struct engine *engine);
uint64_t engine_unit_bytes(const struct engine *engine);
uint64_t engine_kv_bytes_per_token(const struct engine *engine); /* with the key index */
/* Bytes of K and V of one token in one KV head of one layer; the mean, where layers differ. */
uint64_t engine_kv_row_bytes(const struct engine *engine);
/* Bytes of KV and key index that a decode step at this length must read, by the engine's selection. */
uint64_t engine_step_bytes(const struct engine *engine, uint64_t length);
const struct model_config *engine_config(const struct engine *engine);
/* Explains logits that are NaN: STATUS_MODEL if a weight of the model is not finite (model_check_numbers). */
enum status engine_check_weights(const struct engine *engine, struct error *error) STATUS_CHECKED;
uint64_t engine_context_size(const struct engine *engine);
size_t engine_sequence_capacity(const struct engine *engine);
/* The saved document of which a page could not be read: the engine's passes fail from then on.  0: none. */
uint64_t engine_failed_document(const struct engine *engine);
/* device_state of the engine's device. */
enum status engine_device_state(const struct engine *engine, struct error *error) STATUS_CHECKED;
bool engine_saves(const struct engine *engine); /* prompts become documents, and attach to them */
