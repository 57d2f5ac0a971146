/* exact: takes the tokens of the largest q . k by reading every key, which the other methods approximate.  An oracle
 * for what a selection can catch, and the importance evaluation by token of H2O-like offloading ([leoam] 6.1), which
 * has all KV fetched for it. */
#include "attention/select_method.h"
#include "lab/methods/methods.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    (void)shape;
    layout->kind = KEY_INDEX_KEYS;
    layout->aggregate = select_aggregate(options, SCORE_SOFTMAX);
    return select_layout_tokens(layout, options, error);
}

const struct select_method select_exact = {.name = "exact",
                                           .summary = "tokens by all keys: what others approximate",
                                           .layout = layout,
                                           .scatter = 0.5,
                                           .reads_keys = true};

__attribute__((constructor)) static void add(void) { select_method_add(&select_exact); }
