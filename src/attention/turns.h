/* turns: the host's part of a step above a disk that is a graph (device.h, host_turn).
 *
 * In each layer, behind what it chooses, the device asks: the host reads the lists, brings their chunks into RAM, and
 * writes where they are for the page tables that the device then reads.  Units that are in the device's slots are left
 * out, so a chunk of which it has all is not read.  A layer that attends to everything asks for everything.  When the
 * host has its turn, all that layers before attended to is read: their chunks go with the next one.  What the next
 * layer is expected to choose is listed by then, too, and its reads begin at the turn's end (prefetch.h).
 *
 * Where lists are kept (reuse.h) the device tells what became of their limits: how long they are, and which of them are
 * taken once more.  Chunks of those stay in RAM beside what their heads hold already.
 *
 * A turn cannot fail halfway: it is noted, and the step ends with it (turns_end).  Where RAM has no slots for all that
 * a layer wants at once, the step is to be run operation by operation, head by head (tiered.h).  Layers behind such a
 * turn compute by memory that nobody brought: they choose nothing, so that lists and labels are what they were.
 * Thread: the engine's. */
#pragma once

#include "attention/attention.h"
#include "attention/fetch.h"
#include "attention/prefetch.h"
#include "attention/select.h"
#include "cache/unit_cache.h"

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
    const struct buffer *expected;  /* the same of those that are expected; or NULL */
    size_t list_stride;
    bool has_slots;   /* what is missing is written */
    bool keeps_lists; /* what is told is read and written */
};
/* In front of the step's launch. */
void turns_begin(struct turns *turns, const struct turns_step *step);
/* Where compare_labels tells what became of all layers' limits: of their lists, or of those that are expected of them.
 * None where no lists are kept. */
enum turns_lists { TURNS_LISTED, TURNS_EXPECTED, TURNS_LISTS };
struct span turns_told(const struct turns *turns, enum turns_lists of);
/* While it is captured: the turn of a layer that attends to everything, and its page tables behind it. */
void turns_put(struct turns *turns, struct stream *stream, const struct attention_layer *layer);
/* The same of one that has chosen, behind what the next layer is expected to choose (prefetch_put), whose reads begin
 * in the turn.  units: whose slots leave out what they have, of the layer's lists; NULL: there are none. */
enum status turns_put_choice(struct turns *turns, struct stream *stream, const struct attention_layer *layer,
                             struct unit_cache *units, const struct unit_lists *listed, struct error *error)
    STATUS_CHECKED;

struct turns_outcome {
    uint64_t lists, verdicts; /* that were read (select_statistics) */
    size_t layer_count;       /* of the first ones, whose lists are as they should */
    bool is_full;             /* RAM had no slots for all that a layer wants: the step is to be run again */
};
/* The step was launched, and the stream is synchronised.  *outcome is set whatever is returned. */
enum status turns_end(struct turns *turns, struct turns_outcome *outcome, struct error *error) STATUS_CHECKED;
/* It has been full once: steps are as they were without turns. */
bool turns_are_over(const struct turns *turns);
