/* choose: which plan is the quickest for a model, a context and its budgets (--preset auto, loam plan).
 *
 * Every row of the list in choose.c is tried as the user would give it, by plan_set_axes and plan_check, and predicted
 * by plan/cost.h; the quickest of those that may be chosen is the choice.  Exact ones may always be.  Others may where
 * a loss is allowed: with `loss` the dial holds each head to it (decision 0033), and with `kld_max` what the
 * method lost on this model decides, where that is known.
 */
#pragma once

#include "plan/cost.h"

/* Beside the axes it chooses what they run with:
 *
 *   threads     all of the machine's, unless a step with fewer is CHOOSE_MARGIN quicker and a prompt is not slower
 *   sequences   how many go through a pass together: as many as asked for, or the fewest of 1, 2, 4 .. that reach the
 *               most tokens a second but for CHOOSE_MARGIN (schedule `column`; one is `row`)
 *   memory      where it does not hold KV and weights: as many layers' weights stay as fit beside the KV, and the
 *               others are read for each pass.  Where the KV has a disk and no budget the two are divided in
 *               CHOOSE_DIVISIONS ways, of which the quickest is taken.
 */
/* An exact plan is chosen unless one that loses something is this much quicker. */
#define CHOOSE_MARGIN 1.05

enum { CHOOSE_DIVISIONS = 8, CHOOSE_THREADS_MAX = MACHINE_THREAD_COUNTS + 1 };
enum { CANDIDATES_MAX = 32, CANDIDATE_TEXT_BYTES = 96, CANDIDATE_SET_BYTES = 64 };

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
    size_t thread_count, sequences;
    uint64_t weights_host_bytes; /* 0: all weights are in RAM */
    size_t resident_layers;      /* whose weights stay */
    size_t resident_experts;     /* that there is room for, of all layers; 0: there are none */
    struct cost cost;
};
/* Of all its sequences together. */
static inline double candidate_rate(const struct candidate *candidate) {
    return (double)candidate->sequences / candidate->cost.step_seconds;
}

/* A model on a machine with each number of threads that may be chosen: all of them first. */
struct cost_models {
    struct machine machines[CHOOSE_THREADS_MAX];
    struct cost_model list[CHOOSE_THREADS_MAX]; /* borrows the machines, the configuration */
    size_t count;
};
/* thread_count 0: all that the machine has numbers of.  false: it has none of that count. */
bool cost_models_init(struct cost_models *models, const struct machine *machine, size_t thread_count,
                      const struct model_config *config, const struct gguf *gguf);

struct choose_question {
    const struct cost_model *models; /* [model_count], of numbers of threads: all of them first */
    size_t model_count;
    const struct plan *plan; /* sizes, tiers and types; its axes do not matter */
    /* That it is to run on: what it cannot do is left out.  NULL: every device could. */
    const struct device *device;
    uint64_t depth;              /* tokens that each sequence will have */
    size_t sequences;            /* of a pass together; 0: to be chosen, up to PLAN_SEQUENCES_MAX */
    uint64_t memory_bytes;       /* RAM for KV and weights together; 0: enough */
    uint64_t weights_host_bytes; /* 0: as the memory says */
    double loss;                 /* the dial (struct select_options) of the plans that a loss is for; 0: none */
    double kld_max;              /* 0: no loss by it */
    /* A candidate's KL divergence from full attention on this model; NaN: unknown.  May be NULL. */
    double (*kld)(void *context, const char *text);
    void *kld_context;
};

struct choices {
    struct candidate list[CANDIDATES_MAX]; /* those that may be chosen first, each kind by its seconds */
    size_t count;
    struct error refused;  /* of the last one that is not possible */
    struct error left_out; /* of the last one that the device cannot run; status OK: it can run all */
};

/* STATUS_MEMORY, ...: nothing is possible; the message is that of `full`. */
enum status plan_choose(struct choices *choices, const struct choose_question *question, struct error *error)
    STATUS_CHECKED;
/* Whether a plan that answers it may read the disk, so that the disk's numbers are wanted: it has KV there, or all KV
 * (twice: what else there is of it) and the weights may not fit the memory.  The question's models are not looked at.
 */
bool plan_may_read_disk(const struct choose_question *question, const struct model_config *config,
                        const struct weight_sizes *weights);
/* RAM for weights beside kv_bytes of KV; 0: all of them fit, or not even the least does. */
uint64_t plan_weights_host_bytes(const struct weight_sizes *weights, uint64_t memory_bytes, uint64_t kv_bytes);
/* The context below which full attention is about as quick as this plan (CHOOSE_MARGIN), with all KV in RAM; 0: it
 * never is, or the plan is full attention. */
uint64_t plan_exact_below(const struct cost_model *model, const struct plan *plan, uint64_t context);
