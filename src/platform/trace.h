/* trace: a timeline of a run in Chrome's trace event format, for chrome://tracing and ui.perfetto.dev
 * ("Trace Event Format", Google, 2016: complete events "X", asynchronous ones "b" and "e", names "M").
 *
 *   engine     steps, in them layers, in them phases (project, attend, output, feed-forward, store)
 *   thread N   what compute thread N was busy with, a span per pool_run, named after the phase
 *   choice     selection by key index, for this layer and ("choose next layer") for the next
 *   waits      per KV head: nothing could be computed until its chunks were there; and other waits of
 *              the engine for the disk (a full queue of requests)
 *   reads      requests of pages, asynchronous: from when they were submitted until the engine saw them arrive
 *
 * and counters ("C"): figures of a step.
 *
 * All of it is recorded on the engine's thread into a buffer of fixed size, which is written when it is full; the
 * timeline then shows a phase "trace".  With a NULL trace nothing is recorded: no clock is read, nothing is
 * allocated.  Times are the host's: on a device with a queue a phase is its launches.  Thread: the engine's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "platform/clock.h"

enum trace_track {
    TRACE_ENGINE,
    TRACE_CHOICE,
    TRACE_WAITS,
    TRACE_READS,   /* asynchronous: spans may overlap */
    TRACE_THREADS, /* and one more per compute thread */
};

/* Figures that are not said. */
#define TRACE_NONE UINT32_MAX

struct trace_span {
    const char *name;          /* a literal; no character in it needs escaping */
    uint64_t begin_ns, end_ns; /* of clock_ns */
    uint32_t track;
    uint32_t layer, kv_head, chunk, count; /* TRACE_NONE: not said; count: pages, rows */
};

struct trace;

/* stream: borrowed, written to until trace_finish. */
enum status trace_create(struct trace **trace, FILE *stream, struct error *error) STATUS_CHECKED;
/* The rest of the buffer and the end of the file.  STATUS_IO: it could not be written, now or earlier. */
enum status trace_finish(struct trace *trace, struct error *error) STATUS_CHECKED;
void trace_destroy(struct trace *trace); /* NULL allowed */

void trace_add(struct trace *trace, const struct trace_span *span);
/* A span of no chunk that began then and ends now; nothing without a trace. */
void trace_since(struct trace *trace, const char *name, uint32_t track, uint64_t began_ns, uint32_t layer,
                 uint32_t count);

/* A counter has this value from now on.  name: a literal. */
void trace_count(struct trace *trace, const char *name, double value);

/* From now on the engine is in this phase of a layer, until the next call; name NULL: in none.  Spans of compute
 * threads are named after it. */
void trace_phase(struct trace *trace, const char *name, uint32_t layer);
/* Thread `index` was busy with the phase. */
void trace_thread(struct trace *trace, size_t index, uint64_t begin_ns, uint64_t end_ns);

/* For callers that have a trace or NULL: when something begins. */
static inline uint64_t trace_clock(const struct trace *trace) { return trace != NULL ? clock_ns() : 0; }
