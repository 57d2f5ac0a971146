/* Where things lie in a document's files (docs/formats.md).
 *
 *   N.pages     two tails, each [layer][head] pages; then segments of 16 chunks, each [layer][head][16] pages
 *   N.metadata  segments of 16 chunks, each [layer][head][16] entries of metadata_bytes, unpadded
 *
 * Nothing has to be looked up to find a page, whatever the order in which pages were written. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "cache/store/store_internal.h"

static bool word_good(const char *word) {
    size_t length = strnlen(word, STORE_WORD_MOST);
    return length > 0 && length < STORE_WORD_MOST &&
           strspn(word, "abcdefghijklmnopqrstuvwxyz0123456789.,+-") == length;
}

enum status layout_check(const struct store_layout *layout, struct error *error) {
    if (!word_good(layout->codec) || !word_good(layout->metadata_kind))
        return error_set(error, STATUS_USAGE, "layout: a codec's or metadata kind's name that is no word");
    const struct {
        const char *name;
        uint32_t value, least, most;
    } fields[] = {{"layers", layout->layer_count, 1, STORE_LAYERS_MOST},
                  {"KV heads", layout->kv_head_count, 1, STORE_HEADS_MOST},
                  {"bytes of a chunk", layout->chunk_bytes, KV_CHUNK_BLOCKS, STORE_CHUNK_BYTES_MOST},
                  {"bytes of metadata", layout->metadata_bytes, 0, STORE_METADATA_BYTES_MOST}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].value < fields[i].least || fields[i].value > fields[i].most)
            return error_set(error, STATUS_USAGE, "layout: %u %s, expected %u to %u", fields[i].value,
                             fields[i].name, fields[i].least, fields[i].most);
    if (layout->tail_bytes % KV_CHUNK_BLOCKS != 0 || layout->tail_bytes > STORE_CHUNK_BYTES_MOST)
        return error_set(error, STATUS_USAGE, "layout: %u bytes of a tail are not 8 blocks",
                         layout->tail_bytes);
    if (layout->chunk_bytes % KV_CHUNK_BLOCKS != 0)
        return error_set(error, STATUS_USAGE, "layout: %u bytes of a chunk are not 8 blocks",
                         layout->chunk_bytes);
    return STATUS_OK;
}

void layout_format(const struct store_layout *layout, char *text) {
    char tail[24] = "";
    if (layout->tail_bytes != 0) snprintf(tail, sizeof tail, " tail=%u", layout->tail_bytes);
    snprintf(text, STORE_TEXT_MOST, "codec=%s layers=%u heads=%u chunk=%u%s metadata=%s/%u segment=%d",
             layout->codec, layout->layer_count, layout->kv_head_count, layout->chunk_bytes, tail,
             layout->metadata_kind, layout->metadata_bytes, SEGMENT_CHUNKS);
}

bool layout_parse(const char *text, struct store_layout *layout) {
    int segment, read = 0;
    *layout = (struct store_layout){0};
    if (sscanf(text, "codec=%47[^ ] layers=%u heads=%u chunk=%u%n", layout->codec, &layout->layer_count,
               &layout->kv_head_count, &layout->chunk_bytes, &read) != 4)
        return false;
    const char *rest = text + read;
    read = 0;
    if (sscanf(rest, " tail=%u%n", &layout->tail_bytes, &read) == 1) rest += read;
    if (sscanf(rest, " metadata=%47[^/]/%u segment=%d", layout->metadata_kind, &layout->metadata_bytes,
               &segment) != 3)
        return false;
    char again[STORE_TEXT_MOST];
    layout_format(layout, again);
    return strcmp(again, text) == 0 && layout_check(layout, NULL) == STATUS_OK;
}

size_t store_page_bytes(const struct store_layout *layout) {
    return align_up(layout->chunk_bytes, IO_ALIGNMENT);
}

size_t store_tail_bytes(const struct store_layout *layout) {
    return align_up(layout->tail_bytes != 0 ? layout->tail_bytes : layout->chunk_bytes, IO_ALIGNMENT);
}

void geometry_init(struct geometry *geometry, const struct store_layout *layout) {
    *geometry = (struct geometry){layout->layer_count,
                                  layout->kv_head_count,
                                  (size_t)layout->layer_count * layout->kv_head_count,
                                  layout->chunk_bytes,
                                  store_page_bytes(layout),
                                  layout->metadata_bytes,
                                  layout->tail_bytes != 0 ? layout->tail_bytes : layout->chunk_bytes,
                                  store_tail_bytes(layout)};
}

uint64_t chunks_full(uint64_t token_count) { return token_count / KV_CHUNK_TOKENS; }

/* The limits of store.h (2^20 pages of a chunk, 2^22 chunks, 2^24 bytes) keep all of this below 2^63 only when
 * not all of them are at their most at once; document_room, asked first, refuses what is larger. */

size_t page_index(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return (size_t)chunk * geometry->chunk_pages + layer * geometry->kv_head_count + kv_head;
}

static uint64_t entry_number(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    uint64_t column =
        chunk / SEGMENT_CHUNKS * geometry->chunk_pages + layer * geometry->kv_head_count + kv_head;
    return column * SEGMENT_CHUNKS + chunk % SEGMENT_CHUNKS;
}

uint64_t page_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return 2 * geometry->chunk_pages * geometry->tail_page_bytes +
           entry_number(geometry, layer, kv_head, chunk) * geometry->page_bytes;
}

uint64_t metadata_offset(const struct geometry *geometry, size_t layer, size_t kv_head, uint64_t chunk) {
    return entry_number(geometry, layer, kv_head, chunk) * geometry->metadata_bytes;
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
    if (chunks > 0) return page_offset(geometry, layer, head, chunks - 1) + geometry->page_bytes;
    if (token_count == 0) return 0;
    return tail_offset(geometry, generation, layer, head) +
           align_up(tail_bytes(geometry, token_count), IO_ALIGNMENT);
}

uint64_t metadata_end(const struct geometry *geometry, uint64_t token_count) {
    uint64_t chunks = chunks_full(token_count);
    if (chunks == 0 || geometry->metadata_bytes == 0) return 0;
    return metadata_offset(geometry, geometry->layer_count - 1, geometry->kv_head_count - 1, chunks - 1) +
           geometry->metadata_bytes;
}

uint64_t document_room(const struct geometry *geometry, uint64_t token_count) {
    enum {
        ROW_ROOM = 16384,
        FILE_ROOM = 65536
    }; /* of the catalog's trees, of the file system's own blocks */
    uint64_t chunks = chunks_full(token_count), pages, tails, bytes, metadata, table, sum;
    bool tail = token_count % KV_CHUNK_TOKENS != 0;
    /* The catalog: 32 bytes per page, 4 per token, an eighth more for its pages that are not full. */
    bool fits =
        checked_add(chunks, tail ? 2 : 0, &sum) && checked_multiply(sum, geometry->chunk_pages, &pages) &&
        checked_multiply(geometry->chunk_pages * (tail ? 2 : 0), geometry->tail_page_bytes, &tails) &&
        checked_multiply(chunks, geometry->chunk_pages * geometry->page_bytes, &bytes) &&
        checked_add(bytes, tails, &bytes) && checked_multiply(pages, geometry->metadata_bytes, &metadata) &&
        checked_multiply(pages, 2 * sizeof(struct checksum), &table) && checked_add(bytes, metadata, &sum) &&
        checked_add(sum, table + table / 8, &sum) &&
        checked_add(sum, token_count * 5 + ROW_ROOM + FILE_ROOM, &sum);
    return fits && sum < UINT64_C(1) << 62 ? sum : UINT64_MAX;
}
