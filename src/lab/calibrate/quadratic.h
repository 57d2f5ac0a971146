/* quadratic: minimise x^T G x - c^T x over 0 <= x <= 1, G symmetric and positive semidefinite. */
#pragma once

#include <stddef.h>

/* Coordinate descent from x = 0: each coordinate moves to its optimum in turn, until the Karush-Kuhn-Tucker
 * conditions hold within tolerance, or for 10,000 rounds.  The problem is convex, so this is the minimum.  Returns
 * the largest violation left: the gradient where 0 < x < 1, its negative part at 0, its positive part at 1. */
double quadratic_solve(const double *g /* [count][count] */, const double *c /* [count] */, size_t count,
                       double tolerance, double *x /* out [count] */);
double quadratic_violation(const double *g, const double *c, size_t count, const double *x);
