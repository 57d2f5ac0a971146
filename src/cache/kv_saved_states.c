/* States of a sequence on their way to its documents and from there. */
#include "cache/kv_tier_internal.h"

/* A state in the device's memory. */
struct place {
    const struct device_operations *operations;
    struct stream *stream;
    struct span at;
};

static struct place place_of(const struct kv_sequence *sequence, struct span at) {
    return (struct place){sequence->cache->device->operations, sequence->cache->tier->stream, at};
}

static enum status download(void *context, size_t offset, void *memory, size_t bytes, struct error *error) {
    const struct place *place = context;
    place->operations->download(place->stream, memory, span_behind(place->at, offset), bytes);
    return place->operations->stream_synchronize(place->stream, error);
}

static enum status upload(void *context, size_t offset, const void *memory, size_t bytes, struct error *error) {
    const struct place *place = context;
    place->operations->upload(place->stream, span_behind(place->at, offset), memory, bytes);
    return place->operations->stream_synchronize(place->stream, error);
}

static size_t insert(uint64_t *positions, size_t count, uint64_t position) {
    size_t at = count;
    for (size_t i = 0; i < count; i++)
        if (positions[i] == position) return count;
    for (; at > 0 && positions[at - 1] > position; at--) positions[at] = positions[at - 1];
    positions[at] = position;
    return count + 1;
}

static bool has(const uint64_t *positions, size_t count, uint64_t position) {
    for (size_t i = 0; i < count; i++)
        if (positions[i] == position) return true;
    return false;
}

/* A state of no bytes. */
static enum status no_bytes(void *context, size_t offset, void *memory, size_t bytes, struct error *error) {
    (void)context, (void)offset, (void)memory, (void)bytes, (void)error;
    return STATUS_OK;
}

/* Those that the windows in memory are kept for. */
static enum status write_positions(const struct kv_sequence *sequence, struct document *document, struct error *error) {
    const struct window_columns *windows = &sequence->windows;
    uint64_t saved[STORE_STATES_MAX], wanted[KV_WINDOW_SNAPSHOTS + 2];
    const size_t saved_count = document_states(document, saved);
    size_t count = 0;
    for (size_t i = 0; i < windows->kept_count; i++) count = insert(wanted, count, windows->kept[i]);
    count = insert(wanted, count, sequence->length);
    for (size_t i = 0; i < saved_count; i++)
        if (!has(wanted, count, saved[i])) document_forget_state(document, saved[i]);
    for (size_t i = 0; i < count; i++)
        if (!has(saved, saved_count, wanted[i])) TRY(document_write_state(document, wanted[i], no_bytes, NULL, error));
    return STATUS_OK;
}

enum status tier_write_states(struct kv_sequence *sequence, struct document *document, struct error *error) {
    const struct kv_state *state = sequence->state;
    uint64_t saved[STORE_STATES_MAX], wanted[STORE_STATES_MAX + KV_STATE_POSITIONS_MAX], here[KV_STATE_POSITIONS_MAX];
    if (sequence->cache->config.windows != NULL) return write_positions(sequence, document, error);
    if (state == NULL) return STATUS_OK;
    const size_t saved_count = document_states(document, saved), here_count = kv_state_positions(state, here);
    size_t count = 0;
    for (size_t i = 0; i < saved_count; i++) count = insert(wanted, count, saved[i]);
    for (size_t i = 0; i < here_count; i++) count = insert(wanted, count, here[i]);
    count = kv_state_thin(state, wanted, count, STORE_STATES_MAX);
    for (size_t i = 0; i < saved_count; i++)
        if (!has(wanted, count, saved[i])) document_forget_state(document, saved[i]);
    /* The last ones first: what has no place now has one with the next commit. */
    for (size_t i = here_count; i-- > 0 && document_state_room(document) > 0;) {
        if (!has(wanted, count, here[i]) || has(saved, saved_count, here[i])) continue;
        struct place place = place_of(sequence, kv_state_at(state, here[i]));
        TRY(document_write_state(document, here[i], download, &place, error));
        sequence->cache->tier->statistics.write_bytes += sequence->cache->config.state_floats * sizeof(float);
    }
    return STATUS_OK;
}

enum status tier_load_state(struct kv_sequence *sequence, struct document *document, uint64_t token_count,
                            struct error *error) {
    if (sequence->cache->config.windows != NULL) {
        uint64_t positions[STORE_STATES_MAX];
        kv_windows_open(sequence, positions, document_states(document, positions), token_count);
    }
    if (sequence->state == NULL) return STATUS_OK;
    struct place place = place_of(sequence, kv_state_begin_load(sequence->state, token_count));
    TRY(document_read_state(document, token_count, sequence->cache->tier->bounce.memory, upload, &place, error));
    sequence->cache->tier->statistics.read_bytes += sequence->cache->config.state_floats * sizeof(float);
    kv_state_end_load(sequence->state, token_count);
    return STATUS_OK;
}

enum status tier_copy_states(struct kv_sequence *sequence, struct document *from, struct document *to,
                             struct error *error) {
    uint64_t positions[STORE_STATES_MAX];
    if (sequence->state == NULL) return STATUS_OK;
    struct place place = place_of(sequence, kv_state_spare(sequence->state));
    for (size_t i = document_states(from, positions); i-- > 0 && document_state_room(to) > 0;) {
        struct error ignored; /* a damaged one stays behind */
        if (positions[i] < sequence->length &&
            document_read_state(from, positions[i], sequence->cache->tier->bounce.memory, upload, &place, &ignored) ==
                STATUS_OK)
            TRY(document_write_state(to, positions[i], download, &place, error));
    }
    return STATUS_OK;
}
