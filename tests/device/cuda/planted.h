/* planted: what test_executor.c gives the kernels of planted.cu, and the bugs in them. */
#pragma once

#include <stdint.h>

#include "device/cuda/kernels_sm90a.h"

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

/* Bugs of planted_tiles: what it does with the words of dialect_sm90a.h. */
enum planted_tiles_bug {
    TILES_RIGHT,
    TILES_UNPUBLISHED, /* barriers are made without mbarriers_publish */
    TILES_UNMET,       /* and used before the block has met */
    TILES_OVERWRITE,   /* a stage is filled while it is read */
    TILES_FEW_BYTES,   /* fewer bytes are expected than come */
    TILES_MANY_BYTES,  /* and more */
    TILES_ARRIVALS,    /* one warp does not say that it has stored */
    TILES_TWICE,       /* one says it twice */
    TILES_UNFENCED,    /* what threads have stored is not fenced from what products read */
    TILES_PLACE,       /* it is stored without the swizzle */
    TILES_SWIZZLE,     /* the tensor map has no swizzle */
    TILES_UNAWAITED,   /* a stage is read before it is full */
    TILES_PHASE,       /* the wait is for even phases only */
    TILES_RELEASE,     /* a stage is released while its products are under way */
    TILES_STRIDE,      /* a descriptor has another distance of 8 rows */
    TILES_KIND,        /* and no swizzle */
    TILES_UNORDERED,   /* products without wgmma_fence */
    TILES_UNCOMMITTED, /* and without wgmma_commit */
    TILES_RESULTS,     /* sums are read before the wait for the last group */
    TILES_REGISTERS,   /* half a warpgroup raises its registers */
    TILES_ADDS,        /* the first product adds to what its sums were */
    TILES_TURNED,      /* from here on bugs of planted_turned */
    TURNED_UNFENCED = TILES_TURNED, /* copies are not fenced from what products read */
    TURNED_COPY,       /* and not waited for */
    TURNED_FRAGMENT,   /* registers of a are overwritten before the wait */
    TURNED_ROWS,       /* and of other rows */
    TURNED_PANEL,      /* a descriptor has another distance of panels */
    TURNED_PLAIN,      /* and is of a matrix that is not turned */
    TILES_END
};

enum { TILES_K = 512, TILES_ROWS = 128, TILES_OUTPUTS = 64, TILES_THREADS = 256 };
enum { TILES_SHARED = 2 * (TILES_ROWS + TILES_OUTPUTS) * 128 + 1024 };

/* d[128][64] = x[128][512] w[64][512]^T in halves, 64 columns at a time through two stages: a warpgroup fills them, one
 * multiplies. */
struct planted_tiles_args {
    struct tensor_map x;
    uint64_t x_turned; /* [512][128] */
    uint64_t w, d;
    uint32_t bug, reserved;
};

/* planted_turned: the same d, of x[512][128] turned, by copy_async, and w in registers.  One warpgroup, one tile. */
enum { TURNED_THREADS = 128, TURNED_SHARED = 64 * 256 + 1024 };
