/* Checksums of pages: of each one whole, and behind it of its parts where it may be read in parts.  Commits have
 * them in the order of the pages; those of catalogs before version 4 have none of parts. */
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

void page_sums_note(struct document *document, size_t layer, size_t kv_head, uint64_t chunk, const uint8_t *page) {
    const struct geometry *geometry = &document->geometry;
    const size_t bytes = page_chunk_bytes(geometry, layer, kv_head, chunk);
    uint8_t *sums = page_sum_at(document, page_index(geometry, layer, kv_head, chunk));
    const struct checksum whole = checksum_of(page, bytes);
    memset(sums, 0, geometry->page_sum_bytes);
    memcpy(sums, whole.bytes, sizeof whole);
    sums += sizeof whole;
    for (size_t i = 0; has_parts(document, layer, kv_head, chunk) && i < geometry->part_count; i++) {
        const struct part_sum sum = part_sum_of(page + i * geometry->part_bytes, part_length(geometry, bytes, i));
        memcpy(sums + i * sizeof sum, sum.bytes, sizeof sum);
    }
}

/* Entries of tables [chunk][layer][head] in the order of a commit, which has those of the pages that it has, or,
 * positions NULL, those of the key index: `table` of so many bytes each, of which `list` has the first ones. */
struct entries {
    const struct geometry *geometry;
    const struct document_states *positions;
    uint64_t chunk_first, chunk_end;
    uint8_t *table, *list; /* list NULL: they are counted */
    size_t table_bytes, list_bytes;
    bool to_list;
};

static void copy_entries(const struct entries *entries, size_t index, size_t number, size_t count) {
    if (entries->list == entries->table + index * entries->table_bytes) return; /* read to there */
    for (size_t i = 0; i < count && entries->list != NULL; i++) {
        uint8_t *in_table = entries->table + (index + i) * entries->table_bytes,
                *in_list = entries->list + (number + i) * entries->list_bytes;
        memcpy(entries->to_list ? in_list : in_table, entries->to_list ? in_table : in_list, entries->list_bytes);
    }
}

static size_t go_through(const struct entries *entries) {
    const struct geometry *geometry = entries->geometry;
    size_t index = page_index(geometry, 0, 0, entries->chunk_first), number = 0;
    if (geometry->windows.tokens == 0) { /* all of them */
        number = page_index(geometry, 0, 0, entries->chunk_end) - index;
        copy_entries(entries, index, 0, number);
        return number * entries->list_bytes;
    }
    for (uint64_t chunk = entries->chunk_first; chunk < entries->chunk_end; chunk++)
        for (size_t layer = 0; layer < geometry->layer_count; layer++) {
            const size_t heads = geometry_heads(geometry, layer);
            const bool has = entries->positions != NULL ? page_is_kept(geometry, entries->positions, layer, chunk)
                                                        : geometry_key_index_heads(geometry, layer) > 0;
            if (has) copy_entries(entries, index, number, heads);
            if (has) number += heads;
            index += heads;
        }
    return number * entries->list_bytes;
}

static struct entries entries_of(const struct document *document, const struct document_states *positions,
                                 uint64_t chunk_first, uint64_t chunk_end) {
    const bool is_key_index = positions == NULL;
    const size_t bytes = is_key_index ? sizeof(struct checksum) : document->geometry.page_sum_bytes;
    return (struct entries){.geometry = &document->geometry,
                            .positions = positions,
                            .chunk_first = chunk_first,
                            .chunk_end = chunk_end,
                            .table = is_key_index ? (uint8_t *)document->key_index_sums : document->page_sums,
                            .table_bytes = bytes,
                            .list_bytes = bytes};
}

size_t page_sums_give(const struct document *document, const struct document_states *positions, uint64_t chunk_first,
                      uint64_t chunk_end, void *sums) {
    struct entries entries = entries_of(document, positions, chunk_first, chunk_end);
    entries.list = sums;
    entries.to_list = true;
    return go_through(&entries);
}

size_t key_index_sums_give(const struct document *document, uint64_t chunk_first, uint64_t chunk_end, void *sums) {
    return document->geometry.key_index_bytes > 0 ? page_sums_give(document, NULL, chunk_first, chunk_end, sums) : 0;
}

bool page_sums_take(struct document *document, const struct document_states *positions, uint64_t chunk_first,
                    uint64_t chunk_end, const void *sums, size_t bytes) {
    struct entries entries = entries_of(document, positions, chunk_first, chunk_end);
    if (bytes != go_through(&entries)) {
        entries.list_bytes = sizeof(struct checksum);
        if (bytes != go_through(&entries)) return false;
        document->parts_first = chunk_end;
    }
    entries.list = (uint8_t *)(uintptr_t)sums; /* read */
    if (bytes > 0) (void)go_through(&entries);
    return true;
}

bool key_index_sums_take(struct document *document, uint64_t chunk_first, uint64_t chunk_end, const void *sums,
                         size_t bytes) {
    if (document->geometry.key_index_bytes == 0) return bytes == 0;
    struct entries entries = entries_of(document, NULL, chunk_first, chunk_end);
    if (bytes != go_through(&entries)) return false;
    entries.list = (uint8_t *)(uintptr_t)sums;
    if (bytes > 0) (void)go_through(&entries);
    return true;
}

static void *place_of(const struct entries *entries, size_t bytes) {
    if (entries->geometry->windows.tokens > 0 || bytes != go_through(entries)) return NULL;
    return entries->table + page_index(entries->geometry, 0, 0, entries->chunk_first) * entries->table_bytes;
}

void *page_sums_place(const struct document *document, uint64_t chunk_first, uint64_t chunk_end, size_t bytes) {
    const struct entries entries = entries_of(document, &document->states, chunk_first, chunk_end);
    return place_of(&entries, bytes);
}

void *key_index_sums_place(const struct document *document, uint64_t chunk_first, uint64_t chunk_end, size_t bytes) {
    const struct entries entries = entries_of(document, NULL, chunk_first, chunk_end);
    return document->geometry.key_index_bytes > 0 ? place_of(&entries, bytes) : NULL;
}

bool page_sums_check_parts(const struct document *document, const struct page_read *read, struct part_sum *found,
                           struct part_sum *expected, size_t *part) {
    const struct geometry *geometry = &document->geometry;
    const uint8_t *sums =
        page_sum_at(document, page_index(geometry, read->layer, read->kv_head, read->chunk)) + sizeof(struct checksum);
    const size_t bytes = page_chunk_bytes(geometry, read->layer, read->kv_head, read->chunk),
                 end = (size_t)read->part_first + read->part_count;
    ASSERT(end <= page_sums_parts(document, read->layer, read->kv_head, read->chunk));
    for (size_t i = read->part_first; i < end; i++) {
        *found = part_sum_of((const uint8_t *)read->memory + i * geometry->part_bytes, part_length(geometry, bytes, i));
        memcpy(expected->bytes, sums + i * sizeof *expected, sizeof *expected);
        *part = i;
        if (memcmp(found, expected, sizeof *found) != 0) return false;
    }
    return true;
}
