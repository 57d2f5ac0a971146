/* divergence: distances of two next-token distributions, and their means with standard errors.  The names are
 * llama-perplexity's, so that numbers can be compared:
 *
 *   PPL         exp of the mean loss, -log p(true token)
 *   KLD         sum over tokens of p_base * (log p_base - log p), in nats
 *   same top    how often the likeliest token is the same
 *   delta p     p(true token) - p_base(true token) */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sum and sum of squares: mean and its standard error. */
struct tally {
    double sum, square;
    uint64_t count;
};
void tally_add(struct tally *tally, double value);
double tally_mean(const struct tally *tally);  /* NaN when empty */
double tally_error(const struct tally *tally); /* of the mean; 0 when it cannot be told */

/* Log-probabilities of a row of logits, which may be the same array. */
void log_softmax(const float *logits, uint32_t count, float *log_probabilities);

/* Index of the largest value; of equal ones the first. */
uint32_t top_of(const float *values, size_t count);

/* KLD of two rows of log-probabilities.  Tokens of at most `floor` in base are left out: there a base from a file holds
 * a bound and no probability (cli/logits_base.h); -INFINITY leaves out none.  Rounding, or what is left out, can make
 * it negative. */
double kl_divergence(const float *base, const float *own, size_t count, float floor);

/* The figures above over the places of a text. */
struct divergence {
    struct tally loss, base_loss, kld, delta_p;
    uint64_t same_top;
};
/* base and own: [count] log-probabilities; floor: as above; returns the place's KLD. */
double divergence_add(struct divergence *divergence, const float *base, const float *own, size_t count, float floor,
                      uint32_t true_token);
