/* page_fractions: reports the fractions of quantized pages (--set codec=dynamic, cache/page_fractions.h). */
#pragma once

#include <jansson.h>

#include "engine/engine.h"
#include "plan/quantized_pages.h"

enum { FRACTIONS_TEXT_BYTES = 64 };

/* The fraction of pages in 4 bits among those of so many tokens: "0.81", or "0.81 (0.75 to 0.94 by layer)". */
const char *fractions_text(const struct page_fractions *fractions, uint64_t token_count,
                           char text[FRACTIONS_TEXT_BYTES]);
/* [layer]: 0 to 1 */
json_t *fractions_layers_json(const struct page_fractions *fractions, uint64_t token_count);
/* Of all layers. */
double fractions_mean(const struct page_fractions *fractions, uint64_t token_count);
/* A line for the user about a sequence's pages and the measured costs; nothing if all pages have one form. */
void fractions_print(const struct engine *engine, const struct sequence *sequence);
/* The same for --json; NULL: all pages have one form. */
json_t *fractions_json(const struct engine *engine, const struct sequence *sequence);
