/* eval: what the evaluations of `loam-lab eval` share. */
#pragma once

#include <stdio.h>

#include "cli/json_file.h"
#include "cli/plan.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/table.h"
#include "lab/cli/eval_tiers.h"
#include "lab/cli/lab.h"
#include "lab/cli/output_file.h"
#include "lab/eval/essay.h"

enum { EVAL_PRESETS_MAX = 40, EVAL_LENGTHS_MAX = 32 };
enum eval_output { EVAL_OUTPUT_MD, EVAL_OUTPUT_JSON, EVAL_OUTPUT_JSONL }; /* choices of -o */

struct evaluation {
    const struct options *options;
    struct session session;
    struct sequence *sequence;
    struct plan plans[EVAL_PRESETS_MAX];
    const char *labels[EVAL_PRESETS_MAX]; /* as --preset has them: "hata:512" */
    size_t order[EVAL_PRESETS_MAX];       /* the order in which they run: those that watch prompts first */
    char *preset_names;                   /* owned: the texts of labels */
    size_t preset_count;
    enum eval_output output;
    struct output_file jsonl; /* of --jsonl; stream NULL: none */
    bool resumes;             /* jsonl is appended to */
    struct eval_tiers tiers;  /* --kv-host and --kv-disk */
    size_t preset_in_use;     /* index + 1; 0: none */
    uint64_t noticed;         /* bits: presets whose fallback was told */
};

/* Rejects options of other evaluations, reads the presets, and checks that the outputs can be written. */
enum status evaluation_read(struct evaluation *evaluation, const struct options *options, struct error *error)
    STATUS_CHECKED;
/* Opens model and tokenizer (session_open_vocabulary opens the tokenizer alone), then an engine with one sequence of
 * context_size tokens. */
enum status evaluation_open_model(struct evaluation *evaluation, struct error *error) STATUS_CHECKED;
enum status evaluation_open_engine(struct evaluation *evaluation, uint64_t context_size, struct error *error)
    STATUS_CHECKED;
/* From here on steps attend as preset number `index` says, or to everything (EVAL_FULL).  What is in the sequence
 * stays; but a preset that watches prompts must see them: evaluation_watches. */
enum { EVAL_FULL = EVAL_PRESETS_MAX };
bool evaluation_watches(const struct evaluation *evaluation, size_t index);
enum status evaluation_use_preset(struct evaluation *evaluation, size_t index, struct error *error) STATUS_CHECKED;
void evaluation_close(struct evaluation *evaluation);

/* The text of -f; without -f the one in the binary.  The caller owns *text. */
enum status evaluation_text(const struct evaluation *evaluation, char **text, size_t *length, const char **name,
                            struct error *error) STATUS_CHECKED;

/* Writes one line of JSON to -o jsonl and to --jsonl, if they are given.  Takes the object. */
enum status evaluation_line(struct evaluation *evaluation, json_t *object, struct error *error) STATUS_CHECKED;
bool evaluation_wants_lines(const struct evaluation *evaluation);
/* Writes the table (-o md: to standard output, else to standard error unless -q) and the JSON of -o json and --json
 * FILE; commits --jsonl.  Takes the root. */
enum status evaluation_report(struct evaluation *evaluation, const struct table *table, const char *note, json_t *root,
                              struct error *error) STATUS_CHECKED;
/* The end of an evaluation whose work ended with `work`: reports what was measured, also when Ctrl-C cut it short, and
 * returns the first of the two that is not STATUS_OK.  run is the report's. */
enum status evaluation_conclude(enum status work, enum status (*report)(void *run, struct error *error), void *run,
                                struct error *error) STATUS_CHECKED;
/* The fields at the beginning of every report: model, evaluation, seed, presets. */
json_t *evaluation_json(const struct evaluation *evaluation);

/* "1,024 tokens in 3.2 s" of a kind of work, for reports. */
struct eval_work {
    uint64_t tokens;
    double seconds;
};
json_t *eval_work_json(struct eval_work work);

enum status eval_ruler(struct evaluation *evaluation, struct error *error) STATUS_CHECKED;
enum status eval_kl(struct evaluation *evaluation, struct error *error) STATUS_CHECKED;
enum status eval_ask(struct evaluation *evaluation, struct error *error) STATUS_CHECKED;
enum status eval_recall(struct evaluation *evaluation, struct error *error) STATUS_CHECKED;
