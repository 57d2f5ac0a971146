/* experts: which experts a row has, where their inputs come together, and the sum of what they give. */
#include "device/cuda/doubles.h"
#include "device/cuda/rows.h"

/* ---- route: a warp a row.  In double, as the cpu device: scores that differ pick the same experts on both. */

enum { ROUTER_SOFTMAX, ROUTER_SIGMOID, ROUTER_SOFTMAX_OF_CHOSEN }; /* enum router */

/* The largest of `values`, the first among equals, which is taken: NaN from then on.  NaN counts as less than all.
 * Lane l alone reads and writes values l, l + 32, ... */
DEVICE uint32_t take_best(double *values, uint32_t count) {
    const uint32_t none = 0xffffffffu;
    uint32_t best = none;
    double value = 0;
    for (uint32_t i = lane_index(); i < count; i += 32) {
        const double x = values[i];
        if (x == x && (best == none || x > value)) best = i, value = x;
    }
    for (uint32_t by = 16; by > 0; by >>= 1) {
        const uint32_t other = lane_xor(best, by);
        const double x = lane_xor(value, by);
        const bool takes = other != none && (best == none || x > value || (x == value && other < best));
        best = takes ? other : best;
        value = takes ? x : value;
    }
    if (best == none) best = count - 1;
    if (best % 32 == lane_index()) values[best] = __builtin_nan("");
    return best;
}

/* Leaves only experts of the best groups to choose from: a group is worth its two best. */
DEVICE void keep_groups(const struct cuda_route_args &args, double *choice, double *groups) {
    const uint32_t size = args.expert_count / args.group_count;
    const double least = -__builtin_inf();
    warp_barrier(); /* all of choice is there */
    for (uint32_t g = lane_index(); g < args.group_count; g += 32) {
        double first = least, second = least;
        for (uint32_t i = g * size; i < (g + 1) * size; i++) {
            const double x = choice[i];
            if (x > first)
                second = first, first = x;
            else if (x > second)
                second = x;
        }
        groups[g] = first + second;
    }
    uint64_t kept = 0;
    for (uint32_t n = 0; n < args.groups_used; n++) kept |= 1ull << take_best(groups, args.group_count);
    warp_barrier(); /* and has been read */
    for (uint32_t i = lane_index(); i < args.expert_count; i += 32)
        if ((kept >> i / size & 1) == 0) choice[i] = least;
}

/* What a softmax over a row's scores needs. */
struct softmax {
    double largest, sum;
};
DEVICE struct softmax softmax_of(const float *scores, uint32_t count) {
    struct softmax of = {-__builtin_inf(), 0};
    for (uint32_t i = lane_index(); i < count; i += 32) {
        const double x = (double)scores[i];
        of.largest = x > of.largest ? x : of.largest;
    }
    for (uint32_t by = 16; by > 0; by >>= 1) {
        const double x = lane_xor(of.largest, by);
        of.largest = x > of.largest ? x : of.largest;
    }
    for (uint32_t i = lane_index(); i < count; i += 32) of.sum += exp_double((double)scores[i] - of.largest);
    for (uint32_t by = 16; by > 0; by >>= 1) of.sum += lane_xor(of.sum, by);
    return of;
}

DEVICE double worth_of(uint32_t router, double score, struct softmax of) {
    if (router == ROUTER_SOFTMAX) return exp_double(score - of.largest) / of.sum;
    return router == ROUTER_SIGMOID ? 1 / (1 + exp_double(-score)) : score;
}

KERNEL(route, cuda_route_args, 32, 16) {
    struct route_shared *shared = SHARED_ARRAY(struct route_shared);
    double *choice = (double *)(void *)(shared + 1);
    dependents_start();
    dependency_wait();
    const float *scores = at<float>(args.scores) + (uint64_t)block_x() * args.expert_count;
    const float *bias = at<float>(args.bias);
    uint32_t *picks = at<uint32_t>(args.picks) + (uint64_t)block_x() * args.used;
    float *weights = at<float>(args.weights) + (uint64_t)block_x() * args.used;
    struct softmax all = {0, 0};
    if (args.router == ROUTER_SOFTMAX) all = softmax_of(scores, args.expert_count);
    for (uint32_t i = lane_index(); i < args.expert_count; i += 32)
        choice[i] = worth_of(args.router, (double)scores[i], all) + (args.bias != 0 ? (double)bias[i] : 0);
    if (args.group_count > 1) keep_groups(args, choice, shared->groups);
    double largest = -__builtin_inf(), sum = 0;
    for (uint32_t j = 0; j < args.used; j++) {
        const uint32_t best = take_best(choice, args.expert_count);
        const double score = (double)scores[best];
        largest = score > largest ? score : largest;
        if (lane_index() == 0) shared->picks[j] = best;
    }
    warp_barrier();
    for (uint32_t j = lane_index(); j < args.used; j += 32) {
        const double score = (double)scores[shared->picks[j]];
        shared->weights[j] = args.router == ROUTER_SOFTMAX_OF_CHOSEN ? exp_double(score - largest)
                                                                     : worth_of(args.router, score, all);
    }
    warp_barrier();
    for (uint32_t j = 0; j < args.used; j++) sum += shared->weights[j];
    double divisor = args.router == ROUTER_SOFTMAX_OF_CHOSEN ? sum : 1;
    if (args.normalises && args.router != ROUTER_SOFTMAX_OF_CHOSEN) /* its weights sum up to 1 */
        divisor = sum > 0x1p-14 ? sum : 0x1p-14;
    for (uint32_t j = lane_index(); j < args.used; j += 32) {
        picks[j] = shared->picks[j];
        const double own = args.scales != 0 ? (double)at<float>(args.scales)[shared->picks[j]] : 1;
        weights[j] = (float)(shared->weights[j] / divisor * (double)args.scale * own);
    }
}

/* ---- the picks by expert: a block has one, counts all and keeps the order of its own */

/* Over 256 threads; two barriers, so that sums may be used again behind it. */
DEVICE uint32_t block_total(uint32_t value, uint32_t sums[8]) {
    UNROLL
    for (uint32_t by = 16; by > 0; by >>= 1) value += lane_xor(value, by);
    if (lane_index() == 0) sums[thread_index() / 32] = value;
    block_barrier();
    uint32_t total = 0;
    UNROLL
    for (uint32_t i = 0; i < 8; i++) total += sums[i];
    block_barrier();
    return total;
}

DEVICE uint32_t tiles_of(uint32_t count) { return (count + MATMUL_ROWS - 1) / MATMUL_ROWS; }

KERNEL(experts_order, cuda_experts_order_args, 256, 4) {
    uint32_t *sums = SHARED_ARRAY(uint32_t), *counts = sums + 32; /* of each expert */
    const uint32_t expert = block_x(), t = thread_index();
    const uint32_t *picks = at<uint32_t>(args.picks);
    struct expert_tile *tiles = at<struct expert_tile>(args.tiles);
    dependents_start();
    dependency_wait();
    for (uint32_t i = t; i < args.expert_count; i += 256) counts[i] = 0;
    block_barrier();
    for (uint32_t i = t; i < args.pick_count; i += 256) atomic_add(&counts[picks[i]], 1);
    block_barrier();
    uint32_t before = 0, tiles_before = 0;
    for (uint32_t i = t; i < expert; i += 256) before += counts[i], tiles_before += tiles_of(counts[i]);
    const uint32_t first = block_total(before, sums), tile_first = block_total(tiles_before, sums);
    const uint32_t end = first + counts[expert], tile_end = tile_first + tiles_of(counts[expert]);
    for (uint32_t i = tile_first + t; i < tile_end; i += 256) {
        const uint32_t from = first + (i - tile_first) * MATMUL_ROWS;
        tiles[i] = {expert, from, smaller(from + MATMUL_ROWS, end), 0};
    }
    for (uint32_t i = tile_end + t; expert + 1 == args.expert_count && i < args.tile_count; i += 256)
        tiles[i] = {expert, 0, 0, 0};
    uint32_t place = first;
    for (uint32_t from = 0; from < args.pick_count && place < end; from += 256) {
        const bool is_mine = from + t < args.pick_count && picks[from + t] == expert;
        const uint32_t mine = warp_ballot(is_mine), warp = t / 32;
        uint32_t *found = sums + from / 256 % 2 * 8; /* in turn: who is slow still reads the last ones */
        if (lane_index() == 0) found[warp] = bits_count(mine);
        block_barrier();
        uint32_t below = 0, all = 0;
        UNROLL
        for (uint32_t i = 0; i < 8; i++) below += i < warp ? found[i] : 0, all += found[i];
        if (is_mine)
            at<uint32_t>(args.places)[place + below + bits_count(mine & ((1u << lane_index()) - 1))] = from + t;
        place += all;
    }
}

/* ---- sums */

KERNEL(experts_mix, cuda_experts_mix_args, 256, 4) {
    dependents_start();
    dependency_wait();
    const float *products = at<float>(args.products) + (uint64_t)block_x() * args.used * args.count;
    const float *mix = at<float>(args.mix) + (uint64_t)block_x() * args.used;
    float *y = at<float>(args.y) + (uint64_t)block_x() * args.y_stride;
    const uint32_t end = smaller(block_y() * 1024 + 1024, args.count);
    for (uint32_t i = block_y() * 1024 + thread_index(); i < end; i += 256) {
        float sum = 0;
        for (uint32_t j = 0; j < args.used; j++) sum += mix[j] * products[(uint64_t)j * args.count + i];
        y[i] = args.replaces ? sum : y[i] + sum;
    }
}
