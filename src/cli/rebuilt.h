/* rebuilt: reports what was computed again instead of read (--set rebuild=recompute), and the kept inputs of
 * documents. */
#ifndef LOAM_CLI_REBUILT_H
#define LOAM_CLI_REBUILT_H

#include <jansson.h>

#include "cache/store/store.h"
#include "engine/engine.h"

/* A line for the user: how much was computed again, or why nothing was; nothing where nobody asked for it. */
void rebuilt_print(const struct engine *engine);
/* The same for --json; NULL: nobody asked. */
json_t *rebuilt_json(const struct engine *engine);

/* The document that keeps the inputs of a document's layers (cache/inputs.h). */
struct kept_inputs {
    uint64_t document; /* 0: there is none */
    uint64_t token_count;
};
enum status kept_inputs_find(struct store *store, uint64_t id, struct kept_inputs *found, struct error *error)
    STATUS_CHECKED;

#endif
