/* quest: pages ranked by an upper bound of q . k (Tang et al. 2024, Quest): per channel the minimum and maximum of
 * a page's keys.  Differs from [quest]: one choice per group of query heads, by the head that wants the page
 * most (the paper's kernels have no groups). */
#include "attention/select_method.h"
#include "lab/methods/methods.h"
#include "plan/presets.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    return select_layout_pages(layout, shape, options, ABSTRACT_MIN_MAX, error);
}

const struct select_method select_quest = {.name = "quest",
                                           .summary = "pages by the bound of their keys (Quest)",
                                           .layout = layout,
                                           .scatter = 0.6,
                                           .own_page = SELECT_PAGE};

static const struct preset quest = {
    .name = "quest",
    .summary = "pages by the bound of their keys (Quest)",
    .methods = {"quest", "none", "none", "even", "f16", "none"},
    .keep = "2048",
    .planning = PRESET_DIALS,
    .measured = "quest",
};

__attribute__((constructor)) static void add(void) {
    select_method_add(&select_quest);
    preset_add(&quest);
}
