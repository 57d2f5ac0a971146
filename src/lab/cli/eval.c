/* What all evaluations need: presets and their plans, the model, the text, and reports. */
#include "lab/cli/eval.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/prompt.h"
#include "model/calibration.h"
#include "server/json_text.h"

/* ---- presets ---- */

static enum status read_preset(struct evaluation *evaluation, const char *label, struct plan *plan,
                               struct error *error) {
    const struct options *options = evaluation->options;
    plan->k_type = kv_type_of_choice(option_count(options, OPTION_CACHE_K));
    plan->v_type = kv_type_of_choice(option_count(options, OPTION_CACHE_V));
    if (evaluation->tiers.used) TRY(plan_read_disk(plan, options, error));
    return plan_read_preset(plan, options, label, true, error);
}

static enum status add_preset(struct evaluation *evaluation, const char *label, struct error *error) {
    for (size_t i = 0; i < evaluation->preset_count; i++)
        if (strcmp(evaluation->labels[i], label) == 0)
            return error_set(error, STATUS_USAGE, "--preset: %.40s is there twice", label);
    if (evaluation->preset_count == EVAL_PRESETS_MAX)
        return error_set(error, STATUS_USAGE, "--preset: more than %d", EVAL_PRESETS_MAX);
    evaluation->labels[evaluation->preset_count] = label;
    return read_preset(evaluation, label, &evaluation->plans[evaluation->preset_count++], error);
}

/* One prefill serves all of them, so their KV must be of one type. */
static enum status check_types(const struct evaluation *evaluation, struct error *error) {
    const struct plan *first = &evaluation->plans[0];
    for (size_t i = 0; i < evaluation->preset_count && evaluation->tiers.used; i++)
        if (evaluation_watches(evaluation, i) || evaluation->plans[i].k_type != KV_F16 ||
            evaluation->plans[i].v_type != KV_F16)
            return error_set(error, STATUS_USAGE,
                             "--preset %.40s with --kv-disk: a preset that watches prompts, or KV that is not f16",
                             evaluation->labels[i]);
    for (size_t i = 1; i < evaluation->preset_count; i++)
        if (evaluation->plans[i].k_type != first->k_type || evaluation->plans[i].v_type != first->v_type)
            return error_set(error, STATUS_USAGE,
                             "--preset %.40s and %.40s: presets are compared over one KV cache; give -ctk and -ctv",
                             evaluation->labels[0], evaluation->labels[i]);
    return STATUS_OK;
}

static enum status read_presets(struct evaluation *evaluation, struct error *error) {
    evaluation->preset_names = strdup(option_text(evaluation->options, OPTION_PRESET));
    if (evaluation->preset_names == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    char *rest = evaluation->preset_names;
    for (char *label; (label = strsep(&rest, ",")) != NULL;) TRY(add_preset(evaluation, label, error));
    size_t count = 0;
    for (int watches = 1; watches >= 0; watches--)
        for (size_t i = 0; i < evaluation->preset_count; i++)
            if (evaluation_watches(evaluation, i) == watches) evaluation->order[count++] = i;
    return check_types(evaluation, error);
}

bool evaluation_watches(const struct evaluation *evaluation, size_t index) {
    return index != EVAL_FULL && evaluation->plans[index].select.method->watches_prefill;
}

enum status evaluation_use_preset(struct evaluation *evaluation, size_t index, struct error *error) {
    if (evaluation->preset_in_use == index + 1) return STATUS_OK;
    struct engine *engine = evaluation->session.engine;
    const struct select_options full = select_options_default();
    evaluation->preset_in_use = 0;
    TRY(engine_set_select(engine, index == EVAL_FULL ? &full : &evaluation->plans[index].select, error));
    evaluation->preset_in_use = index + 1;
    const char *note = engine_select(engine) != NULL ? select_fallback(engine_select(engine)) : NULL;
    if (note != NULL && (evaluation->noticed >> index & 1) == 0 && !evaluation->session.quiet)
        fprintf(stderr, "loam-lab: note: %s\n", note);
    evaluation->noticed |= UINT64_C(1) << index;
    return STATUS_OK;
}

/* ---- opening ---- */

enum status evaluation_read(struct evaluation *evaluation, const struct options *options, struct error *error) {
    *evaluation =
        (struct evaluation){.options = options, .output = (enum eval_output)option_count(options, OPTION_EVAL_OUTPUT)};
    if (option_list(options, OPTION_EVAL_LENGTHS)->list_count > EVAL_LENGTHS_MAX)
        return error_set(error, STATUS_USAGE, "--lengths: more than %d", EVAL_LENGTHS_MAX);
    TRY(eval_tiers_read(&evaluation->tiers, evaluation, error));
    TRY(read_presets(evaluation, error));
    static const unsigned paths[] = {OPTION_JSON_FILE, OPTION_EVAL_SVG, OPTION_EVAL_EMIT};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (option_text(options, paths[i]) != NULL) TRY(json_file_check(option_text(options, paths[i]), error));
    const char *jsonl = option_text(options, OPTION_EVAL_JSONL);
    evaluation->resumes = option_flag(options, OPTION_EVAL_RESUME);
    if (evaluation->resumes && jsonl == NULL)
        return error_set(error, STATUS_USAGE, "--resume: after what?  --jsonl FILE");
    return jsonl != NULL ? output_file_open_lines(&evaluation->jsonl, jsonl, evaluation->resumes, error) : STATUS_OK;
}

enum status evaluation_open_model(struct evaluation *evaluation, struct error *error) {
    const struct options *options = evaluation->options;
    TRY(session_open(&evaluation->session, options, option_count(options, OPTION_THREADS), error));
    return session_open_tokenizer(&evaluation->session, options, error);
}

enum status evaluation_open_engine(struct evaluation *evaluation, uint64_t context_size, struct error *error) {
    struct session *session = &evaluation->session;
    const struct plan *plan = &evaluation->plans[0];
    if (context_size > session->model->config.context_length && !option_flag(evaluation->options, OPTION_QUIET))
        fprintf(stderr, "loam-lab: note: %llu tokens, the model was trained for %llu\n",
                (unsigned long long)context_size, (unsigned long long)session->model->config.context_length);
    for (size_t i = 0; i < evaluation->preset_count; i++) {
        struct plan in_memory = evaluation->plans[i]; /* as prompts are read */
        in_memory.disk_directory = NULL;
        in_memory.keeps_rows = true;
        TRY(plan_check_memory(&in_memory, &session->model->config, context_size, error));
    }
    const struct plan dense = {.context_size = context_size,
                               .sequence_capacity = 1,
                               .batch_size = plan_read_batch_size(evaluation->options),
                               .k_type = plan->k_type,
                               .v_type = plan->v_type,
                               .keeps_rows = true};
    TRY(session_create_engine(session, &dense, NULL, error));
    for (size_t i = 0; i < evaluation->preset_count; i++) /* before the work: what a preset lacks */
        TRY(evaluation_use_preset(evaluation, i, error));
    return sequence_create(&evaluation->sequence, session->engine, error);
}

void evaluation_close(struct evaluation *evaluation) {
    eval_tiers_deinit(evaluation);
    for (size_t i = 0; i < evaluation->preset_count; i++) plan_deinit(&evaluation->plans[i]);
    sequence_destroy(evaluation->sequence);
    session_close(&evaluation->session);
    output_file_abort(&evaluation->jsonl);
    free(evaluation->preset_names);
}

enum status evaluation_text(const struct evaluation *evaluation, char **text, size_t *length, const char **name,
                            struct error *error) {
    *name = option_text(evaluation->options, OPTION_FILE);
    if (*name != NULL) return prompt_read_text(evaluation->options, *name, text, length, error);
    *name = "the text in the binary";
    *length = essay_builtin_length;
    *text = malloc(*length + 1);
    if (*text == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    memcpy(*text, essay_builtin, *length);
    (*text)[*length] = '\0';
    return STATUS_OK;
}

/* ---- reporting ---- */

bool evaluation_wants_lines(const struct evaluation *evaluation) {
    return evaluation->output == EVAL_OUTPUT_JSONL || evaluation->jsonl.stream != NULL;
}

enum status evaluation_line(struct evaluation *evaluation, json_t *object, struct error *error) {
    char *line = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12));
    json_decref(object);
    if (line == NULL) return error_set(error, STATUS_MEMORY, "no memory for the JSON");
    enum status status = STATUS_OK;
    if (evaluation->jsonl.stream != NULL) {
        status = output_file_put(&evaluation->jsonl, line, strlen(line), error);
        if (status == STATUS_OK) status = output_file_put(&evaluation->jsonl, "\n", 1, error);
        if (status == STATUS_OK) status = output_file_flush(&evaluation->jsonl, error);
    }
    if (evaluation->output == EVAL_OUTPUT_JSONL) {
        output_text("%s\n", line);
        if (status == STATUS_OK) status = output_flush(error);
    }
    free(line);
    return status;
}

json_t *eval_work_json(struct eval_work work) {
    json_t *object = json_object();
    json_put_uint(object, "tokens", work.tokens);
    json_put_number(object, "seconds", work.seconds);
    json_put_number(object, "tokens_per_second", work.seconds > 0 ? (double)work.tokens / work.seconds : 0);
    return object;
}

json_t *evaluation_json(const struct evaluation *evaluation) {
    json_t *root = json_object(), *presets = json_array();
    const char *name = evaluation->session.model->config.name;
    json_put(root, "evaluation", json_string(evaluation->options->positionals[0]));
    json_put(root, "model", json_text(name, strlen(name)));
    char fingerprint[CALIBRATION_FINGERPRINT_BYTES];
    calibration_fingerprint(&evaluation->session.model->gguf, &evaluation->session.model->config, fingerprint);
    json_put(root, "fingerprint", json_string(fingerprint));
    for (size_t i = 0; i < evaluation->preset_count; i++) {
        json_t *preset = json_object();
        json_put(preset, "preset", json_string(evaluation->labels[i]));
        json_put(preset, "plan", plan_json(&evaluation->plans[i]));
        json_array_append_new(presets, preset);
    }
    json_put(root, "presets", presets);
    return root;
}

static enum status print_table(const struct evaluation *evaluation, const struct table *table, const char *note,
                               struct error *error) {
    struct text text = {0};
    table_write(table, &text);
    if (note[0] != '\0') text_format(&text, "\n%s\n", note);
    if (text.failed) return error_set(error, STATUS_MEMORY, "out of memory for the table");
    if (evaluation->output == EVAL_OUTPUT_MD)
        output_bytes(text.bytes, text.length);
    else if (!option_flag(evaluation->options, OPTION_QUIET))
        fputs(text.bytes, stderr);
    text_deinit(&text);
    return output_flush(error);
}

enum status evaluation_conclude(enum status work, enum status (*report)(void *run, struct error *error), void *run,
                                struct error *error) {
    if (work != STATUS_OK && work != STATUS_INTERRUPTED) return work;
    struct error later; /* error has the interruption */
    enum status reported = report(run, work == STATUS_OK ? error : &later);
    return work != STATUS_OK ? work : reported;
}

enum status evaluation_report(struct evaluation *evaluation, const struct table *table, const char *note, json_t *root,
                              struct error *error) {
    const char *path = option_text(evaluation->options, OPTION_JSON_FILE);
    enum status status = print_table(evaluation, table, note, error);
    if (status == STATUS_OK && evaluation->output == EVAL_OUTPUT_JSON) status = json_print(root, JSON_INDENT(1), error);
    if (status == STATUS_OK && path != NULL) status = json_file_write(root, path, error);
    json_decref(root);
    if (status == STATUS_OK && evaluation->jsonl.stream != NULL) status = output_file_commit(&evaluation->jsonl, error);
    return status;
}
