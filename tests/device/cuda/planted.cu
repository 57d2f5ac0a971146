/* planted: a small product by every means of the dialect, with bugs to choose from (planted.h). */
#include "device/cuda/dialect.h"
#include "device/cuda/planted.h"

struct planted_shared {
    alignas(16) uint16_t a[2][16 * 16], b[2][16 * 16];
    float part[2][16];
};

DEVICE void tile_copy(const struct planted_args &args, struct planted_shared &shared, uint32_t tile) {
    const uint32_t t = thread_index(), row = t % 32 / 2, half = t % 2;
    const uint16_t *from = at<uint16_t>(t < 32 ? args.a : args.b) + row * PLANTED_K + tile * 16 + half * 8;
    uint16_t *tiles = t < 32 ? shared.a[tile % 2] : shared.b[tile % 2], *to = tiles + row * 16 + half * 8;
    copy_async16(shared_of(to), from);
    copy_async_commit();
}

KERNEL(planted_product, planted_args, 64, 1) {
    struct planted_shared &shared = SHARED(struct planted_shared);
    const uint32_t t = thread_index(), lane = lane_index(), warp = warp_index(), bug = args.bug;
    float early = 0, d[4] = {0, 0, 0, 0};
    if (bug == PLANTED_DEPENDENCY) early = at<float>(args.input)[0];
    dependency_wait();
    const float input = args.input == 0 ? 0 : bug == PLANTED_DEPENDENCY ? early : at<float>(args.input)[0];
    if (bug == PLANTED_DEADLOCK && t == 5) return;
    tile_copy(args, shared, 0);
    for (uint32_t tile = 0; tile < PLANTED_K / 16; tile++) {
        if (bug != PLANTED_COPY_WAIT) copy_async_wait<0>();
        if (bug != PLANTED_BARRIER) block_barrier();
        uint32_t a[4], b[4];
        const uint32_t swap = bug == PLANTED_FRAGMENT ? 8 : 0;
        matrix_load4(a, shared_of(shared.a[tile % 2] + (lane % 16 ^ swap) * 16 + lane / 16 * 8));
        matrix_load4(b, shared_of(shared.b[tile % 2] + (lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8));
        matrix_multiply(d, a, b[warp * 2], b[warp * 2 + 1]);
        if (bug != PLANTED_REUSE) block_barrier();
        /* Both buffers are free behind the barrier; without it this one is the next to be read. */
        if (tile + 1 < PLANTED_K / 16) {
            if (bug == PLANTED_REUSE) shared.a[(tile + 1) % 2][t] = 0;
            tile_copy(args, shared, tile + 1);
        }
    }
    if (bug == PLANTED_DIVERGE && lane == 3) d[0] += lane_xor(d[1], 1);
    const uint32_t g = lane / 4, column = warp * 8 + lane % 4 * 2;
    float *to = at<float>(args.d);
    to[g * 16 + column] = d[0], to[g * 16 + column + 1] = d[1];
    to[(g + 8) * 16 + column] = d[2], to[(g + 8) * 16 + column + 1] = d[3];
    for (uint32_t i = 0; i < 2; i++) {
        float sum = d[i * 2] + d[i * 2 + 1];
        sum += lane_xor(sum, bug == PLANTED_LANE ? 4 : 1);
        sum += lane_xor(sum, 2);
        if (lane % 4 == 0) shared.part[warp][g + i * 8] = sum;
    }
    block_barrier();
    if (t < 16) at<float>(args.sums)[t] = shared.part[0][t] + shared.part[1][t] + input;
    if (bug == PLANTED_COPY_END) tile_copy(args, shared, 0);
    if (bug != PLANTED_COPY_END) copy_async_wait<0>();
}
