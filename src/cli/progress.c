#include "cli/progress.h"

#include <stdio.h>

#include "cli/interrupt.h"
#include "cli/output.h"
#include "platform/clock.h"

static const double bar_after_seconds = 0.5, bar_every_seconds = 0.1, lines_after_seconds = 5;

void progress_begin(struct progress *progress, const char *label, bool quiet) {
    *progress = (struct progress){
        .label = label, .quiet = quiet, .can_draw = output_can_draw(), .began = clock_seconds()};
}

static void print_figures(const struct progress *progress, uint64_t done, uint64_t total, double seconds) {
    double rate = seconds > 0 ? (double)done / seconds : 0;
    double left = rate > 0 ? (double)(total - done) / rate : 0;
    unsigned whole = left < 86400 * 365 ? (unsigned)(left + 0.5) : 0;
    fprintf(stderr, "%s %3u%% ", progress->label, (unsigned)(done * 100 / total));
    if (!progress->is_work)
        fprintf(stderr, "%llu/%llu tokens, %.1f t/s, ", (unsigned long long)done, (unsigned long long)total,
                rate);
    if (whole >= 3600)
        fprintf(stderr, "%u:%02u:%02u left", whole / 3600, whole / 60 % 60, whole % 60);
    else
        fprintf(stderr, "%u:%02u left", whole / 60, whole % 60);
}

void progress_update(struct progress *progress, uint64_t done, uint64_t total) {
    if (progress->quiet || total == 0) return;
    double now = clock_seconds(), seconds = now - progress->began;
    done += progress->offset;
    if (progress->total > total) total = progress->total;
    if (done > total) done = total;
    if (!progress->can_draw) {
        unsigned tenths = (unsigned)(done * 10 / total);
        if (seconds < lines_after_seconds || tenths <= progress->tenths || done == total) return;
        progress->tenths = tenths;
        fputs("loam: ", stderr);
        print_figures(progress, done, total, seconds);
        fputc('\n', stderr);
        return;
    }
    if (seconds < bar_after_seconds || (now - progress->drawn < bar_every_seconds && done < total)) return;
    progress->drawn = now;
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    size_t filled = (size_t)(done * WIDTH / total);
    for (size_t i = 0; i < WIDTH; i++) bar[i] = i < filled ? '#' : '.';
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r[%s] ", bar);
    print_figures(progress, done, total, seconds);
    fputs("\033[K", stderr);
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
