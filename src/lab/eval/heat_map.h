/* heat_map: the needle-in-a-haystack picture, score by length and depth, one panel per preset, as SVG.
 * Colours of the usual needle-in-a-haystack picture: #F0496E (0) over #EBB839 (0.5) to #0CD79F (1). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

enum { HEAT_MAP_DEPTHS = 10, HEAT_MAP_PANELS_MAX = 40, HEAT_MAP_LENGTHS_MAX = 64 };

struct heat_cell {
    double sum; /* of scores in [0, 1] */
    uint64_t count;
};

struct heat_map {
    const char *title;
    size_t panel_count, length_count;
    const char *panels[HEAT_MAP_PANELS_MAX];
    uint64_t lengths[HEAT_MAP_LENGTHS_MAX]; /* tokens */
    struct heat_cell cells[HEAT_MAP_PANELS_MAX][HEAT_MAP_LENGTHS_MAX][HEAT_MAP_DEPTHS];
};

void heat_map_add(struct heat_map *map, size_t panel, size_t length_index, double depth /* [0, 1] */, double score);
/* "#rrggbb" of a score; buffer: 8 bytes. */
const char *heat_map_colour(double score, char *buffer);
/* Cells without a sample stay empty. */
void heat_map_write(const struct heat_map *map, struct text *text);
