/* loam explain: an answer about documents, and the sentences that its tokens attended to most. */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_file.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "cli/sources.h"
#include "server/json_text.h"

enum { PIECE_BYTES_MAX = 512, ANSWER_DEFAULT = 128 };

struct explaining {
    const struct options *options;
    struct plan plan;
    struct session session;
    struct sampling sampling;
    struct prompt_source prompt;
    struct token_list tokens; /* the prompt, then the answer */
    size_t prompt_count;
    struct explain explain;
    struct explain_span *spans; /* owned: of all documents, best first */
    size_t span_count;
};

static enum status open_engine(struct explaining *e, struct error *error) {
    const struct options *options = e->options;
    const struct chat_template *chat;
    TRY(prompt_open(&e->prompt, options, error));
    if (e->prompt.prompt.document_count == 0)
        return error_set(error, STATUS_USAGE, "explain: expected -f FILE, a document to look into");
    TRY(sampling_read(&e->sampling, options, error));
    TRY(session_open(&e->session, options, option_count(options, OPTION_THREADS), error));
    TRY(sampling_take_model(&e->sampling, options, &e->session.model->gguf, error));
    TRY(session_open_tokenizer(&e->session, options, error));
    TRY(prompt_template(options, &e->session.model->gguf, &chat, error));
    const enum status laid_out =
        prompt_source_tokens(&e->prompt, options, chat, e->session.tokenizer, &e->tokens, error);
    chat_template_destroy(chat);
    TRY(laid_out);
    TRY(prompt_check_ids(&e->tokens, tokenizer_vocabulary_size(e->session.tokenizer), error));
    e->prompt_count = e->tokens.count;
    e->plan = (struct plan){.sequence_capacity = 1, .select = select_options_default()};
    e->plan.batch_size = plan_read_batch_size(options);
    const int64_t wanted = option_integer(options, OPTION_PREDICT);
    e->plan.context_size = e->prompt_count + (size_t)(wanted > 0 ? wanted : ANSWER_DEFAULT);
    plan_bound_device(&e->plan, e->session.device);
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
    struct progress progress;
    const struct prefill_request request = {.tokens = e->tokens.ids,
                                            .token_count = e->prompt_count,
                                            .progress = progress_engine,
                                            .progress_context = &progress};
    const float *logits;
    progress_begin(&progress, "prefill", option_flag(e->options, OPTION_QUIET));
    const enum status status = engine_prefill(e->session.engine, sequence, &request, &logits, error);
    progress_end(&progress);
    TRY(status);
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
    if (e->explain.failed != STATUS_OK) *error = e->explain.failure;
    return e->explain.failed;
}

static enum status generate(struct explaining *e, struct error *error) {
    struct sequence *sequence = NULL;
    struct sampler *sampler = NULL;
    TRY(explain_create(&e->explain, e->session.model, e->prompt_count, e->plan.context_size - e->prompt_count, false,
                       error));
    enum status status = sequence_create(&sequence, e->session.engine, error);
    if (status == STATUS_OK)
        status = sampler_create(&sampler, &e->sampling.options, e->session.tokenizer,
                                e->session.model->config.vocabulary_size, error);
    if (status == STATUS_OK) status = answer(e, sequence, sampler, error);
    sampler_destroy(sampler);
    sequence_destroy(sequence);
    return status;
}

/* ---- the report ---- */

static json_t *span_json(const struct explaining *e, const struct explain_span *span) {
    const struct prompt_file *file = &e->prompt.files.files[span->document];
    const struct mark_place *place = &span->place;
    json_t *object = JSON({"file", json_text(file->path, strlen(file->path))}, {"line", json_uint(place->line)});
    if (place->page > 0) json_put_uint(object, "page", place->page);
    if (place->chapter > 0) json_put_uint(object, "chapter", place->chapter);
    JSON_PUT(object, {"begin", json_uint(span->begin)}, {"end", json_uint(span->end)},
             {"share", json_number(span->share)}, {"lift", json_number(span->lift)},
             {"text", json_text_without_zeros(file->bytes + span->begin, span->end - span->begin)});
    return object;
}

static enum status write_json(const struct explaining *e, size_t count, struct error *error) {
    const char *path = option_text(e->options, OPTION_JSON_FILE);
    if (path == NULL) return STATUS_OK;
    json_t *spans = json_array(), *ids = json_array();
    for (size_t i = e->prompt_count; i < e->tokens.count; i++)
        json_array_append_new(ids, json_integer(e->tokens.ids[i]));
    for (size_t i = 0; i < count; i++) json_array_append_new(spans, span_json(e, &e->spans[i]));
    json_t *root = JSON({"output_tokens", ids}, {"spans", spans});
    enum status status = json_file_write(root, path, error);
    json_decref(root);
    return status;
}

static enum status report(struct explaining *e, struct error *error) {
    const struct explain_texts texts = {
        .tokenizer = e->session.tokenizer, .prompt = e->tokens.ids, .prompt_count = e->prompt_count};
    TRY(sources_find(&e->explain, &texts, &e->prompt.files, &e->spans, &e->span_count, error));
    const size_t count = min_size(e->span_count, option_count(e->options, OPTION_EXPLAIN_SPANS));
    for (size_t i = 0; i < count; i++) sources_print(&e->prompt.files, &e->spans[i]);
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
    if (status == STATUS_OK && interrupt_requested()) status = STATUS_INTERRUPTED;
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    explain_destroy(&e->explain);
    session_close(&e->session);
    plan_deinit(&e->plan);
    prompt_close(&e->prompt);
    token_list_deinit(&e->tokens);
    free(e->spans);
    free(e);
    return status;
}
