/* step: runs batches, decode steps of several sequences as one batch, and several steps of one as a batch. */
#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_watch.h"
#include "engine/engine_internal.h"

/* Runs a batch over KV that may be partly on disk.  A failure leaves nothing of the batch. */
enum status engine_run_batch(struct engine *engine, const struct forward_batch *batch, const float **logits,
                             struct error *error) {
    const struct sequence *paused = engine->paused;
    if (!batch->beside && paused != NULL && paused->kv != batch->sequences[0]) engine_save_paused(engine);
    enum status status = forward_run(engine->forward, batch, logits, error);
    if (engine->kv.host_bytes == 0) return status;
    for (size_t i = 0; i < batch->item_count && status != STATUS_OK; i++)
        kv_sequence_set_length(batch->sequences[i], kv_sequence_length(batch->sequences[i]));
    return status;
}

enum status engine_step(struct engine *engine, struct sequence *const *sequences, const int32_t *tokens, size_t count,
                        const float **logits, struct error *error) {
    struct attend_item items[ENGINE_SEQUENCES_MAX];
    struct kv_sequence *kv[ENGINE_SEQUENCES_MAX];
    const struct select_rule *rules[ENGINE_SEQUENCES_MAX];
    if (count == 0 || count > engine->sequence_capacity)
        return error_set(error, STATUS_USAGE, "a step of %zu sequences: expected 1 to %zu", count,
                         engine->sequence_capacity);
    for (size_t i = 0; i < count; i++) {
        ASSERT(sequences[i]->engine == engine);
        ASSERT(!sequences[i]->paused.active);
        for (size_t j = 0; j < i; j++) ASSERT(sequences[j] != sequences[i]);
        TRY(sequence_grow(sequences[i], 1, error));
        kv[i] = sequences[i]->kv;
        rules[i] = &sequences[i]->rule;
        engine->positions[i] = sequence_length(sequences[i]);
        sequence_note_tokens(sequences[i], engine->positions[i], &tokens[i], 1);
        kv_watch_begin_step(kv[i], engine->positions[i]);
        items[i] = (struct attend_item){.row_first = i, .row_count = 1, .position_first = engine->positions[i]};
    }
    struct forward_batch batch = {.tokens = tokens,
                                  .positions = engine->positions,
                                  .row_count = count,
                                  .sequences = kv,
                                  .items = items,
                                  .item_count = count,
                                  .logit_rows = engine->logit_rows,
                                  .logit_row_count = count,
                                  .rules = rules,
                                  .beside = true};
    struct forward_replay replay;
    if (engine->replay != NULL) {
        TRY(engine->replay->rows(engine->replay->context, engine->positions, count, &replay, error));
        forward_set_replay(engine->forward, &replay);
    }
    enum status status = engine_run_batch(engine, &batch, logits, error);
    forward_set_replay(engine->forward, NULL);
    TRY(status);
    for (size_t i = 0; i < count; i++) {
        kv_sequence_set_length(kv[i], engine->positions[i] + 1);
        sequence_note_whole(sequences[i], engine->positions[i], rules[i]);
    }
    return STATUS_OK;
}

void engine_replay_steps(struct engine *engine, const struct step_replay *replay) { engine->replay = replay; }

/* A chunk that is full is rounded, or on its way to the disk: what fills one is a step of its own. */
size_t sequence_ahead_max(const struct sequence *sequence) {
    const struct engine *engine = sequence->engine;
    const uint64_t length = sequence_length(sequence);
    const uint64_t in_chunk = KV_CHUNK_TOKENS - 1 - length % KV_CHUNK_TOKENS,
                   in_context = engine->context_size - length;
    if (engine->watched || engine->replay != NULL || attention_rows_depend(engine->attention)) return 1;
    const size_t few = engine->model->device->rows_few;
    if (few > 0 && kv_sequence_state(sequence->kv) != NULL) return 1; /* tried on the cpu device alone */
    const size_t most = few > 0 ? few : ENGINE_AHEAD_MAX,
                 rows = min_size(min_size(engine->batch_size, engine->logit_rows_max), most),
                 room = (size_t)(in_chunk < in_context ? in_chunk : in_context);
    return max_size(min_size(rows, room), 1);
}

enum status engine_step_ahead(struct engine *engine, struct sequence *sequence, const int32_t *tokens, size_t count,
                              const float **logits, struct error *error) {
    const uint64_t length = sequence_length(sequence);
    const struct select_rule *rule = &sequence->rule;
    struct attend_item item = {.row_count = count, .position_first = length};
    ASSERT(sequence->engine == engine && !sequence->paused.active);
    ASSERT(count > 1 && count <= sequence_ahead_max(sequence));
    TRY(sequence_grow(sequence, count, error));
    for (size_t i = 0; i < count; i++) engine->positions[i] = length + i;
    sequence_note_tokens(sequence, length, tokens, count);
    kv_watch_begin_step(sequence->kv, length);
    const struct forward_batch batch = {.tokens = tokens,
                                        .positions = engine->positions,
                                        .row_count = count,
                                        .sequences = &sequence->kv,
                                        .items = &item,
                                        .item_count = 1,
                                        .logit_rows = engine->logit_rows,
                                        .logit_row_count = count,
                                        .rules = &rule,
                                        .ahead = true};
    TRY(engine_run_batch(engine, &batch, logits, error));
    sequence->ahead = count;
    sequence->ahead_next = 0;
    return sequence_keep_next(sequence, error);
}

enum status sequence_keep_next(struct sequence *sequence, struct error *error) {
    const uint64_t length = sequence_length(sequence);
    const size_t row = sequence->ahead_next++;
    ASSERT(row < sequence->ahead);
    TRY(forward_keep_row(sequence->engine->forward, sequence->kv, row, error));
    kv_sequence_set_length(sequence->kv, length + 1);
    sequence_note_whole(sequence, length, &sequence->rule);
    return STATUS_OK;
}
