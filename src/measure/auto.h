/* auto: what --preset auto stands for, by the numbers of this machine (plan/choose.h, machine_file.h).
 *
 *   no loss, KV in RAM       full; nothing is measured or read
 *   no loss, KV on disk      full or kvpr, whichever is quicker
 *   with a KLD (--kld)       the same, and the plans that lose no more on this model, by MODEL.kld.json
 *   with a loss (--loss)     the quickest of full and the selections with that dial, and the length from which on it
 *                            is quicker than attending to everything (select_options.exact_below)
 *
 * With it come what the plan runs with (plan/choose.h): threads, how many sequences go together, and how much of the
 * weights stays in RAM.  What nobody measured is not chosen; weights are, by sizes alone.
 *
 * Where the machine's numbers cannot be had it is full, and the note says why.  Thread: the engine's.
 */
#pragma once

#include "measure/machine_file.h"
#include "model/model.h"
#include "plan/kld_table.h"
#include "plan/plan.h"

enum { AUTO_NOTE_BYTES = 400 };

struct auto_request {
    struct machine_request machine;
    uint64_t depth; /* tokens that a sequence is to have */
    /* Nobody asked for auto: without a loss it is full, since kvpr would keep inputs beside the KV */
    bool is_default;
    size_t thread_count;         /* given by who asks; 0: to be chosen */
    size_t sequences;            /* that go through a pass together; 0: to be chosen */
    uint64_t weights_host_bytes; /* given by who asks; 0: to be chosen */
    bool keeps_weights;          /* they stay as they are: who asks cannot change them */
    uint64_t memory_bytes;       /* for KV and weights; 0: auto_memory_bytes of what is available */
};

struct auto_choice {
    char note[AUTO_NOTE_BYTES];  /* one line; "": nothing was chosen */
    size_t thread_count;         /* 0: as many as there are */
    size_t sequences;            /* that go through a pass together; 0: not chosen */
    uint64_t weights_host_bytes; /* 0: all weights are in RAM, or as they were */
};

/* Sets the axes of a plan that is_auto, and its budget where KV and weights divide the memory; leaves other plans as
 * they are.  Before plan_fit_context and plan_set_host_bytes.  STATUS_MEMORY: not even full fits the budgets.
 * STATUS_INTERRUPTED: measuring was stopped. */
enum status auto_choose(struct plan *plan, const struct model *model, const struct auto_request *request,
                        struct auto_choice *choice, struct error *error) STATUS_CHECKED;

/* What KV and weights may take of ram_bytes; the rest is for activations, and for other programs.  0: not known. */
uint64_t auto_memory_bytes(double ram_bytes);

/* What plans lose on a model: the file beside it (plan/kld_table.h).  STATUS_IO: there is none. */
enum status auto_load_losses(struct kld_table *losses, const struct gguf *gguf, const struct model_config *config,
                             struct error *error) STATUS_CHECKED;
