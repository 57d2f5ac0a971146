#include "cli/sources.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "document/mark.h"

enum status sources_find(const struct explain *explain, const struct explain_texts *texts,
                         const struct prompt_files *files, struct explain_span **spans, size_t *span_count,
                         struct error *error) {
    struct explain_source *sources = calloc(files->count + 1, sizeof *sources);
    if (sources == NULL) return error_set(error, STATUS_MEMORY, "no memory for the documents");
    for (size_t i = 0; i < files->count; i++)
        sources[i] = (struct explain_source){files->files[i].bytes, files->files[i].length};
    struct explain_texts all = *texts;
    all.sources = sources;
    all.source_count = files->count;
    const enum status status = explain_find_sources(explain, &all, spans, span_count, error);
    free(sources);
    return status;
}

void sources_print(const struct prompt_files *files, const struct explain_span *span) {
    const struct prompt_file *file = &files->files[span->document];
    const struct mark_place *place = &span->place;
    char where[MARK_TEXT_BYTES];
    if (place->page > 0 || place->chapter > 0)
        output_text("\n%s, %s: ", file->path, mark_place_text(place, where));
    else
        output_text("\n%s:%zu: ", file->path, place->line);
    output_text("%.1f%% of the attention to documents, %.1f times the average\n    ", 100 * span->share, span->lift);
    for (size_t at = span->begin; at < span->end; at++)
        output_bytes(strchr("\n\r\f", file->bytes[at]) != NULL ? " " : file->bytes + at, 1);
    output_text("\n");
}
