/* kv_rig: sequences in a KV cache as the device sees it: chunks in slots drawn at random from pools of several
 * buffers, found through page tables; and the same rows for the cpu's definition. */
#pragma once

#include "rig.h"

#include "kernels/attention/attention.h"

enum { KV_RIG_ITEMS = 4, KV_RIG_LAYERS = 2, KV_RIG_LAYER = 1, KV_RIG_SLOTS = 8 /* of a buffer */ };

struct kv_rig {
    struct kv_layout layout;
    struct kv_shape shape;
    struct attention_kernels attention; /* the reference */
    size_t kv_heads, item_count, chunk_stride;
    uint64_t lengths[KV_RIG_ITEMS]; /* rows that exist, of each item */
    struct cuda_pools pools;
    struct guarded buffers[2][KV_BUFFERS_MAX];
    size_t buffer_count[2];
    uint32_t *pages[KV_RIG_ITEMS]; /* [layer][kv head][chunk_stride] */
    void **
        chunks[KV_RIG_ITEMS]; /* [kv head][chunk_stride], of KV_RIG_LAYER: host's copies, which store fills */
    struct step_item items[KV_RIG_ITEMS];
    float *k[KV_RIG_ITEMS], *v[KV_RIG_ITEMS]; /* [row][kv head][dimension], as appended */
};

static inline struct kv_shape kv_shape_of(const struct kv_layout *layout) {
    return (struct kv_shape){(uint32_t)layout->k_type,          (uint32_t)layout->v_type,
                             (uint32_t)layout->k_dimension,     (uint32_t)layout->v_dimension,
                             (uint32_t)layout->k_row_bytes,     (uint32_t)layout->v_row_bytes,
                             (uint32_t)layout->k_scales_offset, (uint32_t)layout->v_offset,
                             (uint32_t)layout->v_scales_offset, (uint32_t)layout->block_bytes};
}

static inline void *kv_rig_chunk(const struct kv_rig *rig, size_t item, size_t layer, size_t head,
                                 size_t chunk) {
    const uint32_t place = rig->pages[item][(layer * rig->kv_heads + head) * rig->chunk_stride + chunk];
    assert_true(place >> 30 > 0);
    const struct cuda_pool *pool = &rig->pools.pool[(place >> 30) - 1];
    const uint32_t slot = place & 0x3fffffff;
    return (char *)(uintptr_t)pool->base[slot / pool->slots_per_buffer] +
           slot % pool->slots_per_buffer * pool->slot_bytes;
}

/* A slot that nobody has, at random. */
static inline uint32_t kv_rig_slot(struct random *random, uint8_t *taken, size_t count) {
    size_t slot = (size_t)random_below(random, count);
    while (taken[slot]) slot = (slot + 1) % count;
    taken[slot] = 1;
    return (uint32_t)slot;
}

static inline void kv_rig_places(struct kv_rig *rig, struct random *random) {
    size_t total = 0;
    for (size_t i = 0; i < rig->item_count; i++)
        total += (size_t)(rig->lengths[i] + 63) / 64 * rig->kv_heads * KV_RIG_LAYERS;
    uint8_t *taken[2];
    for (size_t p = 0; p < 2; p++) {
        const size_t slots = p == 0 ? total / 2 + 1 : total;
        rig->buffer_count[p] = slots / KV_RIG_SLOTS + 1;
        assert_true(rig->buffer_count[p] <= KV_BUFFERS_MAX);
        taken[p] = calloc(rig->buffer_count[p], KV_RIG_SLOTS);
        struct cuda_pool *pool = &rig->pools.pool[p];
        pool->slots_per_buffer = KV_RIG_SLOTS;
        pool->slot_bytes = rig->layout.chunk_bytes + 128 * p;
        for (size_t b = 0; b < rig->buffer_count[p]; b++) {
            rig->buffers[p][b] = guarded_create_aligned(KV_RIG_SLOTS * pool->slot_bytes);
            memset(rig->buffers[p][b].data, 0xff, KV_RIG_SLOTS * pool->slot_bytes); /* NaN in halves */
            pool->base[b] = address_of(rig->buffers[p][b].data);
        }
    }
    size_t in_first = 0;
    for (size_t i = 0; i < rig->item_count; i++) {
        const size_t chunks = (size_t)(rig->lengths[i] + 63) / 64, heads = KV_RIG_LAYERS * rig->kv_heads;
        for (size_t h = 0; h < heads; h++)
            for (size_t c = 0; c < chunks; c++) {
                const size_t p = in_first < total / 2 && random_below(random, 2) ? 0 : 1;
                in_first += p == 0;
                rig->pages[i][h * rig->chunk_stride + c] =
                    (uint32_t)(p + 1) << 30 |
                    kv_rig_slot(random, taken[p], rig->buffer_count[p] * KV_RIG_SLOTS);
            }
    }
    free(taken[0]), free(taken[1]);
}

static inline void kv_rig_init(struct kv_rig *rig, struct random *random, enum kv_type k_type,
                               enum kv_type v_type, size_t k_dimension, size_t v_dimension, size_t kv_heads,
                               const uint64_t *lengths, size_t item_count) {
    memset(rig, 0, sizeof *rig);
    kv_layout_init(&rig->layout, k_type, v_type, k_dimension, v_dimension);
    rig->shape = kv_shape_of(&rig->layout);
    attention_kernels_init(&rig->attention, 0);
    rig->kv_heads = kv_heads;
    rig->item_count = item_count;
    for (size_t i = 0; i < item_count; i++) {
        rig->lengths[i] = lengths[i];
        if ((lengths[i] + 63) / 64 + 2 > rig->chunk_stride)
            rig->chunk_stride = (size_t)(lengths[i] + 63) / 64 + 2;
    }
    for (size_t i = 0; i < item_count; i++) {
        rig->pages[i] = calloc(KV_RIG_LAYERS * kv_heads * rig->chunk_stride, sizeof(uint32_t));
        rig->chunks[i] = calloc(kv_heads * rig->chunk_stride, sizeof(void *));
        rig->k[i] = malloc((size_t)lengths[i] * kv_heads * k_dimension * sizeof(float));
        rig->v[i] = malloc((size_t)lengths[i] * kv_heads * v_dimension * sizeof(float));
        fill_normal(random, rig->k[i], (size_t)lengths[i] * kv_heads * k_dimension, 1.0);
        fill_normal(random, rig->v[i], (size_t)lengths[i] * kv_heads * v_dimension, 1.0);
        rig->items[i] = (struct step_item){.pages = address_of(rig->pages[i]),
                                           .chunk_stride = (uint32_t)rig->chunk_stride};
    }
    kv_rig_places(rig, random);
    for (size_t i = 0; i < item_count; i++)
        for (size_t h = 0; h < kv_heads; h++)
            for (size_t c = 0; c < (lengths[i] + 63) / 64; c++) {
                void *chunk = malloc(rig->layout.chunk_bytes);
                memset(chunk, 0xff, rig->layout.chunk_bytes);
                rig->chunks[i][h * rig->chunk_stride + c] = chunk;
            }
}

/* Stores all rows by the reference, here and in the device's slots. */
static inline void kv_rig_fill(struct kv_rig *rig) {
    for (size_t i = 0; i < rig->item_count; i++)
        for (size_t h = 0; h < rig->kv_heads; h++) {
            void **chunks = rig->chunks[i] + h * rig->chunk_stride;
            for (uint64_t r = 0; r < rig->lengths[i]; r++)
                rig->attention.store(&rig->layout, chunks[r / 64], r % 64,
                                     rig->k[i] + (r * rig->kv_heads + h) * rig->layout.k_dimension,
                                     rig->v[i] + (r * rig->kv_heads + h) * rig->layout.v_dimension);
            for (size_t c = 0; c < (rig->lengths[i] + 63) / 64; c++)
                memcpy(kv_rig_chunk(rig, i, KV_RIG_LAYER, h, c), chunks[c], rig->layout.chunk_bytes);
        }
}

static inline uint64_t kv_rig_layer_pages(const struct kv_rig *rig) {
    return KV_RIG_LAYER * rig->kv_heads * rig->chunk_stride * sizeof(uint32_t);
}

/* A query head of an item at `position`, over all rows or those with takes[row], and a score beside them without a
 * value (sink; -INFINITY: none): the output by the definition, and a bound of what floats may make of it. The error
 * of a score moves a weight by as much of itself, weights and their sum alike; sums are chains. */
static inline void kv_rig_attend(const struct kv_rig *rig, size_t item, size_t kv_head, const float *q,
                                 uint64_t position, uint64_t window, const uint8_t *takes, double scale,
                                 double softcap, double sink, double score_eps, double weight_eps,
                                 double *out, double *bound) {
    const struct kv_layout *layout = &rig->layout;
    const uint64_t begin = window == 0 || position + 1 <= window ? 0 : position + 1 - window;
    double *scores = malloc((position + 1) * sizeof *scores), largest = -INFINITY, off = 0, sum = 0;
    float k[512], v[512];
    void **chunks = rig->chunks[item] + kv_head * rig->chunk_stride;
    for (uint64_t r = begin; r <= position; r++) {
        if (takes != NULL && !takes[r]) continue;
        double score = 0, magnitude = 0;
        rig->attention.load(layout, chunks[r / 64], r % 64, k, v);
        for (size_t d = 0; d < layout->k_dimension; d++) {
            score += (double)q[d] * (double)k[d];
            magnitude += fabs((double)q[d] * (double)k[d]);
        }
        score *= scale;
        if (softcap != 0) score = softcap * tanh(score / softcap);
        const double error = score_eps * magnitude * scale + softcap * 0x1p-19 + 4 * 0x1p-24 * fabs(score);
        off = error > off ? error : off;
        scores[r] = score;
        largest = score > largest ? score : largest;
    }
    for (size_t d = 0; d < layout->v_dimension; d++) out[d] = bound[d] = 0;
    sum = exp(sink - largest);
    for (uint64_t r = begin; r <= position; r++) {
        if (takes != NULL && !takes[r]) continue;
        const double weight = exp(scores[r] - largest);
        rig->attention.load(layout, chunks[r / 64], r % 64, k, v);
        sum += weight;
        for (size_t d = 0; d < layout->v_dimension; d++) {
            out[d] += weight * (double)v[d];
            bound[d] += weight * fabs((double)v[d]);
        }
    }
    for (size_t d = 0; d < layout->v_dimension; d++) {
        out[d] /= sum;
        bound[d] = bound[d] / sum * 2 * (off + weight_eps);
    }
    free(scores);
}

static inline void kv_rig_deinit(struct kv_rig *rig) {
    for (size_t i = 0; i < rig->item_count; i++) {
        for (size_t c = 0; c < rig->kv_heads * rig->chunk_stride; c++) free(rig->chunks[i][c]);
        free(rig->chunks[i]), free(rig->pages[i]), free(rig->k[i]), free(rig->v[i]);
    }
    for (size_t p = 0; p < 2; p++)
        for (size_t b = 0; b < rig->buffer_count[p]; b++) guarded_destroy(&rig->buffers[p][b]);
}
