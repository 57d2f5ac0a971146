/* units_choose, chunks_choose: the best units of a KV head as an ascending list.  One block of 1,024 threads: the
 * heads' logarithms are normalised and added to a score a unit, unless there is one already; a key's bits have the
 * order of the scores; the k-th largest is found eight bits at a time; units are taken in their order, so the same
 * scores always give the same list. */
#include "device/cuda/look.h"
#include "device/cuda/rows.h"

enum { CHOOSERS = 1024 };

/* log2 of the sum of 2^score over units [begin, end).  What is no number does not count (kernels/group): it makes its
 * own unit the first and spoils no other. */
DEVICE float units_total(const float *scores, uint32_t begin, uint32_t end, struct choose_shared &shared) {
    float m = SCORE_NONE, s = 0;
    for (uint32_t u = begin + thread_index(); u < end; u += CHOOSERS) {
        const float x = scores[u], most = larger(m, x);
        if (x != x) continue;
        s = multiply_add(s, exp2_near(m - most), exp2_near(x - most));
        m = most;
    }
    const float most = warp_largest(m);
    s = warp_sum(s * exp2_near(m - most));
    block_barrier(); /* the last head's are read */
    if (lane_index() == 0) shared.m[thread_index() / 32] = most, shared.s[thread_index() / 32] = s;
    block_barrier();
    float total = 0, largest = SCORE_NONE;
    UNROLL_BY(8)
    for (uint32_t i = 0; i < 32; i++) largest = larger(largest, shared.m[i]);
    UNROLL_BY(8)
    for (uint32_t i = 0; i < 32; i++)
        total = multiply_add(shared.s[i], exp2_near(shared.m[i] - largest), total);
    return largest + log2_near(total);
}

/* The picks-th largest key of [begin, end); `left` of its equals are taken. */
DEVICE uint32_t key_cut(const uint32_t *keys, uint32_t begin, uint32_t end, uint32_t picks, uint32_t *left,
                        struct choose_shared &shared) {
    const uint32_t t = thread_index();
    uint32_t prefix = 0, mask = 0;
    *left = picks;
    for (int32_t shift = 24; shift >= 0; shift -= 8) {
        if (t < 256) shared.counts[t] = 0;
        block_barrier();
        for (uint32_t u = begin + t; u < end; u += CHOOSERS)
            if ((keys[u] & mask) == prefix) atomic_add(&shared.counts[keys[u] >> shift & 255], 1);
        block_barrier();
        if (t < 32) { /* a lane has 8 digits, the first the greatest */
            uint32_t digit = 255 - 8 * t, own = 0, need = *left;
            UNROLL
            for (uint32_t i = 0; i < 8; i++) own += shared.counts[digit - i];
            uint32_t with_own = own;
            UNROLL
            for (uint32_t by = 1; by < 32; by <<= 1) {
                const uint32_t below = lane_below(with_own, by);
                if (t >= by) with_own += below;
            }
            if (need > with_own - own && need <= with_own) {
                need -= with_own - own;
                while (shared.counts[digit] < need) need -= shared.counts[digit--];
                shared.prefix = prefix | digit << shift;
                shared.left = need;
            }
        }
        block_barrier();
        prefix = shared.prefix;
        *left = shared.left;
        mask |= 255u << shift;
    }
    return prefix;
}

/* The sums of all threads before this one, of two numbers. */
DEVICE void threads_before(uint32_t *above, uint32_t *same, struct choose_shared &shared) {
    const uint32_t lane = lane_index(), warp = thread_index() / 32;
    uint32_t a = *above, s = *same;
    UNROLL
    for (uint32_t by = 1; by < 32; by <<= 1) {
        const uint32_t a_below = lane_below(a, by), s_below = lane_below(s, by);
        if (lane >= by) a += a_below, s += s_below;
    }
    if (lane == 31) shared.above[warp] = a, shared.same[warp] = s;
    block_barrier();
    a -= *above, s -= *same;
    for (uint32_t i = 0; i < warp; i++) a += shared.above[i], s += shared.same[i];
    *above = a, *same = s;
}

/* Units of [begin, end) with keys above the cut, and the first `left` at it, in their order. */
DEVICE void units_take(const uint32_t *keys, uint32_t begin, uint32_t end, uint32_t cut, uint32_t left,
                       uint32_t *list, struct choose_shared &shared) {
    const uint32_t each = (end - begin + CHOOSERS - 1) / CHOOSERS;
    const uint32_t first = smaller(begin + thread_index() * each, end), last = smaller(first + each, end);
    uint32_t above = 0, same = 0;
    for (uint32_t u = first; u < last; u++) {
        above += keys[u] > cut;
        same += keys[u] == cut;
    }
    threads_before(&above, &same, shared);
    for (uint32_t u = first; u < last; u++) {
        const bool is_same = keys[u] == cut;
        if (keys[u] > cut || (is_same && same < left)) list[above + smaller(same, left)] = u;
        above += keys[u] > cut;
        same += is_same;
    }
}

/* An integer in the order of the scores: zeros of both signs are equal, and what is no number is the greatest. */
DEVICE uint32_t score_rank(float score) {
    const uint32_t bits = float_bits(score + 0.0f);
    if (score != score) return 0xffffffffu;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* scores: of the first head. */
DEVICE void units_rank(const struct cuda_choose_args &args, const float *scores, uint32_t begin, uint32_t end,
                       uint32_t *keys, struct choose_shared &shared) {
    for (uint32_t u = begin + thread_index(); args.group == 0 && u < end; u += CHOOSERS)
        keys[u] = score_rank(scores[u]);
    for (uint32_t h = 0; h < args.group; h++) {
        const float *of_head = scores + (uint64_t)h * args.unit_stride;
        const float total = units_total(of_head, begin, end, shared);
        for (uint32_t u = begin + thread_index(); u < end; u += CHOOSERS) {
            const float share = exp2_near(of_head[u] - total);
            keys[u] = float_bits(h == 0 ? share : bits_float(keys[u]) + share);
        }
    }
}

KERNEL(chunks_choose, cuda_choose_args, 1024, 1) {
    struct choose_shared &shared = SHARED(struct choose_shared);
    const uint32_t row = block_y();
    dependents_start();
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    const uint64_t list_index = (uint64_t)row * args.kv_head_count + block_x();
    const struct cuda_list list = list_at(args.lists, args.limits, list_index);
    const struct look look = look_of(list, args.chosen);
    if (look.picks == 0) return;
    uint32_t *keys = at<uint32_t>(args.keys) + list_index * args.unit_stride, left;
    uint32_t *looked = at<uint32_t>(args.chosen) + list_index * args.unit_stride;
    const float *scores = at<float>(args.scores) + list_index * args.group * args.unit_stride;
    units_rank(args, scores, look.first, look.last, keys, shared);
    const uint32_t cut = key_cut(keys, look.first, look.last, look.picks, &left, shared), lead = look.begin != 0;
    units_take(keys, look.first, look.last, cut, left, looked + lead, shared);
    if (thread_index() != 0) return;
    if (lead) looked[0] = look.first - 1;
    if (look.end % ATTENTION_CHUNK != 0) looked[look.end / ATTENTION_CHUNK] = look.last;
}

DEVICE void units_choose_run(const struct cuda_choose_args &args, uint64_t looked_lists, uint32_t chunk_stride) {
    struct choose_shared &shared = SHARED(struct choose_shared);
    const uint32_t kv_head = block_x(), row = block_y(), t = thread_index();
    dependents_start();
    dependency_wait();
    if (row >= step_rows(args.step, args.row_count)) return;
    const uint64_t list_index = (uint64_t)row * args.kv_head_count + kv_head;
    const struct cuda_list list = list_at(args.lists, args.limits, list_index);
    const struct look look = look_of(list, looked_lists);
    const uint32_t *looked = at<uint32_t>(looked_lists) + list_index * chunk_stride;
    const uint32_t tokens = args.unit_tokens, picks = list.picks / tokens, heads = args.group > 0 ? args.group : 1,
                   begin = look.begin / tokens, stop = look.end / tokens;
    const float *scores = at<float>(args.scores) + list_index * heads * args.unit_stride;
    uint32_t *keys = at<uint32_t>(args.keys) + list_index * args.unit_stride;
    uint32_t *chosen = at<uint32_t>(args.chosen) + list_index * args.unit_stride;
    uint32_t *rows = at<uint32_t>(list.rows), *kept = at<uint32_t>(list.kept);
    if (list.kept_count > 0) {
        for (uint32_t i = t; i < list.count; i += CHOOSERS)
            rows[i] = i < list.kept_count ? kept[i] : list.window_begin + i - list.kept_count;
        return;
    }
    if (picks < stop - begin && picks > 0) {
        units_rank(args, scores, begin, stop, keys, shared);
        uint32_t left;
        const uint32_t cut = key_cut(keys, begin, stop, picks, &left, shared);
        units_take(keys, begin, stop, cut, left, chosen, shared);
    } else {
        for (uint32_t i = t; i < picks; i += CHOOSERS) chosen[i] = begin + i;
    }
    block_barrier();
    const uint32_t middle = list.begin + list.picks;
    for (uint32_t i = t; i < list.count; i += CHOOSERS) {
        const uint32_t of_unit = i - list.begin;
        uint32_t token = i < list.begin ? i
                         : i < middle   ? chosen[of_unit / tokens] * tokens + of_unit % tokens
                                        : list.end + i - middle;
        if (look.picks > 0 && i >= list.begin && i < middle)
            token = looked[token / ATTENTION_CHUNK] * ATTENTION_CHUNK + token % ATTENTION_CHUNK;
        rows[i] = token;
        if (list.kept != 0 && list.picks > 0 && i < middle) kept[i] = token;
    }
}

KERNEL(units_choose, cuda_look_choose_args, 1024, 1) {
    units_choose_run(args.choose, args.looked, args.chunk_stride);
}
