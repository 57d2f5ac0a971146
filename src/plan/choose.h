/* choose: which plan is the quickest for a model, a context and its budgets (--preset auto, loam plan).
 *
 * Every row of the list in choose.c is tried as the user would give it, by plan_set_axes and plan_check, and predicted
 * by plan/cost.h; the quickest of those that may be chosen is the choice.  Exact ones may always be.  Others may where
 * a loss is allowed: with `loss` the dial holds each head to it (docs/decisions/0033), and with `kld_max` what the
 * method lost on this model decides, where that is known.
 */
#ifndef LOAM_PLAN_CHOOSE_H
#define LOAM_PLAN_CHOOSE_H

#include "plan/cost.h"

/* An exact plan is chosen unless one that loses something is this much quicker. */
#define CHOOSE_MARGIN 1.05

enum { CANDIDATES_MAX = 24, CANDIDATE_TEXT_BYTES = 96, CANDIDATE_SET_BYTES = 64 };

struct candidate {
    const char *preset;
    char set[CANDIDATE_SET_BYTES];   /* ""; "select=meanstd,loss=0.05" */
    char text[CANDIDATE_TEXT_BYTES]; /* "quest select=meanstd" */
    size_t row;                      /* of the list in choose.c */
    bool is_exact, is_allowed;
    double loss;          /* its dial; 0: none */
    double kld;           /* NaN: unknown; 0 if exact */
    uint64_t exact_below; /* shorter contexts attend to everything, which is about as quick */
    uint64_t host_bytes;
    struct cost cost;
};

struct choose_question {
    const struct cost_model *model;
    const struct plan *plan; /* sizes, tiers and types; its axes do not matter */
    uint64_t depth;          /* tokens that the sequence will have */
    double loss;             /* the dial (struct select_options) of the plans that a loss is for; 0: none */
    double kld_max;          /* 0: no loss by it */
    /* A candidate's KL divergence from full attention on this model; NaN: unknown.  May be NULL. */
    double (*kld)(void *context, const char *text);
    void *kld_context;
};

struct choices {
    struct candidate list[CANDIDATES_MAX]; /* those that may be chosen first, each kind by its seconds */
    size_t count;
    struct error refused; /* of the last one that is not possible */
};

/* STATUS_MEMORY, ...: nothing is possible; the message is that of `full`. */
enum status plan_choose(struct choices *choices, const struct choose_question *question, struct error *error)
    STATUS_CHECKED;
/* The context below which full attention is about as quick as this plan (CHOOSE_MARGIN), with all KV in RAM; 0: it
 * never is, or the plan is full attention. */
uint64_t plan_exact_below(const struct cost_model *model, const struct plan *plan, uint64_t context);

#endif
