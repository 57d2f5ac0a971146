/* page_fractions: which pages of a document are in 4 bits, where they are of both forms
 * (docs/decisions/0016-a-fraction-of-the-pages-in-4-bits.md).
 *
 * Of each layer's pages so many sixteenths are in 4 bits, the others are rows.  Which ones follows from numbers alone:
 * with n sixteenths, chunks [0, c) of KV head h of H hold
 *
 *     floor((n H c + 16 h) / 16 H)
 *
 * pages in 4 bits.  So any run of a head's chunks has its fraction to within one page, and so has any run of chunks
 * over all heads of the layer together (the sum over h is floor(n H c / 16), Hermite's identity); of 16 chunks in a
 * row exactly n are in 4 bits, which makes all segments of a document alike.
 */
#ifndef LOAM_CACHE_PAGE_FRACTIONS_H
#define LOAM_CACHE_PAGE_FRACTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PAGE_FRACTION_WHOLE = 16, PAGE_FRACTIONS_LAYERS_MAX = 159 };

struct page_fractions {
    uint16_t layer_count; /* 0: pages are all of one form */
    uint8_t sixteenths
        [PAGE_FRACTIONS_LAYERS_MAX]; /* of each layer, 0 to PAGE_FRACTION_WHOLE; zeros behind the last one */
};

/* Pages in 4 bits among chunks [0, chunk_end) of a head, one of kv_head_count.  chunk_end below 2^32. */
static inline uint64_t page_fractions_before(const struct page_fractions *fractions, size_t layer,
                                             size_t kv_head, size_t kv_head_count, uint64_t chunk_end) {
    uint64_t whole = (uint64_t)PAGE_FRACTION_WHOLE * kv_head_count;
    return (fractions->sixteenths[layer] * (uint64_t)kv_head_count * chunk_end +
            (uint64_t)PAGE_FRACTION_WHOLE * kv_head) /
           whole;
}

static inline bool page_fractions_is_quantized(const struct page_fractions *fractions, size_t layer,
                                               size_t kv_head, size_t kv_head_count, uint64_t chunk) {
    return page_fractions_before(fractions, layer, kv_head, kv_head_count, chunk + 1) >
           page_fractions_before(fractions, layer, kv_head, kv_head_count, chunk);
}

#endif
