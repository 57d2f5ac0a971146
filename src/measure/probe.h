/* probe: an engine over the probe model, whose steps are measured. */
#pragma once

#include "engine/engine.h"
#include "measure/measure_internal.h"
#include "measure/probe_model.h"

enum { PROBE_PROMPT = 512 }; /* a prefill block */

/* An engine and up to three sequences, one of them empty. */
struct probe {
    struct measurement *measurement;
    struct model *model; /* owned */
    uint32_t layers, group, deep_tokens, shallow_tokens, keep_many;
    double empty_seconds;  /* of a step of the empty one, without a selection; 0: not measured */
    struct engine *engine; /* owned, as are its sequences */
    bool engine_on_disk;
    struct sequence *deep, *shallow, *empty;
};

enum status probe_open_model(struct probe *probe, struct error *error) STATUS_CHECKED;
/* Of these selections (machine_use) those that the device can choose by. */
uint32_t probe_selections(const struct device *device, uint32_t selections);
/* What measures one of them; keep: tokens. */
enum status probe_select(struct plan *plan, const struct machine_selection *selection, uint32_t keep,
                         struct error *error) STATUS_CHECKED;
/* A plan for all three sequences, of everything. */
struct plan probe_plan(const struct probe *probe);
/* With a plan for one sequence there is only the deep one.  Replaces the engine that is open. */
enum status probe_open_engine(struct probe *probe, const struct plan *plan, struct error *error) STATUS_CHECKED;
/* The model as well.  Safe on zeros. */
void probe_close(struct probe *probe);

/* A step of this token with empty caches, which the sequence forgets. */
enum status probe_step_of(struct probe *probe, struct sequence *sequence, int32_t token, double *seconds,
                          struct error *error) STATUS_CHECKED;
enum status probe_step_once(struct probe *probe, struct sequence *sequence, struct quickest *quickest,
                            struct error *error) STATUS_CHECKED;
/* The quickest of as many as it takes. */
enum status probe_step(struct probe *probe, struct sequence *sequence, double *seconds, struct error *error)
    STATUS_CHECKED;
