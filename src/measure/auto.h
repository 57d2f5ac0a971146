/* auto: what --preset auto stands for, by the numbers of this machine (plan/choose.h, machine_file.h).
 *
 *   no loss, KV in RAM       full; nothing is measured or read
 *   no loss, KV on disk      full or kvpr, whichever is quicker
 *   with a KLD (--kld)       the same, and the plans that lose no more on this model, by MODEL.kld.json
 *   with a loss (--loss)     the quickest of full and the selections with that dial, and the length from which on it
 *                            is quicker than attending to everything (select_options.exact_below)
 *
 * Where the machine's numbers cannot be had it is full, and the note says why.  Thread: the engine's.
 */
#ifndef LOAM_MEASURE_AUTO_H
#define LOAM_MEASURE_AUTO_H

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
};

/* Sets the axes of a plan that is_auto; leaves others as they are.  Before plan_fit_context and plan_set_host_bytes.
 * note: one line about the choice; "": there was none.  STATUS_MEMORY: not even full fits the budgets.
 * STATUS_INTERRUPTED: measuring was stopped. */
enum status auto_choose(struct plan *plan, const struct model *model, const struct auto_request *request,
                        char note[AUTO_NOTE_BYTES], struct error *error) STATUS_CHECKED;

/* What plans lose on a model: the file beside it (plan/kld_table.h).  STATUS_IO: there is none. */
enum status auto_load_losses(struct kld_table *losses, const struct gguf *gguf,
                             const struct model_config *config, struct error *error) STATUS_CHECKED;

#endif
