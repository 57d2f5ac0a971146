/* answer: one sequence with its sampler and its output text. */
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"
#include "generate/generate_internal.h"
#include "generate/loop_guard.h"

const char *stop_reason_name(enum stop_reason reason) {
    switch (reason) {
    case STOP_NONE: return "none";
    case STOP_END: return "end";
    case STOP_STRING: return "string";
    case STOP_LENGTH: return "length";
    case STOP_CONTEXT: return "context";
    case STOP_LOOP: return "loop";
    case STOP_INTERRUPTED: return "interrupted";
    case STOP_FAILED: return "failed";
    }
    return "none";
}

bool stop_reason_is_cut(enum stop_reason reason) {
    return reason == STOP_LENGTH || reason == STOP_CONTEXT || reason == STOP_LOOP;
}

enum status answer_create(struct answer *answer, const struct generation *generation,
                          const struct sampler_options *sampling, struct error *error) {
    *answer = (struct answer){.seed = sampling->seed};
    size_t vocabulary = engine_config(generation->engine)->vocabulary_size;
    TRY(sampler_create(&answer->sampler, sampling, generation->tokenizer, vocabulary, error));
    return sequence_create(&answer->sequence, generation->engine, error);
}

void answer_destroy(struct answer *answer) {
    sequence_destroy(answer->sequence);
    sampler_destroy(answer->sampler);
    stop_scan_deinit(&answer->scan);
    token_list_deinit(&answer->tokens);
    token_list_deinit(&answer->stored);
    token_list_deinit(&answer->origins);
    draft_deinit(&answer->draft);
    free(answer->top);
    *answer = (struct answer){0};
}

void answer_truncate(struct answer *answer, size_t token_count) {
    sequence_truncate(answer->sequence, token_count);
    const size_t length = (size_t)sequence_length(answer->sequence);
    if (answer->stored.count > length) answer->stored.count = answer->origins.count = length;
}

size_t answer_keep_shared(struct answer *answer, const token_id *tokens, size_t token_count) {
    const struct token_list *stored = &answer->stored;
    size_t shared = 0;
    while (shared < stored->count && shared + 1 < token_count && stored->ids[shared] == tokens[shared]) shared++;
    answer_truncate(answer, shared);
    return stored->count;
}

void answer_begin(struct answer *answer) {
    answer->tokens.count = 0;
    free(answer->top); /* there may be more of them now */
    answer->top = NULL;
    answer->top_capacity = 0;
    answer->stop = STOP_NONE;
    answer->scan.held.length = 0;
}

enum status answer_note_stored(struct answer *answer, token_id id, enum token_origin origin, struct error *error) {
    TRY(token_list_append(&answer->stored, id, error));
    return token_list_append(&answer->origins, (token_id)origin, error);
}

/* The likeliest tokens at the place of the last one. */
static enum status note_top(struct answer *answer, const struct generation *generation, const float *logits,
                            struct error *error) {
    size_t count = generation->top_count, index = answer->tokens.count - 1;
    if (count == 0) return STATUS_OK;
    if (!array_reserve(&answer->top, index, &answer->top_capacity, count * sizeof *answer->top))
        return error_set(error, STATUS_MEMORY, "no memory for the likeliest tokens");
    sampler_top(logits, engine_config(generation->engine)->vocabulary_size, answer->top + index * count, count);
    return STATUS_OK;
}

static enum status emit_bytes(struct answer *answer, const char *bytes, size_t length, struct error *error) {
    enum { SLICE = 256 };
    if (answer->sink == NULL) return STATUS_OK;
    for (size_t done = 0; done < length; done += SLICE) {
        char shown[3 * (SLICE + UTF8_BYTES_MAX)]; /* utf8_stream_bound(SLICE) */
        size_t count = utf8_stream_push(&answer->utf8, bytes + done, min_size(SLICE, length - done), shown);
        if (count > 0) TRY(answer->sink(answer->sink_context, shown, count, error));
    }
    return STATUS_OK;
}

/* Passes on what cannot be part of a stop string; *stops: one was found. */
static enum status emit_scanned(struct answer *answer, const struct generation *generation, const char *piece,
                                size_t length, bool *stops, struct error *error) {
    size_t ready;
    *stops = false;
    if (generation->stop_count == 0) return emit_bytes(answer, piece, length, error);
    answer->scan.stops = generation->stops;
    answer->scan.stop_count = generation->stop_count;
    TRY(stop_scan_push(&answer->scan, piece, length, &ready, stops, error));
    TRY(emit_bytes(answer, answer->scan.held.bytes, ready, error));
    stop_scan_drop(&answer->scan, ready);
    return STATUS_OK;
}

/* The token's text; *stops: it completes a stop string. */
static enum status emit(struct answer *answer, const struct generation *generation, token_id id, bool *stops,
                        struct error *error) {
    const struct tokenizer *tokenizer = generation->tokenizer;
    *stops = false;
    if (tokenizer == NULL || (answer->sink == NULL && generation->stop_count == 0)) return STATUS_OK;
    char small[256], *piece = small;
    size_t length = tokenizer_piece(tokenizer, id, false, small, sizeof small);
    if (length > sizeof small) {
        piece = malloc(length);
        if (piece == NULL) return error_set(error, STATUS_MEMORY, "no memory for a token of %zu bytes", length);
        length = tokenizer_piece(tokenizer, id, false, piece, length);
    }
    enum status status = emit_scanned(answer, generation, piece, length, stops, error);
    if (piece != small) free(piece);
    return status;
}

enum status answer_finish(struct answer *answer, enum stop_reason reason, struct error *error) {
    answer->stop = reason;
    TRY(emit_bytes(answer, answer->scan.held.bytes, answer->scan.held.length, error));
    answer->scan.held.length = 0;
    /* Half a character, which no token made invalid. */
    if (stop_reason_is_cut(reason) && answer->utf8.replace) return STATUS_OK;
    char shown[3 * UTF8_BYTES_MAX]; /* utf8_stream_bound(0) */
    size_t count = utf8_stream_finish(&answer->utf8, shown);
    if (answer->sink == NULL || count == 0) return STATUS_OK;
    return answer->sink(answer->sink_context, shown, count, error);
}

enum status answer_take(struct answer *answer, const struct generation *generation, const float *logits,
                        struct error *error) {
    token_id id;
    enum status status = sampler_pick(answer->sampler, logits, &id, error);
    if (status == STATUS_FAILED) TRY(engine_check_weights(generation->engine, error));
    TRY(status);
    sampler_accept(answer->sampler, id);
    TRY(token_list_append(&answer->tokens, id, error));
    TRY(note_top(answer, generation, logits, error));
    bool is_end = generation->tokenizer != NULL && tokenizer_is_end(generation->tokenizer, id);
    if (is_end && !generation->ignore_end) return answer_finish(answer, STOP_END, error);
    bool reached_stop;
    TRY(emit(answer, generation, id, &reached_stop, error));
    if (reached_stop) return answer_finish(answer, STOP_STRING, error);
    if (sampler_is_complete(answer->sampler)) return answer_finish(answer, STOP_END, error);
    if (generation->token_max >= 0 && answer->tokens.count >= (uint64_t)generation->token_max)
        return answer_finish(answer, STOP_LENGTH, error);
    if (sequence_length(answer->sequence) >= engine_context_size(generation->engine))
        return answer_finish(answer, STOP_CONTEXT, error);
    if (!generation->ignore_end && loop_guard_finds(answer->tokens.ids, answer->tokens.count))
        return answer_finish(answer, STOP_LOOP, error);
    return STATUS_OK;
}

size_t answer_draft(struct answer *answer, const struct generation *generation, token_id tokens[ENGINE_AHEAD_MAX]) {
    size_t most = min_size(generation->draft_max, DRAFT_MAX);
    tokens[0] = answer->tokens.ids[answer->tokens.count - 1];
    if (most > 0) most = min_size(most, sequence_ahead_max(answer->sequence) - 1);
    if (most > 0 && generation->token_max >= 0)
        most = min_size(most, (size_t)generation->token_max - answer->tokens.count - 1);
    return most > 0 ? 1 + draft_next(&answer->draft, &answer->stored, tokens[0], most, tokens + 1) : 1;
}

bool answer_goes_on(const struct answer *answer, const token_id *tokens, size_t count, size_t kept) {
    if (answer->stop != STOP_NONE || kept == count) return false;
    return answer->tokens.ids[answer->tokens.count - 1] == tokens[kept];
}
