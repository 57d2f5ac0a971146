/* The states of a pattern, and how they are made. */
#pragma once

#include "grammar/pattern.h"

enum pattern_kind {
    PATTERN_EDGES, /* by a byte */
    PATTERN_SPLIT, /* to next and other, without one */
    PATTERN_BEGIN, /* to next, at the beginning of the text */
    PATTERN_END,   /* to next, at its end */
    PATTERN_MATCH,
};

struct pattern_edge {
    uint8_t low, high;
    uint32_t to;
};

struct pattern_state {
    enum pattern_kind kind;
    uint32_t next, other;
    struct pattern_edge *edges; /* owned, [edge_count] */
    uint32_t edge_count;
};

struct character_range {
    uint32_t low, high; /* the last one, too */
};

enum status pattern_add(struct pattern *pattern, enum pattern_kind kind, uint32_t next, uint32_t other, uint32_t *state,
                        struct error *error) STATUS_CHECKED;
/* One character of these ranges, which do not overlap, leads to state `to`. */
enum status pattern_add_characters(struct pattern *pattern, const struct character_range *ranges, size_t count,
                                   uint32_t to, uint32_t *from, struct error *error) STATUS_CHECKED;
