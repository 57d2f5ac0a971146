/* explain: where the tokens of an answer looked.
 *
 * An observer of decode steps adds up, for every step and stored position, the softmax weights that all query heads
 * of all layers that attend to everything gave it (attention_weights.h).  Many heads look at the first tokens, at the
 * ends of sentences or at what is near, whatever they are asked.  So of each position only what a step gave it beyond
 * the mean of all steps counts: what this token of the answer looked for.  Weights say what was read, not why.
 *
 * A step that is repeated, with the same position, counts once; steps of the prompt's own tokens do not count.  Thread:
 * the engine's. */
#pragma once

#include "document/mark.h"
#include "explain/attention_weights.h"

struct explain {
    const struct model_config *config; /* borrowed */
    struct attention_weights weights;
    size_t prompt_count, step_capacity, row_capacity; /* row_capacity: the sum of the two */
    size_t step_count;
    float *steps; /* owned, [step_capacity][row_capacity]: sums of weights */
    /* The step that is looked at: its number, its queries, and how far its weights have been added. */
    size_t step;
    float *queries; /* owned, [layer_count][head_count][k_dimension] */
    size_t noted_layers, layer, kv_head;
    enum status failed; /* keys could not be read, and failure says why: nothing was added from then on */
    struct error failure;
};

/* step_capacity: tokens of the answer, of which further ones are not added.  in_tiers: chunks of the engine's KV come
 * and go. */
enum status explain_create(struct explain *explain, const struct model *model, size_t prompt_count,
                           size_t step_capacity, bool in_tiers, struct error *error) STATUS_CHECKED;
void explain_destroy(struct explain *explain); /* safe after a failed create */
/* What each of row_count positions got beyond the mean of the steps, summed over them: [row_count]. */
void explain_mass(const struct explain *explain, size_t row_count, double *mass);
/* An attention_observer of decode steps of one sequence; context: the explain. */
void explain_add(void *context, const struct attention_event *event);
/* The same in parts, for callers that must not hold up others: explain_note is the observer, which keeps queries, and
 * explain_work, called between that step and the next one, adds their weights, with the same bits.  It asks `pauses`
 * behind each KV head and returns when that says so; true: there is more to do. */
void explain_note(void *context, const struct attention_event *event);
bool explain_work(struct explain *explain, struct kv_sequence *sequence, bool (*pauses)(void *context),
                  void *pauses_context);

/* A part of a text: a sentence, or a paragraph's rest. */
struct explain_span {
    size_t document;         /* the caller's */
    size_t begin, end;       /* bytes of the text */
    struct mark_place place; /* of its beginning */
    size_t token_count;
    double distance;    /* tokens from its middle to the answer */
    double mass, share; /* share: of the mass of all spans */
    double lift;        /* mass of a token, by that of a token of all spans */
    double rank;        /* what spans are sorted by */
};

/* Cuts a text into sentences, of which none crosses the mark of a file or a chapter (document/mark.h): the caller frees
 * *spans. */
enum status explain_sentences(const char *text, size_t length, struct explain_span **spans, size_t *count,
                              struct error *error) STATUS_CHECKED;
/* Sets share, lift and rank, and sorts.  What is near the answer gets more attention, whatever it says: a line through
 * all spans (logarithm of the lift over that of the distance) says how much a place gets.  The rank is the share
 * over what is usual at its place, times the logarithm of how many times the usual a token of it got. */
void explain_rank(struct explain_span *spans, size_t count);
