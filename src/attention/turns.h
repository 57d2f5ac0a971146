/* turns: the host's part of a step above a disk that is a graph (device.h, host_turn).
 *
 * In each layer, behind what it chooses, the device asks: the host reads the lists, brings their chunks into RAM, and
 * writes where they are for the page tables that the device then reads.  Units that are in the device's slots are left
 * out, so a chunk of which it has all is not read.  A layer that attends to everything asks for everything.  When the
 * host has its turn, all that layers before attended to is read: their chunks go with the next one.  What the next
 * layer is expected to choose is listed by then, too, and its reads begin at the turn's end (prefetch.h).
 *
 * A turn cannot fail halfway: it is noted, and the step ends with it (turns_end).  Where RAM has no slots for all that
 * a layer wants at once, the step is to be run operation by operation, head by head (tiered.h).
 * Thread: the engine's. */
#pragma once

#include "attention/attention.h"
#include "attention/fetch.h"
#include "attention/prefetch.h"
#include "attention/select.h"

struct turns;

uint64_t turns_bytes(const struct attention_options *options); /* 0: there are none */
/* *turns NULL: the device has none, or its memory is the host's.  fetch, of the layer that attends, and prefetch:
 * borrowed. */
enum status turns_create(struct turns **turns, struct device *device, const struct attention_options *options,
                         struct fetch *fetch, struct prefetch *prefetch, struct error *error) STATUS_CHECKED;
void turns_destroy(struct turns *turns); /* NULL allowed */

/* What the step's lists are, for all of its turns. */
struct turns_step {
    const struct attention_step *step; /* copied, but for its windows */
    const struct select *select;
    const struct step_list *limits; /* [layer][row][kv head], a layer having room for kv_head_count heads */
    const struct buffer *rows;      /* of the lists, MEMORY_SHARED: [row][kv head][list_stride] */
    size_t list_stride;
    bool has_slots; /* missing is written */
};
/* In front of the step's launch. */
void turns_begin(struct turns *turns, const struct turns_step *step);
/* While it is captured: the layer's turn, and its page tables behind it.  expects: prefetch's choice is the next
 * layer's by then (prefetch_put), whose reads begin in the turn. */
void turns_put(struct turns *turns, struct stream *stream, const struct attention_layer *layer, bool expects);
/* Where fetch says which units are missing, in front of the turn. */
struct span turns_missing(const struct turns *turns);
/* The step was launched, and the stream is synchronised.  lists: how many were read.  *is_full: RAM had no slots for
 * all that a layer wants, so the step is to be run again. */
enum status turns_end(struct turns *turns, uint64_t *lists, bool *is_full, struct error *error) STATUS_CHECKED;
/* It has been full once: steps are as they were without turns. */
bool turns_are_over(const struct turns *turns);
