/* sequence: the tokens and the KV of one sequence of an engine. */
#include <stdlib.h>

#include "base/assert.h"
#include "engine/engine_internal.h"

enum status sequence_create(struct sequence **sequence, struct engine *engine, struct error *error) {
    *sequence = NULL;
    if (engine->sequence_count == engine->sequence_capacity)
        return error_set(error, STATUS_FULL, "all %zu sequences are in use", engine->sequence_capacity);
    struct sequence *made = calloc(1, sizeof *made);
    if (made == NULL) return error_set(error, STATUS_MEMORY, "no memory for a sequence");
    made->engine = engine;
    if (engine->documents != NULL) made->tokens = calloc((size_t)engine->context_size, sizeof *made->tokens);
    if (engine->documents != NULL && made->tokens == NULL) {
        free(made);
        return error_set(error, STATUS_MEMORY, "no memory for the tokens of a sequence");
    }
    enum status status = kv_sequence_create(&made->kv, engine->cache, engine->context_size, error);
    if (status != STATUS_OK) {
        free(made->tokens);
        free(made);
        return status;
    }
    made->rule = engine_default_rule(engine);
    made->next = engine->sequences;
    if (made->next != NULL) made->next->previous = made;
    engine->sequences = made;
    engine->sequence_count++;
    *sequence = made;
    return STATUS_OK;
}

void sequence_destroy(struct sequence *sequence) {
    if (sequence == NULL) return;
    ASSERT(sequence->engine->sequence_count > 0);
    sequence_drop_paused(sequence);
    sequence->engine->sequence_count--;
    if (sequence->next != NULL) sequence->next->previous = sequence->previous;
    if (sequence->previous != NULL)
        sequence->previous->next = sequence->next;
    else
        sequence->engine->sequences = sequence->next;
    kv_sequence_destroy(sequence->kv);
    free(sequence->tokens);
    free(sequence);
}

struct kv_sequence *sequence_kv(const struct sequence *sequence) {
    return sequence->kv;
}
uint64_t sequence_length(const struct sequence *sequence) { return kv_sequence_length(sequence->kv); }

void sequence_truncate(struct sequence *sequence, uint64_t token_count) {
    sequence_drop_paused(sequence);
    sequence->unfinished = false;
    sequence->ahead = 0;
    if (token_count < sequence_length(sequence)) {
        token_count = kv_sequence_cut_of(sequence->kv, token_count);
        attention_truncate(sequence->engine->attention, sequence->kv, token_count);
    }
    if (sequence->whole > token_count) sequence->whole = token_count;
}

enum status sequence_grow(struct sequence *sequence, uint64_t token_count, struct error *error) {
    uint64_t length = sequence_length(sequence), context = sequence->engine->context_size;
    sequence->ahead = 0;
    if (token_count > context - length)
        return error_set(error, STATUS_USAGE,
                         "the context holds %llu tokens (-c): %llu are in it and %llu more do not fit",
                         (unsigned long long)context, (unsigned long long)length, (unsigned long long)token_count);
    enum status status = kv_sequence_own_tail(sequence->kv, sequence->engine->stream, error);
    if (status == STATUS_OK) status = kv_sequence_reserve(sequence->kv, length + token_count, error);
    if (status == STATUS_FULL && error != NULL) error->status = STATUS_MEMORY;
    return status == STATUS_FULL ? STATUS_MEMORY : status;
}

uint64_t sequence_whole_tokens(const struct sequence *sequence) {
    const struct engine *engine = sequence->engine;
    const bool all = engine->select == NULL || engine->suffix != SUFFIX_DENSE;
    return all ? sequence_length(sequence) : sequence->whole;
}

/* A key index that watches prompts is of all queries that came, not of the tokens before a cut. */
void sequence_note_whole(struct sequence *sequence, uint64_t position, const struct select_rule *rule) {
    const struct select *select = sequence->engine->select;
    const uint64_t end = sequence_length(sequence);
    if (sequence->whole < position || (select != NULL && select_watches_prefill(select))) return;
    const bool chooses = select != NULL && rule != NULL && !rule->dense;
    for (uint64_t at = position; chooses && at < end; at++)
        if (!select_row_sees_all(select, rule, at)) return;
    sequence->whole = end;
}

void sequence_note_tokens(struct sequence *sequence, uint64_t position, const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count && sequence->tokens != NULL; i++) sequence->tokens[position + i] = tokens[i];
}

/* No search finds a prefix of less than a chunk: each request for a short prompt would leave a document that nothing
 * uses.  One with a name of its own was asked for. */
static bool is_worth_saving(const struct sequence *sequence) {
    return kv_sequence_length(sequence->kv) >= KV_CHUNK_TOKENS || sequence->document_name[0] != '\0';
}

void sequence_set_turn(struct sequence *sequence, uint64_t end, bool is_dropped) {
    sequence->turn_end = end;
    sequence->drops_answer = end > 0 && is_dropped;
}

uint64_t sequence_saved_end(const struct sequence *sequence) {
    const uint64_t length = sequence_length(sequence);
    return sequence->drops_answer && sequence->turn_end < length ? sequence->turn_end : length;
}

bool sequence_cut_stays_saved(const struct sequence *sequence, uint64_t token_count) {
    const uint64_t saved = sequence_saves(sequence) ? kv_sequence_committed_tokens(sequence->kv) : 0;
    return saved > 0 && saved <= token_count;
}

enum status sequence_save(struct sequence *sequence, struct error *error) {
    if (sequence->tokens == NULL || !is_worth_saving(sequence)) return STATUS_OK;
    if (sequence_saved_end(sequence) < sequence_length(sequence)) return STATUS_OK; /* it was, when it ended there */
    if (sequence_whole_tokens(sequence) < sequence_length(sequence)) return STATUS_OK;
    TRY(gguf_check(&sequence->engine->model->gguf, error));
    return kv_sequence_commit(sequence->kv, sequence->tokens, error);
}

bool sequence_saves(const struct sequence *sequence) {
    return sequence->tokens != NULL && kv_sequence_is_saved(sequence->kv);
}

enum status sequence_flush(struct sequence *sequence, struct error *error) {
    return sequence->engine->kv.host_bytes > 0 ? kv_sequence_flush(sequence->kv, error) : STATUS_OK;
}

bool sequence_is_flushed(const struct sequence *sequence) {
    return sequence->engine->kv.host_bytes == 0 || kv_sequence_is_flushed(sequence->kv);
}

enum status sequence_warm(struct sequence *sequence, bool *more, struct error *error) {
    *more = false;
    return sequence->engine->kv.host_bytes > 0 ? kv_sequence_warm(sequence->kv, more, error) : STATUS_OK;
}

uint64_t sequence_selected_tokens(const struct sequence *sequence) { return sequence->selected; }
uint64_t sequence_reused_tokens(const struct sequence *sequence) { return sequence->saved.reused; }
const char *sequence_notice(const struct sequence *sequence) { return sequence->saved.notice.message; }
const struct page_fractions *sequence_fractions(const struct sequence *sequence) {
    return kv_sequence_fractions(sequence->kv);
}
