#include "attention/certificates.h"

void certificates_add(struct certificates *certificates, const double *shares, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (certificates->count == 0 || shares[i] < certificates->least) certificates->least = shares[i];
        certificates->sum += shares[i];
        certificates->count++;
    }
}
