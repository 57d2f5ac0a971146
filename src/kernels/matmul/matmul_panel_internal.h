/* Panels: weights of 16 rows, unpacked from the layout of the file for the integer kernels.
 *
 * A panel has 32 columns, with scales of their own:
 *     w[r][c] = scale[r] * group_scale[r][c / 16 % 2] * (code[r][c] - offset) + minimum[r][c / 16 % 2]
 * Only types that scale groups of 16 have group_scale.  Only types with a minimum have minimum (with groups of 32 it
 * is minimum[0]).  Four columns of a row are adjacent in memory, and the same four columns of the other rows follow:
 * the operand of byte dot products, one row per 32-bit lane.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/matmul/matmul.h"
#include "kernels/span.h"
#include "tensor/type.h"

enum { PANEL_ROWS = 16, PANEL_COLUMNS = 32, PANEL_STEPS = PANEL_COLUMNS / 4 };

/* Codes below 64; with AVX-512 also whole bytes, offset 128. */
struct code_panel {
    uint8_t codes[PANEL_STEPS][PANEL_ROWS][4];
    float scale[PANEL_ROWS];
    float minimum[2][PANEL_ROWS];
    union {
        int16_t group_scale[2][PANEL_ROWS][2]; /* twice, for the pairs of 16-bit sums */
        float group_factor[2][PANEL_ROWS];     /* AVX-512, and where has_factors: the same as floats */
    };
};

/* Signed values of up to 13 bits. */
struct wide_panel {
    int16_t values[PANEL_COLUMNS / 2][PANEL_ROWS][2];
    float scale[PANEL_ROWS];
};

/* For float types: the weights themselves. */
struct float_panel {
    float values[PANEL_COLUMNS][PANEL_ROWS];
};

/* Vector shifts by this much leave zero. */
enum { NO_OFFSET = 64 };

/* How a type becomes code panels. */
struct code_layout {
    bool has_groups;       /* scales per 16 columns */
    bool has_minimum;      /* a minimum per group */
    bool has_factors;      /* the scales of groups are floats that sums multiply exactly */
    unsigned offset_shift; /* offset = 1 << offset_shift; NO_OFFSET: none */
    /* Unpacks rows `half * 8` to `half * 8 + 7` of block_count panels from 8 rows of the file.  row[] point to the same
     * column, a multiple of the type's block. */
    void (*unpack)(const uint8_t *const row[8], size_t block_count, size_t half, struct code_panel *panel);
};

static inline int32_t code_offset(const struct code_layout *layout) {
    return layout->offset_shift == NO_OFFSET ? 0 : (int32_t)1 << layout->offset_shift;
}

/* unpack NULL: the type has no such panel. */
struct code_layout code_layout_find(enum tensor_type type);

/* Types whose codes have more than 6 bits, in bytes with an offset, for processors that multiply those without
 * overflow. */
struct code_layout code_layout_find_bytes(enum tensor_type type);

typedef void wide_unpack(const uint8_t *const row[8], size_t block_count, size_t half, struct wide_panel *panel);
wide_unpack *wide_unpack_find(enum tensor_type type); /* NULL: the type has no such panel */

/* --- tiles of inputs ---------------------------------------------------------------------
 * Inputs are multiplied in tiles of at most inputs_max, of sizes as equal as possible: 8 inputs are 4 + 4, not 6 + 2,
 * because a tile of 2 wastes the weights that it loads. */

struct tile_inputs {
    size_t begin, count;
};

static inline size_t tile_count_get(size_t input_count, size_t inputs_max) {
    return (input_count + inputs_max - 1) / inputs_max;
}

/* Tile `tile` (0 .. tile count - 1). */
static inline struct tile_inputs tile_get(size_t tile, size_t tile_count, size_t input_count) {
    size_t small = input_count / tile_count, larger_count = input_count % tile_count;
    return (struct tile_inputs){tile * small + (tile < larger_count ? tile : larger_count),
                                small + (tile < larger_count)};
}

/* The same for tiles that all have tile_size inputs, except the last. */
static inline struct tile_inputs tile_get_whole(size_t tile, size_t tile_size, size_t input_count) {
    size_t begin = tile * tile_size, left = input_count - begin;
    return (struct tile_inputs){begin, left < tile_size ? left : tile_size};
}

/* The tile that an input belongs to. */
static inline size_t tile_find(size_t input, size_t tile_count, size_t input_count) {
    size_t small = input_count / tile_count, larger_count = input_count % tile_count;
    size_t in_larger = larger_count * (small + 1);
    return input < in_larger ? input / (small + 1) : larger_count + (input - in_larger) / small;
}

/* --- int8 inputs ------------------------------------------------------------------------- */

/* 32 activations of one input, quantised: x = scale * q.  One cache line. */
struct code_input {
    int8_t q[PANEL_COLUMNS];
    float scale;
    float sum;          /* scale * sum of q */
    float group_sum[2]; /* the same for columns 0..15 and 16..31 */
    union {
        /* -(sum of q) over the columns that a 16-bit lane adds, 4s + 2j and 4s + 2j + 1: of all, of each group of 16 */
        struct {
            int16_t pair[2];
            int16_t group_pair[2][2];
        };
        /* AVX-512: -(sum of q) of all and of each group of 16 */
        struct {
            int32_t total, group_total[2];
        };
    };
    int32_t unused;
};
static_assert(sizeof(struct code_input) == 64, "one line");

/* Quantises x[32] (quantize_32.h).  has_pairs: fills pair and group_pair, else total and group_total. */
void code_input_prepare(const float *x, bool has_pairs, struct code_input *target);

/* matmul_method.prepare: for each tile, for each block, the tile's inputs.  Without pairs the blocks are in the order
 * of span_place. */
void code_inputs_prepare(const float *x, size_t x_stride, size_t input_count, size_t columns, bool has_pairs,
                         size_t input_begin, size_t input_end, void *prepared);

static inline int32_t pair_get(const int16_t pair[2]) {
    int32_t value;
    memcpy(&value, pair, sizeof value);
    return value;
}

/* panel_kernel.input_get for tiles of struct code_input. */
const void *code_input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                           size_t block_count);

/* --- running -----------------------------------------------------------------------------
 * The loops around a tile kernel, the same for all kernels.  They take RUN_ROWS rows and a stretch of about
 * RUN_INPUTS inputs at a time, and multiply run_blocks blocks of columns after run_blocks blocks.  Scratch holds these
 * blocks of one tile's rows, unpacked (13 to 26 KiB, in L1), and the sums of the stretch.  The sums go to the outputs
 * once: outputs are often a power of two apart and would evict each other from the caches.  Unpacking again for each
 * stretch costs less than 1% of multiplying it. */

enum {
    RUN_ROWS = 64,
    RUN_PANELS_MAX = 2, /* that a tile takes at once */
    RUN_BLOCKS = SPAN_BLOCKS,
    RUN_INPUTS = 240,
    FLOAT_RUN_BLOCKS = SPAN_FLOAT_COLUMNS / PANEL_COLUMNS
};

struct panel_kernel;
typedef void float_unpack(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count,
                          size_t half, void *panel);

struct panel_kernel {
    size_t panel_bytes;   /* of PANEL_ROWS x PANEL_COLUMNS */
    size_t run_blocks;    /* blocks of columns unpacked at a time, at most RUN_BLOCKS */
    size_t run_inputs;    /* inputs per stretch, about */
    size_t tile_inputs;   /* inputs per tile, at most */
    size_t tile_rows;     /* PANEL_ROWS or twice that */
    bool has_whole_tiles; /* all tiles but the last have tile_inputs; sums hold that many for the last as well */
    struct code_layout code;
    wide_unpack *wide;
    float_unpack *floats;
    /* Unpacks 8 rows, column_count columns from where row[] points, into half `half` of the panels. */
    void (*unpack)(const struct panel_kernel *kernel, const uint8_t *const row[8], size_t column_count, size_t half,
                   void *panel);
    /* The prepared inputs of a tile from block `block` of block_count on. */
    const void *(*input_get)(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                             size_t block_count);
    /* sums[inputs][tile_rows] += block_count blocks of the tile, a span of the sum (kernels/span.h); panels of the
     * second 16 rows lie run_blocks * panel_bytes behind the first's. */
    void (*tile)(const struct panel_kernel *kernel, const void *panel, const void *input, size_t block_count,
                 size_t inputs, float *sums);
};

void panel_run(const struct matmul_args *args, const struct panel_kernel *kernel);

/* Float tiles: their method (all but .run), panel_kernel.input_get, and panel_kernel.unpack of a float type. */
enum { FLOAT_TILE_INPUTS = 6 };
extern const struct matmul_method float_tiles_method;
const void *float_input_get(const void *prepared, size_t tile, struct tile_inputs inputs, size_t block,
                            size_t block_count);
float_unpack *float_unpack_find(enum tensor_type type);

static inline size_t panel_bytes_max(size_t panel_bytes) { return panel_bytes * RUN_PANELS_MAX * RUN_BLOCKS; }

/* run_inputs as in the kernel. */
static inline size_t panel_scratch_bytes(size_t panel_bytes, size_t run_inputs) {
    return panel_bytes_max(panel_bytes) + run_inputs * RUN_ROWS * sizeof(float);
}
