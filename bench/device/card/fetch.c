/* Units of 8 tokens, 4 KiB, from pools of the host into slots of the card: unit_fetch gives them slots, and attention
 * over the list, 4 query heads of each KV head, fills these while it attends.  Lists take turns.  Either they have
 * nothing in common, so that every unit of every step is a miss, or all but one unit in 16. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "card.h"
#include "kernels/attention/kv_layout.h"

enum { KV_HEADS = 8, GROUP = 4, HEADS = KV_HEADS * GROUP, DIMENSION = 128 };
enum { STEPS_MAX = 512, FEW = 16 };

struct fetch_rig {
    struct card *card;
    struct kv_layout layout;
    uint32_t unit_count, list_units, list_count; /* of a KV head; of a list; lists */
    struct buffer home;                          /* the host's: chunks [KV head][chunk] */
    struct buffer slots;                         /* units [KV head][list_units] */
    struct buffer step;   /* struct cuda_pools, step_item, step_row [STEPS_MAX] */
    struct buffer pages;  /* uint32_t [KV head][chunk] */
    struct buffer tokens; /* uint32_t [list][list_units * 8] */
    struct buffer lists;  /* struct cuda_list [list][KV head] */
    struct buffer addresses, firsts, tables, owners, stamps, used, hands, results;
    struct buffer q, partials;
    struct cuda_fetch_args args;
    struct cuda_attention_list_args attend;
    bool is_few;              /* misses: of FEW units one */
    bool assigns, attends;    /* what a step does */
    struct fetch_result seen[KV_HEADS]; /* of results, so far */
    size_t steps_done, count; /* steps of a round */
};

enum { ITEM_AT = sizeof(struct cuda_pools), ROWS_AT = ITEM_AT + 64 };
_Static_assert(sizeof(struct step_item) <= 64 && ITEM_AT % 8 == 0, "places");

/* Units of a list ascend, one of every list_count; which, hangs on the place. */
static uint32_t listed_unit(const struct fetch_rig *rig, size_t list, uint32_t at) {
    if (rig->is_few && at % FEW != 0) list = 0;
    return at * rig->list_count + (at * 7 + (uint32_t)list) % rig->list_count;
}

static void upload(const struct fetch_rig *rig, struct buffer *buffer, const void *data, size_t bytes) {
    card_allocate(rig->card, MEMORY_DEVICE, bytes, buffer);
    rig->card->operations->upload(rig->card->stream, span_of(buffer, 0), data, bytes);
}

static void home_make(struct fetch_rig *rig) {
    const size_t chunks = rig->unit_count / KV_CHUNK_BLOCKS;
    card_allocate(rig->card, MEMORY_SHARED, KV_HEADS * chunks * rig->layout.chunk_bytes, &rig->home);
    uint64_t *words = rig->home.host;
    for (size_t i = 0; i < rig->home.bytes / sizeof *words; i++) words[i] = i * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t *pages = card_memory(rig->card, KV_HEADS * chunks * sizeof *pages);
    for (size_t i = 0; i < KV_HEADS * chunks; i++) pages[i] = place_make(POOL_ROWS, i);
    upload(rig, &rig->pages, pages, KV_HEADS * chunks * sizeof *pages);
    free(pages);
}

static void steps_make(struct fetch_rig *rig) {
    const size_t bytes = ROWS_AT + STEPS_MAX * sizeof(struct step_row);
    const uint64_t position = (uint64_t)rig->unit_count * UNIT_TOKENS;
    uint8_t *step = card_memory(rig->card, bytes);
    memset(step, 0, bytes);
    const struct cuda_pools pools = {.pool = {{.base = {rig->home.address},
                                               .slots_per_buffer = UINT32_C(1) << POOL_ONE_BUFFER,
                                               .slot_bytes = rig->layout.chunk_bytes}}};
    const struct step_item item = {.pages = rig->pages.address,
                                   .position_first = position,
                                   .row_count = 1,
                                   .chunk_stride = rig->unit_count / KV_CHUNK_BLOCKS};
    memcpy(step, &pools, sizeof pools);
    memcpy(step + ITEM_AT, &item, sizeof item);
    for (size_t i = 0; i < STEPS_MAX; i++) { /* a step's number is its position's */
        const struct step_row row = {.position = position + i};
        memcpy(step + ROWS_AT + i * sizeof row, &row, sizeof row);
    }
    upload(rig, &rig->step, step, bytes);
    free(step);
}

/* All heads have the same. */
static void lists_make(struct fetch_rig *rig) {
    const size_t each = (size_t)rig->list_units * UNIT_TOKENS, count = rig->list_count * each;
    uint32_t *tokens = card_memory(rig->card, count * sizeof *tokens);
    struct cuda_list *lists = card_memory(rig->card, rig->list_count * KV_HEADS * sizeof *lists);
    for (size_t i = 0; i < count; i++)
        tokens[i] =
            listed_unit(rig, i / each, (uint32_t)(i % each / UNIT_TOKENS)) * UNIT_TOKENS + i % UNIT_TOKENS;
    upload(rig, &rig->tokens, tokens, count * sizeof *tokens);
    for (size_t i = 0; i < rig->list_count * KV_HEADS; i++)
        lists[i] = (struct cuda_list){.rows = rig->tokens.address + i / KV_HEADS * each * sizeof *tokens,
                                      .count = (uint32_t)each};
    upload(rig, &rig->lists, lists, rig->list_count * KV_HEADS * sizeof *lists);
    free(tokens), free(lists);
}

/* Nothing is in a slot: tables and owners are of ones, which is UNIT_ABSENT and SLOT_EMPTY; the rest is zeros, as it
 * was allocated. */
static void caches_make(struct fetch_rig *rig) {
    struct card *card = rig->card;
    const size_t slots = KV_HEADS * rig->list_units;
    card_allocate(card, MEMORY_DEVICE, slots * rig->layout.block_bytes, &rig->slots);
    uint64_t *addresses = card_memory(card, slots * sizeof *addresses); /* until unit_fetch has written */
    for (size_t i = 0; i < slots; i++) addresses[i] = rig->slots.address + i * rig->layout.block_bytes;
    upload(rig, &rig->addresses, addresses, slots * sizeof *addresses);
    free(addresses);
    card_allocate(card, MEMORY_DEVICE, KV_HEADS * rig->unit_count * sizeof(int32_t), &rig->tables);
    card_allocate(card, MEMORY_DEVICE, slots * sizeof(uint32_t), &rig->owners);
    card_allocate(card, MEMORY_DEVICE, slots * sizeof(uint32_t), &rig->stamps);
    card_allocate(card, MEMORY_DEVICE, slots, &rig->used);
    card_allocate(card, MEMORY_DEVICE, KV_HEADS * sizeof(uint32_t), &rig->hands);
    card_allocate(card, MEMORY_DEVICE, KV_HEADS * sizeof(struct fetch_result), &rig->results);
    uint32_t firsts[KV_HEADS + 1];
    for (uint32_t i = 0; i <= KV_HEADS; i++) firsts[i] = i * rig->list_units;
    upload(rig, &rig->firsts, firsts, sizeof firsts);
    card_fill_nan(card, &rig->tables);
    card_fill_nan(card, &rig->owners);
    card_fill_nan(card, &rig->slots);
}

static void attention_make(struct fetch_rig *rig) {
    const struct kv_layout *layout = &rig->layout;
    const uint32_t stride = attention_partial_stride(DIMENSION);
    card_fill_normal(rig->card, &rig->q, (size_t)HEADS * DIMENSION, 1, NULL);
    card_allocate(rig->card, MEMORY_DEVICE, (size_t)HEADS * ATTENTION_RANGES_MAX * stride * sizeof(float),
                  &rig->partials);
    rig->attend = (struct cuda_attention_list_args){
        .attention = {.rows = rig->step.address + ROWS_AT,
                      .items = rig->step.address + ITEM_AT,
                      .pools = rig->step.address,
                      .q = rig->q.address,
                      .partials = rig->partials.address,
                      .shape = {.k_type = (uint32_t)layout->k_type,
                                .v_type = (uint32_t)layout->v_type,
                                .k_dimension = DIMENSION,
                                .v_dimension = DIMENSION,
                                .k_row_bytes = (uint32_t)layout->k_row_bytes,
                                .v_row_bytes = (uint32_t)layout->v_row_bytes,
                                .k_scales_offset = (uint32_t)layout->k_scales_offset,
                                .v_offset = (uint32_t)layout->v_offset,
                                .v_scales_offset = (uint32_t)layout->v_scales_offset,
                                .block_bytes = (uint32_t)layout->block_bytes},
                      .row_count = 1,
                      .q_stride = HEADS * DIMENSION,
                      .kv_head_count = KV_HEADS,
                      .group = GROUP,
                      .partial_stride = stride,
                      .scale = 1 / sqrtf(DIMENSION)},
        .addresses = rig->addresses.address,
        .list_stride = rig->list_units};
}

static void rig_make(struct card *card, struct fetch_rig *rig, bool is_few) {
    *rig = (struct fetch_rig){.card = card,
                              .is_few = is_few,
                              .list_units = card->is_small ? 16 : 512,
                              .list_count = card->is_small ? 4 : 16,
                              .count = card->is_small ? 2 : 64};
    rig->unit_count = rig->list_units * rig->list_count;
    kv_layout_init(&rig->layout, KV_F16, KV_F16, DIMENSION, DIMENSION);
    home_make(rig);
    steps_make(rig);
    lists_make(rig);
    caches_make(rig);
    attention_make(rig);
    rig->args = (struct cuda_fetch_args){.items = rig->step.address + ITEM_AT,
                                         .pools = rig->step.address,
                                         .addresses = rig->addresses.address,
                                         .firsts = rig->firsts.address,
                                         .tables = rig->tables.address,
                                         .owners = rig->owners.address,
                                         .stamps = rig->stamps.address,
                                         .used = rig->used.address,
                                         .hands = rig->hands.address,
                                         .slots = rig->slots.address,
                                         .results = rig->results.address,
                                         .unit_stride = rig->unit_count,
                                         .list_stride = rig->list_units,
                                         .block_bytes = (uint32_t)rig->layout.block_bytes};
    card_synchronize(card);
}

static void rig_free(struct fetch_rig *rig) {
    struct buffer *buffers[] = {&rig->home,   &rig->slots,  &rig->step,   &rig->pages,   &rig->lists,
                                &rig->tokens, &rig->tables, &rig->used,   &rig->hands,   &rig->addresses,
                                &rig->owners, &rig->stamps, &rig->results, &rig->firsts, &rig->q, &rig->partials};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        rig->card->operations->release(rig->card->device, buffers[i]);
}

static void step_run(struct fetch_rig *rig, size_t list) {
    rig->args.rows = rig->step.address + ROWS_AT + rig->steps_done % STEPS_MAX * sizeof(struct step_row);
    rig->args.lists = rig->attend.lists = rig->lists.address + list * KV_HEADS * sizeof(struct cuda_list);
    if (rig->assigns) {
        rig->steps_done++;
        cuda_work_launch(rig->card->stream, "unit_fetch",
                         (struct cuda_shape){KV_HEADS, 1, 1, 512, sizeof(struct fetch_shared)}, &rig->args);
    }
    if (rig->attends)
        cuda_work_launch(
            rig->card->stream, "attention_list_16_4_f16",
            (struct cuda_shape){ATTENTION_RANGES_MAX, KV_HEADS, 1, 128, attention_decode_shared(16, GROUP)},
            &rig->attend);
}

static void steps_run(void *context) {
    struct fetch_rig *rig = context;
    for (size_t i = 0; i < rig->count; i++) step_run(rig, rig->steps_done % rig->list_count);
}

/* What the steps since the last look have counted, in each head. */
static void results_check(struct fetch_rig *rig, uint64_t hits, uint64_t misses, struct verdict *verdict) {
    struct fetch_result results[KV_HEADS];
    rig->card->operations->download(rig->card->stream, results, span_of(&rig->results, 0), sizeof results);
    card_synchronize(rig->card);
    for (size_t h = 0; h < KV_HEADS; h++) {
        const struct fetch_result *r = &results[h], *before = &rig->seen[h];
        const uint64_t hit = r->hits - before->hits, missed = r->misses - before->misses;
        if (hit != hits || missed != misses || r->direct != 0 || r->absent != 0)
            verdict_add(verdict, false,
                        "head %zu: %" PRIu64 " hits; %" PRIu64 " misses; %" PRIu64 " direct; %" PRIu64
                        " absent: expected %" PRIu64 " and %" PRIu64,
                        h, hit, missed, r->direct, r->absent, hits, misses);
        rig->seen[h] = *r;
    }
}

/* Every unit of the list is where its address says, to the byte. */
static void units_check(struct fetch_rig *rig, size_t list, struct verdict *verdict) {
    const size_t count = KV_HEADS * rig->list_units, block = rig->layout.block_bytes;
    uint64_t *addresses = card_memory(rig->card, count * sizeof *addresses);
    uint8_t *slots = card_memory(rig->card, count * block);
    rig->card->operations->download(rig->card->stream, addresses, span_of(&rig->addresses, 0),
                                    count * sizeof *addresses);
    rig->card->operations->download(rig->card->stream, slots, span_of(&rig->slots, 0), count * block);
    card_synchronize(rig->card);
    for (size_t i = 0; i < count; i++) {
        const size_t head = i / rig->list_units,
                     unit = listed_unit(rig, list, (uint32_t)(i % rig->list_units));
        const uint64_t at = (addresses[i] & ~(uint64_t)SLOT_UNFILLED) - rig->slots.address;
        if (at % block != 0 || at >= count * block)
            verdict_add(verdict, false, "unit %zu of head %zu has no slot", unit, head);
        else if (memcmp(slots + at, (uint8_t *)rig->home.host + (head * rig->unit_count + unit) * block,
                        block) != 0)
            verdict_add(verdict, false, "unit %zu of head %zu has other bytes", unit, head);
    }
    free(addresses), free(slots);
}

/* Seconds of a step that does so much. */
static struct card_time steps_time(struct fetch_rig *rig, bool assigns, bool attends, struct verdict *verdict) {
    const struct cuda_counts before = device_cuda_counts(rig->card->device);
    rig->assigns = assigns, rig->attends = attends;
    const struct card_time time = card_time(rig->card, steps_run, rig, rig->count);
    verdict_launches(verdict, rig->card, before,
                     card_rounds(rig->card) * rig->count * ((size_t)assigns + (size_t)attends));
    return time;
}

/* Attention alone, of what is in slots already; returns its seconds. */
static double all_hits(struct card *card) {
    struct fetch_rig rig;
    struct verdict verdict = {.failed = false}, none = {.failed = false};
    rig_make(card, &rig, false);
    const struct card_time assigned = steps_time(&rig, true, false, &verdict);
    results_check(&rig, 0, (uint64_t)rig.steps_done * rig.list_units, &verdict);
    card_line(card, "slots for units of 8 tokens", "us", assigned.seconds * 1e6, assigned.spread, 0,
              &verdict);
    rig.attends = true;
    step_run(&rig, 0);
    step_run(&rig, 0); /* it is there now: its addresses are without a mark */
    results_check(&rig, rig.list_units, rig.list_units, &verdict);
    units_check(&rig, 0, &none);
    const struct card_time attended = steps_time(&rig, false, true, &none);
    card_line(card, "attention over a list of hits", "us", attended.seconds * 1e6, attended.spread, 0, &none);
    rig_free(&rig);
    return attended.seconds;
}

static void all_misses(struct card *card) {
    struct fetch_rig rig;
    struct verdict verdict = {.failed = false};
    rig_make(card, &rig, false);
    const struct card_time time = steps_time(&rig, true, true, &verdict);
    const size_t list = (rig.steps_done - 1) % rig.list_count;
    results_check(&rig, 0, (uint64_t)rig.steps_done * rig.list_units, &verdict);
    units_check(&rig, list, &verdict);
    step_run(&rig, list); /* it is there now */
    results_check(&rig, rig.list_units, 0, &verdict);
    const size_t bytes = KV_HEADS * rig.list_units * rig.layout.block_bytes;
    verdict_add(&verdict, true, "; %zu bytes a step, with attention; then all hits", bytes);
    card_line(card, "fetch of units of 8 tokens", "GB/s", (double)bytes / time.seconds * 1e-9, time.spread,
              card->link_rate * 1e-9, &verdict);
    rig_free(&rig);
}

/* attention: its seconds alone. */
static void few_misses(struct card *card, double attention) {
    struct fetch_rig rig;
    struct verdict verdict = {.failed = false};
    rig_make(card, &rig, true);
    rig.assigns = rig.attends = true;
    step_run(&rig, 0);
    results_check(&rig, 0, rig.list_units, &verdict);
    const struct card_time time = steps_time(&rig, true, true, &verdict);
    const uint64_t steps = rig.steps_done - 1, missed = rig.list_units / FEW;
    results_check(&rig, steps * (rig.list_units - missed), steps * missed, &verdict);
    units_check(&rig, (rig.steps_done - 1) % rig.list_count, &verdict);
    const double bytes = (double)(KV_HEADS * missed * rig.layout.block_bytes),
                 link = card->link_rate > 0 ? bytes / card->link_rate : 0;
    verdict_add(&verdict, true, "; %.0f bytes a step; limit: the larger of link and attention alone", bytes);
    card_line(card, "fetch and attention of 6% misses", "us", time.seconds * 1e6, time.spread,
              (link > attention ? link : attention) * 1e6, &verdict);
    rig_free(&rig);
}

void bench_fetch(struct card *card) {
    const double attention = all_hits(card);
    all_misses(card);
    few_misses(card, attention);
}
