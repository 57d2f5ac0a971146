/* The definition of attention: sums in double, one row after the other. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/attention/attention_internal.h"
#include "kernels/codec/q4_parts.h"
#include "tensor/half.h"

static void row_store(enum kv_type type, uint8_t *row, uint16_t *scales, size_t dimension, const float *x) {
    if (type == KV_F16) {
        for (size_t i = 0; i < dimension; i++) ((uint16_t *)(void *)row)[i] = float_to_half(x[i]);
        return;
    }
    for (size_t group = 0; group < dimension / KV_SCALE_GROUP; group++, x += KV_SCALE_GROUP) {
        int8_t *codes = (int8_t *)row + group * KV_SCALE_GROUP;
        float largest = 0, poison = 0;
        for (size_t i = 0; i < KV_SCALE_GROUP; i++) {
            if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
            poison += x[i] * 0.0f; /* NaN where an element is NaN or infinite, for which there is no code */
        }
        scales[group] = float_to_half(largest / 127.0f + poison);
        /* Codes are computed by the scale as stored, so its rounding adds no error. */
        float scale = half_to_float(scales[group]), inverse = scale > 0 ? 1.0f / scale : 0.0f;
        for (size_t i = 0; i < KV_SCALE_GROUP; i++) {
            float code = nearbyintf(x[i] * inverse);
            codes[i] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code == code ? code : 0);
        }
    }
}

static void row_load(enum kv_type type, const uint8_t *row, const uint16_t *scales, size_t dimension, float *x) {
    if (type == KV_F16)
        for (size_t i = 0; i < dimension; i++) x[i] = half_to_float(((const uint16_t *)(const void *)row)[i]);
    else
        for (size_t i = 0; i < dimension; i++)
            x[i] = half_to_float(scales[i / KV_SCALE_GROUP]) * (float)((const int8_t *)row)[i];
}

void attention_store_ref(const struct kv_layout *layout, void *chunk, size_t token, const float *k, const float *v) {
    row_store(layout->k_type, (uint8_t *)kv_k_row(layout, chunk, token), (uint16_t *)kv_k_scales(layout, chunk, token),
              layout->k_dimension, k);
    row_store(layout->v_type, (uint8_t *)kv_v_row(layout, chunk, token), (uint16_t *)kv_v_scales(layout, chunk, token),
              layout->v_dimension, v);
}

static void load(const struct kv_layout *layout, const void *chunk, size_t token, float *k, float *v) {
    row_load(layout->k_type, kv_k_row(layout, chunk, token), kv_k_scales(layout, chunk, token), layout->k_dimension, k);
    row_load(layout->v_type, kv_v_row(layout, chunk, token), kv_v_scales(layout, chunk, token), layout->v_dimension, v);
}

static void q4_values(const uint16_t *low, const uint16_t *high, size_t span, const uint8_t *codes, size_t shift,
                      size_t dimension, float *x) {
    for (size_t d = 0; d < dimension; d++) {
        double smallest = (double)half_to_float(low[d / span]), largest = (double)half_to_float(high[d / span]);
        x[d] = (float)(smallest + (codes[d] >> shift & 15) * (largest - smallest) / 15);
    }
}

static void q4_load(const struct kv_layout *layout, const void *chunk, size_t token, float *k, float *v) {
    const struct q4_parts parts = q4_parts_of(layout);
    const uint8_t *q4 = chunk;
    const uint16_t *ranges = chunk;
    const uint16_t *v_low = ranges + parts.v_low / sizeof *ranges + token * parts.groups;
    const uint16_t *v_high = ranges + parts.v_high / sizeof *ranges + token * parts.groups;
    size_t line = token / 2, shift = token % 2 * 4;
    q4_values(ranges, ranges + parts.k_high / sizeof *ranges, 1, q4 + parts.k_codes + line * parts.k_dimension, shift,
              parts.k_dimension, k);
    q4_values(v_low, v_high, Q4_V_GROUP, q4 + parts.v_codes + line * parts.v_dimension, shift, parts.v_dimension, v);
}

/* exp(x - maximum); before the first row the maximum is -INFINITY. */
static double weight(double x, double maximum) { return x == -INFINITY ? 0 : exp(x - maximum); }

struct row_sum {
    double m, s, *o; /* running maximum, sum of exponentials, [v_dimension] */
    float *k, *v;    /* one row each */
};

/* Which rows: `rows`[begin, end), or where it is NULL the rows begin .. end - 1 themselves. */
struct row_set {
    const uint32_t *rows;
    uint64_t begin, end;
    bool q4; /* of chunks in 4 bits */
};

static void attend(const struct kv_layout *layout, const void *const *chunks, struct row_set set, const float *q,
                   float scale, float softcap, struct row_sum *sum, float *scores) {
    sum->m = -INFINITY;
    sum->s = 0;
    for (size_t d = 0; d < layout->v_dimension; d++) sum->o[d] = 0;
    for (uint64_t i = set.begin; i < set.end; i++) {
        uint64_t row = set.rows != NULL ? set.rows[i] : i;
        (set.q4 ? q4_load : load)(layout, chunks[row / KV_CHUNK_TOKENS], row % KV_CHUNK_TOKENS, sum->k, sum->v);
        double score = 0;
        for (size_t d = 0; d < layout->k_dimension; d++) score += (double)q[d] * (double)sum->k[d];
        score *= (double)scale;
        if (softcap != 0) score = (double)softcap * tanh(score / (double)softcap);
        if (scores != NULL) scores[i - set.begin] = (float)score;
        if (score > sum->m) {
            double shrink = weight(sum->m, score);
            sum->s *= shrink;
            for (size_t d = 0; d < layout->v_dimension; d++) sum->o[d] *= shrink;
            sum->m = score;
        }
        double p = weight(score, sum->m);
        sum->s += p;
        for (size_t d = 0; d < layout->v_dimension; d++) sum->o[d] += p * (double)sum->v[d];
    }
}

static size_t scratch_bytes(size_t group, const struct kv_layout *layout) {
    (void)group;
    return layout->v_dimension * (sizeof(double) + 3 * sizeof(float)) + layout->k_dimension * sizeof(float);
}

static struct row_sum sum_in(void *scratch, const struct kv_layout *layout) {
    struct row_sum sum = {.o = scratch};
    sum.k = (float *)(sum.o + layout->v_dimension);
    sum.v = sum.k + layout->k_dimension;
    return sum;
}

/* The partial of one head, its sums relative to the maximum as it is written. */
static void sum_store(const struct row_sum *sum, size_t dimension, float *m, float *s, float *o) {
    double shift = weight(sum->m, (double)(float)sum->m);
    *m = (float)sum->m;
    *s = (float)(sum->s * shift);
    for (size_t d = 0; d < dimension; d++) o[d] = (float)(sum->o[d] * shift);
}

static void decode(const struct attention_decode_args *args) {
    struct row_sum sum = sum_in(args->scratch, args->layout);
    for (size_t head = 0; head < args->group; head++) {
        attend(args->layout, args->chunks, (struct row_set){NULL, args->row_begin, args->row_end, false},
               args->q + head * args->q_stride, args->scale, args->softcap, &sum, NULL);
        sum_store(&sum, args->layout->v_dimension, args->m + head, args->s + head, args->o + head * args->o_stride);
    }
}

static void gather_rows(const struct attention_gather_args *args, bool q4) {
    struct row_sum sum = sum_in(args->scratch, args->layout);
    for (size_t head = 0; head < args->group; head++) {
        attend(args->layout, args->chunks, (struct row_set){args->rows, 0, args->row_count, q4},
               args->q + head * args->q_stride, args->scale, args->softcap, &sum,
               args->scores != NULL ? args->scores + head * args->scores_stride : NULL);
        sum_store(&sum, args->layout->v_dimension, args->m + head, args->s + head, args->o + head * args->o_stride);
    }
}

static void gather(const struct attention_gather_args *args) { gather_rows(args, false); }
static void gather_q4(const struct attention_gather_args *args) { gather_rows(args, true); }

static void merge(size_t heads, size_t dimension, float *target_m, float *target_s, float *target_o,
                  size_t target_stride, const float *source_m, const float *source_s, const float *source_o,
                  size_t source_stride) {
    for (size_t head = 0; head < heads; head++) {
        float *target = target_o + head * target_stride;
        const float *source = source_o + head * source_stride;
        float m = source_m[head] > target_m[head] ? source_m[head] : target_m[head];
        double keep = weight((double)target_m[head], (double)m);
        double take = weight((double)source_m[head], (double)m);
        target_m[head] = m;
        target_s[head] = (float)(keep * (double)target_s[head] + take * (double)source_s[head]);
        for (size_t d = 0; d < dimension; d++) target[d] = (float)(keep * (double)target[d] + take * (double)source[d]);
    }
}

static void finish(size_t heads, size_t dimension, const float *s, const float *o, size_t o_stride, float *out,
                   size_t out_stride) {
    for (size_t head = 0; head < heads; head++)
        for (size_t d = 0; d < dimension; d++)
            out[head * out_stride + d] = s[head] == 0 ? 0.0f : o[head * o_stride + d] / s[head];
}

/* One query of one head over its ranges. */
static void prefill_head(const struct attention_prefill_args *args, size_t query, size_t head, struct row_sum *sum,
                         float *merged, float *part) {
    const struct kv_layout *layout = args->layout;
    const size_t dimension = layout->v_dimension;
    const uint64_t position = args->position_first + query;
    const float *q = args->q + query * args->q_stride + head * layout->k_dimension, one = 1;
    float *out = args->out + query * args->out_stride + head * dimension;
    const uint64_t begin = prefill_row_begin(position, args->window), end = position + 1;
    const uint64_t rows = attention_range_rows(end - begin);
    float m = -INFINITY, s = 0;
    for (uint64_t from = begin; from < end;) {
        uint64_t to = from / rows * rows + rows < end ? from / rows * rows + rows : end;
        float part_m, part_s;
        attend(layout, args->chunks, (struct row_set){NULL, from, to, false}, q, args->scale, args->softcap, sum, NULL);
        if (from == begin) {
            sum_store(sum, dimension, &m, &s, merged);
        } else {
            sum_store(sum, dimension, &part_m, &part_s, part);
            merge(1, dimension, &m, &s, merged, dimension, &part_m, &part_s, part, dimension);
        }
        from = to;
    }
    if (args->sinks != NULL) {
        memset(part, 0, dimension * sizeof *part);
        merge(1, dimension, &m, &s, merged, dimension, &args->sinks[head], &one, part, dimension);
    }
    finish(1, dimension, &s, merged, dimension, out, dimension);
}

static void prefill(const struct attention_prefill_args *args) {
    const struct kv_layout *layout = args->layout;
    struct row_sum sum = sum_in(args->scratch, layout);
    float *merged = sum.v + layout->v_dimension, *part = merged + layout->v_dimension;
    for (size_t i = 0; i < args->query_count; i++)
        for (size_t head = 0; head < args->group; head++) prefill_head(args, i, head, &sum, merged, part);
}

void attention_ref_install(struct attention_kernels *kernels) {
    *kernels = (struct attention_kernels){
        .decode = decode,
        .decode_scratch_bytes = scratch_bytes,
        .gather = gather,
        .gather_scratch_bytes = scratch_bytes,
        .gather_q4 = gather_q4,
        .gather_q4_scratch_bytes = scratch_bytes,
        .merge = merge,
        .finish = finish,
        .prefill = prefill,
        .prefill_scratch_bytes = scratch_bytes,
        .prefill_block_rows = 1,
        .store = attention_store_ref,
        .load = load,
    };
}
