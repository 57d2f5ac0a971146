/* Pulls over the bus by unit_fetch: units of 8 tokens, 4 KiB, from pools of the host into slots of the card.  Lists
 * take turns and have nothing in common, so every unit of every step is a miss. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "card.h"
#include "kernels/attention/kv_layout.h"

enum { KV_HEADS = 8, DIMENSION = 128, STEPS_MAX = 512 };

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
    struct cuda_fetch_args args;
    struct fetch_result seen[KV_HEADS]; /* of results, so far */
    size_t steps_done, count; /* steps of a round */
};

enum { ITEM_AT = sizeof(struct cuda_pools), ROWS_AT = ITEM_AT + 64 };
_Static_assert(sizeof(struct step_item) <= 64 && ITEM_AT % 8 == 0, "places");

/* Units of a list ascend, one of every list_count; which, hangs on the place. */
static uint32_t listed_unit(const struct fetch_rig *rig, size_t list, uint32_t at) {
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
    card_allocate(card, MEMORY_DEVICE, slots * sizeof(uint64_t), &rig->addresses);
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

static void rig_make(struct card *card, struct fetch_rig *rig) {
    *rig = (struct fetch_rig){.card = card,
                              .list_units = card->is_small ? 16 : 512,
                              .list_count = card->is_small ? 4 : 16,
                              .count = card->is_small ? 2 : 64};
    rig->unit_count = rig->list_units * rig->list_count;
    kv_layout_init(&rig->layout, KV_F16, KV_F16, DIMENSION, DIMENSION);
    home_make(rig);
    steps_make(rig);
    lists_make(rig);
    caches_make(rig);
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
                                &rig->owners, &rig->stamps, &rig->results, &rig->firsts};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        rig->card->operations->release(rig->card->device, buffers[i]);
}

static void step_run(struct fetch_rig *rig, size_t list) {
    rig->args.rows = rig->step.address + ROWS_AT + rig->steps_done++ % STEPS_MAX * sizeof(struct step_row);
    rig->args.lists = rig->lists.address + list * KV_HEADS * sizeof(struct cuda_list);
    cuda_work_launch(rig->card->stream, "unit_fetch",
                     (struct cuda_shape){KV_HEADS, 1, 1, 512, sizeof(struct fetch_shared)}, &rig->args);
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
        const uint64_t at = addresses[i] - rig->slots.address;
        if (at % block != 0 || at >= count * block)
            verdict_add(verdict, false, "unit %zu of head %zu has no slot", unit, head);
        else if (memcmp(slots + at, (uint8_t *)rig->home.host + (head * rig->unit_count + unit) * block,
                        block) != 0)
            verdict_add(verdict, false, "unit %zu of head %zu has other bytes", unit, head);
    }
    free(addresses), free(slots);
}

void bench_fetch(struct card *card) {
    struct fetch_rig rig;
    struct verdict verdict = {.failed = false};
    rig_make(card, &rig);
    const struct cuda_counts before = device_cuda_counts(card->device);
    const struct card_time time = card_time(card, steps_run, &rig, rig.count);
    const size_t list = (rig.steps_done - 1) % rig.list_count;
    verdict_launches(&verdict, card, before, card_rounds(card) * rig.count);
    results_check(&rig, 0, (uint64_t)rig.steps_done * rig.list_units, &verdict);
    units_check(&rig, list, &verdict);
    step_run(&rig, list); /* it is there now */
    results_check(&rig, rig.list_units, 0, &verdict);
    const size_t bytes = KV_HEADS * rig.list_units * rig.layout.block_bytes;
    verdict_add(&verdict, true, "; %zu bytes a step; then all hits", bytes);
    card_line(card, "fetch of units of 8 tokens", "GB/s", (double)bytes / time.seconds * 1e-9, time.spread,
              card->link_rate * 1e-9, &verdict);
    rig_free(&rig);
}
