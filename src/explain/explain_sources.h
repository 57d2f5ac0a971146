/* explain_sources: which sentences of texts an answer's tokens attended to, of texts that a prompt contains. */
#pragma once

#include "explain/explain.h"
#include "token/tokenizer.h"

struct explain_source {
    const char *bytes; /* [length] */
    size_t length;
};

/* A prompt, and the texts that stand in it, in this order. */
struct explain_texts {
    const struct tokenizer *tokenizer;
    const token_id *prompt; /* [prompt_count] */
    size_t prompt_count;
    const struct explain_source *sources; /* [source_count] */
    size_t source_count;
};
/* The sentences of the sources, ranked (explain_rank).  A source that is not found has none.  The caller frees *spans,
 * whose `document` is the source's index. */
enum status explain_find_sources(const struct explain *explain, const struct explain_texts *texts,
                                 struct explain_span **spans, size_t *span_count, struct error *error) STATUS_CHECKED;
