/* saved: the documents of a model and owner, and which of them a sequence has. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "engine/document_terms.h"
#include "engine/engine_internal.h"

void sequence_set_owner(struct sequence *sequence, const char *owner, const char *name) {
    ASSERT(sequence_length(sequence) == 0);
    snprintf(sequence->owner, sizeof sequence->owner, "%s", owner != NULL ? owner : "");
    snprintf(sequence->document_name, sizeof sequence->document_name, "%s", name != NULL ? name : "");
}

uint64_t sequence_document(const struct sequence *sequence) {
    if (sequence->tokens == NULL) return 0;
    return kv_sequence_document(sequence->kv, sequence->tokens);
}

bool sequence_is_saved(const struct sequence *sequence) {
    return sequence->tokens != NULL &&
           kv_sequence_is_committed(sequence->kv, sequence->tokens, sequence_saved_end(sequence));
}

uint64_t engine_failed_document(const struct engine *engine) { return kv_tier_failed_document(engine->cache); }

struct listing {
    const struct engine *engine;
    const char *owner;
    void (*see)(void *context, const struct document_info *info);
    void *context;
    uint64_t found;
};

static void see_own(void *context, const struct document_info *info) {
    struct listing *listing = context;
    if (!documents_belongs(listing->engine->documents, listing->owner, info)) return;
    listing->found = info->id;
    if (listing->see != NULL) listing->see(listing->context, info);
}

enum status engine_list_documents(struct engine *engine, const char *owner,
                                  void (*see)(void *context, const struct document_info *info), void *context,
                                  struct error *error) {
    if (engine->documents == NULL) return STATUS_OK;
    struct listing listing = {.engine = engine, .owner = owner, .see = see, .context = context};
    return store_list(documents_backing(engine->documents)->store, see_own, &listing, error);
}

/* Others' documents are as good as absent. */
static enum status check_owner(struct engine *engine, const char *owner, uint64_t id, struct error *error) {
    struct listing listing = {.engine = engine, .owner = owner};
    if (engine->documents != NULL && id != 0) {
        const enum status status =
            store_show(documents_backing(engine->documents)->store, id, see_own, &listing, error);
        if (status != STATUS_OK && status != STATUS_DOCUMENT) return status;
    }
    if (id != 0 && listing.found == id) return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT, "document %llu: there is none", (unsigned long long)id);
}

enum status engine_remove_document(struct engine *engine, const char *owner, uint64_t id, struct error *error) {
    TRY(check_owner(engine, owner, id, error));
    return store_remove(documents_backing(engine->documents)->store, id, error);
}

enum status engine_document_tokens(struct engine *engine, const char *owner, uint64_t id, int32_t **tokens,
                                   uint64_t *count, struct error *error) {
    *tokens = NULL;
    *count = 0;
    TRY(check_owner(engine, owner, id, error));
    return store_tokens(documents_backing(engine->documents)->store, id, tokens, count, error);
}

enum status engine_document_terms(const struct engine *engine, const char *owner, bool stores,
                                  struct document_terms *terms, struct error *error) {
    *terms = (struct document_terms){0};
    if (engine->documents == NULL)
        return error_set(error, STATUS_USAGE, "documents are saved with --kv-disk DIR alone");
    TRY(documents_terms(engine->documents, owner, stores, terms, error));
    terms->vocabulary_size = engine_config(engine)->vocabulary_size;
    return STATUS_OK;
}
