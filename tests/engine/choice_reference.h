/* choice_reference: what each KV head of each layer must choose, by the formulas, from its keys and the queries of the
 * step, whatever the key index beside them says.  An observer of steps of one sequence (attention_set_observer). */
#pragma once

#include "attention/attention.h"
#include "model/calibration.h"
#include "model/model.h"

enum reference_rank {
    RANK_MEAN_DEVIATION, /* of a unit's keys: q . mean + |q| . deviation; the largest of a group's query heads */
    RANK_BOUND, /* the largest product that keys within the unit's minima and maxima could have; the same */
    RANK_SIGNS  /* (heads - 2 distance / bits) |k|: distance of signs of projections, all heads together */
};

enum { REFERENCE_LAYERS = 8, REFERENCE_HEADS = 4, REFERENCE_TOKENS = 1024, REFERENCE_DIMENSION = 64 };

/* Rows of a list between the window's two parts. */
struct reference_list {
    uint32_t rows[REFERENCE_TOKENS];
    size_t count;
};

struct choice_reference {
    enum reference_rank rank;
    const struct model *model;             /* borrowed */
    const struct select_options *options;  /* borrowed: of the plan */
    const struct calibration *calibration; /* borrowed; RANK_SIGNS: its matrices */
    size_t unit, bits;                     /* tokens that are chosen together; RANK_SIGNS: of a code */
    bool keeps_even_lanes; /* heads of even lanes keep their first lists (tiny_calibration.h) */
    struct reference_list first[REFERENCE_LAYERS][REFERENCE_HEADS]; /* what each chose first */
    bool has_first[REFERENCE_LAYERS][REFERENCE_HEADS];
    uint64_t lists, kept, units,
        wanted; /* checked; of these kept; units chosen; of these among the formulas' best */
};

/* Fails the test where a head left out what ranks above what it chose, by more than the key index's own rounding. */
void choice_reference_check(void *reference, const struct select_event *event);
