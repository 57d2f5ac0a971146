#include "cli/rebuilt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "cache/inputs.h"
#include "cli/json_file.h"

static struct rebuild_statistics statistics_of(const struct engine *engine) {
    return attention_rebuild_statistics(engine_attention((struct engine *)engine));
}

void rebuilt_print(const struct engine *engine) {
    const struct rebuild_statistics r = statistics_of(engine);
    const double ratio = r.kv_bytes > 0 ? r.input_bytes / r.kv_bytes : 0;
    if (r.layers == 0) return;
    if (r.refusals > 0) {
        fprintf(stderr, "loam: note: inputs of layers: %s; K and V were read instead\n", r.refusal);
    } else if (r.chunks > 0) {
        fprintf(stderr,
                "loam: %.0f%% of what RAM lacked was computed again: inputs of %.2f times the bytes of KV, "
                "%.0f MB/s, "
                "%.1f us a token\n",
                100 * (double)r.chunks / (double)r.missing_chunks, ratio, r.bytes_per_second / 1e6,
                1e6 * r.seconds_per_token);
    } else if (ratio >= 1) {
        fprintf(stderr,
                "loam: note: nothing was computed again: the layers' inputs would move %.1f times the bytes "
                "of KV\n",
                ratio);
    } else {
        fprintf(stderr,
                "loam: note: nothing was computed again: at %.0f MB/s reading a token's KV takes %.1f us, "
                "computing it "
                "from its inputs (%.2f times the bytes) %.1f us\n",
                r.bytes_per_second / 1e6, 1e6 * r.kv_bytes / r.bytes_per_second, ratio,
                1e6 * r.seconds_per_token);
    }
}

json_t *rebuilt_json(const struct engine *engine) {
    const struct rebuild_statistics r = statistics_of(engine);
    if (r.layers == 0) return NULL;
    json_t *object = json_object();
    json_add_uint(object, "layers", r.layers);
    json_add_uint(object, "missing_chunks", r.missing_chunks);
    json_add_uint(object, "rebuilt_chunks", r.chunks);
    json_add_uint(object, "kept_chunks", r.kept_chunks);
    json_add_uint(object, "refusals", r.refusals);
    json_add_number(object, "input_bytes", r.input_bytes);
    json_add_number(object, "kv_bytes", r.kv_bytes);
    json_add_number(object, "link_bytes_per_second", r.bytes_per_second);
    json_add_number(object, "seconds_per_token", r.seconds_per_token);
    return object;
}

/* ---- documents ---- */

struct search {
    uint64_t id;
    uint8_t fingerprint[STORE_FINGERPRINT_BYTES]; /* of that document */
    uint64_t *ids;                                /* owned: documents of inputs with that fingerprint */
    size_t count;
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
    uint64_t *ids = realloc(search->ids, (search->count + 1) * sizeof *ids);
    search->failed = search->failed || ids == NULL;
    if (ids == NULL) return;
    search->ids = ids;
    ids[search->count++] = info->id;
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
            *found = (struct kept_inputs){search->ids[i], common};
        free(others);
    }
    free(tokens);
    return status;
}

enum status kept_inputs_find(struct store *store, uint64_t id, struct kept_inputs *found,
                             struct error *error) {
    struct search search = {.id = id};
    *found = (struct kept_inputs){0};
    TRY(store_show(store, id, see_document, &search, error));
    if (search.failed) return STATUS_OK; /* it is one of inputs itself */
    enum status status = store_list(store, see_candidate, &search, error);
    if (status == STATUS_OK && search.failed) status = error_set(error, STATUS_MEMORY, "show: out of memory");
    if (status == STATUS_OK && search.count > 0) status = compare(store, &search, found, error);
    free(search.ids);
    return status;
}
