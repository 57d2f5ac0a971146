/* loam eval ruler: tasks x lengths x samples, each prefilled once and answered by every preset. */
#include <stdlib.h>
#include <string.h>

#include "cli/eval.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "eval/answer.h"
#include "eval/heat_map.h"
#include "eval/match.h"
#include "eval/ruler.h"
#include "platform/clock.h"

struct score {
    double sum;
    size_t count;
};

struct ruler_run {
    struct evaluation *evaluation;
    struct essay essay;
    struct ruler_options ruler;
    enum ruler_task tasks[RULER_TASK_COUNT];
    size_t task_count;
    const uint64_t *lengths;
    size_t length_count;
    uint64_t sample_count, seed;
    struct score scores[EVAL_PRESETS_MOST][RULER_TASK_COUNT]
                       [EVAL_LENGTHS_MOST]; /* by index into tasks, lengths */
    struct heat_map map;
    struct text answer;
    struct progress progress;
    uint64_t tokens_done;
    struct eval_work prefill, decode[EVAL_PRESETS_MOST];
    double generate_seconds;
};

/* ---- what is asked for ---- */

static void add_task(struct ruler_run *run, enum ruler_task task) {
    for (size_t i = 0; i < run->task_count; i++)
        if (run->tasks[i] == task) return;
    run->tasks[run->task_count++] = task;
}

/* The choices of --tasks are the tasks in their order, then niah and all. */
static void read_tasks(struct ruler_run *run, const struct options *options) {
    const struct option_value *list = option_list(options, OPTION_EVAL_TASKS);
    for (size_t i = 0; i < list->list_count; i++) {
        size_t first = (size_t)list->list[i], last = first;
        if (first >= RULER_TASK_COUNT) {
            last = first == RULER_TASK_COUNT ? RULER_NIAH_MULTIQUERY : RULER_TASK_COUNT - 1;
            first = 0;
        }
        for (size_t task = first; task <= last; task++) add_task(run, (enum ruler_task)task);
    }
}

static uint64_t longest(const struct ruler_run *run) {
    uint64_t most = 0;
    for (size_t i = 0; i < run->length_count; i++)
        if (run->lengths[i] > most) most = run->lengths[i];
    return most;
}

static enum status open_run(struct ruler_run *run, bool with_engine, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    const struct options *options = evaluation->options;
    read_tasks(run, options);
    run->lengths = option_list(options, OPTION_EVAL_LENGTHS)->list;
    run->length_count = option_list(options, OPTION_EVAL_LENGTHS)->list_count;
    run->sample_count = option_count(options, OPTION_EVAL_SAMPLES);
    run->seed = (uint64_t)option_integer(options, OPTION_SEED);
    char *text;
    const char *name;
    size_t length;
    TRY(evaluation_text(evaluation, &text, &length, &name, error));
    enum status status = essay_create(&run->essay, text, length, name, error);
    free(text);
    TRY(status);
    TRY(with_engine ? evaluation_open_model(evaluation, error)
                    : evaluation_open_vocabulary(evaluation, error));
    run->ruler = (struct ruler_options){
        .seed = run->seed, .essay = &run->essay, .tokenizer = evaluation->session.tokenizer};
    run->map = (struct heat_map){
        .title = "Needles found", .panel_count = evaluation->preset_count, .length_count = run->length_count};
    for (size_t i = 0; i < run->length_count; i++) run->map.lengths[i] = run->lengths[i];
    for (size_t i = 0; i < evaluation->preset_count; i++) run->map.panels[i] = evaluation->labels[i];
    return with_engine ? evaluation_open_engine(evaluation, longest(run), error) : STATUS_OK;
}

/* ---- samples ---- */

struct place { /* of a sample, by index */
    size_t task, length;
    uint64_t sample;
};

static json_t *sample_json(const struct ruler_run *run, struct place place,
                           const struct ruler_sample *sample) {
    json_t *object = json_object(), *answers = json_array();
    json_add(object, "task", json_string(ruler_task_name(run->tasks[place.task])));
    json_add_uint(object, "length", run->lengths[place.length]);
    json_add_uint(object, "index", place.sample);
    for (size_t i = 0; i < sample->answer_count; i++)
        json_array_append_new(answers, json_string(sample->answers[i]));
    json_add(object, "answers", answers);
    json_add(object, "depth", sample->depth >= 0 ? json_real(sample->depth) : json_null());
    json_add_uint(object, "prompt_tokens", sample->tokens.count);
    json_add_uint(object, "token_budget", sample->token_budget);
    return object;
}

static double score_of(enum ruler_task task, const struct ruler_sample *sample, const struct text *answer) {
    const char *references[RULER_ANSWERS_MOST];
    for (size_t i = 0; i < sample->answer_count; i++) references[i] = sample->answers[i];
    return (ruler_task_is_part(task) ? match_part : match_all)(answer->bytes, answer->length, references,
                                                               sample->answer_count);
}

static enum status take_answer(struct ruler_run *run, size_t preset, struct place place,
                               const struct ruler_sample *sample, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    enum ruler_task task = run->tasks[place.task];
    struct answer_request request = {.engine = evaluation->session.engine,
                                     .sequence = evaluation->sequence,
                                     .tokenizer = evaluation->session.tokenizer,
                                     .last_token = sample->tokens.ids[sample->tokens.count - 1],
                                     .token_budget = sample->token_budget,
                                     .stop_asked = interrupt_requested};
    uint64_t steps;
    double began = clock_seconds();
    TRY(answer_greedy(&request, &run->answer, &steps, error));
    run->decode[preset].tokens += steps;
    run->decode[preset].seconds += clock_seconds() - began;
    double value = score_of(task, sample, &run->answer);
    struct score *score = &run->scores[preset][place.task][place.length];
    score->sum += value;
    score->count++;
    if (ruler_task_is_needle(task)) heat_map_add(&run->map, preset, place.length, sample->depth, value);
    if (!evaluation_wants_lines(evaluation)) return STATUS_OK;
    json_t *object = sample_json(run, place, sample);
    json_add(object, "preset", json_string(evaluation->labels[preset]));
    json_add(object, "answer", json_bytes(run->answer.bytes, run->answer.length));
    json_add_number(object, "score", value);
    return evaluation_line(evaluation, object, error);
}

static enum status read_prompt(struct ruler_run *run, const struct ruler_sample *sample,
                               struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    sequence_truncate(evaluation->sequence, 0);
    double began = clock_seconds();
    enum status status = answer_prefill(evaluation->session.engine, evaluation->sequence, sample->tokens.ids,
                                        sample->tokens.count, progress_engine, &run->progress, error);
    run->prefill.tokens += sample->tokens.count - 1;
    run->prefill.seconds += clock_seconds() - began;
    return status;
}

static enum status run_sample(struct ruler_run *run, struct place place, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    struct ruler_sample sample;
    double began = clock_seconds();
    TRY(ruler_sample_create(&sample, &run->ruler, run->tasks[place.task], run->lengths[place.length],
                            place.sample, error));
    run->generate_seconds += clock_seconds() - began;
    run->progress.label = ruler_task_name(run->tasks[place.task]);
    run->progress.offset = run->tokens_done;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < evaluation->preset_count && status == STATUS_OK; i++) {
        size_t preset = evaluation->order[i];
        status = evaluation_use_preset(evaluation, preset, error);
        /* Once for all, except that a method that watches the queries of a prompt must see them itself. */
        if (status == STATUS_OK && (i == 0 || evaluation_watches(evaluation, preset)))
            status = read_prompt(run, &sample, error);
        if (status == STATUS_OK) status = take_answer(run, preset, place, &sample, error);
    }
    run->tokens_done += run->lengths[place.length];
    ruler_sample_deinit(&sample);
    return status;
}

/* Calls `each` for every sample: the lengths one after the other, samples before tasks, so that an interrupted
 * run has something of every task. */
static enum status for_each(struct ruler_run *run,
                            enum status (*each)(struct ruler_run *, struct place, struct error *),
                            struct error *error) {
    for (size_t length = 0; length < run->length_count; length++)
        for (uint64_t sample = 0; sample < run->sample_count; sample++)
            for (size_t task = 0; task < run->task_count; task++)
                TRY(each(run, (struct place){task, length, sample}, error));
    return STATUS_OK;
}

/* ---- reporting ---- */

static void score_cell(struct table *table, struct score score) {
    struct interval interval = match_wilson(score.sum, score.count);
    if (score.count == 0)
        table_cell(table, "-");
    else
        table_cell(table, "%.1f [%.1f, %.1f]", 100 * score.sum / (double)score.count, 100 * interval.low,
                   100 * interval.high);
}

/* RULER's figure for a length: the mean over the tasks of their means. */
static void mean_cell(const struct ruler_run *run, struct table *table, size_t preset, size_t length) {
    double sum = 0;
    size_t count = 0;
    for (size_t task = 0; task < run->task_count; task++) {
        struct score score = run->scores[preset][task][length];
        if (score.count == 0) continue;
        sum += score.sum / (double)score.count;
        count++;
    }
    if (count == 0)
        table_cell(table, "-");
    else
        table_cell(table, "%.1f", 100 * sum / (double)count);
}

static void fill_table(const struct ruler_run *run, struct table *table) {
    const struct evaluation *evaluation = run->evaluation;
    *table = (struct table){.column_count = 3 + evaluation->preset_count};
    for (size_t i = 1; i < table->column_count; i++) table->is_number[i] = true;
    table_cell(table, "task");
    table_cell(table, "length");
    table_cell(table, "samples");
    for (size_t i = 0; i < evaluation->preset_count; i++) table_cell(table, "%s", evaluation->labels[i]);
    for (size_t length = 0; length < run->length_count; length++)
        for (size_t task = 0; task <= run->task_count; task++) {
            bool is_mean = task == run->task_count;
            if (is_mean && run->task_count == 1) continue;
            table_cell(table, "%s", is_mean ? "mean" : ruler_task_name(run->tasks[task]));
            table_cell(table, "%llu", (unsigned long long)run->lengths[length]);
            table_cell(table, "%zu", run->scores[0][is_mean ? 0 : task][length].count);
            for (size_t preset = 0; preset < evaluation->preset_count; preset++)
                if (is_mean)
                    mean_cell(run, table, preset, length);
                else
                    score_cell(table, run->scores[preset][task][length]);
        }
}

static json_t *results_json(const struct ruler_run *run) {
    json_t *results = json_array();
    for (size_t preset = 0; preset < run->evaluation->preset_count; preset++)
        for (size_t task = 0; task < run->task_count; task++)
            for (size_t length = 0; length < run->length_count; length++) {
                struct score score = run->scores[preset][task][length];
                struct interval interval = match_wilson(score.sum, score.count);
                if (score.count == 0) continue;
                json_t *result = json_object();
                json_add(result, "preset", json_string(run->evaluation->labels[preset]));
                json_add(result, "task", json_string(ruler_task_name(run->tasks[task])));
                json_add_uint(result, "length", run->lengths[length]);
                json_add_uint(result, "samples", score.count);
                json_add_number(result, "score", score.sum / (double)score.count);
                json_add_number(result, "low", interval.low);
                json_add_number(result, "high", interval.high);
                json_array_append_new(results, result);
            }
    return results;
}

static enum status write_map(const struct ruler_run *run, struct error *error) {
    const char *path = option_text(run->evaluation->options, OPTION_EVAL_SVG);
    if (path == NULL) return STATUS_OK;
    struct text text = {0};
    struct output_file file = {0};
    heat_map_write(&run->map, &text);
    enum status status = text.failed ? error_set(error, STATUS_MEMORY, "out of memory for the picture")
                                     : output_file_open(&file, path, error);
    if (status == STATUS_OK) status = output_file_put(&file, text.bytes, text.length, error);
    if (status == STATUS_OK) status = output_file_commit(&file, error);
    output_file_abort(&file);
    text_deinit(&text);
    return status;
}

static enum status report(struct ruler_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    char note[400];
    int used = snprintf(note, sizeof note,
                        "RULER-style tasks (own text), seed %llu; percent found, 95%% interval (Wilson). "
                        "Prefill %.1f t/s",
                        (unsigned long long)run->seed,
                        run->prefill.seconds > 0 ? (double)run->prefill.tokens / run->prefill.seconds : 0);
    for (size_t i = 0; i < evaluation->preset_count && used > 0 && (size_t)used < sizeof note; i++)
        used +=
            snprintf(note + used, sizeof note - (size_t)used, ", %s %.1f t/s", evaluation->labels[i],
                     run->decode[i].seconds > 0 ? (double)run->decode[i].tokens / run->decode[i].seconds : 0);
    json_t *root = evaluation_json(evaluation), *decode = json_object();
    json_add_uint(root, "seed", run->seed);
    json_add(root, "prefill", eval_work_json(run->prefill));
    for (size_t i = 0; i < evaluation->preset_count; i++)
        json_add(decode, evaluation->labels[i], eval_work_json(run->decode[i]));
    json_add(root, "decode", decode);
    json_add_number(root, "generate_seconds", run->generate_seconds);
    json_add(root, "results", results_json(run));
    struct table table;
    fill_table(run, &table);
    enum status status = evaluation_report(evaluation, &table, note, root, error);
    table_deinit(&table);
    return status == STATUS_OK ? write_map(run, error) : status;
}

/* ---- --emit ---- */

static enum status emit_sample(struct ruler_run *run, struct place place, struct error *error) {
    if (interrupt_requested()) return error_set(error, STATUS_INTERRUPTED, "interrupted");
    struct ruler_sample sample;
    TRY(ruler_sample_create(&sample, &run->ruler, run->tasks[place.task], run->lengths[place.length],
                            place.sample, error));
    json_t *object = sample_json(run, place, &sample);
    json_add(object, "prompt", json_bytes(sample.prompt, sample.prompt_bytes));
    json_add(object, "answer_text", json_string(sample.answer_text));
    ruler_sample_deinit(&sample);
    return evaluation_line(run->evaluation, object, error);
}

static enum status emit_all(struct ruler_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    evaluation->output = EVAL_OUTPUT_MD; /* the lines go to one file */
    output_file_abort(&evaluation->jsonl);
    TRY(output_file_open(&evaluation->jsonl, option_text(evaluation->options, OPTION_EVAL_EMIT), error));
    TRY(for_each(run, emit_sample, error));
    return output_file_commit(&evaluation->jsonl, error);
}

/* A length that a task cannot have is said before the work. */
static enum status check_lengths(struct ruler_run *run, struct error *error) {
    for (size_t length = 0; length < run->length_count; length++)
        for (size_t task = 0; task < run->task_count; task++) {
            struct ruler_sample sample;
            TRY(ruler_sample_create(&sample, &run->ruler, run->tasks[task], run->lengths[length], 0, error));
            ruler_sample_deinit(&sample);
        }
    return STATUS_OK;
}

static enum status evaluate(struct ruler_run *run, struct error *error) {
    TRY(check_lengths(run, error));
    progress_begin(&run->progress, "eval", option_flag(run->evaluation->options, OPTION_QUIET));
    for (size_t i = 0; i < run->length_count; i++)
        run->progress.total += run->lengths[i] * run->sample_count * run->task_count;
    enum status status = for_each(run, run_sample, error);
    progress_end(&run->progress);
    if (status != STATUS_OK && status != STATUS_INTERRUPTED) return status;
    struct error later; /* what was measured before Ctrl-C is reported */
    enum status reported = report(run, status == STATUS_OK ? error : &later);
    return status != STATUS_OK ? status : reported;
}

enum status eval_ruler(struct evaluation *evaluation, struct error *error) {
    struct ruler_run *run = calloc(1, sizeof *run);
    if (run == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    run->evaluation = evaluation;
    bool emits = option_text(evaluation->options, OPTION_EVAL_EMIT) != NULL;
    enum status status = open_run(run, !emits, error);
    if (status == STATUS_OK) status = emits ? emit_all(run, error) : evaluate(run, error);
    essay_deinit(&run->essay);
    text_deinit(&run->answer);
    free(run);
    return status;
}
