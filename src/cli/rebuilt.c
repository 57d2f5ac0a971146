#include "cli/rebuilt.h"

#include <stdio.h>

#include "server/json_text.h"

void rebuilt_print(const struct engine *engine) {
    const struct rebuild_statistics r = attention_rebuild_statistics(engine_attention((struct engine *)engine));
    const double ratio = r.kv_bytes > 0 ? r.input_bytes / r.kv_bytes : engine_inputs_ratio(engine);
    if (r.layers == 0 && (ratio < 1 || engine_tier_statistics(engine).read_pages == 0)) return;
    if (r.refusals > 0) {
        fprintf(stderr, "loam: note: inputs of layers: %s; K and V were read instead\n", r.refusal);
    } else if (r.chunks > 0) {
        fprintf(stderr,
                "loam: %.0f%% of what was to be read was computed again: inputs of %.2f times the bytes of KV, %.0f "
                "MB/s, %.1f us a token\n",
                100 * (double)r.chunks / (double)r.missing_chunks, ratio, r.bytes_per_second / 1e6,
                1e6 * r.seconds_per_token);
    } else if (ratio >= 1) {
        fprintf(stderr,
                "loam: note: nothing was computed again: the layers' inputs would move %.1f times the bytes "
                "of KV\n",
                ratio);
    } else if (r.bytes_per_second > 0) {
        fprintf(stderr,
                "loam: note: nothing was computed again: at %.0f MB/s reading a token's KV takes %.1f us, computing it "
                "from its inputs (%.2f times the bytes) %.1f us\n",
                r.bytes_per_second / 1e6, 1e6 * r.kv_bytes / r.bytes_per_second, ratio, 1e6 * r.seconds_per_token);
    }
}

json_t *rebuilt_json(const struct rebuild_statistics *statistics) {
    if (statistics->layers == 0) return NULL;
    json_t *object = json_object();
    json_put_counters(object, "", &rebuild_counters, statistics);
    return object;
}
