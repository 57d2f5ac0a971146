/* presets: the axes of a decode step, and the named rows of choices on them.
 *
 * A preset is a starting point: --set AXIS=METHOD changes one axis of it, --keep what it keeps.  Rows of methods that
 * this build does not have are in the table too, so that asking for one is answered with what is missing.
 */
#ifndef LOAM_PLAN_PRESETS_H
#define LOAM_PLAN_PRESETS_H

#include <stdbool.h>
#include <stddef.h>

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
    const char *methods; /* of this build, "a|b" */
    const char *later;   /* named in the design, not in this build, "a|b" */
};
extern const struct axis_info axis_table[AXIS_COUNT];

struct preset {
    const char *name;
    const char *summary;
    const char *methods[AXIS_COUNT]; /* a method of the axis each; NULL: not built yet */
    const char *keep;                /* as --keep takes it; "100%" where everything is read */
    const char *settings;            /* as --set takes them; NULL: none */
    /* Where KV lies on disk: keep instead of that, and more settings; a codec where it is possible.  NULL: none. */
    const char *disk_keep, *disk_settings;
};
extern const struct preset preset_table[];
extern const size_t preset_count;

static inline bool preset_is_built(const struct preset *preset) {
    return preset->methods[AXIS_SELECT] != NULL;
}

/* STATUS_USAGE with the list of those that are built: no such name, or one that is not built yet. */
enum status preset_find(const struct preset **preset, const char *name, struct error *error) STATUS_CHECKED;

/* "full, streaming, ...": those that are built.  Returns buffer. */
const char *preset_names(char *buffer, size_t buffer_bytes);

/* "AXIS=METHOD" of length characters into *axis and *method (borrowed from the table).  STATUS_USAGE: names the
 * axes, or the axis's methods. */
enum status axis_method_parse(const char *text, size_t length, enum axis *axis, const char **method,
                              size_t *method_length, struct error *error) STATUS_CHECKED;

#endif
