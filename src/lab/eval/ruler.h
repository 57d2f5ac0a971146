/* ruler: samples of RULER's thirteen tasks (Hsieh et al. 2024, arXiv 2404.06654), made from a seed.
 *
 * The construction is RULER's, the text our own (eval/ruler_text.h says what a prompt looks like), and so are
 * these differences:
 *   - qa_1 and qa_2 ask about made-up people and towns (one document, two documents) instead of SQuAD and HotpotQA;
 *   - vt and cwe come without a worked example;
 *   - the asked needle of sample i lies at depth frac(u + i * 0.618...) instead of one of 40 random depths, so that
 *     few samples cover all depths evenly; u depends on seed, task and length;
 *   - cwe below 4096 tokens: 10 times and once instead of 30 and 3.
 * Results are RULER-style, never RULER scores.
 *
 * A prompt is exact in tokens of the model's own tokenizer: the haystack has as many units (sentences, needles,
 * words, documents) as fit so that tokens(prompt, BOS included) + token_budget <= length; one unit more would not
 * fit.  The essay is read from a random sentence on; when it is used up it begins anew with its sentences shuffled.
 *
 * Sample i of a task at a length depends on the seed, the task, the length, i, the essay and the tokenizer, and on
 * nothing else (base/random: xoshiro256**). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "lab/eval/essay.h"
#include "token/tokenizer.h"

enum ruler_task {
    RULER_NIAH_SINGLE_1,
    RULER_NIAH_SINGLE_2,
    RULER_NIAH_SINGLE_3,
    RULER_NIAH_MULTIKEY_1,
    RULER_NIAH_MULTIKEY_2,
    RULER_NIAH_MULTIKEY_3,
    RULER_NIAH_MULTIVALUE,
    RULER_NIAH_MULTIQUERY,
    RULER_VT,
    RULER_CWE,
    RULER_FWE,
    RULER_QA_1,
    RULER_QA_2,
    RULER_TASK_COUNT
};

enum { RULER_ANSWERS_MAX = 10, RULER_ANSWER_BYTES = 48, RULER_LENGTH_MIN = 256 };

const char *ruler_task_name(enum ruler_task task); /* "niah_single_1" */
bool ruler_task_is_part(enum ruler_task task);     /* scored by string_match_part (qa) instead of _all */
bool ruler_task_is_needle(enum ruler_task task);   /* has one asked needle: belongs on the heat map */

struct ruler_options {
    uint64_t seed;
    const struct essay *essay;         /* borrowed */
    const struct tokenizer *tokenizer; /* borrowed */
};

struct ruler_sample {
    char *prompt; /* owned, zero-terminated */
    size_t prompt_bytes;
    /* Of the prompt, with the special tokens that the vocabulary puts before a text */
    struct token_list tokens;
    char answers[RULER_ANSWERS_MAX][RULER_ANSWER_BYTES];
    size_t answer_count;
    char *answer_text;   /* owned: how a perfect model continues, " 1234567." */
    double depth;        /* of the asked needle or document, 0 (start) to 1; -1: the task has more than one */
    size_t token_budget; /* of the answer: RULER's, or 8 more than answer_text takes if that is larger */
};

/* STATUS_USAGE names the length a task needs, or that the word lists are too short for it. */
enum status ruler_sample_create(struct ruler_sample *sample, const struct ruler_options *options, enum ruler_task task,
                                uint64_t length, uint64_t index, struct error *error) STATUS_CHECKED;
void ruler_sample_deinit(struct ruler_sample *sample);

/* Samples of several tasks over one text, so that one prefill serves all of them: samples[task_count], zeroed or not,
 * in the order of tasks, which are different and can all share.  The text is the essay with the needles of every task
 * and vt's statements (on lines of their own), keys, values and names all different; the prompts are the same up to
 * the question.  It has as many sentences as fit with the task that needs the most tokens to ask and answer.  Each
 * sample depends on the set of tasks too.  On failure all samples are empty. */
bool ruler_task_can_share(enum ruler_task task);
enum status ruler_samples_create_shared(struct ruler_sample *samples, const struct ruler_options *options,
                                        const enum ruler_task *tasks, size_t task_count, uint64_t length,
                                        uint64_t index, struct error *error) STATUS_CHECKED;
