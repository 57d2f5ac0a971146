/* presets: the axes of a decode step, and named rows with a method for each axis.
 *
 * A preset is a starting point.  --set AXIS=METHOD changes one axis, --keep changes how many tokens it keeps.  The
 * table begins with loam's own; a program that has more methods adds its rows before main (src/lab/methods).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"

enum axis { AXIS_SELECT, AXIS_REUSE, AXIS_SPECULATE, AXIS_PLACE, AXIS_CODEC, AXIS_REBUILD, AXIS_COUNT };

struct axis_info {
    const char *name;
    const char *methods; /* "a|b"; NULL: those of select_methods (attention/select.h) */
};
extern struct axis_info axis_table[AXIS_COUNT];

/* Whether the planner considers a preset; with a loss, one that dials is held to it (attention/dial.h). */
enum preset_planning { PRESET_IS_NOT_PLANNED, PRESET_IS_PLANNED, PRESET_DIALS };

struct preset {
    const char *name;
    const char *summary;
    const char *methods[AXIS_COUNT]; /* a method for each axis */
    const char *keep;                /* an argument of --keep; "100%": everything is read */
    const char *settings;            /* an argument of --set; NULL: none */
    /* With KV on disk: replaces keep, and adds settings; a codec is applied where possible.  NULL: none. */
    const char *disk_keep, *disk_settings;
    enum preset_planning planning;
    /* Where its selection is measured on a machine: the preset to run, and what is set.  NULL: it is not measured. */
    const char *measured, *measured_set;
};
enum { PRESETS_MAX = 24 };
extern const struct preset *preset_table[PRESETS_MAX];
extern size_t preset_count;
/* Before main. */
void preset_add(const struct preset *preset);

/* It stands for another one, until measure/auto.h has chosen. */
static inline bool preset_is_auto(const struct preset *preset) { return strcmp(preset->name, "auto") == 0; }

/* One that loam does not have and loam-lab has. */
bool preset_is_of_lab(const char *name, size_t length);
/* STATUS_USAGE: the name is unknown; the message lists those that there are, or says that loam-lab has it. */
enum status preset_find(const struct preset **preset, const char *name, struct error *error) STATUS_CHECKED;

/* "full, meanstd, ...".  Returns buffer. */
const char *preset_names(char *buffer, size_t buffer_bytes);

/* Parses "AXIS=METHOD" of length characters.  *method is borrowed from a table, and ends at '|' or the end.
 * STATUS_USAGE: the message lists the axes, or the axis's methods. */
enum status axis_method_parse(const char *text, size_t length, enum axis *axis, const char **method,
                              size_t *method_length, struct error *error) STATUS_CHECKED;
