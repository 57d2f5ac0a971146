/* progress: shows on standard error how far a long prefill is.  On a terminal it is a bar that is redrawn, from half
 * a second on.  Elsewhere it is one line per 10% once the work has taken some seconds, so that a log stays short.
 * Short work shows nothing. */
#ifndef LOAM_CLI_PROGRESS_H
#define LOAM_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *label; /* "prefill" */
    bool quiet, can_draw;
    double began;    /* clock_seconds */
    double drawn;    /* when the bar was last drawn; 0: never */
    unsigned tenths; /* lines printed, where no bar can be */
    uint64_t offset; /* done before this work (several prompts in one bar) */
    uint64_t total;  /* 0: what the updates say */
    bool is_work;    /* done and total are parts of the work, not tokens: no rate is shown */
};

void progress_begin(struct progress *progress, const char *label, bool quiet);
void progress_update(struct progress *progress, uint64_t done, uint64_t total);
void progress_end(struct progress *progress); /* removes the bar */

/* An engine_progress: context is a struct progress; stops when Ctrl-C was pressed. */
bool progress_engine(void *context, uint64_t done, uint64_t total);

#endif
