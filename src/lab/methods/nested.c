/* nested: what a card that fetches units of tokens could choose by, on the cpu (decision 0067).  Units
 * are ranked by the codes of their keys, as hash ranks them; `candidates` takes them of the chunks alone that are best
 * by the mean and deviation of their keys, and `listed` prefers those that were read lately. */
#include "attention/select_method.h"

static enum status layout(struct key_index_layout *layout, const struct select_shape *shape,
                          const struct select_options *options, struct error *error) {
    TRY(select_hash.layout(layout, shape, options, error));
    if (layout->kind != KEY_INDEX_LEVEL || layout->aggregate != SCORE_SOFTMAX)
        return error_set(error, STATUS_USAGE, "select=nested: expected code=level and group=softmax");
    level_layout_init(&layout->level, layout->level.dimension, layout->level.planes, false);
    layout->bytes = layout->level.bytes; /* the spread of a chunk's keys is an abstract's */
    struct nested_layout *nested = &layout->nested;
    *nested = (struct nested_layout){.candidates = options->candidates,
                                     .stays = options->stays,
                                     .listed = (float)options->listed,
                                     .stamps_offset = align_up(layout->bytes, 64)};
    const size_t stamps = align_up(KV_CHUNK_TOKENS / layout->unit_tokens * sizeof(uint32_t), 64);
    abstract_layout_init(&layout->abstract, KV_CHUNK_TOKENS, shape->k_dimension, false, true);
    layout->abstract.offset[ABSTRACT_MEAN_DEVIATION] += nested->stamps_offset + stamps;
    layout->bytes = nested->stamps_offset + stamps + layout->abstract.bytes;
    layout->kind = KEY_INDEX_NESTED;
    return STATUS_OK;
}

static struct select_method nested = {.name = "nested",
                                      .summary = "units by codes of their keys, of chunks that are candidates",
                                      .layout = layout,
                                      .scatter = 0.5};

__attribute__((constructor)) static void add(void) {
    nested.weights = select_hash.weights; /* rotations */
    select_method_add(&nested);
}
