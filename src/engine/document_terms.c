#include "engine/document_terms.h"

#include <stdio.h>
#include <string.h>

#include "cache/inputs.h"

static enum status check_fingerprint(const struct document_terms *terms, const uint8_t *fingerprint,
                                     struct error *error) {
    char found[17], expected[17];
    if (memcmp(fingerprint, terms->model_fingerprint, STORE_FINGERPRINT_BYTES) == 0 ||
        memcmp(fingerprint, terms->fingerprint, STORE_FINGERPRINT_BYTES) == 0)
        return STATUS_OK;
    for (size_t i = 0; i < 8; i++) {
        snprintf(found + 2 * i, 3, "%02x", fingerprint[i]);
        snprintf(expected + 2 * i, 3, "%02x", terms->model_fingerprint[i]);
    }
    return error_set(error, STATUS_DOCUMENT,
                     "fingerprint: found %s..., expected %s...: it is of another model file, or another key's", found,
                     expected);
}

static enum status check_number(const char *field, uint32_t found, uint32_t expected, struct error *error) {
    if (found == expected) return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT, "%s: found %u, expected %u", field, found, expected);
}

static enum status check_key_index(const struct document_terms *terms, const struct store_layout *found,
                                   const struct store_layout *expected, struct error *error) {
    const bool is_built = expected->tail_bytes == 0 && !terms->takes_key_index;
    if (is_built || (found->key_index_bytes == expected->key_index_bytes &&
                     strcmp(found->key_index_kind, expected->key_index_kind) == 0))
        return STATUS_OK;
    return error_set(error, STATUS_DOCUMENT, "key index: found %s, %u bytes, expected %s, %u bytes",
                     found->key_index_kind, found->key_index_bytes, expected->key_index_kind,
                     expected->key_index_bytes);
}

/* What a search asks of a document's layout (documents.c). */
static enum status check_layout(const struct document_terms *terms, const struct store_layout *found,
                                const struct store_layout *expected, struct error *error) {
    if (strcmp(found->codec, expected->codec) != 0)
        return error_set(error, STATUS_DOCUMENT, "codec: found %s, expected %s", found->codec, expected->codec);
    TRY(check_number("layers", found->layer_count, expected->layer_count, error));
    TRY(check_number("KV heads", found->kv_head_count, expected->kv_head_count, error));
    TRY(check_number("bytes of a chunk", found->chunk_bytes, expected->chunk_bytes, error));
    TRY(check_number("bytes of a tail", found->tail_bytes, expected->tail_bytes, error));
    if (!store_layout_same_pages(found, expected))
        return error_set(error, STATUS_DOCUMENT, "groups of layers: found %u, expected %u, of the same layers",
                         found->groups.later_count + 1u, expected->groups.later_count + 1u);
    TRY(check_number("layers with pages in 4 bits", found->fractions.layer_count, expected->fractions.layer_count,
                     error));
    if (terms->fixes_fractions && !page_fractions_equal(&found->fractions, &expected->fractions))
        return error_set(error, STATUS_DOCUMENT, "pages in 4 bits: found another fraction than this server's");
    return check_key_index(terms, found, expected, error);
}

static enum status check_tokens(const struct document_terms *terms, const struct parcel_document *document,
                                struct error *error) {
    for (uint64_t i = 0; i < document->token_count; i++)
        if (document->tokens[i] < 0 || (size_t)document->tokens[i] >= terms->vocabulary_size)
            return error_set(error, STATUS_DOCUMENT, "token %llu: found id %d, expected 0 to %zu",
                             (unsigned long long)i, document->tokens[i], terms->vocabulary_size - 1);
    return STATUS_OK;
}

enum status document_terms_accept(void *context, struct parcel_document *document, struct error *error) {
    const struct document_terms *terms = context;
    struct error ignored;
    enum status status = STATUS_OK;
    TRY(check_fingerprint(terms, document->fingerprint, error));
    TRY(check_tokens(terms, document, error));
    if (!inputs_is_layout(document->layout)) { /* those of inputs are used where their form is the plan's */
        status = check_layout(terms, document->pages, &terms->layouts[0], error);
        for (size_t i = 1; i < terms->layout_count && status != STATUS_OK; i++)
            if (check_layout(terms, document->pages, &terms->layouts[i], &ignored) == STATUS_OK) status = STATUS_OK;
    }
    memcpy(document->fingerprint, terms->fingerprint, sizeof document->fingerprint);
    return status;
}
