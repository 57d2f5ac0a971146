/* loam-lab quantize. */
#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/utf8.h"
#include "lab/cli/lab.h"
#include "lab/import/quantize.h"
#include "platform/clock.h"

struct quantize_view {
    bool draws;
    double drawn;
};

static void show_step(void *context, const struct quantize_step *step) {
    struct quantize_view *view = context;
    double now = clock_seconds();
    bool is_last = step->index + 1 == step->count;
    if (!view->draws || (now - view->drawn < 0.1 && !is_last)) return;
    view->drawn = now;
    char name[64];
    fprintf(stderr, "\r%3u%% %s: %s to %s\033[K%s",
            step->all_bytes > 0 ? (unsigned)(step->done_bytes * 100 / step->all_bytes) : 100,
            utf8_escape(step->name, strlen(step->name), name, sizeof name), tensor_type_info(step->from)->name,
            tensor_type_info(step->to)->name, is_last ? "\r\033[K" : "");
}

enum status quantize_command(const struct options *options, struct error *error) {
    struct quantize_view view = {.draws = output_can_draw()};
    struct quantize_options how = {.type_name = options->positionals[2],
                                   .thread_count = option_count(options, OPTION_THREADS),
                                   .observer = show_step,
                                   .observer_context = &view};
    struct quantize_report report;
    double began = clock_seconds();
    TRY(model_quantize(options->positionals[0], options->positionals[1], &how, &report, error));
    char before[32], after[32];
    fprintf(stderr, "loam-lab: %llu tensors, %s to %s, in %.1f s\n", (unsigned long long)report.tensor_count,
            bytes_text(report.input_bytes, before, sizeof before), bytes_text(report.output_bytes, after, sizeof after),
            clock_seconds() - began);
    if (report.fallback_count > 0)
        fprintf(stderr, "loam-lab: %llu tensors have rows that do not fit %s and got the nearest type that does\n",
                (unsigned long long)report.fallback_count, options->positionals[2]);
    return STATUS_OK;
}
