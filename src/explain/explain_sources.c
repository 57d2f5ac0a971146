#include "explain/explain_sources.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/text.h"

enum { PIECE_BYTES_MAX = 512, KNOWN_BYTES = 64 };

struct finding {
    const struct tokenizer *tokenizer;
    const token_id *prompt;
    size_t prompt_count;
    struct text text; /* owned: of the prompt's tokens */
    size_t *offsets;  /* owned, [prompt_count + 1]: where each begins */
    double *mass;     /* owned, [prompt_count] */
    struct explain_span *spans;
    size_t span_count;
};

/* The prompt's text as its tokens spell it, and where each begins. */
static enum status spell(struct finding *finding, struct error *error) {
    char piece[PIECE_BYTES_MAX];
    for (size_t i = 0; i < finding->prompt_count; i++) {
        const size_t bytes = tokenizer_piece(finding->tokenizer, finding->prompt[i], true, piece, sizeof piece);
        finding->offsets[i] = finding->text.length;
        if (!text_append(&finding->text, piece, min_size(bytes, sizeof piece)))
            return error_set(error, STATUS_MEMORY, "no memory for the prompt's text");
    }
    finding->offsets[finding->prompt_count] = finding->text.length;
    return STATUS_OK;
}

/* Adds the mass of the tokens that begin in each span of a source that begins at `start` of the text. */
static void add_mass(const struct finding *finding, struct explain_span *spans, size_t count, size_t start) {
    size_t span = 0;
    for (size_t t = 0; t < finding->prompt_count && span < count; t++) {
        if (finding->offsets[t] < start) continue;
        const size_t at = finding->offsets[t] - start;
        while (span < count && at >= spans[span].end) span++;
        if (span == count || at < spans[span].begin) continue;
        spans[span].mass += finding->mass[t];
        spans[span].distance += (double)(finding->prompt_count - t); /* the mean of them, below */
        spans[span].token_count++;
    }
    for (size_t i = 0; i < count; i++)
        if (spans[i].token_count > 0) spans[i].distance /= (double)spans[i].token_count;
}

static enum status add_spans(struct finding *finding, const struct explain_span *spans, size_t count,
                             struct error *error) {
    struct explain_span *grown = realloc(finding->spans, (finding->span_count + count) * sizeof *grown);
    if (grown == NULL) return error_set(error, STATUS_MEMORY, "no memory for the documents' sentences");
    finding->spans = grown;
    memcpy(finding->spans + finding->span_count, spans, count * sizeof *spans);
    finding->span_count += count;
    return STATUS_OK;
}

/* *from: behind what was found of the sources before it.  A tokenizer may have changed blanks before a source. */
static enum status add_source(struct finding *finding, const struct explain_source *source, size_t index, size_t *from,
                              struct error *error) {
    struct explain_span *spans;
    size_t count;
    enum status status = explain_sentences(source->bytes, source->length, &spans, &count, error);
    size_t first = 0;
    while (first < source->length && isspace((unsigned char)source->bytes[first])) first++;
    const size_t known = min_size(source->length - first, KNOWN_BYTES);
    const char *found = NULL;
    if (status == STATUS_OK && count > 0)
        found = memmem(finding->text.bytes + *from, finding->offsets[finding->prompt_count] - *from,
                       source->bytes + first, known);
    if (found != NULL) {
        const size_t start = (size_t)(found - finding->text.bytes);
        *from = start + known; /* a second one that begins alike is behind it */
        for (size_t i = 0; i < count; i++) spans[i].document = index, spans[i].begin -= first, spans[i].end -= first;
        add_mass(finding, spans, count, start);
        for (size_t i = 0; i < count; i++) spans[i].begin += first, spans[i].end += first;
        status = add_spans(finding, spans, count, error);
    }
    free(spans);
    return status;
}

enum status explain_find_sources(const struct explain *explain, const struct explain_texts *texts,
                                 struct explain_span **spans, size_t *span_count, struct error *error) {
    struct finding finding = {
        .tokenizer = texts->tokenizer, .prompt = texts->prompt, .prompt_count = texts->prompt_count};
    size_t from = 0;
    finding.offsets = calloc(texts->prompt_count + 1, sizeof *finding.offsets);
    finding.mass = calloc(texts->prompt_count + 1, sizeof *finding.mass);
    enum status status = STATUS_OK;
    if (finding.offsets == NULL || finding.mass == NULL)
        status = error_set(error, STATUS_MEMORY, "no memory for the prompt's text");
    if (status == STATUS_OK) status = spell(&finding, error);
    if (status == STATUS_OK) explain_mass(explain, texts->prompt_count, finding.mass);
    for (size_t i = 0; i < texts->source_count && status == STATUS_OK; i++)
        status = add_source(&finding, &texts->sources[i], i, &from, error);
    if (status == STATUS_OK) explain_rank(finding.spans, finding.span_count);
    free(finding.offsets);
    free(finding.mass);
    text_deinit(&finding.text);
    *spans = finding.spans;
    *span_count = finding.span_count;
    return status;
}
