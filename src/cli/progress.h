/* progress: shows on standard error how far a long prefill is.  On a terminal it is a bar that is redrawn, from half
 * a second on and ten times a second at most, in one line whatever the terminal's width.  Elsewhere it is one
 * line per 10% once the work has taken some seconds, so that a log stays short.  Short work shows nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum progress_unit {
    PROGRESS_TOKENS,
    PROGRESS_BYTES,
    PROGRESS_WORK, /* parts of the work: neither their number nor a rate is shown */
};

struct progress {
    const char *label; /* "prefill" */
    bool quiet, can_draw;
    double began;    /* clock_seconds */
    double drawn;    /* when the bar was last drawn; 0: never */
    unsigned tenths; /* lines printed, where no bar can be */
    uint64_t offset; /* done before this work (several prompts in one bar) */
    uint64_t before; /* of what is done, and not by this work: no part of the rate */
    uint64_t total;  /* 0: what the updates say */
    enum progress_unit unit;
};

void progress_begin(struct progress *progress, const char *label, bool quiet);
void progress_update(struct progress *progress, uint64_t done, uint64_t total);
void progress_end(struct progress *progress); /* removes the bar */

/* The line as a terminal of so many columns shows it, its bar included; it has fewer characters than columns. */
void progress_line(const struct progress *progress, uint64_t done, uint64_t total, double seconds, size_t columns,
                   char *line, size_t size);

/* An engine_progress: context is a struct progress; stops when Ctrl-C was pressed. */
bool progress_engine(void *context, uint64_t done, uint64_t total);

/* What is measured: parts are one line that is drawn over, where that can be. */
struct progress_parts {
    bool quiet, is_drawn;
    double began; /* clock_seconds; 0: not yet */
};

/* A measure_options.progress: context is a struct progress_parts; true, which stops, when Ctrl-C was pressed. */
bool progress_part(void *context, const char *part, bool is_line);
void progress_parts_end(struct progress_parts *parts); /* removes the line */
