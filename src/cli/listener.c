#include "cli/listener.h"

#include <stdio.h>

#include "cli/interrupt.h"
#include "cli/output.h"

static void prefill_begins(void *context) {
    struct listener *listener = context;
    progress_begin(&listener->progress, "prefill", listener->quiet);
}

static void prefill_ends(void *context) {
    struct listener *listener = context;
    progress_end(&listener->progress);
}

static bool progress(void *context, uint64_t done, uint64_t total) {
    struct listener *listener = context;
    return progress_engine(&listener->progress, done, total);
}

static bool stops(void *context) {
    (void)context;
    return interrupt_requested();
}

/* On a terminal the line of the answer is ended first. */
static void note(void *context, const char *line, bool amid_answer) {
    const struct listener *listener = context;
    if (!listener->quiet) fprintf(stderr, "%sloam: note: %s\n", amid_answer && output_can_draw() ? "\n" : "", line);
}

struct generation_listener listener_of(struct listener *listener) {
    return (struct generation_listener){.context = listener,
                                        .prefill_begins = prefill_begins,
                                        .prefill_ends = prefill_ends,
                                        .progress = progress,
                                        .stops = stops,
                                        .note = note};
}
