/* Parts of pages: which ones a fetch wants, which of them a slot lacks, and the runs of them that are worth a request
 * of their own. */
#include "base/assert.h"
#include "base/checked.h"
#include "cache/kv_tier_internal.h"

static uint8_t all_parts(const struct kv_tier *tier) { return (uint8_t)((1u << tier->page_parts.count) - 1); }

/* The parts that blocks lie in. */
static uint8_t parts_of(const struct kv_tier *tier, uint8_t blocks) {
    const size_t block_bytes = kv_cache_layout(tier->cache)->block_bytes, part_bytes = tier->page_parts.bytes;
    uint8_t parts = 0;
    for (size_t block = 0; block < KV_CHUNK_BLOCKS; block++) {
        if ((blocks >> block & 1) == 0) continue;
        const size_t first = block * block_bytes / part_bytes, last = ((block + 1) * block_bytes - 1) / part_bytes;
        for (size_t part = first; part <= last; part++) parts |= (uint8_t)(1u << part);
    }
    return parts;
}

/* The next run of wanted parts from *first on, with the gaps that are read through, since a second request would take
 * longer; readable: parts that may be.  Its length, 0: none is left. */
static size_t next_run(const struct kv_tier *tier, uint8_t wanted, uint8_t readable, size_t *first) {
    const size_t gap_max = tier->gap_bytes / tier->page_parts.bytes, count = tier->page_parts.count;
    while (*first < count && (wanted >> *first & 1) == 0) ++*first;
    size_t end = *first;
    for (size_t part = *first; part < count && (readable >> part & 1) != 0 && part <= end + gap_max; part++)
        if ((wanted >> part & 1) != 0) end = part + 1;
    return end - *first;
}

size_t tier_requests_of(const struct kv_tier *tier, uint8_t blocks) {
    if (tier->page_parts.count == 0) return 1;
    size_t requests = 0;
    for (size_t first = 0, length; (length = next_run(tier, parts_of(tier, blocks), TIER_PARTS_ALL, &first)) > 0;
         first += length)
        requests++;
    return max_size(requests, 1);
}

bool tier_lacks(const struct kv_tier *tier, const struct slot *slot, uint8_t blocks) {
    if (slot->parts == TIER_PARTS_ALL) return false;
    return (parts_of(tier, blocks) & ~slot->parts) != 0;
}

/* Whether its page, on disk, may be read in parts. */
static bool has_parts(const struct kv_tier *tier, const struct slot *slot) {
    const struct kv_lane_place place = kv_lane_place(&tier->cache->config, slot->lane);
    const struct page_read read = {
        .layer = (uint32_t)place.layer, .kv_head = (uint32_t)place.kv_head, .chunk = slot->chunk};
    const struct document *document = tier_document_of(slot->sequence, slot->chunk);
    ASSERT(document != NULL);
    return tier->page_parts.count > 0 && document_page_parts(document, &read) == tier->page_parts.count;
}

void tier_read_blocks(struct kv_tier *tier, struct read_batch *batch, struct slot *slot, uint8_t blocks) {
    ASSERT(slot->state == SLOT_READING || slot->state == SLOT_CLEAN);
    const uint8_t there = slot->parts;
    if (there == 0) {
        const bool whole = blocks == UINT8_MAX || !has_parts(tier, slot);
        size_t first = 0;
        if (whole || next_run(tier, parts_of(tier, blocks), TIER_PARTS_ALL, &first) == tier->page_parts.count) {
            slot->parts = TIER_PARTS_ALL;
            tier_batch_add(tier, batch, slot, 0, 0);
            return;
        }
    }
    const uint8_t readable = all_parts(tier) & (uint8_t)~there, wanted = parts_of(tier, blocks) & readable;
    for (size_t first = 0, length; (length = next_run(tier, wanted, readable, &first)) > 0; first += length) {
        slot->parts |= (uint8_t)(((1u << length) - 1) << first);
        tier_batch_add(tier, batch, slot, first, length);
    }
    if (slot->parts == all_parts(tier)) slot->parts = TIER_PARTS_ALL;
}
