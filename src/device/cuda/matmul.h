/* matmul: products of many rows with weights of one type, by matrix_multiply (mma.sync, from sm_80 on).
 *
 * A block makes 128 rows by 128 outputs, 64 columns at a time: the rows of halves come by copies three tiles
 * deep; of the weights each thread has a piece of 32 columns under way in registers, expands it to halves and
 * stores it in the tile that comes next.  Eight warps make 64 rows by 32 outputs each.  Tiles have rows of 128
 * bytes, whose eighths lie at (number ^ row % 8), so that neither stores nor matrix loads meet in a
 * bank.  Bound by the tensor cores; a piece costs some 60 instructions for 8,192 products. */
#pragma once

#include "device/cuda/rows.h"
#include "device/cuda/weight_types.h"

/* ---- a piece as 32 halves */

/* (code - OFFSET) * scale + minimum: the first exactly, the rest with one rounding, of scales rounded to halves. */
template <typename T> DEVICE void piece_halves(const T &raw, uint32_t index, uint32_t to[16]) {
    struct unit u;
    raw.expand(&u, index);
    const uint32_t offset = (uint32_t)(T::IS_SIGNED ? 128 : T::OFFSET);
    const uint32_t center = (0x6400u + offset) * 0x10001u; /* 1024 + offset, twice */
    UNROLL
    for (uint32_t j = 0; j < 8; j++) {
        const uint32_t scale = halves_of(u.scale[j / 4], u.scale[j / 4]);
        const uint32_t minimum = halves_of(u.minimum[j / 4], u.minimum[j / 4]);
        const uint32_t codes = T::IS_SIGNED ? u.codes[j] ^ 0x80808080u : u.codes[j];
        UNROLL
        for (uint32_t k = 0; k < 2; k++) {
            /* a byte under 0x64 is the half 1024 + byte */
            const uint32_t value = halves_subtract(bytes_pick(codes, 0x64646464u, k ? 0x4342 : 0x4140), center);
            to[j * 2 + k] = T::HAS_MINIMUM ? halves_fma(value, scale, minimum) : halves_multiply(value, scale);
        }
    }
}

/* Plain types, 32 columns at a time, of which those beyond the row's end are zeros: a row is whole eighths. */
struct plain_f16 {
    struct u32x4 v[4];
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t eight, uint32_t eights) {
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            if (i < eights)
                v[i] = load16_once(at<char>(w.codes) + (eight + i) * 16);
            else
                v[i] = {0, 0, 0, 0};
    }
    DEVICE_MEMBER void words(uint32_t to[16]) const {
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            to[i * 4] = v[i].x, to[i * 4 + 1] = v[i].y, to[i * 4 + 2] = v[i].z, to[i * 4 + 3] = v[i].w;
    }
};
struct plain_bf16 : plain_f16 {};
struct plain_f32 {
    struct u32x4 v[8];
    DEVICE_MEMBER void load(const struct weight_planes &w, uint64_t eight, uint32_t eights) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            if (i / 2 < eights)
                v[i] = load16_once(at<char>(w.codes) + eight * 32 + i * 16);
            else
                v[i] = {0, 0, 0, 0};
    }
};
template <typename T> constexpr bool is_plain = false;
template <> constexpr bool is_plain<plain_f16> = true;
template <> constexpr bool is_plain<plain_bf16> = true;
template <> constexpr bool is_plain<plain_f32> = true;
/* Columns of a row from `column` on, a multiple of 32; zeros where there are none. */
template <typename T>
DEVICE void piece_load(T *raw, const struct weight_planes &w, uint64_t row, uint32_t column, uint32_t columns) {
    if constexpr (is_plain<T>)
        raw->load(w, row * (columns / 8) + column / 8, column < columns ? (columns - column) / 8 : 0);
    else if (column < columns)
        raw->load(w, row * (columns / 32) + column / 32);
    else
        raw->clear();
}
DEVICE void piece_halves(const plain_f16 &raw, uint32_t, uint32_t to[16]) { raw.words(to); }
DEVICE void piece_halves(const plain_bf16 &raw, uint32_t, uint32_t to[16]) {
    uint32_t two[16];
    raw.words(two);
    UNROLL
    for (uint32_t i = 0; i < 16; i++) to[i] = halves_of(bits_float(two[i] << 16), bits_float(two[i] & 0xffff0000u));
}
DEVICE void piece_halves(const plain_f32 &raw, uint32_t, uint32_t to[16]) {
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        to[i * 2] = halves_of(bits_float(raw.v[i].x), bits_float(raw.v[i].y));
        to[i * 2 + 1] = halves_of(bits_float(raw.v[i].z), bits_float(raw.v[i].w));
    }
}

/* ---- tiles */

DEVICE uint32_t tile_place(uint32_t row, uint32_t eighth) { return row * 128 + ((eighth ^ (row & 7)) << 4); }

struct matmul_place {
    struct matvec_part part;
    uint32_t row_first, row_end, output_first;
    uint64_t weight_first;         /* row of the weights that is output 0 */
    const struct expert_row *rows; /* of the tile, with experts: whose inputs and outputs they are */
};
/* Part and outputs of a tile.  False: nothing is there. */
DEVICE bool outputs_place(const struct cuda_matmul_args &args, uint32_t tile, struct matmul_place *place) {
    uint32_t part = 0;
    UNROLL
    for (uint32_t i = 1; i < MATVEC_PARTS; i++) {
        const uint32_t tiles = matmul_tiles(args.part[i - 1].rows);
        if (part != i - 1 || tile < tiles) continue;
        tile -= tiles;
        part = i;
    }
    UNROLL
    for (uint32_t i = 0; i < MATVEC_PARTS; i++) {
        const struct matvec_part &from = args.part[i];
        if (part == i) { /* field by field, so that all stay in registers */
            place->part.weight.codes = from.weight.codes;
            place->part.weight.high = from.weight.high;
            place->part.weight.scales = from.weight.scales;
            place->part.weight.supers = from.weight.supers;
            place->part.bias = from.bias;
            place->part.y = from.y;
            place->part.rows = from.rows;
            place->part.y_stride = from.y_stride;
        }
    }
    place->output_first = tile * MATMUL_OUTPUTS;
    return place->output_first < place->part.rows;
}

DEVICE bool rows_place(const struct cuda_matmul_args &args, struct matmul_place *place) {
    place->row_first = block_x() * MATMUL_ROWS;
    place->row_end = step_rows(args.step, args.row_count);
    return place->row_first < place->row_end;
}

/* With experts a tile's rows are places of one expert. */
DEVICE bool expert_place(const struct cuda_matmul_experts_args &args, struct matmul_place *place,
                         struct expert_row *rows) {
    const struct expert_tile tile = at<struct expert_tile>(args.tiles)[block_x()];
    if (tile.first == tile.end) return false;
    place->row_first = tile.first;
    place->row_end = tile.end;
    place->weight_first = (uint64_t)tile.expert * args.expert_rows;
    place->rows = rows;
    const uint32_t place_index = tile.first + thread_index();
    if (thread_index() < MATMUL_ROWS && place_index < tile.end) {
        const uint32_t pick = at<uint32_t>(args.places)[place_index];
        rows[thread_index()] = {pick / args.used, pick};
    }
    block_barrier();
    return true;
}

/* 128 rows of x, columns from `column` on; zeros where there is none. */
template <bool EXPERTS>
DEVICE void x_copy(const struct cuda_matmul_args &args, const struct matmul_place &place, shared_address tile,
                   uint32_t column) {
    const uint16_t *x = at<uint16_t>(args.x);
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t n = thread_index() + i * 256, row = n / 8, eighth = n % 8, from = column + eighth * 8;
        const bool is_there = place.row_first + row < place.row_end && from < args.columns;
        uint64_t source = 0;
        if (is_there)
            source = (uint64_t)(EXPERTS ? place.rows[row].input : place.row_first + row) * args.columns + from;
        copy_async16_if(tile + tile_place(row, eighth), x + source, is_there);
    }
}

/* Piece `number` of 256 of a tile of weights. */
template <typename T>
DEVICE void w_load(const struct cuda_matmul_args &args, const struct matmul_place &place, T *raw, uint32_t column,
                   uint32_t number) {
    const uint32_t row = smaller(place.output_first + number / 2, place.part.rows - 1);
    piece_load(raw, place.part.weight, place.weight_first + row, column + number % 2 * 32, args.columns);
}
/* store(place in the tile, 16 bytes) */
template <typename T, typename STORE>
DEVICE void w_store(const T &raw, uint32_t column, uint32_t number, const STORE &store) {
    uint32_t halves[16];
    piece_halves(raw, column / 32 + number % 2, halves);
    UNROLL
    for (uint32_t i = 0; i < 4; i++)
        store(tile_place(number / 2, number % 2 * 4 + i),
              u32x4{halves[i * 4], halves[i * 4 + 1], halves[i * 4 + 2], halves[i * 4 + 3]});
}

/* 16 columns of the tiles: 64 rows by 32 outputs of this warp. */
DEVICE void tile_multiply(shared_address x, shared_address w, uint32_t step, uint32_t lane, float d[4][4][4]) {
    uint32_t a[4][4], b[2][4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++) matrix_load4(a[i], x + tile_place(i * 16 + lane % 16, step * 2 + lane / 16));
    UNROLL
    for (uint32_t j = 0; j < 2; j++)
        matrix_load4(b[j], w + tile_place(j * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
    UNROLL
    for (uint32_t i = 0; i < 4; i++) UNROLL
    for (uint32_t j = 0; j < 4; j++) matrix_multiply(d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
}

/* Biases, and what a lane's row is added to, are asked for before the first of it is stored: one by one each would wait
 * for memory.  Beyond the end the last bias is read, and nothing to add to: another lane stores there. */
template <bool EXPERTS>
DEVICE void tile_store(const struct cuda_matmul_args &args, const struct matmul_place &place, uint32_t row_first,
                       uint32_t output_first, const float d[4][4][4]) {
    const uint32_t lane = lane_index(), last = place.part.rows - 1;
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t row = row_first + i * 8 + lane / 4; /* 16 rows are d[i / 2], the second 8 its other half */
        if (row >= place.row_end) continue;
        const struct expert_row from = EXPERTS ? place.rows[row - place.row_first] : expert_row{row, row};
        const float scale = at<float>(args.scales)[from.input];
        float *y = at<float>(place.part.y) + (uint64_t)from.pick * place.part.y_stride, bias[8], before[8];
        const auto output_of = [&](uint32_t j) { return output_first + j / 2 * 8 + lane % 4 * 2 + j % 2; };
        UNROLL
        for (uint32_t j = 0; j < 8; j++) { /* -0: added it leaves every value as it is */
            const uint32_t output = smaller(output_of(j), last);
            bias[j] = place.part.bias != 0 ? at<float>(place.part.bias)[place.weight_first + output] : -0.0f;
            before[j] = args.accumulate && output_of(j) <= last ? y[output] : -0.0f;
        }
        UNROLL
        for (uint32_t j = 0; j < 8; j++) {
            const float value = d[i / 2][j / 2][i % 2 * 2 + j % 2] * scale + bias[j];
            if (output_of(j) <= last) y[output_of(j)] = before[j] + value;
        }
    }
}

template <typename T, bool EXPERTS>
DEVICE void tile_run(const struct cuda_matmul_args &args, const struct matmul_place &place, char *base) {
    char *w_tiles = base + MATMUL_X_TILES * MATMUL_TILE_BYTES;
    const uint32_t lane = lane_index(), warp = warp_index(), row_part = warp / 4 * 64, output_part = warp % 4 * 32;
    /* Tiles of experts are often not full: some warps have nothing but the weights, which are everyone's.  Where all
     * are, a branch would part the products from what goes on between them. */
    const bool multiplies =
        !EXPERTS || (place.row_first + row_part < place.row_end && place.output_first + output_part < place.part.rows);
    T raw;
    const shared_address x_shared = shared_of(base), w_shared = shared_of(w_tiles);
    float d[4][4][4];
    UNROLL
    for (uint32_t i = 0; i < 64; i++) d[i / 16][i / 4 % 4][i % 4] = 0;
    w_load(args, place, &raw, 0, thread_index());
    UNROLL
    for (uint32_t i = 0; i < MATMUL_X_TILES - 1; i++) {
        x_copy<EXPERTS>(args, place, x_shared + i * MATMUL_TILE_BYTES, i * MATMUL_COLUMNS);
        copy_async_commit();
    }
    char *w_to = w_tiles;
    const auto store = [&](uint32_t at_byte, struct u32x4 v) { *(struct u32x4 *)(void *)(w_to + at_byte) = v; };
    w_store(raw, 0, thread_index(), store);
    w_load(args, place, &raw, MATMUL_COLUMNS, thread_index());
    uint32_t x_tile = 0, x_next = MATMUL_X_TILES - 1, w_tile = 0;
    ROLLED
    for (uint32_t column = 0; column < args.columns; column += MATMUL_COLUMNS) {
        copy_async_wait<MATMUL_X_TILES - 2>();
        block_barrier(); /* these tiles are there, and nobody reads the last ones any more */
        x_copy<EXPERTS>(args, place, x_shared + x_next * MATMUL_TILE_BYTES,
                        column + (MATMUL_X_TILES - 1) * MATMUL_COLUMNS);
        copy_async_commit();
        const shared_address x = x_shared + x_tile * MATMUL_TILE_BYTES + row_part * 128,
                             w = w_shared + w_tile * MATMUL_TILE_BYTES + output_part * 128;
        if (multiplies) tile_multiply(x, w, 0, lane, d);
        w_to = w_tiles + (w_tile ^ 1) * MATMUL_TILE_BYTES;
        w_store(raw, column + MATMUL_COLUMNS, thread_index(), store);
        if (multiplies) tile_multiply(x, w, 1, lane, d);
        w_load(args, place, &raw, column + 2 * MATMUL_COLUMNS, thread_index());
        if (multiplies) tile_multiply(x, w, 2, lane, d);
        if (multiplies) tile_multiply(x, w, 3, lane, d);
        x_tile = x_tile == MATMUL_X_TILES - 1 ? 0 : x_tile + 1;
        x_next = x_next == MATMUL_X_TILES - 1 ? 0 : x_next + 1;
        w_tile ^= 1;
    }
    copy_async_wait<0>();
    tile_store<EXPERTS>(args, place, place.row_first + row_part, place.output_first + output_part, d);
}

template <typename T> DEVICE void matmul_run(const struct cuda_matmul_args &args) {
    struct matmul_place place = {};
    dependents_start();
    dependency_wait();
    if (rows_place(args, &place) && outputs_place(args, block_y(), &place))
        tile_run<T, false>(args, place, SHARED_ARRAY(char));
}

template <typename T> DEVICE void matmul_experts_run(const struct cuda_matmul_experts_args &args) {
    char *base = SHARED_ARRAY(char);
    struct matmul_place place = {};
    dependents_start();
    dependency_wait();
    if (expert_place(args, &place, (struct expert_row *)(void *)(base + MATMUL_SHARED)) &&
        outputs_place(args.matmul, block_y(), &place))
        tile_run<T, true>(args.matmul, place, base);
}

#define MATMUL_KERNEL(name, type, blocks)                                            \
    KERNEL(matmul_##name, cuda_matmul_args, 256, blocks) { matmul_run<type>(args); } \
    KERNEL(matmul_experts_##name, cuda_matmul_experts_args, 256, blocks) { matmul_experts_run<type>(args); }
