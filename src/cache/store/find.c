/* Which saved document begins like these tokens? */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache/kv_windows.h"
#include "cache/store/store_internal.h"

struct comparison {
    const int32_t *tokens; /* [count] */
    uint64_t count, common;
};

/* One more piece of the document's tokens; false: they differ, or ours are over. */
static bool compare(void *context, const int32_t *tokens, uint64_t count) {
    struct comparison *comparison = context;
    uint64_t rest = comparison->count - comparison->common, i = 0;
    const int32_t *ours = comparison->tokens + comparison->common;
    while (i < count && i < rest && tokens[i] == ours[i]) i++;
    comparison->common += i;
    return i == count && i < rest;
}

/* Takes the row of a document whose pages have this layout (its fractions are its own), and its key index, too. */
static enum status take_row(struct store *store, const struct store_layout *layout, bool any_key_index,
                            struct store_match *match, bool *fits, struct error *error) {
    struct document_row row;
    TRY(catalog_find(&store->catalog, match->document, &row, fits, error));
    if (!*fits) return STATUS_OK; /* removed since */
    match->token_count = row.token_count;
    const struct store_layout *found = &match->layout;
    *fits = layout_parse(row.layout, &match->layout, NULL) == STATUS_OK && store_layout_same_pages(found, layout) &&
            found->fractions.layer_count == layout->fractions.layer_count &&
            (any_key_index || (strcmp(found->key_index_kind, layout->key_index_kind) == 0 &&
                               found->key_index_bytes == layout->key_index_bytes));
    return STATUS_OK;
}

/* A candidate's states, of which nothing is believed. */
struct last_states {
    size_t lanes;
    struct document_states states;
};

static void take_states(void *context, const struct commit_row *commit) {
    struct last_states *last = context;
    struct checksum ignored[STATE_PLACES];
    const size_t tail = commit->token_end % KV_CHUNK_TOKENS == 0 ? 0 : last->lanes * sizeof(struct checksum);
    if (!states_parse(commit, tail, &last->states, ignored)) last->states.count = 0; /* opening it tells */
}

/* Rows of compressed pages are rounded, so that of a full chunk all rows are taken or none. */
static bool is_exact(const struct store_match *match, uint64_t position) {
    return match->layout.tail_bytes == 0 || position % KV_CHUNK_TOKENS == 0 ||
           chunks_full(position) == chunks_full(match->token_count);
}

static bool is_seen(const struct last_states *last, uint64_t tokens, uint64_t chunk) {
    for (size_t i = 0; i < last->states.count; i++)
        if (kv_window_sees(tokens, last->states.list[i].position, chunk)) return true;
    return false;
}

/* The longest prefix of so many tokens whose next row finds its window. */
static uint64_t with_window(const struct store_match *match, const struct last_states *last, uint64_t prefix_tokens) {
    const uint64_t tokens = match->layout.windows.tokens;
    if (!is_exact(match, prefix_tokens)) prefix_tokens -= prefix_tokens % KV_CHUNK_TOKENS;
    for (uint64_t chunk = kv_window_begin(tokens, prefix_tokens); kv_window_sees(tokens, prefix_tokens, chunk);) {
        if (is_seen(last, tokens, chunk)) {
            chunk++;
            continue;
        }
        prefix_tokens = chunk * KV_CHUNK_TOKENS; /* no row behind it may be the next */
        chunk = kv_window_begin(tokens, prefix_tokens);
    }
    return prefix_tokens;
}

/* The longest prefix of so many tokens that the document has a state of, or a window in front of. */
static enum status with_position(struct store *store, const struct store_match *match, uint64_t *prefix_tokens,
                                 struct error *error) {
    struct last_states last = {.lanes = layout_lanes(&match->layout)};
    uint64_t longest = 0;
    TRY(catalog_see_last(&store->catalog, match->document, take_states, &last, error));
    for (size_t i = 0; i < last.states.count; i++) {
        const uint64_t position = last.states.list[i].position;
        if (position <= *prefix_tokens && is_exact(match, position) &&
            !store_refuses_state(store, match->document, position))
            longest = position;
    }
    *prefix_tokens = match->layout.windows.tokens > 0 ? with_window(match, &last, *prefix_tokens) : longest;
    return STATUS_OK;
}

static bool was_refused(const struct store *store, uint64_t id) {
    for (size_t i = 0; i < store->refused_count; i++)
        if (store->refused[i] == id) return true;
    return false;
}

static bool has_positions(const struct store_layout *layout) {
    return layout->state_bytes > 0 || layout->windows.tokens > 0;
}

/* stateless: the longest prefix of which no state helps (store_find_stateless), instead. */
static enum status search(struct store *store, const struct store_query *query, bool stateless,
                          struct store_match *match, struct error *error) {
    const struct store_layout *layout = query->layout;
    const struct comparison ours = {query->tokens, query->token_count, 0};
    char text[STORE_TEXT_MAX];
    const bool any_key_index = query->likeness == STORE_LIKE_PAGES; /* exactly: the layout as the catalog has it */
    const bool exactly = query->likeness == STORE_LIKE_ALL || (!any_key_index && layout->fractions.layer_count == 0);
    *match = (struct store_match){0};
    TRY(layout_check(layout, error));
    layout_format(layout, text);
    if (ours.count < KV_CHUNK_TOKENS) return STATUS_OK;
    struct id_list list;
    TRY(catalog_candidates(&store->catalog, query->model->fingerprint, exactly ? text : NULL, prefix_of(ours.tokens),
                           &list, error));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < list.count; i++) {
        struct comparison comparison = ours;
        struct store_match better = {.document = list.ids[i]};
        bool fits;
        if (was_refused(store, list.ids[i])) continue;
        status = catalog_see_tokens(&store->catalog, list.ids[i], compare, &comparison, error);
        /* Less than a chunk in common: another prefix with the same hash, or damage. */
        if (status != STATUS_OK || comparison.common < KV_CHUNK_TOKENS || comparison.common <= match->prefix_tokens)
            continue;
        better.prefix_tokens = comparison.common;
        status = take_row(store, layout, any_key_index, &better, &fits, error);
        if (status != STATUS_OK || !fits) continue;
        if (has_positions(layout)) status = with_position(store, &better, &better.prefix_tokens, error);
        if (stateless) better.prefix_tokens = better.prefix_tokens == 0 ? comparison.common : 0;
        if (status == STATUS_OK && better.prefix_tokens > match->prefix_tokens) *match = better;
    }
    free(list.ids);
    return status;
}

enum status store_find(struct store *store, const struct store_query *query, struct store_match *match,
                       struct error *error) {
    return search(store, query, false, match, error);
}

enum status store_find_stateless(struct store *store, const struct store_query *query, uint64_t *document,
                                 uint64_t *prefix_tokens, struct error *error) {
    struct store_match match = {0};
    if (has_positions(query->layout)) TRY(search(store, query, true, &match, error));
    *document = match.document;
    *prefix_tokens = match.prefix_tokens;
    return STATUS_OK;
}

enum status document_is_other(const struct store *store, const struct document_row *row, struct error *error) {
    unsigned version;
    (void)layout_is_read(row->layout, &version);
    return error_set(error, STATUS_UNSUPPORTED,
                     "%s: document %" PRIu64 ": found version %u of documents, expected %d to %d", store->catalog.path,
                     row->id, version, LAYOUT_VERSION_FIRST, LAYOUT_VERSION_LAST);
}

enum status store_find_other(struct store *store, const struct store_query *query, uint64_t *prefix_tokens,
                             struct error *why, struct error *error) {
    struct id_list list;
    uint64_t read = 0, other = 0;
    *prefix_tokens = 0;
    if (query->token_count < KV_CHUNK_TOKENS) return STATUS_OK;
    TRY(catalog_candidates(&store->catalog, query->model->fingerprint, NULL, prefix_of(query->tokens), &list, error));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < list.count; i++) {
        struct comparison comparison = {query->tokens, query->token_count, 0};
        struct document_row row;
        unsigned version;
        bool found;
        status = catalog_find(&store->catalog, list.ids[i], &row, &found, error);
        if (status != STATUS_OK || !found || !row.intact) continue;
        status = catalog_see_tokens(&store->catalog, list.ids[i], compare, &comparison, error);
        uint64_t *longest = layout_is_read(row.layout, &version) ? &read : &other;
        if (status != STATUS_OK || comparison.common < KV_CHUNK_TOKENS || comparison.common <= *longest) continue;
        *longest = comparison.common;
        enum status reason = longest == &other ? document_is_other(store, &row, why) : STATUS_OK;
        (void)reason;
    }
    if (other > read) *prefix_tokens = other;
    free(list.ids);
    return status;
}
