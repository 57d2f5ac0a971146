/* axes: what a decode step reads and how it is kept, from a preset and what is changed of it.  The command line's
 * --preset, --set and --keep, and the fields of the same names in loam.h. */
#ifndef LOAM_PLAN_AXES_H
#define LOAM_PLAN_AXES_H

#include "attention/select.h"
#include "kernels/attention/kv_layout.h"
#include "plan/presets.h"

struct axes {
    const char *preset; /* borrowed from the table */
    const char
        *methods[AXIS_COUNT]; /* words of axis_table: they end at '|' or the end; see axis_method_text */
    enum kv_type k_type, v_type;
    bool q4_pages;    /* codec=q4, codec=dynamic: pages on disk are in 4 bits, and full chunks in RAM */
    bool mixes_pages; /* codec=dynamic: only a share of them */
    bool on_disk;     /* given: KV beyond a budget lies on disk, for which leoam has other numbers */
    /* resident=N: of the first layers so many stay in RAM (cache/kv_tier.h); not given: those that a selection leaves
     * dense, since every step reads all of them. */
    size_t resident_layers;
    struct select_options select;
};

/* preset NULL: full; set ("AXIS=METHOD,NAME=NUMBER,...") and keep ("2048", "10%") NULL: not given.  The types of K and
 * V are the caller's unless set names a codec.  STATUS_USAGE: one line, with what there is. */
enum status axes_read(struct axes *axes, const char *preset, const char *set, const char *keep,
                      struct error *error) STATUS_CHECKED;

/* "sinks, recent, ... rank (bound or meanstd) ...": what set takes beside axes.  Returns buffer. */
const char *axes_setting_names(char *buffer, size_t buffer_bytes);

/* The method's word as a text of its own; returns buffer. */
const char *axis_method_text(const char *method, char *buffer, size_t buffer_bytes);

#endif
