/* Scores of units by the levels of their keys (kernels/level), with two things that a card could do:
 *
 *   candidates  units of the chunks alone that are best by the mean and deviation of their keys (kernels/abstract), so
 *               many as hold so many times what is picked.  The others count in no softmax.
 *   listed      the factor on the score of a unit that one of its head's last LISTS lists had
 *
 * When a unit was listed last is a stamp beside its chunk: a position and 1, or 0.  So rows of a batch that are of one
 * sequence have to be chosen in order, which one thread does. */
#include <string.h>

#include "base/checked.h"
#include "device/cpu/cpu_scorer_internal.h"

enum { LISTS = 8, PART_TOKENS = 4096 };
static const float NEVER = -1e30F; /* of a unit that is no candidate: its share of a softmax is 0 */

static void build(const struct cpu_device *device, const struct key_index_build_operation *operation,
                  const struct build_unit *unit, const struct build_scratch *scratch) {
    const struct key_index_layout *layout = operation->layout;
    cpu_scorer_level.build(device, operation, unit, scratch);
    device->kernels.abstract.build(&(struct abstract_build_args){.layout = &layout->abstract,
                                                                 .kv = unit->kv,
                                                                 .chunk = unit->chunk,
                                                                 .token_begin = unit->token_begin,
                                                                 .token_end = unit->token_end,
                                                                 .abstract = unit->block});
    memset((uint8_t *)unit->block + layout->nested.stamps_offset, 0,
           KV_CHUNK_TOKENS / layout->unit_tokens * sizeof(uint32_t));
}

static size_t query_bytes(const struct key_index_layout *layout, size_t group) {
    return cpu_scorer_level.query_bytes(layout, group);
}

static void prepare(const struct select_run *run, size_t kv_head, const float *q, void *prepared) {
    cpu_scorer_level.prepare(run, kv_head, q, prepared);
}

/* ---- candidates ---- */

static size_t unit_count(const struct choose_operation *operation, const struct select_item *item) {
    return (size_t)(item->candidate_end - item->candidate_begin) / operation->layout->unit_tokens;
}

static size_t one_part(const struct choose_operation *operation, const struct select_item *item) {
    (void)operation, (void)item;
    return 1;
}

/* Of a KV head of a row: its candidates' chunks. */
struct chunks {
    void **blocks; /* [count], those of chunks from `first` on */
    uint64_t first;
    size_t count;
};

static uint64_t chunk_end(const struct select_item *item) {
    return (item->candidate_end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS;
}

/* In the first bytes of scratch, which it advances. */
static struct chunks chunks_of(const struct select_item *item, size_t kv_head, uint8_t **scratch) {
    struct chunks chunks = {(void **)(void *)*scratch, item->candidate_begin / KV_CHUNK_TOKENS, 0};
    chunks.count = (size_t)(chunk_end(item) - chunks.first);
    cpu_find_chunks(item->view.pools, head_key_index(item, kv_head) + chunks.first, chunks.count, chunks.blocks);
    *scratch += align_up(chunks.count * sizeof *chunks.blocks, 64);
    return chunks;
}

/* Of a unit, counted from the first candidate. */
static uint32_t *stamp_of(const struct select_run *run, const struct select_item *item, const struct chunks *chunks,
                          size_t unit) {
    const struct key_index_layout *layout = run->operation->layout;
    const uint64_t token = item->candidate_begin + unit * layout->unit_tokens;
    uint8_t *block = chunks->blocks[token / KV_CHUNK_TOKENS - chunks->first];
    return (uint32_t *)(void *)(block + layout->nested.stamps_offset) + token % KV_CHUNK_TOKENS / layout->unit_tokens;
}

/* Whether one of the last `lists` rows before the item's had it. */
static bool was_listed(const uint32_t *stamp, const struct select_item *item, uint64_t lists) {
    return *stamp != 0 && *stamp <= item->position && item->position - *stamp < lists;
}

static void score_units(const struct select_run *run, size_t row, size_t kv_head, const struct chunks *chunks,
                        uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    const struct key_index_layout *layout = run->operation->layout;
    float *of_tokens = (float *)(void *)scratch, *scores = head_scores(run, row, kv_head);
    for (uint64_t begin = item->candidate_begin, end; begin < item->candidate_end; begin = end) {
        end = begin + PART_TOKENS < item->candidate_end ? begin + PART_TOKENS : item->candidate_end;
        run->device->kernels.level.score(
            &(struct level_score_args){.layout = &layout->level,
                                       .blocks = (const void *const *)chunks->blocks,
                                       .token_begin = begin - chunks->first * KV_CHUNK_TOKENS,
                                       .token_end = end - chunks->first * KV_CHUNK_TOKENS,
                                       .queries = prepared_query(run, row, kv_head),
                                       .heads = run->group,
                                       .scores = of_tokens,
                                       .stride = PART_TOKENS});
        for (size_t head = 0; head < run->group; head++)
            run->device->kernels.group.best(&(struct group_best_args){
                .scores = of_tokens + head * PART_TOKENS,
                .count = (size_t)(end - begin) / layout->unit_tokens,
                .parts = layout->unit_tokens,
                .best = scores + head * run->score_stride + (begin - item->candidate_begin) / layout->unit_tokens});
    }
}

/* Takes all units of chunks that are no candidates out of the choice. */
static void leave_out(const struct select_run *run, size_t row, size_t kv_head, const struct chunks *chunks,
                      uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    const struct key_index_layout *layout = run->operation->layout;
    const size_t units = unit_count(run->operation, item), in_chunk = KV_CHUNK_TOKENS / layout->unit_tokens;
    const size_t lead = (size_t)(item->candidate_begin % KV_CHUNK_TOKENS) / layout->unit_tokens;
    float *scores = (float *)(void *)scratch;
    uint32_t *best = (uint32_t *)(void *)(scratch + align_up(chunks->count * sizeof *scores, 64));
    uint8_t *more = (uint8_t *)best + align_up(chunks->count * sizeof *best, 64);
    const size_t wanted = (size_t)select_item_picks(item, kv_head) * layout->nested.candidates;
    const size_t taken = min_size((wanted + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS, chunks->count);
    run->device->kernels.abstract.score(&(struct abstract_score_args){.layout = &layout->abstract,
                                                                      .kind = ABSTRACT_MEAN_DEVIATION,
                                                                      .aggregate = SCORE_MAX,
                                                                      .abstracts = (const void *const *)chunks->blocks,
                                                                      .page_end = chunks->count,
                                                                      .q = head_query(run, &run->rows[row], kv_head),
                                                                      .q_stride = run->kv->k_dimension,
                                                                      .group = run->group,
                                                                      .scores = scores,
                                                                      .scratch = more});
    run->device->kernels.top_k.select(
        &(struct top_k_args){.scores = scores, .count = chunks->count, .k = taken, .indices = best, .scratch = more});
    for (size_t chunk = 0, next = 0; chunk < chunks->count; chunk++) {
        bool stays = next < taken && best[next] == chunk;
        next += stays;
        const size_t first = chunk * in_chunk > lead ? chunk * in_chunk - lead : 0,
                     end = min_size((chunk + 1) * in_chunk - lead, units);
        for (size_t unit = first; layout->nested.stays && unit < end; unit++)
            stays = stays || was_listed(stamp_of(run, item, chunks, unit), item, 1);
        for (size_t head = 0; head < run->group && !stays; head++)
            for (size_t unit = first; unit < end; unit++)
                head_scores(run, row, kv_head)[head * run->score_stride + unit] = NEVER;
    }
}

/* ---- the choice ---- */

/* Rows of a batch see what those before them listed: so nothing is scored before find, which goes from row to row. */
static void score_nothing(const struct select_run *run, size_t row, size_t kv_head, size_t part, uint8_t *scratch) {
    (void)part, (void)scratch;
    memset(head_scores(run, row, kv_head), 0, run->score_heads * run->score_stride * sizeof(float));
}

static void combine(const struct select_run *run, float *scores, size_t units) {
    float scales[GROUP_MAX];
    for (size_t head = 0; head < run->group; head++) scales[head] = run->operation->scale;
    run->device->kernels.group.softmax(&(struct group_softmax_args){
        .scores = scores, .stride = run->score_stride, .heads = run->group, .count = units, .scales = scales});
}

static bool find(const struct select_run *run, size_t row, size_t kv_head, uint32_t *indices, uint8_t *scratch) {
    const struct select_item *item = run->rows[row].item;
    const struct key_index_layout *layout = run->operation->layout;
    const size_t units = unit_count(run->operation, item), first = (size_t)item->candidate_begin / layout->unit_tokens,
                 picks = (size_t)select_item_picks(item, kv_head) / layout->unit_tokens;
    const struct chunks chunks = chunks_of(item, kv_head, &scratch);
    float *scores = head_scores(run, row, kv_head);
    score_units(run, row, kv_head, &chunks, scratch);
    if (layout->nested.candidates > 0) leave_out(run, row, kv_head, &chunks, scratch);
    combine(run, scores, units);
    for (size_t unit = 0; unit < units; unit++)
        if (was_listed(stamp_of(run, item, &chunks, unit), item, LISTS)) scores[unit] *= layout->nested.listed;
    run->device->kernels.top_k.select(&(struct top_k_args){.scores = scores,
                                                           .count = units,
                                                           .k = picks,
                                                           .index_first = (uint32_t)first,
                                                           .indices = indices,
                                                           .scratch = scratch});
    for (size_t i = 0; i < picks; i++) *stamp_of(run, item, &chunks, indices[i] - first) = (uint32_t)item->position + 1;
    return true;
}

static void count_nothing(const struct select_run *run) { (void)run; }

static size_t scratch_bytes(const struct select_run *run) {
    const struct kernels *kernels = &run->device->kernels;
    size_t chunks = 0, units = 0;
    for (size_t i = 0; i < run->row_count; i++) {
        chunks = max_size(chunks, (size_t)chunk_end(run->rows[i].item));
        units = max_size(units, unit_count(run->operation, run->rows[i].item));
    }
    const size_t tokens = run->group * PART_TOKENS * sizeof(float);
    const size_t of_chunks = kernels->abstract.score_scratch_bytes(&run->operation->layout->abstract, run->group);
    const size_t more = max_size(of_chunks, kernels->top_k.scratch_bytes(units, units));
    return align_up(chunks * sizeof(void *), 64) +
           max_size(tokens, 2 * align_up(chunks * sizeof(float), 64) + align_up(more, 64));
}

static const struct cpu_search search = {.score_count = unit_count,
                                         .part_count = one_part,
                                         .score_part = score_nothing,
                                         .find = find,
                                         .count = count_nothing};
static const struct cpu_scorer scorer = {
    .build = build, .query_bytes = query_bytes, .prepare = prepare, .scratch_bytes = scratch_bytes, .search = &search};

__attribute__((constructor)) static void add(void) { cpu_scorer_add(KEY_INDEX_NESTED, &scorer); }
