/* page_fractions: which pages of a document are in 4 bits, where a document has both forms (decision 0016).
 *
 * A number of sixteenths of each layer's pages is in 4 bits, the others are rows.  Which ones follows from numbers
 * alone: with n sixteenths, chunks [0, c) of KV head h of H hold
 *
 *     floor((n H c + 16 h) / 16 H)
 *
 * pages in 4 bits.  So any run of a head's chunks has its fraction to within one page, and so has any run of chunks
 * over all heads of the layer together (the sum over h is floor(n H c / 16), Hermite's identity); of 16 chunks in a
 * row exactly n are in 4 bits, which makes all segments of a document alike.
 *
 * A page keeps its form.  A document that grows may have other fractions from some segment of 16 chunks on: a span.
 *
 * With first_is_rows chunk 0 of every head stays rows: the first keys of a text are unlike all others, widen the ranges
 * of their page, and every step attends to them (decision 0034).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PAGE_FRACTION_WHOLE = 16,
    PAGE_FRACTIONS_LAYERS_MAX = 159,
    PAGE_SPANS_MAX = 8 /* of a document, the first one included */
};

struct page_span {
    uint32_t chunk_first; /* a multiple of 16, larger than that of the span before */
    uint8_t sixteenths[PAGE_FRACTIONS_LAYERS_MAX];
};

struct page_fractions {
    uint16_t layer_count; /* 0: all pages have one form */
    uint8_t
        sixteenths[PAGE_FRACTIONS_LAYERS_MAX]; /* of each layer, 0 to PAGE_FRACTION_WHOLE; zeros behind the last one */
    uint8_t later_count;
    bool first_is_rows;                         /* whatever the first span's fractions say of it */
    struct page_span later[PAGE_SPANS_MAX - 1]; /* [later_count]: other fractions from these chunks on */
};

/* For a new document.  Where no page is in 4 bits nothing has to be said of the first ones. */
static inline void page_fractions_keep_first(struct page_fractions *fractions) {
    fractions->first_is_rows = false;
    for (size_t i = 0; i < fractions->layer_count; i++)
        if (fractions->sixteenths[i] > 0) fractions->first_is_rows = true;
}

/* Of a layer at a chunk. */
static inline unsigned page_fractions_at(const struct page_fractions *fractions, size_t layer, uint64_t chunk) {
    size_t later = fractions->later_count;
    while (later > 0 && fractions->later[later - 1].chunk_first > chunk) later--;
    return later > 0 ? fractions->later[later - 1].sixteenths[layer] : fractions->sixteenths[layer];
}

static inline bool page_fractions_same_in(const struct page_fractions *a, const struct page_fractions *b,
                                          size_t layer) {
    bool same = a->sixteenths[layer] == b->sixteenths[layer] && a->later_count == b->later_count &&
                (a->first_is_rows == b->first_is_rows || a->sixteenths[layer] == 0);
    for (size_t i = 0; same && i < a->later_count; i++)
        same = a->later[i].chunk_first == b->later[i].chunk_first &&
               a->later[i].sixteenths[layer] == b->later[i].sixteenths[layer];
    return same;
}

static inline bool page_fractions_equal(const struct page_fractions *a, const struct page_fractions *b) {
    bool same = a->layer_count == b->layer_count && a->later_count == b->later_count;
    for (size_t layer = 0; same && layer < a->layer_count; layer++) same = page_fractions_same_in(a, b, layer);
    return same;
}

/* Pages in 4 bits among the first chunk_end chunks of a span's head, one of kv_head_count.  chunk_end below 2^32. */
static inline uint64_t page_span_before(unsigned sixteenths, size_t kv_head, size_t kv_head_count, uint64_t chunk_end) {
    const uint64_t whole = (uint64_t)PAGE_FRACTION_WHOLE * kv_head_count;
    return (sixteenths * (uint64_t)kv_head_count * chunk_end + (uint64_t)PAGE_FRACTION_WHOLE * kv_head) / whole;
}

/* Of heads [0, kv_head_end) of a layer so many have a first page that would be in 4 bits and is rows:
 * page_span_before(sixteenths, h, kv_head_count, 1) is 1 for the last heads of the layer. */
static inline uint64_t page_fractions_kept(const struct page_fractions *fractions, size_t layer, size_t kv_head_end,
                                           size_t kv_head_count) {
    const uint64_t whole = PAGE_FRACTION_WHOLE,
                   others = (kv_head_count * (whole - fractions->sixteenths[layer]) + whole - 1) / whole;
    return fractions->first_is_rows && kv_head_end > others ? kv_head_end - others : 0;
}

/* Pages in 4 bits among chunks [0, chunk_end) of a head. */
static inline uint64_t page_fractions_before(const struct page_fractions *fractions, size_t layer, size_t kv_head,
                                             size_t kv_head_count, uint64_t chunk_end) {
    uint64_t before = 0, first = 0;
    unsigned sixteenths = fractions->sixteenths[layer];
    for (size_t i = 0; i < fractions->later_count && fractions->later[i].chunk_first < chunk_end; i++) {
        before += sixteenths * (fractions->later[i].chunk_first - first) / PAGE_FRACTION_WHOLE;
        first = fractions->later[i].chunk_first;
        sixteenths = fractions->later[i].sixteenths[layer];
    }
    before += page_span_before(sixteenths, kv_head, kv_head_count, chunk_end - first);
    if (chunk_end == 0) return before;
    return before - (page_fractions_kept(fractions, layer, kv_head + 1, kv_head_count) -
                     page_fractions_kept(fractions, layer, kv_head, kv_head_count));
}

/* The same of all heads of a layer. */
static inline uint64_t page_fractions_of_layer(const struct page_fractions *fractions, size_t layer,
                                               size_t kv_head_count, uint64_t chunk_end) {
    uint64_t quantized = 0;
    for (size_t head = 0; head < kv_head_count; head++)
        quantized += page_fractions_before(fractions, layer, head, kv_head_count, chunk_end);
    return quantized;
}

static inline bool page_fractions_is_quantized(const struct page_fractions *fractions, size_t layer, size_t kv_head,
                                               size_t kv_head_count, uint64_t chunk) {
    const unsigned sixteenths = page_fractions_at(fractions, layer, chunk);
    const uint64_t here = chunk % PAGE_FRACTION_WHOLE; /* segments of a span are alike */
    if (chunk == 0 && fractions->first_is_rows) return false;
    return page_span_before(sixteenths, kv_head, kv_head_count, here + 1) >
           page_span_before(sixteenths, kv_head, kv_head_count, here);
}
