/* chunks_score: scores of chunks by their centers and spreads.  A warp has 16 chunks, up to 8 heads at once: mma
 * multiplies centers by rotated queries in halves, of which the largest coordinate is 1, and spreads by the sizes of
 * queries as they were, which then are at most the root of the dimension.  Lane 4 g + t has chunks g and g + 8, heads
 * 2 t and 2 t + 1; of every 32 coordinates 8 neighbours.
 *
 * level_score: the scores of units of 8 to 64 tokens, their best tokens', by the codes of their keys.  A warp has a
 * chunk, up to 8 heads at once: mma multiplies tokens' numbers by the heads' bytes.  Lane 4 g + t has tokens 8 g .. 8 g
 * + 7, so that no unit of 8 needs another lane: of their codes every fourth word from t on, of their scores heads 2 t
 * and 2 t + 1. */
#include "device/cuda/kv_places.h"
#include "device/cuda/look.h"
#include "device/cuda/rows.h"
#include "kernels/attention/kv_layout.h"

struct level_query_head { /* struct level_query of kernels/level: behind it floats and bytes */
    float step, offset;
};

/* ---- queries */

/* Of a column of the rotation 128 rows, by 32, as far as there are any: all are under way at once. */
struct rotation_rows {
    enum { PARTS = 4, PART = 32 };
    uint32_t half[PARTS * PART];
    DEVICE_MEMBER void load(const uint16_t *column, uint32_t dimension, uint32_t first) {
        UNROLL
        for (uint32_t part = 0; part < PARTS; part++)
            if (first + part * PART < dimension)
                UNROLL
                for (uint32_t i = part * PART; i < (part + 1) * PART; i++)
                    half[i] = load2_weight(column + (first + i) * dimension);
    }
    DEVICE_MEMBER float multiply(const float *q, uint32_t dimension, uint32_t first, float sum) const {
        UNROLL
        for (uint32_t part = 0; part < PARTS; part++)
            if (first + part * PART < dimension)
                UNROLL
                for (uint32_t i = part * PART; i < (part + 1) * PART; i++)
                    sum = multiply_add(q[first + i], half_value(half[i]), sum);
        return sum;
    }
};

KERNEL(level_query, cuda_level_query_args, 128, 1) {
    const uint32_t head = block_x(), row = block_y(), dimension = args.k_dimension, lane = lane_index();
    float *x = SHARED_ARRAY(float), *q = x + dimension;
    const uint16_t *rotation =
        at<uint16_t>(args.rotation) + (uint64_t)(head / args.group) * dimension * dimension;
    struct rotation_rows rows;
    dependents_start();
    rows.load(rotation + smaller(thread_index(), dimension - 1), dimension, 0);
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    for (uint32_t i = thread_index(); i < dimension; i += 128)
        q[i] = at<float>(args.q)[(uint64_t)row * args.q_stride + head * dimension + i];
    block_barrier(); /* the query is there */
    char *query = at<char>(args.queries) + ((uint64_t)row * args.head_count + head) * args.query_bytes;
    float *floats = (float *)(void *)(query + sizeof(struct level_query_head));
    int8_t *integers = (int8_t *)(floats + dimension);
    for (uint32_t j = thread_index(); j < dimension; j += 128) {
        float sum = 0;
        for (uint32_t first = 0; first < dimension; first += rows.PARTS * rows.PART) {
            if (j + first >= 128) rows.load(rotation + j, dimension, first);
            sum = rows.multiply(q, dimension, first, sum);
        }
        x[j] = sum;
        floats[j] = sum;
    }
    block_barrier();
    if (thread_index() >= 32) return;
    uint32_t largest = 0;
    for (uint32_t j = lane; j < dimension; j += 32) {
        const uint32_t bits = float_bits(x[j]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    largest = warp_largest(largest);
    const float greatest = bits_float(largest);
    const float inverse = largest > 0 && largest < FLOAT_INFINITE ? 127 / greatest : 0;
    float sum = 0; /* exact: integers below 2^24 */
    for (uint32_t j = lane; j < dimension; j += 32) {
        const float code = inverse > 0 ? __builtin_rintf(x[j] * inverse) : 0;
        integers[j] = (int8_t)code;
        sum += code;
    }
    sum = warp_sum(sum);
    if (lane != 0) return;
    const float step = greatest / 127;
    *(struct level_query_head *)(void *)query = {step, step * ((float)((1 << args.planes) - 1) * sum)};
}

/* ---- scores */

enum { LANE_TOKENS = 8 };

/* A word of codes of each of a lane's tokens. */
struct level_words {
    uint32_t word[LANE_TOKENS];
};
DEVICE struct level_words words_load(const char *index, uint32_t w) {
    const char *from = index + (w * KV_CHUNK_TOKENS + lane_index() / 4 * LANE_TOKENS) * 4;
    const struct u32x4 a = load16_written(from), b = load16_written(from + 16);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

/* sums[i][2 r + c]: of a lane's token 2 i + r and head 2 t + c, numbers times the query's bytes.  now: word t of the
 * `words` that a token has, or the last; bytes: of head g.  Coordinates come in the order in which codes have them. */
template <int PLANES>
DEVICE void numbers_multiply(const char *index, struct level_words now, const char *bytes, uint32_t words,
                             int32_t (&sums)[LANE_TOKENS / 2][4]) {
    enum { FIELDS = 8 / PLANES };
    for (uint32_t begin = 0; begin < words; begin += 4) {
        const uint32_t w = begin + lane_index() % 4, mask = w < words ? ((1u << PLANES) - 1) * 0x01010101u : 0;
        const char *from = bytes + smaller(w, words - 1) * FIELDS * 4;
        if (begin != 0) now = words_load(index, smaller(w, words - 1));
        UNROLL
        for (uint32_t f = 0; f < FIELDS; f += 2) {
            const struct u32x2 x = load8_written(from + f * 4);
            UNROLL
            for (uint32_t i = 0; i < LANE_TOKENS / 2; i++) {
                const uint32_t even = now.word[2 * i] >> f * PLANES, odd = now.word[2 * i + 1] >> f * PLANES,
                               a[4] = {even & mask, odd & mask, even >> PLANES & mask, odd >> PLANES & mask};
                matrix_multiply_bytes(sums[i], a, x.x, x.y);
            }
        }
    }
}

/* The products of a lane's two heads with the center, 4 heads at once: of each, 8 lanes have 4 neighbours of every 32
 * coordinates, and then the sum of all. */
DEVICE void center_multiply(const char *center, const char *queries, uint32_t query_bytes, uint32_t head_count,
                            uint32_t dimension, float (&products)[2]) {
    const uint32_t lane = lane_index(), place = lane % 8 * 4;
    ROLLED
    for (uint32_t first = 0; first < head_count; first += 4) {
        const char *query = queries + smaller(first + lane / 8, head_count - 1) * query_bytes +
                            sizeof(struct level_query_head) + place * sizeof(float);
        const char *from = center + place * sizeof(uint16_t);
        float sums[4] = {};
        for (uint32_t begin = 0; begin < dimension; begin += 32) {
            const struct u32x2 a = load8_written(query + begin * sizeof(float)),
                               b = load8_written(query + begin * sizeof(float) + 8),
                               c = load8_written(from + begin * sizeof(uint16_t));
            sums[0] = multiply_add(bits_float(a.x), half_value(c.x & 0xffff), sums[0]);
            sums[1] = multiply_add(bits_float(a.y), half_value(c.x >> 16), sums[1]);
            sums[2] = multiply_add(bits_float(b.x), half_value(c.y & 0xffff), sums[2]);
            sums[3] = multiply_add(bits_float(b.y), half_value(c.y >> 16), sums[3]);
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++)
            UNROLL
            for (uint32_t by = 4; by > 0; by >>= 1) sums[i] += lane_xor(sums[i], by);
        const float sum = sums[0] + sums[2] + (sums[1] + sums[3]);
        UNROLL
        for (uint32_t c = 0; c < 2; c++) {
            const float of_head = lane_get(sum, (lane % 2 * 2 + c) * 8);
            products[c] = lane % 4 / 2 == first / 4 ? of_head : products[c];
        }
    }
}

/* The best of a unit whose tokens are those of so many groups of 4 lanes. */
DEVICE float unit_best(float (&scores)[LANE_TOKENS], uint32_t lane_groups) {
    UNROLL
    for (uint32_t by = 1; by < LANE_TOKENS; by <<= 1)
        UNROLL
        for (uint32_t i = 0; i < LANE_TOKENS; i += 2 * by) scores[i] = larger(scores[i], scores[i + by]);
    float best = scores[0];
    for (uint32_t by = 1; by < lane_groups; by <<= 1) best = larger(best, lane_xor(best, 4 * by));
    return best;
}

/* Scores of a chunk by up to LEVEL_SCORE_HEADS heads, at the units of the place-th of those that are scored. */
template <int PLANES>
DEVICE void chunk_score(const struct cuda_level_score_args &args, const char *index, const char *queries,
                        uint32_t place, uint32_t head_count, const struct look &look, float *scores) {
    const uint32_t lane = lane_index(), bytes = (uint32_t)sizeof(struct level_query_head) + args.dimension * 4;
    const struct level_words first = words_load(index, smaller(lane % 4, args.dimension * PLANES / 32 - 1));
    const float factor = args.scale * 1.44269504f;
    float common[2] = {};
    center_multiply(index + args.center_offset, queries, args.query_bytes, head_count, args.dimension, common);
    const struct u32x4 halves = load16_written(index + args.factors_offset + lane / 4 * LANE_TOKENS * 2);
    const uint32_t pairs[] = {halves.x, halves.y, halves.z, halves.w};
    int32_t sums[LANE_TOKENS / 2][4] = {};
    numbers_multiply<PLANES>(index, first, queries + smaller(lane / 4, head_count - 1) * args.query_bytes + bytes,
                             args.dimension * PLANES / 32, sums);
    const uint32_t token = place * KV_CHUNK_TOKENS + lane / 4 * LANE_TOKENS,
                   unit = token >> __builtin_ctz(args.unit_tokens);
    UNROLL
    for (uint32_t c = 0; c < 2; c++) {
        const uint32_t h = lane % 4 * 2 + c;
        const struct u32x2 numbers = load8_written(queries + smaller(h, head_count - 1) * args.query_bytes);
        const float step = bits_float(numbers.x), offset = bits_float(numbers.y);
        float of_token[LANE_TOKENS];
        UNROLL
        for (uint32_t i = 0; i < LANE_TOKENS; i++) {
            const float f = half_value(pairs[i / 2] >> i % 2 * 16 & 0xffff);
            of_token[i] = factor * multiply_add(f, 2 * step * (float)sums[i / 2][i % 2 * 2 + c] - offset, common[c]);
        }
        const float best = unit_best(of_token, args.unit_tokens / LANE_TOKENS);
        if (h < head_count && (token & (args.unit_tokens - 1)) == 0)
            scores[(uint64_t)h * args.unit_stride + unit] = token >= look.begin && token < look.end ? best : SCORE_NONE;
    }
}

/* ---- chunks */

/* Two bytes of a spread as halves. */
DEVICE uint32_t spread_halves(uint32_t bytes) { return ((bytes & 0xff) | (bytes & 0xff00) << 8) << 7; }

/* sums[2 i + c] += x of chunk g + 8 i, 8 halves, times 8 neighbours of the query of head 2 t + c. */
DEVICE void neighbours_multiply(const struct u32x4 &a, const struct u32x4 &b, const uint32_t (&halves)[4],
                                float (&sums)[4]) {
    const uint32_t first[4] = {a.x, b.x, a.y, b.y}, second[4] = {a.z, b.z, a.w, b.w};
    matrix_multiply(sums, first, halves[0], halves[1]);
    matrix_multiply(sums, second, halves[2], halves[3]);
}

/* Of chunks g and g + 8 (index) and the query of head g, rotated and as it was, each times its factor. */
DEVICE void chunks_multiply(const struct cuda_chunks_score_args &args, const char *const (&index)[2],
                            const char *query, const char *own, float factor, float own_factor, float (&common)[4],
                            float (&spread)[4]) {
    for (uint32_t column = lane_index() % 4 * 8; column < args.dimension; column += 32) {
        uint32_t halves[4], sizes[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t place = (column + 2 * i) * (uint32_t)sizeof(float);
            const struct u32x2 x = load8_written(query + sizeof(struct level_query_head) + place),
                               y = load8_written(own + place);
            halves[i] = halves_of(bits_float(x.x) * factor, bits_float(x.y) * factor);
            sizes[i] = halves_of(bits_float(y.x) * own_factor, bits_float(y.y) * own_factor) & 0x7fff7fffu;
        }
        struct u32x4 center[2], deviation[2];
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const struct u32x2 bytes = load8_written(index[i] + args.spread_offset + column);
            center[i] = load16_written(index[i] + args.center_offset + column * 2);
            deviation[i] = {spread_halves(bytes.x), spread_halves(bytes.x >> 16), spread_halves(bytes.y),
                            spread_halves(bytes.y >> 16)};
        }
        neighbours_multiply(center[0], center[1], halves, common);
        neighbours_multiply(deviation[0], deviation[1], sizes, spread);
    }
}

KERNEL(chunks_score, cuda_chunks_score_args, 256, 4) {
    const uint32_t row = block_z(), kv_head = block_y(), g = lane_index() / 4, t = lane_index() % 4;
    dependents_start();
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    const uint64_t list_index = row * args.kv_head_count + kv_head;
    const struct look look = look_of(list_at(args.lists, args.limits, list_index), args.scores);
    const uint32_t first = look.first + (block_x() * 8 + warp_index()) * (LOOK_CHUNKS / 8);
    if (look.picks == 0 || first >= look.last) return;
    const struct step_item *item = at<struct step_item>(args.items) + at<struct step_row>(args.rows)[row].item;
    const float root = __builtin_sqrtf((float)args.dimension), log2e = 1.44269504f;
    const char *index[2];
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t place = index_places(item, kv_head)[smaller(first + g + 8 * i, look.last - 1)];
        index[i] = chunk_at(at<struct cuda_pools>(args.pools), place);
    }
    for (uint32_t h = 0; h < args.group; h += 8) {
        const uint32_t head = smaller(h + g, args.group - 1);
        const char *query = at<char>(args.queries) + (list_index * args.group + head) * args.query_bytes;
        const float *own = at<float>(args.q) + (uint64_t)row * args.q_stride +
                           (kv_head * args.group + head) * args.dimension;
        const float largest = 127 * ((const struct level_query_head *)(const void *)query)->step,
                    factor = largest > 0 ? 1 / largest : 0;
        float common[4] = {}, spread[4] = {};
        chunks_multiply(args, index, query, (const char *)(const void *)own, factor, factor / root, common, spread);
        UNROLL
        for (uint32_t c = 0; c < 2; c++) {
            const float unit = lane_get(largest, (2 * t + c) * 4) * args.scale * log2e;
            UNROLL
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t of = h + 2 * t + c, chunk = first + g + 8 * i;
                if (of < args.group && chunk < look.last)
                    at<float>(args.scores)[(list_index * args.group + of) * args.chunk_stride + chunk] =
                        unit * multiply_add(spread[2 * i + c], root, common[2 * i + c]);
            }
        }
    }
}

template <int PLANES> DEVICE void level_score_run(const struct cuda_look_score_args &all) {
    const struct cuda_level_score_args &args = all.score;
    const uint32_t row = block_z();
    dependents_start();
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    uint32_t kv_head = block_y(), h = 0; /* h: the first head of the group's */
    for (; kv_head >= args.kv_head_count; kv_head -= args.kv_head_count) h += LEVEL_SCORE_HEADS;
    const struct step_row step_row = at<struct step_row>(args.rows)[row];
    const struct step_item *item = at<struct step_item>(args.items) + step_row.item;
    const struct cuda_list list = list_at(args.lists, args.limits, row * args.kv_head_count + kv_head);
    if (list.picks == 0) return;
    const uint64_t list_index = row * args.kv_head_count + kv_head, head = list_index * args.group + h;
    const struct look look = look_of(list, all.looked);
    const uint32_t *looked = at<uint32_t>(all.looked) + list_index * all.chunk_stride;
    const uint32_t place = block_x() * 8 + warp_index();
    if (place * KV_CHUNK_TOKENS >= look.end) return;
    const uint32_t chunk = look.picks > 0 ? looked[place] : place;
    const char *index = chunk_at(at<struct cuda_pools>(args.pools), index_places(item, kv_head)[chunk]);
    chunk_score<PLANES>(args, index, at<char>(args.queries) + head * args.query_bytes, place,
                        smaller(args.group - h, LEVEL_SCORE_HEADS), look,
                        at<float>(args.scores) + head * args.unit_stride);
}

KERNEL(level_score_1, cuda_look_score_args, 256, 4) { level_score_run<1>(args); }
KERNEL(level_score_2, cuda_look_score_args, 256, 4) { level_score_run<2>(args); }
KERNEL(level_score_4, cuda_look_score_args, 256, 4) { level_score_run<4>(args); }
