/* loam plan: which settings are the quickest for a model, a context, budgets and a machine. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bundled_model.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_file.h"
#include "cli/kv_disk.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/table.h"
#include "cli/utf8.h"
#include "measure/auto.h"
#include "measure/machine_file.h"
#include "model/calibration.h"
#include "plan/choose.h"
#include "platform/memory.h"
#include "server/json_text.h"

enum { SHOWN = 6 }; /* the choice and the five next best */

struct planning {
    const struct options *options;
    struct session session; /* its device: a card, where the options name one */
    struct machine machine;
    char machine_path[MACHINE_PATH_BYTES];
    struct gguf gguf;
    struct arena arena;
    struct model_config config;
    struct cost_models models; /* on each number of threads */
    struct plan plan;
    uint64_t depth;
    struct choices choices;
    struct kld_table losses; /* of MODEL.kld.json; no rows: there is none */
    bool quiet;
};

/* ---- the machine ---- */

/* For KV and weights, 0: not known: RAM of a machine that is given, as its file says; else what is available here. */
static uint64_t memory_of(const struct planning *planning) {
    const bool is_given = option_given(planning->options, OPTION_MACHINE);
    return auto_memory_bytes(is_given ? planning->machine.memory.bytes : (double)memory_available_bytes());
}

static double kld_of(void *context, const char *text) {
    const struct planning *planning = context;
    return kld_table_at(&planning->losses, text, planning->depth);
}

static struct choose_question question_of(struct planning *planning) {
    const struct options *options = planning->options;
    return (struct choose_question){.models = planning->models.list,
                                    .model_count = planning->models.count,
                                    .plan = &planning->plan,
                                    .device = planning->session.device,
                                    .depth = planning->depth,
                                    .sequences = option_count(options, OPTION_PARALLEL),
                                    .memory_bytes = memory_of(planning),
                                    .weights_host_bytes = option_given(options, OPTION_WEIGHTS_HOST)
                                                              ? option_count(options, OPTION_WEIGHTS_HOST)
                                                              : 0,
                                    .loss = planning->plan.select.loss,
                                    .kld_max = planning->plan.kld_max,
                                    .kld = kld_of,
                                    .kld_context = planning};
}

/* Without a model of all. */
static struct machine_use use_of(struct planning *planning) {
    if (planning->gguf.path == NULL)
        return (struct machine_use){
            .types = UINT64_MAX, .selections = UINT32_MAX, .q8 = true, .threads = true, .disk = true};
    const struct weight_sizes weights = weight_sizes_of(&planning->gguf, &planning->config);
    const struct choose_question question = question_of(planning);
    return (struct machine_use){.types = cost_matrix_types(&planning->config, &planning->gguf),
                                .selections = machine_use_planned(false),
                                .q8 = planning->plan.k_type != KV_F16,
                                .threads = option_count(planning->options, OPTION_THREADS) == 0,
                                .disk = plan_may_read_disk(&question, &planning->config, &weights)};
}

/* NULL: the processor. */
static struct device *card_of(const struct planning *planning) {
    struct device *device = planning->session.device;
    return device != NULL && device_memory_free(device) != UINT64_MAX ? device : NULL;
}

static enum status open_device(struct planning *planning, struct error *error) {
    const struct options *options = planning->options;
    struct session *session = &planning->session;
    if (!option_given(options, OPTION_DEVICE)) return STATUS_OK;
    session->quiet = planning->quiet;
    session->thread_count =
        option_count(options, OPTION_THREADS) != 0 ? option_count(options, OPTION_THREADS) : cpu_count();
    TRY(cpu_mask_parse(option_text(options, OPTION_CPU_MASK), &session->mask, error));
    return session_open_device(session, planning->gguf.path, options, error);
}

static enum status open_machine(struct planning *planning, struct error *error) {
    const struct options *options = planning->options;
    struct progress_parts parts = {.quiet = planning->quiet};
    struct machine_request request = {.given = option_text(options, OPTION_MACHINE),
                                      .measures = option_flag(options, OPTION_MEASURE),
                                      .measure = {.device = card_of(planning),
                                                  .thread_count = option_count(options, OPTION_THREADS),
                                                  .use = use_of(planning),
                                                  .progress = progress_part,
                                                  .context = &parts}};
    char note[400];
    struct kv_disk disk = {0};
    if (request.given != NULL && (request.measures || option_given(options, OPTION_DEVICE)))
        return error_set(error, STATUS_USAGE, "plan: --machine and --%s: expected one of them",
                         request.measures ? "measure" : "device");
    TRY(cpu_mask_parse(option_text(options, OPTION_CPU_MASK), &request.measure.mask, error));
    if (option_flag(options, OPTION_MEASURE_DISK) && !option_given(options, OPTION_KV_DISK))
        return error_set(error, STATUS_USAGE, "plan: --measure-disk: expected --kv-disk, whose disk is measured");
    if (option_flag(options, OPTION_MEASURE_DISK))
        TRY(kv_disk_parse(&disk, option_text(options, OPTION_KV_DISK), error));
    request.disk = disk.directory;
    const enum status status = machine_open(&planning->machine, &request, planning->machine_path, note, error);
    progress_parts_end(&parts);
    kv_disk_deinit(&disk);
    return status;
}

/* ---- the model and its budgets ---- */

static enum status open_model(struct planning *planning, struct error *error) {
    const char *path;
    TRY(model_path(planning->options, &path, error));
    TRY(gguf_open(&planning->gguf, path, error));
    return model_config_read(&planning->config, &planning->gguf, &planning->arena, error);
}

static enum status init_models(struct planning *planning, struct error *error) {
    const size_t threads = option_count(planning->options, OPTION_THREADS);
    if (cost_models_init(&planning->models, &planning->machine, threads, &planning->config, &planning->gguf))
        return STATUS_OK;
    return error_set(error, STATUS_USAGE, "%s: -t %zu: found numbers of %u threads, none of %zu",
                     planning->machine_path, threads, planning->machine.thread_count, threads);
}

static enum status read_plan(struct planning *planning, struct error *error) {
    const struct options *options = planning->options;
    struct plan *plan = &planning->plan;
    *plan = (struct plan){.sequence_capacity = 1};
    plan->k_type = kv_type_of_choice(option_count(options, OPTION_CACHE_K));
    plan->v_type = kv_type_of_choice(option_count(options, OPTION_CACHE_V));
    TRY(plan_read_budgets(plan, options, error));
    TRY(plan_read_auto(plan, options, error));
    planning->depth = option_count(options, OPTION_CONTEXT);
    if (planning->depth == 0) planning->depth = planning->config.context_length;
    plan->context_size = planning->depth + 1;
    return STATUS_OK;
}

/* Without the file nothing is known, which matters where --kld asks for it. */
static void load_losses(struct planning *planning) {
    struct error why;
    if (auto_load_losses(&planning->losses, &planning->gguf, &planning->config, &why) == STATUS_OK) return;
    if (why.status == STATUS_IO && planning->plan.kld_max == 0) return;
    if (!planning->quiet) fprintf(stderr, "loam: note: what plans lose is not known: %s\n", why.message);
}

static enum status choose(struct planning *planning, struct error *error) {
    load_losses(planning);
    const struct choose_question question = question_of(planning);
    return plan_choose(&planning->choices, &question, error);
}

/* ---- for people ---- */

static const char *loss_text(const struct candidate *candidate, char *buffer, size_t buffer_bytes) {
    if (candidate->is_exact) return "exact";
    if (candidate->loss > 0) snprintf(buffer, buffer_bytes, "dial %g", candidate->loss);
    if (candidate->loss > 0) return buffer;
    if (isnan(candidate->kld)) return "not known";
    snprintf(buffer, buffer_bytes, "KLD %.4f", candidate->kld);
    return buffer;
}

static const char *seconds_text(double seconds, char *buffer, size_t buffer_bytes) {
    snprintf(buffer, buffer_bytes, seconds < 100 ? "%.1f s" : "%.0f s", seconds);
    return buffer;
}

static void print_table(const struct planning *planning) {
    struct table table = {.column_count = 6, .is_number = {false, true, true, true, false, false}};
    struct text text = {0};
    static const char *const heads[] = {"plan", "t/s", "first token", "KV in RAM", "loss", "limit"};
    for (size_t i = 0; i < 6; i++) table_cell(&table, "%s", heads[i]);
    for (size_t i = 0; i < planning->choices.count && i < SHOWN; i++) {
        const struct candidate *candidate = &planning->choices.list[i];
        char buffer[32];
        table_cell(&table, "%s", candidate->text);
        table_cell(&table, "%.2f", candidate_rate(candidate));
        table_cell(&table, "%s", seconds_text(candidate->cost.prompt_seconds, buffer, sizeof buffer));
        table_cell(&table, "%.0f%%", 100 * candidate->cost.held);
        table_cell(&table, "%s", loss_text(candidate, buffer, sizeof buffer));
        table_cell(&table, "%s", cost_part_names[candidate->cost.limit]);
    }
    table_write(&table, &text);
    if (!text.failed) output_bytes(text.bytes, text.length);
    text_deinit(&text);
    table_deinit(&table);
}

/* What the plan runs with. */
static void print_settings(const struct planning *planning, const struct candidate *choice) {
    const struct weight_sizes *weights = &planning->models.list[0].weights;
    char a[32], b[32], c[32], stays[64];
    output_text("  %zu of %u threads; schedule %s, %zu sequence%s a pass\n", choice->thread_count,
                planning->machine.thread_count, choice->sequences > 1 ? "column" : "row", choice->sequences,
                choice->sequences > 1 ? "s" : "");
    if (choice->weights_host_bytes == 0)
        output_text("  weights: %s, all %s\n", bytes_text(weights->all, a, sizeof a),
                    planning->machine.device_link > 0 ? "on the device" : "in RAM");
    else {
        const size_t experts = weights->mixture.layers * weights->mixture.count;
        if (experts > 0)
            snprintf(stays, sizeof stays, "%zu of %zu experts", choice->resident_experts, experts);
        else
            snprintf(stays, sizeof stays, "%zu of %zu layers", choice->resident_layers, weights->layer_count);
        output_text("  weights: %s, of which %s stay in RAM, %s (--weights-host %" PRIu64
                    "); %s are read for each pass\n",
                    bytes_text(weights->all, a, sizeof a), bytes_text(choice->weights_host_bytes, b, sizeof b), stays,
                    choice->weights_host_bytes, bytes_text((uint64_t)choice->cost.pass_bytes, c, sizeof c));
    }
}

/* A word as a shell takes it. */
static void put_word(struct text *text, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=+%@";
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        text_add(text, word);
        return;
    }
    text_add(text, "'");
    for (; *word != '\0'; word++) text_format(text, *word == '\'' ? "'\\''" : "%c", *word);
    text_add(text, "'");
}

static void put_option(struct text *text, const char *name, const char *value) {
    text_format(text, " %s ", name);
    put_word(text, value);
}

static void put_number(struct text *text, const char *name, uint64_t value) {
    text_format(text, " %s %" PRIu64, name, value);
}

/* The choice as a command line: what the plan was asked for, and what it chose. */
static void put_command(const struct planning *planning, struct text *text) {
    const struct candidate *choice = &planning->choices.list[0];
    const struct options *options = planning->options;
    static const struct {
        enum option_id id;
        const char *name;
    } kept[] = {{OPTION_DEVICE, "--device"},   {OPTION_KV_DEVICE, "--kv-device"}, {OPTION_KV_HOST, "--kv-host"},
                {OPTION_KV_DISK, "--kv-disk"}, {OPTION_CACHE_K, "-ctk"},          {OPTION_CACHE_V, "-ctv"}};
    text_add(text, choice->sequences > 1 ? "loam batch -i REQUESTS -o ANSWERS" : "loam run -f FILE -p QUESTION");
    if (option_given(options, OPTION_MODEL)) put_option(text, "-m", option_text(options, OPTION_MODEL));
    put_number(text, "-c", planning->depth);
    if (choice->sequences > 1) put_number(text, "-np", choice->sequences);
    put_option(text, "--preset", choice->preset);
    if (choice->set[0] != '\0' || choice->exact_below > 0) {
        char set[CANDIDATE_SET_BYTES + 40];
        const char *comma = choice->set[0] != '\0' ? "," : "";
        if (choice->exact_below > 0)
            snprintf(set, sizeof set, "%s%sexact_below=%" PRIu64, choice->set, comma, choice->exact_below);
        else
            snprintf(set, sizeof set, "%s", choice->set);
        put_option(text, "--set", set);
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (option_given(options, kept[i].id)) put_option(text, kept[i].name, option_text(options, kept[i].id));
    if (choice->host_bytes > 0 && !option_given(options, OPTION_KV_HOST) && option_given(options, OPTION_KV_DISK))
        put_number(text, "--kv-host", choice->host_bytes);
    if (choice->weights_host_bytes > 0) put_number(text, "--weights-host", choice->weights_host_bytes);
    put_number(text, "-t", choice->thread_count);
}

/* Whether loam-lab can say what it loses: clo wants a calibration. */
static bool has_loss(const struct preset *preset, const char *calibration) {
    return preset->planning != PRESET_IS_NOT_PLANNED &&
           (strcmp(preset->methods[AXIS_REUSE], "none") == 0 || access(calibration, R_OK) == 0);
}

/* What measures what plans lose, into the file where they look for it, at a length at which they do. */
static void put_losses_command(const struct planning *planning, struct text *text) {
    struct error error;
    char *path = NULL, *calibration = NULL;
    text_add(text, "loam-lab eval kl");
    if (option_given(planning->options, OPTION_MODEL))
        put_option(text, "-m", option_text(planning->options, OPTION_MODEL));
    if (model_companion_path(planning->gguf.path, ".kld.json", &path, &error) == STATUS_OK &&
        calibration_path(planning->gguf.path, &calibration, &error) == STATUS_OK) {
        const uint64_t depth = planning->depth, length = depth > 8192 ? depth / 2 : depth > 2048 ? 4096 : depth * 2;
        text_format(text, " -f TEXT --lengths %" PRIu64 " --stretch 64 --chunks 2 --preset full", length);
        for (size_t i = 0; i < preset_count; i++)
            if (has_loss(preset_table[i], calibration)) text_format(text, ",%s", preset_table[i]->name);
        put_option(text, "--json", path);
    } else {
        text->failed = true;
    }
    free(path);
    free(calibration);
}

static void print_commands(const struct planning *planning) {
    struct text text = {0}, losses = {0};
    put_command(planning, &text);
    if (!text.failed) output_text("\nto run it:\n  %.*s\n", (int)text.length, text.bytes);
    text_deinit(&text);
    if (planning->losses.row_count > 0) return;
    put_losses_command(planning, &losses);
    if (!losses.failed)
        output_text("\nwhat the others lose on this model (KL divergence from full), once, for this table and "
                    "for --kld:\n  %.*s\n",
                    (int)losses.length, losses.bytes);
    text_deinit(&losses);
}

static void print_choice(const struct planning *planning) {
    const struct candidate *choice = &planning->choices.list[0];
    const struct cost *cost = &choice->cost;
    char a[32], b[32], c[32], d[32];
    output_text("\nchoice: %s, limited by %s\n", choice->text, cost_part_names[cost->limit]);
    if (choice->is_exact && !option_given(planning->options, OPTION_LOSS) &&
        !option_given(planning->options, OPTION_KLD))
        output_text("  exact; --loss SHARE or --kld NATS allows plans that leave some of the context out\n");
    if (choice->exact_below > 0)
        output_text("  exact up to %" PRIu64 " tokens, where it is as fast\n", choice->exact_below);
    const uint64_t device_weights = planning->models.list[0].device_weight_bytes;
    if (device_weights > 0)
        output_text("  device: %s for KV and key index, beside %s of weights; its link moves %.1f GB/s\n",
                    bytes_text(cost->device_bytes, a, sizeof a), bytes_text(device_weights, b, sizeof b),
                    planning->machine.device_link * 1e-9);
    print_settings(planning, choice);
    output_text("  RAM: %s for KV (%s of KV and %s of key index at %" PRIu64 " tokens)\n",
                bytes_text(cost->host_bytes, a, sizeof a), bytes_text(cost->kv_bytes, b, sizeof b),
                bytes_text(cost->key_index_bytes, c, sizeof c), planning->depth);
    if (cost->disk_bytes > 0)
        output_text("  disk: %s, of which a step reads %s\n", bytes_text(cost->disk_bytes, a, sizeof a),
                    bytes_text((uint64_t)cost->read_bytes, d, sizeof d));
    output_text("  a step of %.2f ms:", 1e3 * cost->step_seconds);
    for (enum cost_part part = 0; part < COST_PARTS; part++)
        if (cost->parts[part] > 0) output_text(" %s %.2f", cost_part_names[part], 1e3 * cost->parts[part]);
    output_text("\n");
}

/* When, and beside what. */
static void print_measured(const struct machine *machine) {
    char when[MACHINE_WHEN_BYTES];
    const double spread = machine->disk.spread;
    const bool is_busy = machine_load_is_busy(machine->load), is_unsteady = spread > 1; /* no share means more */
    if (machine_when(machine, when)[0] != '\0') {
        output_text("  %s", when);
        if (is_unsteady)
            output_text(", the disk unsteady");
        else if (spread > 0)
            output_text(", the disk within %.0f%%", 100 * spread);
        if (is_busy || is_unsteady)
            output_text(": %sloam plan --measure, once others rest", is_busy ? "its numbers are too low; " : "");
        output_text("\n");
    }
    output_text("\n");
}

static enum status print(const struct planning *planning, struct error *error) {
    const char *name = planning->config.name;
    char escaped[200];
    output_text("model: %s, %" PRIu64 " tokens\n", utf8_escape(name, strlen(name), escaped, sizeof escaped),
                planning->depth);
    output_text("machine: %s, %u threads, %s\n", planning->machine.processor, planning->machine.thread_count,
                planning->machine_path);
    print_measured(&planning->machine);
    print_table(planning);
    print_choice(planning);
    print_commands(planning);
    return output_flush(error);
}

/* ---- for scripts ---- */

static json_t *candidate_json(const struct candidate *candidate) {
    const struct cost *cost = &candidate->cost;
    json_t *parts = json_object();
    json_t *object = JSON({"plan", json_string(candidate->text)}, {"preset", json_string(candidate->preset)},
                          {"set", candidate->set[0] != '\0' ? json_string(candidate->set) : json_null()},
                          {"exact", json_boolean(candidate->is_exact)},
                          {"allowed", json_boolean(candidate->is_allowed)}, {"kld", json_number(candidate->kld)},
                          {"loss", json_number(candidate->loss)}, {"exact_below", json_uint(candidate->exact_below)},
                          {"tokens_per_second", json_number(candidate_rate(candidate))},
                          {"first_token_seconds", json_number(cost->prompt_seconds)},
                          {"step_seconds", json_number(cost->step_seconds)});
    for (enum cost_part part = 0; part < COST_PARTS; part++)
        json_put_number(parts, cost_part_names[part], cost->parts[part]);
    JSON_PUT(
        object, {"parts_seconds", parts}, {"limit", json_string(cost_part_names[cost->limit])},
        {"held", json_number(cost->held)}, {"kv_bytes", json_uint(cost->kv_bytes)},
        {"key_index_bytes", json_uint(cost->key_index_bytes)}, {"device_bytes", json_uint(cost->device_bytes)},
        {"host_bytes", json_uint(cost->host_bytes)}, {"disk_bytes", json_uint(cost->disk_bytes)},
        {"step_read_bytes", json_number(cost->read_bytes)}, {"step_read_requests", json_number(cost->read_requests)},
        {"step_missed_chunks", json_number(cost->missed_chunks)}, {"threads", json_uint(candidate->thread_count)},
        {"schedule", json_string(candidate->sequences > 1 ? "column" : "row")},
        {"sequences", json_uint(candidate->sequences)},
        {"weights_host_bytes",
         candidate->weights_host_bytes > 0 ? json_integer((json_int_t)candidate->weights_host_bytes) : json_null()},
        {"resident_layers", json_uint(candidate->resident_layers)},
        {"resident_experts", json_uint(candidate->resident_experts)},
        {"pass_read_bytes", json_number(cost->pass_bytes)});
    return object;
}

static enum status print_json(const struct planning *planning, struct error *error) {
    const char *name = planning->config.name;
    json_t *list = json_array();
    json_t *root = JSON({"model", json_text(name, strlen(name))}, {"tokens", json_uint(planning->depth)},
                        {"weight_bytes", json_uint(planning->models.list[0].weights.all)});
    json_t *machine = JSON({"processor", json_string(planning->machine.processor)},
                           {"threads", json_uint(planning->machine.thread_count)},
                           {"file", json_text(planning->machine_path, strlen(planning->machine_path))});
    json_put(root, "machine", machine);
    if (planning->machine.device_link > 0) {
        json_put_number(machine, "device_bytes", planning->machine.device_bytes);
        json_put_number(machine, "device_link", planning->machine.device_link);
    }
    json_put_uint(machine, "measured", (uint64_t)planning->machine.measured);
    json_put(machine, "load", planning->machine.load >= 0 ? json_real(planning->machine.load) : json_null());
    json_put(machine, "disk_spread",
             planning->machine.disk.spread > 0 ? json_real(planning->machine.disk.spread) : json_null());
    struct text command = {0};
    put_command(planning, &command);
    json_put(root, "command", command.failed ? json_null() : json_text(command.bytes, command.length));
    text_deinit(&command);
    json_put(root, "choice", candidate_json(&planning->choices.list[0]));
    for (size_t i = 1; i < planning->choices.count; i++)
        json_array_append_new(list, candidate_json(&planning->choices.list[i]));
    json_put(root, "others", list);
    enum status status = json_print(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6), error);
    json_decref(root);
    return status;
}

/* ---- the command ---- */

static enum status plan_and_print(struct planning *planning, struct error *error) {
    const struct options *options = planning->options;
    const bool only_measures = option_flag(options, OPTION_MEASURE) && !option_given(options, OPTION_MODEL);
    const bool is_given = option_given(options, OPTION_MACHINE); /* then nothing is measured for the model */
    if (only_measures) {
        TRY(open_device(planning, error));
        TRY(open_machine(planning, error));
        output_text("%s\n", planning->machine_path);
        return output_flush(error);
    }
    if (is_given) TRY(open_machine(planning, error));
    TRY(open_model(planning, error));
    TRY(read_plan(planning, error)); /* what is refused is not measured for */
    TRY(open_device(planning, error));
    if (!is_given) TRY(open_machine(planning, error));
    TRY(init_models(planning, error));
    TRY(choose(planning, error));
    return option_flag(options, OPTION_JSON) ? print_json(planning, error) : print(planning, error);
}

enum status plan_command(const struct options *options, struct error *error) {
    struct planning *planning = calloc(1, sizeof *planning);
    if (planning == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    planning->options = options;
    planning->quiet = option_flag(options, OPTION_QUIET);
    arena_init(&planning->arena);
    interrupt_install();
    enum status status = plan_and_print(planning, error);
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    plan_deinit(&planning->plan);
    arena_deinit(&planning->arena);
    gguf_close(&planning->gguf);
    session_close(&planning->session);
    free(planning);
    return status;
}
