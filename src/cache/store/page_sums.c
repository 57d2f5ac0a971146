/* Checksums of pages: of each one whole, and behind it of its parts where it may be read in parts.  Commits have
 * them in the order of the pages; those of catalogs before version 4 have none of parts. */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"
#include "cache/store/store_internal.h"

uint8_t *page_sum_at(const struct document *document, size_t index) {
    return document->page_sums + index * document->geometry.page_sum_bytes;
}

/* Bytes of a part, which of the last one may be fewer; 0: the page ends before it. */
static size_t part_length(const struct geometry *geometry, size_t page_bytes, size_t part) {
    const size_t first = part * geometry->part_bytes;
    return first < page_bytes ? min_size(geometry->part_bytes, page_bytes - first) : 0;
}

static bool has_parts(const struct document *document, size_t layer, size_t kv_head, uint64_t chunk) {
    return document->geometry.part_count > 0 && page_is_rows(&document->geometry, layer, kv_head, chunk);
}

size_t page_sums_parts(const struct document *document, size_t layer, size_t kv_head, uint64_t chunk) {
    if (chunk < document->parts_first) return 0;
    return has_parts(document, layer, kv_head, chunk) ? document->geometry.part_count : 0;
}

void page_sums_note(struct document *document, size_t layer, size_t kv_head, uint64_t chunk,
                    const uint8_t *page) {
    const struct geometry *geometry = &document->geometry;
    const size_t bytes = page_chunk_bytes(geometry, layer, kv_head, chunk);
    uint8_t *sums = page_sum_at(document, page_index(geometry, layer, kv_head, chunk));
    const struct checksum whole = checksum_of(page, bytes);
    memset(sums, 0, geometry->page_sum_bytes);
    memcpy(sums, whole.bytes, sizeof whole);
    sums += sizeof whole;
    for (size_t i = 0; has_parts(document, layer, kv_head, chunk) && i < geometry->part_count; i++) {
        const struct part_sum sum =
            part_sum_of(page + i * geometry->part_bytes, part_length(geometry, bytes, i));
        memcpy(sums + i * sizeof sum, sum.bytes, sizeof sum);
    }
}

bool page_sums_take(struct document *document, uint64_t chunk_first, uint64_t chunk_end, const void *sums,
                    size_t bytes) {
    const struct geometry *geometry = &document->geometry;
    const size_t first = page_index(geometry, 0, 0, chunk_first),
                 pages = page_index(geometry, 0, 0, chunk_end) - first;
    if (bytes == pages * geometry->page_sum_bytes) {
        if (bytes > 0) memcpy(page_sum_at(document, first), sums, bytes);
        return true;
    }
    if (bytes != pages * sizeof(struct checksum)) return false;
    for (size_t i = 0; i < pages; i++)
        memcpy(page_sum_at(document, first + i), (const uint8_t *)sums + i * sizeof(struct checksum),
               sizeof(struct checksum));
    document->parts_first = chunk_end;
    return true;
}

bool page_sums_check_parts(const struct document *document, const struct page_read *read,
                           struct part_sum *found, struct part_sum *expected, size_t *part) {
    const struct geometry *geometry = &document->geometry;
    const uint8_t *sums =
        page_sum_at(document, page_index(geometry, read->layer, read->kv_head, read->chunk)) +
        sizeof(struct checksum);
    const size_t bytes = page_chunk_bytes(geometry, read->layer, read->kv_head, read->chunk),
                 end = (size_t)read->part_first + read->part_count;
    ASSERT(end <= page_sums_parts(document, read->layer, read->kv_head, read->chunk));
    for (size_t i = read->part_first; i < end; i++) {
        *found = part_sum_of((const uint8_t *)read->memory + i * geometry->part_bytes,
                             part_length(geometry, bytes, i));
        memcpy(expected->bytes, sums + i * sizeof *expected, sizeof *expected);
        *part = i;
        if (memcmp(found, expected, sizeof *found) != 0) return false;
    }
    return true;
}
