/* level_build: codes of a chunk's keys around their mean, in the layout of kernels/level.  A block has a chunk of one
 * KV head: keys are rotated 8 at a time; a warp then has every eighth token, a lane four neighbours of its coordinates.
 * Keys that are too wide to be kept until their mean is known are rotated once more. */
#include "device/cuda/kernels_look.h"
#include "device/cuda/kv_keys.h"
#include "device/cuda/rows.h"

enum { SPREAD_MOST = 0xf7 }; /* LEVEL_SPREAD_MAX */

/* keys[token] = key * rotation, coordinate by coordinate, of the 8 tokens of a block of the chunk. */
DEVICE void keys_rotate(const struct kv_shape &shape, const char *block, const uint16_t *rotation, float *raw,
                        float *keys) {
    const uint32_t dimension = shape.k_dimension;
    for (uint32_t i = thread_index(); i < KV_BLOCK_TOKENS * dimension; i += 256)
        raw[i] = key_element(shape, block, i / dimension, i % dimension);
    block_barrier(); /* nor does anyone read earlier keys any more */
    for (uint32_t n = thread_index(); n < KV_BLOCK_TOKENS * dimension; n += 256) {
        const uint32_t token = n / dimension, j = n % dimension;
        float sum = 0;
        for (uint32_t i = 0; i < dimension; i++)
            sum = multiply_add(raw[token * dimension + i], half_value(rotation[i * dimension + j]), sum);
        keys[n] = sum;
    }
    block_barrier();
}

/* The mean of sums over the chunk becomes the center, or all of it 0 where one is no half; sums become what it is. */
DEVICE void keys_center(uint32_t dimension, float *sums, uint16_t *center, uint32_t *overflows) {
    const float largest = 65504;
    if (thread_index() == 0) *overflows = 0;
    block_barrier();
    for (uint32_t j = thread_index(); j < dimension; j += 256)
        if (!(magnitude(sums[j]) <= largest * KV_CHUNK_TOKENS)) atomic_add(overflows, 1);
    block_barrier();
    const bool fits = *overflows == 0;
    for (uint32_t j = thread_index(); j < dimension; j += 256) {
        center[j] = fits ? (uint16_t)half_of(sums[j] / KV_CHUNK_TOKENS) : 0;
        sums[j] = half_value(center[j]);
    }
    block_barrier();
}

/* The deviation of each coordinate of a chunk's keys, the upper 8 bits of a half behind its sign (kernels/level). */
DEVICE void keys_spread(const struct kv_shape &shape, const char *rows, uint8_t *spread) {
    for (uint32_t j = thread_index(); j < shape.k_dimension; j += 256) {
        float sum = 0, squares = 0;
        UNROLL_BY(8)
        for (uint32_t t = 0; t < KV_CHUNK_TOKENS; t++)
            sum += key_element(shape, rows + t / KV_BLOCK_TOKENS * shape.block_bytes, t % KV_BLOCK_TOKENS, j);
        const float mean = sum / KV_CHUNK_TOKENS;
        UNROLL_BY(8)
        for (uint32_t t = 0; t < KV_CHUNK_TOKENS; t++) {
            const float off =
                key_element(shape, rows + t / KV_BLOCK_TOKENS * shape.block_bytes, t % KV_BLOCK_TOKENS, j) - mean;
            squares = multiply_add(off, off, squares);
        }
        const float deviation = __builtin_sqrtf(squares / KV_CHUNK_TOKENS);
        const uint32_t nearest = (half_of(deviation) + 0x40) >> 7;
        spread[j] = (uint8_t)(deviation != deviation ? 0xff : smaller(nearest, SPREAD_MOST));
    }
}

/* The codes and the factor of a token, x - mean, by a warp. */
template <int PLANES>
DEVICE void token_encode(const struct cuda_level_build_args &args, const float *x, const float *mean, uint32_t token,
                         char *index) {
    enum { COUNT = 1 << PLANES, FIELDS = 8 / PLANES };
    const uint32_t dimension = args.shape.k_dimension, lane = lane_index();
    float squares = 0, product = 0, own = 0;
    for (uint32_t j = lane; j < dimension; j += 32) squares = multiply_add(x[j] - mean[j], x[j] - mean[j], squares);
    squares = warp_sum(squares);
    const bool is_ordinary = squares > 0 && float_bits(squares) < FLOAT_INFINITE;
    const float inverse =
        is_ordinary ? 1.0f / (args.step_size * __builtin_sqrtf(squares / (float)dimension)) : 0;
    for (uint32_t first = 0; first < dimension / 4; first += 32) {
        const uint32_t step = first + lane; /* coordinates 4 * step .. + 3 */
        uint32_t word = 0;
        UNROLL
        for (uint32_t b = 0; b < 4; b++) {
            if (step >= dimension / 4 || !is_ordinary) continue;
            const float value = x[step * 4 + b] - mean[step * 4 + b], place = value * inverse + COUNT / 2;
            const int32_t number = !(place > 0) ? 0 : place >= COUNT ? COUNT - 1 : (int32_t)place;
            const float level = (float)(2 * number - (COUNT - 1));
            product = multiply_add(level, value, product);
            own = multiply_add(level, level, own);
            word |= (uint32_t)number << (8 * b + step % FIELDS * PLANES);
        }
        UNROLL
        for (uint32_t by = 1; by < FIELDS; by <<= 1) word |= lane_xor(word, by);
        if (step < dimension / 4 && step % FIELDS == 0)
            ((uint32_t *)(void *)index)[step / FIELDS * KV_CHUNK_TOKENS + token] = word;
    }
    product = warp_sum(product);
    own = warp_sum(own);
    const float factor = is_ordinary ? product / own : squares;
    if (lane == 0)
        ((uint16_t *)(void *)(index + args.factors_offset))[token] =
            (uint16_t)half_of(factor > 65504 ? 65504 : factor);
}

template <int PLANES> DEVICE void level_build_run(const struct cuda_level_build_args &args, uint32_t spread_offset) {
    float *raw = SHARED_ARRAY(float);
    const uint32_t dimension = args.shape.k_dimension, kv_head = block_y(), held = level_build_blocks(dimension),
                   size = KV_BLOCK_TOKENS * dimension;
    float *mean = raw + size, *keys = mean + dimension;
    dependents_start();
    dependency_wait();
    if (block_z() >= smaller(at<struct step_head>(args.step)->item_count, args.item_count)) return;
    const struct step_item *item = at<struct step_item>(args.items) + block_z();
    const uint64_t first =
        args.rows == 0 ? item->position_first : at<struct step_row>(args.rows)[block_z()].position;
    const uint32_t begin = (uint32_t)first, end = begin + item->row_count;
    const uint32_t chunk = begin / KV_CHUNK_TOKENS + block_x();
    if ((chunk + 1) * KV_CHUNK_TOKENS > end) return; /* not complete */
    char *index = (char *)chunk_at(at<struct cuda_pools>(args.pools), index_places(item, kv_head)[chunk]);
    const char *rows =
        chunk_at(at<struct cuda_pools>(args.pools), head_places(item, args.layer_pages, kv_head)[chunk]);
    if (spread_offset != 0) keys_spread(args.shape, rows, (uint8_t *)(void *)(index + spread_offset));
    const uint16_t *rotation = at<uint16_t>(args.rotation) + (uint64_t)kv_head * dimension * dimension;
    for (uint32_t b = 0; b < KV_CHUNK_BLOCKS; b++) {
        float *own = keys + b % held * size;
        keys_rotate(args.shape, rows + b * args.shape.block_bytes, rotation, raw, own);
        for (uint32_t j = thread_index(); j < dimension; j += 256) {
            float sum = b == 0 ? 0 : mean[j];
            for (uint32_t t = 0; t < KV_BLOCK_TOKENS; t++) sum += own[t * dimension + j];
            mean[j] = sum;
        }
    }
    keys_center(dimension, mean, (uint16_t *)(void *)(index + args.center_offset), (uint32_t *)(void *)raw);
    const uint32_t warp = thread_index() / 32;
    for (uint32_t b = 0; b < KV_CHUNK_BLOCKS; b++) {
        if (held == 1) keys_rotate(args.shape, rows + b * args.shape.block_bytes, rotation, raw, keys);
        token_encode<PLANES>(args, keys + b % held * size + warp * dimension, mean, b * KV_BLOCK_TOKENS + warp, index);
    }
}

KERNEL(level_build_1, cuda_look_build_args, 256, 2) { level_build_run<1>(args.build, args.spread_offset); }
KERNEL(level_build_2, cuda_look_build_args, 256, 2) { level_build_run<2>(args.build, args.spread_offset); }
KERNEL(level_build_4, cuda_look_build_args, 256, 2) { level_build_run<4>(args.build, args.spread_offset); }
