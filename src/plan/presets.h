/* presets: the axes of a decode step, and named rows with a method for each axis.
 *
 * A preset is a starting point.  --set AXIS=METHOD changes one axis, --keep changes how many tokens it keeps.  The
 * table also lists presets that this build does not have, so that the error for one names what is missing.
 */
#ifndef LOAM_PLAN_PRESETS_H
#define LOAM_PLAN_PRESETS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"

enum axis {
    AXIS_SELECT,
    AXIS_REUSE,
    AXIS_SPECULATE,
    AXIS_PLACE,
    AXIS_MOVE,
    AXIS_CODEC,
    AXIS_REBUILD,
    AXIS_SCHEDULE,
    AXIS_COUNT
};

struct axis_info {
    const char *name;
    const char *methods; /* in this build: "a|b" */
    const char *later;   /* planned, not in this build: "a|b" */
};
extern const struct axis_info axis_table[AXIS_COUNT];

struct preset {
    const char *name;
    const char *summary;
    const char *methods[AXIS_COUNT]; /* a method for each axis; NULL: not built yet */
    const char *keep;                /* an argument of --keep; "100%": everything is read */
    const char *settings;            /* an argument of --set; NULL: none */
    /* With KV on disk: replaces keep, and adds settings; a codec is applied where possible.  NULL: none. */
    const char *disk_keep, *disk_settings;
};
extern const struct preset preset_table[];
extern const size_t preset_count;

static inline bool preset_is_built(const struct preset *preset) {
    return preset->methods[AXIS_SELECT] != NULL;
}

/* It stands for another one, until measure/auto.h has chosen. */
static inline bool preset_is_auto(const struct preset *preset) { return strcmp(preset->name, "auto") == 0; }

/* STATUS_USAGE: the name is unknown or not built yet; the message lists the presets that are built. */
enum status preset_find(const struct preset **preset, const char *name, struct error *error) STATUS_CHECKED;

/* "full, streaming, ...": the presets that are built.  Returns buffer. */
const char *preset_names(char *buffer, size_t buffer_bytes);

/* Parses "AXIS=METHOD" of length characters.  *method is borrowed from the table.  STATUS_USAGE: the message lists the
 * axes, or the axis's methods. */
enum status axis_method_parse(const char *text, size_t length, enum axis *axis, const char **method,
                              size_t *method_length, struct error *error) STATUS_CHECKED;

#endif
