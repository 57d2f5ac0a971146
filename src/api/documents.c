/* loam.h: saved documents. */
#include <stdlib.h>

#include "api/api_internal.h"
#include "cache/store/store.h"

struct listing {
    bool (*see)(void *context, const struct loam_document *document);
    void *context;
    bool stopped;
};

static void see_document(void *context, const struct document_info *info) {
    struct listing *listing = context;
    const struct loam_document document = {.id = info->id,
                                           .token_count = info->token_count,
                                           .bytes = info->bytes,
                                           .created = info->created,
                                           .used = info->used,
                                           .name = info->name,
                                           .model = info->model,
                                           .layout = info->layout,
                                           .damage = info->damaged,
                                           .in_use = info->in_use,
                                           .is_other = info->is_other};
    if (!listing->stopped) listing->stopped = listing->see(listing->context, &document);
}

enum loam_status loam_documents_list(const char *directory,
                                     bool (*see)(void *context, const struct loam_document *document), void *context,
                                     struct loam_error *error) {
    API_NEED(directory, error);
    API_NEED(see, error);
    struct store *store = NULL;
    struct listing listing = {.see = see, .context = context};
    struct error reason = {0};
    enum status status = store_open_existing(&store, directory, STORE_LOOK, &reason);
    if (status == STATUS_OK) status = store_list(store, see_document, &listing, &reason);
    store_close(store);
    return api_report(status, &reason, error);
}

enum loam_status loam_document_tokens(const char *directory, uint64_t id, int32_t *ids, size_t capacity, size_t *count,
                                      struct loam_error *error) {
    API_NEED(directory, error);
    API_NEED(count, error);
    if (capacity > 0) API_NEED(ids, error);
    struct store *store = NULL;
    struct error reason = {0};
    int32_t *tokens = NULL;
    uint64_t held = 0;
    enum status status = store_open_existing(&store, directory, STORE_LOOK, &reason);
    if (status == STATUS_OK) status = store_tokens(store, id, &tokens, &held, &reason);
    *count = (size_t)held;
    api_copy_ids(tokens, *count, ids, capacity);
    free(tokens);
    store_close(store);
    return api_report(status, &reason, error);
}

enum loam_status loam_document_remove(const char *directory, uint64_t id, struct loam_error *error) {
    API_NEED(directory, error);
    struct store *store = NULL;
    struct error reason = {0};
    enum status status = store_open_existing(&store, directory, STORE_CHANGE, &reason);
    if (status == STATUS_OK) status = store_remove(store, id, &reason);
    store_close(store);
    if (status == STATUS_FULL) status = STATUS_FAILED; /* "full" means memory; here the document is open elsewhere */
    return api_report(status, &reason, error);
}

enum loam_status loam_document_verify(const char *directory, uint64_t id, struct loam_error *error) {
    API_NEED(directory, error);
    struct store *store = NULL;
    struct error reason = {0};
    enum status status = store_open_existing(&store, directory, STORE_VERIFY, &reason);
    if (status == STATUS_OK) status = store_verify(store, id, &reason);
    store_close(store);
    return api_report(status, &reason, error);
}
