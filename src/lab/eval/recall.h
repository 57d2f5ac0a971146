/* recall: what a selection caught of the attention it replaced, per layer and query head.
 *
 *   mass   sum of the exact softmax weights of the rows that were selected; 1 - mass bounds the change of the output:
 *          |o - o'| <= 2 (1 - mass) max |v|
 *   top    the fraction of the n rows with the largest exact scores that was selected; n: rows that were selected
 *   kept   selected rows / visible rows
 *   mass_bound  a lower bound of mass that the selection computes (--set mass_bound=1)
 *
 * Scores are computed here, in plain float with double sums, from the keys as they are stored.  Thread: one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "attention/attention.h"
#include "base/status.h"
#include "kernels/top_k/top_k.h"

struct recall_shape {
    size_t layer_count, head_count, kv_head_count, k_dimension;
    float scale, softcap; /* of attention */
};

struct recall_cell {                  /* of one layer and query head, over the steps */
    double mass, mass_min, top, kept; /* sums; mass_min: the smallest */
    uint64_t count;
    uint64_t mass_bound_count; /* of the following; 0: they are not set */
    double mass_bound, mass_bound_min;
    /* max of mass_bound - mass.  Above 0, beyond this file's rounding, it is a defect. */
    double mass_bound_excess;
};

struct recall {
    struct recall_shape shape;
    struct top_k_kernels top_k;
    uint64_t row_capacity;
    struct recall_cell *cells; /* [layer_count][head_count], owned */
    float *keys;               /* [k_dimension], owned */
    float *scores;             /* [group][row_capacity], owned */
    uint32_t *best;            /* [row_capacity], owned */
    void *chunk;               /* owned; one of the step's, in host memory; NULL before the first step */
    size_t chunk_bytes;
    void *scratch; /* owned */
};

/* row_capacity: the largest number of rows that a step sees. */
enum status recall_create(struct recall *recall, const struct recall_shape *shape, uint64_t row_capacity,
                          struct error *error) STATUS_CHECKED;
void recall_destroy(struct recall *recall); /* safe after a failed create */
void recall_reset(struct recall *recall);

/* One row of one layer: what it saw and what was selected of it.  A select_observer; its context is the recall. */
void recall_add(void *recall, const struct select_event *step);

const struct recall_cell *recall_get(const struct recall *recall, size_t layer_index, size_t head_index);
/* sum += cell */
void recall_cell_add(struct recall_cell *sum, const struct recall_cell *cell);
