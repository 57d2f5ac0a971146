/* Scores of pages by abstracts of their keys: kernels/abstract. */
#include "device/cpu/cpu_scorer_internal.h"

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    (void)scratch;
    device->kernels.abstract.build(&(struct abstract_build_args){.layout = &operation->layout->abstract,
                                                                 .kv = unit->kv,
                                                                 .chunk = unit->chunk,
                                                                 .token_begin = unit->token_begin,
                                                                 .token_end = unit->token_end,
                                                                 .abstract = unit->block});
}

static void score(const struct score_range *range, float *scores, uint8_t *scratch) {
    const struct select_run *run = range->run;
    const struct key_index_layout *layout = run->operation->layout;
    run->device->kernels.abstract.score(
        &(struct abstract_score_args){.layout = &layout->abstract,
                                      .kind = layout->abstract_kind,
                                      .aggregate = layout->aggregate,
                                      .abstracts = range->blocks,
                                      .page_begin = range->begin / layout->abstract.page_tokens,
                                      .page_end = range->end / layout->abstract.page_tokens,
                                      .q = range_query(range),
                                      .q_stride = run->kv->k_dimension,
                                      .group = range->head_count,
                                      .then = range->then,
                                      .scores = scores,
                                      .scratch = scratch});
}

static size_t scratch_bytes(const struct select_run *run) {
    return run->device->kernels.abstract.score_scratch_bytes(&run->operation->layout->abstract, run->group);
}

const struct cpu_scorer cpu_scorer_abstract = {.build = build, .score = score, .scratch_bytes = scratch_bytes};
