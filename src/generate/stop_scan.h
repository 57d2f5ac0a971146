/* stop_scan: finds the stop string that is complete first in a text that comes in pieces; of two that end together, the
 * one that begins first.  How the text is cut makes no difference.
 *
 * Text that may be the beginning of a stop string is held back until the next piece decides.  The stop string itself
 * and what follows are never passed on.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* Zeros: nothing is held, and nothing stops. */
struct stop_scan {
    const char *const *stops; /* [stop_count], borrowed, the caller's to set; none of them empty */
    size_t stop_count;
    struct text held;
    size_t found; /* index of the stop string that was found */
};

/* Appends a piece.  *ready: how many bytes of scan->held can be passed on: stop_scan_drop removes them.  *found: they
 * are followed by a stop string, and the rest was dropped. */
enum status stop_scan_push(struct stop_scan *scan, const char *piece, size_t length, size_t *ready, bool *found,
                           struct error *error) STATUS_CHECKED;
void stop_scan_drop(struct stop_scan *scan, size_t count);
void stop_scan_deinit(struct stop_scan *scan);
