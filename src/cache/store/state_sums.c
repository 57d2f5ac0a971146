/* States as commits name them: their positions and places, and the checksums of what lies there. */
#include <string.h>

#include "cache/store/store_internal.h"

static uint64_t get_number(const uint8_t bytes[8]) {
    uint64_t number = 0;
    for (size_t i = 0; i < 8; i++) number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}

static void put_number(uint8_t bytes[8], uint64_t number) {
    for (size_t i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * i);
}

bool states_parse(const struct commit_row *commit, size_t tail_sums_bytes, struct document_states *states,
                  struct checksum *sums) {
    const size_t bytes = commit->tail_sums_bytes;
    bool used[STATE_PLACES] = {false};
    *states = (struct document_states){0};
    if (bytes < tail_sums_bytes || (bytes - tail_sums_bytes) % sizeof(struct state_entry) != 0) return false;
    const size_t count = (bytes - tail_sums_bytes) / sizeof(struct state_entry);
    if (count > STORE_STATES_MAX) return false;
    for (size_t i = 0; i < count; i++) {
        struct state_entry entry;
        memcpy(&entry, (const uint8_t *)commit->tail_sums + tail_sums_bytes + i * sizeof entry, sizeof entry);
        const struct document_state state = {get_number(entry.position), get_number(entry.place)};
        const uint64_t before = i > 0 ? states->list[i - 1].position : 0;
        if (state.position <= before || state.position > commit->token_end || state.place >= STATE_PLACES ||
            used[state.place])
            return false;
        used[state.place] = true;
        states->list[i] = state;
        sums[state.place] = entry.sum;
    }
    states->count = count;
    return true;
}

size_t states_format(const struct document_states *states, const struct checksum *sums, struct state_entry *entries) {
    for (size_t i = 0; i < states->count; i++) {
        put_number(entries[i].position, states->list[i].position);
        put_number(entries[i].place, states->list[i].place);
        entries[i].sum = sums[states->list[i].place];
    }
    return states->count * sizeof *entries;
}
