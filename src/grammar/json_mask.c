#include "grammar/json_mask.h"

static enum status apply(void *context, float *logits, size_t vocabulary_size, struct error *error) {
    return json_matcher_mask(context, logits, vocabulary_size, error);
}

static enum status accept(void *context, int32_t token, struct error *error) {
    return json_matcher_accept(context, token, error);
}

static bool is_complete(void *context) { return json_matcher_is_complete(context); }

static void destroy(void *context) { json_matcher_destroy(context); }

enum status json_mask_create(struct logit_mask *mask, const struct json_schema *schema, const struct token_trie *trie,
                             struct error *error) {
    struct json_matcher *matcher;
    *mask = (struct logit_mask){0};
    TRY(json_matcher_create(&matcher, schema, trie, error));
    *mask = (struct logit_mask){matcher, apply, accept, is_complete, destroy};
    return STATUS_OK;
}
