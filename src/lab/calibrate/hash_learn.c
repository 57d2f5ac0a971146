#include "lab/calibrate/hash_learn.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "tensor/half.h"

static const double powers[] = {0, 0.1, 0.15, 0.2, 0.25};
enum { POWER_COUNT = sizeof powers / sizeof powers[0] };
static const double saturating_slope = 3;

struct learning {
    struct hash_head *head;
    const struct hash_learn_options *options;
    struct random *random;
    size_t size; /* elements of W */
    struct hash_trainer *trainer;
    uint16_t *frame, *candidate, *best, *published; /* [dimension][bits] */
    float *across;                                  /* [bits][dimension] */
    double best_mass;
    struct hash_learned *learned;
    double done, total; /* steps, for the progress */
};

static enum status caught_by(struct learning *l, const uint16_t *weights, struct hash_caught *caught,
                             struct error *error) {
    const struct hash_learn_options *o = l->options;
    return hash_head_caught(l->head, weights, o->training.bits, o->keep, caught, error);
}

/* The windows for choosing: the last ones of the training windows. */
static size_t choosing_windows(const struct learning *l) { return max_size(l->options->train_windows / 4, 1); }

static enum status load_training(struct learning *l, struct error *error) {
    return hash_head_load(l->head, l->options->layer, l->options->kv_head, 0,
                          l->options->train_windows - choosing_windows(l), error);
}

static enum status load_choosing(struct learning *l, struct error *error) {
    size_t count = choosing_windows(l);
    return hash_head_load(l->head, l->options->layer, l->options->kv_head, l->options->train_windows - count, count,
                          error);
}

/* Makes the candidate the best one if it is better on the windows for choosing, which must be loaded. */
static enum status consider(struct learning *l, enum hash_origin origin, double power, struct error *error) {
    struct hash_caught caught;
    TRY(caught_by(l, l->candidate, &caught, error));
    if (caught.mass <= l->best_mass) return STATUS_OK;
    l->best_mass = caught.mass;
    l->learned->origin = origin, l->learned->power = power;
    memcpy(l->best, l->candidate, l->size * sizeof *l->best);
    return STATUS_OK;
}

/* frame to the trainer's order. */
static void frame_across(const struct learning *l, float *across) {
    size_t bits = l->options->training.bits, dimension = l->head->dimension;
    for (size_t j = 0; j < bits; j++)
        for (size_t d = 0; d < dimension; d++) across[j * dimension + d] = half_to_float(l->frame[d * bits + j]);
}

static void take_candidate(struct learning *l) {
    hash_weights_store(l->across, l->options->training.bits, l->head->dimension, l->candidate);
}

static enum status try_powers(struct learning *l, struct error *error) {
    for (size_t i = 0; i < POWER_COUNT; i++) {
        TRY(load_training(l, error));
        TRY(hash_head_shape(l->head, powers[i], error));
        frame_across(l, l->across);
        hash_head_unshape(l->head, l->across, l->options->training.bits);
        take_candidate(l);
        TRY(load_choosing(l, error));
        TRY(consider(l, powers[i] > 0 ? HASH_SHAPED : HASH_FRAME, powers[i], error));
    }
    return STATUS_OK;
}

static enum status step_done(struct learning *l, struct error *error) {
    const struct hash_learn_options *o = l->options;
    l->done += 1;
    if (o->progress != NULL && o->progress(o->progress_context, l->done / l->total))
        return error_set(error, STATUS_INTERRUPTED, "interrupted");
    return STATUS_OK;
}

/* Descends from the trainer's weights.  With `each`, the weights after each epoch are candidates. */
static enum status descend(struct learning *l, double power, bool each, struct error *error) {
    const struct hash_training *training = &l->options->training;
    size_t size_bytes = l->size * sizeof(float);
    for (size_t epoch = 0; epoch < training->epochs; epoch++) {
        struct hash_pairs pairs;
        TRY(load_training(l, error));
        hash_head_draw(l->head, l->random, &pairs);
        for (size_t i = 0; i < training->steps; i++) {
            (void)hash_trainer_step(l->trainer, &pairs);
            TRY(step_done(l, error));
        }
        if (!each && epoch + 1 < training->epochs) continue;
        memcpy(l->across, hash_trainer_weights(l->trainer), size_bytes);
        hash_head_unshape(l->head, l->across, training->bits);
        take_candidate(l);
        TRY(load_choosing(l, error));
        TRY(consider(l, each ? HASH_TRAINED : HASH_PUBLISHED, power, error));
    }
    return STATUS_OK;
}

static enum status create_trainer(struct learning *l, bool published, struct error *error) {
    struct hash_training training = l->options->training;
    training.dimension = l->head->dimension;
    training.pair_max = l->head->query_count * l->head->keys_per_query;
    if (!published) training.slope = saturating_slope;
    hash_trainer_destroy(l->trainer);
    l->trainer = NULL;
    TRY(hash_trainer_create(&l->trainer, l->head->pool, &l->head->kernels->matmul, &training, error));
    hash_trainer_reset(l->trainer, l->random);
    return STATUS_OK;
}

static enum status learn(struct learning *l, struct error *error) {
    const struct hash_training *training = &l->options->training;
    TRY(hash_random_weights(l->random, l->head->dimension, training->bits, l->frame, error));
    TRY(load_training(l, error));
    TRY(try_powers(l, error));
    double power = l->learned->power;

    TRY(create_trainer(l, true, error));
    TRY(load_training(l, error));
    TRY(hash_head_shape(l->head, 0, error));
    l->head->keeps_length = true;
    enum status status = descend(l, 0, false, error);
    l->head->keeps_length = false;
    TRY(status);
    memcpy(l->published, l->candidate, l->size * sizeof *l->published);

    TRY(create_trainer(l, false, error));
    TRY(load_training(l, error));
    TRY(hash_head_shape(l->head, power, error));
    frame_across(l, hash_trainer_weights(l->trainer));
    return descend(l, power, true, error);
}

static enum status measure(struct learning *l, struct error *error) {
    size_t first = l->options->train_windows;
    TRY(hash_head_load(l->head, l->options->layer, l->options->kv_head, first,
                       l->head->samples->options.window_count - first, error));
    const uint16_t *weights[] = {l->frame, l->published, l->best};
    double *recalls[] = {&l->learned->random, &l->learned->published, &l->learned->learned};
    for (size_t i = 0; i < 3; i++) {
        struct hash_caught caught;
        TRY(caught_by(l, weights[i], &caught, error));
        *recalls[i] = caught.recall;
    }
    return STATUS_OK;
}

enum status hash_learn(struct hash_head *head, const struct hash_learn_options *options, struct random *random,
                       uint16_t *weights, struct hash_learned *learned, struct error *error) {
    size_t size = head->dimension * options->training.bits;
    ASSERT(options->train_windows >= 2 && options->train_windows < head->samples->options.window_count);
    *learned = (struct hash_learned){0};
    struct learning l = {.head = head,
                         .options = options,
                         .random = random,
                         .size = size,
                         .best_mass = -1,
                         .learned = learned,
                         .total = (double)(2 * options->training.epochs * options->training.steps)};
    uint16_t *halves = calloc(4 * size, sizeof *halves);
    l.across = calloc(size, sizeof *l.across);
    enum status status =
        halves == NULL || l.across == NULL ? error_set(error, STATUS_MEMORY, "no memory for hash weights") : STATUS_OK;
    if (status == STATUS_OK) {
        l.frame = halves, l.candidate = halves + size, l.best = halves + 2 * size, l.published = halves + 3 * size;
        status = learn(&l, error);
    }
    if (status == STATUS_OK) status = measure(&l, error);
    if (status == STATUS_OK) memcpy(weights, l.best, size * sizeof *weights);
    hash_trainer_destroy(l.trainer);
    free(halves);
    free(l.across);
    return status;
}
