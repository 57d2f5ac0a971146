#include "lab/eval/heat_map.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

void heat_map_add(struct heat_map *map, size_t panel, size_t length_index, double depth, double score) {
    ASSERT(panel < map->panel_count && length_index < map->length_count);
    size_t row = depth > 0 ? (size_t)(depth * HEAT_MAP_DEPTHS) : 0;
    if (row >= HEAT_MAP_DEPTHS) row = HEAT_MAP_DEPTHS - 1;
    struct heat_cell *cell = &map->cells[panel][length_index][row];
    cell->sum += score;
    cell->count++;
}

const char *heat_map_colour(double score, char *buffer) {
    static const int stops[3][3] = {{0xf0, 0x49, 0x6e}, {0xeb, 0xb8, 0x39}, {0x0c, 0xd7, 0x9f}};
    double place = fmin(fmax(score, 0), 1) * 2;
    size_t from = place < 1 ? 0 : 1;
    double share = place - (double)from;
    unsigned colour[3];
    for (size_t i = 0; i < 3; i++)
        colour[i] = (unsigned)lround(stops[from][i] + share * (stops[from + 1][i] - stops[from][i]));
    snprintf(buffer, 8, "#%02x%02x%02x", colour[0] & 0xff, colour[1] & 0xff, colour[2] & 0xff);
    return buffer;
}

/* Text inside an element. */
static void add_escaped(struct text *text, const char *string) {
    for (; *string != '\0'; string++) {
        if (*string == '&')
            text_add(text, "&amp;");
        else if (*string == '<')
            text_add(text, "&lt;");
        else if (*string == '>')
            text_add(text, "&gt;");
        else if ((unsigned char)*string >= 0x20)
            text_append(text, string, 1);
    }
}

enum { CELL_WIDTH = 56, CELL_HEIGHT = 24, LEFT = 64, TOP = 64, BOTTOM = 44, GAP = 24, KEY_HEIGHT = 36 };

static void write_panel(const struct heat_map *map, size_t panel, int left, struct text *text) {
    text_format(text, "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">", left, TOP - 8);
    add_escaped(text, map->panels[panel]);
    text_add(text, "</text>\n");
    for (size_t l = 0; l < map->length_count; l++) {
        int x = left + (int)l * CELL_WIDTH;
        for (size_t d = 0; d < HEAT_MAP_DEPTHS; d++) {
            const struct heat_cell *cell = &map->cells[panel][l][d];
            int y = TOP + (int)d * CELL_HEIGHT;
            if (cell->count == 0) continue;
            double score = cell->sum / (double)cell->count;
            char colour[8];
            text_format(text,
                        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"><title>%llu tokens, depth "
                        "%zu-%zu%%: %.1f%% of %llu</title></rect>\n",
                        x, y, CELL_WIDTH - 1, CELL_HEIGHT - 1, heat_map_colour(score, colour),
                        (unsigned long long)map->lengths[l], d * 100 / HEAT_MAP_DEPTHS, (d + 1) * 100 / HEAT_MAP_DEPTHS,
                        100 * score, (unsigned long long)cell->count);
            text_format(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", x + CELL_WIDTH / 2,
                        y + CELL_HEIGHT / 2 + 4, 100 * score);
        }
        text_format(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%llu</text>\n", x + CELL_WIDTH / 2,
                    TOP + HEAT_MAP_DEPTHS * CELL_HEIGHT + 16, (unsigned long long)map->lengths[l]);
    }
}

/* The scale of colours, 0 to 100%. */
static void write_key(struct text *text, int left, int y) {
    enum { STEPS = 20, STEP_WIDTH = 10 };
    char colour[8];
    for (int i = 0; i < STEPS; i++)
        text_format(text, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"10\" fill=\"%s\"/>\n", left + i * STEP_WIDTH,
                    y, STEP_WIDTH, heat_map_colour((i + 0.5) / STEPS, colour));
    text_format(text, "<text x=\"%d\" y=\"%d\">0 to 100%% found</text>\n", left + STEPS * STEP_WIDTH + 8, y + 9);
}

void heat_map_write(const struct heat_map *map, struct text *text) {
    int panel_width = (int)map->length_count * CELL_WIDTH;
    int width = LEFT + (int)map->panel_count * (panel_width + GAP) + 160;
    int bottom = TOP + HEAT_MAP_DEPTHS * CELL_HEIGHT, height = bottom + BOTTOM + KEY_HEIGHT;
    text_add(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    text_format(text,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n",
                width, height, width, height);
    text_format(text, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height);
    text_format(text, "<text x=\"%d\" y=\"24\" font-size=\"16\">", LEFT);
    add_escaped(text, map->title);
    text_add(text, "</text>\n");
    for (size_t d = 0; d < HEAT_MAP_DEPTHS; d++)
        text_format(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%zu%%</text>\n", LEFT - 6,
                    TOP + (int)d * CELL_HEIGHT + CELL_HEIGHT / 2 + 4, (2 * d + 1) * 50 / HEAT_MAP_DEPTHS);
    text_format(text, "<text x=\"14\" y=\"%d\" transform=\"rotate(-90 14 %d)\" text-anchor=\"middle\">Depth</text>\n",
                (TOP + bottom) / 2, (TOP + bottom) / 2);
    for (size_t panel = 0; panel < map->panel_count; panel++)
        write_panel(map, panel, LEFT + (int)panel * (panel_width + GAP), text);
    text_format(text, "<text x=\"%d\" y=\"%d\">Length in tokens</text>\n", LEFT, bottom + 34);
    write_key(text, LEFT, bottom + BOTTOM + 8);
    text_add(text, "</svg>\n");
}
