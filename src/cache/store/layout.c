/* Where things lie in a document's files (docs/formats.md).
 *
 *   N.pages     two tails, each [layer][head] pages; then segments of 16 chunks, each [layer][head][16] pages
 *               (of two sizes where layout.fractions says so; the same of each in all segments)
 *   N.metadata   segments of 16 chunks, each [layer][head][16] entries of key_index_bytes, unpadded
 *
 * Nothing has to be looked up to find a page, whatever the order in which pages were written. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "cache/store/store_internal.h"

static bool word_good(const char *word) {
    size_t length = strnlen(word, STORE_WORD_MAX);
    return length > 0 && length < STORE_WORD_MAX &&
           strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789.,+-") == length;
}

/* A layer's sixteenths in one character, 0 to 9 and a to g. */
static const char fraction_digits[] = "0123456789abcdefg";

/* Bytes of the text, without its zero; text NULL: only counted. */
static size_t format(const struct store_layout *layout, char *text, size_t text_bytes) {
    char tail[24] = "", fractions[PAGE_FRACTIONS_LAYERS_MAX + 16] = "";
    if (layout->tail_bytes != 0) snprintf(tail, sizeof tail, " tail=%u", layout->tail_bytes);
    if (layout->fractions.layer_count > 0) {
        size_t used = (size_t)snprintf(fractions, sizeof fractions, " share=");
        for (size_t i = 0; i < layout->fractions.layer_count; i++)
            fractions[used++] = fraction_digits[layout->fractions.sixteenths[i]];
        fractions[used] = '\0';
    }
    return (size_t)snprintf(text, text_bytes,
                            "codec=%s layers=%u heads=%u chunk=%u%s%s metadata=%s/%u segment=%d",
                            layout->codec, layout->layer_count, layout->kv_head_count, layout->chunk_bytes,
                            tail, fractions, layout->key_index_kind, layout->key_index_bytes, SEGMENT_CHUNKS);
}

static enum status fractions_check(const struct store_layout *layout, struct error *error) {
    const struct page_fractions *fractions = &layout->fractions;
    if (fractions->layer_count == 0) return STATUS_OK;
    if (layout->tail_bytes == 0 || fractions->layer_count != layout->layer_count ||
        fractions->layer_count > PAGE_FRACTIONS_LAYERS_MAX)
        return error_set(
            error, STATUS_USAGE,
            "layout: fractions of %u layers, expected of %u and pages of two sizes (for at most %d layers)",
            fractions->layer_count, layout->layer_count, PAGE_FRACTIONS_LAYERS_MAX);
    for (size_t i = 0; i < fractions->layer_count; i++)
        if (fractions->sixteenths[i] > PAGE_FRACTION_WHOLE)
            return error_set(error, STATUS_USAGE, "layout: a fraction of %u sixteenths in layer %zu",
                             fractions->sixteenths[i], i);
    if (format(layout, NULL, 0) >= STORE_TEXT_MAX)
        return error_set(error, STATUS_USAGE,
                         "layout: the fractions of %u layers do not fit into its %d bytes",
                         fractions->layer_count, STORE_TEXT_MAX);
    return STATUS_OK;
}

enum status layout_check(const struct store_layout *layout, struct error *error) {
    if (!word_good(layout->codec) || !word_good(layout->key_index_kind))
        return error_set(error, STATUS_USAGE, "layout: a name of a codec or of a key index that is no word");
    const struct {
        const char *name;
        uint32_t value, min, max;
    } fields[] = {{"layers", layout->layer_count, 1, STORE_LAYERS_MAX},
                  {"KV heads", layout->kv_head_count, 1, STORE_HEADS_MAX},
                  {"bytes of a chunk", layout->chunk_bytes, KV_CHUNK_BLOCKS, STORE_CHUNK_BYTES_MAX},
                  {"bytes of key index", layout->key_index_bytes, 0, STORE_KEY_INDEX_BYTES_MAX}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].min || fields[i].value > fields[i].max)
            return error_set(error, STATUS_USAGE, "layout: %u %s, expected %u to %u", fields[i].value,
                             fields[i].name, fields[i].min, fields[i].max);
    if (layout->tail_bytes % KV_CHUNK_BLOCKS != 0 || layout->tail_bytes > STORE_CHUNK_BYTES_MAX)
        return error_set(error, STATUS_USAGE, "layout: %u bytes of a tail are not 8 blocks",
                         layout->tail_bytes);
    if (layout->chunk_bytes % KV_CHUNK_BLOCKS != 0)
        return error_set(error, STATUS_USAGE, "layout: %u bytes of a chunk are not 8 blocks",
                         layout->chunk_bytes);
    return fractions_check(layout, error);
}

void layout_format(const struct store_layout *layout, char *text) {
    (void)format(layout, text, STORE_TEXT_MAX);
}

/* " share=88g0..." at *text, if it is there: a character for each layer. */
static enum status fractions_parse(const char **text, struct store_layout *layout, struct error *error) {
    static const char word[] = " share=";
    if (strncmp(*text, word, sizeof word - 1) != 0) return STATUS_OK;
    const char *digits = *text + sizeof word - 1;
    size_t length = strcspn(digits, " "), good = strspn(digits, fraction_digits);
    if (length != layout->layer_count || length > PAGE_FRACTIONS_LAYERS_MAX || good < length)
        return error_set(
            error, STATUS_DOCUMENT,
            "its layout says%s%.*s, expected a fraction of 0 to 9 or a to g for each of its %u layers", word,
            (int)(length < 64 ? length : 64), digits, layout->layer_count);
    layout->fractions.layer_count = (uint16_t)length;
    for (size_t i = 0; i < length; i++)
        layout->fractions.sixteenths[i] = (uint8_t)(strchr(fraction_digits, digits[i]) - fraction_digits);
    *text = digits + length;
    return STATUS_OK;
}

enum status layout_parse(const char *text, struct store_layout *layout, struct error *error) {
    int segment, read = 0;
    char again[STORE_TEXT_MAX];
    *layout = (struct store_layout){0};
    bool good = sscanf(text, "codec=%47[^ ] layers=%u heads=%u chunk=%u%n", layout->codec,
                       &layout->layer_count, &layout->kv_head_count, &layout->chunk_bytes, &read) == 4;
    const char *rest = text + read;
    read = 0;
    if (good && sscanf(rest, " tail=%u%n", &layout->tail_bytes, &read) == 1) rest += read;
    if (good) TRY(fractions_parse(&rest, layout, error));
    good = good && sscanf(rest, " metadata=%47[^/]/%u segment=%d", layout->key_index_kind,
                          &layout->key_index_bytes, &segment) == 3;
    if (good) layout_format(layout, again);
    if (good && strcmp(again, text) == 0 && layout_check(layout, NULL) == STATUS_OK) return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT, "its layout is none of this loam: %.120s", text);
}

size_t store_page_bytes(const struct store_layout *layout) {
    return align_up(layout->chunk_bytes, IO_ALIGNMENT);
}

size_t store_tail_bytes(const struct store_layout *layout) {
    return align_up(layout->tail_bytes != 0 ? layout->tail_bytes : layout->chunk_bytes, IO_ALIGNMENT);
}

struct store_parts store_page_parts(const struct store_layout *layout) {
    const bool mixed = layout->fractions.layer_count > 0;
    const size_t rows = mixed ? layout->tail_bytes : layout->tail_bytes == 0 ? layout->chunk_bytes : 0;
    struct store_parts parts = {.bytes = IO_ALIGNMENT};
    while (rows > parts.bytes * STORE_PARTS_MAX) parts.bytes *= 2;
    parts.count = (rows + parts.bytes - 1) / parts.bytes;
    return parts.count > 1 ? parts : (struct store_parts){0};
}

static void parts_init(struct geometry *geometry, const struct store_layout *layout) {
    const struct store_parts parts = store_page_parts(layout);
    geometry->part_bytes = parts.bytes;
    geometry->part_count = parts.count;
    geometry->page_sum_bytes = sizeof(struct checksum) + parts.count * sizeof(struct part_sum);
}

void geometry_without_parts(struct geometry *geometry) {
    geometry->part_bytes = geometry->part_count = 0;
    geometry->page_sum_bytes = sizeof(struct checksum);
}

void geometry_init(struct geometry *geometry, const struct store_layout *layout) {
    *geometry = (struct geometry){.layer_count = layout->layer_count,
                                  .kv_head_count = layout->kv_head_count,
                                  .chunk_pages = (size_t)layout->layer_count * layout->kv_head_count,
                                  .chunk_bytes = layout->chunk_bytes,
                                  .page_bytes = store_page_bytes(layout),
                                  .key_index_bytes = layout->key_index_bytes,
                                  .tail_chunk_bytes =
                                      layout->tail_bytes != 0 ? layout->tail_bytes : layout->chunk_bytes,
                                  .tail_page_bytes = store_tail_bytes(layout),
                                  .fractions = layout->fractions};
    geometry->quantizes = layout->tail_bytes != 0;
    parts_init(geometry, layout);
    _Static_assert((int)SEGMENT_CHUNKS == (int)PAGE_FRACTION_WHOLE,
                   "a layer's share of a segment is as many pages");
    for (size_t i = 0; i < layout->fractions.layer_count; i++)
        geometry->quantized_before[i + 1] = geometry->quantized_before[i] + layout->fractions.sixteenths[i];
}

uint64_t chunks_full(uint64_t token_count) { return token_count / KV_CHUNK_TOKENS; }

/* The limits of store.h (2^20 pages of a chunk, 2^22 chunks, 2^24 bytes) keep all of this below 2^63 only when
 * not all of them are at their most at once; document_bytes_max, asked first, refuses what is larger. */

size_t page_index(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return (size_t)chunk * geometry->chunk_pages + layer * geometry->kv_head_count + kv_head;
}

static uint64_t entry_number(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    uint64_t column =
        chunk / SEGMENT_CHUNKS * geometry->chunk_pages + layer * geometry->kv_head_count + kv_head;
    return column * SEGMENT_CHUNKS + chunk % SEGMENT_CHUNKS;
}

static bool is_mixed_rows(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return geometry->fractions.layer_count > 0 &&
           !page_fractions_is_quantized(&geometry->fractions, layer, kv_head, geometry->kv_head_count, chunk);
}

bool page_is_rows(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return is_mixed_rows(geometry, layer, kv_head, chunk) || !geometry->quantizes;
}

size_t page_chunk_bytes(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return is_mixed_rows(geometry, layer, kv_head, chunk) ? geometry->tail_chunk_bytes
                                                          : geometry->chunk_bytes;
}

size_t page_padded_bytes(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return is_mixed_rows(geometry, layer, kv_head, chunk) ? geometry->tail_page_bytes : geometry->page_bytes;
}

size_t page_padded_max(const struct geometry *geometry) {
    return geometry->fractions.layer_count > 0 ? max_size(geometry->page_bytes, geometry->tail_page_bytes)
                                               : geometry->page_bytes;
}

/* Of pages of which `quantized` are in 4 bits. */
static uint64_t mixed_bytes(const struct geometry *geometry, uint64_t pages, uint64_t quantized) {
    return quantized * geometry->page_bytes + (pages - quantized) * geometry->tail_page_bytes;
}

/* From the start of the segments: those before, then in this one the layers, heads and chunks before. */
static uint64_t mixed_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    const uint64_t heads = geometry->kv_head_count, layers = geometry->layer_count,
                   here = chunk % SEGMENT_CHUNKS, fraction = geometry->fractions.sixteenths[layer];
    const uint64_t quantized = page_fractions_before(&geometry->fractions, layer, kv_head, heads, here);
    return chunk / SEGMENT_CHUNKS *
               mixed_bytes(geometry, layers * heads * SEGMENT_CHUNKS,
                           heads * geometry->quantized_before[layers]) +
           mixed_bytes(geometry, layer * heads * SEGMENT_CHUNKS, heads * geometry->quantized_before[layer]) +
           mixed_bytes(geometry, kv_head * SEGMENT_CHUNKS, kv_head * fraction) +
           mixed_bytes(geometry, here, quantized);
}

uint64_t page_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return 2 * geometry->chunk_pages * geometry->tail_page_bytes +
           (geometry->fractions.layer_count > 0
                ? mixed_offset(geometry, layer, kv_head, chunk)
                : entry_number(geometry, layer, kv_head, chunk) * geometry->page_bytes);
}

uint64_t key_index_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return entry_number(geometry, layer, kv_head, chunk) * geometry->key_index_bytes;
}

uint64_t tail_offset(const struct geometry *geometry, uint64_t generation, size_t layer, size_t kv_head) {
    return ((generation & 1) * geometry->chunk_pages + layer * geometry->kv_head_count + kv_head) *
           geometry->tail_page_bytes;
}

size_t tail_bytes(const struct geometry *geometry, uint64_t token_count) {
    size_t rows = token_count % KV_CHUNK_TOKENS;
    return (rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS * (geometry->tail_chunk_bytes / KV_CHUNK_BLOCKS);
}

uint64_t pages_end(const struct geometry *geometry, uint64_t token_count, uint64_t generation) {
    uint64_t chunks = chunks_full(token_count);
    size_t layer = geometry->layer_count - 1, head = geometry->kv_head_count - 1;
    if (chunks > 0)
        return page_offset(geometry, layer, head, chunks - 1) +
               page_padded_bytes(geometry, layer, head, chunks - 1);
    if (token_count == 0) return 0;
    return tail_offset(geometry, generation, layer, head) +
           align_up(tail_bytes(geometry, token_count), IO_ALIGNMENT);
}

uint64_t key_index_end(const struct geometry *geometry, uint64_t token_count) {
    uint64_t chunks = chunks_full(token_count);
    if (chunks == 0 || geometry->key_index_bytes == 0) return 0;
    return key_index_offset(geometry, geometry->layer_count - 1, geometry->kv_head_count - 1, chunks - 1) +
           geometry->key_index_bytes;
}

/* Bytes of all pages of so many chunks, which fit when those of the larger form do. */
static bool pages_bytes(const struct geometry *geometry, uint64_t chunks, uint64_t *bytes) {
    if (!checked_multiply(chunks, geometry->chunk_pages * page_padded_max(geometry), bytes)) return false;
    uint64_t quantized = 0, heads = geometry->kv_head_count;
    for (size_t i = 0; i < geometry->fractions.layer_count; i++)
        quantized += geometry->fractions.sixteenths[i] * heads * chunks / PAGE_FRACTION_WHOLE;
    if (geometry->fractions.layer_count > 0)
        *bytes = mixed_bytes(geometry, chunks * geometry->chunk_pages, quantized);
    return true;
}

uint64_t document_bytes_max(const struct geometry *geometry, uint64_t token_count) {
    enum {
        ROW_RESERVE = 16384,
        FILE_RESERVE = 65536
    }; /* of the catalog's trees, of the file system's own blocks */
    uint64_t chunks = chunks_full(token_count), pages, tails, bytes, key_index, table, sum;
    bool tail = token_count % KV_CHUNK_TOKENS != 0;
    /* The catalog: its checksums, 4 bytes per token, an eighth more for its pages that are not full. */
    bool fits = checked_add(chunks, tail ? 2 : 0, &sum) &&
                checked_multiply(sum, geometry->chunk_pages, &pages) &&
                checked_multiply(geometry->chunk_pages * (tail ? 2 : 0), geometry->tail_page_bytes, &tails) &&
                pages_bytes(geometry, chunks, &bytes) && checked_add(bytes, tails, &bytes) &&
                checked_multiply(pages, geometry->key_index_bytes, &key_index) &&
                checked_multiply(pages, geometry->page_sum_bytes + sizeof(struct checksum), &table) &&
                checked_add(bytes, key_index, &sum) && checked_add(sum, table + table / 8, &sum) &&
                checked_add(sum, token_count * 5 + ROW_RESERVE + FILE_RESERVE, &sum);
    return fits && sum < UINT64_C(1) << 62 ? sum : UINT64_MAX;
}
