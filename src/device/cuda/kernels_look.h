/* kernels_look: the parameters of kernels by codes of keys where lists may look into few chunks (device/look.h). */
#pragma once

#include "device/cuda/kernels.h"
#include "device/look.h"

/* level_build_PLANES; spread_offset: of the deviations of a chunk's keys in its block; 0: it has none. */
struct cuda_look_build_args {
    struct cuda_level_build_args build;
    uint32_t spread_offset, reserved;
};

/* level_score_PLANES.  looked: uint32_t [row][kv head][chunk_stride]: of a list that looks, the chunks whose units are
 * scored, ascending; scores are of these units, one chunk behind the other.  0: none looks. */
struct cuda_look_score_args {
    struct cuda_level_score_args score;
    uint64_t looked;
    uint32_t chunk_stride, reserved;
};

/* units_choose; looked as above. */
struct cuda_look_choose_args {
    struct cuda_choose_args choose;
    uint64_t looked;
    uint32_t chunk_stride, reserved;
};

/* Of lists that look: chunks_score, scores of whole chunks (kernels/level) as units have them, float [row][kv
 * head][group][chunk_stride]; grid {ceil(chunks / LOOK_CHUNKS), kv_head_count, row_count}, 256 threads.  chunks_choose
 * takes those to look into: struct cuda_choose_args, chosen: looked, unit_stride: chunk_stride; grid and threads are
 * those of units_choose. */
enum { LOOK_CHUNKS = 128 };
struct cuda_chunks_score_args {
    uint64_t step, rows, items, pools, queries, scores;
    uint64_t q;     /* the queries, not rotated: float [row][q_stride] */
    uint64_t lists; /* struct cuda_list [row][kv head] */
    uint64_t limits;
    uint32_t row_count, kv_head_count, group, query_bytes, dimension, q_stride;
    uint32_t center_offset, spread_offset, chunk_stride;
    float scale;
};
