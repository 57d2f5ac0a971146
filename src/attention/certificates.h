/* certificates: what steps certainly caught of the attention that they replaced, summed up (device.h, certified). */
#ifndef LOAM_ATTENTION_CERTIFICATES_H
#define LOAM_ATTENTION_CERTIFICATES_H

#include <stddef.h>
#include <stdint.h>

struct certificates {
    uint64_t count;    /* query heads of rows that chose; 0: nothing was certified, and the rest is not set */
    double sum, least; /* of their shares, 0..1 */
};

void certificates_add(struct certificates *certificates, const double *shares, size_t count);
void certificates_merge(struct certificates *sum, const struct certificates *more);

#endif
