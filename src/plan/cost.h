/* cost: how long a step and a prompt take, by the numbers of a machine (docs/planner.md).
 *
 *   step   = matrices + layers x (layer + attention)                            all KV in RAM
 *   attention of a layer
 *          = bytes of KV / rate                                                 everything
 *          = candidates x score + kept x rows                                   a selection
 *   step   = cost_overlapped                                                    everything, KV on disk: the next
 *                                                                               layer is read while this one computes
 *          = computing + reads                                                a selection, whose reads wait for it
 *   reads  = layers x layer + requests x request + bytes x byte                 machine_tier
 *
 *   step   = max(step, reading)                                                 the same with weights on the way: what
 *                                                                               a pass reads of them is added
 *
 * Sequences that go through a pass together share its weights; all else is done for each.  What a selection finds in
 * RAM, and reads of what it does not find: docs/planner.md, "What is assumed".  Arithmetic only: any thread.
 */
#pragma once

#include "base/status.h"
#include "format/gguf.h"
#include "model/model.h"
#include "model/model_size.h"
#include "plan/machine.h"
#include "plan/plan.h"

struct cost_model {
    const struct machine *machine; /* borrowed, as is the configuration */
    const struct model_config *config;
    double row_seconds;           /* all matrices, one row */
    double token_seconds;         /* the layers' matrices, a token of a prefill block */
    double output_seconds;        /* the output matrix, a row of as many */
    uint64_t device_weight_bytes; /* of all weights, on a device with memory of its own; 0: it has none */
    struct weight_sizes weights;
};
/* Types and shapes are read from gguf; no weight is. */
void cost_model_init(struct cost_model *model, const struct machine *machine, const struct model_config *config,
                     const struct gguf *gguf);

/* The types of its matrices, as bits (struct machine_use). */
uint64_t cost_matrix_types(const struct model_config *config, const struct gguf *gguf);

/* What no machine's file says and is taken to be so; where each was counted: docs/planner.md, "What is assumed".
 * Methods have their own beside it (select_method.scatter). */
#define COST_RENEWED         0.4  /* of the rows of a list that could be others, those that the next list has not */
#define COST_RENEWED_SCATTER 0.65 /* of these, as select_method.scatter */
#define COST_DIAL_TOKENS     0.25 /* of a context, what a dial keeps in single tokens */
#define COST_DIAL_PAGES      0.5  /* the same in pages and leaves */
#define COST_NOT_HIDDEN      0.75 /* of the shorter of reading and handling pages, what overlaps with nothing */

/* Consecutive chunks of a head that are neighbours on disk (cache/store/store.h). */
enum { COST_SEGMENT_CHUNKS = 16 };

enum cost_part {
    COST_MATRICES,
    COST_LAYERS,
    COST_ATTENTION,
    COST_SELECTION,
    COST_PAGES, /* requests and checksums of what is read, by the processor */
    COST_LINK,  /* K and V in RAM that a device reads */
    COST_DISK,
    COST_WEIGHTS, /* reading those that RAM does not hold */
    COST_PARTS
};
extern const char *const cost_part_names[COST_PARTS];

struct cost {
    double step_seconds;
    double parts[COST_PARTS]; /* their sum is more than step_seconds where some overlap */
    enum cost_part limit;     /* the largest */
    double prompt_seconds;    /* computing the depth as a prompt, and its first token */
    double held;              /* 0..1: the share of the KV that RAM holds */
    uint64_t kv_bytes, key_index_bytes, device_bytes, host_bytes, disk_bytes; /* at the depth */
    double read_bytes, read_requests, missed_chunks;                          /* of a step */
    double pass_bytes;                                                        /* of weights, read for each step */
};

/* What goes through the layers. */
struct cost_work {
    uint64_t depth;              /* tokens of each sequence */
    size_t sequences;            /* of a step together; 0: 1 */
    uint64_t weights_host_bytes; /* RAM for weights; 0: all of them are in RAM */
};

/* Of reading and handling that take so long together, the disk's. */
double cost_disk_share(double both, double processor);
/* A step whose layers are read one ahead: processor handles pages of this layer and computes it, while the disk goes on
 * with the next one's; the first layer's reads and the last one's computing are alone.  serial: 0 as far as a machine
 * reads and computes at once, 1 where one waits for the other (machine.disk.serial); then a quarter of the shorter of
 * reading and handling is hidden by the longer. */
double cost_overlapped(double serial, double disk, double processor, double computed, double layers);

/* A step of sequences with `depth` tokens by this plan, whose host_bytes are set if it has a disk; its capacity is at
 * least the number of sequences.  prompt_seconds is of one.  STATUS_MEMORY, STATUS_USAGE, ...: the plan is not possible
 * for the model. */
enum status cost_of_plan(struct cost *cost, const struct cost_model *model, const struct plan *plan,
                         const struct cost_work *work, struct error *error) STATUS_CHECKED;
