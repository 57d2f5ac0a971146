#include "attention/receipt.h"

#include <math.h>

void mass_receipt_add(struct mass_receipt *receipt, const struct mass_estimate *estimates, size_t count, size_t group) {
    double error = 0;
    for (size_t i = 0; i < count; i++) {
        if (receipt->count == 0 || estimates[i].left_out > receipt->worst.left_out) receipt->worst = estimates[i];
        receipt->sum += estimates[i].left_out;
        receipt->upper += estimates[i].upper;
        receipt->step_sum += estimates[i].left_out;
        receipt->count++;
        receipt->step_count++;
        error = i % group == 0 ? estimates[i].error : error + estimates[i].error;
        if (i % group == group - 1) receipt->variance += error * error;
    }
}

void mass_receipt_end_step(struct mass_receipt *receipt) {
    if (receipt->step_count == 0) return;
    receipt->step_worst = fmax(receipt->step_worst, receipt->step_sum / (double)receipt->step_count);
    receipt->steps++;
    receipt->step_sum = 0;
    receipt->step_count = 0;
}

void mass_receipt_merge(struct mass_receipt *sum, const struct mass_receipt *more) {
    if (more->count == 0) return;
    if (sum->count == 0 || more->worst.left_out > sum->worst.left_out) sum->worst = more->worst;
    sum->count += more->count;
    sum->sum += more->sum;
    sum->upper += more->upper;
    sum->variance += more->variance;
    sum->steps += more->steps;
    sum->time_ns += more->time_ns;
    sum->step_worst = fmax(sum->step_worst, more->step_worst);
    sum->step_sum += more->step_sum;
    sum->step_count += more->step_count;
}

/* Errors of steps that are alike add up: (sum of e_t)^2 <= steps times the sum of e_t^2. */
struct mass_estimate mass_receipt_mean(const struct mass_receipt *receipt) {
    if (receipt->count == 0) return (struct mass_estimate){0};
    const double count = (double)receipt->count, steps = (double)(receipt->steps + (receipt->step_count > 0));
    const double error = sqrt(steps * receipt->variance);
    return (struct mass_estimate){.left_out = receipt->sum / count,
                                  .upper = receipt->upper / count,
                                  .error = hypot(error, receipt->upper - receipt->sum) / count};
}
