/* pq: tokens ranked by product codes of their keys (Zhang et al. 2024, PQCache).  Differs from [pqcache]: the codebook
 * of a token is of the `codebook` tokens before it instead of the whole prompt, and grows chunk by chunk
 * (lab/methods/product_codes.h), so that what lies beside a chunk follows from it and the chunks before it. */
#include "attention/select_method.h"
#include "lab/methods/methods.h"
#include "lab/methods/product_codes.h"
#include "plan/presets.h"

enum { BITS_DEFAULT = 6 };

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    const size_t partitions = options->partitions, bits = options->bits != 0 ? options->bits : BITS_DEFAULT;
    const size_t chunks = options->codebook / KV_CHUNK_TOKENS;
    if (partitions == 0 || partitions > PRODUCT_PARTITIONS_MAX || shape->k_dimension % (8 * partitions) != 0)
        return error_set(error, STATUS_USAGE,
                         "select=pq: partitions=%zu, expected a number up to %d that cuts a key of %zu into "
                         "parts of a multiple of 8",
                         partitions, PRODUCT_PARTITIONS_MAX, shape->k_dimension);
    if (bits > PRODUCT_BITS_MAX)
        return error_set(error, STATUS_USAGE, "select=pq: bits=%zu, expected 1 to %d", bits, PRODUCT_BITS_MAX);
    if (options->codebook % KV_CHUNK_TOKENS != 0 || chunks == 0 || (chunks & (chunks - 1)) != 0 ||
        chunks > (size_t)1 << bits || ((size_t)1 << bits) / chunks > KV_CHUNK_TOKENS)
        return error_set(error, STATUS_USAGE,
                         "select=pq: codebook=%zu, expected %d tokens times a power of two up to %zu, so "
                         "that a chunk adds 1 to %d of %zu centroids",
                         options->codebook, KV_CHUNK_TOKENS, (size_t)1 << bits, KV_CHUNK_TOKENS, (size_t)1 << bits);
    if (options->group == SELECT_GROUP_MAX)
        return error_set(error, STATUS_USAGE, "select=pq: group=max, expected sum or softmax");
    layout->kind = KEY_INDEX_PRODUCT;
    layout->product = (struct product_layout){
        .partitions = partitions, .centroids = ((size_t)1 << bits) / chunks, .codebook_chunks = chunks};
    layout->bytes = product_bytes(&layout->product, shape->k_dimension);
    layout->aggregate = select_aggregate(options, SCORE_SOFTMAX);
    return select_layout_tokens(layout, options, error);
}

const struct select_method select_product = {.name = "pq",
                                             .summary = "tokens by product codes of their keys (PQCache)",
                                             .layout = layout,
                                             .scatter = 0.5,
                                             .needs_key_index = true};

/* As published, but for the codebook, which is of the 1,024 tokens before a token. */
static const struct preset pqcache = {
    .name = "pqcache",
    .summary = "tokens by product codes of their keys (PQCache)",
    .methods = {"pq", "none", "none", "even", "f16", "none"},
    .keep = "10%",
    .settings = "sinks=32,recent_fraction=0.5",
    .disk_settings = "reuse=lfu",
    .planning = PRESET_IS_PLANNED,
    .measured = "pqcache",
};

__attribute__((constructor)) static void add(void) {
    select_method_add(&select_product);
    preset_add(&pqcache);
}
