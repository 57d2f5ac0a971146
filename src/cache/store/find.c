/* Which saved document begins like these tokens? */
#include <inttypes.h>
#include <stdlib.h>

#include "base/checked.h"
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

enum status store_find(struct store *store, const struct store_model *model,
                       const struct store_layout *layout, const int32_t *tokens, uint64_t token_count,
                       struct store_match *match, struct error *error) {
    *match = (struct store_match){0};
    TRY(layout_check(layout, error));
    if (token_count < KV_CHUNK_TOKENS) return STATUS_OK;
    char text[STORE_TEXT_MOST];
    layout_format(layout, text);
    uint64_t *ids;
    size_t count;
    TRY(catalog_candidates(&store->catalog, model->fingerprint, text, prefix_of(tokens), &ids, &count,
                           error));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        struct comparison comparison = {tokens, token_count, 0};
        status = catalog_see_tokens(&store->catalog, ids[i], compare, &comparison, error);
        /* Less than a chunk in common: another prefix with the same hash, or damage. */
        if (comparison.common < KV_CHUNK_TOKENS || comparison.common <= match->prefix_tokens) continue;
        *match = (struct store_match){ids[i], comparison.common, 0};
    }
    free(ids);
    if (status != STATUS_OK || match->document == 0) return status;
    struct document_row row;
    bool found;
    TRY(catalog_find(&store->catalog, match->document, &row, &found, error));
    if (!found)
        *match = (struct store_match){0}; /* removed since */
    else
        match->token_count = row.token_count;
    return STATUS_OK;
}
