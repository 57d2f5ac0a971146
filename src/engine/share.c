/* share: sequences in memory that begin with what another one has. */
#include "base/assert.h"
#include "engine/engine_internal.h"

bool engine_shares(const struct engine *engine) {
    return engine->documents == NULL && engine->kv.host_bytes == 0 && !engine->rebuilds &&
           (engine->select == NULL || !select_watches_prefill(engine->select));
}

enum status sequence_share(struct sequence *sequence, const struct sequence *source, uint64_t token_count,
                           struct error *error) {
    struct engine *engine = sequence->engine;
    ASSERT(engine_shares(engine) && source->engine == engine && sequence_length(sequence) == 0);
    enum status status = kv_sequence_share(sequence->kv, source->kv, token_count, engine->stream, error);
    if (status == STATUS_FULL && error != NULL) error->status = STATUS_MEMORY;
    if (status != STATUS_OK) return status == STATUS_FULL ? STATUS_MEMORY : status;
    sequence->whole = token_count;
    return engine_build_tail(engine, sequence, error);
}
