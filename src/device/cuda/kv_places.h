/* kv_places: from a row of a context to its bytes. */
#pragma once

#include "device/cuda/dialect.h"
#include "device/cuda/kernels.h"
#include "kernels/attention/kv_layout.h"

DEVICE const char *chunk_at(const struct cuda_pools *pools, uint32_t place) {
    const uint32_t number = place >> 30, slot = place & 0x3fffffffu;
    if (number == 0) {
        kernel_fault(); /* what is attended to has been fetched */
        return 0;
    }
    const struct cuda_pool *pool = &pools->pool[number - 1];
    const uint32_t buffer = slot / pool->slots_per_buffer;
    return at<char>(pool->base[buffer]) + (slot - buffer * pool->slots_per_buffer) * pool->slot_bytes;
}

/* The places of one KV head's chunks. */
DEVICE const uint32_t *head_places(const struct step_item *item, uint64_t layer_pages, uint32_t kv_head) {
    return at<uint32_t>(item->pages + layer_pages) + (uint64_t)kv_head * item->chunk_stride;
}

/* The places of their key index. */
DEVICE const uint32_t *index_places(const struct step_item *item, uint32_t kv_head) {
    return at<uint32_t>(item->index_pages) + (uint64_t)kv_head * item->chunk_stride;
}

/* A unit's bytes, multiples of 64, from the host's memory into a slot, by a warp: 4 KiB are under way. */
DEVICE void unit_copy(char *to, const char *from, uint32_t bytes) {
    const uint32_t lane = lane_index(), sixteens = bytes / 16;
    const struct u32x4 *source = (const struct u32x4 *)(const void *)from;
    struct u32x4 *target = (struct u32x4 *)(void *)to, v[8];
    for (uint32_t first = 0; first < sixteens; first += 256) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            v[i] = {0, 0, 0, 0};
            if (first + i * 32 + lane < sixteens) v[i] = load16_bus(source + first + i * 32 + lane);
        }
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            if (first + i * 32 + lane < sixteens) target[first + i * 32 + lane] = v[i];
    }
}

/* The first row that a query at `position` sees. */
DEVICE uint64_t window_begin(uint64_t position, uint32_t window) {
    return window == 0 || position + 1 <= window ? 0 : position + 1 - window;
}
