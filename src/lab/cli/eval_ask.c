/* loam-lab eval ask: questions about one document, which is read once and answered from by every preset.
 *
 * --questions is a file of JSON lines {"question": TEXT, "answers": [TEXT, ...]}.  A question is put behind the
 * document and the model goes on from its last character; it is right when the line holds all the answers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/interrupt.h"
#include "cli/model_type.h"
#include "cli/prompt.h"
#include "lab/cli/eval.h"
#include "lab/eval/answer.h"
#include "lab/eval/match.h"
#include "lab/eval/recall.h"
#include "platform/clock.h"
#include "server/json_text.h"

enum { QUESTIONS_MAX = 1000, ANSWERS_MAX = 16, SPARE_TOKENS = 16 };

struct question {
    char *text; /* owned */
    char *answers[ANSWERS_MAX];
    size_t answer_count;
    struct token_list tokens; /* of the question; the document's tokens come before */
    size_t token_budget;
};

struct ask_run {
    struct evaluation *evaluation;
    struct question *questions; /* owned */
    size_t question_count;
    struct token_list document;
    const char *document_name;
    struct recall recall;
    struct text answer;
    struct progress progress;
    struct eval_work prefill, decode[EVAL_PRESETS_MAX];
    size_t right[EVAL_PRESETS_MAX], asked[EVAL_PRESETS_MAX];
    struct table table;
    json_t *results;
};

/* ---- the questions ---- */

static enum status read_answers(struct question *question, const json_t *answers, const char *path, size_t line,
                                struct error *error) {
    size_t count = json_array_size(answers);
    if (count == 0 || count > ANSWERS_MAX)
        return error_set(error, STATUS_USAGE, "%s: line %zu: answers: found %zu, expected 1 to %d texts", path, line,
                         count, ANSWERS_MAX);
    for (size_t i = 0; i < count; i++) {
        const char *text = json_string_value(json_array_get(answers, i));
        if (text == NULL || text[0] == '\0')
            return error_set(error, STATUS_USAGE, "%s: line %zu: answers[%zu]: expected a text", path, line, i);
        question->answers[i] = strdup(text);
        if (question->answers[i] == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
        question->answer_count++;
    }
    return STATUS_OK;
}

static enum status read_question(struct ask_run *run, const char *text, size_t length, const char *path, size_t line,
                                 struct error *error) {
    json_error_t reason;
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &reason);
    const char *question = json_string_value(json_object_get(object, "question"));
    struct question *made = &run->questions[run->question_count];
    enum status status = STATUS_OK;
    if (object == NULL)
        status = error_set(error, STATUS_USAGE, "%s: line %zu: not a line of JSON: %s", path, line, reason.text);
    else if (question == NULL || question[0] == '\0')
        status = error_set(error, STATUS_USAGE, "%s: line %zu: question: expected a text", path, line);
    else if (run->question_count == QUESTIONS_MAX)
        status = error_set(error, STATUS_USAGE, "%s: line %zu: more than %d questions", path, line, QUESTIONS_MAX);
    if (status == STATUS_OK) {
        run->question_count++;
        made->text = strdup(question);
        status = made->text == NULL ? error_set(error, STATUS_MEMORY, "out of memory")
                                    : read_answers(made, json_object_get(object, "answers"), path, line, error);
    }
    json_decref(object);
    return status;
}

static enum status read_questions(struct ask_run *run, const char *path, struct error *error) {
    char *text;
    size_t length, line = 0;
    TRY(prompt_read_file(path, &text, &length, error));
    run->questions = calloc(QUESTIONS_MAX + 1, sizeof *run->questions);
    enum status status = run->questions == NULL ? error_set(error, STATUS_MEMORY, "out of memory") : STATUS_OK;
    for (size_t at = 0; status == STATUS_OK && at < length;) {
        const char *end = memchr(text + at, '\n', length - at);
        size_t count = end != NULL ? (size_t)(end - text) - at : length - at;
        line++;
        if (strspn(text + at, " \t\r") < count) status = read_question(run, text + at, count, path, line, error);
        at += count + 1;
    }
    free(text);
    if (status == STATUS_OK && run->question_count == 0)
        return error_set(error, STATUS_USAGE, "%s: no questions", path);
    return status;
}

static enum status tokenize(struct ask_run *run, struct error *error) {
    const struct tokenizer *tokenizer = run->evaluation->session.tokenizer;
    char *text;
    size_t length;
    TRY(evaluation_text(run->evaluation, &text, &length, &run->document_name, error));
    /* The document ends with a line end, so that questions have tokens of their own. */
    if (length == 0 || text[length - 1] != '\n') text[length++] = '\n'; /* over the closing zero */
    enum status status = tokenizer_encode(tokenizer, text, length, (struct tokenize_options){.add_special = true},
                                          &run->document, error);
    free(text);
    for (size_t i = 0; status == STATUS_OK && i < run->question_count; i++) {
        struct question *question = &run->questions[i];
        const struct tokenize_options plain = {.add_special = false};
        status = tokenizer_encode(tokenizer, question->text, strlen(question->text), plain, &question->tokens, error);
        question->token_budget = SPARE_TOKENS;
        for (size_t j = 0; status == STATUS_OK && j < question->answer_count; j++) {
            struct token_list list = {0};
            status =
                tokenizer_encode(tokenizer, question->answers[j], strlen(question->answers[j]), plain, &list, error);
            question->token_budget += list.count + 2; /* a blank, a comma */
            token_list_deinit(&list);
        }
    }
    return status;
}

static enum status open_run(struct ask_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    const char *path = option_text(evaluation->options, OPTION_EVAL_QUESTIONS);
    if (path == NULL) return error_set(error, STATUS_USAGE, "eval ask: which questions?  --questions FILE");
    TRY(read_questions(run, path, error));
    TRY(evaluation_open_model(evaluation, error));
    TRY(tokenize(run, error));
    uint64_t longest = 0;
    for (size_t i = 0; i < run->question_count; i++) {
        uint64_t tokens = run->questions[i].tokens.count + run->questions[i].token_budget;
        if (tokens > longest) longest = tokens;
    }
    TRY(evaluation_open_engine(evaluation, run->document.count + longest, error));
    const struct model_config *config = &evaluation->session.model->config;
    const struct recall_shape shape = {.layer_count = config->layer_count,
                                       .head_count = config->head_count,
                                       .kv_head_count = config->kv_head_count,
                                       .k_dimension = config->k_dimension,
                                       .scale = config->attention_scale,
                                       .softcap = config->score_softcap};
    return recall_create(&run->recall, &shape, run->document.count + longest, error);
}

/* ---- asking ---- */

static enum status read_document(struct ask_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    struct prefill_request request = {.tokens = run->document.ids,
                                      .token_count = run->document.count,
                                      .progress = progress_engine,
                                      .progress_context = &run->progress};
    double began = clock_seconds();
    sequence_truncate(evaluation->sequence, 0);
    progress_begin(&run->progress, "document", option_flag(evaluation->options, OPTION_QUIET));
    enum status status = engine_prefill(evaluation->session.engine, evaluation->sequence, &request, NULL, error);
    progress_end(&run->progress);
    run->prefill.tokens += run->document.count;
    run->prefill.seconds += clock_seconds() - began;
    return status;
}

/* The question is read with full attention except for its last token, as any prompt is. */
static enum status take_answer(struct ask_run *run, const struct question *question, uint64_t *steps, double *seconds,
                               struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    sequence_truncate(evaluation->sequence, run->document.count);
    struct prefill_request request = {.tokens = question->tokens.ids, .token_count = question->tokens.count - 1};
    if (request.token_count > 0)
        TRY(engine_prefill(evaluation->session.engine, evaluation->sequence, &request, NULL, error));
    struct answer_request answer = {.engine = evaluation->session.engine,
                                    .sequence = evaluation->sequence,
                                    .tokenizer = evaluation->session.tokenizer,
                                    .last_token = question->tokens.ids[question->tokens.count - 1],
                                    .token_budget = question->token_budget,
                                    .stop_asked = interrupt_requested};
    double began = clock_seconds();
    TRY(answer_greedy(&answer, &run->answer, steps, error));
    *seconds = clock_seconds() - began;
    return STATUS_OK;
}

/* The attention mass that the selection caught while answering, of the layers that select, in *caught, whose count is 0
 * without a selection.  The answer is taken once more for it, because looking costs more than answering. */
static enum status measure_mass(struct ask_run *run, const struct question *question, struct recall_cell *caught,
                                struct error *error) {
    struct engine *engine = run->evaluation->session.engine;
    const struct recall_shape *shape = &run->recall.shape;
    uint64_t steps;
    double seconds;
    *caught = (struct recall_cell){0};
    if (engine_select(engine) == NULL) return STATUS_OK;
    recall_reset(&run->recall);
    attention_set_observer(engine_attention(engine), recall_add, &run->recall);
    enum status status = take_answer(run, question, &steps, &seconds, error);
    attention_set_observer(engine_attention(engine), NULL, NULL);
    for (size_t layer = 0; layer < shape->layer_count; layer++)
        for (size_t head = 0; head < shape->head_count; head++)
            recall_cell_add(caught, recall_get(&run->recall, layer, head));
    return status;
}

static enum status report_answer(struct ask_run *run, size_t preset, const struct question *question,
                                 struct eval_work work, const struct recall_cell *caught, struct error *error) {
    const double mass = caught->count > 0 ? caught->mass / (double)caught->count : 1;
    struct evaluation *evaluation = run->evaluation;
    const struct session *session = &evaluation->session;
    uint64_t bytes = model_step_bytes(session->model) +
                     engine_step_bytes(session->engine, run->document.count + question->tokens.count);
    const char *answers[ANSWERS_MAX];
    for (size_t i = 0; i < question->answer_count; i++) answers[i] = question->answers[i];
    bool right = match_all(run->answer.bytes, run->answer.length, answers, question->answer_count) == 1;
    const char *last_line = strrchr(question->text, '\n');
    size_t blanks = strspn(run->answer.bytes != NULL ? run->answer.bytes : "", " ");
    run->right[preset] += right;
    run->asked[preset]++;
    run->decode[preset].tokens += work.tokens;
    run->decode[preset].seconds += work.seconds;
    table_cell(&run->table, "%s", last_line != NULL ? last_line + 1 : question->text);
    table_cell(&run->table, "%s", evaluation->labels[preset]);
    table_cell(&run->table, "%s", run->answer.bytes != NULL ? run->answer.bytes + blanks : "");
    table_cell(&run->table, "%s", right ? "yes" : "no");
    table_cell(&run->table, "%.1f", work.seconds > 0 ? (double)work.tokens / work.seconds : 0);
    table_cell(&run->table, "%.1f", (double)bytes / 1e6);
    table_cell(&run->table, "%.2f", 100 * mass);
    json_t *object = json_object();
    json_put(object, "question", json_string(question->text));
    json_put(object, "preset", json_string(evaluation->labels[preset]));
    json_put(object, "answer", json_text_without_zeros(run->answer.bytes, run->answer.length));
    json_put(object, "right", json_boolean(right));
    json_put(object, "decode", eval_work_json(work));
    json_put_uint(object, "step_bytes", bytes);
    json_put_number(object, "mass", mass);
    if (caught->mass_bound_count > 0)
        json_put_number(object, "mass_bound", caught->mass_bound / (double)caught->mass_bound_count);
    json_array_append(run->results, object);
    if (evaluation_wants_lines(evaluation)) return evaluation_line(evaluation, object, error);
    json_decref(object);
    return STATUS_OK;
}

static enum status ask(struct ask_run *run, size_t preset, const struct question *question, struct error *error) {
    struct eval_work work;
    struct recall_cell caught;
    TRY(measure_mass(run, question, &caught, error));
    TRY(take_answer(run, question, &work.tokens, &work.seconds, error));
    return report_answer(run, preset, question, work, &caught, error);
}

static enum status ask_all(struct ask_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    for (size_t i = 0; i < evaluation->preset_count; i++) {
        size_t preset = evaluation->order[i];
        TRY(evaluation_use_preset(evaluation, preset, error));
        if (i == 0 || evaluation_watches(evaluation, preset)) TRY(read_document(run, error));
        for (size_t j = 0; j < run->question_count; j++) TRY(ask(run, preset, &run->questions[j], error));
    }
    return STATUS_OK;
}

static enum status report(void *context, struct error *error) {
    struct ask_run *run = context;
    struct evaluation *evaluation = run->evaluation;
    json_t *root = evaluation_json(evaluation), *right = json_object();
    struct text note = {0};
    text_format(&note, "%s: %zu tokens read in %.1f s (%.0f tokens/s).  Right:", run->document_name,
                run->document.count, run->prefill.seconds,
                run->prefill.seconds > 0 ? (double)run->prefill.tokens / run->prefill.seconds : 0);
    for (size_t i = 0; i < evaluation->preset_count; i++) {
        text_format(&note, "%s %s %zu of %zu", i > 0 ? "," : "", evaluation->labels[i], run->right[i], run->asked[i]);
        json_put_uint(right, evaluation->labels[i], run->right[i]);
    }
    json_put_uint(root, "document_tokens", run->document.count);
    json_put(root, "prefill", eval_work_json(run->prefill));
    json_put(root, "right", right);
    json_put(root, "results", json_incref(run->results));
    enum status status = note.failed ? error_set(error, STATUS_MEMORY, "out of memory for the report")
                                     : evaluation_report(evaluation, &run->table, note.bytes, root, error);
    text_deinit(&note);
    return status;
}

static void close_run(struct ask_run *run) {
    for (size_t i = 0; i < run->question_count; i++) {
        struct question *question = &run->questions[i];
        free(question->text);
        for (size_t j = 0; j < question->answer_count; j++) free(question->answers[j]);
        token_list_deinit(&question->tokens);
    }
    free(run->questions);
    token_list_deinit(&run->document);
    recall_destroy(&run->recall);
    text_deinit(&run->answer);
    table_deinit(&run->table);
    json_decref(run->results);
}

enum status eval_ask(struct evaluation *evaluation, struct error *error) {
    static const char *const heads[] = {"question", "preset", "answer", "right", "tokens/s", "MB/token", "mass %"};
    struct ask_run run = {
        .evaluation = evaluation, .table = {.column_count = sizeof heads / sizeof heads[0]}, .results = json_array()};
    for (size_t i = 0; i < run.table.column_count; i++) {
        run.table.is_number[i] = i > 3;
        table_cell(&run.table, "%s", heads[i]);
    }
    enum status status = open_run(&run, error);
    if (status == STATUS_OK) {
        status = ask_all(&run, error);
        status = evaluation_conclude(status, report, &run, error);
    }
    close_run(&run);
    return status;
}
