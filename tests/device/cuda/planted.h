/* planted: what test_executor.c gives the kernels of planted.cu, and the bugs in them. */
#ifndef LOAM_TESTS_DEVICE_CUDA_PLANTED_H
#define LOAM_TESTS_DEVICE_CUDA_PLANTED_H

#include <stdint.h>

enum planted_bug {
    PLANTED_NONE,
    PLANTED_BARRIER,      /* the tiles are read before the block has met */
    PLANTED_REUSE,        /* the next tile is written while the last is read */
    PLANTED_COPY_WAIT,    /* a copy is not waited for */
    PLANTED_FRAGMENT,     /* a matrix is loaded by rows of another */
    PLANTED_LANE,         /* a sum over the wrong lanes */
    PLANTED_DEPENDENCY,   /* reads what the kernel before writes, before it waits */
    PLANTED_WRONG_VALUES, /* up to here the results are wrong; from here on the executor ends the program */
    PLANTED_DIVERGE = PLANTED_WRONG_VALUES,
    PLANTED_DEADLOCK,
    PLANTED_COPY_END, /* ends while a copy is under way */
    PLANTED_END
};

enum { PLANTED_K = 64, PLANTED_THREADS = 64 };

/* d[16][16] = a[16][64] b[16][64]^T in halves, tiles of 16 columns, a warp each for 8 columns of d; sums[16]:
 * of the rows of d.  input[0], if it is not 0, is added to the sums. */
struct planted_args {
    uint64_t a, b, d, sums, input;
    uint32_t bug, reserved;
};

#endif
