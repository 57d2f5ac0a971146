/* eval_reader: a text read window by window, stopping before each length of --lengths so that the tokens there can
 * be read by every preset from the same prefix.  For loam-lab eval kl and recall. */
#pragma once

#include "lab/cli/eval.h"

struct eval_place {
    size_t length_index;
    uint64_t length;        /* tokens of context after the stretch */
    const token_id *tokens; /* [stretch] the tokens before that length */
    const token_id *next;   /* [stretch] the token after each of them */
};

struct eval_reader {
    struct evaluation *evaluation;
    uint64_t lengths[EVAL_LENGTHS_MAX]; /* ascending */
    size_t length_count;
    uint64_t stretch;
    struct token_list text;
    char *text_name;  /* owned */
    token_id *window; /* [window_size], owned */
    size_t window_size, window_count, windows_done;
    struct progress progress;
    struct eval_work prefill;
    double began;
};

/* Reads the options and the text, opens model and engine. STATUS_USAGE: the text is shorter than a window. */
enum status eval_reader_open(struct eval_reader *reader, struct evaluation *evaluation, struct error *error)
    STATUS_CHECKED;
void eval_reader_close(struct eval_reader *reader);

/* For each window and length: `base` (may be NULL) once with full attention, then `each` under every preset, the
 * sequence always holding the tokens before the stretch. */
typedef enum status eval_reader_base(void *context, const struct eval_place *place, struct error *error);
typedef enum status eval_reader_each(void *context, const struct eval_place *place, size_t preset, struct error *error);
enum status eval_reader_run(struct eval_reader *reader, eval_reader_base *base, eval_reader_each *each, void *context,
                            struct error *error) STATUS_CHECKED;

/* Reads the stretch and drops it again.  selects: each token attends as in a decode step, by the preset. */
enum status eval_reader_stretch(struct eval_reader *reader, const struct eval_place *place, bool selects,
                                engine_each_logits *each, void *context, struct error *error) STATUS_CHECKED;
