/* Bugs in the text of kernels (plant.py), of norms, products, scores, choices, fetches and states: each shows for every
 * seed.  What the kernels give without a bug, others compare with the definition: test_rows.c, test_matvec.c,
 * test_choice.c, test_fetch.c, test_cuda_device.c. */
#include "planted_runs.h"

#include <signal.h>

#include "base/random.h"
#include "device/cuda/kernels_look.h"
#include "tensor/half.h"

/* What precedes a launch leaves in `in`, where there are NaN until then; what launches find in their own memory, and
 * leave there. */
enum { BYTES = 1 << 18 };
static struct {
    _Alignas(64) char in[BYTES], out[BYTES], came[BYTES], found[BYTES], want[BYTES];
    size_t in_bytes, out_bytes;
    size_t launch_count;
    struct planted_launch {
        const char *kernel;
        uint32_t grid[3], threads;
        size_t shared;
        const void *args;
    } launches[8];
    struct random random;
} rig;

/* Memory of those two, zeros. */
static void *taken(char *memory, size_t *used, size_t bytes) {
    char *from = memory + *used;
    *used += (bytes + 63) / 64 * 64;
    assert_true(*used <= BYTES);
    return memset(from, 0, bytes);
}
static void *in_take(size_t bytes) { return taken(rig.in, &rig.in_bytes, bytes); }
static void *out_take(size_t bytes) { return taken(rig.out, &rig.out_bytes, bytes); }
static float *drawn(float *to, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = (float)random_normal(&rig.random);
    return to;
}
static uint64_t floats_in(size_t count) { return (uintptr_t)drawn(in_take(count * sizeof(float)), count); }
static uint64_t floats_out(size_t count) { return (uintptr_t)drawn(out_take(count * sizeof(float)), count); }
static uint64_t floats_of_weights(size_t count) { /* which no kernel writes */
    static char memory[BYTES];
    static size_t used;
    return (uintptr_t)drawn(taken(memory, &used, count * sizeof(float)), count);
}
static void launch_add(const char *kernel, uint32_t x, uint32_t y, uint32_t threads, size_t shared, const void *args) {
    rig.launches[rig.launch_count++] = (struct planted_launch){kernel, {x, y, 1}, threads, shared, args};
}

static void come(void *context) {
    (void)context;
    memcpy(rig.in, rig.came, rig.in_bytes);
}

static int launches_are_wrong(int bug, uint64_t seed) {
    planted_bug = (uint32_t)bug;
    for (uint64_t order = 0; order < (bug == TEXT_RIGHT ? 1 : ORDERS); order++) {
        memcpy(rig.out, rig.found, rig.out_bytes);
        for (size_t i = 0; i < rig.launch_count; i++) {
            const struct planted_launch *l = &rig.launches[i];
            const uint32_t block[3] = {l->threads, 1, 1};
            memset(rig.in, 0xff, rig.in_bytes);
            executor_precede(come, NULL);
            executor_launch(executor_find(l->kernel), l->grid, block, l->shared, l->args, seed + order * SEEDS);
        }
        if (memcmp(rig.out, rig.want, rig.out_bytes) != 0) return 1;
    }
    return 0;
}

static void bugs_are_seen(void (*init)(void), int begin, int end, uint64_t fixed) {
    const uint64_t seed = test_seed(fixed);
    rig.in_bytes = rig.out_bytes = rig.launch_count = 0;
    random_init(&rig.random, seed);
    init();
    memcpy(rig.came, rig.in, rig.in_bytes);
    memcpy(rig.found, rig.out, rig.out_bytes);
    (void)launches_are_wrong(TEXT_RIGHT, seed);
    memcpy(rig.want, rig.out, rig.out_bytes);
    bugs_of_text_are_seen(launches_are_wrong, begin, end, seed);
}

/* ---- products: two parts, whose rows and columns leave some over; three experts; the nodes of a step */

enum { BLOCKS = 33, COLUMNS = BLOCKS * 32, ROWS = 40, ROWS_MORE = 8, GATE_ROWS = 64 };
enum { INPUTS = 3, PICKS = 3, EXPERTS = 3 };

static struct weight_planes planes(size_t rows) {
    static _Alignas(16) uint8_t codes[EXPERTS * ROWS * BLOCKS * 16];
    static uint16_t scales[EXPERTS * ROWS * BLOCKS];
    assert_true(rows <= EXPERTS * ROWS);
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)random_below(&rig.random, 256);
    for (size_t i = 0; i < sizeof scales / 2; i++) scales[i] = float_to_half((float)random_normal(&rig.random));
    return (struct weight_planes){.codes = (uintptr_t)codes, .scales = (uintptr_t)scales};
}

static uint64_t inputs_in(size_t count) {
    char *rows = in_take(count * input_row_bytes(COLUMNS));
    for (size_t i = 0; i < count; i++) {
        char *row = rows + i * input_row_bytes(COLUMNS);
        for (size_t k = 0; k < COLUMNS; k++) row[k] = (char)random_below(&rig.random, 256);
        for (size_t b = 0; b < BLOCKS; b++)
            ((struct input_numbers *)(void *)(row + COLUMNS))[b] =
                (struct input_numbers){(float)random_normal(&rig.random), {(int16_t)b, (int16_t)-b}};
    }
    return (uintptr_t)rows;
}

static struct matvec_part part_of(struct weight_planes weight, uint32_t rows, uint32_t outputs) {
    return (struct matvec_part){.weight = weight,
                                .bias = floats_of_weights(EXPERTS * ROWS),
                                .y = floats_out((size_t)rows * outputs),
                                .rows = rows,
                                .y_stride = rows};
}

static void products_init(void) {
    static struct cuda_matvec_args dense[2];
    static struct cuda_matvec_experts_args experts;
    static struct cuda_decode_matvec_args nodes[2];
    const struct weight_planes weight = planes(EXPERTS * ROWS);
    const uint64_t inputs = inputs_in(INPUTS);
    for (size_t i = 0; i < 2; i++) { /* those of 2 to 8 inputs have one text */
        const uint32_t count = i == 0 ? 1 : INPUTS;
        dense[i] =
            (struct cuda_matvec_args){.part = {part_of(weight, ROWS, count), part_of(weight, ROWS_MORE, count)},
                                      .input = inputs,
                                      .columns = COLUMNS,
                                      .input_count = count,
                                      .input_stride = input_row_bytes(COLUMNS)};
        launch_add(i == 0 ? "matvec_q4_0_1" : "matvec_q4_0_4", 1, 1, 256, 0, &dense[i]);
    }
    uint32_t *picks = in_take(PICKS * sizeof *picks);
    for (size_t i = 0; i < PICKS; i++) picks[i] = 1 + i % 2;
    experts = (struct cuda_matvec_experts_args){.matvec = dense[0],
                                                .picks = (uintptr_t)picks,
                                                .used = 2,
                                                .expert_rows = ROWS};
    experts.matvec.part[0] = part_of(weight, ROWS, PICKS);
    experts.matvec.part[1].rows = 0;
    launch_add("matvec_experts_q4_0", 1, PICKS, 256, 0, &experts);
    for (size_t i = 0; i < 2; i++) {
        const uint32_t rows = i == 0 ? ROWS : GATE_ROWS;
        nodes[i] = (struct cuda_decode_matvec_args){.matvec = {.part = {part_of(weight, rows, 1)},
                                                               .input = floats_in(COLUMNS),
                                                               .columns = COLUMNS,
                                                               .input_count = 1},
                                                    .norm_w = floats_of_weights(COLUMNS),
                                                    .epsilon = 1e-5f};
        launch_add(i == 0 ? "decode_norm_q4_0" : "decode_gate_q4_0", 1, 1, 256, decode_matvec_shared(COLUMNS),
                   &nodes[i]);
    }
    nodes[1].matvec.part[1] = nodes[1].matvec.part[0];
    nodes[1].matvec.part[1].weight.codes += 16;
    nodes[1].input_out = (uintptr_t)out_take(input_row_bytes(GATE_ROWS));
    nodes[1].y = floats_out(GATE_ROWS);
}

static void bugs_of_products_are_seen(void **state) {
    (void)state;
    bugs_are_seen(products_init, MATVEC_BEGIN, MATVEC_END, 11);
}

/* ---- norms, of two rows of three, all threads with elements; heads of 72 */

enum { NORMED = 16 * 260, NORM_ROWS = 2, NORM_CAPACITY = 3, HEAD = 72, HEADS = 3 };

static void norms_init(void) {
    static struct cuda_norm_args norms[2];
    static struct cuda_quantize_args quantize;
    struct step_head *step = in_take(sizeof *step);
    step->row_count = NORM_ROWS;
    norms[0] = (struct cuda_norm_args){.step = (uintptr_t)step,
                                       .x = floats_in(NORM_CAPACITY * NORMED),
                                       .w = floats_of_weights(NORMED),
                                       .b = floats_of_weights(NORMED),
                                       .y = floats_out(NORM_CAPACITY * NORMED),
                                       .row_count = NORM_CAPACITY,
                                       .x_stride = NORMED,
                                       .y_stride = NORMED,
                                       .segment_count = 1,
                                       .segment_size = NORMED,
                                       .epsilon = 1e-5f};
    norms[1] = norms[0];
    norms[1].y = floats_out(NORM_CAPACITY * NORMED);
    norms[1].segment_count = HEADS, norms[1].segment_size = HEAD;
    quantize = (struct cuda_quantize_args){.step = (uintptr_t)step,
                                           .x = norms[0].x,
                                           .w = norms[0].w,
                                           .b = norms[0].b,
                                           .y = (uintptr_t)out_take(NORM_CAPACITY * input_row_bytes(NORMED)),
                                           .row_count = NORM_CAPACITY,
                                           .x_stride = NORMED,
                                           .columns = NORMED,
                                           .norm = QUANTIZE_LAYER,
                                           .epsilon = 1e-5f};
    launch_add("norm_rows", NORM_CAPACITY, 1, 256, sizeof(struct norm_shared), &norms[0]);
    launch_add("norm_heads", NORM_CAPACITY, 1, 256, 0, &norms[1]);
    launch_add("quantize_rows", NORM_CAPACITY, 1, 256, sizeof(struct norm_shared), &quantize);
}

static void bugs_of_norms_are_seen(void **state) {
    (void)state;
    bugs_are_seen(norms_init, NORM_BEGIN, NORM_END, 13);
}

/* ---- scores: heads beyond a launch's, tokens of words that fill no four, units of two lanes, few chunks */

/* Chunks that a list looks into, by all heads of the queries q. */
static void looks_init(const struct cuda_level_query_args *query) {
    enum { LOOKED = 6, CENTERS = 128, BLOCK_BYTES = 512 };
    static struct cuda_chunks_score_args chunks;
    const uint32_t width = query->k_dimension, heads = query->head_count;
    uint8_t *blocks = in_take(LOOKED * BLOCK_BYTES);
    uint32_t *pages = in_take(LOOKED * sizeof *pages);
    for (size_t i = 0; i < LOOKED; i++) {
        pages[i] = 1u << 30 | (uint32_t)i;
        for (size_t j = 0; j < width; j++) {
            *(uint16_t *)(void *)(blocks + i * BLOCK_BYTES + CENTERS + 2 * j) =
                float_to_half((float)random_normal(&rig.random));
            blocks[i * BLOCK_BYTES + CENTERS + 2 * width + j] = (uint8_t)(0x60 + random_below(&rig.random, 0x20));
        }
    }
    struct cuda_pools *pools = in_take(sizeof *pools);
    pools->pool[0] =
        (struct cuda_pool){.base = {(uintptr_t)blocks}, .slots_per_buffer = LOOKED, .slot_bytes = BLOCK_BYTES};
    struct step_item *item = in_take(sizeof *item);
    *item = (struct step_item){.index_pages = (uintptr_t)pages};
    struct cuda_list *list = in_take(sizeof *list);
    *list = (struct cuda_list){.end = LOOKED * 64, .picks = 4};
    chunks = (struct cuda_chunks_score_args){.rows = (uintptr_t)in_take(sizeof(struct step_row)),
                                             .items = (uintptr_t)item,
                                             .pools = (uintptr_t)pools,
                                             .queries = query->queries,
                                             .scores = floats_out(heads * LOOKED),
                                             .q = query->q,
                                             .lists = (uintptr_t)list,
                                             .row_count = 1,
                                             .kv_head_count = 1,
                                             .group = heads,
                                             .query_bytes = query->query_bytes,
                                             .dimension = width,
                                             .q_stride = heads * width,
                                             .center_offset = CENTERS,
                                             .spread_offset = CENTERS + 2 * width,
                                             .chunk_stride = LOOKED,
                                             .scale = 1};
    launch_add("chunks_score", 1, 1, 256, 0, &chunks);
}

static void scores_init(void) {
    enum { WIDTH = 96, SCORED = 9, FACTORS = WIDTH * 8, CENTER = FACTORS + 128, QUERY = 512, UNITS_SCORED = 4 };
    static struct cuda_level_query_args query;
    static struct cuda_look_score_args score;
    uint8_t *block = in_take(CENTER + WIDTH * 2);
    for (size_t i = 0; i < FACTORS; i++) block[i] = (uint8_t)random_below(&rig.random, 256);
    for (size_t i = FACTORS; i < CENTER + WIDTH * 2; i += 2)
        *(uint16_t *)(void *)(block + i) = float_to_half((float)random_normal(&rig.random));
    static uint16_t rotation[WIDTH * WIDTH]; /* which no kernel writes */
    for (size_t i = 0; i < WIDTH * WIDTH; i++) rotation[i] = float_to_half((float)random_normal(&rig.random));
    struct cuda_pools *pools = in_take(sizeof *pools);
    pools->pool[0] = (struct cuda_pool){.base = {(uintptr_t)block}, .slots_per_buffer = 1};
    uint32_t *page = in_take(sizeof *page);
    *page = 1u << 30;
    struct step_item *item = in_take(sizeof *item);
    *item = (struct step_item){.index_pages = (uintptr_t)page};
    struct cuda_list *list = in_take(sizeof *list);
    *list = (struct cuda_list){.end = 64, .picks = 16};
    query = (struct cuda_level_query_args){.q = floats_in(SCORED * WIDTH),
                                           .rotation = (uintptr_t)rotation,
                                           .queries = (uintptr_t)out_take(SCORED * QUERY),
                                           .row_count = 1,
                                           .k_dimension = WIDTH,
                                           .head_count = SCORED,
                                           .group = SCORED,
                                           .query_bytes = QUERY,
                                           .planes = 1};
    score.score = (struct cuda_level_score_args){.rows = (uintptr_t)in_take(sizeof(struct step_row)),
                                           .items = (uintptr_t)item,
                                           .pools = (uintptr_t)pools,
                                           .queries = query.queries,
                                           .scores = floats_out(SCORED * UNITS_SCORED),
                                           .lists = (uintptr_t)list,
                                           .row_count = 1,
                                           .kv_head_count = 1,
                                           .group = SCORED,
                                           .query_bytes = QUERY,
                                           .dimension = WIDTH,
                                           .factors_offset = FACTORS,
                                           .center_offset = CENTER,
                                           .unit_stride = UNITS_SCORED,
                                           .scale = 1,
                                           .unit_tokens = 16};
    launch_add("level_query", SCORED, 1, 128, 2 * WIDTH * sizeof(float), &query);
    launch_add("level_score_1", 1, 2, 256, 0, &score);
    looks_init(&query);
}

static void bugs_of_scores_are_seen(void **state) {
    (void)state;
    bugs_are_seen(scores_init, LEVEL_BEGIN, LEVEL_END, 21);
}

/* ---- a choice of units with equal scores, and a list that is taken once more */

enum { CANDIDATES = 300, UNIT = 8, TAKEN = 70, WINDOW = 20, GROUP = 2, KEPT = 24 };

static void choice_init(void) {
    static struct cuda_look_choose_args choose;
    struct cuda_list *lists = in_take(2 * sizeof *lists);
    float *scores = in_take(2 * GROUP * CANDIDATES * sizeof *scores);
    for (size_t u = 0; u < CANDIDATES; u++) /* ninths: of 33 equals some are left over, the last among them */
        for (size_t h = 0; h < GROUP; h++) scores[h * CANDIDATES + u] = (float)(u % 9) + (float)h;
    uint32_t *kept = in_take((KEPT + 1) * sizeof *kept);
    for (uint32_t i = 0; i < KEPT; i++) kept[i] = 3 * i;
    lists[0] = (struct cuda_list){.count = UNIT + TAKEN * UNIT + WINDOW,
                                  .begin = UNIT,
                                  .end = CANDIDATES * UNIT,
                                  .picks = TAKEN * UNIT};
    lists[1] = (struct cuda_list){
        .count = KEPT + WINDOW, .kept = (uintptr_t)kept, .kept_count = KEPT, .window_begin = CANDIDATES * UNIT};
    for (size_t i = 0; i < 2; i++) lists[i].rows = (uintptr_t)out_take(lists[i].count * sizeof(uint32_t));
    choose.choose = (struct cuda_choose_args){.scores = (uintptr_t)scores,
                                       .keys = (uintptr_t)out_take(2 * CANDIDATES * sizeof(uint32_t)),
                                       .chosen = (uintptr_t)out_take(2 * CANDIDATES * sizeof(uint32_t)),
                                       .lists = (uintptr_t)lists,
                                       .row_count = 1,
                                       .kv_head_count = 2,
                                       .unit_tokens = UNIT,
                                       .unit_stride = CANDIDATES,
                                       .group = GROUP};
    launch_add("units_choose", 2, 1, 1024, sizeof(struct choose_shared), &choose);
}

static void bugs_of_choices_are_seen(void **state) {
    (void)state;
    bugs_are_seen(choice_init, CHOOSE_BEGIN, CHOOSE_END, 15);
}

/* ---- fetches: of the first head fewer units than there are slots, of the second more */

enum { FETCH_HEADS = 2, SLOTS = 12, CHUNKS = 8, UNITS = CHUNKS * 8, LISTED = 40, BLOCK = 16 * 40, SLOT = 8 * BLOCK };

static void fetch_init(void) {
    static struct cuda_fetch_args fetch;
    static _Alignas(64) char chunks[FETCH_HEADS * CHUNKS * SLOT];
    for (size_t i = 0; i < sizeof chunks; i++) chunks[i] = (char)random_below(&rig.random, 256);
    struct cuda_pools *pools = in_take(sizeof *pools);
    struct step_row *row = in_take(sizeof *row);
    struct step_item *item = in_take(sizeof *item);
    struct cuda_list *lists = in_take(FETCH_HEADS * sizeof *lists);
    uint32_t *pages = in_take(FETCH_HEADS * CHUNKS * sizeof *pages);
    int32_t *tables = out_take(FETCH_HEADS * UNITS * sizeof *tables);
    uint32_t *owners = out_take(FETCH_HEADS * SLOTS * sizeof *owners);
    uint8_t *used = out_take(FETCH_HEADS * SLOTS);
    uint32_t *hands = out_take(FETCH_HEADS * sizeof *hands);
    for (size_t p = 0; p < 2; p++) /* pool 1: of the device */
        pools->pool[p] = (struct cuda_pool){
            .base = {(uintptr_t)chunks}, .slots_per_buffer = FETCH_HEADS * CHUNKS, .slot_bytes = SLOT};
    for (uint32_t i = 0; i < FETCH_HEADS * CHUNKS; i++)
        pages[i] = i % CHUNKS == 6 ? 0 : (UINT32_C(1) + (i % CHUNKS != 5)) << 30 | i;
    *row = (struct step_row){.position = 7 * 64 + 20}; /* chunk 7 is not complete */
    *item = (struct step_item){.pages = (uintptr_t)pages, .chunk_stride = CHUNKS};
    uint32_t *firsts = in_take((FETCH_HEADS + 1) * sizeof *firsts);
    for (uint32_t i = 0; i <= FETCH_HEADS; i++) firsts[i] = i * SLOTS;
    for (size_t i = 0; i < FETCH_HEADS * UNITS; i++) tables[i] = UNIT_ABSENT;
    for (uint32_t i = 0; i < FETCH_HEADS * SLOTS; i++) {
        const uint32_t slot = i % SLOTS, unit = slot * 3; /* the hand comes to hits, and to those used and not */
        owners[i] = slot == 2 ? SLOT_EMPTY : unit;
        if (slot != 2) tables[i / SLOTS * UNITS + unit] = (int32_t)slot;
        used[i] = slot % 3 == 1 || slot == 6;
        hands[i / SLOTS] = 10;
    }
    for (uint32_t h = 0; h < FETCH_HEADS; h++) {
        const uint32_t count = h == 0 ? 8 : LISTED;
        uint32_t *rows = in_take(LISTED * UNIT_TOKENS * sizeof *rows);
        for (uint32_t i = 0; i < count; i++) { /* at the end of chunks 5, 6 and 7 */
            const uint32_t unit = i + 3 < count ? i * (h == 0 ? 2 : 1) : 56 - 8 * (count - 1 - i);
            for (uint32_t k = 0; k < UNIT_TOKENS; k++) rows[i * UNIT_TOKENS + k] = unit * UNIT_TOKENS + k;
        }
        lists[h] = (struct cuda_list){.rows = (uintptr_t)rows, .count = count * UNIT_TOKENS};
    }
    fetch = (struct cuda_fetch_args){
        .rows = (uintptr_t)row,
        .items = (uintptr_t)item,
        .pools = (uintptr_t)pools,
        .lists = (uintptr_t)lists,
        .addresses = (uintptr_t)out_take(FETCH_HEADS * LISTED * sizeof(uint64_t)),
        .firsts = (uintptr_t)firsts,
        .tables = (uintptr_t)tables,
        .owners = (uintptr_t)owners,
        .stamps = (uintptr_t)out_take(FETCH_HEADS * SLOTS * sizeof(uint32_t)),
        .used = (uintptr_t)used,
        .hands = (uintptr_t)hands,
        .slots = (uintptr_t)out_take(FETCH_HEADS * SLOTS * BLOCK),
        .results = (uintptr_t)out_take(FETCH_HEADS * sizeof(struct fetch_result)),
        .unit_stride = UNITS,
        .list_stride = LISTED,
        .block_bytes = BLOCK,
        .device_pools = 1 << 1,
    };
    launch_add("unit_fetch", FETCH_HEADS, 1, 512, sizeof(struct fetch_shared), &fetch);
}

/* The same of chunks in 4 bits, but for the first, which is rows: of the second head more than there are slots. */
enum { Q4_SLOTS = 3, Q4_BYTES = 16 * 300, Q4_LISTED = 16 };

static void chunk_fetch_init(void) {
    static struct cuda_fetch_q4_args fetch;
    static _Alignas(64) char chunks[FETCH_HEADS * CHUNKS * SLOT], q4[FETCH_HEADS * CHUNKS * Q4_BYTES];
    static const uint8_t listed[FETCH_HEADS][Q4_LISTED] = {{0, 10, 11, 15, 49, 50, 56},
                                                           {3, 8, 9, 17, 25, 26, 31, 32, 48, 55, 56, 57}};
    static const uint32_t counts[FETCH_HEADS] = {7, 12}, kept[Q4_SLOTS] = {6, 2, 5};
    for (size_t i = 0; i < sizeof chunks; i++) chunks[i] = (char)random_below(&rig.random, 256);
    for (size_t i = 0; i < sizeof q4; i++) q4[i] = (char)random_below(&rig.random, 256);
    struct cuda_pools *pools = in_take(sizeof *pools);
    struct step_row *row = in_take(sizeof *row);
    struct step_item *item = in_take(sizeof *item);
    struct cuda_list *lists = in_take(FETCH_HEADS * sizeof *lists);
    uint32_t *pages = in_take(FETCH_HEADS * CHUNKS * sizeof *pages);
    uint32_t *q4_pages = in_take(FETCH_HEADS * CHUNKS * sizeof *q4_pages);
    uint32_t *firsts = in_take((FETCH_HEADS + 1) * sizeof *firsts), *q4_firsts = in_take(sizeof *firsts * 4);
    int32_t *tables = out_take(FETCH_HEADS * UNITS * sizeof *tables);
    int32_t *q4_tables = out_take(FETCH_HEADS * CHUNKS * sizeof *q4_tables);
    uint32_t *owners = out_take(FETCH_HEADS * SLOTS * sizeof *owners);
    uint32_t *q4_owners = out_take(FETCH_HEADS * Q4_SLOTS * sizeof *q4_owners);
    uint8_t *q4_used = out_take(FETCH_HEADS * Q4_SLOTS);
    uint32_t *q4_hands = out_take(FETCH_HEADS * sizeof *q4_hands);
    pools->pool[1] = (struct cuda_pool){
        .base = {(uintptr_t)chunks}, .slots_per_buffer = FETCH_HEADS * CHUNKS, .slot_bytes = SLOT};
    pools->pool[2] = (struct cuda_pool){
        .base = {(uintptr_t)q4}, .slots_per_buffer = FETCH_HEADS * CHUNKS, .slot_bytes = Q4_BYTES};
    for (uint32_t i = 0; i < FETCH_HEADS * CHUNKS; i++) {
        pages[i] = i % CHUNKS == 0 || i % CHUNKS == 3 ? UINT32_C(2) << 30 | i : 0; /* of chunk 3 a copy */
        q4_pages[i] = i % CHUNKS == 0 || i % CHUNKS == 6 ? 0 : UINT32_C(3) << 30 | i;
    }
    *row = (struct step_row){.position = 7 * 64 + 20}; /* chunk 7 is not complete */
    *item =
        (struct step_item){.pages = (uintptr_t)pages, .q4_pages = (uintptr_t)q4_pages, .chunk_stride = CHUNKS};
    memset(tables, 0xff, FETCH_HEADS * UNITS * sizeof *tables);
    memset(owners, 0xff, FETCH_HEADS * SLOTS * sizeof *owners);
    memset(q4_tables, 0xff, FETCH_HEADS * CHUNKS * sizeof *q4_tables);
    for (uint32_t h = 0; h < FETCH_HEADS; h++) {
        uint32_t *rows = in_take(Q4_LISTED * UNIT_TOKENS * sizeof *rows);
        for (uint32_t i = 0; i < counts[h] * UNIT_TOKENS; i++)
            rows[i] = listed[h][i / UNIT_TOKENS] * UNIT_TOKENS + i % UNIT_TOKENS;
        lists[h] = (struct cuda_list){.rows = (uintptr_t)rows, .count = counts[h] * UNIT_TOKENS};
        firsts[h + 1] = (h + 1) * SLOTS;
        q4_firsts[h + 1] = (h + 1) * Q4_SLOTS;
        q4_hands[h] = 1;
        for (uint32_t slot = 0; slot < Q4_SLOTS; slot++) {
            q4_owners[h * Q4_SLOTS + slot] = kept[slot];
            q4_tables[h * CHUNKS + kept[slot]] = (int32_t)slot;
            q4_used[h * Q4_SLOTS + slot] = slot == 1;
        }
    }
    fetch = (struct cuda_fetch_q4_args){
        .fetch = {.rows = (uintptr_t)row,
                  .items = (uintptr_t)item,
                  .pools = (uintptr_t)pools,
                  .lists = (uintptr_t)lists,
                  .addresses = (uintptr_t)out_take(FETCH_HEADS * Q4_LISTED * sizeof(uint64_t)),
                  .firsts = (uintptr_t)firsts,
                  .tables = (uintptr_t)tables,
                  .owners = (uintptr_t)owners,
                  .stamps = (uintptr_t)out_take(FETCH_HEADS * SLOTS * sizeof(uint32_t)),
                  .used = (uintptr_t)out_take(FETCH_HEADS * SLOTS),
                  .hands = (uintptr_t)out_take(FETCH_HEADS * sizeof(uint32_t)),
                  .slots = (uintptr_t)out_take(FETCH_HEADS * SLOTS * BLOCK),
                  .results = (uintptr_t)out_take(FETCH_HEADS * sizeof(struct fetch_result)),
                  .unit_stride = UNITS,
                  .list_stride = Q4_LISTED,
                  .block_bytes = BLOCK},
        .firsts = (uintptr_t)q4_firsts,
        .tables = (uintptr_t)q4_tables,
        .owners = (uintptr_t)q4_owners,
        .stamps = (uintptr_t)out_take(FETCH_HEADS * Q4_SLOTS * sizeof(uint32_t)),
        .used = (uintptr_t)q4_used,
        .hands = (uintptr_t)q4_hands,
        .slots = (uintptr_t)out_take(FETCH_HEADS * Q4_SLOTS * Q4_BYTES),
        .chunk_stride = CHUNKS,
        .chunk_bytes = Q4_BYTES,
    };
    launch_add("unit_fetch_q4", FETCH_HEADS, 1, 512, sizeof(struct fetch_shared), &fetch);
}

static void bugs_of_chunk_fetches_are_seen(void **state) {
    (void)state;
    bugs_are_seen(chunk_fetch_init, CHUNK_BEGIN, CHUNK_END, 23);
}

static void bugs_of_fetches_are_seen(void **state) {
    (void)state;
    bugs_are_seen(fetch_init, FETCH_BEGIN, FETCH_END, 17);
}

/* ---- slots that attention fills: a list with hits and misses, more than a range, of two KV heads; two passes.  The
 * same with chunks in 4 bits but for the last, of which two lie across the ends of ranges. */

enum { FILL_LISTED = 19, FILL_CHUNKS = 4, FILL_K = 24, FILL_V = 16, FILL_SLOTS = FILL_LISTED };

enum { FILL_Q4 = 3, FILL_Q4_BYTES = FILL_K * 4 + 64 * 4 + 32 * (FILL_K + FILL_V) };

/* The places of chunks in 4 bits, and marks of their units in place of those that are there. */
static uint64_t fill_chunks(struct cuda_pools *pools, uint64_t *addresses, const struct cuda_list *lists) {
    static _Alignas(64) uint16_t chunks[FETCH_HEADS * FILL_CHUNKS * FILL_Q4_BYTES / 2];
    for (size_t i = 0; i < sizeof chunks / 2; i++)
        chunks[i] = i % (FILL_Q4_BYTES / 2) < FILL_K * 2 + 64 * 2 ? float_to_half((float)random_normal(&rig.random))
                                                                  : (uint16_t)random_below(&rig.random, 1 << 16);
    pools->pool[2] = (struct cuda_pool){
        .base = {(uintptr_t)chunks}, .slots_per_buffer = FETCH_HEADS * FILL_CHUNKS, .slot_bytes = FILL_Q4_BYTES};
    uint32_t *pages = in_take(FETCH_HEADS * FILL_CHUNKS * sizeof *pages);
    char *slots = out_take(FETCH_HEADS * FILL_Q4 * FILL_Q4_BYTES);
    memset(slots, 0xff, FETCH_HEADS * FILL_Q4 * FILL_Q4_BYTES);
    for (uint32_t h = 0; h < FETCH_HEADS; h++) {
        for (uint32_t c = 0; c < FILL_Q4; c++) pages[h * FILL_CHUNKS + c] = UINT32_C(3) << 30 | (h * FILL_CHUNKS + c);
        for (uint32_t i = 0; i < FILL_LISTED; i++) {
            const uint32_t unit = ((const uint32_t *)(uintptr_t)lists[h].rows)[i * UNIT_TOKENS] / UNIT_TOKENS,
                           chunk = unit / 8;
            const bool misses = h == 0 || chunk != 1;
            char *slot = slots + (h * FILL_Q4 + (chunk + h) % FILL_Q4) * FILL_Q4_BYTES;
            if (chunk >= FILL_Q4) continue;
            if (!misses) memcpy(slot, (char *)chunks + (h * FILL_CHUNKS + chunk) * FILL_Q4_BYTES, FILL_Q4_BYTES);
            addresses[h * FILL_LISTED + i] =
                ((uintptr_t)slot | Q4_UNIT | unit % 8) + (misses ? (uint64_t)Q4_UNFILLED : 0);
        }
    }
    return (uintptr_t)pages;
}
_Static_assert(FILL_Q4_BYTES % 32 == 0 && FILL_Q4_BYTES % 64 != 0, "places of slots; quarters are not alike");

static void fills_init(bool q4) {
    static struct cuda_attention_list_args attend;
    static _Alignas(64) uint16_t chunks[FETCH_HEADS * FILL_CHUNKS * SLOT / 2];
    for (size_t i = 0; i < sizeof chunks / 2; i++) chunks[i] = float_to_half((float)random_normal(&rig.random));
    struct cuda_pools *pools = in_take(sizeof *pools);
    pools->pool[1] = (struct cuda_pool){
        .base = {(uintptr_t)chunks}, .slots_per_buffer = FETCH_HEADS * FILL_CHUNKS, .slot_bytes = SLOT};
    struct step_row *row = in_take(sizeof *row);
    *row = (struct step_row){.position = FILL_CHUNKS * 64 - 1};
    uint32_t *pages = in_take(FETCH_HEADS * FILL_CHUNKS * sizeof *pages);
    for (uint32_t i = 0; i < FETCH_HEADS * FILL_CHUNKS; i++) pages[i] = UINT32_C(2) << 30 | i;
    struct step_item *item = in_take(sizeof *item);
    *item = (struct step_item){.pages = (uintptr_t)pages, .chunk_stride = FILL_CHUNKS};
    struct cuda_list *lists = in_take(FETCH_HEADS * sizeof *lists);
    uint64_t *addresses = in_take(FETCH_HEADS * FILL_LISTED * sizeof *addresses);
    char *slots = out_take(FETCH_HEADS * FILL_SLOTS * BLOCK);
    memset(slots, 0xff, FETCH_HEADS * FILL_SLOTS * BLOCK);
    for (uint32_t h = 0; h < FETCH_HEADS; h++) {
        uint32_t *rows = in_take(FILL_LISTED * UNIT_TOKENS * sizeof *rows);
        for (uint32_t i = 0; i < FILL_LISTED; i++) {
            const uint32_t unit = i + 1 == FILL_LISTED ? FILL_CHUNKS * 8 - 1 : i + i / 3; /* the last: of the row */
            const char *home = (const char *)chunks + h * FILL_CHUNKS * SLOT + unit * BLOCK;
            char *slot = slots + (h * FILL_SLOTS + (i * 7 + h) % FILL_SLOTS) * BLOCK;
            const bool misses = i % 4 != 1;
            for (uint32_t k = 0; k < UNIT_TOKENS; k++) rows[i * UNIT_TOKENS + k] = unit * UNIT_TOKENS + k;
            if (!misses) memcpy(slot, home, BLOCK);
            addresses[h * FILL_LISTED + i] = (uintptr_t)slot + (misses ? (uint64_t)SLOT_UNFILLED : 0);
        }
        lists[h] = (struct cuda_list){.rows = (uintptr_t)rows, .count = FILL_LISTED * UNIT_TOKENS};
    }
    if (q4) item->q4_pages = fill_chunks(pools, addresses, lists);
    const uint32_t stride = attention_partial_stride(FILL_V);
    attend = (struct cuda_attention_list_args){
        .attention = {.rows = (uintptr_t)row,
                      .items = (uintptr_t)item,
                      .pools = (uintptr_t)pools,
                      .q = floats_in(FETCH_HEADS * 2 * FILL_K),
                      .partials = floats_out((size_t)FETCH_HEADS * 2 * ATTENTION_RANGES_MAX * stride),
                      .shape = {.k_dimension = FILL_K,
                                .v_dimension = FILL_V,
                                .k_row_bytes = FILL_K * 2,
                                .v_row_bytes = FILL_V * 2,
                                .v_offset = FILL_K * 2 * UNIT_TOKENS,
                                .block_bytes = BLOCK},
                      .row_count = 1,
                      .q_stride = FETCH_HEADS * 2 * FILL_K,
                      .kv_head_count = FETCH_HEADS,
                      .group = 2,
                      .partial_stride = stride,
                      .scale = 0.25f},
        .lists = (uintptr_t)lists,
        .addresses = (uintptr_t)addresses,
        .list_stride = FILL_LISTED};
    launch_add(q4 ? "attention_list_8_1_q4" : "attention_list_8_1_f16", 4, FETCH_HEADS * 2, 128,
               attention_decode_shared(8, 1), &attend);
}

static void fill_init(void) { fills_init(false); }
static void quarter_init(void) { fills_init(true); }

static void bugs_of_fills_are_seen(void **state) {
    (void)state;
    bugs_are_seen(fill_init, FILL_BEGIN, FILL_END, 23);
}

static void bugs_of_fills_in_4_bits_are_seen(void **state) {
    (void)state;
    bugs_are_seen(quarter_init, QUARTER_BEGIN, QUARTER_END, 29);
}

/* ---- states: two items, the second from zeros */

enum { ITEMS = 2, STATE_ROWS = 3, CHANNELS = 40, TAPS = 4, KEY = 48, VALUE = 32, VALUE_HEADS = 2, STATE = KEY * VALUE };

static uint64_t items_in(size_t state) {
    struct cuda_recurrence_item *items = in_take(ITEMS * sizeof *items);
    items[0] = (struct cuda_recurrence_item){floats_in(state), floats_out(state), 0, STATE_ROWS - 1};
    items[1] = (struct cuda_recurrence_item){0, floats_out(state), STATE_ROWS - 1, 1};
    return (uintptr_t)items;
}

static void states_init(void) {
    enum { X = 2 * KEY + VALUE_HEADS * VALUE, Y = VALUE_HEADS * VALUE };
    static struct cuda_convolve_args convolve;
    static struct cuda_delta_args delta;
    static struct cuda_gate_args gate;
    convolve = (struct cuda_convolve_args){.items = items_in((TAPS - 1) * CHANNELS),
                                           .x = floats_in(STATE_ROWS * CHANNELS),
                                           .w = floats_of_weights(CHANNELS * TAPS),
                                           .y = floats_out(STATE_ROWS * CHANNELS),
                                           .item_count = ITEMS,
                                           .item_step = 1,
                                           .x_stride = CHANNELS,
                                           .y_stride = CHANNELS,
                                           .channel_count = CHANNELS,
                                           .taps = TAPS};
    delta = (struct cuda_delta_args){.items = items_in(VALUE_HEADS * STATE),
                                     .x = floats_in(STATE_ROWS * X),
                                     .alpha = floats_in(STATE_ROWS * VALUE_HEADS),
                                     .beta = floats_in(STATE_ROWS * VALUE_HEADS),
                                     .decay = floats_of_weights(VALUE_HEADS),
                                     .bias = floats_of_weights(VALUE_HEADS),
                                     .z = floats_in(STATE_ROWS * Y),
                                     .norm = floats_of_weights(VALUE),
                                     .y = floats_out(STATE_ROWS * Y),
                                     .item_count = ITEMS,
                                     .item_step = 1,
                                     .x_stride = X,
                                     .key_heads = 1,
                                     .value_heads = VALUE_HEADS,
                                     .k_dimension = KEY,
                                     .v_dimension = VALUE,
                                     .epsilon = 1e-5f};
    gate = (struct cuda_gate_args){
        .gates = floats_in(2 * 2 * VALUE), .y = floats_out(2 * VALUE), .head_size = VALUE / 2, .count = VALUE};
    launch_add("convolve", 1, 1, 128, 0, &convolve);
    launch_add("delta", VALUE_HEADS, 1, 512, sizeof(struct delta_shared), &delta);
    launch_add("gate", 2, 1, 256, 0, &gate);
}

static void bugs_of_states_are_seen(void **state) {
    (void)state;
    bugs_are_seen(states_init, STATE_BEGIN, STATE_END, 19);
}

/* ---- children */

static int fails(int how, uint64_t seed) {
    (void)seed;
    if (how == 0) fail();
    if (how > 0) (void)raise(how);
    return -how;
}

/* What ends a child never has it go on with the tests that follow, whose result would then be its own. */
static void child_ends_where_it_fails(void **state) {
    (void)state;
    static const int ways[] = {0, SIGFPE, SIGSEGV, SIGBUS, SIGILL, SIGABRT};
    char text[4096];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        assert_int_equal(run_apart(fails, ways[i], 0, text, sizeof text), -1);
    assert_int_equal(run_apart(fails, -7, 0, text, sizeof text), 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bugs_of_products_are_seen), cmocka_unit_test(bugs_of_norms_are_seen),
        cmocka_unit_test(bugs_of_scores_are_seen),   cmocka_unit_test(bugs_of_choices_are_seen),
        cmocka_unit_test(bugs_of_fetches_are_seen),  cmocka_unit_test(bugs_of_chunk_fetches_are_seen),
        cmocka_unit_test(bugs_of_fills_are_seen),    cmocka_unit_test(bugs_of_fills_in_4_bits_are_seen),
        cmocka_unit_test(bugs_of_states_are_seen),
        cmocka_unit_test(child_ends_where_it_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
