/* sources: the sentences of documents that an answer attended to, for `loam explain` and /sources of `loam chat`. */
#pragma once

#include "cli/prompt_files.h"
#include "explain/explain_sources.h"

/* Those of the files that stand in the prompt, best first; the caller frees *spans.  texts: without its sources. */
enum status sources_find(const struct explain *explain, const struct explain_texts *texts,
                         const struct prompt_files *files, struct explain_span **spans, size_t *span_count,
                         struct error *error) STATUS_CHECKED;
/* On standard output: where the sentence is, how much attention it got, and its text. */
void sources_print(const struct prompt_files *files, const struct explain_span *span);
