/* cuda_views: what kernels read of items and their views, which are the host's: rows, places of tables, and the
 * addresses of pools.  They are staged for each operation; of a graph the rows are those of the step. */
#pragma once

#include "device/cuda/cuda_device_internal.h"

/* One staged area. */
struct staged_views {
    struct staged area;
    struct cuda_pools *pools; /* [item_count] */
    struct step_head *head;   /* no limit but that of a launch */
    struct step_row *rows;    /* [row_count], one item after the other */
    struct step_item *items;  /* [item_count] */
    uint64_t card_head, card_rows, card_items, card_pools;
    size_t row_count;
};

/* ranges, step: as in attend_operation.  False: the device is broken. */
bool cuda_views_stage(struct stream *stream, struct staged_views *views, const struct attend_item *items,
                      size_t item_count, const struct attend_ranges *ranges, struct span step);
/* Rows of items [begin, end). */
size_t cuda_rows_of(const struct attend_item *items, size_t begin, size_t end);
/* Items from `first` on with the same pools, whose rows follow each other in q, k, v and out: kernels count rows from
 * there. */
size_t cuda_run_end(const struct attend_item *items, size_t item_count, size_t first);
struct kv_shape cuda_shape_of(const struct kv_layout *layout);
