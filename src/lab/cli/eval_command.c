/* loam-lab eval: what an approximate attention costs in answers (ruler, ask), in probabilities (kl), and in attention
 * mass (recall). */
#include <stdlib.h>
#include <string.h>

#include "cli/interrupt.h"
#include "lab/cli/eval.h"
#include "lab/cli/lab.h"

enum { RULER = 1, KL = 2, RECALL = 4, ASK = 8 };

static const struct {
    const char *name;
    unsigned bit;
    enum status (*run)(struct evaluation *evaluation, struct error *error);
} kinds[] = {
    {"ruler", RULER, eval_ruler}, {"kl", KL, eval_kl}, {"recall", RECALL, eval_recall}, {"ask", ASK, eval_ask}};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

/* Options that not every evaluation has. */
static const struct {
    unsigned id, kinds;
} restricted[] = {
    {OPTION_EVAL_TASKS, RULER},   {OPTION_EVAL_SAMPLES, RULER},
    {OPTION_SEED, RULER},         {OPTION_EVAL_SVG, RULER},
    {OPTION_EVAL_EMIT, RULER},    {OPTION_EVAL_SHARED, RULER},
    {OPTION_EVAL_RESUME, RULER},  {OPTION_EVAL_STRETCH, KL | RECALL},
    {OPTION_EVAL_QUESTIONS, ASK}, {OPTION_EVAL_LENGTHS, RULER | KL | RECALL},
    {OPTION_CHUNKS, KL | RECALL}, {OPTION_KV_HOST, RULER | KL},
    {OPTION_KV_DISK, RULER | KL},
};

static enum status find_kind(const struct options *options, size_t *index, struct error *error) {
    const char *name = options->positionals[0];
    for (*index = 0; *index < KIND_COUNT; ++*index)
        if (strcmp(kinds[*index].name, name) == 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "eval: found '%.40s', expected ruler, kl, recall or ask", name);
}

static const char *option_name(const struct options *options, unsigned id) {
    const struct option_spec *spec;
    for (size_t i = 0; (spec = program_option(options->program, i)) != NULL; i++)
        if (spec->id == id) return spec->name;
    return "";
}

static enum status check_options(const struct options *options, size_t kind, struct error *error) {
    for (size_t i = 0; i < sizeof restricted / sizeof restricted[0]; i++) {
        const struct option_value *value = &options->values[restricted[i].id];
        if (value->source == SOURCE_ARGUMENT && value->present && (restricted[i].kinds & kinds[kind].bit) == 0)
            return error_set(error, STATUS_USAGE, "eval %s: --%s belongs to another evaluation", kinds[kind].name,
                             option_name(options, restricted[i].id));
    }
    return STATUS_OK;
}

enum status eval_command(const struct options *options, struct error *error) {
    size_t kind;
    TRY(find_kind(options, &kind, error));
    TRY(check_options(options, kind, error));
    interrupt_install();
    struct evaluation *evaluation = calloc(1, sizeof *evaluation);
    if (evaluation == NULL) return error_set(error, STATUS_MEMORY, "out of memory");
    enum status status = evaluation_read(evaluation, options, error);
    if (status == STATUS_OK) status = kinds[kind].run(evaluation, error);
    if (status == STATUS_INTERRUPTED) error->message[0] = '\0'; /* the user knows */
    evaluation_close(evaluation);
    free(evaluation);
    return status;
}
