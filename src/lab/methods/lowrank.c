/* lowrank: tokens ranked by partial keys (Lee et al. 2024, InfiniGen): q and k, skewed per head so that few columns
 * carry most of q . k, are compared in these columns only.  As published, by queries that the layer before expects
 * (reuse=similarity with eta=1) and with alpha, it is the preset infinigen-published; the preset infinigen differs from
 * [infinigen]: it takes the layer's own queries, and as many tokens as keep says. */
#include "attention/select_method.h"
#include "lab/methods/methods.h"
#include "plan/presets.h"

enum { PUBLISHED_SHARE = 5, COLUMN_GRANULE = 8 }; /* a fifth of the columns */

static size_t column_count(const struct select_shape *shape, const struct select_options *options) {
    size_t wanted =
        options->columns != 0 ? options->columns : (shape->k_dimension + PUBLISHED_SHARE - 1) / PUBLISHED_SHARE;
    return align_up(wanted, COLUMN_GRANULE);
}

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    layout->columns = column_count(shape, options);
    if (layout->columns > shape->k_dimension)
        return error_set(error, STATUS_USAGE, "select=lowrank: columns=%zu, the heads have %zu", options->columns,
                         shape->k_dimension);
    layout->kind = KEY_INDEX_PARTIAL;
    layout->bytes = KV_CHUNK_TOKENS * layout->columns * sizeof(uint16_t);
    layout->aggregate = select_aggregate(options, SCORE_MAX);
    return select_layout_tokens(layout, options, error);
}

/* The file has all columns of the skewing matrix, the most important first. */
static enum status weights(uint16_t *weights, size_t layer_index, const uint16_t *alike,
                           const struct select_shape *shape, const struct select_options *options,
                           const struct select_calibration *calibration, const char **fallback, struct error *error) {
    (void)fallback, (void)alike;
    size_t kept = column_count(shape, options), found = kept;
    size_t rows = shape->kv_head_count * shape->k_dimension;
    const uint16_t *skew = select_calibration_find(calibration, "skew", layer_index, &found);
    if (skew == NULL)
        return error_set(error, STATUS_USAGE,
                         "select=lowrank needs skewing matrices: %s has none of %zu columns for layer %zu; make it "
                         "with `loam-lab calibrate MODEL TEXT`",
                         calibration->path, kept, layer_index);
    for (size_t row = 0; row < rows; row++) memcpy(weights + row * kept, skew + row * found, kept * sizeof *weights);
    return STATUS_OK;
}

const struct select_method select_lowrank = {.name = "lowrank",
                                             .summary = "tokens by skewed partial keys (InfiniGen)",
                                             .layout = layout,
                                             .weights = weights,
                                             .scatter = 0.5};

static const struct preset infinigen = {
    .name = "infinigen",
    .summary = "tokens by skewed partial keys (InfiniGen)",
    .methods = {"lowrank", "none", "none", "even", "f16", "none"},
    .keep = "20%",
};

/* As published: chosen by the queries that the layer before expects (lists are kept while these are the same, so
 * never), as many as weigh within e^-alpha of the best. */
static const struct preset published = {
    .name = "infinigen-published",
    .summary = "the same by expected queries, as many as weigh enough",
    .methods = {"lowrank", "similarity", "next-layer", "even", "f16", "none"},
    .keep = "20%",
    .settings = "alpha=5,eta=1,power=0",
};

__attribute__((constructor)) static void add(void) {
    select_method_add(&select_lowrank);
    preset_add(&infinigen);
    preset_add(&published);
}
