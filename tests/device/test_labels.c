/* Lists that are kept (device.h): what compare_labels says and leaves, against the definition, and what choose takes
 * and leaves of a kept_list.  On the cpu device and on the queued one, whose order LOAM_TEST_SEED draws. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "placed.h"
#include "queued_device.h"
#include "seed.h"

enum { ROWS = 5, KV_HEADS = 3, GROUP_MAX = 4, DIMENSION_MAX = 96, HEADS_MAX = KV_HEADS * GROUP_MAX };

struct rig {
    struct random random;
    struct device *devices[2];
    struct stream *streams[2];
    struct error error;
};

static int rig_open(void **state) {
    struct rig *rig = calloc(1, sizeof *rig);
    const struct device_options options = {.thread_count = 2, .mask = cpu_default()};
    assert_non_null(rig);
    random_init(&rig->random, test_seed(61));
    assert_ok(device_cpu_create(&rig->devices[0], &options, &rig->error), rig->error);
    rig->devices[1] = queued_device_create(&options, random_next(&rig->random));
    for (size_t i = 0; i < 2; i++)
        assert_ok(rig->devices[i]->operations->stream_create(rig->devices[i], &rig->streams[i], &rig->error),
                  rig->error);
    *state = rig;
    return 0;
}

static int rig_close(void **state) {
    struct rig *rig = *state;
    for (size_t i = 0; i < 2; i++) {
        rig->devices[i]->operations->stream_destroy(rig->streams[i]);
        device_destroy(rig->devices[i]);
    }
    free(rig);
    return 0;
}

static struct buffer memory_of_kind(struct rig *rig, size_t on, enum memory_kind kind, const void *bytes,
                                    size_t size) {
    struct buffer buffer;
    const struct device_operations *operations = rig->devices[on]->operations;
    assert_ok(operations->allocate(rig->devices[on], kind, size, &buffer, &rig->error), rig->error);
    operations->upload(rig->streams[on], span_of(&buffer, 0), bytes, size);
    return buffer;
}
static struct buffer memory_of(struct rig *rig, size_t on, const void *bytes, size_t size) {
    return memory_of_kind(rig, on, MEMORY_DEVICE, bytes, size);
}

static void release(struct rig *rig, size_t on, struct buffer *buffer) {
    rig->devices[on]->operations->release(rig->devices[on], buffer);
}

/* ---- labels ---- */

struct labels {
    size_t group, dimension, heads, rows;
    size_t order[ROWS]; /* an item's row of q */
    float q[ROWS][HEADS_MAX * DIMENSION_MAX], label[ROWS][HEADS_MAX * DIMENSION_MAX];
    struct step_row step[ROWS]; /* of the rows of q */
    uint64_t positions[ROWS];   /* of the items */
    struct step_list lists[ROWS * KV_HEADS];
    struct step_kept kept[ROWS * KV_HEADS];
    struct step_reuse counts[ROWS * KV_HEADS];
    uint64_t age_max;
    bool has_step; /* it is a graph */
    float importance[HEADS_MAX];
    double thresholds[KV_HEADS];
    enum label_aggregate aggregate;
    bool only_says, is_told; /* is_told: limits come from memory that both see, and are left there as well */
};

/* Queries that are like their labels, more or less; some are the same, some have turned away, some are no numbers. */
static void draw_row(struct random *random, struct labels *l, size_t item, size_t row) {
    const size_t size = l->heads * l->dimension;
    const float noise = (float)random_below(random, 4) * 0.5F;
    for (size_t i = 0; i < size; i++) {
        l->label[item][i] = (float)random_normal(random);
        l->q[row][i] = l->label[item][i] + noise * (float)random_normal(random);
    }
    const size_t turned = random_below(random, l->heads) * l->dimension,
                 spoilt = random_below(random, l->heads) * l->dimension;
    for (size_t i = 0; i < l->dimension && noise > 0; i++) l->q[row][turned + i] *= -1;
    if (random_below(random, 4) == 0) l->q[row][spoilt] = random_below(random, 2) == 0 ? NAN : INFINITY;
    if (random_below(random, 4) == 0) memset(&l->label[item][spoilt], 0, l->dimension * sizeof(float));
}

/* What the step says of a KV head, and what it has from steps before. */
static void draw_list(struct random *random, struct labels *l, size_t unit) {
    const uint64_t position = l->positions[unit / KV_HEADS];
    const uint32_t end = 16 + (uint32_t)random_below(random, 20) * 8, picks = (uint32_t)random_below(random, end - 8);
    l->lists[unit] = (struct step_list){.count = 8 + picks + (uint32_t)position + 1 - end,
                                        .candidate_begin = 8,
                                        .candidate_end = end,
                                        .picks = picks,
                                        .use = (uint32_t)random_below(random, 3)};
    l->kept[unit] = (struct step_kept){.position = position - random_below(random, 16),
                                       .count = (uint32_t)random_below(random, 5) * 20,
                                       .candidate_end = 8 + (uint32_t)random_below(random, 20) * 8};
    l->counts[unit] = (struct step_reuse){.hits = 3, .age_sum = 11, .age_max = random_below(random, 16)};
}

static void draw(struct random *random, struct labels *l) {
    static const size_t dimensions[3] = {32, 64, DIMENSION_MAX};
    *l = (struct labels){.group = 1 + random_below(random, GROUP_MAX),
                         .dimension = dimensions[random_below(random, 3)],
                         .rows = 1 + random_below(random, ROWS),
                         .aggregate = random_below(random, 2) == 0 ? LABEL_HARMONIC : LABEL_MINIMUM,
                         .age_max = random_below(random, 3) * 6,
                         .has_step = random_below(random, 2) == 0,
                         .only_says = random_below(random, 4) == 0,
                         .is_told = random_below(random, 2) == 0};
    l->heads = KV_HEADS * l->group;
    for (size_t i = 0; i < l->rows; i++) l->order[i] = l->rows - 1 - i;
    for (size_t i = 0; i < l->rows; i++) draw_row(random, l, i, l->order[i]);
    for (size_t i = 0; i < l->heads; i++) l->importance[i] = (float)random_below(random, 3) / 2;
    for (size_t i = 0; i < KV_HEADS; i++) l->thresholds[i] = (double)random_below(random, 21) / 10 - 1;
    for (size_t i = 0; i < l->rows; i++)
        l->step[l->order[i]].position = l->positions[i] = 200 + random_below(random, 40);
    for (size_t i = 0; i < l->rows * KV_HEADS; i++) draw_list(random, l, i);
}

static bool is_alike(const struct labels *l, size_t item, size_t kv_head) {
    double cosines[GROUP_MAX], sum = 0, harmonic = 0, lowest = INFINITY;
    for (size_t i = 0; i < l->group; i++) {
        const size_t head = kv_head * l->group + i;
        const float *q = l->q[l->order[item]] + head * l->dimension,
                    *label = l->label[item] + head * l->dimension;
        double dot = 0, q_square = 0, label_square = 0;
        for (size_t d = 0; d < l->dimension; d++) {
            dot += (double)q[d] * (double)label[d];
            q_square += (double)q[d] * (double)q[d];
            label_square += (double)label[d] * (double)label[d];
        }
        cosines[i] = dot / sqrt(q_square * label_square);
        if (!isfinite(cosines[i])) return false;
        cosines[i] = fmax(fmin(cosines[i], 1), -1);
        lowest = fmin(lowest, cosines[i]);
        sum += (double)l->importance[head];
        harmonic += (double)l->importance[head] / cosines[i];
    }
    const bool takes_lowest = l->aggregate == LABEL_MINIMUM || sum == 0 || lowest <= 0;
    return (takes_lowest ? lowest : sum / harmonic) >= l->thresholds[kv_head];
}

/* What the limits, the state and the counts of a KV head become. */
static bool expect(const struct labels *l, size_t item, size_t head, struct step_list *list, struct step_kept *kept,
                   struct step_reuse *counts) {
    const struct step_list before = *list;
    const uint64_t position = l->positions[item], age = position - kept->position;
    const bool is_old = kept->count == 0 || (l->age_max > 0 && age > l->age_max),
               takes = list->use == LABEL_COMPARED && !is_old && is_alike(l, item, head);
    const bool changes = !l->only_says;
    if (takes && !changes) {
        list->count -= list->picks;
        list->picks = 0;
    } else if (takes) {
        list->kept_count = kept->count;
        list->window_begin = l->age_max > 0 ? kept->candidate_end : list->candidate_end;
        list->age = (uint32_t)age;
        list->count = kept->count + (uint32_t)position + 1 - list->window_begin;
        list->picks = 0;
        counts->hits++;
        counts->rows += list->count;
        counts->age_sum += age;
        counts->age_max = counts->age_max > age ? counts->age_max : age;
        counts->chosen_rows += before.count;
        if (before.picks < before.candidate_end - before.candidate_begin)
            counts->scored += before.candidate_end - before.candidate_begin;
    } else if (list->use != LABEL_STAYS && changes) {
        *kept = (struct step_kept){position, list->candidate_begin + list->picks, list->candidate_end};
        counts->misses++;
    }
    return takes;
}

enum { UNITS = ROWS * KV_HEADS };

static size_t check_on(struct rig *rig, size_t on, const struct labels *l) {
    const struct device_operations *operations = rig->devices[on]->operations;
    const size_t stride = HEADS_MAX * DIMENSION_MAX;
    struct step_list lists[UNITS], lists_found[UNITS];
    struct step_kept kept[UNITS], kept_found[UNITS];
    struct step_reuse counts[UNITS], counts_found[UNITS];
    struct step_list told_found[UNITS], others[UNITS];
    for (size_t i = 0; i < UNITS; i++) others[i] = (struct step_list){.count = 77, .use = LABEL_STAYS};
    memcpy(lists, l->lists, sizeof lists), memcpy(kept, l->kept, sizeof kept), memcpy(counts, l->counts, sizeof counts);
    struct buffer q = memory_of(rig, on, l->q, sizeof l->q), label = memory_of(rig, on, l->label, sizeof l->label),
                  step = memory_of(rig, on, l->step, sizeof l->step),
                  limits = memory_of(rig, on, l->is_told ? others : lists, sizeof lists),
                  told = memory_of_kind(rig, on, MEMORY_SHARED, lists, sizeof lists),
                  state = memory_of(rig, on, kept, sizeof kept),
                  sums = memory_of(rig, on, counts, sizeof counts);
    struct label_item items[ROWS];
    float found[ROWS][HEADS_MAX * DIMENSION_MAX];
    size_t alike_count = 0;
    for (size_t i = 0; i < l->rows; i++)
        items[i] = (struct label_item){.row = l->order[i],
                                       .position = l->has_step ? 0 : l->positions[i],
                                       .label = span_floats(span_of(&label, 0), i * stride),
                                       .kept = span_of(&state, i * KV_HEADS * sizeof *kept)};
    struct graph *graph = NULL;
    if (l->has_step) assert_ok(operations->graph_begin(rig->streams[on], &rig->error), rig->error);
    operations->compare_labels(
        rig->streams[on],
        &(struct compare_labels_operation){.q = span_of(&q, 0),
                                           .q_stride = stride,
                                           .head_count = l->heads,
                                           .kv_head_count = KV_HEADS,
                                           .k_dimension = l->dimension,
                                           .aggregate = l->aggregate,
                                           .importance = l->importance,
                                           .thresholds = l->thresholds,
                                           .age_max = l->age_max,
                                           .items = items,
                                           .item_count = l->rows,
                                           .only_says = l->only_says,
                                           .at = {.step = l->has_step ? span_of(&step, 0) : (struct span){NULL, 0},
                                                  .limits = span_of(&limits, 0)},
                                           .told = l->is_told ? span_of(&told, 0) : (struct span){NULL, 0},
                                           .counts = span_of(&sums, 0)});
    if (l->has_step) {
        assert_ok(operations->graph_end(rig->streams[on], &graph, &rig->error), rig->error);
        operations->graph_launch(rig->streams[on], graph);
    }
    const struct {
        void *found;
        struct buffer *buffer;
        size_t bytes;
    } reads[] = {{found, &label, sizeof found},
                 {lists_found, &limits, sizeof lists},
                 {kept_found, &state, sizeof kept},
                 {counts_found, &sums, sizeof counts},
                 {told_found, &told, sizeof lists}};
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++)
        assert_ok(device_read(rig->devices[on], rig->streams[on], reads[i].found, span_of(reads[i].buffer, 0),
                              reads[i].bytes, &rig->error),
                  rig->error);
    operations->graph_destroy(graph);
    for (size_t i = 0; i < l->rows; i++)
        for (size_t head = 0; head < KV_HEADS; head++) {
            const size_t unit = i * KV_HEADS + head, first = head * l->group * l->dimension,
                         size = l->group * l->dimension;
            const bool taken = expect(l, i, head, &lists[unit], &kept[unit], &counts[unit]);
            const bool stays = lists[unit].use == LABEL_STAYS || taken || l->only_says;
            assert_memory_equal(found[i] + first, (stays ? l->label[i] : l->q[l->order[i]]) + first,
                                size * sizeof(float));
            alike_count += taken;
        }
    assert_memory_equal(lists_found, lists, l->rows * KV_HEADS * sizeof *lists);
    assert_memory_equal(told_found, l->is_told ? lists : l->lists, l->rows * KV_HEADS * sizeof *lists);
    assert_memory_equal(kept_found, kept, sizeof kept);
    assert_memory_equal(counts_found, counts, sizeof counts);
    release(rig, on, &q), release(rig, on, &label), release(rig, on, &step), release(rig, on, &limits);
    release(rig, on, &state), release(rig, on, &sums), release(rig, on, &told);
    return alike_count;
}

static void labels_are_compared(void **state) {
    struct rig *rig = *state;
    static struct labels labels;
    size_t alike = 0, compared = 0;
    for (size_t round = 0; round < 200; round++) {
        draw(&rig->random, &labels);
        for (size_t on = 0; on < 2; on++) alike += check_on(rig, on, &labels);
        for (size_t i = 0; i < labels.rows * KV_HEADS; i++)
            compared += labels.lists[i].use == LABEL_COMPARED ? 2 : 0;
    }
    assert_met(alike > compared / 10 && alike < compared * 9 / 10);
}

/* ---- lists ---- */

enum { CHUNKS = 4, TOKENS = CHUNKS * KV_CHUNK_TOKENS, LIST_MAX = TOKENS };

/* What the heads of a row choose is what they would without, and its rows before the window are left; a list that is
 * taken is those rows and the window, of which a later row's is longer. */
static void check_lists(struct rig *rig, size_t on, const struct kv_view *view, const uint64_t *picks) {
    const struct device_operations *operations = rig->devices[on]->operations;
    const struct key_index_layout layout = {.kind = KEY_INDEX_MASS, .bytes = 256, .unit_tokens = 1};
    const uint64_t begin = 8, end = 200;
    static float zeros[KV_HEADS * 32];
    static uint32_t nothing[KV_HEADS * LIST_MAX];
    uint32_t plain[KV_HEADS][LIST_MAX], found[LIST_MAX], left[LIST_MAX];
    struct buffer q = memory_of(rig, on, zeros, sizeof zeros),
                  rows = memory_of(rig, on, nothing, sizeof nothing),
                  kept = memory_of(rig, on, nothing, sizeof nothing);
    struct kept_list lists_kept[KV_HEADS] = {{.rows = {.buffer = NULL}}};
    struct row_list lists[KV_HEADS];
    size_t counts[KV_HEADS];
    struct select_item item = {
        .view = *view, .position = 220, .candidate_begin = begin, .candidate_end = end, .picks = picks};
    struct choose_operation choose = {.q = span_of(&q, 0),
                                      .q_stride = KV_HEADS * 32,
                                      .head_count = KV_HEADS,
                                      .kv_head_count = KV_HEADS,
                                      .scale = 1,
                                      .layout = &layout,
                                      .items = &item,
                                      .item_count = 1,
                                      .rows = span_of(&rows, 0),
                                      .lists = lists};
    for (size_t round = 0; round < 3; round++) {
        const bool takes = round == 2;
        if (takes) item.position += 5;
        for (size_t head = 0; head < KV_HEADS && round > 0; head++) /* head 1 keeps nothing */
            lists_kept[head] =
                (struct kept_list){.rows = head == 1 ? (struct span){.buffer = NULL}
                                                     : span_of(&kept, head * LIST_MAX * sizeof(uint32_t)),
                                   .is_taken = takes && head != 1,
                                   .count = begin + picks[head],
                                   .window_begin = end};
        const uint64_t none[KV_HEADS] = {0, picks[1], 0};
        item.kept = round > 0 ? lists_kept : NULL;
        item.picks = takes ? none : picks;
        operations->choose(rig->streams[on], &choose);
        for (size_t head = 0; head < KV_HEADS; head++) {
            const size_t window = (size_t)(item.position + 1 - end);
            assert_int_equal(lists[head].count, begin + picks[head] + window);
            assert_ok(device_read(rig->devices[on], rig->streams[on], found, lists[head].rows,
                                  lists[head].count * sizeof *found, &rig->error),
                      rig->error);
            if (round == 0) memcpy(plain[head], found, sizeof found);
            if (round == 0) counts[head] = begin + picks[head];
            assert_memory_equal(found, plain[head], counts[head] * sizeof *found);
            for (size_t i = 0; i < window; i++) assert_int_equal(found[counts[head] + i], end + i);
            if (round != 1) continue;
            assert_ok(device_read(rig->devices[on], rig->streams[on], left,
                                  span_of(&kept, head * LIST_MAX * sizeof(uint32_t)), sizeof left,
                                  &rig->error),
                      rig->error);
            if (head != 1) assert_memory_equal(left, plain[head], counts[head] * sizeof *left);
            for (size_t i = head == 1 ? 0 : counts[head]; i < LIST_MAX; i++) assert_int_equal(left[i], 0);
        }
    }
    release(rig, on, &q), release(rig, on, &rows), release(rig, on, &kept);
}

static void lists_are_taken_and_left(void **state) {
    struct rig *rig = *state;
    struct kv_layout kv;
    struct placed placed = {.pools = {.list = {{.buffers = NULL}}}};
    kv_layout_init(&kv, KV_F16, KV_F16, 32, 32);
    static float masses[KV_HEADS * CHUNKS][KV_CHUNK_TOKENS];
    void *blocks[KV_HEADS * CHUNKS], *chunks[KV_HEADS * CHUNKS] = {NULL};
    for (size_t round = 0; round < 20; round++) {
        uint64_t picks[KV_HEADS];
        for (size_t i = 0; i < KV_HEADS * CHUNKS; i++) {
            for (size_t t = 0; t < KV_CHUNK_TOKENS; t++) masses[i][t] = (float)random_normal(&rig->random);
            blocks[i] = masses[i];
        }
        for (size_t head = 0; head < KV_HEADS; head++) picks[head] = 1 + random_below(&rig->random, 190);
        const struct addresses addresses = {
            .chunks = chunks, .key_index = blocks, .heads = KV_HEADS, .stride = CHUNKS};
        const struct kv_view view = placed_view(&placed, &kv, &addresses);
        for (size_t on = 0; on < 2; on++) check_lists(rig, on, &view, picks);
    }
    placed_free(&placed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(labels_are_compared),
                                       cmocka_unit_test(lists_are_taken_and_left)};
    return cmocka_run_group_tests(tests, rig_open, rig_close);
}
