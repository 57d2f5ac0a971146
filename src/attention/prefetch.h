/* prefetch: the next layer's chunks, read while this one computes.
 *
 * Two kinds.  What is certain: where every layer attends to everything, the next one's chunks (the layer-ahead prefetch
 * of FlexGen).  What is expected: where layers choose, the choice that comes of the next layer's queries as this
 * layer's input has them (InfiniGen's speculation as a prefetch; CLO section 4).  It is chosen while the disk has this
 * layer's reads to do, and its reads begin when all that this layer waits for has come: some disks report
 * completions only once their queue is empty.  It changes what is in memory when the next layer chooses, never what
 * it chooses; whether it is worth its reads is a gate's to say, layer by layer (prefetch_gate.h).
 *
 * Where lists are kept by expected queries (reuse.h) the choice that is made ahead is not expected but decided: the
 * next layer takes it when it comes (prefetch_take_choice).  The gate then decides about its reads alone.
 */
#pragma once

#include "attention/attention.h"
#include "attention/fetch.h"
#include "attention/prefetch_gate.h"

struct prefetch {
    struct device *device; /* borrowed */
    struct trace *trace;   /* borrowed; NULL: none */
    size_t layer_count, kv_head_count;
    const struct kv_groups *groups; /* borrowed; NULL: all layers have kv_head_count KV heads */
    /* Borrowed; lists are kept: those of heads that would hit are not wanted; NULL: not so */
    struct reuse *reuse;
    bool decides;               /* with reuse: lists are kept by expected queries */
    struct list_buffers *lists; /* borrowed; NULL: none */
    struct choice choice;       /* the expected one; zeroed: there is none */
    bool is_decided;            /* it is what `decided_layer` attends to */
    size_t decided_layer;
    bool reads;                  /* the gate is open: its chunks are read */
    struct fetch next;           /* of the next layer; count 0: nothing */
    struct fetch held;           /* what was expected for this layer: kept in memory until it has attended */
    bool is_certain;             /* next */
    struct prefetch_gate *gates; /* owned; [layer_count], by the layer that is prefetched */
};

enum status prefetch_init(struct prefetch *prefetch, struct device *device, const struct attention_options *options,
                          const struct fetch_options *lists, struct error *error) STATUS_CHECKED;
void prefetch_deinit(struct prefetch *prefetch);
void prefetch_drop(struct prefetch *prefetch); /* all that is read ahead */
/* The same, and what was chosen for the next layer: the step is over, or its items are others. */
void prefetch_forget(struct prefetch *prefetch);

/* What is certain to be read for the layer after this one, of which only one row a sequence is attended to. */
void prefetch_everything(struct prefetch *prefetch, const struct attention_layer *layer);
void prefetch_begin_certain(struct prefetch *prefetch);
/* What was certain becomes `now`, completed by the chunks of the new rows.  False: there is nothing for this layer. */
bool prefetch_take_over(struct prefetch *prefetch, struct fetch *now, const struct attention_layer *layer);

/* Whether to expect something for the layer after this one, or to decide it. */
bool prefetch_expects(struct prefetch *prefetch, const struct select *select, const struct attention_layer *layer);
bool prefetch_has_decided(const struct prefetch *prefetch, size_t layer_index);
/* What has been decided for a layer becomes *choice, with what was counted for it; what *choice was is not needed any
 * more.  False: nothing has been. */
bool prefetch_take_choice(struct prefetch *prefetch, size_t layer_index, struct choice *choice);
/* Chooses what is expected, and plans its chunks. */
enum status prefetch_choose(struct prefetch *prefetch, struct stream *stream, const struct select *select,
                            const struct attention_layer *layer, struct error *error) STATUS_CHECKED;
/* The same in a graph, whose launches plan and read: it is put on the stream.  *expects: there is something. */
enum status prefetch_put(struct prefetch *prefetch, struct stream *stream, const struct select *select,
                         const struct attention_layer *layer, bool *expects, struct error *error) STATUS_CHECKED;
/* Nothing is expected any more; true: chunks of this layer may be added to prefetch->next. */
bool prefetch_plans(struct prefetch *prefetch, size_t layer_index);
/* Of a row's job: chunks with rows that are not there yet are in memory when the layer comes, and not wanted before. */
void prefetch_leave_out_growing(struct fetch_job *job, uint64_t position);
bool prefetch_waits(const struct prefetch *prefetch);    /* to begin what is expected */
void prefetch_begin_expected(struct prefetch *prefetch); /* as many heads as the disk has time for */
/* What is expected for this layer is held until it has attended; what was held before is not. */
void prefetch_hold(struct prefetch *prefetch, size_t layer_index);
/* Reads for this layer are still under way. */
bool prefetch_is_late(struct prefetch *prefetch);
/* The layer has attended to `now`: tells the gate what became of what was held for it, and lets it go. */
void prefetch_settle(struct prefetch *prefetch, const struct fetch *now, bool late);
