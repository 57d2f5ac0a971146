/* loam-lab eval ruler: tasks x lengths x samples, each prefilled once and answered by every preset. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cli/interrupt.h"
#include "lab/cli/eval.h"
#include "lab/cli/eval_resume.h"
#include "lab/eval/answer.h"
#include "lab/eval/heat_map.h"
#include "lab/eval/match.h"
#include "lab/eval/ruler.h"
#include "platform/clock.h"
#include "server/json_text.h"

/* Tasks whose samples are made together, of one text, or each of its own text. */
struct group {
    size_t tasks[RULER_TASK_COUNT]; /* by index into ruler_run.tasks */
    size_t task_count;
    bool is_shared;
};

struct ruler_run {
    struct evaluation *evaluation;
    struct essay essay;
    struct ruler_options ruler;
    enum ruler_task tasks[RULER_TASK_COUNT];
    size_t task_count;
    struct group groups[RULER_TASK_COUNT];
    size_t group_count;
    const uint64_t *lengths;
    size_t length_count;
    uint64_t sample_count, seed;
    char id[EVAL_RUN_ID_BYTES]; /* in every line */
    bool *done;                 /* [presets][tasks][lengths][samples], owned; of --resume */
    size_t done_count;
    struct task_scores scores[EVAL_PRESETS_MAX][RULER_TASK_COUNT][EVAL_LENGTHS_MAX]; /* by index into tasks, lengths */
    struct heat_map map;
    struct text answer;
    struct progress progress;
    struct {
        uint64_t tokens;
        struct eval_work prefill, decode[EVAL_PRESETS_MAX];
        double generate_seconds;
    } spent;
};

/* ---- what is asked for ---- */

static void add_task(struct ruler_run *run, enum ruler_task task) {
    for (size_t i = 0; i < run->task_count; i++)
        if (run->tasks[i] == task) return;
    run->tasks[run->task_count++] = task;
}

/* The values of --tasks: the tasks in their order, then niah and all. */
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

enum { SHARED_NONE, SHARED_NIAH, SHARED_ALL }; /* choices of --shared-text */

static void group_tasks(struct ruler_run *run, uint64_t sharing) {
    struct group *shared = NULL;
    for (size_t i = 0; i < run->task_count; i++) {
        bool can_share = sharing != SHARED_NONE && ruler_task_can_share(run->tasks[i]) &&
                         (sharing == SHARED_ALL || run->tasks[i] != RULER_VT);
        struct group *group = can_share && shared != NULL ? shared : &run->groups[run->group_count++];
        if (can_share) shared = group;
        group->is_shared = can_share;
        group->tasks[group->task_count++] = i;
    }
}

static uint64_t longest(const struct ruler_run *run) {
    uint64_t max = 0;
    for (size_t i = 0; i < run->length_count; i++)
        if (run->lengths[i] > max) max = run->lengths[i];
    return max;
}

static enum status open_run(struct ruler_run *run, bool with_engine, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    const struct options *options = evaluation->options;
    read_tasks(run, options);
    group_tasks(run, option_count(options, OPTION_EVAL_SHARED));
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
                    : session_open_vocabulary(&evaluation->session, evaluation->options, error));
    run->ruler =
        (struct ruler_options){.seed = run->seed, .essay = &run->essay, .tokenizer = evaluation->session.tokenizer};
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

static void deinit_samples(struct ruler_sample *samples, const struct group *group) {
    for (size_t i = 0; i < group->task_count; i++) ruler_sample_deinit(&samples[i]);
}

/* samples: [group->task_count]. */
static enum status create_samples(const struct ruler_run *run, const struct group *group, size_t length, uint64_t index,
                                  struct ruler_sample *samples, struct error *error) {
    enum ruler_task tasks[RULER_TASK_COUNT];
    for (size_t i = 0; i < group->task_count; i++) tasks[i] = run->tasks[group->tasks[i]];
    if (group->is_shared)
        return ruler_samples_create_shared(samples, &run->ruler, tasks, group->task_count, run->lengths[length], index,
                                           error);
    ASSERT(group->task_count == 1);
    return ruler_sample_create(samples, &run->ruler, tasks[0], run->lengths[length], index, error);
}

/* Tokens with which all prompts begin, the last of each left out. */
static size_t common_tokens(const struct ruler_sample *samples, size_t count) {
    size_t common = samples[0].tokens.count - 1;
    for (size_t i = 1; i < count; i++) {
        size_t same = 0, max = min_size(common, samples[i].tokens.count - 1);
        while (same < max && samples[i].tokens.ids[same] == samples[0].tokens.ids[same]) same++;
        common = same;
    }
    return common;
}

static bool *done_at(const struct ruler_run *run, size_t preset, struct place place) {
    size_t index = ((preset * run->task_count + place.task) * run->length_count + place.length) * run->sample_count;
    return &run->done[index + place.sample];
}

/* The fields at the beginning of every line of one evaluation, apart from the presets. */
static void name_run(struct ruler_run *run) {
    struct evaluation *evaluation = run->evaluation;
    struct text what = {0};
    text_format(&what, "seed %llu shared", (unsigned long long)run->seed);
    for (size_t i = 0; i < run->group_count; i++)
        for (size_t j = 0; run->groups[i].is_shared && j < run->groups[i].task_count; j++)
            text_format(&what, " %s", ruler_task_name(run->tasks[run->groups[i].tasks[j]]));
    for (size_t i = 0; i < run->essay.sentence_count; i++)
        text_append(&what, run->essay.sentences[i].bytes, run->essay.sentences[i].length);
    evaluation_run_id(evaluation, &what, run->id);
    text_deinit(&what);
}

static json_t *sample_json(const struct ruler_run *run, struct place place, bool is_shared,
                           const struct ruler_sample *sample) {
    json_t *object = json_object(), *answers = json_array();
    json_put(object, "task", json_string(ruler_task_name(run->tasks[place.task])));
    json_put_uint(object, "length", run->lengths[place.length]);
    json_put_uint(object, "index", place.sample);
    for (size_t i = 0; i < sample->answer_count; i++) json_array_append_new(answers, json_string(sample->answers[i]));
    json_put(object, "answers", answers);
    json_put(object, "depth", sample->depth >= 0 ? json_real(sample->depth) : json_null());
    json_put_uint(object, "prompt_tokens", sample->tokens.count);
    json_put_uint(object, "token_budget", sample->token_budget);
    json_put(object, "shared_text", json_boolean(is_shared));
    if (run->id[0] != '\0') json_put(object, "run", json_string(run->id));
    return object;
}

static double score_of(enum ruler_task task, const struct ruler_sample *sample, const struct text *answer) {
    const char *references[RULER_ANSWERS_MAX];
    for (size_t i = 0; i < sample->answer_count; i++) references[i] = sample->answers[i];
    return (ruler_task_is_part(task) ? match_part : match_all)(answer->bytes, answer->length, references,
                                                               sample->answer_count);
}

struct attending { /* who answers */
    struct engine *engine;
    struct sequence *sequence;
};

static void count_score(struct ruler_run *run, size_t preset, struct place place, double depth, double value) {
    struct task_scores *score = &run->scores[preset][place.task][place.length];
    score->sum += value;
    score->squares += value * value;
    score->count++;
    if (ruler_task_is_needle(run->tasks[place.task])) heat_map_add(&run->map, preset, place.length, depth, value);
}

/* What one preset answers. */
struct question {
    size_t preset;
    struct place place;
    bool is_shared; /* the text has the needles of several tasks */
    const struct ruler_sample *sample;
};

static enum status take_answer(struct ruler_run *run, struct attending attending, const struct question *question,
                               struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    const struct ruler_sample *sample = question->sample;
    const struct place place = question->place;
    const size_t preset = question->preset;
    struct answer_request request = {.engine = attending.engine,
                                     .sequence = attending.sequence,
                                     .tokenizer = evaluation->session.tokenizer,
                                     .last_token = sample->tokens.ids[sample->tokens.count - 1],
                                     .token_budget = sample->token_budget,
                                     .stop_asked = interrupt_requested};
    uint64_t steps;
    double began = clock_seconds();
    TRY(answer_greedy(&request, &run->answer, &steps, error));
    run->spent.decode[preset].tokens += steps;
    run->spent.decode[preset].seconds += clock_seconds() - began;
    double value = score_of(run->tasks[place.task], sample, &run->answer);
    count_score(run, preset, place, sample->depth, value);
    if (!evaluation_wants_lines(evaluation)) return STATUS_OK;
    json_t *object = sample_json(run, place, question->is_shared, sample);
    json_put(object, "preset", json_string(evaluation->labels[preset]));
    json_put(object, "answer", json_text_without_zeros(run->answer.bytes, run->answer.length));
    json_put_number(object, "score", value);
    return evaluation_line(evaluation, object, error);
}

/* The first token_count tokens of the prompt, of which the sequence has `kept` already. */
static enum status read_tokens(struct ruler_run *run, struct attending attending, const struct ruler_sample *sample,
                               size_t token_count, size_t kept, struct error *error) {
    sequence_truncate(attending.sequence, kept);
    double began = clock_seconds();
    const struct prefill_request prompt = {.tokens = sample->tokens.ids,
                                           .token_count = token_count + 1,
                                           .progress = kept == 0 ? progress_engine : NULL,
                                           .progress_context = &run->progress};
    enum status status = answer_prefill(attending.engine, attending.sequence, &prompt, error);
    run->spent.prefill.tokens += token_count - kept;
    run->spent.prefill.seconds += clock_seconds() - began;
    return status;
}

static bool all_done(const struct ruler_run *run, const struct group *group, size_t length, uint64_t index) {
    for (size_t i = 0; i < run->evaluation->preset_count; i++)
        for (size_t j = 0; j < group->task_count; j++)
            if (!*done_at(run, i, (struct place){group->tasks[j], length, index})) return false;
    return true;
}

/* The samples of a group under way. */
struct reading {
    size_t common; /* tokens with which all prompts begin */
    size_t held;   /* of them, in the evaluation's sequence */
    bool filled;   /* the current preset's tiers have them */
};

/* Every preset answers over the one KV. */
static enum status answer_in_memory(struct ruler_run *run, struct reading *reading, const struct question *question,
                                    struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    struct attending attending = {evaluation->session.engine, evaluation->sequence};
    const struct ruler_sample *sample = question->sample;
    TRY(evaluation_use_preset(evaluation, question->preset, error));
    /* Once for all presets, except those that watch the queries of a prompt: they must see them. */
    if (evaluation_watches(evaluation, question->preset)) reading->held = 0;
    TRY(read_tokens(run, attending, sample, sample->tokens.count - 1, reading->held, error));
    reading->held = reading->common;
    return take_answer(run, attending, question, error);
}

/* Every preset answers over KV of its own, in the tiers. */
static enum status answer_in_tiers(struct ruler_run *run, struct reading *reading, const struct question *question,
                                   struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    const struct ruler_sample *sample = question->sample;
    const size_t preset = question->preset, common = reading->common;
    if (reading->held == 0) {
        TRY(evaluation_use_preset(evaluation, EVAL_FULL, error));
        TRY(read_tokens(run, (struct attending){evaluation->session.engine, evaluation->sequence}, sample, common, 0,
                        error));
        TRY(eval_tiers_open(evaluation, run->lengths[question->place.length], error));
    }
    reading->held = common;
    if (!reading->filled) TRY(eval_tiers_fill(evaluation, preset, common, error));
    reading->filled = true;
    struct attending attending = {evaluation->tiers.engines[preset], evaluation->tiers.sequences[preset]};
    TRY(read_tokens(run, attending, sample, sample->tokens.count - 1, common, error));
    return take_answer(run, attending, question, error);
}

static enum status answer_samples(struct ruler_run *run, const struct group *group, const struct ruler_sample *samples,
                                  size_t length, uint64_t index, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    struct reading reading = {.common = common_tokens(samples, group->task_count)};
    for (size_t i = 0; i < evaluation->preset_count; i++) {
        size_t preset = evaluation->order[i];
        reading.filled = false;
        for (size_t j = 0; j < group->task_count; j++) {
            const struct question question = {.preset = preset,
                                              .place = {group->tasks[j], length, index},
                                              .is_shared = group->is_shared,
                                              .sample = &samples[j]};
            if (*done_at(run, preset, question.place)) continue;
            run->progress.label = ruler_task_name(run->tasks[question.place.task]);
            TRY((evaluation->tiers.used ? answer_in_tiers : answer_in_memory)(run, &reading, &question, error));
        }
    }
    return STATUS_OK;
}

static enum status run_group(struct ruler_run *run, const struct group *group, size_t length, uint64_t index,
                             struct error *error) {
    struct ruler_sample samples[RULER_TASK_COUNT];
    run->progress.offset = run->spent.tokens;
    run->spent.tokens += run->lengths[length];
    if (all_done(run, group, length, index)) return STATUS_OK;
    double began = clock_seconds();
    TRY(create_samples(run, group, length, index, samples, error));
    run->spent.generate_seconds += clock_seconds() - began;
    enum status status = answer_samples(run, group, samples, length, index, error);
    deinit_samples(samples, group);
    return status;
}

/* Calls `each` for every group and sample: lengths in their order, and samples before tasks, so that an interrupted
 * run has something of every task. */
static enum status for_each(struct ruler_run *run,
                            enum status (*each)(struct ruler_run *, const struct group *, size_t length, uint64_t index,
                                                struct error *),
                            struct error *error) {
    for (size_t length = 0; length < run->length_count; length++)
        for (uint64_t index = 0; index < run->sample_count; index++)
            for (size_t i = 0; i < run->group_count; i++) TRY(each(run, &run->groups[i], length, index, error));
    return STATUS_OK;
}

/* ---- --resume ---- */

/* A line of an earlier run, counted if it belongs to this one. */
static void take_line(void *context, const json_t *line) {
    struct ruler_run *run = context;
    const char *task = json_string_value(json_object_get(line, "task")),
               *preset = json_string_value(json_object_get(line, "preset"));
    const json_t *score = json_object_get(line, "score");
    struct place place = {.sample = (uint64_t)json_integer_value(json_object_get(line, "index"))};
    uint64_t length = (uint64_t)json_integer_value(json_object_get(line, "length"));
    size_t p = 0;
    while (p < run->evaluation->preset_count && (preset == NULL || strcmp(run->evaluation->labels[p], preset) != 0))
        p++;
    while (place.task < run->task_count && (task == NULL || strcmp(ruler_task_name(run->tasks[place.task]), task) != 0))
        place.task++;
    while (place.length < run->length_count && run->lengths[place.length] != length) place.length++;
    if (p == run->evaluation->preset_count || place.task == run->task_count || place.length == run->length_count ||
        place.sample >= run->sample_count || !json_is_number(score) || *done_at(run, p, place))
        return;
    *done_at(run, p, place) = true;
    run->done_count++;
    count_score(run, p, place, json_number_value(json_object_get(line, "depth")), json_number_value(score));
}

static enum status resume(struct ruler_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    size_t cells = evaluation->preset_count * run->task_count * run->length_count;
    run->done = calloc(cells, run->sample_count * sizeof *run->done);
    if (run->done == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    name_run(run);
    return evaluation->resumes ? evaluation_resume(evaluation, run->id, take_line, run, error) : STATUS_OK;
}

/* ---- reporting ---- */

static void score_cell(struct table *table, struct task_scores score) {
    struct interval interval = match_wilson(score.sum, score.count);
    if (score.count == 0)
        table_cell(table, "-");
    else
        table_cell(table, "%.1f [%.1f, %.1f]", 100 * score.sum / (double)score.count, 100 * interval.low,
                   100 * interval.high);
}

/* RULER's figure for a length: the mean of the tasks' means, with its standard error. */
static struct mean_of_tasks mean_of(const struct ruler_run *run, size_t preset, size_t length) {
    return match_mean(&run->scores[preset][0][length], EVAL_LENGTHS_MAX, run->task_count);
}

static void mean_cell(struct table *table, struct mean_of_tasks mean) {
    if (mean.count == 0)
        table_cell(table, "-");
    else if (isnan(mean.error))
        table_cell(table, "%.1f", 100 * mean.mean);
    else
        table_cell(table, "%.1f ± %.1f", 100 * mean.mean, 100 * mean.error);
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
                    mean_cell(table, mean_of(run, preset, length));
                else
                    score_cell(table, run->scores[preset][task][length]);
        }
}

static json_t *results_json(const struct ruler_run *run) {
    json_t *results = json_array();
    for (size_t preset = 0; preset < run->evaluation->preset_count; preset++)
        for (size_t task = 0; task < run->task_count; task++)
            for (size_t length = 0; length < run->length_count; length++) {
                struct task_scores score = run->scores[preset][task][length];
                struct interval interval = match_wilson(score.sum, score.count);
                if (score.count == 0) continue;
                json_t *result = json_object();
                json_put(result, "preset", json_string(run->evaluation->labels[preset]));
                json_put(result, "task", json_string(ruler_task_name(run->tasks[task])));
                json_put_uint(result, "length", run->lengths[length]);
                json_put_uint(result, "samples", score.count);
                json_put_number(result, "score", score.sum / (double)score.count);
                json_put_number(result, "low", interval.low);
                json_put_number(result, "high", interval.high);
                json_array_append_new(results, result);
            }
    return results;
}

static json_t *means_json(const struct ruler_run *run) {
    json_t *means = json_array();
    for (size_t preset = 0; preset < run->evaluation->preset_count; preset++)
        for (size_t length = 0; length < run->length_count; length++) {
            struct mean_of_tasks mean = mean_of(run, preset, length);
            if (mean.count == 0) continue;
            json_t *object = json_object();
            json_put(object, "preset", json_string(run->evaluation->labels[preset]));
            json_put_uint(object, "length", run->lengths[length]);
            json_put_uint(object, "tasks", mean.count);
            json_put_number(object, "score", mean.mean);
            json_put_number(object, "error", mean.error);
            json_array_append_new(means, object);
        }
    return means;
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

static enum status report(void *context, struct error *error) {
    struct ruler_run *run = context;
    struct evaluation *evaluation = run->evaluation;
    char note[400];
    int used =
        snprintf(note, sizeof note,
                 "RULER-style tasks (own text), seed %llu; percent found, 95%% interval (Wilson), "
                 "mean of the tasks with its standard error. "
                 "Prefill %.1f t/s",
                 (unsigned long long)run->seed,
                 run->spent.prefill.seconds > 0 ? (double)run->spent.prefill.tokens / run->spent.prefill.seconds : 0);
    for (size_t i = 0; i < evaluation->preset_count && used > 0 && (size_t)used < sizeof note; i++)
        used += snprintf(
            note + used, sizeof note - (size_t)used, ", %s %.1f t/s", evaluation->labels[i],
            run->spent.decode[i].seconds > 0 ? (double)run->spent.decode[i].tokens / run->spent.decode[i].seconds : 0);
    json_t *root = evaluation_json(evaluation), *decode = json_object();
    json_put_uint(root, "seed", run->seed);
    json_put(root, "prefill", eval_work_json(run->spent.prefill));
    for (size_t i = 0; i < evaluation->preset_count; i++)
        json_put(decode, evaluation->labels[i], eval_work_json(run->spent.decode[i]));
    json_put(root, "decode", decode);
    if (evaluation->tiers.used) {
        json_t *tiers = json_object();
        for (size_t i = 0; i < evaluation->preset_count; i++)
            json_put(tiers, evaluation->labels[i], eval_tiers_json(evaluation, i));
        json_put(root, "tiers", tiers);
    }
    json_put_number(root, "generate_seconds", run->spent.generate_seconds);
    json_put(root, "results", results_json(run));
    json_put(root, "means", means_json(run));
    struct table table;
    fill_table(run, &table);
    enum status status = evaluation_report(evaluation, &table, note, root, error);
    table_deinit(&table);
    return status == STATUS_OK ? write_map(run, error) : status;
}

/* ---- --emit ---- */

static enum status emit_group(struct ruler_run *run, const struct group *group, size_t length, uint64_t index,
                              struct error *error) {
    if (interrupt_requested()) return error_set(error, STATUS_INTERRUPTED, "interrupted");
    struct ruler_sample samples[RULER_TASK_COUNT];
    TRY(create_samples(run, group, length, index, samples, error));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < group->task_count && status == STATUS_OK; i++) {
        struct place place = {group->tasks[i], length, index};
        json_t *object = sample_json(run, place, group->is_shared, &samples[i]);
        json_put(object, "prompt", json_text_without_zeros(samples[i].prompt, samples[i].prompt_bytes));
        json_put(object, "answer_text", json_string(samples[i].answer_text));
        status = evaluation_line(run->evaluation, object, error);
    }
    deinit_samples(samples, group);
    return status;
}

static enum status emit_all(struct ruler_run *run, struct error *error) {
    struct evaluation *evaluation = run->evaluation;
    evaluation->output = EVAL_OUTPUT_MD; /* the lines go to one file */
    output_file_abort(&evaluation->jsonl);
    TRY(output_file_open(&evaluation->jsonl, option_text(evaluation->options, OPTION_EVAL_EMIT), error));
    TRY(for_each(run, emit_group, error));
    return output_file_commit(&evaluation->jsonl, error);
}

/* Rejects a length that a task cannot have before the work. */
static enum status check_lengths(struct ruler_run *run, struct error *error) {
    for (size_t length = 0; length < run->length_count; length++)
        for (size_t i = 0; i < run->group_count; i++) {
            struct ruler_sample samples[RULER_TASK_COUNT];
            TRY(create_samples(run, &run->groups[i], length, 0, samples, error));
            deinit_samples(samples, &run->groups[i]);
        }
    return STATUS_OK;
}

static enum status evaluate(struct ruler_run *run, struct error *error) {
    TRY(check_lengths(run, error));
    for (size_t i = 0; i < run->length_count && run->evaluation->tiers.used; i++)
        TRY(eval_tiers_open(run->evaluation, run->lengths[i], error)); /* a budget that is too small */
    TRY(resume(run, error));
    progress_begin(&run->progress, "eval", option_flag(run->evaluation->options, OPTION_QUIET));
    for (size_t i = 0; i < run->length_count; i++)
        run->progress.total += run->lengths[i] * run->sample_count * run->group_count;
    enum status status = for_each(run, run_group, error);
    progress_end(&run->progress);
    return evaluation_conclude(status, report, run, error);
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
    free(run->done);
    free(run);
    return status;
}
