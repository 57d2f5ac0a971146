/* units: which layers have slots of the device for what their lists name, and of which form (cache/unit_cache.h).
 * Thread: the engine's. */
#pragma once

#include "attention/attention.h"
#include "attention/select.h"
#include "cache/unit_cache.h"

/* *units NULL: there are no bytes for them, or the device does not fetch; or lists are of single tokens.  whole: lanes
 * of heads that have slots for everything, [whole_count]. */
enum status units_create(struct unit_cache **units, struct device *device, const struct attention_options *options,
                         const struct select *select, const uint32_t *whole, size_t whole_count,
                         struct error *error) STATUS_CHECKED;

/* What slots rely on (kv_sequence_keeps_forms), of all layers that have some. */
bool units_keep_forms(const struct attention_options *options, const struct select *select,
                      const struct attention_step *step);
