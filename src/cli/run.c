/* loam run: ask a model about documents, or complete a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/json_file.h"
#include "cli/listener.h"
#include "cli/output.h"
#include "cli/page_fractions.h"
#include "cli/plan.h"
#include "cli/prompt.h"
#include "cli/rebuilt.h"
#include "cli/sampling.h"
#include "cli/session.h"
#include "cli/trace_file.h"
#include "grammar/json_answers.h"
#include "model/weight_stream.h"
#include "server/json_text.h"

struct run {
    const struct options *options;
    struct plan plan;
    struct session session;
    struct trace_file trace;
    char document_name[512];
    const struct chat_template *chat; /* NULL: raw text */
    struct token_list prompt;
    struct listener listener;
    struct generation generation;
    struct json_answers json_answers;
    struct answer answers[ENGINE_SEQUENCES_MAX];
    size_t answer_count;
    struct sampling sampling; /* of the first answer; the others have the seeds after it */
    uint64_t kv_bytes_peak, kv_device_bytes_peak, reused_tokens; /* kv: in RAM and on the device */
    char last_byte;                                              /* written to standard output */
};

/* Of an answer that must wait until those before it are printed. */
static enum status sink_hold(void *context, const char *bytes, size_t length, struct error *error) {
    return text_append(context, bytes, length) ? STATUS_OK
                                               : error_set(error, STATUS_MEMORY, "no memory for the answers");
}

static enum status sink_stream(void *context, const char *bytes, size_t length, struct error *error) {
    char *last = context;
    if (length > 0) *last = bytes[length - 1];
    output_bytes(bytes, length);
    return output_flush(error);
}

/* ---- before ---- */

/* With --ids a model without a vocabulary will do: the answer is then ids, too. */
static enum status open_tokenizer(struct run *run, struct error *error) {
    struct gguf_string kind = {NULL, 0};
    TRY(gguf_get_string(&run->session.model->gguf, "tokenizer.ggml.model", &kind, error));
    bool has_none = kind.length == 0 || (kind.length == 4 && memcmp(kind.text, "none", 4) == 0);
    if (has_none && option_text(run->options, OPTION_IDS) != NULL) return STATUS_OK;
    return session_open_tokenizer(&run->session, run->options, error);
}

/* What makes it raw text; NULL: nothing. */
static const char *raw_option(const struct options *options) {
    if (option_flag(options, OPTION_RAW)) return "--raw";
    if (option_given(options, OPTION_IDS)) return "--ids";
    return option_flag(options, OPTION_SPECIAL) ? "--special" : NULL;
}

/* Left at NULL for raw text, and where the model has no template. */
static enum status choose_template(struct run *run, struct error *error) {
    const struct options *options = run->options;
    const char *raw = raw_option(options);
    const char *chat = option_given(options, OPTION_CHAT_TEMPLATE) ? "--chat-template"
                       : option_given(options, OPTION_SYSTEM)      ? "-sys"
                                                                   : NULL;
    if (raw != NULL && chat != NULL)
        return error_set(error, STATUS_USAGE, "run: %s is for raw text, %s for a chat template", raw, chat);
    if (raw != NULL) return STATUS_OK;
    enum status status = prompt_template(options, &run->session.model->gguf, &run->chat, error);
    if (status == STATUS_UNSUPPORTED) {
        const struct error unknown = *error;
        return error_set(error, status, "%s, or complete raw text with --raw", unknown.message);
    }
    if (status == STATUS_OK && run->chat == NULL && chat != NULL)
        return error_set(error, STATUS_USAGE,
                         "run: -sys needs a chat template and the model has none; --chat-template NAME names one");
    return status;
}

static enum status read_prompt(struct run *run, struct error *error) {
    if (run->session.tokenizer != NULL) {
        TRY(choose_template(run, error));
        return prompt_tokens(run->options, run->chat, run->session.tokenizer, &run->prompt, error);
    }
    TRY(prompt_parse_ids(option_text(run->options, OPTION_IDS), &run->prompt, error));
    return prompt_check_ids(&run->prompt, run->session.model->config.vocabulary_size, error);
}

static enum status check_length(const struct run *run, struct error *error) {
    const size_t prompt = run->prompt.count;
    const struct model_config *config = &run->session.model->config;
    const uint64_t context = run->plan.context_size, trained = config->context_length;
    const bool is_scalable = config->has_rope && config->rope_scaling == ROPE_SCALING_NONE;
    if (prompt <= context) return STATUS_OK;
    if (prompt <= trained && option_count(run->options, OPTION_CONTEXT) == 0) /* cut to the budget */
        return plan_check_budget(&run->plan, config, prompt, error);
    if (prompt <= trained)
        return error_set(error, STATUS_USAGE, "the prompt has %zu tokens, the context holds %llu: give -c %zu", prompt,
                         (unsigned long long)context, prompt + 512);
    return error_set(error, STATUS_USAGE,
                     "the prompt has %zu tokens, the context holds %llu and the model was trained for %llu: shorten "
                     "it, or give -c %zu%s and expect worse answers",
                     prompt, (unsigned long long)context, (unsigned long long)trained, prompt + 512,
                     is_scalable ? " --rope-scaling yarn" : "");
}

/* Tokens to choose a plan for: prompt and answer, as far as the context goes. */
static uint64_t auto_depth(const struct run *run) {
    const uint64_t context = plan_context_size(&run->plan, &run->session.model->config);
    const int64_t asked = run->generation.token_max;
    const uint64_t wanted = run->prompt.count + (uint64_t)(asked < 0 ? 1 : asked);
    return wanted < context ? wanted : context;
}

/* Sizes and tiers, from the prompt. */
static enum status complete_plan(struct run *run, struct error *error) {
    struct plan *plan = &run->plan;
    const struct model_config *config = &run->session.model->config;
    const size_t prompt = run->prompt.count;
    plan->sequence_capacity = run->answer_count;
    plan->context_size = option_count(run->options, OPTION_CONTEXT);
    plan->document_name = prompt_name(run->options, run->document_name, sizeof run->document_name);
    plan_read_sizes(plan, run->options);
    TRY(plan_take_auto(plan, run->options, &run->session, auto_depth(run), NULL, error));
    plan_bound_device(plan, run->session.device);
    TRY(plan_fit_context(plan, config, error));
    TRY(check_length(run, error));
    uint64_t wanted = plan->context_size, asked = (uint64_t)run->generation.token_max;
    if (run->generation.token_max < 0) asked = 1; /* open-ended: as far as it goes */
    if (asked < wanted - prompt) wanted = prompt + asked;
    TRY(plan_check_memory(plan, config, wanted * run->answer_count, error));
    if (plan->disk_directory != NULL && option_count(run->options, OPTION_CONTEXT) == 0 &&
        run->generation.token_max >= 0)
        plan->context_size = wanted; /* key index of what is never used would take the budget */
    plan->wanted_tokens = wanted;
    if (plan->context_size > config->context_length && !run->listener.quiet)
        fprintf(stderr, "loam: note: a context of %llu tokens, the model was trained for %llu\n",
                (unsigned long long)plan->context_size, (unsigned long long)config->context_length);
    return STATUS_OK;
}

static enum status create_engine(struct run *run, bool found_damage, struct error *error) {
    const struct engine_options options = {.trace = run->trace.trace, .found_damage = found_damage};
    TRY(plan_set_host_bytes(&run->plan, &run->session.model->config, error));
    return session_create_engine(&run->session, &run->plan, &options, error);
}

/* In the place of one that found a saved document damaged. */
static enum status make_engine(void *context, struct engine **engine, struct error *error) {
    struct run *run = context;
    enum status status = create_engine(run, true, error);
    *engine = run->session.engine;
    return status;
}

static enum status create_answers(struct run *run, struct error *error) {
    run->generation.engine = run->session.engine;
    run->generation.tokenizer = run->session.tokenizer;
    for (size_t i = 0; i < run->answer_count; i++) {
        struct sampler_options sampling = run->sampling.options;
        sampling.seed += i;
        TRY(answer_create(&run->answers[i], &run->generation, &sampling, error));
        TRY(json_answers_mask(&run->json_answers, run->session.tokenizer, run->answers[i].sampler, error));
        run->answers[i].prompt = &run->prompt;
    }
    return STATUS_OK;
}

static enum status read_schema(struct run *run, struct error *error) {
    const char *text = option_text(run->options, OPTION_JSON_SCHEMA);
    const char *path = option_text(run->options, OPTION_JSON_SCHEMA_FILE);
    if (text != NULL && path != NULL)
        return error_set(error, STATUS_USAGE, "--json-schema and --json-schema-file: expected one of them");
    if (text != NULL) return json_answers_open(&run->json_answers, text, strlen(text), "--json-schema", error);
    if (path == NULL) return STATUS_OK;
    char *bytes;
    size_t length;
    TRY(prompt_read_file(path, &bytes, &length, error));
    enum status status = json_answers_open(&run->json_answers, bytes, length, path, error);
    free(bytes);
    return status;
}

static enum status open_run(struct run *run, struct error *error) {
    const struct options *options = run->options;
    if (option_text(options, OPTION_IDS) == NULL && option_text(options, OPTION_PROMPT) == NULL &&
        option_text(options, OPTION_FILE) == NULL)
        return error_set(error, STATUS_USAGE, "run: a prompt is needed: -p TEXT, -f FILE or --ids LIST");
    TRY(plan_read(&run->plan, options, error));
    const char *json_path = option_text(options, OPTION_JSON_FILE);
    if (json_path != NULL) TRY(json_file_check(json_path, error));
    TRY(trace_file_open(&run->trace, options, error));
    run->answer_count = option_count(options, OPTION_PARALLEL);
    run->listener.quiet = option_flag(options, OPTION_QUIET);
    TRY(sampling_read(&run->sampling, options, error));
    TRY(read_schema(run, error));
    run->generation = (struct generation){.listener = listener_of(&run->listener),
                                          .make_engine = make_engine,
                                          .make_engine_context = run,
                                          .token_max = option_integer(options, OPTION_PREDICT),
                                          .ignore_end = option_flag(options, OPTION_IGNORE_EOS),
                                          .draft_max = option_count(options, OPTION_DRAFT_MAX),
                                          .stops = run->sampling.stops,
                                          .stop_count = run->sampling.stop_count,
                                          .top_count = option_count(options, OPTION_TOP_LOGPROBS)};
    TRY(session_open(&run->session, options, option_count(options, OPTION_THREADS), error));
    TRY(sampling_take_model(&run->sampling, options, &run->session.model->gguf, error));
    TRY(open_tokenizer(run, error));
    TRY(read_prompt(run, error));
    TRY(complete_plan(run, error));
    TRY(create_engine(run, false, error));
    return create_answers(run, error);
}

/* ---- the work ---- */

static enum status generate(struct run *run, struct error *error) {
    struct answer *answers[ENGINE_SEQUENCES_MAX];
    for (size_t i = 0; i < run->answer_count; i++) answers[i] = &run->answers[i];
    enum status status = generation_run(&run->generation, answers, run->answer_count, error);
    for (size_t i = 0; i < run->answer_count; i++)
        if (run->answers[i].sequence != NULL) run->reused_tokens += sequence_reused_tokens(run->answers[i].sequence);
    return status;
}

/* Several answers: each under a heading, in the order of their seeds. */
static enum status generate_held(struct run *run, struct error *error) {
    struct text held[ENGINE_SEQUENCES_MAX] = {0};
    for (size_t i = 0; i < run->answer_count; i++) {
        run->answers[i].sink = sink_hold;
        run->answers[i].sink_context = &held[i];
    }
    enum status status = generate(run, error);
    for (size_t i = 0; i < run->answer_count; i++) {
        output_text("%s--- answer %zu, seed %llu ---\n", i > 0 ? "\n" : "", i + 1,
                    (unsigned long long)run->answers[i].seed);
        output_bytes(held[i].bytes != NULL ? held[i].bytes : "", held[i].length);
        text_deinit(&held[i]);
    }
    output_text("\n");
    return status;
}

/* Without a vocabulary there is no text: ids, by blanks. */
static void print_ids(const struct run *run) {
    for (size_t a = 0; a < run->answer_count; a++) {
        const struct token_list *tokens = &run->answers[a].tokens;
        for (size_t i = 0; i < tokens->count; i++) output_text("%s%d", i > 0 ? " " : "", tokens->ids[i]);
        output_text("\n");
    }
}

static enum status generate_and_print(struct run *run, struct error *error) {
    enum status status;
    if (run->session.tokenizer == NULL) {
        status = generate(run, error);
        print_ids(run);
    } else if (run->answer_count > 1) {
        status = generate_held(run, error);
    } else {
        run->answers[0].sink = sink_stream;
        run->answers[0].sink_context = &run->last_byte;
        status = generate(run, error);
        if (run->last_byte != '\n' && (run->last_byte != 0 || isatty(STDOUT_FILENO))) output_text("\n");
    }
    struct error output_error;
    enum status written = output_flush(&output_error);
    if (written != STATUS_OK && (status == STATUS_OK || status == STATUS_INTERRUPTED)) {
        *error = output_error;
        status = written;
    }
    return status;
}

/* ---- after ---- */

static uint64_t output_token_count(const struct run *run) {
    uint64_t count = 0;
    for (size_t i = 0; i < run->answer_count; i++) count += run->answers[i].tokens.count;
    return count;
}

/* Else an answer that was cut short looks like one that the model ended. */
static void print_cut(const struct run *run) {
    for (size_t i = 0; i < run->answer_count; i++) {
        if (run->answers[i].stop == STOP_LOOP)
            fprintf(stderr, "loam: note: the answer stops because it repeats itself without end (--ignore-eos goes "
                            "on)\n");
        if (run->answers[i].stop != STOP_CONTEXT) continue;
        fprintf(stderr, "loam: note: the answer stops because the context of %llu tokens is full: -c%s\n",
                (unsigned long long)engine_context_size(run->session.engine),
                run->plan.has_budget && run->plan.disk_directory == NULL ? ", --kv-host" : "");
        return;
    }
}

static void print_timings(const struct run *run) {
    if (option_flag(run->options, OPTION_QUIET)) return;
    const struct generation_figures *g = &run->generation.figures;
    char rss[32], kv[32], reused[64] = "", drafted[64] = "";
    if (g->drafted_tokens > 0)
        snprintf(drafted, sizeof drafted, "; %llu of %llu drafted", (unsigned long long)g->accepted_tokens,
                 (unsigned long long)g->drafted_tokens);
    if (run->reused_tokens > 0)
        snprintf(reused, sizeof reused, "; %llu more were saved", (unsigned long long)run->reused_tokens);
    fprintf(stderr,
            "%sloam: prompt %llu tokens in %.2f s (%.1f t/s%s), answer %llu tokens in %.2f s (%.1f t/s%s), "
            "load %.2f s, KV %s, peak memory %s\n",
            output_can_draw() ? "\n" : "", (unsigned long long)g->prefill_tokens, g->prefill_seconds,
            generation_prefill_rate(g), reused, (unsigned long long)output_token_count(run), g->decode_seconds,
            generation_decode_rate(g), drafted, run->session.load_seconds,
            bytes_text(run->kv_bytes_peak, kv, sizeof kv), bytes_text(peak_rss_bytes(), rss, sizeof rss));
    if (run->plan.select.receipt) {
        const struct select_statistics chosen = attention_statistics(engine_attention(run->session.engine));
        char left_out[RECEIPT_TEXT_BYTES];
        fprintf(stderr, "loam: receipt: %s\n", receipt_text(&chosen, left_out, sizeof left_out));
    }
    print_cut(run);
    fractions_print(run->session.engine, run->answers[0].sequence);
    rebuilt_print(run->session.engine);
}

static json_t *phase_json(uint64_t tokens, double seconds, double rate) {
    return JSON({"tokens", json_uint(tokens)}, {"seconds", json_number(seconds)},
                {"tokens_per_second", json_number(rate)});
}

static json_t *ids_json(const struct token_list *tokens) {
    json_t *ids = json_array();
    for (size_t i = 0; i < tokens->count; i++) json_array_append_new(ids, json_integer(tokens->ids[i]));
    return ids;
}

/* Per token of the first answer the likeliest ones. */
static json_t *top_json(const struct run *run) {
    size_t count = run->generation.top_count;
    json_t *tokens = json_array();
    for (size_t i = 0; i < run->answers[0].tokens.count; i++) {
        const struct token_probability *top = run->answers[0].top + i * count;
        json_t *list = json_array();
        for (size_t j = 0; j < count && top[j].id >= 0; j++) {
            json_array_append_new(
                list, JSON({"id", json_integer(top[j].id)}, {"logprob", json_number((double)top[j].log_probability)}));
        }
        json_array_append_new(tokens, list);
    }
    return tokens;
}

static json_t *answers_json(const struct run *run) {
    json_t *answers = json_array();
    for (size_t i = 0; i < run->answer_count; i++) {
        json_array_append_new(answers, JSON({"seed", json_uint(run->answers[i].seed)},
                                            {"finish_reason", json_string(stop_reason_name(run->answers[i].stop))},
                                            {"output_tokens", ids_json(&run->answers[i].tokens)}));
    }
    return answers;
}

/* With everything attended to both are 1 by definition; else the recall was not measured (loam-lab eval recall). */
static json_t *selection_json(struct engine *engine, bool has_receipt) {
    const struct mass_receipt nothing = {0};
    if (engine_select(engine) == NULL) {
        json_t *everything = json_pack("{s:f, s:f}", "kept_ratio", 1.0, "recall", 1.0);
        if (has_receipt) json_put(everything, "left_out", receipt_json(&nothing));
        return everything;
    }
    struct select_statistics s = attention_statistics(engine_attention(engine));
    double ratio = s.visible > 0 ? (double)s.kept / (double)s.visible : 1;
    json_t *object = json_pack("{s:f, s:o}", "kept_ratio", ratio, "recall", ratio < 1 ? json_null() : json_real(1));
    json_put(object, "mass_bound", mass_bounds_json(&s.mass_bound));
    if (has_receipt) json_put(object, "left_out", receipt_json(&s.receipt));
    return object;
}

static void tiers_json(const struct run *run, json_t *root) {
    struct kv_tier_statistics tier = engine_tier_statistics(run->session.engine);
    json_t *io = json_object();
    json_t *kv = JSON({"device_bytes_peak",
                       json_uint(run->kv_device_bytes_peak + engine_unit_bytes(run->session.engine))},
                      {"host_bytes_peak", json_uint(run->kv_bytes_peak - run->kv_device_bytes_peak)},
                      {"disk_bytes", json_uint(tier.write_bytes)}, {"resident_layers", json_uint(tier.resident_layers)},
                      {"resident_heads", json_uint(tier.resident_heads)});
    json_put_counters(io, "", &kv_tier_counters, &tier);
    json_put_uint(io, "read_ops", tier.read_pages);
    const struct device_counts device = device_counts(run->session.device);
    struct fetch_counts fetched;
    if (device.launches > 0 && engine_fetch_counts(run->session.engine, &fetched, NULL) == STATUS_OK) {
        json_put_counters(io, device_counters.prefix, &device_counters, &device);
        json_put_counters(io, fetch_counters.prefix, &fetch_counters, &fetched);
    }
    JSON_PUT(root, {"kv", kv}, {"io", io});
}

static json_t *weights_json(const struct weight_stream *stream) {
    const struct weight_figures figures = weight_stream_figures(stream);
    json_t *weights = json_object();
    json_put_counters(weights, "", &weight_counters, &figures);
    json_put_uint(weights, "host_bytes", figures.resident_bytes + figures.slot_bytes);
    return weights;
}

/* The contract's fields.  What preset full does not do is 0 where nothing was moved and null where there
 * is nothing to measure; it selects everything, so kept_ratio and recall are 1 by definition. */
static json_t *run_json(const struct run *run) {
    const struct generation_figures *g = &run->generation.figures;
    const struct session *session = &run->session;
    char kernels[128];
    json_t *plan = plan_json(&run->plan);
    json_t *prefill = phase_json(g->prefill_tokens, g->prefill_seconds, generation_prefill_rate(g));
    json_put_uint(prefill, "reused_tokens", run->reused_tokens);
    JSON_PUT(plan, {"device", json_string(session->device->name)},
             {"kernels", json_string(cpu_mask_text(session->mask, kernels, sizeof kernels))},
             {"threads", json_uint(session->thread_count)},
             {"context_size", json_uint(engine_context_size(session->engine))},
             {"batch_size", json_uint(run->plan.batch_size)});
    const char *name = session->model->config.name;
    json_t *root = JSON({"model", json_text(name, strlen(name))},
                        {"chat_template", run->chat != NULL ? json_string(chat_template_name(run->chat)) : json_null()},
                        {"preset", json_string(run->plan.preset)}, {"plan", plan},
                        {"load_seconds", json_real(session->load_seconds)},
                        {"prompt_tokens", json_uint(run->prompt.count)}, {"prefill", prefill});
    json_t *decode = phase_json(output_token_count(run), g->decode_seconds, generation_decode_rate(g));
    JSON_PUT(decode, {"drafted_tokens", json_uint(g->drafted_tokens)},
             {"accepted_tokens", json_uint(g->accepted_tokens)});
    json_put(root, "decode", decode);
    tiers_json(run, root);
    if (session->model->stream != NULL) json_put(root, "weights", weights_json(session->model->stream));
    json_t *fractions = fractions_json(session->engine, run->answers[0].sequence);
    if (fractions != NULL) json_put(root, "compression", fractions);
    const struct rebuild_statistics rebuilt = attention_rebuild_statistics(engine_attention(session->engine));
    json_put(root, "rebuild", rebuilt_json(&rebuilt));
    json_put(root, "selection", selection_json(session->engine, run->plan.select.receipt));
    const struct select_statistics chosen = attention_statistics(engine_attention(session->engine));
    JSON_PUT(root, {"reuse", reuse_json(&chosen.reuse, engine_kv_row_bytes(session->engine))},
             {"peak_rss_bytes", json_uint(peak_rss_bytes())}, {"seed", json_uint(run->answers[0].seed)},
             {"finish_reason", json_string(stop_reason_name(run->answers[0].stop))},
             {"output_tokens", ids_json(&run->answers[0].tokens)});
    if (run->generation.top_count > 0) json_put(root, "top_logprobs", top_json(run));
    if (run->answer_count > 1) json_put(root, "answers", answers_json(run));
    return root;
}

/* Commits are made behind the computation: whether they were is known now.  The answer is there either way. */
static enum status check_saving(const struct run *run, struct error *error) {
    struct error why;
    for (size_t i = 0; i < run->answer_count; i++) {
        struct sequence *sequence = run->answers[i].sequence;
        enum status status = sequence != NULL ? sequence_flush(sequence, &why) : STATUS_OK;
        if (status == STATUS_OK) continue;
        return error_set(error, status, "the answer is complete, but saving the prompt stopped: %s", why.message);
    }
    return STATUS_OK;
}

static enum status report(struct run *run, enum status status, struct error *error) {
    if (run->session.engine == NULL) return status;                 /* it could not be made again */
    run->kv_bytes_peak = engine_kv_used_bytes(run->session.engine); /* it only grew */
    run->kv_device_bytes_peak = engine_kv_device_bytes(run->session.engine);
    if (run->plan.disk_directory != NULL)
        run->kv_bytes_peak = run->kv_device_bytes_peak + engine_tier_statistics(run->session.engine).host_bytes;
    /* What is refused before any work has no figures. */
    if (status == STATUS_OK || status == STATUS_INTERRUPTED || run->generation.figures.prefill_tokens > 0)
        print_timings(run);
    if (status == STATUS_OK) prompt_print_hint(run->options, run->prompt.count);
    if (status == STATUS_OK) status = check_saving(run, error);
    const char *path = option_text(run->options, OPTION_JSON_FILE);
    if (path != NULL) {
        json_t *root = run_json(run);
        struct error json_error;
        enum status written = json_file_write(root, path, &json_error);
        json_decref(root);
        if (written != STATUS_OK && (status == STATUS_OK || status == STATUS_INTERRUPTED)) {
            *error = json_error;
            status = written;
        }
    }
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    return status;
}

enum status run_command(const struct options *options, struct error *error) {
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    run->options = options;
    enum status status = open_run(run, error);
    interrupt_install(); /* until here there is nothing to finish */
    if (!run->listener.quiet) interrupt_tell();
    if (status == STATUS_OK) status = report(run, generate_and_print(run, error), error);
    for (size_t i = 0; i < run->answer_count; i++) answer_destroy(&run->answers[i]);
    json_answers_close(&run->json_answers);
    chat_template_destroy(run->chat);
    session_close(&run->session);
    status = trace_file_close(&run->trace, status, error);
    plan_deinit(&run->plan);
    token_list_deinit(&run->prompt);
    free(run);
    return status;
}
