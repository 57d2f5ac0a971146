/* abstract_internal: what the variants of abstract share. */
#pragma once

#include "kernels/abstract/abstract.h"

/* Scores over a table of score kernels. */
void abstract_score_over(const struct score_kernels *kernels, const struct abstract_score_args *args);

/* Halves of page p's pair of rows: [2][dimension]. */
static inline uint16_t *abstract_page(const struct abstract_layout *layout, enum abstract_kind kind, void *abstract,
                                      size_t page) {
    uint8_t *block = (uint8_t *)abstract + layout->offset[kind];
    return (uint16_t *)(void *)block + page * 2 * layout->dimension;
}
