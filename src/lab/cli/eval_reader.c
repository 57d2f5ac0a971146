#include "lab/cli/eval_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/interrupt.h"
#include "platform/clock.h"

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum status read_lengths(struct eval_reader *reader, const struct options *options, struct error *error) {
    const struct option_value *list = option_list(options, OPTION_EVAL_LENGTHS);
    reader->length_count = list->list_count;
    memcpy(reader->lengths, list->list, list->list_count * sizeof *list->list);
    qsort(reader->lengths, reader->length_count, sizeof *reader->lengths, ascending);
    reader->stretch = option_count(options, OPTION_EVAL_STRETCH);
    for (size_t i = 0; i < reader->length_count; i++)
        if (reader->lengths[i] <= reader->stretch || (i > 0 && reader->lengths[i] == reader->lengths[i - 1]))
            return error_set(error, STATUS_USAGE,
                             "--lengths: found %" PRIu64 ", expected different numbers above --stretch %" PRIu64,
                             reader->lengths[i], reader->stretch);
    return STATUS_OK;
}

static enum status read_text(struct eval_reader *reader, struct error *error) {
    struct evaluation *evaluation = reader->evaluation;
    char *text;
    const char *name;
    size_t length;
    TRY(evaluation_text(evaluation, &text, &length, &name, error));
    enum status status = tokenizer_encode(evaluation->session.tokenizer, text, length,
                                          (struct tokenize_options){.add_special = true}, &reader->text, error);
    free(text);
    TRY(status);
    reader->text_name = strdup(name);
    /* A window takes one more token: the token after it is predicted too. */
    reader->window_size = (size_t)reader->lengths[reader->length_count - 1] + 1;
    reader->window_count = reader->text.count / reader->window_size;
    int64_t chunks = option_integer(evaluation->options, OPTION_CHUNKS);
    if (chunks >= 0 && (uint64_t)chunks < reader->window_count) reader->window_count = (size_t)chunks;
    if (chunks == 0) return error_set(error, STATUS_USAGE, "--chunks: found 0, expected 1 or more");
    if (reader->window_count == 0)
        return error_set(error, STATUS_USAGE, "%s: has %zu tokens, the longest of --lengths needs %zu", name,
                         reader->text.count, reader->window_size);
    reader->window = malloc(reader->window_size * sizeof *reader->window);
    if (reader->window == NULL || reader->text_name == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    return STATUS_OK;
}

enum status eval_reader_open(struct eval_reader *reader, struct evaluation *evaluation, struct error *error) {
    *reader = (struct eval_reader){.evaluation = evaluation};
    TRY(read_lengths(reader, evaluation->options, error));
    TRY(evaluation_open_model(evaluation, error));
    TRY(read_text(reader, error));
    return evaluation_open_engine(evaluation, reader->window_size, error);
}

void eval_reader_close(struct eval_reader *reader) {
    token_list_deinit(&reader->text);
    free(reader->text_name);
    free(reader->window);
}

/* ---- reading ---- */

/* Full attention up to token_count. */
static enum status read_until(struct eval_reader *reader, uint64_t token_count, struct error *error) {
    struct evaluation *evaluation = reader->evaluation;
    uint64_t length = sequence_length(evaluation->sequence);
    if (length >= token_count) return STATUS_OK;
    struct prefill_request request = {.tokens = reader->window + length,
                                      .token_count = (size_t)(token_count - length),
                                      .progress = progress_engine,
                                      .progress_context = &reader->progress};
    reader->progress.offset = reader->windows_done * reader->window_size + length;
    double began = clock_seconds();
    enum status status = engine_prefill(evaluation->session.engine, evaluation->sequence, &request, NULL, error);
    reader->prefill.tokens += sequence_length(evaluation->sequence) - length;
    reader->prefill.seconds += clock_seconds() - began;
    return status;
}

enum status eval_reader_stretch(struct eval_reader *reader, const struct eval_place *place, bool selects,
                                engine_each_logits *each, void *context, struct error *error) {
    struct evaluation *evaluation = reader->evaluation;
    uint64_t length = sequence_length(evaluation->sequence);
    struct prefill_request request = {.tokens = place->tokens,
                                      .token_count = (size_t)reader->stretch,
                                      .each = each,
                                      .each_context = context,
                                      .selects = selects};
    enum status status = engine_prefill(evaluation->session.engine, evaluation->sequence, &request, NULL, error);
    sequence_truncate(evaluation->sequence, length);
    if (status == STATUS_OK && interrupt_requested()) return error_set(error, STATUS_INTERRUPTED, "interrupted");
    return status;
}

static enum status at_place(struct eval_reader *reader, const struct eval_place *place, eval_reader_base *base,
                            eval_reader_each *each, void *context, struct error *error) {
    struct evaluation *evaluation = reader->evaluation;
    uint64_t before = place->length - reader->stretch;
    TRY(evaluation_use_preset(evaluation, EVAL_FULL, error));
    TRY(read_until(reader, before, error));
    if (base != NULL) TRY(base(context, place, error));
    /* Presets that watch prompts come last: each of them reads the whole prefix anew. */
    for (size_t i = evaluation->preset_count; i-- > 0;) {
        size_t preset = evaluation->order[i];
        if (evaluation->tiers.used) { /* each has KV of its own */
            TRY(each(context, place, preset, error));
            continue;
        }
        TRY(evaluation_use_preset(evaluation, EVAL_FULL, error)); /* another length of the same preset, too */
        TRY(evaluation_use_preset(evaluation, preset, error));
        if (evaluation_watches(evaluation, preset)) {
            sequence_truncate(evaluation->sequence, 0);
            TRY(read_until(reader, before, error));
        }
        TRY(each(context, place, preset, error));
    }
    return STATUS_OK;
}

enum status eval_reader_run(struct eval_reader *reader, eval_reader_base *base, eval_reader_each *each, void *context,
                            struct error *error) {
    const struct tokenizer *tokenizer = reader->evaluation->session.tokenizer;
    progress_begin(&reader->progress, "eval", option_flag(reader->evaluation->options, OPTION_QUIET));
    reader->progress.total = reader->window_count * reader->window_size;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && reader->windows_done < reader->window_count) {
        memcpy(reader->window, reader->text.ids + reader->windows_done * reader->window_size,
               reader->window_size * sizeof *reader->window);
        if (tokenizer_adds_bos(tokenizer)) reader->window[0] = tokenizer_bos(tokenizer);
        sequence_truncate(reader->evaluation->sequence, 0);
        for (size_t i = 0; i < reader->length_count && status == STATUS_OK; i++) {
            const token_id *tokens = reader->window + reader->lengths[i] - reader->stretch;
            struct eval_place place = {i, reader->lengths[i], tokens, tokens + 1};
            status = at_place(reader, &place, base, each, context, error);
        }
        reader->windows_done += status == STATUS_OK;
    }
    progress_end(&reader->progress);
    return status;
}
