#include "attention/head_shares.h"

#include <math.h>

/* What is above HEAD_SHARE_MOST goes to those below it, in proportion.  False: nothing was above. */
static int level_off(double *shares, size_t count) {
    double over = 0, room = 0;
    for (size_t i = 0; i < count; i++)
        if (shares[i] > HEAD_SHARE_MOST) {
            over += shares[i] - HEAD_SHARE_MOST;
            shares[i] = HEAD_SHARE_MOST;
        } else if (shares[i] < HEAD_SHARE_MOST)
            room += shares[i];
    for (size_t i = 0; i < count && room > 0; i++)
        if (shares[i] < HEAD_SHARE_MOST) shares[i] *= 1 + over / room;
    return over > 0 && room > 0;
}

void head_shares_divide(double *shares, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += shares[i];
    for (size_t i = 0; i < count; i++)
        shares[i] = sum > 0 ? HEAD_SHARE_BASE + (1 - HEAD_SHARE_BASE) * shares[i] * (double)count / sum : 1;
    for (size_t round = 0; round < count && level_off(shares, count); round++) {
    } /* each fills at least one */
}

uint64_t head_share_keep(uint64_t keep, uint64_t visible, double share) {
    if (keep >= visible) return keep;
    double kept = (double)visible * (1 - pow(1 - (double)keep / (double)visible, share));
    return (uint64_t)(kept + 1e-6); /* a share of 1 is keep, whatever was rounded */
}
