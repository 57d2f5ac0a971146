/* What makers and readers of parcels share: the bytes of its fields, and in which order its pages come. */
#include <string.h>

#include "cache/store/parcel_internal.h"

/* Not text, so that nothing that converts lines leaves it as it is. */
const uint8_t parcel_magic[PARCEL_MAGIC_BYTES] = {0x89, 'L', 'O', 'A', 'M', 'D', '\r', '\n'};

void parcel_put_number(uint8_t *bytes, uint64_t number, size_t count) {
    for (size_t i = 0; i < count; i++) bytes[i] = (uint8_t)(number >> 8 * i);
}

uint64_t parcel_get_number(const uint8_t *bytes, size_t count) {
    uint64_t number = 0;
    for (size_t i = 0; i < count; i++) number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}

void parcel_describe(const struct parcel_description *description, uint8_t bytes[PARCEL_DESCRIPTION_BYTES]) {
    const char *const texts[] = {description->name, description->model, description->layout};
    memset(bytes, 0, PARCEL_DESCRIPTION_BYTES);
    memcpy(bytes, description->fingerprint, STORE_FINGERPRINT_BYTES);
    parcel_put_number(bytes + STORE_FINGERPRINT_BYTES, description->token_count, 8);
    for (size_t i = 0; i < 3; i++)
        memcpy(bytes + STORE_FINGERPRINT_BYTES + 8 + i * STORE_TEXT_MAX, texts[i], strlen(texts[i]));
}

const char *parcel_description_read(const uint8_t bytes[PARCEL_DESCRIPTION_BYTES],
                                    struct parcel_description *description) {
    char *const texts[] = {description->name, description->model, description->layout};
    static const char *const names[] = {"name", "model", "layout"};
    memcpy(description->fingerprint, bytes, STORE_FINGERPRINT_BYTES);
    description->token_count = parcel_get_number(bytes + STORE_FINGERPRINT_BYTES, 8);
    for (size_t i = 0; i < 3; i++) {
        memcpy(texts[i], bytes + STORE_FINGERPRINT_BYTES + 8 + i * STORE_TEXT_MAX, STORE_TEXT_MAX);
        const size_t length = strnlen(texts[i], STORE_TEXT_MAX);
        for (size_t j = length; j < STORE_TEXT_MAX; j++)
            if (texts[i][j] != '\0') return names[i];
        if (length == STORE_TEXT_MAX) return names[i];
    }
    return NULL;
}

static uint64_t blocks(uint64_t count, uint64_t of) { return (count + of - 1) / of; }

/* Of a layer's tail and pages, each with its checksum; of one with windows the tail alone. */
static uint64_t layer_bytes(const struct geometry *geometry, size_t layer, uint64_t token_count) {
    const struct geometry_group *group = geometry_group(geometry, layer);
    const bool slides = geometry->windows.tokens > 0 && geometry->windows.slides[layer];
    const uint64_t chunks = slides ? 0 : chunks_full(token_count), heads = group->kv_head_count, pages = chunks * heads,
                   sum = sizeof(struct checksum),
                   quantized = geometry->fractions.layer_count > 0
                                   ? page_fractions_of_layer(&geometry->fractions, layer, heads, chunks)
                                   : pages;
    uint64_t bytes = quantized * (group->chunk_bytes + sum) + (pages - quantized) * (group->tail_chunk_bytes + sum);
    if (token_count % KV_CHUNK_TOKENS != 0) bytes += heads * (tail_bytes(geometry, layer, token_count) + sum);
    return bytes;
}

uint64_t parcel_document_bytes(const struct geometry *geometry, uint64_t token_count) {
    const uint64_t chunks = chunks_full(token_count), sum = sizeof(struct checksum);
    uint64_t bytes = PARCEL_DESCRIPTION_BYTES + sum, lanes = 0;
    bytes += token_count * sizeof(int32_t) + blocks(token_count, PARCEL_TOKENS_MAX) * sum;
    for (size_t layer = 0; layer < geometry->layer_count; layer++) bytes += layer_bytes(geometry, layer, token_count);
    if (geometry_has_positions(geometry)) bytes += PARCEL_STATES_BYTES + sum;
    for (size_t layer = 0; layer < geometry->layer_count; layer++) lanes += geometry_key_index_heads(geometry, layer);
    if (geometry->key_index_bytes > 0)
        bytes += lanes * (chunks * geometry->key_index_bytes + blocks(chunks, SEGMENT_CHUNKS) * sum);
    return bytes;
}

size_t parcel_state_parts(const struct geometry *geometry) {
    return (size_t)blocks(geometry->state_bytes, STATE_PART_BYTES);
}

uint64_t parcel_states_bytes(const struct geometry *geometry, const struct document_states *states,
                             uint64_t token_count) {
    uint64_t bytes = states->count * (geometry->state_bytes + parcel_state_parts(geometry) * sizeof(struct checksum));
    for (uint64_t chunk = 0; geometry->windows.tokens > 0 && chunk < chunks_full(token_count); chunk++)
        for (size_t layer = 0; layer < geometry->layer_count; layer++)
            for (size_t head = 0; geometry->windows.slides[layer] && page_is_kept(geometry, states, layer, chunk) &&
                                  head < geometry_heads(geometry, layer);
                 head++)
                bytes += page_chunk_bytes(geometry, layer, head, chunk) + sizeof(struct checksum);
    return bytes;
}

static size_t segment_count(uint64_t chunks, uint64_t first) {
    return chunks - first < SEGMENT_CHUNKS ? (size_t)(chunks - first) : SEGMENT_CHUNKS;
}

struct parcel_place parcel_page_place(const struct geometry *geometry, uint64_t chunks, uint64_t index) {
    const uint64_t segment_pages = SEGMENT_CHUNKS * (uint64_t)geometry->chunk_pages,
                   first = index / segment_pages * SEGMENT_CHUNKS;
    const size_t count = segment_count(chunks, first), within = (size_t)(index % segment_pages),
                 column = within / count;
    const size_t layer = geometry_layer_of(geometry, column);
    return (struct parcel_place){layer, column - geometry_lane(geometry, layer, 0), first + within % count,
                                 count - within % count};
}

struct parcel_key_index_place parcel_key_index_place(const struct geometry *geometry, uint64_t chunks, uint64_t index) {
    const uint64_t first = index / geometry->layer_count * SEGMENT_CHUNKS;
    return (struct parcel_key_index_place){(size_t)(index % geometry->layer_count), segment_count(chunks, first),
                                           first};
}

uint64_t parcel_key_index_count(const struct geometry *geometry, uint64_t chunks) {
    return geometry->key_index_bytes > 0 ? blocks(chunks, SEGMENT_CHUNKS) * geometry->layer_count : 0;
}
