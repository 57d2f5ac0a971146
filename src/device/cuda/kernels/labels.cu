/* labels: whether the queries of a group are like those that its list was chosen by (kernels/label), in double as the
 * definition has it; only the order of sums differs.  A block has a KV head of a row, a warp a query head at a time. */
#include "device/cuda/kernels_turns.h"
#include "device/cuda/rows.h"

enum { COMPARERS = 128 };

/* Over the lanes. */
DEVICE double lanes_sum(double value) {
    UNROLL
    for (uint32_t by = 16; by > 0; by >>= 1) {
        const uint64_t bits = __builtin_bit_cast(uint64_t, value);
        const uint64_t low = lane_xor((uint32_t)bits, by), high = lane_xor((uint32_t)(bits >> 32), by);
        value += __builtin_bit_cast(double, high << 32 | low);
    }
    return value;
}

/* No number where one of them is zero or not finite.  Exactly 1 for the same. */
DEVICE double cosine_of(const float *a, const float *b, uint32_t dimension) {
    double dot = 0, a_square = 0, b_square = 0;
    for (uint32_t i = lane_index(); i < dimension; i += 32) {
        dot += (double)a[i] * (double)b[i];
        a_square += (double)a[i] * (double)a[i];
        b_square += (double)b[i] * (double)b[i];
    }
    dot = lanes_sum(dot);
    a_square = lanes_sum(a_square);
    b_square = lanes_sum(b_square);
    const double cosine = dot / __builtin_sqrt(a_square * b_square);
    if (!(cosine - cosine == 0)) return __builtin_nan("");
    return cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
}

/* Eq. 10 of [clo], and what kernels/label says where it has no meaning. */
DEVICE double similarity_of(const struct cuda_labels_args &args, const double *cosines,
                            const float *importance) {
    double lowest = cosines[0], weights = 0, harmonic = 0;
    for (uint32_t h = 0; h < args.group; h++) {
        if (cosines[h] != cosines[h]) return cosines[h];
        if (cosines[h] < lowest) lowest = cosines[h];
        weights += (double)importance[h];
    }
    if (args.by_minimum || !(lowest > 0) || !(weights > 0)) return lowest;
    for (uint32_t h = 0; h < args.group; h++) harmonic += (double)importance[h] / cosines[h];
    return weights / harmonic;
}

/* The list of a step before, with the row's window. */
DEVICE void list_take(const struct cuda_labels_args &args, struct step_list &list, const struct step_kept &kept,
                      uint64_t position) {
    list.kept_count = kept.count;
    list.window_begin = args.age_max > 0 ? kept.candidate_end : list.candidate_end;
    list.age = (uint32_t)(position - kept.position);
    list.count = kept.count + (uint32_t)position + 1 - list.window_begin;
    list.picks = 0;
}

/* Of one that is only asked for. */
DEVICE void list_choose_nothing(struct step_list &list) {
    list.count -= list.picks;
    list.picks = 0;
}

/* A KV head of a row has counts of its own, and layers follow each other: nobody else adds to them meanwhile. */
DEVICE void hit_count(struct step_reuse &counts, const struct step_list &before, const struct step_list &list) {
    const uint32_t candidates = before.candidate_end - before.candidate_begin;
    counts.hits++;
    counts.rows += list.count;
    counts.age_sum += list.age;
    if (list.age > counts.age_max) counts.age_max = list.age;
    counts.chosen_rows += before.count;
    counts.scored += before.picks < candidates ? candidates : 0;
}

/* told: 0, or where limits come from, and are left as well. */
DEVICE void labels_run(const struct cuda_labels_args &args, uint64_t told) {
    struct labels_shared &shared = SHARED(struct labels_shared);
    dependents_start();
    dependency_wait();
    const uint32_t kv_head = block_x(), t = thread_index(), unit = block_y() * args.kv_head_count + kv_head,
                   size = args.group * args.dimension;
    const struct cuda_label item = at<struct cuda_label>(args.items)[block_y()];
    const uint64_t position = args.rows != 0 ? at<struct step_row>(args.rows)[item.row].position : item.position;
    struct step_list list = at<struct step_list>(told != 0 ? told : args.limits)[unit];
    struct step_kept *state = at<struct step_kept>(item.kept) + kv_head, kept = *state;
    const struct step_list before = list;
    const bool compares = list.use == LABEL_COMPARED && kept.count > 0 &&
                          (args.age_max == 0 || position - kept.position <= args.age_max);
    const float *q = at<float>(item.q) + (uint64_t)kv_head * size;
    float *label = at<float>(item.label) + (uint64_t)kv_head * size;
    if (t == 0) shared.is_alike = 0;
    for (uint32_t h = t / 32; compares && h < args.group; h += COMPARERS / 32) {
        const double cosine = cosine_of(q + h * args.dimension, label + h * args.dimension, args.dimension);
        if (lane_index() == 0) shared.cosines[h] = cosine;
    }
    block_barrier(); /* and all threads have read what one of them writes below */
    if (t == 0 && compares)
        shared.is_alike =
            similarity_of(args, shared.cosines, at<float>(args.importance) + kv_head * args.group) >=
            at<double>(args.thresholds)[kv_head];
    block_barrier();
    const bool takes = shared.is_alike != 0, replaces = !takes && list.use != LABEL_STAYS && args.only_says == 0;
    for (uint32_t i = t; replaces && i < size; i += COMPARERS) label[i] = q[i];
    if (t != 0) return;
    if (takes && args.only_says != 0) list_choose_nothing(list);
    if (takes && args.only_says == 0) list_take(args, list, kept, position);
    if (takes || told != 0) at<struct step_list>(args.limits)[unit] = list;
    if (takes && told != 0) at<struct step_list>(told)[unit] = list;
    if (replaces) {
        kept.position = position;
        kept.count = list.count - ((uint32_t)position + 1 - list.candidate_end);
        kept.candidate_end = list.candidate_end;
        *state = kept;
    }
    if (args.counts == 0 || args.only_says != 0) return;
    struct step_reuse &counts = at<struct step_reuse>(args.counts)[unit];
    if (takes) hit_count(counts, before, list);
    if (replaces) counts.misses++;
}

KERNEL(labels_compare, cuda_labels_args, 128, 4) { labels_run(args, 0); }
KERNEL(labels_tell, cuda_told_args, 128, 4) { labels_run(args.labels, args.told); }
