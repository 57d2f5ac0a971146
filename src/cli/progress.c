#include "cli/progress.h"

#include <stdio.h>

#include "base/size.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "platform/clock.h"

static const double bar_after_seconds = 0.5, bar_every_seconds = 0.1, lines_after_seconds = 5;

void progress_begin(struct progress *progress, const char *label, bool quiet) {
    *progress =
        (struct progress){.label = label, .quiet = quiet, .can_draw = output_can_draw(), .began = clock_seconds()};
}

enum { FIGURES_BYTES = 160, BAR_WIDTH = 30, BAR_WIDTH_MIN = 8, SHORTEST = 2 };

static void time_left(double seconds, char *text, size_t size) {
    const unsigned whole = seconds < 86400 * 365 ? (unsigned)(seconds + 0.5) : 0;
    if (whole >= 3600)
        snprintf(text, size, "%u:%02u:%02u left", whole / 3600, whole / 60 % 60, whole % 60);
    else
        snprintf(text, size, "%u:%02u left", whole / 60, whole % 60);
}

/* Percent, counts, rate and time; brevity 1 leaves out the rate, SHORTEST the counts too.  Returns the length. */
static size_t write_figures(const struct progress *progress, uint64_t done, uint64_t total, double seconds,
                            unsigned brevity, char *text) {
    const uint64_t made = done > progress->before ? done - progress->before : 0;
    const double rate = seconds > 0 ? (double)made / seconds : 0;
    char counts[80] = "", speed[40] = "", left[32], here[32], all[32];
    time_left(rate > 0 ? (double)(total - done) / rate : 0, left, sizeof left);
    if (progress->unit == PROGRESS_TOKENS) {
        snprintf(counts, sizeof counts, "%llu/%llu tokens, ", (unsigned long long)done, (unsigned long long)total);
        snprintf(speed, sizeof speed, "%.1f t/s, ", rate);
    } else if (progress->unit == PROGRESS_BYTES) {
        snprintf(counts, sizeof counts, "%s of %s, ", bytes_text(done, here, sizeof here),
                 bytes_text(total, all, sizeof all));
        snprintf(speed, sizeof speed, "%s/s, ", bytes_text((uint64_t)rate, here, sizeof here));
    }
    return (size_t)snprintf(text, FIGURES_BYTES, "%s %3u%% %s%s%s", progress->label,
                            (unsigned)((double)done * 100 / (double)total), brevity < SHORTEST ? counts : "",
                            brevity < 1 ? speed : "", left);
}

void progress_line(const struct progress *progress, uint64_t done, uint64_t total, double seconds, size_t columns,
                   char *line, size_t size) {
    char figures[FIGURES_BYTES], bar[BAR_WIDTH + 1];
    size_t length = 0;
    for (unsigned brevity = 0; brevity <= SHORTEST; brevity++) {
        length = write_figures(progress, done, total, seconds, brevity, figures);
        if (length + BAR_WIDTH_MIN + 4 <= columns) break;
    }
    const size_t room = columns > length + 4 ? columns - length - 4 : 0; /* two brackets, a blank, the last column */
    const size_t width = room < BAR_WIDTH ? room : BAR_WIDTH;
    if (width < BAR_WIDTH_MIN) {
        snprintf(line, size, "%.*s", (int)(columns > 1 ? columns - 1 : 0), figures);
        return;
    }
    const size_t filled = (size_t)((double)done / (double)total * (double)width);
    for (size_t i = 0; i < width; i++) bar[i] = i < filled ? '#' : '.';
    bar[width] = '\0';
    snprintf(line, size, "[%s] %s", bar, figures);
}

void progress_update(struct progress *progress, uint64_t done, uint64_t total) {
    if (progress->quiet || total == 0) return;
    double now = clock_seconds(), seconds = now - progress->began;
    done += progress->offset;
    if (progress->total > total) total = progress->total;
    if (done > total) done = total;
    if (!progress->can_draw) {
        char figures[FIGURES_BYTES];
        unsigned tenths = (unsigned)((double)done * 10 / (double)total);
        if (seconds < lines_after_seconds || tenths <= progress->tenths || done == total) return;
        progress->tenths = tenths;
        write_figures(progress, done, total, seconds, 0, figures);
        fprintf(stderr, "loam: %s\n", figures);
        return;
    }
    if (seconds < bar_after_seconds || now - progress->drawn < bar_every_seconds) return;
    progress->drawn = now;
    char line[FIGURES_BYTES + BAR_WIDTH + 8];
    progress_line(progress, done, total, seconds, output_columns(), line, sizeof line);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
}

void progress_end(struct progress *progress) {
    if (progress->drawn > 0) fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->drawn = 0;
}

bool progress_engine(void *context, uint64_t done, uint64_t total) {
    progress_update(context, done, total);
    return interrupt_requested();
}

bool progress_part(void *context, const char *part, bool is_line) {
    struct progress_parts *parts = context;
    if (parts->began == 0) parts->began = clock_seconds();
    if (!parts->quiet && is_line) {
        progress_parts_end(parts);
        fprintf(stderr, "loam: note: %s\n", part);
    } else if (!parts->quiet && output_can_draw()) {
        fprintf(stderr, "\rmeasuring: %.20s, %.0f s\033[K", part, clock_seconds() - parts->began);
        parts->is_drawn = true;
    }
    return interrupt_requested();
}

void progress_parts_end(struct progress_parts *parts) {
    if (parts->is_drawn) fputs("\r\033[K", stderr);
    parts->is_drawn = false;
}
