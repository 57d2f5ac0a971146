/* An engine and its sequences, for the files of this folder:
 *
 *   engine       makes and destroys it              prefill      prompts, by segments
 *   sequence     tokens and KV of one sequence      step         batches, decode steps
 *   selection    what is selected, key indexes      fill         KV that is not computed
 *   documents    which saved KV a prompt has        saved        the documents of a model and owner
 *   share        prefixes shared in memory          paused       prompts that stopped in between
 *   together     short prompts of several sequences inputs       what K and V are computed from
 *   page_fractions    pages in 4 bits               hard_heads   heads that choose anew
 *   persistent_heads  heads that stay in RAM
 */
#pragma once

#include "cache/inputs.h"
#include "engine/documents.h"
#include "engine/engine.h"
#include "plan/persistent_heads.h"
#include "plan/quantized_pages.h"

/* A segment that has paused (paused.c). */
struct paused_segment {
    bool active;
    size_t row_count, block_rows;
    struct forward_cursor cursor;
    /* Owned, [row_count][hidden_size]; NULL: in the forward pass, engine->paused is this sequence */
    float *rows;
};

struct sequence {
    struct engine *engine;
    struct kv_sequence *kv; /* owned */
    struct select_rule rule;
    struct sequence *next, *previous; /* of the engine's list */
    int32_t *tokens;                  /* owned; [context_size]: the stored tokens; NULL: nothing is saved */
    bool attached;                    /* the first prefill has begun, with or without a document */
    bool suffix_follows;              /* the next prefill is of what follows the document */
    bool suffix_selects;              /* and selects: that prefill has paused */
    bool unfinished;                  /* the last prefill has paused */
    size_t ahead, ahead_next;         /* rows of the last pass that computed some ahead, and the next one to keep */
    uint64_t whole;                   /* its first tokens that attended to everything before them */
    uint64_t turn_end;                /* sequence_set_turn; */
    bool drops_answer;                /* what follows it is not saved */
    struct paused_segment paused;
    uint64_t selected;                                           /* tokens of the first prefill that selected */
    struct documents_outcome saved;                              /* what the first prefill found */
    char owner[ENGINE_OWNER_MAX], document_name[STORE_TEXT_MAX]; /* sequence_set_owner */
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
    int32_t *together;     /* owned, [block capacity]: tokens of several prompts */
    struct select *select; /* owned; NULL: attention is full */
    struct stream *stream; /* owned; builds key indexes outside of a step */
    struct sequence *sequences;
    struct sequence *paused;     /* whose paused segment is in the forward pass; NULL: none */
    struct attention *attention; /* owned */
    struct documents *documents; /* owned; NULL: nothing is saved */
    bool traced;                 /* the device's pool writes to our trace */
    uint64_t wanted_tokens;      /* struct plan.wanted_tokens */
    bool rebuilds;               /* layers' inputs are kept (inputs.c), in this form: */
    struct inputs_shape inputs_shape;
    double inputs_ratio; /* engine_inputs_ratio */
    size_t rebuild_chunks;
    bool prefetches;   /* the plan's, but where RAM has one layer's key index alone */
    bool persists;     /* struct plan.persistent */
    size_t hard_heads; /* engine_hard_heads */
    /* Behind how many heads of a layer need not stay, as they are read meanwhile; zeros: nothing was measured */
    struct persistent_times persistent_times;
    bool hides_reads;                 /* reads overlap with the computation of the previous layer */
    const struct step_replay *replay; /* borrowed; NULL: rows are computed */
    bool has_layer_seconds;
    double layer_seconds; /* engine_layer_seconds, where hides_reads; 0: not known */
    bool has_costs;
    struct page_costs costs; /* the measured costs behind the fractions, if has_costs */
};

/* selection.c */
void engine_drop_select(struct engine *engine);
/* Replaces the selection, after engine_drop_select, and builds the key index of every live sequence. */
enum status engine_replace_select(struct engine *engine, const struct select_options *options, struct error *error)
    STATUS_CHECKED;
/* The rule of new sequences. */
struct select_rule engine_default_rule(const struct engine *engine);
/* Builds the key index of stored rows of one layer, on the engine's stream. */
enum status engine_build_rows(struct engine *engine, struct kv_sequence *sequence, size_t layer_index,
                              uint64_t position_first, uint64_t row_count, struct error *error) STATUS_CHECKED;
/* And waits for it: what it reads may go then.  context: the engine (documents_build_with). */
enum status engine_build_stored(void *context, struct kv_sequence *sequence, size_t layer_index,
                                uint64_t position_first, uint64_t row_count, struct error *error) STATUS_CHECKED;

/* page_fractions.c.  context: the engine (documents_choose_with). */
bool engine_choose_fractions(void *context, struct store *store, const struct store_layout *layout,
                             struct kv_sequence *kv, uint64_t token_count, uint64_t token_capacity,
                             struct page_fractions *fractions);

/* Seconds of one token through one layer, measured with an empty sequence, which is empty afterwards too; 0: not
 * measured. */
double engine_layer_seconds(struct engine *engine, struct kv_sequence *kv);

/* hard_heads.c.  place=persistent, and lists are reused. */
bool engine_persists(const struct engine *engine);
struct calibration;
/* Of the heads that choose, but for N_p; *file keeps what is borrowed, and is the caller's to close.  similarity NULL:
 * nothing is known of them. */
enum status engine_ask_persistent(const struct engine *engine, struct persistent_question *question,
                                  struct calibration **file, struct error *error) STATUS_CHECKED;
/* Once the attention has its selection: heads that are hard to reuse choose anew; and the device has its slots. */
enum status engine_mark_persistent(struct engine *engine, struct error *error) STATUS_CHECKED;
/* persistent_heads.c.  Which of them stay in RAM, before the first sequence. */
enum status engine_choose_persistent(struct engine *engine, const struct plan *plan, struct error *error)
    STATUS_CHECKED;

/* inputs.c: in which form inputs are kept, which the plan's budget depends on; how quickly pages are read, once there
 * are documents; and the inputs of a sequence that has just been attached to them. */
enum status engine_try_inputs(struct engine *engine, struct plan *plan, struct error *error) STATUS_CHECKED;
enum status engine_measure_link(struct engine *engine, const struct plan *plan, struct error *error) STATUS_CHECKED;
enum status engine_attach_inputs(struct engine *engine, struct sequence *sequence, const int32_t *tokens,
                                 struct error *error) STATUS_CHECKED;

/* step.c.  Runs a batch over KV that may be partly on disk.  A failure leaves nothing of the batch. */
enum status engine_run_batch(struct engine *engine, const struct forward_batch *batch, const float **logits,
                             struct error *error) STATUS_CHECKED;

/* prefill.c.  Saves the new KV, unless the logits are NaN: KV of a model with broken weights must not be reused.  The
 * last row attends to all rows before it, so its logits suffice.  logits NULL: the logits of every row are wanted, and
 * nothing is saved. */
enum status engine_save_prompt(const struct engine *engine, struct sequence *sequence, const float *logits,
                               struct error *error) STATUS_CHECKED;

/* Up to where a sequence is saved (sequence_set_turn). */
uint64_t sequence_saved_end(const struct sequence *sequence);
/* A prompt of tokens [position, end) is about to be read. */
void sequence_plan_snapshots(struct sequence *sequence, uint64_t position, uint64_t end);

/* Builds the key index of the rows behind the last full chunk: documents, and columns that are shared, have it of full
 * chunks alone. */
enum status engine_build_tail(struct engine *engine, struct sequence *sequence, struct error *error) STATUS_CHECKED;

/* paused.c.  What a paused segment had computed is lost. */
void sequence_drop_paused(struct sequence *sequence);
/* It is over. */
void sequence_end_paused(struct sequence *sequence);
/* The forward pass is free for another batch. */
void engine_save_paused(struct engine *engine);
/* The forward pass has the rows of a paused segment again, for the same batch; nothing for a sequence without one. */
enum status sequence_restore_paused(struct sequence *sequence, const struct forward_batch *batch, struct error *error)
    STATUS_CHECKED;

/* Reserves space for token_count more tokens, or says why there is none. */
enum status sequence_grow(struct sequence *sequence, uint64_t token_count, struct error *error) STATUS_CHECKED;
/* Rows were stored from `position` on, to its new length; each attended to what the rule left, NULL: to everything. */
void sequence_note_whole(struct sequence *sequence, uint64_t position, const struct select_rule *rule);
/* Notes the tokens stored from position on, if the sequence is saved. */
void sequence_note_tokens(struct sequence *sequence, uint64_t position, const int32_t *tokens, size_t count);
