/* paused: a segment of a prompt that has stopped between two blocks.
 *
 * Its residual stream stays in the buffers of the forward pass, where steps and passes of short prompts do not touch
 * it.  When another prompt needs these buffers it is copied away, and back when its own goes on.  Its sequence is as
 * long as before the segment: what layers have stored behind that counts when the segment is complete.
 */
#include <stdlib.h>

#include "base/assert.h"
#include "engine/engine_internal.h"

void sequence_end_paused(struct sequence *sequence) {
    if (sequence->engine->paused == sequence) sequence->engine->paused = NULL;
    free(sequence->paused.rows);
    sequence->paused = (struct paused_segment){.active = false};
}

size_t sequence_paused_tokens(const struct sequence *sequence, size_t *done) {
    const struct paused_segment *paused = &sequence->paused;
    const size_t layer_count = sequence->engine->model->config.layer_count;
    *done = 0;
    if (!paused->active) return 0;
    *done = (paused->row_count * paused->cursor.layer + paused->cursor.row_first) / layer_count;
    return paused->row_count;
}

void sequence_drop_paused(struct sequence *sequence) {
    if (!sequence->paused.active) return;
    sequence_end_paused(sequence);
    kv_sequence_set_length(sequence->kv, kv_sequence_length(sequence->kv)); /* also what layers had stored */
}

void engine_save_paused(struct engine *engine) {
    struct sequence *sequence = engine->paused;
    struct error ignored;
    if (sequence == NULL) return;
    struct paused_segment *paused = &sequence->paused;
    ASSERT(paused->active && paused->rows == NULL);
    paused->rows = malloc(paused->row_count * engine->model->config.hidden_size * sizeof *paused->rows);
    if (paused->rows == NULL ||
        forward_save_rows(engine->forward, paused->row_count, paused->rows, &ignored) != STATUS_OK)
        sequence_drop_paused(sequence); /* computed again when it goes on */
    engine->paused = NULL;
}

enum status sequence_restore_paused(struct sequence *sequence, const struct forward_batch *batch, struct error *error) {
    struct engine *engine = sequence->engine;
    struct paused_segment *paused = &sequence->paused;
    if (!paused->active || engine->paused == sequence) return STATUS_OK;
    engine_save_paused(engine);
    TRY(forward_restore_rows(engine->forward, batch, paused->rows, error));
    free(paused->rows);
    paused->rows = NULL;
    engine->paused = sequence;
    return STATUS_OK;
}
