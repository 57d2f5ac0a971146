/* planted: a small product by every means of the dialect, with bugs to choose from (planted.h). */
#include "device/cuda/dialect_sm90a.h"
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

struct planted_stages {
    alignas(1024) char x[2][TILES_ROWS * 128], w[2][TILES_OUTPUTS * 128];
    uint64_t full[2], empty[2];
};

DEVICE void stage_fill(const struct planted_tiles_args &args, struct planted_stages &shared, uint32_t tile) {
    const uint32_t t = thread_index() - 128, stage = tile % 2, bug = args.bug;
    const shared_address full = shared_of(&shared.full[stage]);
    if (bug != TILES_OVERWRITE) mbarrier_wait(shared_of(&shared.empty[stage]), tile / 2 % 2 ^ 1);
    if (t == 0) {
        mbarrier_expect(full, bug == TILES_FEW_BYTES ? 8192 : bug == TILES_MANY_BYTES ? 32768 : 16384);
        tensor_copy_async(shared_of(shared.x[stage]), &args.x, full, tile * 64, 0);
    }
    for (uint32_t n = t; n < TILES_OUTPUTS * 8; n += 128) {
        const uint32_t row = n / 8, eighth = n % 8, place = bug == TILES_PLACE ? eighth : eighth ^ row % 8;
        store16_async(shared_of(shared.w[stage]) + row * 128 + place * 16,
                      load16_written(at<uint16_t>(args.w) + row * TILES_K + tile * 64 + eighth * 8));
    }
    if (bug != TILES_UNFENCED) async_fence();
    warp_barrier();
    if (t % 32 == 0 && !(bug == TILES_ARRIVALS && t == 32)) mbarrier_arrive(full);
    if (bug == TILES_TWICE && t == 32) mbarrier_arrive(full);
}

DEVICE void stage_multiply(const struct planted_tiles_args &args, struct planted_stages &shared, uint32_t tile,
                           float (&d)[64]) {
    const uint32_t stage = tile % 2, bug = args.bug, other = bug == TILES_RELEASE ? stage : stage ^ 1;
    if (bug != TILES_UNAWAITED) mbarrier_wait(shared_of(&shared.full[stage]), bug == TILES_PHASE ? 0 : tile / 2 % 2);
    if (bug != TILES_UNORDERED) wgmma_fence();
    for (uint32_t k = 0; k < 4; k++) {
        uint64_t b = wgmma_descriptor(shared_of(shared.x[stage]) + k * 32);
        if (bug == TILES_STRIDE) b ^= (uint64_t)96 << 32;
        if (bug == TILES_KIND) b ^= (uint64_t)1 << 62;
        wgmma(d, wgmma_descriptor(shared_of(shared.w[stage]) + k * 32), b,
              tile > 0 || k > 0 || bug == TILES_ADDS);
    }
    if (bug != TILES_UNCOMMITTED) wgmma_commit();
    wgmma_wait<1>();
    if ((tile > 0 || bug == TILES_RELEASE) && lane_index() == 0) mbarrier_arrive(shared_of(&shared.empty[other]));
}

DEVICE void tiles_store(const struct planted_tiles_args &args, const float (&d)[64]) {
    const uint32_t t = thread_index(), output = t / 32 * 16 + t % 32 / 4, row = t % 4 * 2;
    for (uint32_t i = 0; i < 64; i++)
        at<float>(args.d)[(i / 4 * 8 + row + i % 2) * TILES_OUTPUTS + output + i % 4 / 2 * 8] = d[i];
}

KERNEL(planted_tiles, planted_tiles_args, TILES_THREADS, 1) {
    struct planted_stages &shared = SHARED(struct planted_stages);
    const uint32_t t = thread_index();
    if (t == 128) {
        for (uint32_t i = 0; i < 2; i++) {
            mbarrier_init(shared_of(&shared.full[i]), 5);
            mbarrier_init(shared_of(&shared.empty[i]), 4);
        }
        if (args.bug != TILES_UNPUBLISHED) mbarriers_publish();
    }
    if (args.bug != TILES_UNMET) block_barrier();
    if (t >= 128) {
        if (args.bug != TILES_REGISTERS) registers_lower<104>();
        for (uint32_t tile = 0; tile < TILES_K / 64; tile++) stage_fill(args, shared, tile);
        return;
    }
    float d[64];
    for (float &sum : d) sum = 1000; /* the first product does not add */
    registers_lower<128>(); /* a launch of 256 threads gives 256, the most */
    if (args.bug == TILES_REGISTERS && t >= 64) registers_raise<240>();
    if (args.bug != TILES_REGISTERS) registers_raise<240>();
    for (uint32_t tile = 0; tile < TILES_K / 64; tile++) stage_multiply(args, shared, tile, d);
    if (args.bug != TILES_RESULTS) wgmma_wait<0>();
    wgmma_results(d);
    tiles_store(args, d);
}

KERNEL(planted_turned, planted_tiles_args, TURNED_THREADS, 1) {
    char *tile = SHARED_ARRAY(char);
    const uint32_t t = thread_index(), bug = args.bug, row = t / 32 * 16 + t % 32 / 4 + (bug == TURNED_ROWS ? 1 : 0);
    const shared_address panels = shared_of(tile), barrier = panels + 64 * 256;
    if (t == 0) {
        mbarrier_init(barrier, TURNED_THREADS);
        mbarriers_publish();
    }
    float d[64] = {};
    uint32_t a[4][4];
    for (uint32_t first = 0; first < TILES_K; first += 64) {
        block_barrier(); /* nobody reads the last tile any more */
        for (uint32_t n = t; n < 64 * 16; n += TURNED_THREADS) {
            const uint32_t k = n / 16, eighth = n % 16;
            copy_async16(panels + eighth / 8 * 64 * 128 + k * 128 + ((eighth % 8 ^ k % 8) << 4),
                         at<uint16_t>(args.x_turned) + (first + k) * TILES_ROWS + eighth * 8);
        }
        copy_async_commit();
        for (uint32_t i = 0; i < 16; i++) /* rows 8 apart, columns 8 apart, two at a time */
            a[i / 4][i % 4] = at<uint32_t>(args.w)[((row + i % 2 * 8) % 64 * TILES_K + first + i / 2 * 8) / 2 + t % 4];
        if (bug != TURNED_COPY) copy_async_wait<0>();
        if (bug != TURNED_UNFENCED) async_fence();
        mbarrier_arrive(barrier);
        mbarrier_wait(barrier, first / 64 % 2);
        wgmma_fence();
        for (uint32_t step = 0; step < 4; step++) {
            const shared_address from = panels + step * 16 * 128;
            const uint64_t turned = wgmma_descriptor_turned(from, bug == TURNED_PANEL ? 4096 : 64 * 128);
            wgmma_turned(d, a[step], bug == TURNED_PLAIN ? wgmma_descriptor(from) : turned);
        }
        wgmma_commit();
        if (bug == TURNED_FRAGMENT) a[3][0] = 0;
        wgmma_wait<0>();
    }
    copy_async_wait<0>();
    tiles_store(args, d);
}
