/* matmul_wgmma: matmul of an H100 or H200, by wgmma and TMA; weights of every type, as matmul.h has them.
 *
 * A block takes tiles of 128 outputs by ROWS rows, one after the other, 64 columns at a time, in stages of shared
 * memory that go round.  One warpgroup fills them: its first thread has the card's engine copy the rows of halves, all
 * expand weights to halves (matmul.h's pieces, two a thread, those of the next stages under way in registers).  Two
 * warpgroups multiply, 64 outputs by all rows each, one group of products under way while the next stage is waited for.
 * A stage has two barriers: it is full when the bytes of the rows have come and the four warps have stored their
 * weights; it is empty when the eight warps' products of it are done.
 *
 * Weights are the first matrix of a product: 128 of them are expanded for as many rows as a product takes.  An output's
 * sum goes over the columns from the first to the last, 16 at a time, whatever ROWS and whoever else is in the tile.
 *
 * Of experts a block has one tile, whose rows lie apart: the threads that fill copy them by cp.async. */
#pragma once

#include "device/cuda/dialect_sm90a.h"
#include "device/cuda/kernels_sm90a.h"
#include "device/cuda/matmul.h"

enum {
    WGMMA_FILLERS = 128, /* threads, behind those that multiply */
    WGMMA_MULTIPLIERS = 256,
    /* of a thread; 128 * 104 + 256 * 200 are what 384 threads of 168 have, and 128 more than half of these are sums */
    WGMMA_FILLER_REGISTERS = 104,
    WGMMA_MULTIPLIER_REGISTERS = 200,
    WGMMA_EXPERTS_FILLER_REGISTERS = 152, /* they copy rows themselves, and tiles are of 128 rows at most */
    WGMMA_EXPERTS_MULTIPLIER_REGISTERS = 176
};

static_assert(WGMMA_FILLERS + WGMMA_MULTIPLIERS == MATMUL_WGMMA_THREADS, "as it is launched");

/* The stage that is next, and whether its turn is an odd one. */
template <uint32_t ROWS> struct wgmma_stage {
    shared_address first; /* of all */
    uint32_t number, turn;
    DEVICE_MEMBER shared_address x() const { return first + number * matmul_wgmma_stage_bytes(ROWS); }
    DEVICE_MEMBER shared_address w() const { return x() + ROWS * 128; }
    DEVICE_MEMBER shared_address full() const {
        return first + matmul_wgmma_stages(ROWS) * matmul_wgmma_stage_bytes(ROWS) + number * 16;
    }
    DEVICE_MEMBER shared_address empty() const { return full() + 8; }
    DEVICE_MEMBER void next() {
        number = number + 1 == matmul_wgmma_stages(ROWS) ? 0 : number + 1;
        if (number == 0) turn ^= 1;
    }
};

/* Tiles go by rows first, so that blocks side by side read the same weights.  False: that was the last. */
template <uint32_t ROWS>
DEVICE bool wgmma_place(const struct cuda_matmul_args &args, uint32_t tile, struct matmul_place *place) {
    place->row_end = step_rows(args.step, args.row_count);
    const uint32_t row_tiles = (place->row_end + ROWS - 1) / ROWS;
    if (row_tiles == 0) return false;
    place->row_first = tile % row_tiles * ROWS;
    place->weight_first = 0;
    return outputs_place(args, tile / row_tiles, place);
}

/* Stages of which a thread has pieces under way: as many as there are registers for.  Of 128 rows a stage's products
 * take 512 cycles, and memory takes longer than that. */
template <typename T> constexpr uint32_t WGMMA_AHEAD = sizeof(T) < 64 ? 2 : 1;

template <typename T, uint32_t ROWS>
DEVICE void wgmma_fill(const struct cuda_matmul_args &args, const void *x_map, struct wgmma_stage<ROWS> stage) {
    enum { AHEAD = WGMMA_AHEAD<T> };
    const uint32_t thread = thread_index() - WGMMA_MULTIPLIERS;
    struct matmul_place place = {};
    T raw[AHEAD][2];
    ROLLED
    for (uint32_t tile = block_x(); wgmma_place<ROWS>(args, tile, &place); tile += grid_x()) {
        UNROLL
        for (uint32_t i = 0; i < AHEAD * 2; i++)
            w_load(args, place, &raw[i / 2][i % 2], i / 2 * MATMUL_COLUMNS, thread + i % 2 * WGMMA_FILLERS);
        ROLLED
        for (uint32_t first = 0; first < args.columns; first += AHEAD * MATMUL_COLUMNS) {
            UNROLL
            for (uint32_t of = 0; of < AHEAD; of++) {
                const uint32_t column = first + of * MATMUL_COLUMNS;
                if (column >= args.columns) break;
                mbarrier_wait(stage.empty(), stage.turn ^ 1); /* in its first turn it is */
                if (thread == 0) {
                    mbarrier_expect(stage.full(), ROWS * 128);
                    tensor_copy_async(stage.x(), x_map, stage.full(), column, place.row_first);
                }
                const shared_address w = stage.w();
                UNROLL
                for (uint32_t i = 0; i < 2; i++) {
                    const uint32_t number = thread + i * WGMMA_FILLERS;
                    w_store(raw[of][i], column, number,
                            [w](uint32_t at_byte, struct u32x4 v) { store16_async(w + at_byte, v); });
                    w_load(args, place, &raw[of][i], column + AHEAD * MATMUL_COLUMNS, number);
                }
                async_fence();
                warp_barrier();
                if (lane_index() == 0) mbarrier_arrive(stage.full());
                stage.next();
            }
        }
    }
}

/* The same of a tile of an expert's rows: they lie apart, so threads copy them, as x_copy does with twice as many
 * threads; an x_copy of any number of them spills in matmul_q4_0 on sm_80. */
template <typename T>
DEVICE void wgmma_fill_expert(const struct cuda_matmul_args &args, const struct matmul_place &place,
                              struct wgmma_stage<MATMUL_ROWS> stage) {
    const uint32_t thread = thread_index() - WGMMA_MULTIPLIERS;
    shared_address last_full = 0;
    T raw[2];
    const auto stored = [&] {
        async_fence();
        warp_barrier();
        if (lane_index() == 0) mbarrier_arrive(last_full);
    };
    UNROLL
    for (uint32_t i = 0; i < 2; i++) w_load(args, place, &raw[i], 0, thread + i * WGMMA_FILLERS);
    ROLLED
    for (uint32_t column = 0; column < args.columns; column += MATMUL_COLUMNS) {
        mbarrier_wait(stage.empty(), stage.turn ^ 1);
        UNROLL
        for (uint32_t i = 0; i < MATMUL_ROWS * 8 / WGMMA_FILLERS; i++) {
            const uint32_t n = thread + i * WGMMA_FILLERS, row = n / 8, eighth = n % 8, from = column + eighth * 8;
            const bool is_there = place.row_first + row < place.row_end && from < args.columns;
            const uint64_t source = is_there ? (uint64_t)place.rows[row].input * args.columns + from : 0;
            copy_async16_if(stage.x() + tile_place(row, eighth), at<uint16_t>(args.x) + source, is_there);
        }
        copy_async_commit();
        const shared_address w = stage.w();
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t number = thread + i * WGMMA_FILLERS;
            w_store(raw[i], column, number, [w](uint32_t at_byte, struct u32x4 v) { store16_async(w + at_byte, v); });
            w_load(args, place, &raw[i], column + MATMUL_COLUMNS, number);
        }
        copy_async_wait<1>();
        if (column > 0) stored();
        last_full = stage.full();
        stage.next();
    }
    copy_async_wait<0>();
    stored();
}

/* 64 outputs from output_first on, of all rows of the tile.  Scales, and what is added to, are asked for of AT_ONCE of
 * a lane's rows before the first of these is stored: one by one each would wait for memory.  Beyond the end a lane
 * reads its own first row once more, which no other one writes, or the last one's scale. */
template <uint32_t ROWS, bool EXPERTS>
DEVICE void wgmma_store(const struct cuda_matmul_args &args, const struct matmul_place &place, uint32_t output_first,
                        const float (&d)[ROWS / 2]) {
    enum { AT_ONCE = 8 };
    const float nothing = -0.0f; /* added it leaves every value as it is */
    const uint32_t lane = lane_index(), output = output_first + warp_index() % 4 * 16 + lane / 4,
                   row_first = place.row_first + lane % 4 * 2, stride_bytes = place.part.y_stride * 4;
    const uint32_t own = smaller(row_first, place.row_end - 1);
    int32_t rows[2]; /* of an output that are there, from row_first on */
    float bias[2];
    UNROLL
    for (uint32_t k = 0; k < 2; k++) {
        const bool is_there = output + k * 8 < place.part.rows;
        rows[k] = is_there ? (int32_t)(place.row_end - row_first) : 0;
        bias[k] = is_there && place.part.bias != 0
                      ? at<float>(place.part.bias)[place.weight_first + output + k * 8]
                      : nothing;
    }
    UNROLL
    for (uint32_t first = 0; first < ROWS / 4; first += AT_ONCE) {
        float scale[AT_ONCE], before[AT_ONCE][2], *y[AT_ONCE];
        UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t there = row_first + (first + i) / 2 * 8 + i % 2, row = there < place.row_end ? there : own;
            const struct expert_row from = EXPERTS ? place.rows[row - place.row_first] : expert_row{row, row};
            scale[i] = at<float>(args.scales)[from.input];
            y[i] = at<float>(place.part.y + (uint64_t)from.pick * stride_bytes) + output;
            before[i][0] = before[i][1] = nothing;
        }
        if (args.accumulate)
            UNROLL
            for (uint32_t i = 0; i < AT_ONCE * 2; i++)
                if (rows[i % 2] > 0) before[i / 2][i % 2] = y[i / 2][i % 2 * 8];
        UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) UNROLL
        for (uint32_t k = 0; k < 2; k++) {
            const float value = d[(first + i) / 2 * 4 + k * 2 + i % 2] * scale[i] + bias[k];
            if ((int32_t)((first + i) / 2 * 8 + i % 2) < rows[k]) y[i][k * 8] = before[i][k] + value;
        }
    }
}

/* A tile, of which ROWS rows are multiplied. */
template <uint32_t ROWS, bool EXPERTS, uint32_t STAGE_ROWS>
DEVICE void wgmma_tile(const struct cuda_matmul_args &args, const struct matmul_place &place,
                       struct wgmma_stage<STAGE_ROWS> *stage) {
    const uint32_t lane = lane_index(), output_part = warp_index() / 4 * 64;
    float d[ROWS / 2];
    shared_address last_empty = 0; /* of the stage whose products are under way */
    UNROLL
    for (uint32_t i = 0; i < ROWS / 2; i++) d[i] = 0;
    ROLLED
    for (uint32_t column = 0; column < args.columns; column += MATMUL_COLUMNS) {
        const shared_address x = stage->x(), w = stage->w() + output_part * 128;
        mbarrier_wait(stage->full(), stage->turn);
        wgmma_fence();
        UNROLL
        for (uint32_t k = 0; k < MATMUL_COLUMNS / 16; k++)
            wgmma(d, wgmma_descriptor(w + k * 32), wgmma_descriptor(x + k * 32));
        wgmma_commit();
        wgmma_wait<1>();
        if (column > 0 && lane == 0) mbarrier_arrive(last_empty);
        last_empty = stage->empty();
        stage->next();
    }
    wgmma_wait<0>();
    wgmma_results(d);
    if (lane == 0) mbarrier_arrive(last_empty);
    wgmma_store<ROWS, EXPERTS>(args, place, place.output_first + output_part, d);
}

template <uint32_t ROWS>
DEVICE void wgmma_multiply(const struct cuda_matmul_args &args, struct wgmma_stage<ROWS> stage) {
    struct matmul_place place = {};
    ROLLED
    for (uint32_t tile = block_x(); wgmma_place<ROWS>(args, tile, &place); tile += grid_x())
        wgmma_tile<ROWS, false>(args, place, &stage);
}

/* By the thread that has x copied, which it may see from here on. */
template <uint32_t ROWS> DEVICE void wgmma_barriers_make(struct wgmma_stage<ROWS> stage, uint32_t fillers) {
    if (thread_index() != WGMMA_MULTIPLIERS) return;
    for (uint32_t i = 0; i < matmul_wgmma_stages(ROWS); i++, stage.next()) {
        mbarrier_init(stage.full(), fillers);
        mbarrier_init(stage.empty(), WGMMA_MULTIPLIERS / 32);
    }
    mbarriers_publish();
}

template <typename T, uint32_t ROWS>
DEVICE void matmul_wgmma_run(const struct cuda_matmul_wgmma_args &args, const void *x_map) {
    struct wgmma_stage<ROWS> stage = {
        shared_of(SHARED_ARRAY(char)), 0, 0
    };
    dependents_start();
    dependency_wait();
    wgmma_barriers_make(stage, 1 + WGMMA_FILLERS / 32);
    block_barrier();
    if (warp_index() >= WGMMA_MULTIPLIERS / 32) {
        registers_lower<WGMMA_FILLER_REGISTERS>();
        wgmma_fill<T, ROWS>(args.matmul, x_map, stage);
    } else {
        registers_raise<WGMMA_MULTIPLIER_REGISTERS>();
        wgmma_multiply<ROWS>(args.matmul, stage);
    }
}

/* An expert's tile, of which few rows are multiplied as half a tile. */
template <typename T> DEVICE void matmul_wgmma_experts_run(const struct cuda_matmul_experts_args &args) {
    char *base = SHARED_ARRAY(char);
    const struct wgmma_stage<MATMUL_ROWS> first = { shared_of(base), 0, 0 };
    struct matmul_place place = {};
    dependents_start();
    dependency_wait();
    wgmma_barriers_make(first, WGMMA_FILLERS / 32);
    if (!expert_place(args, &place, (struct expert_row *)(void *)(base + matmul_wgmma_shared(MATMUL_ROWS))) ||
        !outputs_place(args.matmul, block_y(), &place))
        return;
    struct wgmma_stage<MATMUL_ROWS> stage = first;
    if (warp_index() >= WGMMA_MULTIPLIERS / 32) {
        registers_lower<WGMMA_EXPERTS_FILLER_REGISTERS>();
        wgmma_fill_expert<T>(args.matmul, place, stage);
        return;
    }
    registers_raise<WGMMA_EXPERTS_MULTIPLIER_REGISTERS>();
    if (place.row_end - place.row_first <= MATMUL_ROWS / 2)
        wgmma_tile<MATMUL_ROWS / 2, true>(args.matmul, place, &stage);
    else
        wgmma_tile<MATMUL_ROWS, true>(args.matmul, place, &stage);
}

#define MATMUL_WGMMA_KERNEL(name, type)                                                      \
    KERNEL(matmul_wgmma_experts_##name, cuda_matmul_experts_args, MATMUL_WGMMA_THREADS, 1) { \
        matmul_wgmma_experts_run<type>(args);                                                \
    }                                                                                        \
    KERNEL(matmul_wgmma_##name##_128, cuda_matmul_wgmma_args, MATMUL_WGMMA_THREADS, 1) {     \
        matmul_wgmma_run<type, 128>(args, ARGUMENTS_OF(matmul_wgmma_##name##_128));          \
    }                                                                                        \
    KERNEL(matmul_wgmma_##name##_256, cuda_matmul_wgmma_args, MATMUL_WGMMA_THREADS, 1) {     \
        matmul_wgmma_run<type, 256>(args, ARGUMENTS_OF(matmul_wgmma_##name##_256));          \
    }
