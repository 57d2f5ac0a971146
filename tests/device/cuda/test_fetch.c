/* unit_fetch over many steps, against CLOCK one slot after the other; and attention over what it fetched. */
#include "kv_rig.h"

enum { DIMENSION = 64, KV_HEADS = 2, SLOTS = 12, UNITS = 64, LIST = 40, STEPS = 30 };

/* A head's cache, as the device has it and as the definition does. */
struct cache {
    int32_t table[UNITS];
    uint32_t owner[SLOTS], stamp[SLOTS], hand;
    uint8_t used[SLOTS];
};

struct fetch_rig {
    struct kv_rig kv;
    struct cache want[KV_HEADS];
    int32_t tables[KV_HEADS][UNITS];
    uint32_t owners[KV_HEADS][SLOTS], stamps[KV_HEADS][SLOTS], hands[KV_HEADS];
    uint8_t used[KV_HEADS][SLOTS];
    struct guarded slots;
    struct step_row row;
    uint32_t lists[KV_HEADS][LIST], counts[KV_HEADS]; /* units */
    uint32_t tokens[KV_HEADS][LIST * UNIT_TOKENS];
    struct cuda_list shown[KV_HEADS];
    uint64_t addresses[KV_HEADS][LIST];
    struct fetch_result results[KV_HEADS], wanted[KV_HEADS]; /* of all steps */
};

static void rig_init(struct fetch_rig *rig, struct random *random) {
    kv_rig_init(&rig->kv, random, KV_F16, KV_F16, DIMENSION, DIMENSION, KV_HEADS, (const uint64_t[]){500}, 1);
    for (size_t h = 0; h < KV_HEADS; h++) { /* the chunk that is not complete in the host's pool */
        uint32_t *pages = rig->kv.pages[0] + (KV_RIG_LAYER * KV_HEADS + h) * rig->kv.chunk_stride, at = 0;
        while (pages[at] >> 30 != 2) at++;
        const uint32_t place = pages[at];
        pages[at] = pages[7], pages[7] = place;
    }
    kv_rig_fill(&rig->kv);
    rig->slots = device_memory(KV_HEADS * SLOTS * rig->kv.layout.block_bytes);
    rig->row = (struct step_row){464, 0, 0}; /* chunk 7 is not complete */
    for (size_t h = 0; h < KV_HEADS; h++) {
        struct cache *c = &rig->want[h];
        for (size_t u = 0; u < UNITS; u++) c->table[u] = rig->tables[h][u] = UNIT_ABSENT;
        for (size_t s = 0; s < SLOTS; s++) c->owner[s] = rig->owners[h][s] = SLOT_EMPTY;
        memset(c->stamp, 0, sizeof c->stamp), memset(rig->stamps[h], 0, sizeof rig->stamps[h]);
        memset(c->used, 0, sizeof c->used), memset(rig->used[h], 0, sizeof rig->used[h]);
        c->hand = rig->hands[h] = (uint32_t)h * 7;
    }
}

/* Most of the last list, some new; one of the last chunk behind them. */
static void list_draw(struct fetch_rig *rig, struct random *random, size_t head, uint32_t wanted) {
    bool takes[UNITS] = {false};
    for (uint32_t i = 0; i < rig->counts[head]; i++)
        if (random_below(random, 4) > 0) takes[rig->lists[head][i]] = true;
    uint32_t count = 0;
    for (size_t u = 0; u < 58; u++) count += takes[u];
    while (count < wanted) {
        const size_t u = (size_t)random_below(random, 58);
        count += !takes[u];
        takes[u] = true;
    }
    takes[58] = true; /* of a chunk that is not complete */
    rig->counts[head] = 0;
    for (uint32_t u = 0; u <= 58; u++)
        if (takes[u] && rig->counts[head] < LIST) rig->lists[head][rig->counts[head]++] = u;
}

static uint32_t place_of(const struct fetch_rig *rig, size_t head, uint32_t unit) {
    return rig->kv.pages[0][(KV_RIG_LAYER * KV_HEADS + head) * rig->kv.chunk_stride + unit / 8];
}

static const void *home_of(const struct fetch_rig *rig, size_t head, uint32_t unit) {
    return (char *)kv_rig_chunk(&rig->kv, 0, KV_RIG_LAYER, head, unit / 8) +
           unit % 8 * rig->kv.layout.block_bytes;
}

/* A slot for a miss, or SLOTS. */
static uint32_t clock_find(struct cache *c, uint32_t step, uint32_t start, uint32_t *passed) {
    for (; *passed < 2 * SLOTS; (*passed)++) {
        const uint32_t slot = (start + *passed) % SLOTS;
        if (c->stamp[slot] == step) continue;
        if (*passed < SLOTS && c->used[slot]) {
            c->used[slot] = 0;
            continue;
        }
        c->stamp[slot] = step;
        c->hand = (slot + 1) % SLOTS;
        (*passed)++;
        return slot;
    }
    return SLOTS;
}

/* Returns the misses for which no slot was left. */
static uint32_t head_check(struct fetch_rig *rig, size_t head) {
    struct cache *c = &rig->want[head];
    struct fetch_result result = {0, 0, 0, 0};
    const uint32_t *list = rig->lists[head], start = c->hand, step = (uint32_t)rig->row.position + 1;
    const char *slots = (char *)rig->slots.data + head * SLOTS * rig->kv.layout.block_bytes;
    uint32_t misses[LIST], miss_count = 0, passed = 0;
    for (uint32_t i = 0; i < rig->counts[head]; i++) {
        const uint32_t unit = list[i], place = place_of(rig, head, unit);
        if (place >> 30 == 0) {
            result.absent++;
            assert_true(rig->addresses[head][i] == 0);
        } else if (unit / 8 >= 7 || place >> 30 == 1) { /* pool 1 is the device's */
            assert_true(rig->addresses[head][i] == address_of(home_of(rig, head, unit)));
            result.direct++;
        } else if (c->table[unit] >= 0) {
            c->stamp[c->table[unit]] = step;
            c->used[c->table[unit]] = 1;
            result.hits++;
        } else {
            misses[miss_count++] = i;
        }
    }
    for (uint32_t n = 0; n < miss_count; n++) {
        const uint32_t i = misses[n], unit = list[i], slot = clock_find(c, step, start, &passed);
        if (slot == SLOTS) {
            assert_true(rig->addresses[head][i] == address_of(home_of(rig, head, unit)));
            result.direct++;
            continue;
        }
        if (c->owner[slot] != SLOT_EMPTY) c->table[c->owner[slot]] = UNIT_ABSENT;
        c->owner[slot] = unit, c->table[unit] = (int32_t)slot, c->used[slot] = 1;
        result.misses++;
    }
    struct fetch_result *all = &rig->wanted[head];
    all->hits += result.hits, all->misses += result.misses;
    all->direct += result.direct, all->absent += result.absent;
    assert_memory_equal(&rig->results[head], all, sizeof *all);
    assert_memory_equal(rig->tables[head], c->table, sizeof c->table);
    assert_memory_equal(rig->owners[head], c->owner, sizeof c->owner);
    assert_memory_equal(rig->stamps[head], c->stamp, sizeof c->stamp);
    assert_memory_equal(rig->used[head], c->used, sizeof c->used);
    assert_int_equal(rig->hands[head], c->hand);
    for (uint32_t i = 0; i < rig->counts[head]; i++) { /* each is read where it lies */
        const int32_t slot = c->table[list[i]];
        if (slot < 0) continue;
        assert_true(rig->addresses[head][i] ==
                    address_of(slots) + (uint64_t)slot * rig->kv.layout.block_bytes);
        assert_memory_equal((void *)(uintptr_t)rig->addresses[head][i], home_of(rig, head, list[i]),
                            rig->kv.layout.block_bytes);
    }
    return miss_count - (uint32_t)result.misses;
}

/* The lists as tokens, of which there are none behind the row's own. */
static void lists_show(struct fetch_rig *rig) {
    for (size_t head = 0; head < KV_HEADS; head++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < rig->counts[head]; i++)
            for (uint32_t t = 0; t < UNIT_TOKENS; t++) {
                const uint32_t token = rig->lists[head][i] * UNIT_TOKENS + t;
                if (token <= rig->row.position) rig->tokens[head][count++] = token;
            }
        rig->shown[head] = (struct cuda_list){.rows = address_of(rig->tokens[head]), .count = count};
    }
}

static void fetch_run(struct fetch_rig *rig, uint64_t seed) {
    lists_show(rig);
    struct cuda_fetch_args args = {.rows = address_of(&rig->row),
                                   .items = address_of(rig->kv.items),
                                   .pools = address_of(&rig->kv.pools),
                                   .lists = address_of(rig->shown),
                                   .addresses = address_of(rig->addresses),
                                   .layer_pages = kv_rig_layer_pages(&rig->kv),
                                   .tables = address_of(rig->tables),
                                   .owners = address_of(rig->owners),
                                   .stamps = address_of(rig->stamps),
                                   .used = address_of(rig->used),
                                   .hands = address_of(rig->hands),
                                   .slots = address_of(rig->slots.data),
                                   .results = address_of(rig->results),
                                   .unit_stride = UNITS,
                                   .slot_count = SLOTS,
                                   .list_stride = LIST,
                                   .block_bytes = (uint32_t)rig->kv.layout.block_bytes,
                                   .device_pools = 1u << 1};
    memset(rig->addresses, 0xff, sizeof rig->addresses);
    launch("unit_fetch", KV_HEADS, 1, 1, 512, sizeof(struct fetch_shared), &args, seed);
}

/* Over addresses and through the page table: the same bits. */
static void attend(struct fetch_rig *rig, const float *q, bool by_address, float *partials, uint64_t seed) {
    struct cuda_attention_list_args args = {
        .attention = {.rows = address_of(&rig->row),
                      .items = address_of(rig->kv.items),
                      .pools = address_of(&rig->kv.pools),
                      .q = address_of(q),
                      .partials = address_of(partials),
                      .layer_pages = kv_rig_layer_pages(&rig->kv),
                      .shape = rig->kv.shape,
                      .row_count = 1,
                      .q_stride = KV_HEADS * DIMENSION,
                      .kv_head_count = KV_HEADS,
                      .group = 1,
                      .partial_stride = attention_partial_stride(DIMENSION),
                      .scale = 0.125f},
        .lists = address_of(rig->shown),
        .addresses = by_address ? address_of(rig->addresses) : 0,
        .list_stride = LIST};
    launch("attention_list_8_1_f16", ATTENTION_RANGES_MAX, KV_HEADS, 1, 128, attention_decode_shared(8, 1),
           &args, seed);
}

static void fetches_match(void **state) {
    (void)state;
    static struct fetch_rig rig;
    static float partials[2][KV_HEADS * ATTENTION_RANGES_MAX * (4 + DIMENSION)], q[KV_HEADS * DIMENSION];
    struct random random;
    random_init(&random, test_seed(801));
    uint32_t short_of = 0;
    rig_init(&rig, &random);
    fill_normal(&random, q, KV_HEADS * DIMENSION, 2.0);
    for (uint32_t i = 0; i < STEPS; i++) {
        rig.row.position = 464 + i;
        for (size_t h = 0; h < KV_HEADS; h++) list_draw(&rig, &random, h, i % 7 == 5 ? 38 : 8 + i % 5);
        fetch_run(&rig, test_seed(801) + i);
        for (size_t h = 0; h < KV_HEADS; h++) short_of += head_check(&rig, h);
        memset(partials, 0, sizeof partials);
        attend(&rig, q, false, partials[0], i);
        attend(&rig, q, true, partials[1], i + 1);
        assert_memory_equal(partials[1], partials[0], sizeof partials[0]);
    }
    assert_met(short_of > 0); /* slots were too few, sometimes */
    /* a chunk that is nowhere */
    rig.kv.pages[0][(KV_RIG_LAYER * KV_HEADS + 1) * rig.kv.chunk_stride + 2] = 0;
    for (uint32_t u = 16; u < 24; u++) { /* it left the cache, too */
        const int32_t slot = rig.tables[1][u];
        if (slot >= 0) rig.owners[1][slot] = rig.want[1].owner[slot] = SLOT_EMPTY;
        rig.tables[1][u] = rig.want[1].table[u] = UNIT_ABSENT;
    }
    rig.row.position++;
    for (uint32_t i = 0; i < 20; i++) rig.lists[1][i] = i + 10;
    rig.counts[1] = 20;
    fetch_run(&rig, 5);
    (void)head_check(&rig, 1);
    assert_int_equal(rig.results[1].absent, 8);
    guarded_destroy(&rig.slots);
    kv_rig_deinit(&rig.kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fetches_match)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
