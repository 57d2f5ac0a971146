/* loop_guard: an answer that goes round in a circle.
 *
 * A loop is a cycle of 1 to LOOP_PERIOD_MAX tokens that the answer's end repeats without one difference, at least
 * LOOP_ROUNDS times and over at least LOOP_TOKENS tokens.  What people ask for stays below it: a table of zeros, a line
 * a hundred times, an alphabet of dashes.  Whether an answer stops depends on its tokens alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "token/tokenizer.h"

enum { LOOP_PERIOD_MAX = 128, LOOP_ROUNDS = 32, LOOP_TOKENS = 1024 };

/* tokens: [count], the answer so far.  Costs a comparison a period where there is no loop. */
bool loop_guard_finds(const token_id *tokens, size_t count);
