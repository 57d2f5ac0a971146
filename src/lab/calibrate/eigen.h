/* eigen: all eigenvalues and eigenvectors of a symmetric matrix, by Jacobi's rotations, in double.
 * For the Gram matrix X^T X they are the squared singular values and the right singular vectors of X. */
#pragma once

#include <stddef.h>

/* matrix [count][count] is overwritten.  values [count] descend; vectors [count][count]: column j belongs to
 * values[j].  Equal values: the order is that of the diagonal.  Cyclic sweeps until the off-diagonal part is below
 * 1e-15 of the matrix's norm (30 sweeps at most; 6 to 10 are usual). */
void eigen_symmetric(double *matrix, size_t count, double *values, double *vectors);
