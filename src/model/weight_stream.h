/* weight_stream: weights beyond a budget are read from the model file while other layers compute.
 *
 *   weight_stream_create -> (weight_stream_need, computation, weight_stream_done) of each layer in order ... -> destroy
 *
 * What every token needs whole (the output matrix) stays in memory, and as many layers as the budget holds, spread
 * evenly.  The others pass through two slots: while one is computed with, the next one's bytes arrive in the other, by
 * O_DIRECT where the file system has it.  A layer's queries, keys and values come first, since a prefetch for the next
 * layer needs its query weights (KVPR, section 3.3).  Weights keep the file's layout (decision 0001), so results
 * do not depend on the budget.
 *
 * Where layers are mixtures of experts all other matrices stay, and the budget beyond them is for pages of experts
 * (expert_pages.h).
 *
 * The matrices of struct model point into the slots while they are there, else into the mapped file, whose pages are
 * then not touched but for the rows of an embedding table that is not the output matrix too.
 *
 * Thread: the model's.
 */
#pragma once

#include "base/counter.h"
#include "model/model.h"
#include "platform/io_file.h"

struct weight_stream;
struct expert_pages;

/* host_bytes holds everything: *stream is NULL, and the file stays mapped.  STATUS_MEMORY: less than the output matrix
 * and two layers, or than all but the experts and those of one row; the message has the number.  STATUS_UNSUPPORTED:
 * the device does not compute with the host's memory.  faults: tests; borrowed. */
enum status weight_stream_create(struct weight_stream **stream, struct model *model, uint64_t host_bytes,
                                 const struct io_faults *faults, struct error *error) STATUS_CHECKED;
void weight_stream_destroy(struct weight_stream *stream); /* NULL: allowed */

/* Waits until the layer's matrices are there; begins to read the next.  Layers come in ascending order; a pass may end
 * early and the next one begin at layer 0.  stream NULL: nothing happens, here and below. */
enum status weight_stream_need(struct weight_stream *stream, size_t layer, struct error *error) STATUS_CHECKED;
/* The same for the query weights alone, of the layer behind the one in use.  false: it failed, which
 * weight_stream_need of that layer then reports. */
bool weight_stream_has_queries(struct weight_stream *stream, size_t layer);
/* The layer's matrices are not needed any more in this pass. */
void weight_stream_done(struct weight_stream *stream, size_t layer);
void weight_stream_end_pass(struct weight_stream *stream);

struct weight_figures {
    uint64_t weight_bytes;   /* of all matrices */
    uint64_t resident_bytes; /* that stay */
    uint64_t slot_bytes;
    uint64_t pass_bytes; /* read for each pass, or of all experts */
    uint64_t read_bytes; /* so far */
    double wait_seconds; /* in which nothing was computed */
    size_t resident_layers;
    size_t expert_slots;
    /* An expert that rows of a layer use, or a part of the rows where not all of theirs fit, was there, or was not, or
     * is one of those read ahead. */
    uint64_t expert_hits, expert_misses, expert_ahead, expert_ahead_used;
    bool direct; /* O_DIRECT */
};
extern const struct counter_table weight_counters;
struct weight_figures weight_stream_figures(const struct weight_stream *stream);
/* NULL: there are none. */
struct expert_pages *weight_stream_experts(const struct weight_stream *stream);
