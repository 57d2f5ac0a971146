/* h2o: tokens ranked by the attention they have received so far (Zhang et al. 2023, H2O), half of keep to them and
 * half to the recent.  Differs from [h2o]: nothing is evicted, so a token that was left out keeps its mass and
 * can come back only when the heavy ones lose their lead; the prompt's column sums are estimated from every
 * SELECT_WATCH_INTERVAL-th query, times that; mass is summed over the group of a KV head. */
#include "attention/select_method.h"
#include "lab/methods/methods.h"
#include "plan/presets.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    (void)shape, (void)options, (void)error;
    layout->kind = KEY_INDEX_MASS;
    layout->bytes = KV_CHUNK_TOKENS * sizeof(float);
    return STATUS_OK;
}

const struct select_method select_h2o = {.name = "h2o",
                                         .summary = "tokens by the attention they received (H2O)",
                                         .layout = layout,
                                         .recent_fraction = 0.5,
                                         .watches_prefill = true};

static const struct preset h2o = {
    .name = "h2o",
    .summary = "tokens by the attention they received (H2O)",
    .methods = {"h2o", "none", "none", "even", "f16", "none"},
    .keep = "20%",
};

__attribute__((constructor)) static void add(void) {
    select_method_add(&select_h2o);
    preset_add(&h2o);
}
