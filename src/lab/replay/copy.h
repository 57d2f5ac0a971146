/* copy: the KV of another engine's sequence, so that one run compares several engines after the same prompt. */
#pragma once

#include "engine/engine.h"

/* Copies the KV of the first token_count tokens of source, of another engine over the same model, into an empty
 * sequence of this engine.  The copy may spill to disk and is not saved.  STATUS_UNSUPPORTED: source or target are not
 * f16, the source's KV is not all in memory, the target's selection watches prompts, or layers keep a state. */
enum status copy_kv(struct model *model, struct engine *engine, struct sequence *sequence,
                    const struct sequence *source, uint64_t token_count, struct error *error) STATUS_CHECKED;
/* STATUS_UNSUPPORTED: layers keep a state, which `what` does not have. */
enum status copy_check_states(const struct model_config *config, const char *what, struct error *error) STATUS_CHECKED;
