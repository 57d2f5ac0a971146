/* attention_prefill_wgmma: attention of prompts on an H100 or H200, by wgmma.
 *
 * A block has 128 queries of one head, in shared memory.  A warpgroup fills tiles of 128 keys or of their values, which
 * go round in shared memory: chunks as they lie by cp.async, those in 8 bits as halves.  Two warpgroups have 64 queries
 * each.  The products of their queries with the next keys and of the last weights with their values are under way
 * together, and while the latter go on, the former become weights, which the registers hold.  A tile is full when four
 * warps have filled it and empty when the products of eight warps are done.
 *
 * Keys come by whole tiles from a multiple of 128 on, so what a query's bits are follows from its position alone: of a
 * tile of which it sees nothing it adds nothing. */
#pragma once

#include "device/cuda/attention_prefill.h"
#include "device/cuda/dialect_sm90a.h"
#include "device/cuda/kernels_sm90a.h"

enum {
    PREFILL_FILLERS = 128, /* threads, behind those that multiply */
    PREFILL_MULTIPLIERS = 256,
    PREFILL_FILLER_REGISTERS = 72, /* of a thread; 128 * 72 + 256 * 216 are what 384 threads of 168 have */
    PREFILL_MULTIPLIER_REGISTERS = 216,
    PREFILL_PANEL_BYTES = PREFILL_KEYS * 128 /* 64 columns of 128 queries, keys or values */
};

static_assert(PREFILL_FILLERS + PREFILL_MULTIPLIERS == PREFILL_WGMMA_THREADS, "as it is launched");

/* Rows of a tile in panels of 64 columns, eighths swizzled. */
struct panel_tile {
    shared_address first; /* of its first row */
    DEVICE_MEMBER shared_address place(uint32_t row, uint32_t eighth) const {
        return first + eighth / 8 * PREFILL_PANEL_BYTES + row * 128 + ((eighth % 8 ^ row % 8) << 4);
    }
    DEVICE_MEMBER void copy(uint32_t row, uint32_t eighth, const char *from, bool takes) const {
        copy_async16_if(place(row, eighth), from, takes);
    }
    DEVICE_MEMBER void store(uint32_t row, uint32_t eighth, struct u32x4 v) const {
        store16_async(place(row, eighth), v);
    }
};

/* Tiles in the order in which they are multiplied: 2 i - 1, the first 0, has the i-th 128 keys of the block, 2 i the
 * values of those before, the last one the last values. */
template <int WIDTH> struct prefill_tiles {
    shared_address queries;
    DEVICE_MEMBER uint32_t count() const { return prefill_wgmma_tiles(WIDTH); }
    DEVICE_MEMBER shared_address place(uint32_t tile) const {
        return queries + (1 + tile % count()) * (PREFILL_KEYS * WIDTH * 2);
    }
    DEVICE_MEMBER shared_address full(uint32_t tile) const { return barriers() + tile % count() * 16; }
    DEVICE_MEMBER shared_address empty(uint32_t tile) const { return full(tile) + 8; }
    DEVICE_MEMBER shared_address queries_full() const { return barriers() + count() * 16; }
    DEVICE_MEMBER shared_address barriers() const { return queries + (1 + count()) * (PREFILL_KEYS * WIDTH * 2); }
    DEVICE_MEMBER void empty_wait(uint32_t tile) const { mbarrier_wait(empty(tile), (tile / count() & 1) ^ 1); }
    DEVICE_MEMBER void full_wait(uint32_t tile) const { mbarrier_wait(full(tile), tile / count() & 1); }
};

/* What this warp has stored is there. */
DEVICE void warp_has_stored(shared_address barrier) {
    async_fence();
    warp_barrier();
    if (lane_index() == 0) mbarrier_arrive(barrier);
}

template <int WIDTH>
DEVICE void prefill_fill(const struct cuda_prefill_args &args, const struct query_block &block,
                         const struct prefill_tiles<WIDTH> &tiles) {
    const uint32_t first = block.chunk_first / 2 * 2, end = (block.chunk_end - first + 1) / 2 * 2;
    ROLLED
    for (uint32_t tile = 0; tile < end; tile++) {
        const bool is_v = (tile > 0 && tile % 2 == 0) || tile + 1 == end;
        const uint32_t chunk = first + (is_v ? tile - 1 : tile + 1) / 2 * 2;
        tiles.empty_wait(tile);
        UNROLL
        for (uint32_t half = 0; half < 2; half++)
            chunk_load<WIDTH, true>(args, block, chunk + half, is_v,
                                    panel_tile{tiles.place(tile) + half * (ATTENTION_CHUNK * 128)});
        copy_async_commit();
        if (tile == 0) continue;
        copy_async_wait<1>();
        warp_has_stored(tiles.full(tile - 1));
    }
    copy_async_wait<0>();
    warp_has_stored(tiles.full(end - 1));
}

/* A warp's 16 of the 64 queries, as wgmma has them. */
template <int WIDTH> struct row_sums { float o[WIDTH / 2], m[2], s[2]; };

template <int WIDTH> DEVICE void scores_begin(float (&score)[64], shared_address queries, shared_address keys) {
    wgmma_fence();
    UNROLL
    for (uint32_t step = 0; step < WIDTH / 16; step++) {
        const uint32_t place = step / 4 * PREFILL_PANEL_BYTES + step % 4 * 32;
        wgmma(score, wgmma_descriptor(queries + place), wgmma_descriptor(keys + place), step > 0);
    }
    wgmma_commit();
}

template <int WIDTH>
DEVICE void values_begin(float (&o)[WIDTH / 2], const uint32_t (&weights)[8][4], shared_address values) {
    wgmma_fence();
    UNROLL
    for (uint32_t step = 0; step < 8; step++)
        wgmma_turned(o, weights[step], wgmma_descriptor_turned(values + step * 16 * 128, PREFILL_PANEL_BYTES));
    wgmma_commit();
}

/* Scores of the keys from `key` on become weights. */
template <int WIDTH>
DEVICE void scores_weigh(const struct cuda_prefill_args &args, uint32_t key, uint32_t query, float (&score)[64],
                         struct row_sums<WIDTH> *sums, float (&shrink)[2]) {
    float(*rows)[4] = (float(*)[4])score;
    if (key + PREFILL_KEYS - 1 > query || (args.window != 0 && key + args.window <= query + 15))
        scores_mask<16>(args, key, query, rows);
    UNROLL
    for (uint32_t h = 0; h < 2; h++) shrink[h] = weights_make<16>(rows, h, &sums->m[h], &sums->s[h]);
}

DEVICE void weights_halve(const float (&score)[64], uint32_t (&weights)[8][4]) {
    UNROLL
    for (uint32_t i = 0; i < 32; i++) weights[i / 4][i % 4] = halves_of(score[i * 2], score[i * 2 + 1]);
}

template <int WIDTH>
DEVICE void prefill_multiply(const struct cuda_prefill_args &args, const struct query_block &block,
                             const struct prefill_tiles<WIDTH> &tiles) {
    const uint32_t lane = lane_index(), row = warp_index() * 16, query = block.position + row;
    const uint32_t first = block.chunk_first / 2, count = (block.chunk_end + 1) / 2 - first;
    const shared_address queries = tiles.queries + warp_index() / 4 * (64 * 128);
    struct row_sums<WIDTH> sums;
    float score[64], shrink[2];
    uint32_t weights[8][4];
    UNROLL
    for (uint32_t i = 0; i < WIDTH / 2; i++) sums.o[i] = 0;
    UNROLL
    for (uint32_t i = 0; i < 64; i++) score[i] = 0;
    sums.m[0] = sums.m[1] = SCORE_NONE, sums.s[0] = sums.s[1] = 0;
    queries_store<WIDTH, PREFILL_MULTIPLIERS>(args, block, panel_tile{tiles.queries});
    warp_has_stored(tiles.queries_full());
    mbarrier_wait(tiles.queries_full(), 0);
    tiles.full_wait(0);
    scores_begin<WIDTH>(score, queries, tiles.place(0));
    wgmma_wait<0>();
    wgmma_results(score);
    if (lane == 0) mbarrier_arrive(tiles.empty(0));
    scores_weigh<WIDTH>(args, first * PREFILL_KEYS, query, score, &sums, shrink);
    weights_halve(score, weights);
    ROLLED
    for (uint32_t i = 1; i < count; i++) {
        tiles.full_wait(2 * i - 1);
        scores_begin<WIDTH>(score, queries, tiles.place(2 * i - 1));
        tiles.full_wait(2 * i);
        values_begin<WIDTH>(sums.o, weights, tiles.place(2 * i));
        wgmma_wait<1>();
        wgmma_results(score);
        if (lane == 0) mbarrier_arrive(tiles.empty(2 * i - 1));
        scores_weigh<WIDTH>(args, (first + i) * PREFILL_KEYS, query, score, &sums, shrink);
        wgmma_wait<0>();
        wgmma_results(sums.o);
        if (lane == 0) mbarrier_arrive(tiles.empty(2 * i));
        UNROLL
        for (uint32_t k = 0; k < WIDTH / 2; k++) sums.o[k] *= shrink[k % 4 / 2];
        weights_halve(score, weights);
    }
    tiles.full_wait(2 * count - 1);
    values_begin<WIDTH>(sums.o, weights, tiles.place(2 * count - 1));
    wgmma_wait<0>();
    wgmma_results(sums.o);
    outputs_write<WIDTH>(args, block, row, 0, (const float(*)[4])sums.o, sums.m, sums.s);
}

template <int WIDTH> DEVICE void prefill_wgmma_run(const struct cuda_prefill_args &args) {
    const struct prefill_tiles<WIDTH> tiles = { shared_of(SHARED_ARRAY(char)) };
    dependents_start();
    dependency_wait();
    const struct query_block block = query_block_of<WIDTH>(args);
    if (block.count == 0) return;
    if (thread_index() == 0) {
        for (uint32_t i = 0; i < tiles.count(); i++) {
            mbarrier_init(tiles.full(i), PREFILL_FILLERS / 32);
            mbarrier_init(tiles.empty(i), PREFILL_MULTIPLIERS / 32);
        }
        mbarrier_init(tiles.queries_full(), PREFILL_MULTIPLIERS / 32);
        mbarriers_publish();
    }
    block_barrier();
    if (warp_index() >= PREFILL_MULTIPLIERS / 32) {
        registers_lower<PREFILL_FILLER_REGISTERS>();
        prefill_fill<WIDTH>(args, block, tiles);
    } else {
        registers_raise<PREFILL_MULTIPLIER_REGISTERS>();
        prefill_multiply<WIDTH>(args, block, tiles);
    }
}
