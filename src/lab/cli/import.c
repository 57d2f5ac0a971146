/* loam-lab import: a Hugging Face folder as a GGUF file; exported documents: cli/parcels.c. */
#include "lab/import/import.h"

#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/utf8.h"
#include "lab/cli/lab.h"
#include "platform/clock.h"

struct import_view {
    bool draws;
    double drawn;
};

static void show_tensor(void *context, const char *tensor_name, uint64_t index, uint64_t count) {
    struct import_view *view = context;
    double now = clock_seconds();
    bool is_last = index + 1 == count;
    if (!view->draws || (now - view->drawn < 0.1 && !is_last)) return;
    view->drawn = now;
    char name[64];
    fprintf(stderr, "\r%3u%% %s\033[K%s", (unsigned)((index + 1) * 100 / count),
            utf8_escape(tensor_name, strlen(tensor_name), name, sizeof name), is_last ? "\r\033[K" : "");
}

enum status lab_import_command(const struct options *options, struct error *error) {
    if (options->positional_count == 1) return import_command(options, error);
    struct import_view view = {.draws = output_can_draw()};
    bool keeps_types = option_count(options, OPTION_IMPORT_TYPE) == 0; /* "auto" */
    struct import_options how = {.type_name = keeps_types ? NULL : option_text(options, OPTION_IMPORT_TYPE),
                                 .pre = option_text(options, OPTION_IMPORT_PRE),
                                 .observer = show_tensor,
                                 .observer_context = &view};
    struct import_report report = {0};
    double began = clock_seconds();
    TRY(model_import(options->positionals[0], options->positionals[1], &how, &report, error));
    char size[32];
    fprintf(stderr, "loam-lab: %s, pre-tokenizer %s, %llu tensors, %s, in %.1f s\n", report.architecture, report.pre,
            (unsigned long long)report.tensor_count, bytes_text(report.output_bytes, size, sizeof size),
            clock_seconds() - began);
    if (report.warning[0] != '\0') fprintf(stderr, "loam-lab: %s\n", report.warning);
    return STATUS_OK;
}
