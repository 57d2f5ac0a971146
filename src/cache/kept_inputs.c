/* The document that keeps the inputs of another one's layers, among all of a store. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cache/inputs.h"
#include "kernels/attention/kv_layout.h"

struct search {
    uint64_t id;
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES]; /* of that document */
    uint64_t *ids;                                /* owned: documents of inputs with that fingerprint */
    size_t count, capacity;
    bool failed;
};

static void see_document(void *context, const struct document_info *info) {
    struct search *search = context;
    if (!inputs_is_layout(info->layout))
        memcpy(search->fingerprint, info->fingerprint, sizeof search->fingerprint);
    else
        search->failed = true;
}

static void see_candidate(void *context, const struct document_info *info) {
    struct search *search = context;
    if (!inputs_is_layout(info->layout) || info->damaged != NULL || info->token_count == 0 ||
        memcmp(info->fingerprint, search->fingerprint, sizeof search->fingerprint) != 0)
        return;
    if (array_reserve(&search->ids, search->count, &search->capacity, sizeof *search->ids))
        search->ids[search->count++] = info->id;
    else
        search->failed = true;
}

static uint64_t common_prefix(const int32_t *a, uint64_t a_count, const int32_t *b, uint64_t b_count) {
    uint64_t i = 0;
    while (i < a_count && i < b_count && a[i] == b[i]) i++;
    return i;
}

static enum status compare(struct store *store, const struct search *search, struct kept_inputs *found,
                           struct error *error) {
    int32_t *tokens = NULL, *others;
    uint64_t count, other_count;
    enum status status = store_tokens(store, search->id, &tokens, &count, error);
    for (size_t i = 0; i < search->count && status == STATUS_OK; i++) {
        if (store_tokens(store, search->ids[i], &others, &other_count, NULL) != STATUS_OK) continue;
        const uint64_t common = common_prefix(tokens, count, others, other_count);
        if (common >= KV_CHUNK_TOKENS && common > found->token_count)
            *found = (struct kept_inputs){search->ids[i], common, other_count};
        free(others);
    }
    free(tokens);
    return status;
}

enum status kept_inputs_find(struct store *store, uint64_t id, struct kept_inputs *found, struct error *error) {
    struct search search = {.id = id};
    *found = (struct kept_inputs){0};
    TRY(store_show(store, id, see_document, &search, error));
    if (search.failed) return STATUS_OK; /* it is one of inputs itself */
    enum status status = store_list(store, see_candidate, &search, error);
    if (status == STATUS_OK && search.failed) status = error_set(error, STATUS_MEMORY, "documents: out of memory");
    if (status == STATUS_OK && search.count > 0) status = compare(store, &search, found, error);
    free(search.ids);
    return status;
}

enum status kept_inputs_pack(struct store *store, uint64_t id, uint64_t ids[PARCEL_DOCUMENTS_MAX], size_t *count,
                             struct error *error) {
    struct kept_inputs kept;
    TRY(kept_inputs_find(store, id, &kept, error));
    *count = 1;
    ids[0] = id;
    if (kept.document != 0 && kept.held == kept.token_count) ids[(*count)++] = kept.document;
    return STATUS_OK;
}
