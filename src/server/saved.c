/* saved: an owner's saved documents, from any thread. */
#include "server/service_internal.h"

struct saved_call {
    struct service *service;
    const char *owner;
    uint64_t id;
    void (*see)(void *context, const struct document_info *info);
    void *context;
    int32_t **tokens;
    uint64_t *count;
    struct document_terms *terms;
    bool stores;
    enum status status;
    struct error *error;
};

static void list(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct saved_call *call = context;
    (void)live, (void)live_count;
    call->status = engine_list_documents(engine, call->owner, call->see, call->context, call->error);
}

static void remove_one(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct saved_call *call = context;
    (void)live, (void)live_count;
    resident_forget_document(call->service, call->owner, call->id);
    call->status = engine_remove_document(engine, call->owner, call->id, call->error);
}

static void read_tokens(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct saved_call *call = context;
    (void)live, (void)live_count;
    call->status = engine_document_tokens(engine, call->owner, call->id, call->tokens, call->count, call->error);
}

static void read_terms(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct saved_call *call = context;
    (void)live, (void)live_count;
    call->status = engine_document_terms(engine, call->owner, call->stores, call->terms, call->error);
}

enum status service_list_documents(struct service *service, const char *owner,
                                   void (*see)(void *context, const struct document_info *info), void *context,
                                   struct error *error) {
    struct saved_call call = {.owner = owner, .see = see, .context = context, .error = error};
    TRY(service_call(service, list, &call, error));
    return call.status;
}

enum status service_remove_document(struct service *service, const char *owner, uint64_t id, struct error *error) {
    struct saved_call call = {.service = service, .owner = owner, .id = id, .error = error};
    TRY(service_call(service, remove_one, &call, error));
    return call.status;
}

enum status service_document_tokens(struct service *service, const char *owner, uint64_t id, int32_t **tokens,
                                    uint64_t *count, struct error *error) {
    struct saved_call call = {.owner = owner, .id = id, .tokens = tokens, .count = count, .error = error};
    *tokens = NULL;
    *count = 0;
    TRY(service_call(service, read_tokens, &call, error));
    return call.status;
}

enum status service_document_terms(struct service *service, const char *owner, bool stores,
                                   struct document_terms *terms, struct error *error) {
    struct saved_call call = {.owner = owner, .stores = stores, .terms = terms, .error = error};
    TRY(service_call(service, read_terms, &call, error));
    return call.status;
}
