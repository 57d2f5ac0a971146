/* prefill: a prompt in segments, each layer by layer; what a saved document has of it is not computed.
 *
 * A sequence's length changes only after all layers have stored the rows of a whole segment.  So an interrupted or
 * failed prefill leaves a usable prefix.
 */
#include <math.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_watch.h"
#include "engine/engine_internal.h"

enum status engine_build_tail(struct engine *engine, struct sequence *sequence, struct error *error) {
    uint64_t length = sequence_length(sequence), first = length / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
    if (engine->select == NULL || first == length) return STATUS_OK;
    enum status status = STATUS_OK;
    for (size_t layer = 0; layer < engine->kv.layer_count && status == STATUS_OK; layer++)
        status = engine_build_rows(engine, sequence->kv, layer, first, length - first, error);
    const enum status built = engine->model->device->operations->stream_synchronize(
        engine->stream, status == STATUS_OK ? error : NULL);
    return status == STATUS_OK ? built : status;
}

enum status sequence_attach(struct sequence *sequence, const int32_t *tokens, size_t token_count, struct error *error) {
    struct engine *engine = sequence->engine;
    ASSERT(sequence_length(sequence) == 0);
    if (engine->documents == NULL || sequence->attached) return STATUS_OK;
    sequence->attached = sequence->suffix_follows = true;
    const struct documents_prompt prompt = {.tokens = tokens,
                                            .token_count = token_count,
                                            .token_capacity = engine->context_size,
                                            .owner = sequence->owner,
                                            .name =
                                                sequence->document_name[0] != '\0' ? sequence->document_name : NULL};
    TRY(documents_attach(engine->documents, sequence->kv, &prompt, &sequence->saved, error));
    sequence_note_tokens(sequence, 0, tokens, (size_t)sequence->saved.reused);
    sequence->whole = sequence_length(sequence);
    TRY(engine_attach_inputs(engine, sequence, tokens, error));
    return engine_build_tail(engine, sequence, error);
}

void sequence_begin_suffix(struct sequence *sequence) {
    kv_sequence_begin_answer(sequence->kv);
    if (sequence->engine->documents == NULL || sequence_length(sequence) == 0) return;
    ASSERT(!sequence->paused.active);
    sequence->saved.reused = sequence_length(sequence);
    sequence->selected = 0;
    sequence->suffix_follows = true;
}

/* Of a chunk in 4 bits the rows are rounded, and what follows needs exact ones: all of it is kept, or nothing. */
static uint64_t exact_prefix(const struct sequence *sequence, uint64_t token_count) {
    const uint64_t full = sequence_length(sequence) - sequence_length(sequence) % KV_CHUNK_TOKENS;
    const bool is_rounded = sequence->engine->kv.quantized_pages && token_count < full;
    return is_rounded ? token_count - token_count % KV_CHUNK_TOKENS : token_count;
}

uint64_t sequence_cut_of(const struct sequence *sequence, uint64_t token_count) {
    uint64_t cut = kv_sequence_cut_of(sequence->kv, exact_prefix(sequence, token_count));
    while (exact_prefix(sequence, cut) < cut) /* a state within a chunk in 4 bits */
        cut = kv_sequence_cut_of(sequence->kv, exact_prefix(sequence, cut));
    return cut;
}

bool sequence_cuts_at(const struct sequence *sequence, uint64_t token_count) {
    return sequence_cut_of(sequence, token_count) == token_count;
}

enum status sequence_adopt(struct sequence *sequence, const int32_t *tokens, size_t token_count, uint64_t *kept,
                           struct error *error) {
    struct engine *engine = sequence->engine;
    uint64_t shared = 0, saved;
    *kept = 0;
    if (sequence->tokens == NULL) return STATUS_OK;
    while (shared < token_count && shared < sequence_length(sequence) && tokens[shared] == sequence->tokens[shared])
        shared++;
    shared = sequence_cut_of(sequence, shared);
    if (shared == 0 || documents_copies(shared, token_count + 1 - shared)) return STATUS_OK;
    const struct documents_prompt prompt = {.tokens = tokens, .token_count = token_count, .owner = sequence->owner};
    TRY(documents_find_prefix(engine->documents, &prompt, &saved, error));
    if (saved > shared) return STATUS_OK;
    sequence_truncate(sequence, shared);
    sequence_begin_suffix(sequence);
    *kept = shared;
    return STATUS_OK;
}

/* Among ascending positions [*first, most), before the last one; the first one goes where there is no place. */
static void insert_turn(uint64_t *positions, size_t *first, size_t most, uint64_t turn) {
    size_t at = most - 1;
    while (at > *first && positions[at - 1] > turn) at--;
    if (at > *first && positions[at - 1] == turn) return;
    if (*first > 0)
        --*first;
    else if (at == 0)
        return;
    for (size_t i = *first; i + 1 < at; i++) positions[i] = positions[i + 1];
    positions[at - 1] = turn;
}

/* What a prompt may be cut back to, where that is not any length (kv_snapshots.h): its end, where another answer
 * begins; behind its newest message, where the next prompt goes on, if that is known; and distances from the end that
 * grow fourfold, at whole chunks: the next prompt may leave this one anywhere, mostly close to its end. */
void sequence_plan_snapshots(struct sequence *sequence, uint64_t position, uint64_t end) {
    uint64_t positions[KV_SNAPSHOTS_MAX];
    const size_t most = kv_sequence_snapshots(sequence->kv);
    const uint64_t step = kv_sequence_snapshot_step(sequence->kv);
    if (most == 0) return;
    size_t first = most;
    positions[--first] = end;
    for (uint64_t distance = step; first > 0 && distance < end;) {
        const uint64_t at = (end - distance) / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
        if (at <= position) break;
        if (at < positions[first]) positions[--first] = at;
        distance = distance == 1 ? KV_CHUNK_TOKENS : 4 * distance;
    }
    const uint64_t turn = sequence->turn_end > position && sequence->turn_end < end ? sequence->turn_end : 0;
    if (turn > 0) insert_turn(positions, &first, most, turn);
    kv_sequence_plan_snapshots(sequence->kv, positions + first, most - first, turn);
}

/* On the first prefill: takes the KV of the longest saved prefix, so that it is not computed. */
static enum status attach(struct engine *engine, struct sequence *sequence, const struct prefill_request *request,
                          struct error *error) {
    if (engine->documents == NULL || sequence->attached || sequence_length(sequence) > 0) return STATUS_OK;
    if (request->each == NULL && !request->selects) /* the last token gives logits */
        return sequence_attach(sequence, request->tokens, request->token_count - 1, error);
    sequence->attached = true; /* every row must be computed: no prefix is reused */
    return documents_attach_nameless(engine->documents, sequence->kv, engine->context_size, error);
}

/* Whether a segment ends here, or a newest message: prompts become durable piece by piece. */
static bool is_saved(const struct engine *engine, const struct sequence *sequence, uint64_t length_before,
                     uint64_t length, bool last) {
    uint64_t segment = engine->segment_size;
    return sequence->tokens != NULL &&
           (last || length / segment != length_before / segment || length == sequence->turn_end);
}

enum status engine_save_prompt(const struct engine *engine, struct sequence *sequence, const float *logits,
                               struct error *error) {
    for (size_t i = 0; logits != NULL && i < engine->model->config.vocabulary_size; i++) {
        if (isfinite(logits[i])) continue;
        TRY(model_check_numbers(engine->model, error));
        return error_set(error, STATUS_FAILED, "the model's output is not a number (token %zu: %g)", i,
                         (double)logits[i]);
    }
    return sequence_save(sequence, error);
}

/* Whether the suffix of a prompt, its last token_count tokens, selects.  The tokens before it came from a document. */
static bool suffix_selects(const struct engine *engine, const struct sequence *sequence, uint64_t token_count) {
    if (engine->select == NULL || sequence->rule.dense || engine->suffix == SUFFIX_DENSE) return false;
    if (engine->suffix == SUFFIX_SELECTS) return true;
    uint64_t length = sequence_length(sequence);
    return token_count <= length / select_rule_kept_tokens(engine->select, &sequence->rule, length);
}

/* The segment that is running, for progress. */
struct prefill_segment {
    const struct prefill_request *request;
    size_t first, count; /* tokens of the request */
};

static bool segment_progress(void *context, uint64_t done, uint64_t total) {
    const struct prefill_segment *segment = context;
    const struct prefill_request *request = segment->request;
    uint64_t tokens = segment->first + segment->count * done / total;
    return request->progress(request->progress_context, tokens, request->token_count);
}

/* Whether the prefill runs block by block through all layers, without a stop within a block.  Selection and observers
 * need rows in order, and h2o must not count queries of rows that an interruption drops. */
static bool goes_by_blocks(const struct engine *engine, const struct prefill_request *request) {
    return request->selects || engine->watched || (engine->select != NULL && select_watches_prefill(engine->select));
}

static enum status interrupted(const struct prefill_request *request, size_t done, struct error *error) {
    return error_set(error, STATUS_INTERRUPTED, "interrupted after %zu of %zu tokens", done, request->token_count);
}

/* Logits of every row of the segment just run, handed out in order. */
static enum status each_logits(struct engine *engine, const struct prefill_request *request, size_t first, size_t count,
                               const float **last, struct error *error) {
    size_t vocabulary = engine->model->config.vocabulary_size;
    for (size_t done = 0; done < count;) {
        size_t rows = min_size(count - done, engine->logit_rows_max);
        const float *logits;
        TRY(forward_logits(engine->forward, engine->logit_rows + done, rows, &logits, error));
        for (size_t i = 0; i < rows; i++) {
            *last = logits + i * vocabulary;
            TRY(request->each(request->each_context, first + done + i, *last, error));
        }
        done += rows;
    }
    return STATUS_OK;
}

/* Blocks of about equal rows, so that the last is none of a few rows, which cost as much as many: each block reads the
 * layer's weights.  A segment that goes on keeps its cut into blocks, unless they become shorter ones. */
static size_t block_rows_of(const struct engine *engine, const struct sequence *sequence,
                            const struct prefill_request *request, size_t count) {
    enum { ROW_GRANULE = 8 };
    const struct paused_segment *paused = &sequence->paused;
    size_t rows = min_size(engine->batch_size, count);
    if (request->block_size > 0) rows = min_size(rows, request->block_size);
    if (!paused->active) {
        const size_t blocks = (count + rows - 1) / rows;
        return min_size(rows, align_up((count + blocks - 1) / blocks, ROW_GRANULE));
    }
    return rows < paused->block_rows && paused->cursor.row_first % rows == 0 ? rows : paused->block_rows;
}

/* Runs the segment, or the rest of one that had paused.  *logits NULL: it has paused. */
static enum status run_batch(struct engine *engine, struct sequence *sequence, struct forward_batch *batch,
                             const float **logits, struct error *error) {
    struct paused_segment *paused = &sequence->paused;
    TRY(sequence_restore_paused(sequence, batch, error));
    struct forward_cursor cursor = paused->cursor;
    if (!paused->active) cursor = (struct forward_cursor){.layer = 0};
    batch->cursor = &cursor;
    enum status status = engine_run_batch(engine, batch, logits, error);
    bool pauses = status == STATUS_OK && *logits == NULL;
    if (!pauses) sequence_end_paused(sequence);
    if (!pauses) return status;
    *paused = (struct paused_segment){
        .active = true, .row_count = batch->row_count, .block_rows = batch->block_rows, .cursor = cursor};
    engine->paused = sequence;
    return STATUS_OK;
}

static enum status run_segment(struct engine *engine, struct sequence *sequence, struct prefill_segment segment,
                               const float **logits, struct error *error) {
    const struct prefill_request *request = segment.request;
    uint64_t length = sequence_length(sequence);
    size_t first = segment.first, count = segment.count;
    bool last = first + count == request->token_count, each = request->each != NULL;
    bool saves = is_saved(engine, sequence, length, length + count, last);
    bool by_blocks = goes_by_blocks(engine, request);
    for (size_t i = 0; i < count; i++) engine->positions[i] = length + i;
    struct attend_item item = {.row_first = 0, .row_count = count, .position_first = length};
    const struct select_rule *rule = &sequence->rule;
    struct forward_batch batch = {.tokens = request->tokens + first,
                                  .positions = engine->positions,
                                  .row_count = count,
                                  .block_rows = block_rows_of(engine, sequence, request, count),
                                  .sequences = &sequence->kv,
                                  .items = &item,
                                  .item_count = 1,
                                  .logit_rows = engine->logit_rows + count - 1,
                                  .logit_row_count = (last || saves) && !each ? 1 : 0,
                                  .keep_rows = each,
                                  .rules = request->selects ? &rule : NULL,
                                  .progress = request->progress != NULL && !by_blocks ? segment_progress : NULL,
                                  .progress_context = &segment,
                                  .pauses = by_blocks ? NULL : request->pauses,
                                  .pauses_context = request->pauses_context};
    sequence_note_tokens(sequence, length, request->tokens + first, count);
    enum status status = run_batch(engine, sequence, &batch, logits, error);
    if (status == STATUS_INTERRUPTED) return interrupted(request, first, error);
    if (status != STATUS_OK || sequence->paused.active) return status;
    kv_sequence_set_length(sequence->kv, length + count);
    sequence_note_whole(sequence, length, request->selects ? rule : NULL);
    if (saves) TRY(engine_save_prompt(engine, sequence, each ? NULL : *logits, error));
    return each ? each_logits(engine, request, first, count, logits, error) : STATUS_OK;
}

/* The most tokens of a segment.  A block of rows that select, or whose logits are all wanted, cannot pause. */
static size_t segment_rows_max(const struct engine *engine, const struct prefill_request *request) {
    if (!goes_by_blocks(engine, request) && (request->each == NULL || request->pauses == NULL))
        return engine->segment_size;
    bool shorter = request->pauses != NULL && request->block_size > 0;
    return shorter ? min_size(request->block_size, engine->batch_size) : engine->batch_size;
}

static enum status run_segments(struct engine *engine, struct sequence *sequence, const struct prefill_request *request,
                                size_t done, const float **logits, struct error *error) {
    while (done < request->token_count) {
        const struct paused_segment *paused = &sequence->paused;
        size_t count = min_size(request->token_count - done, segment_rows_max(engine, request));
        const uint64_t left = sequence->turn_end - sequence_length(sequence); /* of what is saved; or above any count */
        if (sequence->drops_answer && sequence->tokens != NULL && left > 0 && left < count) count = (size_t)left;
        if (paused->active) count = paused->row_count;
        ASSERT(count <= request->token_count - done);
        struct prefill_segment segment = {.request = request, .first = done, .count = count};
        TRY(run_segment(engine, sequence, segment, logits, error));
        if (paused->active) break;
        done += segment.count;
        bool last = done == request->token_count, stops = false;
        if (request->progress != NULL) stops = request->progress(request->progress_context, done, request->token_count);
        if (stops && !last) return interrupted(request, done, error);
        if (!last) *logits = NULL;
        if (!last && request->pauses != NULL && request->pauses(request->pauses_context)) break;
    }
    return STATUS_OK;
}

enum status engine_prefill(struct engine *engine, struct sequence *sequence, const struct prefill_request *request,
                           const float **logits, struct error *error) {
    ASSERT(sequence->engine == engine);
    const float *ignored;
    if (logits == NULL) logits = &ignored;
    *logits = NULL;
    if (request->token_count == 0) return error_set(error, STATUS_USAGE, "no tokens: the prompt is empty");
    for (size_t i = 0; i < request->token_count; i++) /* all of them before any work */
        if (request->tokens[i] < 0 || (size_t)request->tokens[i] >= engine->model->config.vocabulary_size)
            return error_set(error, STATUS_USAGE, "token %zu of the prompt: id %d, expected 0 to %zu", i,
                             request->tokens[i], engine->model->config.vocabulary_size - 1);
    bool fresh = sequence_length(sequence) == 0;
    kv_watch_begin_prompt(sequence->kv);
    TRY(attach(engine, sequence, request, error));
    size_t reused = fresh ? (size_t)sequence->saved.reused : 0;
    TRY(sequence_grow(sequence, request->token_count - reused, error));
    uint64_t after = sequence_length(sequence) + request->token_count + request->tokens_after - reused;
    if (!fresh && !sequence->unfinished && engine->documents != NULL) /* once for a prompt, wherever it pauses */
        documents_grow(engine->documents, sequence->kv, after, engine->context_size);
    const uint64_t prompt_end = after;
    if (engine->wanted_tokens > after)
        after = engine->wanted_tokens < engine->context_size ? engine->wanted_tokens : engine->context_size;
    if (!sequence->unfinished) sequence_plan_snapshots(sequence, sequence_length(sequence), prompt_end);
    enum status holds = kv_sequence_holds(sequence->kv, after, error);
    if (holds != STATUS_OK) sequence->saved.notice.message[0] = '\0'; /* the error says it */
    TRY(holds);
    struct prefill_request selecting = *request;
    if (sequence->suffix_follows && sequence->saved.reused > 0 &&
        suffix_selects(engine, sequence, request->token_count + request->tokens_after - reused)) {
        sequence->selected = request->token_count + request->tokens_after - reused;
        sequence->suffix_selects = true;
    }
    sequence->suffix_follows = false;
    if (sequence->suffix_selects) {
        selecting.selects = true;
        request = &selecting;
    }
    enum status status = run_segments(engine, sequence, request, reused, logits, error);
    sequence->unfinished = status == STATUS_OK && (*logits == NULL || request->tokens_after > 0);
    if (!sequence->unfinished) sequence->suffix_selects = false;
    return status;
}
