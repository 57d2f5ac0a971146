/* expert_pages: experts beyond a budget, read from the model file when rows want them.
 *
 *   of each layer:  expert_pages_begin -> (expert_pages_take -> expert_pages_expect -> expert_pages_await -> products)
 *                   of some experts, of the next ones, ...
 *
 * A slot holds one expert of one layer: its parts of the stacks of gate, up and down, as the file has them.  So results
 * do not depend on the budget, nor on what is read ahead.  A layer's rows are taken together; where the slots do not
 * hold the experts of all of them, as many experts at a time as they hold, by their numbers, each for all rows: so each
 * is read once at most, and half of the slots are read into while the others are multiplied with.
 *
 * What is evicted: the expert that the smallest share of its layer's rows used, of the last passes more than of earlier
 * ones; of equals the one whose layer is furthest ahead.  A share is of the layer's own passes, so a pass over all
 * experts, as prompts are, does not drive out what it will want first the next time.  What is in work stays, and before
 * others what the layer's rows will use yet.
 *
 * Thread: the model's.
 */
#pragma once

#include "model/model.h"
#include "model/weight_reader.h"
#include "model/weight_stream.h"

enum { EXPERT_PARTS = 3 }; /* gate, up and down */

struct expert_pages;

/* Of the largest expert of any layer, with what alignment adds. */
uint64_t expert_pages_slot_bytes(const struct model *model);

/* bytes: for slots, at least as many as a row uses experts.  reader: borrowed, open before the first page is taken.
 * figures: borrowed, counted in. */
enum status expert_pages_create(struct expert_pages **pages, const struct model *model, struct weight_reader *reader,
                                uint64_t bytes, struct weight_figures *figures, struct error *error) STATUS_CHECKED;
void expert_pages_destroy(struct expert_pages *pages); /* NULL allowed; after the reader is closed */

/* Rows of which a layer's experts are to be taken. */
struct expert_picks {
    size_t layer, row_count;
    const uint32_t *picks; /* [row_count][experts.used] */
};

/* What a layer's rows use is to be taken. */
void expert_pages_begin(struct expert_pages *pages, const struct expert_picks *rows);
/* Begins to read the next of these experts, and those behind them as far as there are slots; those taken before are not
 * in work any more.  Returns how many are left to be taken then. */
size_t expert_pages_take(struct expert_pages *pages);
/* Begins to read, behind that, what rows of another layer are expected to use, as far as there are slots. */
void expert_pages_expect(struct expert_pages *pages, const struct expert_picks *rows);
/* Waits for what was taken.  places: [experts.count] addresses of each part of these experts, NULL of others, until the
 * next ones are taken.  After a failure expert_pages_begin is next, and reads anew. */
enum status expert_pages_await(struct expert_pages *pages, const void *const *places[EXPERT_PARTS], struct error *error)
    STATUS_CHECKED;
