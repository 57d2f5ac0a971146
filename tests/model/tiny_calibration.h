/* A calibration for a tiny model.  The skewing matrices are random numbers: enough where it does not matter which
 * tokens are found; so are projections for codes of TINY_HASH_BITS, each layer's and KV head's own.  The first query
 * head of every layer is important, 1 in even layers, 0.5 in odd ones; the rest is 0. */
#pragma once

#include "model/model.h"

enum { TINY_HASH_BITS = 96 }; /* a number that nothing asks for unless it is named */

/* Its path, which the caller frees, and unlinks. */
char *tiny_calibration_write(const struct model *model);
