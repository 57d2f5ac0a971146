/* loam-lab trace record: queries, keys and values of a real run, for `loam bench --replay` (lab/replay/recording.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "cli/interrupt.h"
#include "cli/plan.h"
#include "cli/progress.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "lab/cli/lab.h"
#include "lab/replay/recording.h"

enum { LAYERS_MAX = 1024, LAYERS_DEFAULT = 8 };

struct record {
    const struct options *options;
    struct session session;
    struct plan plan;
    struct token_list text;
    struct sequence *sequence;
    struct recorder *recorder;
    size_t layers[LAYERS_MAX];
    size_t layer_count;
};

/* --layers, else eight at equal distances. */
static enum status choose_layers(struct record *r, struct error *error) {
    const struct option_value *list = option_list(r->options, OPTION_RECORD_LAYERS);
    const size_t there = r->session.model->config.layer_count;
    r->layer_count = list->list_count > 0 ? list->list_count : min_size(LAYERS_DEFAULT, there);
    if (r->layer_count > LAYERS_MAX)
        return error_set(error, STATUS_USAGE, "--layers: found %zu, expected at most %d", r->layer_count, LAYERS_MAX);
    for (size_t i = 0; i < r->layer_count; i++) {
        r->layers[i] = list->list_count > 0 ? (size_t)list->list[i] : i * there / r->layer_count;
        if (r->layers[i] >= there || (i > 0 && r->layers[i] <= r->layers[i - 1]))
            return error_set(error, STATUS_USAGE, "--layers: found %zu, expected ascending numbers below %zu",
                             r->layers[i], there);
    }
    return STATUS_OK;
}

static enum status read_text(struct record *r, struct error *error) {
    if (option_text(r->options, OPTION_FILE) == NULL)
        return error_set(error, STATUS_USAGE, "trace record: which text?  -f FILE");
    TRY(prompt_tokens(r->options, NULL, r->session.tokenizer, &r->text, error));
    const size_t wanted = option_count(r->options, OPTION_CONTEXT);
    if (r->text.count < wanted)
        return error_set(error, STATUS_USAGE, "-c: found %zu, the text has %zu tokens", wanted, r->text.count);
    r->text.count = wanted;
    return STATUS_OK;
}

static enum status record(struct record *r, struct error *error) {
    const struct options *options = r->options;
    TRY(session_open(&r->session, options, option_count(options, OPTION_THREADS), error));
    TRY(session_open_tokenizer(&r->session, options, error));
    TRY(choose_layers(r, error));
    TRY(read_text(r, error));
    TRY(plan_set_axes(&r->plan, NULL, NULL, NULL, error));
    r->plan.sequence_capacity = 1;
    r->plan.context_size = r->text.count;
    r->plan.batch_size = plan_read_batch_size(options);
    TRY(session_create_engine(&r->session, &r->plan, NULL, error));
    TRY(sequence_create(&r->sequence, r->session.engine, error));
    TRY(recorder_create(&r->recorder, r->session.model, r->layers, r->layer_count, r->text.count, error));
    engine_set_attention_observer(r->session.engine, recorder_observe, r->recorder);
    struct progress progress;
    progress_begin(&progress, "reading", option_flag(options, OPTION_QUIET));
    struct prefill_request request = {.tokens = r->text.ids,
                                      .token_count = r->text.count,
                                      .progress = progress_engine,
                                      .progress_context = &progress};
    enum status status = engine_prefill(r->session.engine, r->sequence, &request, NULL, error);
    progress_end(&progress);
    engine_set_attention_observer(r->session.engine, NULL, NULL);
    TRY(status);
    return recorder_write(r->recorder, option_text(options, OPTION_RECORD_OUTPUT), error);
}

enum status trace_command(const struct options *options, struct error *error) {
    if (strcmp(options->positionals[0], "record") != 0)
        return error_set(error, STATUS_USAGE, "trace: found '%.40s', expected record", options->positionals[0]);
    if (option_text(options, OPTION_RECORD_OUTPUT) == NULL)
        return error_set(error, STATUS_USAGE, "trace record: into which file?  -o FILE");
    struct record *r = calloc(1, sizeof *r);
    if (r == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    interrupt_install();
    r->options = options;
    enum status status = record(r, error);
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    recorder_destroy(r->recorder);
    sequence_destroy(r->sequence);
    session_close(&r->session);
    plan_deinit(&r->plan);
    token_list_deinit(&r->text);
    free(r);
    return status;
}
