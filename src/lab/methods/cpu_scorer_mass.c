/* The score of a token is the attention that it has received, summed by add_mass. */
#include <string.h>

#include "device/cpu/cpu_scorer_internal.h"

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    (void)device, (void)operation, (void)scratch;
    memset((float *)unit->block + unit->token_begin, 0, (unit->token_end - unit->token_begin) * sizeof(float));
}

static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    (void)scratch;
    for (uint64_t token = range->begin; token < range->end; token++)
        scores[token - range->begin] = ((const float *)range->blocks[token / KV_CHUNK_TOKENS])[token % KV_CHUNK_TOKENS];
}

static const struct cpu_scorer scorer = {.build = build, .score = score};

__attribute__((constructor)) static void add(void) { cpu_scorer_add(KEY_INDEX_MASS, &scorer); }
