/* kernels: the parameters of every kernel, and how it is launched.  Read by the host and by the kernels.
 *
 * Addresses are of memory that the device reaches, 64 bits wide.  A grid follows from what a step may hold,
 * never from what it holds: how many rows there are, their tokens and positions come from a step block in
 * device memory, so that a recorded step can be replayed with another token.  Where `step` is 0, row_count
 * counts. */
#pragma once

#include <stdint.h>

#include "device/step.h"

#if defined(__CUDA__)
#define KERNELS_BOTH static __attribute__((host)) __attribute__((device)) inline
#else
#define KERNELS_BOTH static inline
#endif

/* ---- a step: a head, its rows (device/step.h) and its items */

struct step_head {
    uint32_t row_count, item_count;
};

/* Rows [row_first, row_first + row_count) of a step belong to one sequence, at positions from position_first on. */
struct step_item {
    uint64_t pages;       /* uint32_t [layer][kv head][chunk_stride]: places */
    uint64_t index_pages; /* uint32_t [kv head][chunk_stride] of one layer: places of the key index; 0: none */
    uint64_t q4_pages;    /* the same of chunks in 4 bits, a layer's; place 0: the chunk has rows; 0: all have */
    uint64_t position_first;
    uint32_t row_first, row_count, chunk_stride;
    uint16_t range_first, range_end; /* of attention_decode's ranges: cuda_attention_args */
};

/* ---- the KV cache: a place names a pool in its top 2 bits (0: nowhere) and a slot of it */

enum { KV_POOLS = 3, KV_BUFFERS_MAX = 30 };

struct cuda_pool {
    uint64_t base[KV_BUFFERS_MAX];
    uint32_t slots_per_buffer, reserved;
    uint64_t slot_bytes;
};

struct cuda_pools { /* in device memory; a place's pool is pool[number - 1] */
    struct cuda_pool pool[KV_POOLS];
};

/* struct kv_layout with fields of fixed width. */
struct kv_shape {
    uint32_t k_type, v_type, k_dimension, v_dimension, k_row_bytes, v_row_bytes;
    uint32_t k_scales_offset, v_offset, v_scales_offset, block_bytes;
};

/* ---- weights, in planes (weight_layout.h) */

struct weight_planes {
    uint64_t codes, high, scales, supers;
};

/* ---- rows of floats; grid {row_count}, 256 threads unless said otherwise */

/* y[row] = row `token` of the table (+ row position + position_offset of a second one). */
struct cuda_embed_args {
    struct weight_planes table, positions;
    uint64_t step, rows, y;
    uint32_t table_type, positions_type; /* enum tensor_type; NO_WEIGHT: none */
    uint32_t row_count, columns;
    uint32_t table_columns, column_first; /* of the table: y has `columns` of them, from column_first on */
    uint64_t position_offset;
    float scale; /* of the table's rows */
};
enum { NO_WEIGHT = 0xffff };

/* norm_rows: grid {row_count, segment_count}; norm_heads: a warp a segment, at most NORM_HEAD_MAX long, grid
 * {row_count, ceil(segment_count / 8)}. */
struct cuda_norm_args {
    uint64_t step, x, w, b, y; /* b: 0 for RMSNorm */
    uint32_t row_count, x_stride, y_stride, segment_count, segment_size;
    float epsilon;
    uint32_t adds; /* norm_rows: to y, which is not x then */
    float scale;   /* of y where it adds; 0: 1 */
};
enum { NORM_HEAD_MAX = 512 };
struct norm_shared {
    float sums[2][8];
};

struct cuda_rope_angles_args { /* grid {row_count}, 128 threads; positions below 2^40 */
    uint64_t step, rows, frequency, cosine_sine;
    uint32_t row_count, pair_count;
    float factor;
};

struct cuda_rope_args { /* grid {row_count, ceil(head_count * pair_count / 256)} */
    uint64_t step, x, cosine_sine;
    uint32_t row_count, x_stride, head_count, head_stride, pair_count;
    uint32_t split; /* pairs (j, j + pair_count); else (2j, 2j + 1) */
};

/* grid {row_count, ceil(count / 1024)} */
struct cuda_activation_args {
    uint64_t step, gate, up, y;
    uint32_t row_count, stride, count, kind; /* enum activation_kind */
    float cap;
};

struct cuda_add_args { /* y += x; grid {row_count, ceil(count / 1024)} */
    uint64_t step, x, y;
    uint32_t row_count, x_stride, y_stride, count;
};

struct cuda_update_places_args { /* of a page table; no index twice; grid {ceil(count / 256)} */
    uint64_t table, deltas;
    uint32_t count;
};
struct cuda_place_delta { /* struct place_delta (device.h) */
    uint32_t index, place;
};

struct cuda_gather_args { /* y[i] = x[indices[i]]; grid {row_count, ceil(count / 1024)} */
    uint64_t x, indices, y;
    uint32_t row_count, x_stride, y_stride, count;
};

/* K and V into their chunks; grid {row_count, kv_head_count}, 128 threads. */
struct cuda_append_args {
    uint64_t step, rows, items, pools, k, v;
    uint64_t layer_pages; /* bytes from an item's pages to those of the layer */
    struct kv_shape shape;
    uint32_t row_count, k_stride, v_stride;
};

/* The node of a decode step between q, k, v and attention: RMSNorm of each head of q and k (weights 0: none),
 * the rotation of both, q in place, and append.  Grid {row_count, head_count + kv_head_count}, 128 threads;
 * shared: struct rope_append_shared; k_dimension at most 512. */
struct cuda_rope_append_args {
    uint64_t step, rows, items, pools, q, k, v, cosine_sine, q_norm, k_norm;
    uint64_t layer_pages;
    struct kv_shape shape;
    uint32_t row_count, q_stride, k_stride, v_stride, head_count, pair_count, split;
    float epsilon;
};
struct rope_append_shared {
    float head[512];
};

/* ---- inputs of 8 bits: for each block of 32 columns a scale, whose precision is a half's, and 32 codes in
 * -127..127; a row: [blocks][16] first halves, [blocks][16] second halves, [blocks] struct input_numbers; rows
 * are input_row_bytes apart */

struct input_numbers {
    float scale;
    int16_t sum[2]; /* of the codes of either half */
};
enum { INPUT_ALIGN = 64 };

KERNELS_BOTH uint32_t input_row_bytes(uint32_t columns) {
    const uint32_t blocks = (columns + 31) / 32;
    return (blocks * 40 + INPUT_ALIGN - 1) / INPUT_ALIGN * INPUT_ALIGN;
}

enum quantize_norm { QUANTIZE_PLAIN, QUANTIZE_RMS, QUANTIZE_LAYER };

struct cuda_quantize_args { /* grid {row_count}; shared: struct norm_shared */
    uint64_t step, x, w, b, y;
    uint32_t row_count, x_stride, columns, norm; /* enum quantize_norm */
    float epsilon;
};

/* ---- matvec: y[i][r] (+)= bias[r] + w[r] . x[i], for the parts that share their inputs and their type
 *
 * matvec_TYPE_N: N inputs of 8 bits (floats for F32, F16, BF16), 1, 2, 4 or 8; fewer are given with input_count.
 * Grid {any}; a block takes MATVEC_BLOCK_ROWS rows of a part a round, half as many of quantised weights where N is 1.
 * An output's bits depend on its own input alone. */

struct matvec_part {
    struct weight_planes weight;
    uint64_t bias; /* floats, or 0 */
    uint64_t y;    /* floats */
    uint32_t rows, y_stride;
};

enum { MATVEC_PARTS = 4, MATVEC_THREADS = 256, MATVEC_BLOCK_ROWS = 32 };

struct cuda_matvec_args {
    struct matvec_part part[MATVEC_PARTS]; /* unused ones have no rows */
    uint64_t input;
    uint32_t columns, input_count, input_stride; /* bytes */
    uint32_t accumulate;
};

/* ---- the nodes of a decode step of one row; the first has the norm and the quantising inside
 *
 * decode_norm_TYPE: matvec of the norm of x. decode_gate_TYPE: silu(gate) * up of the norm of x, as an input
 * of 8 bits (and floats, if y is not 0): part 0 is gate, part 1 up, whose rows are multiples of 32; a block
 * takes 32 a round. Both: grid {any}; shared: decode_matvec_shared(columns). */
struct cuda_decode_matvec_args {
    struct cuda_matvec_args matvec; /* input: floats of x */
    uint64_t norm_w, norm_b;        /* b: 0 for RMSNorm; w: 0: no norm */
    uint64_t input_out;             /* gate: where the input of 8 bits goes */
    uint64_t y;                     /* gate: floats, or 0 */
    float epsilon;
    uint32_t reserved;
};

KERNELS_BOTH uint32_t decode_matvec_shared(uint32_t columns) {
    return input_row_bytes(columns) + (uint32_t)sizeof(struct norm_shared) + 32 * 4;
}

/* ---- decode attention
 *
 * A row sees rows [begin, position]; they are cut into ranges of attention_range(count) rows, counted from
 * begin / 64 * 64, which depends on the row's length alone.  A range leaves a partial of each query head;
 * attention_merge adds those of a row in their order. */

enum { ATTENTION_RANGES_MAX = 64, ATTENTION_CHUNK = 64, UNIT_TOKENS = 8 };

KERNELS_BOTH uint32_t attention_range(uint32_t row_count) {
    const uint32_t chunks = (row_count + ATTENTION_CHUNK - 1) / ATTENTION_CHUNK;
    return (chunks + ATTENTION_RANGES_MAX - 1) / ATTENTION_RANGES_MAX * ATTENTION_CHUNK;
}

/* Which of a row's ranges are attended to; the others are left as they are. */
enum attention_ranges { RANGES_ALL, RANGES_OF_ITEM, RANGES_OF_OTHERS };

/* attention_decode_LANES_HEADS_TYPES: LANES pieces of 8 elements a row of K or V (8, 16, 32, 64: up to 64, 128, 256,
 * 512 elements), HEADS query heads of a group at once (1, 4, 8; of 64 pieces 1, 4), of an f16 cache or of `any`.  Grid
 * {ATTENTION_RANGES_MAX, kv_head_count * ceil(group / HEADS), row_count}, 128 threads; shared:
 * attention_decode_shared. */
struct cuda_attention_args {
    uint64_t step, rows, items, pools;
    uint64_t q;        /* floats [row][q_stride]: heads of k_dimension */
    uint64_t partials; /* floats [row][head][ATTENTION_RANGES_MAX][partial_stride]: m, s, -, -, o */
    uint64_t layer_pages;
    struct kv_shape shape;
    uint32_t row_count, q_stride, kv_head_count, group, window, partial_stride;
    float scale, softcap;      /* softcap 0: none */
    uint32_t ranges, reserved; /* enum attention_ranges */
};

enum { ATTENTION_PARTIAL_NUMBERS = 4 }; /* m, s, and two that keep o aligned */
KERNELS_BOTH uint32_t attention_partial_stride(uint32_t v_dimension) { return ATTENTION_PARTIAL_NUMBERS + v_dimension; }
enum { ATTENTION_TABLE = 128 }; /* addresses of chunks at hand */
KERNELS_BOTH uint32_t attention_decode_shared(uint32_t lanes, uint32_t heads) {
    const uint32_t parts = lanes < 32 ? 128 / lanes : 4; /* of a block, that each saw rows of their own */
    return ATTENTION_TABLE * 8 + parts * heads * (lanes * 8 + 2) * 4;
}

/* attention_merge: grid {head_count, row_count}, 512 threads; shared: struct merge_shared */
struct cuda_merge_args {
    uint64_t step, rows, partials;
    uint64_t lists; /* of attention_list, whose group it is; 0: all rows were attended to */
    uint64_t limits;
    uint64_t y; /* floats [row][y_stride], or 0 */
    /* inputs of 8 bits, input_row_bytes(head_count * v_dimension) apart, or 0; v_dimension % 32 == 0 then */
    uint64_t input;
    uint64_t sinks; /* floats [head], scores beside those of the rows, without a value; or 0 */
    uint32_t row_count, y_stride, head_count, v_dimension, window, partial_stride, group, reserved;
};
struct merge_shared {
    float m[ATTENTION_RANGES_MAX], s[ATTENTION_RANGES_MAX];
    float part[4][512];
};

/* ---- prompts: products of many rows, by halves
 *
 * halve_rows makes rows of halves, normed or not: x = scale * half, with a power of two for each row, so that the
 * largest is below 2.  Grid {row_count}, 256 threads; shared: struct norm_shared.  y: [row][columns], columns a
 * multiple of 8.  restore_rows: floats y [row][x_stride] of halves x and scales; nothing is shared. */
struct cuda_halve_args {
    uint64_t step, x, w, b, y, scales; /* w: 0: no norm; b: 0: RMSNorm */
    uint32_t row_count, x_stride, columns;
    float epsilon;
};

/* matmul_TYPE: as matvec, for any number of rows.  Grid {ceil(row_count / MATMUL_ROWS), matmul_tiles(rows of each
 * part)}, 256 threads; shared: MATMUL_SHARED. */
struct cuda_matmul_args {
    struct matvec_part part[MATVEC_PARTS];
    uint64_t step, x, scales; /* of halve_rows */
    uint32_t columns, row_count, accumulate, reserved;
};

enum {
    MATMUL_ROWS = 128,
    MATMUL_OUTPUTS = 128,
    MATMUL_COLUMNS = 64,
    MATMUL_TILE_BYTES = 128 * MATMUL_COLUMNS * 2,
    MATMUL_X_TILES = 3,
    MATMUL_SHARED = (MATMUL_X_TILES + 2) * MATMUL_TILE_BYTES
};
KERNELS_BOTH uint32_t matmul_tiles(uint32_t rows) { return (rows + MATMUL_OUTPUTS - 1) / MATMUL_OUTPUTS; }

/* ---- mixtures of experts (device.h, route_operation and matmul_experts_operation)
 *
 * route: the definition's own arithmetic, in double.  Grid {row_count}, 32 threads; shared: route_shared_bytes. */
struct cuda_route_args {
    uint64_t scores, bias, scales; /* bias, scales: floats, or 0 */
    uint64_t picks, weights;
    uint32_t expert_count, used, group_count, groups_used;
    uint32_t router, normalises; /* enum router */
    float scale;
    uint32_t reserved;
};
enum { ROUTE_PICKS = 64, ROUTE_GROUPS = 64 };
struct route_shared { /* behind it what is chosen by, [expert_count] */
    double groups[ROUTE_GROUPS], weights[ROUTE_PICKS];
    uint32_t picks[ROUTE_PICKS];
};
KERNELS_BOTH uint32_t route_shared_bytes(uint32_t expert_count) {
    return (uint32_t)sizeof(struct route_shared) + expert_count * 8;
}

/* The picks by expert: where each place's comes from, and the tiles of the places, each of one expert.  Of tiles that
 * no expert has first = end.  Grid {expert_count}, 256 threads; shared: experts_order_shared. */
struct cuda_experts_order_args {
    uint64_t picks;  /* uint32_t [pick_count], below expert_count */
    uint64_t places; /* out: uint32_t [pick_count] */
    uint64_t tiles;  /* out: struct expert_tile [tile_count], of experts_tiles */
    uint32_t pick_count, expert_count, tile_count, reserved;
};
struct expert_tile {
    uint32_t expert, first, end, reserved; /* places */
};
KERNELS_BOTH uint32_t experts_order_shared(uint32_t expert_count) { return (32 + expert_count) * 4; }
/* As many as there may be, whatever is picked. */
KERNELS_BOTH uint32_t experts_tiles(uint32_t pick_count, uint32_t expert_count) {
    const uint32_t picked = pick_count < expert_count ? pick_count : expert_count;
    return (uint32_t)((pick_count + (uint64_t)picked * (MATMUL_ROWS - 1)) / MATMUL_ROWS);
}

/* Of the parts each expert has expert_rows rows, of which those from a part's first on are multiplied.  Outputs are
 * [pick][y_stride]; the input of a pick is number pick / used.
 *
 * matvec_experts_TYPE: as matvec_TYPE_1.  Grid {any, picks}. */
struct cuda_matvec_experts_args {
    struct cuda_matvec_args matvec;
    uint64_t picks;
    uint32_t used, expert_rows;
};
/* matmul_experts_TYPE: grid {tiles, matmul_tiles(rows of each part)}, 256 threads; shared: MATMUL_EXPERTS_SHARED. */
struct cuda_matmul_experts_args {
    struct cuda_matmul_args matmul;
    uint64_t places, tiles; /* of experts_order */
    uint32_t used, expert_rows;
};
struct expert_row {
    uint32_t input, pick;
};
enum { MATMUL_EXPERTS_SHARED = MATMUL_SHARED + MATMUL_ROWS * (int)sizeof(struct expert_row) };

/* y += the sum of a row's products, each times its number, in the order of its picks; grid {row_count,
 * ceil(count / 1024)}, 256 threads. */
struct cuda_experts_mix_args {
    uint64_t products; /* floats [row][used][count] */
    uint64_t mix;      /* floats [row][used] */
    uint64_t y;
    uint32_t used, count, y_stride, replaces; /* replaces: y, to which the sums are added else */
};

/* attention_prefill_WIDTH_TYPES: rows of K and V of at most WIDTH (64, 128, 256, 512) elements, of an f16 cache without
 * soft cap or of `any`.  Grid {head_count, ceil(rows of an item / prefill_queries(WIDTH)), item_count}, 128 threads;
 * shared: prefill_shared(WIDTH), at most 96 KiB. */
struct cuda_prefill_args {
    uint64_t step, items, pools;
    uint64_t q, y; /* floats [row][stride] */
    uint64_t layer_pages;
    uint64_t sinks; /* as in struct cuda_merge_args */
    struct kv_shape shape;
    uint32_t item_count, q_stride, y_stride, group, window;
    float scale, softcap;
};
enum { PREFILL_QUERIES = 128 };
KERNELS_BOTH uint32_t prefill_queries(uint32_t width) {
    const uint32_t wide = PREFILL_QUERIES * 128 / width;
    return width <= 128 ? (uint32_t)PREFILL_QUERIES : wide;
}
KERNELS_BOTH uint32_t prefill_shared(uint32_t width) {
    const uint32_t keys = ATTENTION_CHUNK * (width <= 128 ? 4 : 1); /* and values, in all tiles */
    return (prefill_queries(width) + keys) * width * 2;
}

/* ---- layers that keep a state (kernels/recurrence, whose definitions these are; device.h)
 *
 * Items go one after another, items block_y(), block_y() + item_step, ...; what a thread has of a state is its own from
 * the first row of the first item to the last of the last one. */
struct cuda_recurrence_item {
    uint64_t from, to; /* floats of the state; from 0: zeros */
    uint32_t row_first, row_count;
};

/* convolve: a thread a channel.  Grid {ceil(channel_count / 128), item_step}, 128 threads. */
struct cuda_convolve_args {
    uint64_t items, x, in_gate, out_gate, w, y; /* gates: or 0 */
    uint32_t item_count, item_step, x_stride, y_stride, channel_count, taps, silu, reserved;
};

/* delta: a block a value head.  Grid {value_heads, item_step}, 512 threads; shared: struct delta_shared. */
struct cuda_delta_args {
    uint64_t items, x, alpha, beta, decay, bias, z, norm, y;
    uint64_t state_first; /* floats into an item's states */
    uint32_t item_count, item_step, x_stride, key_heads, value_heads, k_dimension, v_dimension;
    float epsilon;
    uint32_t group; /* value heads of a key head, where is_grouped (device.h); 0: it is not */
    uint32_t reserved;
};
enum { DELTA_THREADS = 512, DELTA_WIDEST = 256 };
struct delta_shared {
    float q[DELTA_WIDEST], k[DELTA_WIDEST], v[DELTA_WIDEST];
    float parts[DELTA_THREADS];
    float squares[DELTA_THREADS / 32];
    float q_factor, k_factor, decay, beta;
};

/* gate: y *= sigmoid of the gates, which lie behind a head's queries.  Grid {row_count, ceil(count / 1024)}, 256
 * threads. */
struct cuda_gate_args {
    uint64_t gates, y;
    uint32_t head_size, count, row_count, reserved; /* count: of a row of y */
};

/* ---- selections: a row chooses units of 8, 16, 32 or 64 tokens by a key index
 *
 * A KV head of a row attends to tokens [0, begin), to those from `end` on, and of the units between to those with
 * the largest scores.  A head's score of a unit is that of its best token or page.  A unit's is the sum over the
 * group's heads of the share that its score has in their softmax, or what the group's query says, or its best head's
 * (kernels/score).  */

/* The list of a KV head of a row. */
struct cuda_list {
    uint64_t rows;       /* uint32_t [count]: tokens, ascending, in units of 8, of which the last may be cut */
    uint32_t count;      /* begin + picks + the row's position + 1 - end */
    uint32_t begin, end; /* candidates: whole units, of codes complete chunks */
    uint32_t picks;      /* tokens, whole units */
    /* Not 0: from step to step the list without its tokens from `end` on is kept there.  With kept_count tokens it is
     * taken once more, and with it those from window_begin on; else what is chosen now is left there. */
    uint64_t kept;
    uint32_t kept_count, window_begin;
};

/* Whether a KV head takes its list once more, as its queries are like those that it was chosen by (kernels/label); and
 * these in their place where they are not (device.h, compare_labels_operation).  labels_compare: grid {kv_head_count,
 * item_count}, 128 threads; shared: struct labels_shared. */
struct cuda_labels_args {
    uint64_t items;      /* struct cuda_label [item] */
    uint64_t rows;       /* struct step_row, of which the items name theirs; 0: the items say where they are */
    uint64_t importance; /* float [head] */
    uint64_t thresholds; /* double [kv head] */
    uint64_t limits;     /* in and out: struct step_list [item][kv head] */
    uint64_t counts;     /* struct step_reuse [item][kv head], added to; or 0 */
    uint64_t age_max;
    uint32_t kv_head_count, group, dimension;
    uint32_t by_minimum; /* else by the harmonic mean */
    uint32_t only_says, reserved;
};
struct cuda_label {
    uint64_t q, label; /* float [head][dimension] */
    uint64_t kept;     /* struct step_kept [kv head] */
    uint64_t position, row;
};
enum { LABEL_GROUP_MAX = 64 };
struct labels_shared {
    double cosines[LABEL_GROUP_MAX];
    uint32_t is_alike;
};

/* Where `limits` is not 0, lists of a recorded step: struct step_list (device/step.h), beside each struct cuda_list,
 * says what differs from launch to launch. */

/* By codes of keys (kernels/level, whose layout and definitions these are; planes 1, 2 or 4).
 *
 * Builds the codes of the chunks that a step's rows have completed.  level_build_PLANES: grid {chunks that an
 * item's rows may touch, kv_head_count, item_count}, 256 threads; shared: level_build_shared. */
struct cuda_level_build_args {
    uint64_t step, items, pools;
    uint64_t rows;        /* struct step_row [item], one of each; or 0: as the items say */
    uint64_t rotation;    /* halves [kv head][k_dimension][k_dimension] */
    uint64_t layer_pages; /* bytes from an item's pages to those of the layer */
    struct kv_shape shape;
    uint32_t item_count, factors_offset, center_offset;
    float step_size; /* of the levels of a normal distribution (kernels/level) */
};
enum { LEVEL_BUILD_TOKENS = 8 };
/* Blocks of rotated keys that shared memory holds at once: all of a chunk; of heads above 256, one. */
KERNELS_BOTH uint32_t level_build_blocks(uint32_t dimension) {
    return dimension > 256 ? 1 : ATTENTION_CHUNK / LEVEL_BUILD_TOKENS;
}
KERNELS_BOTH uint32_t level_build_shared(uint32_t dimension) {
    return ((level_build_blocks(dimension) + 1) * LEVEL_BUILD_TOKENS + 1 /* the mean */) * dimension * 4;
}

/* Rotated queries as level_prepare leaves them, query_bytes apart.  Grid {head_count, row_count}, 128 threads;
 * shared: 2 * k_dimension floats. */
struct cuda_level_query_args {
    uint64_t step, q, rotation, queries;
    uint32_t row_count, q_stride, k_dimension, head_count, group, query_bytes, planes, reserved;
};

/* level_score_PLANES: a unit's score times log2 e, [row][head][unit_stride] floats; grid {ceil(chunks / 8),
 * kv_head_count * ceil(group / LEVEL_SCORE_HEADS), row_count}, 256 threads. */
enum { LEVEL_SCORE_HEADS = 8 };
struct cuda_level_score_args {
    uint64_t step, rows, items, pools, queries, scores;
    uint64_t lists; /* struct cuda_list [row][kv head] */
    uint64_t limits;
    uint32_t row_count, kv_head_count, group, query_bytes, dimension;
    uint32_t factors_offset, center_offset, unit_stride;
    float scale;
    uint32_t unit_tokens;
};

/* By mean and deviation of the keys of pages (kernels/abstract, whose layout and definitions these are).
 *
 * spread_build builds the pages that a step's rows are in.  Grid {chunks that an item's rows may touch, kv_head_count,
 * item_count}, 256 threads.  Sums are in double, as the definition has them, and so are its bits. */
struct cuda_spread_build_args {
    uint64_t step, items, pools;
    uint64_t rows; /* as of struct cuda_level_build_args */
    uint64_t layer_pages;
    struct kv_shape shape;
    uint32_t item_count, page_tokens;
    uint32_t offset, reserved; /* of page 0 in a block */
};

/* The same as boxes, mean - deviation and mean + deviation, for the leaves of a tree, and the boxes above them
 * (kernels/tree).  tree_build: grid {runs that an item's rows may touch, kv_head_count, item_count}, 128 threads. */
enum { TREE_LEVELS = 5, TREE_CHUNK_LEVEL = 3 /* a chunk's own */, TREE_RUN_LENGTH = 4 /* chunks */ };
struct cuda_tree_build_args {
    uint64_t step, items, pools;
    uint64_t rows; /* as of struct cuda_level_build_args */
    uint64_t layer_pages;
    struct kv_shape shape;
    uint32_t item_count, leaf, has_runs; /* leaf: its level */
    uint32_t offset[TREE_LEVELS];        /* of the first box of a level in a block */
};

/* spread_score: grid {ceil(pages / SPREAD_PAGES), kv_head_count, row_count}, 256 threads; shared:
 * spread_score_shared. */
struct cuda_spread_score_args {
    uint64_t step, rows, items, pools, q;
    uint64_t scores; /* floats [row][head][unit_stride], or [row][kv head][unit_stride] */
    uint64_t lists;  /* struct cuda_list [row][kv head] */
    uint64_t limits;
    uint32_t row_count, q_stride, kv_head_count, group, dimension;
    uint32_t page_tokens, unit_tokens, offset, unit_stride;
    uint32_t aggregate; /* enum spread_aggregate */
    float factor;       /* of a score */
    uint32_t is_box;    /* mean - deviation and mean + deviation in place of the two */
};
enum spread_aggregate {
    SPREAD_APART,    /* a score for each head */
    SPREAD_GREATEST, /* one for the group, its best head's */
    SPREAD_TOGETHER, /* one, of the sum of its queries and that of their magnitudes */
};
enum { SPREAD_HEADS = 4 /* at once */, SPREAD_PAGES = 64 /* of a block */ };
KERNELS_BOTH uint32_t spread_score_shared(uint32_t group, uint32_t dimension) {
    return (group + SPREAD_HEADS - 1) / SPREAD_HEADS * SPREAD_HEADS * 2 * dimension * 4;
}

/* units_choose: fills the lists.  Of equal scores the first; one that is no number is the largest.  Grid
 * {kv_head_count, row_count}, 1,024 threads; shared: struct choose_shared. */
struct cuda_choose_args {
    uint64_t step, scores;
    uint64_t keys;   /* uint32_t [row][kv head][unit_stride], scratch */
    uint64_t chosen; /* uint32_t [row][kv head][unit_stride], scratch: units */
    uint64_t lists;  /* struct cuda_list [row][kv head] */
    uint64_t limits;
    uint32_t row_count, kv_head_count, unit_tokens, unit_stride;
    uint32_t group; /* heads of scores, whose shares are added; 0: one score a unit, which ranks as it is */
    uint32_t reserved;
};
struct choose_shared {
    uint32_t counts[256];
    float m[32], s[32];
    uint32_t above[32], same[32];
    uint32_t prefix, left;
};

/* attention_list_LANES_HEADS_TYPES: as attention_decode, over lists; attention_merge is told of them.  TYPES q4: of an
 * f16 cache with chunks in 4 bits (kernels/codec). */
struct cuda_attention_list_args {
    struct cuda_attention_args attention;
    uint64_t lists; /* struct cuda_list [row][kv head] */
    uint64_t limits;
    /* Of the listed units, as unit_fetch leaves them, [row][kv head][list_stride]; or 0: by the page table.  Units
     * whose slots are not filled are read from their chunks, and their slots are filled. */
    uint64_t addresses;
    uint32_t list_stride, reserved;
};

/* ---- units that a list names, in the device's memory: unit_fetch
 *
 * A KV head of a layer has a cache of units (device.h, unit_slots): slots of its own, as many as `firsts` says, each
 * a unit's bytes as they lie in its chunk.  A unit that is there is a hit; one that is not gets the slot that CLOCK
 * gives: the hand passes slots that this step uses, and once those that were used since it last came.  Its address is
 * that of the slot, with SLOT_UNFILLED: attention_list, which follows, reads it over the bus from its chunk in a pool
 * of the host, and fills the slot.  What is in a slot is never the only copy, so eviction writes nothing.
 * Read where they lie, without a slot: units of chunks that the row's predecessors do not fill, which may still be
 * written, those in pools of the device, and misses for which no slot is left.  The address of a unit whose chunk is
 * nowhere is 0.  The same lists always give the same slots.
 * A step's number is its position + 1: a cache is emptied when its sequence is cut back.  Grid {kv_head_count}, 512
 * threads, one row; shared: struct fetch_shared. */

enum { FETCH_MISSES_MAX = 2048, UNIT_ABSENT = -1 };
enum { SLOT_UNFILLED = 1 }; /* in an address: the slot does not have the unit's bytes yet */
#define SLOT_EMPTY 0xffffffffu

struct cuda_fetch_args {
    uint64_t rows, items, pools;
    uint64_t lists; /* struct cuda_list [kv head] */
    uint64_t limits;
    uint64_t addresses; /* out: of the listed units, uint64_t [kv head][list_stride] */
    uint64_t layer_pages;
    uint64_t firsts;  /* uint32_t [kv heads + 1]: a head's first slot; the next one's is behind its last */
    uint64_t tables;  /* int32_t [kv head][unit_stride]: a unit's slot, from its head's first on, or UNIT_ABSENT */
    uint64_t owners;  /* uint32_t [slot]: its unit, or SLOT_EMPTY */
    uint64_t stamps;  /* uint32_t [slot]: the step that last used it */
    uint64_t used;    /* uint8_t [slot]: since the hand passed */
    uint64_t hands;   /* uint32_t [kv head] */
    uint64_t slots;   /* bytes [slot][block_bytes] */
    uint64_t results; /* struct fetch_result [kv head], added to */
    uint32_t unit_stride, list_stride, block_bytes;
    uint32_t device_pools; /* bit n: pool n is in the device's memory */
};

struct fetch_result { /* units; misses: that were given a slot; struct fetch_counts (device.h) */
    uint64_t hits, misses, direct, absent;
    uint64_t q4_hits, q4_misses, q4_direct; /* chunks in 4 bits */
};

struct fetch_shared {
    uint32_t units[FETCH_MISSES_MAX], places[FETCH_MISSES_MAX], victims[FETCH_MISSES_MAX]; /* places: in the list */
    uint32_t counts[16];
    uint32_t hand;
};

/* unit_fetch_q4: as unit_fetch, where the item has chunks in 4 bits (q4_pages).  Such a chunk is kept whole, in
 * a slot of the KV head's second cache, whose units are chunks; its listed units are read from there.
 * A unit of it in a table of addresses: the chunk's, Q4_UNIT, and the unit's number in the chunk; Q4_UNFILLED besides,
 * where attention_list is to fill the slot, in which chunks lie at multiples of 32. */
enum { Q4_UNIT = 8, Q4_MARKS = 15, Q4_UNFILLED = 16 };

struct cuda_fetch_q4_args {
    struct cuda_fetch_args fetch;
    uint64_t firsts, tables, owners, stamps, used, hands; /* as there; tables: [kv head][chunk_stride] */
    uint64_t slots;                                       /* bytes [slot][chunk_bytes] */
    uint32_t chunk_stride, chunk_bytes;
};
