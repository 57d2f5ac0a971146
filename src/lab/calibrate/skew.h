/* skew: matrices that turn q and k of a KV head so that few columns carry most of q.k (Lee et al. 2024, InfiniGen).
 *
 * A is the matrix of right singular vectors of Q, so q A has uncorrelated columns; since A A^T = I, q.k stays what it
 * is.  Columns are ordered by sigma_q * sigma_k, and the first fifth is what speculation uses.  Differs from
 * [infinigen]: Q is the queries of all heads of the group together, since they share the keys; sigma_k of a column is
 * the length of K's component along it, |K a|, not K's own singular value of the same rank, which belongs to another
 * direction; the columns kept are the first in that order, not those with the largest sum of |Q| at run time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Gram matrices Q^T Q and K^T K, [dimension][dimension]; overwritten.  skew: out, [dimension][dimension], column j the
 * j-th most important.  kept: out, the fraction of sum (sigma_q sigma_k)^2 in the first fifth.  work: [3][dimension]
 * [dimension]. */
void skew_find(double *queries, double *keys, size_t dimension, double *work, double *skew, double *kept);
