/* shares: reports the shares of quantized pages (--set codec=dynamic, cache/page_shares.h). */
#ifndef LOAM_CLI_SHARES_H
#define LOAM_CLI_SHARES_H

#include <jansson.h>

#include "engine/engine.h"
#include "plan/quantized_pages.h"

enum { SHARES_TEXT_BYTES = 64 };

/* "0.81", or "0.81 (0.75 to 0.94 by layer)": of the pages in 4 bits. */
const char *shares_text(const struct page_shares *shares, char text[SHARES_TEXT_BYTES]);
/* [layer]: 0 to 1 */
json_t *shares_layers_json(const struct page_shares *shares);
/* The share of all pages. */
double shares_mean(const struct page_shares *shares);
/* A line for the user about a sequence's pages and what they were chosen by; nothing where they are of one form. */
void shares_print(const struct engine *engine, const struct sequence *sequence);
/* The same for --json; NULL: of one form. */
json_t *shares_json(const struct engine *engine, const struct sequence *sequence);

#endif
