/* Attention over f16 KV in chunks that lie anywhere in device memory: 8 KV heads of 128, four query heads each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "card.h"
#include "kernels/attention/attention.h"

enum {
    KV_HEADS = 8,
    GROUP = 4,
    HEADS = KV_HEADS * GROUP,
    DIMENSION = 128,
    PATTERNS = 61,   /* chunks that differ; slot s holds number s % PATTERNS */
    SEQUENCES = 64,  /* at most, side by side, more than a card's caches hold */
    ATTENTIONS = 32, /* of a recorded graph, at least */
};
static const float QUERY_DEVIATION = 3; /* so that some tokens have most of the attention */

struct attention_rig {
    struct card *card;
    struct kv_layout layout;
    struct kv_pools pools;
    struct buffer memory, tables, step; /* chunks; uint32_t [sequence][KV head][chunks]; struct step_block */
    size_t slot_count;                  /* a power of two */
    float *k, *v;                       /* [PATTERNS * 64][DIMENSION], as stored */
    struct buffer q, out, partials;     /* floats [row][HEADS][DIMENSION] twice; of decode */
    float *q_values;
    uint64_t length; /* tokens of a sequence */
    size_t chunk_count, sequence_count;
};

/* What kernels of a decode step read, in device memory. */
struct step_block {
    struct cuda_pools pools;
    struct step_row rows[SEQUENCES];
    struct step_item items[SEQUENCES];
};

/* ---- KV ---- */

static void patterns_make(struct attention_rig *rig) {
    struct card *card = rig->card;
    const size_t count = (size_t)PATTERNS * KV_CHUNK_TOKENS * DIMENSION,
                 bytes = PATTERNS * rig->layout.chunk_bytes;
    struct attention_kernels kernels;
    uint8_t *chunks = card_memory(card, bytes);
    attention_kernels_init(&kernels, 0);
    rig->k = card_memory(card, count * sizeof(float)), rig->v = card_memory(card, count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        rig->k[i] = (float)random_normal(&card->random);
        rig->v[i] = (float)random_normal(&card->random);
    }
    for (size_t i = 0; i < (size_t)PATTERNS * KV_CHUNK_TOKENS; i++) {
        uint8_t *chunk = chunks + i / KV_CHUNK_TOKENS * rig->layout.chunk_bytes;
        float *k = rig->k + i * DIMENSION, *v = rig->v + i * DIMENSION;
        kernels.store(&rig->layout, chunk, i % KV_CHUNK_TOKENS, k, v);
        kernels.load(&rig->layout, chunk, i % KV_CHUNK_TOKENS, k, v);
    }
    card->operations->upload(card->stream, span_of(&rig->memory, 0), chunks,
                             min_size(bytes, rig->memory.bytes));
    for (size_t done = bytes; done < rig->memory.bytes; done *= 2) /* what is there, behind it once more */
        cuda_stream_copy(card->queue, rig->memory.address + done, rig->memory.address,
                         min_size(done, rig->memory.bytes - done));
    card_synchronize(card);
    free(chunks);
}

/* An odd multiple takes each slot once. */
static uint32_t slot_of(const struct attention_rig *rig, size_t sequence, size_t kv_head, size_t chunk) {
    const size_t number = (sequence * KV_HEADS + kv_head) * rig->chunk_count + chunk;
    return (uint32_t)(number * 40503 & (rig->slot_count - 1));
}

static void tables_make(struct attention_rig *rig, uint64_t length) {
    struct card *card = rig->card;
    rig->length = length;
    rig->chunk_count = (size_t)(length + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS;
    rig->sequence_count = min_size(rig->slot_count / (KV_HEADS * rig->chunk_count), SEQUENCES);
    const size_t each = KV_HEADS * rig->chunk_count, count = rig->sequence_count * each;
    uint32_t *places = card_memory(card, count * sizeof *places);
    struct step_block *step = card_memory(card, sizeof *step);
    *step = (struct step_block){.pools = {.pool = {{.base = {rig->memory.address},
                                                    .slots_per_buffer = UINT32_C(1) << POOL_ONE_BUFFER,
                                                    .slot_bytes = rig->layout.chunk_bytes}}}};
    card_allocate(card, MEMORY_DEVICE, count * sizeof *places, &rig->tables);
    for (size_t i = 0; i < rig->sequence_count; i++) {
        for (size_t n = 0; n < each; n++)
            places[i * each + n] =
                place_make(POOL_ROWS, slot_of(rig, i, n / rig->chunk_count, n % rig->chunk_count));
        step->rows[i] = (struct step_row){.position = length - 1, .item = (uint32_t)i};
        step->items[i] = (struct step_item){.pages = rig->tables.address + i * each * sizeof *places,
                                            .position_first = length - 1,
                                            .row_first = (uint32_t)i,
                                            .row_count = 1,
                                            .chunk_stride = (uint32_t)rig->chunk_count};
    }
    card->operations->upload(card->stream, span_of(&rig->tables, 0), places, count * sizeof *places);
    card->operations->upload(card->stream, span_of(&rig->step, 0), step, sizeof *step);
    free(places), free(step);
}

static void rig_make(struct card *card, struct attention_rig *rig, uint64_t longest) {
    *rig = (struct attention_rig){.card = card, .slot_count = 1};
    kv_layout_init(&rig->layout, KV_F16, KV_F16, DIMENSION, DIMENSION);
    while (rig->slot_count < longest / KV_CHUNK_TOKENS * KV_HEADS) rig->slot_count *= 2;
    card_allocate(card, MEMORY_DEVICE, rig->slot_count * rig->layout.chunk_bytes, &rig->memory);
    card_allocate(card, MEMORY_DEVICE, sizeof(struct step_block), &rig->step);
    rig->pools.list[POOL_ROWS] = (struct kv_pool){.buffers = &rig->memory,
                                                  .buffer_count = 1,
                                                  .buffer_shift = POOL_ONE_BUFFER,
                                                  .slot_bytes = rig->layout.chunk_bytes};
    patterns_make(rig);
}

static void rig_free(struct attention_rig *rig) {
    rig->card->operations->release(rig->card->device, &rig->memory);
    rig->card->operations->release(rig->card->device, &rig->step);
    free(rig->k), free(rig->v);
}

static void rows_make(struct attention_rig *rig, size_t count) {
    const size_t floats = count * HEADS * DIMENSION;
    rig->q_values = card_memory(rig->card, floats * sizeof(float));
    card_fill_normal(rig->card, &rig->q, floats, QUERY_DEVIATION, rig->q_values);
    card_allocate(rig->card, MEMORY_DEVICE, floats * sizeof(float), &rig->out);
    card_fill_nan(rig->card, &rig->out);
}

static void rows_free(struct attention_rig *rig) {
    rig->card->operations->release(rig->card->device, &rig->q);
    rig->card->operations->release(rig->card->device, &rig->out);
    rig->card->operations->release(rig->card->device, &rig->tables);
    free(rig->q_values);
}

/* ---- what is right ---- */

static double score_of(const float *q, const float *k) {
    double score = 0;
    for (size_t d = 0; d < DIMENSION; d++) score += (double)q[d] * (double)k[d];
    return score / sqrt(DIMENSION);
}

/* A head of a row at `position`, by the definition.  tolerance: of the mean magnitude of the values; scores are off by
 * roundings of floats (decode), or of queries and weights to halves (prompts). */
static void head_check(const struct attention_rig *rig, size_t sequence, size_t row, size_t head,
                       uint64_t position, const float *out, double tolerance, struct verdict *verdict) {
    const float *q = rig->q_values + (row * HEADS + head) * DIMENSION;
    double *scores = card_memory(rig->card, (position + 1) * sizeof *scores), largest = -INFINITY, sum = 0;
    double want[DIMENSION] = {0}, magnitude = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t t = 0; t <= position; t++) {
            const size_t slot = slot_of(rig, sequence, head / GROUP, (size_t)(t / KV_CHUNK_TOKENS));
            const size_t at = (slot % PATTERNS * KV_CHUNK_TOKENS + t % KV_CHUNK_TOKENS) * DIMENSION;
            if (pass == 0) {
                scores[t] = score_of(q, rig->k + at);
                largest = fmax(largest, scores[t]);
                continue;
            }
            const double weight = exp(scores[t] - largest);
            if (weight < 1e-12) continue;
            sum += weight;
            for (size_t d = 0; d < DIMENSION; d++) {
                want[d] += weight * (double)rig->v[at + d];
                magnitude += weight * fabs((double)rig->v[at + d]) / DIMENSION;
            }
        }
    for (size_t d = 0; d < DIMENSION; d++)
        verdict_near(verdict, (double)out[head * DIMENSION + d], want[d] / sum, tolerance * magnitude / sum,
                     "attention of head", head);
    free(scores);
}

static void row_check(const struct attention_rig *rig, size_t sequence, size_t row, uint64_t position,
                      double tolerance, struct verdict *verdict) {
    float out[HEADS * DIMENSION];
    rig->card->operations->download(rig->card->stream, out,
                                    span_floats(span_of(&rig->out, 0), row * HEADS * DIMENSION), sizeof out);
    card_synchronize(rig->card);
    head_check(rig, sequence, row, 1, position, out, tolerance, verdict);
    head_check(rig, sequence, row, HEADS - 1, position, out, tolerance, verdict);
}

/* ---- decode ---- */

static struct kv_shape shape_of(const struct kv_layout *layout) {
    return (struct kv_shape){(uint32_t)layout->k_type,          (uint32_t)layout->v_type,
                             (uint32_t)layout->k_dimension,     (uint32_t)layout->v_dimension,
                             (uint32_t)layout->k_row_bytes,     (uint32_t)layout->v_row_bytes,
                             (uint32_t)layout->k_scales_offset, (uint32_t)layout->v_offset,
                             (uint32_t)layout->v_scales_offset, (uint32_t)layout->block_bytes};
}

/* The two nodes of a step that cuda_attend.c launches, for the one row of a sequence. */
static void decode_launch(const struct attention_rig *rig, size_t sequence) {
    const uint64_t row_bytes = (uint64_t)HEADS * DIMENSION * sizeof(float);
    const struct cuda_attention_args attend = {
        .rows = rig->step.address + offsetof(struct step_block, rows) + sequence * sizeof(struct step_row),
        .items = rig->step.address + offsetof(struct step_block, items),
        .pools = rig->step.address + offsetof(struct step_block, pools),
        .q = rig->q.address + sequence * row_bytes,
        .partials = rig->partials.address,
        .shape = shape_of(&rig->layout),
        .row_count = 1,
        .q_stride = HEADS * DIMENSION,
        .kv_head_count = KV_HEADS,
        .group = GROUP,
        .partial_stride = attention_partial_stride(DIMENSION),
        .scale = 1 / sqrtf(DIMENSION)};
    const struct cuda_merge_args merge = {.rows = attend.rows,
                                          .partials = attend.partials,
                                          .y = rig->out.address + sequence * row_bytes,
                                          .row_count = 1,
                                          .y_stride = HEADS * DIMENSION,
                                          .head_count = HEADS,
                                          .v_dimension = DIMENSION,
                                          .partial_stride = attend.partial_stride};
    cuda_work_launch(
        rig->card->stream, "attention_decode_16_4_f16",
        (struct cuda_shape){ATTENTION_RANGES_MAX, KV_HEADS, 1, 128, attention_decode_shared(16, GROUP)},
        &attend);
    cuda_work_launch(rig->card->stream, "attention_merge",
                     (struct cuda_shape){HEADS, 1, 1, 512, sizeof(struct merge_shared)}, &merge);
}

static void decode_bench(struct attention_rig *rig, uint64_t length, const char *name) {
    struct card *card = rig->card;
    struct verdict verdict = {.failed = false};
    struct cuda_graph graph;
    struct error error;
    char what[64];
    tables_make(rig, length);
    rows_make(rig, rig->sequence_count);
    const size_t turns = card->is_small ? 1 : (ATTENTIONS + rig->sequence_count - 1) / rig->sequence_count,
                 times = card->is_small ? 1 : 4;
    card_synchronize(card);
    const struct cuda_counts before = device_cuda_counts(card->device);
    card_require(card, cuda_graph_begin(&graph, card->queue, &error), &error);
    for (size_t i = 0; i < turns * rig->sequence_count; i++) decode_launch(rig, i % rig->sequence_count);
    card_require(card, cuda_graph_end(&graph, &error), &error);
    const struct card_time time = card_time_graph(card, &graph, times, turns * rig->sequence_count);
    verdict_launches(&verdict, card, before, card_rounds(card) * times * turns * rig->sequence_count * 2);
    const size_t checked = min_size(rig->sequence_count, 4);
    for (size_t i = 0; i < checked; i++) row_check(rig, i, i, length - 1, 1e-3, &verdict);
    verdict_add(&verdict, true, "; 2 heads of %zu rows", checked);
    snprintf(what, sizeof what, "decode attention at %s", name);
    card_line(card, what, "GB/s",
              (double)(length * KV_HEADS * DIMENSION * 2 * sizeof(uint16_t)) / time.seconds * 1e-9,
              time.spread, card->copy_rate * 1e-9, &verdict);
    cuda_graph_destroy(&graph);
    rows_free(rig);
}

/* ---- prompts ---- */

struct prompts {
    struct attention_rig *rig;
    size_t row_count, count;
    uint64_t behind;
};

static void prompts_run(void *context) {
    const struct prompts *p = context;
    const struct attention_rig *rig = p->rig;
    const struct attend_item item = {.view = {.layout = &rig->layout,
                                              .pools = &rig->pools,
                                              .chunks = span_of(&rig->tables, 0),
                                              .chunk_stride = rig->chunk_count},
                                     .row_count = p->row_count,
                                     .position_first = p->behind};
    const struct attend_operation operation = {.q = span_of(&rig->q, 0),
                                               .q_stride = HEADS * DIMENSION,
                                               .out = span_of(&rig->out, 0),
                                               .out_stride = HEADS * DIMENSION,
                                               .head_count = HEADS,
                                               .kv_head_count = KV_HEADS,
                                               .scale = 1 / sqrtf(DIMENSION),
                                               .items = &item,
                                               .item_count = 1};
    for (size_t i = 0; i < p->count; i++) rig->card->operations->attend(rig->card->stream, &operation);
}

static void prompt_bench(struct attention_rig *rig, size_t row_count, uint64_t behind, const char *name) {
    struct card *card = rig->card;
    struct verdict verdict = {.failed = false};
    struct prompts p = {rig, row_count, card->is_small ? 1 : 10, behind};
    char what[64];
    tables_make(rig, behind + row_count);
    rows_make(rig, row_count);
    card_synchronize(card);
    const struct cuda_counts before = device_cuda_counts(card->device);
    const struct card_time time = card_time(card, prompts_run, &p, p.count);
    verdict_launches(&verdict, card, before, card_rounds(card) * p.count);
    verdict_wgmma(&verdict, card, before, card_rounds(card) * p.count);
    for (size_t i = 0; i < 3; i++) {
        const size_t row = i * (row_count - 1) / 2;
        row_check(rig, 0, row, behind + row, 2e-2, &verdict);
    }
    verdict_add(&verdict, true, "; 2 heads of 3 rows");
    double pairs = 0; /* of a query and a key */
    for (size_t r = 0; r < row_count; r++) pairs += (double)(behind + r + 1);
    snprintf(what, sizeof what, "prompt attention of %zu behind %s", row_count, name);
    card_line(card, what, "TFLOP/s", pairs * HEADS * DIMENSION * 4 / time.seconds * 1e-12, time.spread, 0,
              &verdict);
    rows_free(rig);
}

void bench_attention(struct card *card) {
    struct attention_rig rig;
    const size_t partials =
        HEADS * ATTENTION_RANGES_MAX * attention_partial_stride(DIMENSION) * sizeof(float);
    rig_make(card, &rig, card->is_small ? 512 : 131072);
    card_allocate(card, MEMORY_DEVICE, partials, &rig.partials);
    if (card->is_small) {
        decode_bench(&rig, 100, "100");
        decode_bench(&rig, 300, "300");
        prompt_bench(&rig, 24, 0, "0");
        prompt_bench(&rig, 24, 150, "150");
    } else {
        decode_bench(&rig, 4096, "4K");
        decode_bench(&rig, 32768, "32K");
        decode_bench(&rig, 131072, "128K");
        prompt_bench(&rig, 512, 0, "0");
        prompt_bench(&rig, 2048, 0, "0");
        prompt_bench(&rig, 2048, 32768, "32K");
    }
    card->operations->release(card->device, &rig.partials);
    rig_free(&rig);
}
