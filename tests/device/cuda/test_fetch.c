/* unit_fetch over many steps, against fetch of the cpu device; and attention over what it fetched. */
#include "kv_rig.h"

#include "device/cuda/kernels_turns.h"
#include "device/device.h"

enum { DIMENSION = 64, KV_HEADS = 3, UNITS = 64, FEW = 12, FEWER = 7, LIST = 40, STEPS = 30, WHOLE = KV_HEADS - 1 };
enum { SLOTS = FEW + FEWER + UNITS }; /* the last head's hold every unit */
static const uint32_t firsts[KV_HEADS + 1] = {0, FEW, FEW + FEWER, SLOTS};

/* The slots of all KV heads. */
struct cache {
    int32_t tables[KV_HEADS][UNITS];
    uint32_t owners[SLOTS], stamps[SLOTS], hands[KV_HEADS];
    uint8_t used[SLOTS];
};

/* What the cpu device works on. */
struct cpu_side {
    struct device *device;
    struct stream *stream;
    struct kv_pools pools;
    struct buffer buffers[2][KV_BUFFERS_MAX], pages, firsts, memory, all; /* all: of the rig */
};

struct fetch_rig {
    struct kv_rig kv;
    struct cache has, want; /* the kernel's, the cpu's */
    char gone[LIST * 8 * DIMENSION * 4]; /* units of the list whose chunk is nowhere */
    struct cpu_side cpu;
    struct guarded slots;
    struct step_row row;
    uint32_t lists[KV_HEADS][LIST], counts[KV_HEADS]; /* units */
    uint32_t tokens[KV_HEADS][LIST * UNIT_TOKENS];
    struct cuda_list shown[KV_HEADS];
    uint64_t addresses[KV_HEADS][LIST], wanted_addresses[KV_HEADS][LIST];
    struct fetch_result results[KV_HEADS]; /* of all steps */
    struct fetch_counts wanted[KV_HEADS];
    uint8_t missing[KV_HEADS][LIST], wanted_missing[KV_HEADS][LIST];
};

static struct buffer buffer_at(const void *memory, size_t bytes, enum memory_kind kind) {
    return (struct buffer){.kind = kind, .address = (uintptr_t)memory, .bytes = bytes};
}

static void cpu_open(struct fetch_rig *rig) {
    struct cpu_side *cpu = &rig->cpu;
    const size_t bytes = SLOTS * rig->kv.layout.block_bytes;
    const struct device_options options = {.thread_count = 2};
    struct error error;
    assert_int_equal(device_cpu_create(&cpu->device, &options, &error), STATUS_OK);
    assert_int_equal(cpu->device->operations->stream_create(cpu->device, &cpu->stream, &error), STATUS_OK);
    assert_int_equal(
        cpu->device->operations->allocate(cpu->device, MEMORY_SHARED, bytes, &cpu->memory, &error),
        STATUS_OK);
    for (size_t p = 0; p < 2; p++) {
        for (size_t b = 0; b < rig->kv.buffer_count[p]; b++)
            cpu->buffers[p][b] = buffer_at((void *)(uintptr_t)rig->kv.pools.pool[p].base[b],
                                           KV_RIG_SLOTS * rig->kv.pools.pool[p].slot_bytes,
                                           p == 0 ? MEMORY_DEVICE : MEMORY_SHARED);
        cpu->pools.list[p + 1] = (struct kv_pool){.buffers = cpu->buffers[p],
                                                  .buffer_count = rig->kv.buffer_count[p],
                                                  .buffer_shift = 3,
                                                  .slot_bytes = rig->kv.pools.pool[p].slot_bytes};
    }
    cpu->pages = buffer_at(rig->kv.pages[0], SIZE_MAX / 2, MEMORY_DEVICE);
    cpu->firsts = buffer_at(firsts, sizeof firsts, MEMORY_DEVICE);
    cpu->all = buffer_at(rig, sizeof *rig, MEMORY_DEVICE);
}
_Static_assert(KV_RIG_SLOTS == 1 << 3, "buffer_shift");

static void cpu_close(struct fetch_rig *rig) {
    const struct device_operations *operations = rig->cpu.device->operations;
    operations->release(rig->cpu.device, &rig->cpu.memory);
    operations->stream_destroy(rig->cpu.stream);
    device_destroy(rig->cpu.device);
}

static void rig_init(struct fetch_rig *rig, struct random *random) {
    kv_rig_init(&rig->kv, random, KV_F16, KV_F16, DIMENSION, DIMENSION, KV_HEADS, (const uint64_t[]){500}, 1);
    for (size_t h = 0; h < KV_HEADS; h++) { /* the chunk that is not complete in the host's pool */
        uint32_t *pages = rig->kv.pages[0] + (KV_RIG_LAYER * KV_HEADS + h) * rig->kv.chunk_stride, at = 0;
        while (pages[at] >> 30 != 2) at++;
        const uint32_t place = pages[at];
        pages[at] = pages[7], pages[7] = place;
    }
    kv_rig_fill(&rig->kv);
    rig->slots = device_memory(SLOTS * rig->kv.layout.block_bytes);
    rig->row = (struct step_row){464, 0, 0}; /* chunk 7 is not complete */
    memset(&rig->has, 0, sizeof rig->has);
    memset(rig->has.tables, 0xff, sizeof rig->has.tables);
    memset(rig->has.owners, 0xff, sizeof rig->has.owners);
    for (uint32_t h = 0; h < KV_HEADS; h++) rig->has.hands[h] = h * 3;
    rig->want = rig->has;
    cpu_open(rig);
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

static struct span in_rig(const struct fetch_rig *rig, const void *member) {
    return span_of(&rig->cpu.all, (size_t)((const char *)member - (const char *)rig));
}

static void cpu_fetch(struct fetch_rig *rig, bool says) {
    const struct cpu_side *cpu = &rig->cpu;
    struct row_list lists[KV_HEADS];
    for (size_t head = 0; head < KV_HEADS; head++)
        lists[head] =
            (struct row_list){.rows = in_rig(rig, rig->tokens[head]), .count = rig->shown[head].count};
    const struct rows_item item = {.view = {.layout = &rig->kv.layout,
                                            .pools = &cpu->pools,
                                            .chunks = span_of(&cpu->pages, kv_rig_layer_pages(&rig->kv)),
                                            .chunk_stride = rig->kv.chunk_stride},
                                   .position = rig->row.position,
                                   .lists = lists};
    const struct unit_slots slots = {.unit_stride = UNITS,
                                     .firsts = span_of(&cpu->firsts, 0),
                                     .tables = in_rig(rig, rig->want.tables),
                                     .owners = in_rig(rig, rig->want.owners),
                                     .stamps = in_rig(rig, rig->want.stamps),
                                     .used = in_rig(rig, rig->want.used),
                                     .hands = in_rig(rig, rig->want.hands),
                                     .memory = span_of(&cpu->memory, 0)};
    cpu->device->operations->fetch(cpu->stream,
                                   &(struct fetch_operation){.items = &item,
                                                             .item_count = 1,
                                                             .kv_head_count = KV_HEADS,
                                                             .slots = &slots,
                                                             .counts = in_rig(rig, rig->wanted),
                                                             .places = in_rig(rig, rig->wanted_addresses),
                                                             .place_stride = LIST,
                                                             .missing = says ? in_rig(rig, rig->wanted_missing)
                                                                             : (struct span){.buffer = NULL}});
}

static uint32_t *place_of(struct fetch_rig *rig, size_t head, uint32_t unit) {
    return &rig->kv.pages[0][(KV_RIG_LAYER * KV_HEADS + head) * rig->kv.chunk_stride + unit / 8];
}

static const void *home_of(const struct fetch_rig *rig, size_t head, uint32_t unit) {
    return (char *)kv_rig_chunk(&rig->kv, 0, KV_RIG_LAYER, head, unit / 8) +
           unit % 8 * rig->kv.layout.block_bytes;
}

/* The same slots, and every unit where the cpu has it, with the bytes of its chunk. */
static void fetch_check(struct fetch_rig *rig) {
    const size_t block_bytes = rig->kv.layout.block_bytes, slot_bytes = SLOTS * block_bytes;
    assert_memory_equal(&rig->has, &rig->want, sizeof rig->has);
    assert_memory_equal(rig->results, rig->wanted, sizeof rig->results);
    for (size_t head = 0; head < KV_HEADS; head++)
        for (uint32_t i = 0; i < rig->counts[head]; i++) {
            const uint64_t wanted = rig->wanted_addresses[head][i], from = wanted - rig->cpu.memory.address;
            assert_true(rig->addresses[head][i] ==
                        (from < slot_bytes ? address_of(rig->slots.data) + from : wanted));
            if (wanted == 0) continue;
            const bool is_there = *place_of(rig, head, rig->lists[head][i]) != 0;
            const void *home = is_there ? home_of(rig, head, rig->lists[head][i]) : rig->gone + i * block_bytes;
            assert_memory_equal((void *)(uintptr_t)rig->addresses[head][i], home, block_bytes);
            assert_memory_equal((void *)(uintptr_t)wanted, home, block_bytes);
        }
}

/* Both say the same, and change nothing. */
static void missing_check(struct fetch_rig *rig, const struct cuda_fetch_args *args, uint64_t seed) {
    const struct cache before = rig->has;
    struct fetch_result results[KV_HEADS];
    uint64_t addresses[KV_HEADS][LIST], wanted[KV_HEADS][LIST];
    memcpy(results, rig->results, sizeof results);
    memcpy(addresses, rig->addresses, sizeof addresses);
    memcpy(wanted, rig->wanted_addresses, sizeof wanted);
    memset(rig->missing, 2, sizeof rig->missing);
    memset(rig->wanted_missing, 2, sizeof rig->wanted_missing);
    const struct cuda_missing_args missing = {*args, address_of(rig->missing)};
    launch("unit_missing", KV_HEADS, 1, 1, 512, 0, &missing, seed);
    cpu_fetch(rig, true);
    assert_memory_equal(rig->missing, rig->wanted_missing, sizeof rig->missing);
    assert_memory_equal(&rig->has, &before, sizeof before);
    assert_memory_equal(&rig->want, &before, sizeof before);
    assert_memory_equal(rig->results, results, sizeof results);
    assert_memory_equal(rig->wanted, results, sizeof results);
    assert_memory_equal(rig->addresses, addresses, sizeof addresses);
    assert_memory_equal(rig->wanted_addresses, wanted, sizeof wanted);
}

/* It would be read in the host's memory, or nowhere: `before` it was fetched. */
static bool is_missing(struct fetch_rig *rig, const struct cache *before, size_t head, uint32_t unit) {
    const bool is_near = *place_of(rig, head, unit) >> 30 == 1,
               has_slot = unit / 8 < rig->row.position / 64 && before->tables[head][unit] >= 0;
    return !is_near && !has_slot;
}

static void fetch_run(struct fetch_rig *rig, uint64_t seed) {
    const struct cache before = rig->has;
    lists_show(rig);
    struct cuda_fetch_args args = {.rows = address_of(&rig->row),
                                   .items = address_of(rig->kv.items),
                                   .pools = address_of(&rig->kv.pools),
                                   .lists = address_of(rig->shown),
                                   .addresses = address_of(rig->addresses),
                                   .layer_pages = kv_rig_layer_pages(&rig->kv),
                                   .firsts = address_of(firsts),
                                   .tables = address_of(rig->has.tables),
                                   .owners = address_of(rig->has.owners),
                                   .stamps = address_of(rig->has.stamps),
                                   .used = address_of(rig->has.used),
                                   .hands = address_of(rig->has.hands),
                                   .slots = address_of(rig->slots.data),
                                   .results = address_of(rig->results),
                                   .unit_stride = UNITS,
                                   .list_stride = LIST,
                                   .block_bytes = (uint32_t)rig->kv.layout.block_bytes,
                                   .device_pools = 1u << 1};
    memset(rig->addresses, 0xff, sizeof rig->addresses);
    missing_check(rig, &args, seed);
    launch("unit_fetch", KV_HEADS, 1, 1, 512, sizeof(struct fetch_shared), &args, seed);
    cpu_fetch(rig, false);
    fetch_check(rig);
    for (size_t head = 0; head < KV_HEADS; head++)
        for (uint32_t i = 0; i < rig->counts[head]; i++)
            assert_int_equal(rig->missing[head][i], is_missing(rig, &before, head, rig->lists[head][i]));
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
    uint64_t direct = 0, last = 0, most = 0; /* units that are read where they lie: of a step */
    rig_init(&rig, &random);
    fill_normal(&random, q, KV_HEADS * DIMENSION, 2.0);
    for (uint32_t i = 0; i < STEPS; i++) {
        rig.row.position = 464 + i;
        for (size_t h = 0; h < KV_HEADS; h++) list_draw(&rig, &random, h, i % 7 == 5 ? 38 : 8 + i % 5);
        fetch_run(&rig, test_seed(801) + i);
        direct = rig.wanted[0].direct + rig.wanted[1].direct;
        most = direct - last > most ? direct - last : most;
        last = direct;
        memset(partials, 0, sizeof partials);
        attend(&rig, q, false, partials[0], i);
        attend(&rig, q, true, partials[1], i + 1);
        assert_memory_equal(partials[1], partials[0], sizeof partials[0]);
    }
    assert_met(most > LIST - FEW); /* slots were too few, sometimes */
    assert_met(rig.wanted[0].hits > 0 && rig.wanted[0].misses > 0);
    uint32_t held = 0;
    for (uint32_t slot = firsts[WHOLE]; slot < SLOTS; slot++) held += rig.has.owners[slot] != SLOT_EMPTY;
    assert_met(held > FEW); /* half of the chunks are in the host's pool */
    assert_int_equal(rig.results[WHOLE].misses, held); /* each unit missed once */
    /* a chunk that is nowhere: half of its units have slots, the others have left theirs */
    uint32_t first = 0;
    while (*place_of(&rig, 0, first) >> 30 != 2) first += 8;
    rig.row.position++;
    for (uint32_t i = 0; i < 8; i++) rig.lists[0][i] = first + i;
    rig.counts[0] = 8;
    fetch_run(&rig, 4);
    for (uint32_t i = 0; i < 8; i++)
        memcpy(rig.gone + i * rig.kv.layout.block_bytes, home_of(&rig, 0, first + i), rig.kv.layout.block_bytes);
    *place_of(&rig, 0, first) = 0;
    for (uint32_t u = first; u < first + 4; u++) {
        const int32_t slot = rig.has.tables[0][u];
        if (slot >= 0) rig.has.owners[slot] = rig.want.owners[slot] = SLOT_EMPTY;
        rig.has.tables[0][u] = rig.want.tables[0][u] = UNIT_ABSENT;
    }
    rig.row.position++;
    fetch_run(&rig, 5);
    assert_int_equal(rig.results[0].absent, 4);
    cpu_close(&rig);
    guarded_destroy(&rig.slots);
    kv_rig_deinit(&rig.kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fetches_match)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
