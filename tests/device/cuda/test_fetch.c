/* unit_fetch over many steps, against fetch of the cpu device; and attention over what it fetched.  The same of
 * unit_fetch_q4, where some chunks are in 4 bits. */
#include "kv_rig.h"

#include "device/cuda/kernels_turns.h"
#include "device/device.h"
#include "kernels/codec/codec.h"

enum { DIMENSION = 64, DIMENSION_MAX = 512 };
enum { KV_HEADS = 3, UNITS = 64, FEW = 12, FEWER = 7, LIST = 40, STEPS = 30, WHOLE = KV_HEADS - 1 };
enum { SLOTS = FEW + FEWER + UNITS }; /* the last head's hold every unit */
static const uint32_t firsts[KV_HEADS + 1] = {0, FEW, FEW + FEWER, SLOTS};
enum { GROUP_MAX = 10 }; /* query heads of a KV head: two passes of 8 */
enum { CHUNKS = UNITS / 8, Q4_SLOTS = 2 + 1 + CHUNKS }; /* of chunks in 4 bits, in the same way */
static const uint32_t q4_firsts[KV_HEADS + 1] = {0, 2, 3, Q4_SLOTS};

/* The slots of all KV heads. */
struct cache {
    int32_t tables[KV_HEADS][UNITS];
    uint32_t owners[SLOTS], stamps[SLOTS], hands[KV_HEADS];
    uint8_t used[SLOTS];
};

struct q4_cache {
    int32_t tables[KV_HEADS][CHUNKS];
    uint32_t owners[Q4_SLOTS], stamps[Q4_SLOTS], hands[KV_HEADS];
    uint8_t used[Q4_SLOTS];
};

/* What the cpu device works on. */
struct cpu_side {
    struct device *device;
    struct stream *stream;
    struct kv_pools pools;
    struct buffer buffers[2][KV_BUFFERS_MAX], pages, firsts, memory, all; /* all: of the rig */
    struct buffer q4_buffer, q4_memory;
};

/* Chunks in 4 bits, if there are any. */
struct q4_side {
    size_t bytes; /* of a chunk; 0: there are none */
    struct q4_cache has, want;
    uint32_t pages[KV_HEADS][CHUNKS + 2], firsts[KV_HEADS + 1];
    struct guarded home, slots; /* home: [KV head][chunk] */
};

struct fetch_rig {
    struct kv_rig kv;
    struct cache has, want; /* the kernel's, the cpu's */
    struct q4_side q4;
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
    uint32_t dimension;
    float q[KV_HEADS * GROUP_MAX * DIMENSION_MAX];
    float partials[2][KV_HEADS * GROUP_MAX * ATTENTION_RANGES_MAX * (4 + DIMENSION_MAX)];
    uint32_t group; /* of attention */
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
    operations->release(rig->cpu.device, &rig->cpu.q4_memory);
    operations->stream_destroy(rig->cpu.stream);
    device_destroy(rig->cpu.device);
}

static void rig_init(struct fetch_rig *rig, struct random *random, enum kv_type type, uint32_t dimension) {
    rig->dimension = dimension;
    kv_rig_init(&rig->kv, random, type, type, dimension, dimension, KV_HEADS, (const uint64_t[]){512}, 1);
    fill_normal(random, rig->q, KV_HEADS * GROUP_MAX * dimension, 2.0);
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
    memset(&rig->q4, 0, sizeof rig->q4);
    memset(rig->counts, 0, sizeof rig->counts);
    memset(rig->results, 0, sizeof rig->results);
    memset(rig->wanted, 0, sizeof rig->wanted);
    cpu_open(rig);
}

static char *q4_home(const struct fetch_rig *rig, size_t head, size_t chunk) {
    return (char *)rig->q4.home.data + (head * CHUNKS + chunk) * rig->q4.bytes;
}

/* Most chunks of either pool are in 4 bits, and nowhere as rows; of the last head the one that is not complete, too. */
static void q4_init(struct fetch_rig *rig) {
    struct q4_side *q4 = &rig->q4;
    struct codec_kernels codec;
    struct error error;
    codec_kernels_init(&codec, 0);
    q4->bytes = kv_q4_chunk_bytes(&rig->kv.layout);
    q4->home = guarded_create_aligned(KV_HEADS * CHUNKS * q4->bytes);
    q4->slots = device_memory(Q4_SLOTS * q4->bytes);
    memcpy(q4->firsts, q4_firsts, sizeof q4_firsts);
    memset(q4->has.tables, 0xff, sizeof q4->has.tables);
    memset(q4->has.owners, 0xff, sizeof q4->has.owners);
    q4->want = q4->has;
    for (uint32_t head = 0; head < KV_HEADS; head++)
        for (uint32_t c = 0; c < CHUNKS; c++) {
            uint32_t *rows = &rig->kv.pages[0][(KV_RIG_LAYER * KV_HEADS + head) * rig->kv.chunk_stride + c];
            if (c % 3 == 0 || (c == CHUNKS - 1 && head < KV_HEADS - 1)) continue;
            codec.q4_encode(&rig->kv.layout, kv_rig_chunk(&rig->kv, 0, KV_RIG_LAYER, head, c),
                            q4_home(rig, head, c));
            q4->pages[head][c] = UINT32_C(3) << 30 | (head * CHUNKS + c);
            *rows = 0;
        }
    assert_int_equal(rig->kv.chunk_stride, CHUNKS + 2);
    rig->kv.items[0].q4_pages = address_of(q4->pages);
    rig->kv.pools.pool[2] = (struct cuda_pool){
        .base = {address_of(q4->home.data)}, .slots_per_buffer = KV_HEADS * CHUNKS, .slot_bytes = q4->bytes};
    rig->cpu.q4_buffer = buffer_at(q4->home.data, KV_HEADS * CHUNKS * q4->bytes, MEMORY_SHARED);
    rig->cpu.pools.list[3] = (struct kv_pool){&rig->cpu.q4_buffer, 1, POOL_ONE_BUFFER, q4->bytes};
    assert_int_equal(rig->cpu.device->operations->allocate(rig->cpu.device, MEMORY_SHARED, Q4_SLOTS * q4->bytes,
                                                           &rig->cpu.q4_memory, &error),
                     STATUS_OK);
}

/* Some units of some chunks, and one of the last chunk. */
static void chunks_draw(struct fetch_rig *rig, struct random *random, size_t head, uint64_t few) {
    rig->counts[head] = 0;
    for (uint32_t c = 0, units; c < CHUNKS - 1; c++) {
        units = random_below(random, few) == 0 ? 1 + (uint32_t)random_below(random, 255) : 0;
        for (uint32_t u = 0; u < 8; u++)
            if (units >> u & 1 && rig->counts[head] + 1 < LIST) rig->lists[head][rig->counts[head]++] = c * 8 + u;
    }
    rig->lists[head][rig->counts[head]++] = 58;
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
                                            .quantized = rig->q4.bytes > 0 ? in_rig(rig, rig->q4.pages)
                                                                           : (struct span){.buffer = NULL},
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
    const struct unit_slots q4_slots = {.unit_stride = CHUNKS,
                                        .firsts = in_rig(rig, rig->q4.firsts),
                                        .tables = in_rig(rig, rig->q4.want.tables),
                                        .owners = in_rig(rig, rig->q4.want.owners),
                                        .stamps = in_rig(rig, rig->q4.want.stamps),
                                        .used = in_rig(rig, rig->q4.want.used),
                                        .hands = in_rig(rig, rig->q4.want.hands),
                                        .memory = span_of(&cpu->q4_memory, 0)};
    cpu->device->operations->fetch(cpu->stream,
                                   &(struct fetch_operation){.items = &item,
                                                             .item_count = 1,
                                                             .kv_head_count = KV_HEADS,
                                                             .slots = &slots,
                                                             .q4_slots = rig->q4.bytes > 0 ? &q4_slots : NULL,
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

/* A unit of a chunk in 4 bits, of a miss with the mark. */
static void q4_unit_check(const struct fetch_rig *rig, const struct q4_cache *before, size_t head, uint32_t i) {
    const uint32_t unit = rig->lists[head][i];
    const uint64_t wanted = rig->wanted_addresses[head][i], from = wanted - rig->cpu.q4_memory.address;
    const uint32_t misses = before->tables[head][unit / 8] < 0 ? (uint32_t)Q4_UNFILLED : 0;
    assert_int_equal(wanted & Q4_MARKS, Q4_UNIT | unit % 8);
    assert_true(rig->addresses[head][i] ==
                (from < Q4_SLOTS * rig->q4.bytes ? address_of(rig->q4.slots.data) + from + misses : wanted));
}

/* The same slots, and every unit where the cpu has it, of misses with the mark.  How many are nowhere. */
static uint32_t fetch_check(struct fetch_rig *rig, const struct cache *before, const struct q4_cache *q4_before) {
    const size_t slot_bytes = SLOTS * rig->kv.layout.block_bytes;
    uint32_t absent = 0;
    assert_memory_equal(&rig->has, &rig->want, sizeof rig->has);
    assert_memory_equal(&rig->q4.has, &rig->q4.want, sizeof rig->q4.has);
    assert_memory_equal(rig->results, rig->wanted, sizeof rig->results);
    for (size_t head = 0; head < KV_HEADS; head++)
        for (uint32_t i = 0; i < rig->counts[head]; i++) {
            const uint64_t wanted = rig->wanted_addresses[head][i], from = wanted - rig->cpu.memory.address;
            if (wanted & Q4_UNIT) {
                q4_unit_check(rig, q4_before, head, i);
                continue;
            }
            const uint32_t misses = before->tables[head][rig->lists[head][i]] < 0 ? (uint32_t)SLOT_UNFILLED : 0;
            assert_true(rig->addresses[head][i] ==
                        (from < slot_bytes ? address_of(rig->slots.data) + from + misses : wanted));
            absent += wanted == 0;
        }
    return absent;
}

/* Every unit has the bytes of its chunk, in 4 bits the whole chunk; where attention has not been there, but for slots
 * that it is to fill. */
static void bytes_check(struct fetch_rig *rig, bool attended) {
    const size_t block_bytes = rig->kv.layout.block_bytes;
    for (size_t head = 0; head < KV_HEADS; head++)
        for (uint32_t i = 0; i < rig->counts[head]; i++) {
            const uint64_t found = rig->addresses[head][i], wanted = rig->wanted_addresses[head][i];
            const bool is_q4 = (wanted & Q4_UNIT) != 0;
            const uint64_t marks = is_q4 ? Q4_MARKS | Q4_UNFILLED : SLOT_UNFILLED;
            if (wanted == 0 || (!attended && (found & (is_q4 ? Q4_UNFILLED : SLOT_UNFILLED)) != 0)) continue;
            const uint32_t unit = rig->lists[head][i];
            const void *home = is_q4                            ? q4_home(rig, head, unit / 8)
                               : *place_of(rig, head, unit) != 0 ? home_of(rig, head, unit)
                                                                : rig->gone + i * block_bytes;
            assert_memory_equal((void *)(uintptr_t)(found & ~marks), home, is_q4 ? rig->q4.bytes : block_bytes);
            assert_memory_equal((void *)(uintptr_t)(wanted & ~marks), home, is_q4 ? rig->q4.bytes : block_bytes);
        }
}

/* Both say the same, and change nothing. */
static void missing_check(struct fetch_rig *rig, const struct cuda_fetch_q4_args *args, uint64_t seed) {
    const struct cache before = rig->has;
    const struct q4_cache q4_before = rig->q4.has;
    struct fetch_result results[KV_HEADS];
    uint64_t addresses[KV_HEADS][LIST], wanted[KV_HEADS][LIST];
    memcpy(results, rig->results, sizeof results);
    memcpy(addresses, rig->addresses, sizeof addresses);
    memcpy(wanted, rig->wanted_addresses, sizeof wanted);
    memset(rig->missing, 2, sizeof rig->missing);
    memset(rig->wanted_missing, 2, sizeof rig->wanted_missing);
    const struct cuda_missing_q4_args q4_missing = {*args, address_of(rig->missing)};
    const struct cuda_missing_args missing = {args->fetch, address_of(rig->missing)};
    if (rig->q4.bytes > 0)
        launch("unit_missing_q4", KV_HEADS, 1, 1, 512, 0, &q4_missing, seed);
    else
        launch("unit_missing", KV_HEADS, 1, 1, 512, 0, &missing, seed);
    cpu_fetch(rig, true);
    assert_memory_equal(rig->missing, rig->wanted_missing, sizeof rig->missing);
    assert_memory_equal(&rig->has, &before, sizeof before);
    assert_memory_equal(&rig->want, &before, sizeof before);
    assert_memory_equal(&rig->q4.has, &q4_before, sizeof q4_before);
    assert_memory_equal(&rig->q4.want, &q4_before, sizeof q4_before);
    assert_memory_equal(rig->results, results, sizeof results);
    assert_memory_equal(rig->wanted, results, sizeof results);
    assert_memory_equal(rig->addresses, addresses, sizeof addresses);
    assert_memory_equal(rig->wanted_addresses, wanted, sizeof wanted);
}

/* It would be read in the host's memory, or nowhere: `before` it was fetched. */
static bool is_missing(struct fetch_rig *rig, const struct cache *before, const struct q4_cache *q4, size_t head,
                       uint32_t unit) {
    const bool is_complete = unit / 8 < rig->row.position / 64, has_q4 = is_complete && q4->tables[head][unit / 8] >= 0;
    if (rig->q4.bytes > 0 && (has_q4 || rig->q4.pages[head][unit / 8] != 0)) return !has_q4;
    const bool is_near = *place_of(rig, head, unit) >> 30 == 1,
               has_slot = is_complete && before->tables[head][unit] >= 0;
    return !is_near && !has_slot;
}

static size_t partial_bytes(const struct fetch_rig *rig) {
    return (size_t)KV_HEADS * rig->group * ATTENTION_RANGES_MAX * attention_partial_stride(rig->dimension) *
           sizeof(float);
}

/* Over addresses and through the page table: the same bits.  Of 1, 4 or 8 heads at once, of 512 elements 4 at most, in
 * a pass or more. */
static void attend(struct fetch_rig *rig, bool by_address, float *partials, uint64_t seed) {
    const uint32_t lanes = rig->dimension / 8, heads = rig->group == 1                ? 1
                                                       : rig->group <= 4 || lanes == 64 ? 4
                                                                                      : 8,
                   passes = (rig->group + heads - 1) / heads;
    char kernel[40];
    snprintf(kernel, sizeof kernel, "attention_list_%u_%u_%s", lanes, heads,
             rig->q4.bytes > 0                     ? "q4"
             : rig->kv.layout.k_type == KV_F16 ? "f16"
                                               : "any");
    struct cuda_attention_list_args args = {
        .attention = {.rows = address_of(&rig->row),
                      .items = address_of(rig->kv.items),
                      .pools = address_of(&rig->kv.pools),
                      .q = address_of(rig->q),
                      .partials = address_of(partials),
                      .layer_pages = kv_rig_layer_pages(&rig->kv),
                      .shape = rig->kv.shape,
                      .row_count = 1,
                      .q_stride = KV_HEADS * rig->group * rig->dimension,
                      .kv_head_count = KV_HEADS,
                      .group = rig->group,
                      .partial_stride = attention_partial_stride(rig->dimension),
                      .scale = 0.125f},
        .lists = address_of(rig->shown),
        .addresses = by_address ? address_of(rig->addresses) : 0,
        .list_stride = LIST};
    launch(kernel, ATTENTION_RANGES_MAX, KV_HEADS * passes, 1, 128, attention_decode_shared(lanes, heads), &args,
           seed);
}

static void fetch_run(struct fetch_rig *rig, uint64_t seed) {
    const struct cache before = rig->has;
    const struct q4_cache q4_before = rig->q4.has;
    rig->group = (const uint32_t[]){1, 4, 7, GROUP_MAX}[seed % 4];
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
    const struct cuda_fetch_q4_args q4_args = {.fetch = args,
                                               .firsts = address_of(rig->q4.firsts),
                                               .tables = address_of(rig->q4.has.tables),
                                               .owners = address_of(rig->q4.has.owners),
                                               .stamps = address_of(rig->q4.has.stamps),
                                               .used = address_of(rig->q4.has.used),
                                               .hands = address_of(rig->q4.has.hands),
                                               .slots = address_of(rig->q4.slots.data),
                                               .chunk_stride = CHUNKS,
                                               .chunk_bytes = (uint32_t)rig->q4.bytes};
    memset(rig->addresses, 0xff, sizeof rig->addresses);
    missing_check(rig, &q4_args, seed);
    if (rig->q4.bytes > 0)
        launch("unit_fetch_q4", KV_HEADS, 1, 1, 512, sizeof(struct fetch_shared), &q4_args, seed);
    else
        launch("unit_fetch", KV_HEADS, 1, 1, 512, sizeof(struct fetch_shared), &args, seed);
    cpu_fetch(rig, false);
    const bool attends = fetch_check(rig, &before, &q4_before) == 0;
    if (attends) {
        for (size_t i = 0; i < 2; i++) memset(rig->partials[i], 0, partial_bytes(rig));
        attend(rig, false, rig->partials[0], seed);
        attend(rig, true, rig->partials[1], seed + 1);
        assert_memory_equal(rig->partials[1], rig->partials[0], partial_bytes(rig));
    }
    bytes_check(rig, attends);
    for (size_t head = 0; head < KV_HEADS; head++)
        for (uint32_t i = 0; i < rig->counts[head]; i++)
            assert_int_equal(rig->missing[head][i],
                             is_missing(rig, &before, &q4_before, head, rig->lists[head][i]));
}

/* The chunk of units from `first` on is nowhere: half of them have slots, the others have left theirs. */
static void gone_check(struct fetch_rig *rig, uint32_t first) {
    rig->row.position++;
    for (uint32_t i = 0; i < 8; i++) rig->lists[0][i] = first + i;
    rig->counts[0] = 8;
    fetch_run(rig, 4);
    for (uint32_t i = 0; i < 8; i++)
        memcpy(rig->gone + i * rig->kv.layout.block_bytes, home_of(rig, 0, first + i), rig->kv.layout.block_bytes);
    *place_of(rig, 0, first) = 0;
    for (uint32_t u = first; u < first + 4; u++) {
        const int32_t slot = rig->has.tables[0][u];
        if (slot >= 0) rig->has.owners[slot] = rig->want.owners[slot] = SLOT_EMPTY;
        rig->has.tables[0][u] = rig->want.tables[0][u] = UNIT_ABSENT;
    }
    rig->row.position++;
    fetch_run(rig, 5);
    assert_int_equal(rig->results[0].absent, 4);
}

static void fetches_match(void **state) {
    (void)state;
    static struct fetch_rig rig;
    struct random random;
    random_init(&random, test_seed(801));
    uint64_t direct = 0, last = 0, most = 0; /* units that are read where they lie: of a step */
    rig_init(&rig, &random, KV_F16, DIMENSION);
    for (uint32_t i = 0; i < STEPS; i++) {
        rig.row.position = 464 + i;
        for (size_t h = 0; h < KV_HEADS; h++) list_draw(&rig, &random, h, i % 7 == 5 ? 38 : 8 + i % 5);
        fetch_run(&rig, test_seed(801) + i);
        direct = rig.wanted[0].direct + rig.wanted[1].direct;
        most = direct - last > most ? direct - last : most;
        last = direct;
    }
    assert_met(most > LIST - FEW); /* slots were too few, sometimes */
    assert_met(rig.wanted[0].hits > 0 && rig.wanted[0].misses > 0);
    uint32_t held = 0;
    for (uint32_t slot = firsts[WHOLE]; slot < SLOTS; slot++) held += rig.has.owners[slot] != SLOT_EMPTY;
    assert_met(held > FEW); /* half of the chunks are in the host's pool */
    assert_int_equal(rig.results[WHOLE].misses, held); /* each unit missed once */
    uint32_t first = 0;
    while (*place_of(&rig, 0, first) >> 30 != 2) first += 8;
    assert_met(first / 8 < CHUNKS - 1); /* which is complete */
    if (first / 8 < CHUNKS - 1) gone_check(&rig, first);
    cpu_close(&rig);
    guarded_destroy(&rig.slots);
    kv_rig_deinit(&rig.kv);
}

/* Chunks in 4 bits come whole, into slots of their own, which hold two of them, one, and all. */
static void chunks_in_4_bits_match(void **state) {
    (void)state;
    static struct fetch_rig rig;
    struct random random;
    random_init(&random, test_seed(802));
    rig_init(&rig, &random, KV_F16, DIMENSION);
    q4_init(&rig);
    for (uint32_t i = 0; i < STEPS; i++) {
        rig.row.position = 464 + i;
        for (size_t h = 0; h < KV_HEADS; h++) chunks_draw(&rig, &random, h, 2 + h % 2);
        fetch_run(&rig, test_seed(802) + i);
    }
    for (size_t h = 0; h < KV_HEADS; h++) assert_met(rig.wanted[h].chunk_hits > 0 && rig.wanted[h].chunk_misses > 0);
    assert_met(rig.wanted[0].chunk_misses > 4 && rig.wanted[1].chunk_misses > 2); /* slots are taken from others */
    assert_met(rig.wanted[0].chunk_direct > 0 && rig.wanted[1].chunk_direct > 0); /* of more than there are slots for */
    assert_met(rig.wanted[0].misses > 0 && rig.wanted[0].hits > 0);         /* rows beside them */
    assert_met(rig.wanted[WHOLE].chunk_misses == 4); /* each once; one is not complete */
    assert_int_equal(rig.wanted[WHOLE].chunk_direct, STEPS);
    /* RAM has none of them any more: those in slots are read there, the others are nowhere. */
    const uint64_t hits = rig.wanted[WHOLE].chunk_hits, absent = rig.wanted[0].absent;
    for (size_t h = 0; h < KV_HEADS; h++)
        for (uint32_t c = 0; c + 1 < CHUNKS; c++) rig.q4.pages[h][c] = 0;
    for (uint32_t c = 0; c < 2; c++)
        if (rig.q4.has.tables[0][c + 1] >= 0) {
            const int32_t slot = rig.q4.has.tables[0][c + 1];
            rig.q4.has.owners[slot] = rig.q4.want.owners[slot] = SLOT_EMPTY;
            rig.q4.has.tables[0][c + 1] = rig.q4.want.tables[0][c + 1] = UNIT_ABSENT;
        }
    for (size_t h = 0; h < KV_HEADS; h += WHOLE) {
        rig.counts[h] = 4;
        for (uint32_t i = 0; i < 4; i++) rig.lists[h][i] = 8 + i * 3; /* of chunks 1 and 2 */
    }
    rig.counts[1] = 1;
    rig.lists[1][0] = 58;
    rig.row.position++;
    fetch_run(&rig, 4);
    assert_int_equal(rig.wanted[WHOLE].chunk_hits, hits + 2);
    assert_int_equal(rig.wanted[0].absent, absent + 4);
    cpu_close(&rig);
    guarded_destroy(&rig.q4.home);
    guarded_destroy(&rig.q4.slots);
    guarded_destroy(&rig.slots);
    kv_rig_deinit(&rig.kv);
}

/* Wider heads, whose rows have more lanes, and rows of 8 bits. */
static void wide_check(enum kv_type type, uint32_t dimension, bool has_q4, uint64_t seed) {
    enum { WIDE_STEPS = 6 };
    static struct fetch_rig rig;
    struct random random;
    random_init(&random, seed);
    rig_init(&rig, &random, type, dimension);
    if (has_q4) q4_init(&rig);
    for (uint32_t i = 0; i < WIDE_STEPS; i++) {
        rig.row.position = 464 + i;
        for (size_t h = 0; h < KV_HEADS; h++) {
            if (has_q4)
                chunks_draw(&rig, &random, h, 2 + h % 2);
            else
                list_draw(&rig, &random, h, 8 + i);
        }
        fetch_run(&rig, seed + i);
    }
    const struct fetch_counts *whole = &rig.wanted[WHOLE];
    for (size_t h = 0; h < KV_HEADS; h++) assert_met((has_q4 ? rig.wanted[h].chunk_misses : rig.wanted[h].misses) > 0);
    assert_met(whole->misses > 0 && whole->hits > 0 && (whole->chunk_hits > 0) == has_q4);
    cpu_close(&rig);
    if (has_q4) guarded_destroy(&rig.q4.home), guarded_destroy(&rig.q4.slots);
    guarded_destroy(&rig.slots);
    kv_rig_deinit(&rig.kv);
}

static void wide_heads_fill_slots(void **state) {
    (void)state;
    static const struct {
        enum kv_type type;
        uint32_t dimension;
    } kinds[] = {{KV_Q8, 64}, {KV_F16, 128}, {KV_Q8, 128}, {KV_F16, 256}, {KV_F16, 512}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (size_t q4 = 0; q4 < 2; q4++)
            if (kinds[i].type == KV_F16 || q4 == 0)
                wide_check(kinds[i].type, kinds[i].dimension, q4, test_seed(803) + 10 * i + q4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fetches_match), cmocka_unit_test(chunks_in_4_bits_match),
                                       cmocka_unit_test(wide_heads_fill_slots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
