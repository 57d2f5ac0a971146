#include "lab/eval/divergence.h"

#include <math.h>

void tally_add(struct tally *tally, double value) {
    tally->sum += value;
    tally->square += value * value;
    tally->count++;
}

double tally_mean(const struct tally *tally) {
    return tally->count > 0 ? tally->sum / (double)tally->count : (double)NAN;
}

double tally_error(const struct tally *tally) {
    if (tally->count < 2) return 0;
    double mean = tally_mean(tally), variance = tally->square / (double)tally->count - mean * mean;
    return variance > 0 ? sqrt(variance / (double)(tally->count - 1)) : 0;
}

void log_softmax(const float *logits, uint32_t count, float *log_probabilities) {
    float largest = logits[0];
    for (uint32_t i = 1; i < count; i++) largest = logits[i] > largest ? logits[i] : largest;
    double sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += (double)expf(logits[i] - largest);
    float offset = largest + (float)log(sum);
    for (uint32_t i = 0; i < count; i++) log_probabilities[i] = logits[i] - offset;
}

uint32_t top_of(const float *values, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (values[i] > values[best]) best = i;
    return (uint32_t)best;
}

double kl_divergence(const float *base, const float *own, size_t count, float floor) {
    float smallest = floor > -40 ? floor : -40; /* below -40 a term is less than 1e-16 */
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        if (base[i] > smallest) sum += exp((double)base[i]) * ((double)base[i] - (double)own[i]);
    return sum;
}

double divergence_add(struct divergence *divergence, const float *base, const float *own, size_t count, float floor,
                      uint32_t true_token) {
    double kld = kl_divergence(base, own, count, floor);
    tally_add(&divergence->kld, kld);
    tally_add(&divergence->loss, -(double)own[true_token]);
    tally_add(&divergence->base_loss, -(double)base[true_token]);
    tally_add(&divergence->delta_p, exp((double)own[true_token]) - exp((double)base[true_token]));
    divergence->same_top += top_of(base, count) == top_of(own, count);
    return kld;
}
