#include "platform/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_SPANS = 1 << 14 }; /* 1.1 MiB */

#define COUNTERS UINT32_MAX /* the track of a counter: end_ns holds the bits of its value, a double */

struct trace {
    FILE *stream; /* borrowed */
    uint64_t began_ns;
    struct trace_span spans[BUFFER_SPANS];
    size_t span_count;
    uint64_t written_count; /* events */
    uint64_t read_count;    /* asynchronous spans: the number of one is its id */
    uint32_t track_max;
    const char *phase; /* NULL: none */
    uint32_t phase_layer;
    uint64_t phase_ns;
    int os_error; /* of the first write that failed; 0: none */
};

enum status trace_create(struct trace **result, FILE *stream, struct error *error) {
    struct trace *trace = calloc(1, sizeof *trace);
    *result = trace;
    if (trace == NULL) return error_set(error, STATUS_MEMORY, "trace: out of memory");
    trace->stream = stream;
    trace->began_ns = clock_ns();
    return STATUS_OK;
}

void trace_destroy(struct trace *trace) { free(trace); }

/* ---- writing ---- */

static double microseconds(const struct trace *trace, uint64_t ns) { return (double)(ns - trace->began_ns) * 1e-3; }

static void write_event_head(struct trace *trace, const char *kind, const char *name, uint64_t ns, uint32_t track) {
    fprintf(trace->stream, "%s{\"ph\":\"%s\",\"name\":\"%s\",\"ts\":%.3f,\"pid\":1,\"tid\":%" PRIu32,
            trace->written_count++ > 0 ? ",\n" : "", kind, name, microseconds(trace, ns), track + 1);
}

static void write_figures(struct trace *trace, const struct trace_span *span) {
    const struct {
        const char *name;
        uint32_t value;
    } figures[] = {{"layer", span->layer}, {"kv_head", span->kv_head}, {"chunk", span->chunk}, {"count", span->count}};
    const char *separator = ",\"args\":{";
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        if (figures[i].value == TRACE_NONE) continue;
        fprintf(trace->stream, "%s\"%s\":%" PRIu32, separator, figures[i].name, figures[i].value);
        separator = ",";
    }
    if (separator[1] == '\0') fputc('}', trace->stream);
}

static void write_counter(struct trace *trace, const struct trace_span *span) {
    double value;
    memcpy(&value, &span->end_ns, sizeof value);
    write_event_head(trace, "C", span->name, span->begin_ns, TRACE_ENGINE);
    fprintf(trace->stream, ",\"args\":{\"value\":%.17g}}", value);
}

static void write_span(struct trace *trace, const struct trace_span *span) {
    if (span->track == COUNTERS) {
        write_counter(trace, span);
        return;
    }
    if (span->track != TRACE_READS) {
        write_event_head(trace, "X", span->name, span->begin_ns, span->track);
        fprintf(trace->stream, ",\"dur\":%.3f", (double)(span->end_ns - span->begin_ns) * 1e-3);
        write_figures(trace, span);
        fputc('}', trace->stream);
        return;
    }
    write_event_head(trace, "b", span->name, span->begin_ns, span->track);
    fprintf(trace->stream, ",\"cat\":\"disk\",\"id\":%" PRIu64, trace->read_count);
    write_figures(trace, span);
    fputc('}', trace->stream);
    write_event_head(trace, "e", span->name, span->end_ns, span->track);
    fprintf(trace->stream, ",\"cat\":\"disk\",\"id\":%" PRIu64 "}", trace->read_count++);
}

static void write_buffer(struct trace *trace) {
    errno = 0;
    if (trace->written_count == 0) fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", trace->stream);
    for (size_t i = 0; i < trace->span_count; i++) write_span(trace, &trace->spans[i]);
    trace->span_count = 0;
    if (ferror(trace->stream) && trace->os_error == 0) trace->os_error = errno != 0 ? errno : EIO;
}

static void write_track_names(struct trace *trace) {
    static const char *const names[] = {"engine", "choice", "waits", "reads"};
    for (uint32_t track = 0; track <= trace->track_max; track++) {
        write_event_head(trace, "M", "thread_name", trace->began_ns, track);
        if (track < TRACE_THREADS)
            fprintf(trace->stream, ",\"args\":{\"name\":\"%s\"}}", names[track]);
        else
            fprintf(trace->stream, ",\"args\":{\"name\":\"thread %" PRIu32 "\"}}", track - TRACE_THREADS);
        write_event_head(trace, "M", "thread_sort_index", trace->began_ns, track);
        fprintf(trace->stream, ",\"args\":{\"sort_index\":%" PRIu32 "}}", track);
    }
}

enum status trace_finish(struct trace *trace, struct error *error) {
    trace_phase(trace, NULL, TRACE_NONE);
    write_buffer(trace);
    write_track_names(trace);
    errno = 0;
    fputs("\n]}\n", trace->stream);
    if ((fflush(trace->stream) != 0 || ferror(trace->stream)) && trace->os_error == 0)
        trace->os_error = errno != 0 ? errno : EIO;
    if (trace->os_error == 0) return STATUS_OK;
    return error_set_os(error, STATUS_IO, trace->os_error, "--trace");
}

/* ---- recording ---- */

static void keep(struct trace *trace, const struct trace_span *span) {
    if (span->track != COUNTERS && span->track > trace->track_max) trace->track_max = span->track;
    trace->spans[trace->span_count++] = *span;
}

/* Of no chunk, nor of a number of things. */
static struct trace_span span_of_layer(const char *name, uint32_t track, uint64_t begin_ns, uint64_t end_ns,
                                       uint32_t layer) {
    return (struct trace_span){.name = name,
                               .begin_ns = begin_ns,
                               .end_ns = end_ns,
                               .track = track,
                               .layer = layer,
                               .kv_head = TRACE_NONE,
                               .chunk = TRACE_NONE,
                               .count = TRACE_NONE};
}

void trace_add(struct trace *trace, const struct trace_span *span) {
    keep(trace, span);
    if (trace->span_count < BUFFER_SPANS) return;
    uint64_t began = clock_ns();
    write_buffer(trace);
    const struct trace_span own = span_of_layer("trace", TRACE_ENGINE, began, clock_ns(), TRACE_NONE);
    keep(trace, &own);
}

void trace_since(struct trace *trace, const char *name, uint32_t track, uint64_t began_ns, uint32_t layer,
                 uint32_t count) {
    if (trace == NULL) return;
    struct trace_span span = span_of_layer(name, track, began_ns, clock_ns(), layer);
    span.count = count;
    trace_add(trace, &span);
}

void trace_count(struct trace *trace, const char *name, double value) {
    struct trace_span counter = {.name = name, .begin_ns = clock_ns(), .track = COUNTERS};
    memcpy(&counter.end_ns, &value, sizeof value);
    trace_add(trace, &counter);
}

void trace_phase(struct trace *trace, const char *name, uint32_t layer) {
    const uint64_t now = clock_ns();
    const struct trace_span over = span_of_layer(trace->phase, TRACE_ENGINE, trace->phase_ns, now, trace->phase_layer);
    if (trace->phase != NULL) trace_add(trace, &over);
    trace->phase = name;
    trace->phase_layer = layer;
    trace->phase_ns = now;
}

void trace_thread(struct trace *trace, size_t index, uint64_t begin_ns, uint64_t end_ns) {
    const bool is_named = trace->phase != NULL;
    const struct trace_span span = span_of_layer(is_named ? trace->phase : "other", TRACE_THREADS + (uint32_t)index,
                                                 begin_ns, end_ns, is_named ? trace->phase_layer : TRACE_NONE);
    trace_add(trace, &span);
}
