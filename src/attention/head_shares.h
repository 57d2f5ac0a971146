/* head_shares: how much of what a step keeps goes to each KV head.
 *
 * A head that loses nothing by its window alone need not choose at all, and what it would choose is worth more to a
 * head that retrieves.  The importance of a head (0..1) is what a calibration found: the gates of DuoAttention and CLO
 * (Eq. 15), or the layer-local surrogate (docs/calibration.md).  A head of importance a has the share
 *
 *   HEAD_SHARE_BASE + (1 - HEAD_SHARE_BASE) a / mean(a)       at most HEAD_SHARE_MOST, the rest divided again
 *
 * of an even part, and goes without the power share of what it would go without evenly:
 *
 *   kept = visible (1 - (1 - keep / visible)^share)
 *
 * That is share * keep where keep is small, everything where keep is everything, and, being concave in the share, on
 * average at most keep.  Ada-KV divides a layer's budget by attention weights in the prompt; this one needs no prompt
 * and divides that of all layers.  docs/decisions/0017.
 */
#ifndef LOAM_ATTENTION_HEAD_SHARES_H
#define LOAM_ATTENTION_HEAD_SHARES_H

#include <stddef.h>
#include <stdint.h>

#define HEAD_SHARE_BASE 0.2
#define HEAD_SHARE_MOST 2.0

/* shares: [count], in: importance, none below 0; out: shares, 1 on average.  Nothing important: all alike. */
void head_shares_divide(double *shares, size_t count);
/* Tokens, of visible ones, that a head with this share keeps where an even division gives `keep` to each. */
uint64_t head_share_keep(uint64_t keep, uint64_t visible, double share);

#endif
