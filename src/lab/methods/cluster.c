/* cluster: tokens ranked by the centroids of clusters of keys, and the rest attended to as centroids and mean values
 * (Chen et al. 2025, RetroInfer).  Differs from [retroinfer]: a segment that is clustered is a chunk of 64 tokens
 * instead of 8,192, so that the index of a chunk follows from its keys and comes, goes and is saved with it; all that
 * is not picked is estimated, where the paper drops all but 23% of the clusters; the last cluster that is picked may
 * be picked in part, since keep counts tokens. */
#include "lab/methods/cluster.h"
#include "attention/select_method.h"
#include "lab/methods/methods.h"
#include "plan/presets.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    const size_t page = options->page != 0 ? options->page : SELECT_PAGE; /* tokens of a cluster, on average */
    if (page != 8 && page != 16 && page != 32 && page != 64)
        return error_set(error, STATUS_USAGE, "select=cluster: page=%zu, expected 8, 16, 32 or 64", page);
    layout->kind = KEY_INDEX_CLUSTER;
    layout->cluster_count = KV_CHUNK_TOKENS / page;
    layout->estimates_rest = options->estimate;
    layout->bytes = cluster_bytes(layout->cluster_count, shape->k_dimension, shape->v_dimension);
    layout->aggregate = select_aggregate(options, SCORE_SOFTMAX);
    return STATUS_OK;
}

const struct select_method select_cluster = {.name = "cluster",
                                             .summary = "tokens by clusters of keys, the rest estimated (RetroInfer)",
                                             .layout = layout,
                                             .scatter = 0.5,
                                             .finds_few_chunks = true,
                                             .own_page = SELECT_PAGE};

/* As published, but for the segments that are clustered, which are chunks. */
static const struct preset retroinfer = {
    .name = "retroinfer",
    .summary = "clusters of keys, and an estimate of the rest (RetroInfer)",
    .methods = {"cluster", "none", "none", "even", "f16", "none"},
    .keep = "1.8%",
    .planning = PRESET_IS_PLANNED,
    .measured = "retroinfer",
};

__attribute__((constructor)) static void add(void) {
    select_method_add(&select_cluster);
    preset_add(&retroinfer);
}
