/* quest: pages ranked by an upper bound of q . k (Tang et al. 2024, Quest): per channel the minimum and maximum of
 * a page's keys.  Differs from [quest]: one choice per group of query heads, by the head that wants the page
 * most (the paper's kernels have no groups). */
#include "attention/select_internal.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    return select_layout_pages(layout, shape, options, ABSTRACT_MIN_MAX, error);
}

const struct select_method select_quest = {
    .name = "quest", .summary = "pages by the bound of their keys (Quest)", .layout = layout};
