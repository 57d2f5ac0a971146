#include "attention/certificates.h"

void certificates_add(struct certificates *certificates, const double *shares, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (certificates->count == 0 || shares[i] < certificates->least) certificates->least = shares[i];
        certificates->sum += shares[i];
        certificates->count++;
    }
}

void certificates_merge(struct certificates *sum, const struct certificates *more) {
    if (more->count == 0) return;
    if (sum->count == 0 || more->least < sum->least) sum->least = more->least;
    sum->sum += more->sum;
    sum->count += more->count;
}
