/* meanstd: pages ranked by q . mean + |q| . deviation of their keys (arXiv 2605.27740): the bytes of quest, and
 * no bound, but a page is not ranked up by the outliers of channels that do not go together. */
#include "attention/select_method.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    return select_layout_pages(layout, shape, options, ABSTRACT_MEAN_DEVIATION, error);
}

const struct select_method select_meanstd = {.name = "meanstd",
                                             .summary = "pages by mean and deviation of their keys",
                                             .layout = layout,
                                             .scatter = 0.45,
                                             .own_page = SELECT_PAGE};
