/* loam explain: an answer about documents, and the sentences that its tokens attended to most. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_file.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "eval/explain.h"

enum { PIECE_BYTES_MAX = 512, ANSWER_DEFAULT = 128 };

struct explaining {
    const struct options *options;
    struct plan plan;
    struct session session;
    struct sampling sampling;
    struct prompt_source prompt;
    const char *paths[OPTION_LIST_MAX];
    struct token_list tokens; /* the prompt, then the answer */
    size_t prompt_count;
    char *text;      /* owned: of the prompt's tokens */
    size_t *offsets; /* owned, [prompt_count + 1]: where each begins */
    struct explain explain;
    double *mass;               /* owned, [prompt_count] */
    struct explain_span *spans; /* owned: of all documents, best first */
    size_t span_count;
};

static enum status open_engine(struct explaining *e, struct error *error) {
    const struct options *options = e->options;
    const struct chat_template *chat;
    TRY(prompt_open(&e->prompt, options, error));
    if (e->prompt.prompt.document_count == 0)
        return error_set(error, STATUS_USAGE, "explain: expected -f FILE, a document to look into");
    (void)option_texts(options, OPTION_FILE, e->paths);
    TRY(sampling_read(&e->sampling, options, error));
    TRY(session_open(&e->session, options, option_count(options, OPTION_THREADS), error));
    TRY(session_open_tokenizer(&e->session, options, error));
    TRY(prompt_template(options, &e->session.model->gguf, &chat, error));
    TRY(prompt_tokens(options, chat, e->session.tokenizer, &e->tokens, error));
    e->prompt_count = e->tokens.count;
    e->plan = (struct plan){.sequence_capacity = 1, .select = select_options_default()};
    e->plan.batch_size = min_size(option_count(options, OPTION_BATCH), option_count(options, OPTION_UBATCH));
    const int64_t wanted = option_integer(options, OPTION_PREDICT);
    e->plan.context_size = e->prompt_count + (size_t)(wanted > 0 ? wanted : ANSWER_DEFAULT);
    TRY(plan_fit_context(&e->plan, &e->session.model->config, error));
    const struct engine_options engine = {.found_damage = false};
    return session_create_engine(&e->session, &e->plan, &engine, error);
}

/* ---- the answer ---- */

static enum status print_token(struct explaining *e, token_id id, struct error *error) {
    char piece[PIECE_BYTES_MAX];
    const size_t length = tokenizer_piece(e->session.tokenizer, id, false, piece, sizeof piece);
    output_bytes(piece, min_size(length, sizeof piece));
    return output_flush(error);
}

static enum status answer(struct explaining *e, struct sequence *sequence, struct sampler *sampler,
                          struct error *error) {
    const struct prefill_request request = {.tokens = e->tokens.ids, .token_count = e->prompt_count};
    const float *logits;
    TRY(engine_prefill(e->session.engine, sequence, &request, &logits, error));
    engine_set_attention_observer(e->session.engine, explain_add, &e->explain);
    while (e->tokens.count < e->plan.context_size && !interrupt_requested()) {
        token_id id;
        TRY(sampler_pick(sampler, logits, &id, error));
        if (tokenizer_is_end(e->session.tokenizer, id)) break;
        sampler_accept(sampler, id);
        TRY(token_list_append(&e->tokens, id, error));
        TRY(print_token(e, id, error));
        TRY(engine_step(e->session.engine, &sequence, &id, 1, &logits, error));
    }
    output_text("\n");
    engine_set_attention_observer(e->session.engine, NULL, NULL);
    return STATUS_OK;
}

static enum status generate(struct explaining *e, struct error *error) {
    struct sequence *sequence = NULL;
    struct sampler *sampler = NULL;
    TRY(explain_create(&e->explain, e->session.model, e->plan.context_size,
                       e->plan.context_size - e->prompt_count, error));
    enum status status = sequence_create(&sequence, e->session.engine, error);
    if (status == STATUS_OK)
        status =
            sampler_create(&sampler, &e->sampling.options, e->session.model->config.vocabulary_size, error);
    if (status == STATUS_OK) status = answer(e, sequence, sampler, error);
    sampler_destroy(sampler);
    sequence_destroy(sequence);
    return status;
}

/* ---- the sources ---- */

/* The prompt's text as its tokens spell it, and where each begins. */
static enum status spell(struct explaining *e, struct error *error) {
    size_t length = 0, capacity = 0;
    e->offsets = calloc(e->prompt_count + 1, sizeof *e->offsets);
    for (size_t i = 0; i < e->prompt_count && e->offsets != NULL; i++) {
        if (capacity < length + PIECE_BYTES_MAX) {
            capacity = 2 * capacity + PIECE_BYTES_MAX;
            char *grown = realloc(e->text, capacity);
            if (grown == NULL) return error_set(error, STATUS_MEMORY, "no memory for the prompt's text");
            e->text = grown;
        }
        const size_t bytes =
            tokenizer_piece(e->session.tokenizer, e->tokens.ids[i], true, e->text + length, PIECE_BYTES_MAX);
        e->offsets[i] = length;
        length += min_size(bytes, PIECE_BYTES_MAX);
        e->offsets[i + 1] = length;
    }
    return e->offsets != NULL ? STATUS_OK
                              : error_set(error, STATUS_MEMORY, "no memory for the prompt's text");
}

/* Adds the mass of the tokens that begin in each span of a document that begins at `start` of the text. */
static void add_mass(struct explaining *e, struct explain_span *spans, size_t count, size_t start) {
    size_t span = 0;
    for (size_t t = 0; t < e->prompt_count && span < count; t++) {
        if (e->offsets[t] < start) continue;
        const size_t at = e->offsets[t] - start;
        while (span < count && at >= spans[span].end) span++;
        if (span == count || at < spans[span].begin) continue;
        spans[span].mass += e->mass[t];
        spans[span].token_count++;
    }
}

/* Where the document begins in the prompt's text, from `from` on; a tokenizer may have changed blanks before it. */
static const char *find_document(const struct explaining *e, const struct prompt_part *document, size_t first,
                                 size_t from) {
    enum { KNOWN_BYTES = 64 };
    const size_t known = min_size(document->length - first, KNOWN_BYTES);
    return memmem(e->text + from, e->offsets[e->prompt_count] - from, document->bytes + first, known);
}

static enum status add_document(struct explaining *e, size_t index, size_t *from, struct error *error) {
    const struct prompt_part *document = &e->prompt.documents[index];
    struct explain_span *spans;
    size_t count;
    enum status status = explain_sentences(document->bytes, document->length, &spans, &count, error);
    const size_t first = count > 0 ? spans[0].begin : 0;
    const char *found = status == STATUS_OK && count > 0 ? find_document(e, document, first, *from) : NULL;
    if (found != NULL) {
        *from = (size_t)(found - e->text);
        for (size_t i = 0; i < count; i++)
            spans[i].document = index, spans[i].begin -= first, spans[i].end -= first;
        add_mass(e, spans, count, *from);
        for (size_t i = 0; i < count; i++) spans[i].begin += first, spans[i].end += first;
        struct explain_span *grown = realloc(e->spans, (e->span_count + count) * sizeof *grown);
        if (grown == NULL) status = error_set(error, STATUS_MEMORY, "no memory for the documents' sentences");
        if (grown != NULL) {
            e->spans = grown;
            memcpy(e->spans + e->span_count, spans, count * sizeof *spans);
            e->span_count += count;
        }
    }
    free(spans);
    return status;
}

/* ---- the report ---- */

static json_t *span_json(const struct explaining *e, const struct explain_span *span) {
    json_t *object = json_object();
    json_add(object, "file", json_bytes(e->paths[span->document], strlen(e->paths[span->document])));
    json_add_uint(object, "line", span->line);
    json_add_uint(object, "begin", span->begin);
    json_add_uint(object, "end", span->end);
    json_add_number(object, "share", span->share);
    json_add_number(object, "lift", span->lift);
    json_add(object, "text",
             json_bytes(e->prompt.documents[span->document].bytes + span->begin, span->end - span->begin));
    return object;
}

static enum status write_json(const struct explaining *e, size_t count, struct error *error) {
    const char *path = option_text(e->options, OPTION_JSON_FILE);
    if (path == NULL) return STATUS_OK;
    json_t *root = json_object(), *spans = json_array(), *ids = json_array();
    for (size_t i = e->prompt_count; i < e->tokens.count; i++)
        json_array_append_new(ids, json_integer(e->tokens.ids[i]));
    for (size_t i = 0; i < count; i++) json_array_append_new(spans, span_json(e, &e->spans[i]));
    json_add(root, "output_tokens", ids);
    json_add(root, "spans", spans);
    enum status status = json_file_write(root, path, error);
    json_decref(root);
    return status;
}

static enum status report(struct explaining *e, struct error *error) {
    size_t from = 0;
    TRY(spell(e, error));
    e->mass = calloc(e->prompt_count, sizeof *e->mass);
    if (e->mass == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    explain_mass(&e->explain, e->prompt_count, e->mass);
    for (size_t i = 0; i < e->prompt.prompt.document_count; i++) TRY(add_document(e, i, &from, error));
    explain_rank(e->spans, e->span_count);
    const size_t count = min_size(e->span_count, option_count(e->options, OPTION_EXPLAIN_SPANS));
    for (size_t i = 0; i < count; i++) {
        const struct explain_span *span = &e->spans[i];
        const char *text = e->prompt.documents[span->document].bytes;
        output_text("\n%s:%zu: %.1f%% of the attention to documents, %.1f times the average\n    ",
                    e->paths[span->document], span->line, 100 * span->share, span->lift);
        for (size_t at = span->begin; at < span->end; at++)
            output_bytes(text[at] == '\n' || text[at] == '\r' ? " " : text + at, 1);
        output_text("\n");
    }
    TRY(write_json(e, count, error));
    return output_flush(error);
}

enum status explain_command(const struct options *options, struct error *error) {
    struct explaining *e = calloc(1, sizeof *e);
    if (e == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    e->options = options;
    enum status status = open_engine(e, error);
    interrupt_install();
    if (status == STATUS_OK) status = generate(e, error);
    if (status == STATUS_OK) status = report(e, error);
    explain_destroy(&e->explain);
    session_close(&e->session);
    plan_deinit(&e->plan);
    prompt_close(&e->prompt);
    token_list_deinit(&e->tokens);
    free(e->text);
    free(e->mass);
    free(e->offsets);
    free(e->spans);
    free(e);
    return status;
}
