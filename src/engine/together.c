/* together: short prompts of several sequences, and parts of longer ones, as one batch: each layer's weights are read
 * once for all of them.  It runs beside a segment that has paused, as steps do. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "cache/kv_watch.h"
#include "engine/engine_internal.h"

/* Selection that watches a prompt needs its rows in the order of one sequence; a suffix may select. */
bool sequence_prefills_together(const struct sequence *sequence) {
    const struct engine *engine = sequence->engine;
    if (engine->watched || (engine->select != NULL && select_watches_prefill(engine->select))) return false;
    const bool may_select = engine->select != NULL && engine->suffix != SUFFIX_DENSE && !sequence->rule.dense &&
                            sequence->suffix_follows && sequence->saved.reused > 0;
    return !sequence->paused.active && !sequence->suffix_selects && !may_select;
}

bool engine_mixes(const struct engine *engine) {
    return engine->select == NULL && engine->replay == NULL && !engine->watched && !engine->rebuilds;
}

size_t engine_batch_size(const struct engine *engine) { return engine->batch_size; }
bool engine_reads_weights(const struct engine *engine) { return engine->model->stream != NULL; }

struct weight_figures engine_weight_figures(const struct engine *engine) {
    static const struct weight_figures none;
    return engine->model->stream != NULL ? weight_stream_figures(engine->model->stream) : none;
}

/* For all of its prompt, once. */
static enum status grow(const struct prefill_part *part, struct error *error) {
    struct sequence *sequence = part->sequence;
    const struct engine *engine = sequence->engine;
    const uint64_t length = sequence_length(sequence);
    const uint64_t after = length + part->token_count + part->tokens_after;
    TRY(sequence_grow(sequence, part->token_count, error));
    if (!part->is_step && !sequence->unfinished) sequence_plan_snapshots(sequence, length, after);
    if (!part->is_step && length > 0 && !sequence->unfinished && engine->documents != NULL)
        documents_grow(engine->documents, sequence->kv, after, engine->context_size);
    return kv_sequence_holds(sequence->kv, after, error);
}

/* The batch's arrays, from the parts. */
struct together {
    struct attend_item items[ENGINE_SEQUENCES_MAX];
    struct kv_sequence *kv[ENGINE_SEQUENCES_MAX];
    uint32_t last_rows[ENGINE_SEQUENCES_MAX];
    size_t row_count;
};

static void add(struct engine *engine, struct together *together, size_t index, const struct prefill_part *part) {
    const uint64_t length = sequence_length(part->sequence);
    const size_t first = together->row_count;
    together->items[index] =
        (struct attend_item){.row_first = first, .row_count = part->token_count, .position_first = length};
    together->kv[index] = part->sequence->kv;
    for (size_t i = 0; i < part->token_count; i++) {
        engine->together[first + i] = part->tokens[i];
        engine->positions[first + i] = length + i;
    }
    together->row_count += part->token_count;
    together->last_rows[index] = (uint32_t)(together->row_count - 1);
    sequence_note_tokens(part->sequence, length, part->tokens, part->token_count);
    if (part->is_step)
        kv_watch_begin_step(part->sequence->kv, length);
    else
        kv_watch_begin_prompt(part->sequence->kv);
}

/* As a prompt of its own: durable at its end, where a segment ends, and where others will begin. */
static enum status finish(const struct engine *engine, const struct prefill_part *part, const float *logits,
                          struct error *error) {
    struct sequence *sequence = part->sequence;
    const uint64_t length = sequence_length(sequence), segment = engine->segment_size;
    const bool ends_segment = length / segment != (length - part->token_count) / segment;
    sequence->suffix_follows = false;
    sequence->unfinished = part->tokens_after > 0;
    if (sequence->tokens == NULL || (sequence->unfinished && !ends_segment && !part->saves)) return STATUS_OK;
    return engine_save_prompt(engine, sequence, logits, error);
}

/* A prompt has left the pass, with these rows: its prefill goes on at that layer, or, without memory for them, at the
 * first one. */
static void pause_part(const struct prefill_part *part, size_t layer, const float *rows) {
    struct sequence *sequence = part->sequence;
    const size_t bytes = part->token_count * sequence->engine->model->config.hidden_size * sizeof *rows;
    float *own = malloc(bytes);
    sequence->suffix_follows = false;
    sequence->unfinished = true;
    if (own == NULL) {
        kv_sequence_set_length(sequence->kv, kv_sequence_length(sequence->kv));
        return;
    }
    memcpy(own, rows, bytes);
    sequence->paused = (struct paused_segment){.active = true,
                                               .row_count = part->token_count,
                                               .block_rows = part->token_count,
                                               .cursor = {.layer = layer},
                                               .rows = own};
}

/* The batch, whose prompts pause if they are asked to.  *layer: where they go on; 0: they have not paused. */
static enum status run(struct engine *engine, struct forward_batch *batch, const struct prefill_part *parts,
                       const struct prefill_pauses *pauses, size_t *layer, const float **logits, struct error *error) {
    const size_t hidden = engine->model->config.hidden_size;
    const size_t count = batch->item_count;
    size_t steps = 0;
    *layer = 0;
    while (steps < count && parts[steps].is_step) steps++;
    if (pauses == NULL || engine_reads_weights(engine) || steps == count)
        return engine_run_batch(engine, batch, logits, error);
    struct forward_leave leave = {.asks = pauses->asks, .context = pauses->context, .stays = steps};
    leave.rows = malloc((batch->row_count - steps) * hidden * sizeof *leave.rows);
    if (leave.rows != NULL) batch->leave = &leave;
    enum status status = engine_run_batch(engine, batch, logits, error);
    if (status == STATUS_OK) *layer = leave.layer;
    for (size_t i = *layer > 0 ? steps : count; i < count; i++)
        pause_part(&parts[i], *layer, leave.rows + (batch->items[i].row_first - steps) * hidden);
    free(leave.rows);
    return status;
}

enum status engine_prefill_together(struct engine *engine, const struct prefill_part *parts, size_t count,
                                    const struct prefill_pauses *pauses, const float **logits, struct error *error) {
    struct together together = {.row_count = 0};
    *logits = NULL;
    ASSERT(count > 0 && count <= engine->sequence_capacity);
    for (size_t i = 0; i < count; i++) {
        ASSERT(parts[i].sequence->engine == engine);
        ASSERT(parts[i].is_step ? engine_mixes(engine) : sequence_prefills_together(parts[i].sequence));
        ASSERT(!parts[i].is_step || (parts[i].token_count == 1 && (i == 0 || parts[i - 1].is_step)));
        ASSERT(parts[i].token_count > 0 && together.row_count + parts[i].token_count <= engine->batch_size);
        ASSERT(engine->documents == NULL || parts[i].sequence->attached);
        for (size_t j = 0; j < i; j++) ASSERT(parts[j].sequence != parts[i].sequence);
        TRY(grow(&parts[i], error));
        add(engine, &together, i, &parts[i]);
    }
    struct forward_batch batch = {.tokens = engine->together,
                                  .positions = engine->positions,
                                  .row_count = together.row_count,
                                  .sequences = together.kv,
                                  .items = together.items,
                                  .item_count = count,
                                  .logit_rows = together.last_rows,
                                  .logit_row_count = count,
                                  .beside = true};
    size_t layer;
    TRY(run(engine, &batch, parts, pauses, &layer, logits, error));
    for (size_t i = 0; i < count && (layer == 0 || parts[i].is_step); i++) {
        kv_sequence_set_length(together.kv[i], together.items[i].position_first + parts[i].token_count);
        sequence_note_whole(parts[i].sequence, together.items[i].position_first, NULL); /* it is of full attention */
    }
    for (size_t i = 0; i < count && layer == 0; i++)
        if (!parts[i].is_step)
            TRY(finish(engine, &parts[i], *logits + i * engine->model->config.vocabulary_size, error));
    return STATUS_OK;
}
