/* A batch that goes through the layers in blocks gives bit for bit what its blocks give as batches of their own,
 * logits and stored K and V: over random families, windows, KV types, lengths, blocks and wanted rows, with a
 * printed seed.  An observer sees every block of every layer in order, and a layer that fails at its begin or its end
 * ends the run. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/random.h"
#include "cache/kv_budget_internal.h"
#include "cache/kv_tier.h"
#include "device/host_span.h"
#include "kernels/kernels.h"
#include "model/tiny_model.h"
#include "seed.h"

enum { ROUNDS = 60, ROWS_MAX = 240, PREFIX_MAX = 120, BLOCK_MAX = 96, WANTED_MAX = 8, EVENTS_MAX = 4096 };

struct rig {
    struct random random;
    struct device *device;
    struct model *model;
    struct kv_cache *cache;
    struct forward *forward;
    struct attention *attention;
    struct kv_sequence *sequences[2]; /* by one batch in blocks, and by a batch per block */
    struct kernels kernels;
    size_t prefix, row_count, block_rows, wanted_count;
    int32_t tokens[PREFIX_MAX + ROWS_MAX];
    uint64_t positions[PREFIX_MAX + ROWS_MAX];
    uint32_t wanted[WANTED_MAX];
    bool keep_rows;
    float *logits[2]; /* [ROWS_MAX][vocabulary_size] */
    size_t width;
    struct error error;
};

static void open_cache(struct rig *rig) {
    const struct model_config *config = &rig->model->config;
    const struct kv_cache_config kv = {.layer_count = config->layer_count,
                                       .kv_head_count = config->kv_head_count,
                                       .k_dimension = config->k_dimension,
                                       .v_dimension = config->v_dimension,
                                       .k_type = random_below(&rig->random, 2) ? KV_Q8 : KV_F16,
                                       .v_type = random_below(&rig->random, 2) ? KV_Q8 : KV_F16,
                                       .token_capacity = 1024,
                                       .sequence_capacity = 2};
    assert_ok(kv_cache_create(&rig->cache, rig->device, &kv, &rig->error), rig->error);
    for (size_t i = 0; i < 2; i++) {
        assert_ok(kv_sequence_create(&rig->sequences[i], rig->cache, 512, &rig->error), rig->error);
        assert_ok(kv_sequence_reserve(rig->sequences[i], PREFIX_MAX + ROWS_MAX, &rig->error), rig->error);
    }
}

/* Ascending, each row with the same chance; the last one alone is what a prompt wants. */
static void choose_wanted(struct rig *rig) {
    rig->keep_rows = random_below(&rig->random, 4) == 0;
    rig->wanted_count = 0;
    if (random_below(&rig->random, 3) == 0) {
        rig->wanted[rig->wanted_count++] = (uint32_t)rig->row_count - 1;
        return;
    }
    size_t left = random_below(&rig->random, (rig->row_count < WANTED_MAX ? rig->row_count : WANTED_MAX) + 1);
    for (size_t row = 0; row < rig->row_count && left > 0; row++)
        if (random_below(&rig->random, rig->row_count - row) < left) {
            rig->wanted[rig->wanted_count++] = (uint32_t)row;
            left--;
        }
}

static struct forward_options options_of(const struct rig *rig, size_t rows, size_t block, size_t wanted) {
    return (struct forward_options){.attention = rig->attention,
                                    .row_capacity = rows,
                                    .block_capacity = block,
                                    .logit_row_capacity = wanted};
}

static void rig_open(struct rig *rig, uint64_t seed) {
    *rig = (struct rig){0};
    random_init(&rig->random, seed);
    const struct tiny_model tiny = tiny_model_random(&rig->random, tiny_families, TINY_FAMILIES);
    const struct device_options device = {.thread_count = 2, .mask = cpu_default()};
    tiny_model_load(&tiny, "blocks", &device, &rig->device, &rig->model);
    kernels_init(&rig->kernels, cpu_default());
    open_cache(rig);
    const struct attention_options everything = {.cache = NULL};
    assert_ok(attention_create(&rig->attention, rig->device, &everything, &rig->error), rig->error);
    const struct forward_options options = options_of(rig, ROWS_MAX, BLOCK_MAX, WANTED_MAX);
    assert_ok(forward_create(&rig->forward, rig->model, &options, &rig->error), rig->error);
    rig->prefix = random_between(&rig->random, 0, PREFIX_MAX);
    rig->row_count = random_between(&rig->random, 1, ROWS_MAX);
    rig->block_rows = random_between(&rig->random, 1, BLOCK_MAX);
    if (rig->block_rows > rig->row_count) rig->block_rows = rig->row_count;
    rig->width = tiny.vocabulary_size;
    for (size_t i = 0; i < rig->prefix + rig->row_count; i++) {
        rig->tokens[i] = (int32_t)random_below(&rig->random, tiny.vocabulary_size);
        rig->positions[i] = i;
    }
    for (size_t i = 0; i < 2; i++) rig->logits[i] = calloc(ROWS_MAX * rig->width, sizeof(float));
    choose_wanted(rig);
}

static void rig_close(struct rig *rig) {
    forward_destroy(rig->forward);
    attention_destroy(rig->attention);
    for (size_t i = 0; i < 2; i++) {
        kv_sequence_destroy(rig->sequences[i]);
        free(rig->logits[i]);
    }
    kv_cache_destroy(rig->cache);
    model_destroy(rig->model);
    device_destroy(rig->device);
}

/* Rows [first, first + count) behind the prefix. */
static struct forward_batch batch_of(struct rig *rig, size_t sequence, size_t first, size_t count,
                                     struct attend_item *item) {
    *item = (struct attend_item){.row_count = count, .position_first = first};
    return (struct forward_batch){.tokens = rig->tokens + first,
                                  .positions = rig->positions + first,
                                  .row_count = count,
                                  .sequences = &rig->sequences[sequence],
                                  .items = item,
                                  .item_count = 1,
                                  .keep_rows = rig->keep_rows};
}

/* Logits of all rows of the batch just run, where they are kept; else those just computed. */
static void take_logits(struct rig *rig, const struct forward_batch *batch, const float *found,
                        float *logits) {
    if (!rig->keep_rows) {
        memcpy(logits, found, batch->logit_row_count * rig->width * sizeof *logits);
        return;
    }
    for (uint32_t row = 0; row < batch->row_count; row++) {
        assert_ok(forward_logits(rig->forward, &row, 1, &found, &rig->error), rig->error);
        memcpy(logits + row * rig->width, found, rig->width * sizeof *logits);
    }
}

static void run_prefix(struct rig *rig, size_t sequence) {
    struct attend_item item;
    for (size_t done = 0, count; done < rig->prefix; done += count) {
        count = min_size(rig->prefix - done, BLOCK_MAX);
        struct forward_batch batch = batch_of(rig, sequence, done, count, &item);
        assert_ok(forward_run(rig->forward, &batch, NULL, &rig->error), rig->error);
    }
}

static void run_one_by_one(struct rig *rig) {
    struct attend_item item;
    float *logits = rig->logits[1];
    uint32_t rows[WANTED_MAX];
    size_t next = 0;
    for (size_t done = 0, count; done < rig->row_count; done += count) {
        const float *found;
        count = min_size(rig->row_count - done, rig->block_rows);
        struct forward_batch batch = batch_of(rig, 1, rig->prefix + done, count, &item);
        for (; next < rig->wanted_count && rig->wanted[next] < done + count; next++)
            rows[batch.logit_row_count++] = rig->wanted[next] - (uint32_t)done;
        batch.logit_rows = rows;
        assert_ok(forward_run(rig->forward, &batch, &found, &rig->error), rig->error);
        take_logits(rig, &batch, found, logits);
        logits += (rig->keep_rows ? count : batch.logit_row_count) * rig->width;
    }
}

static struct forward_batch whole_batch(struct rig *rig, struct attend_item *item) {
    struct forward_batch batch = batch_of(rig, 0, rig->prefix, rig->row_count, item);
    batch.block_rows = rig->block_rows;
    batch.logit_rows = rig->wanted;
    batch.logit_row_count = rig->wanted_count;
    return batch;
}

static void run_in_blocks(struct rig *rig) {
    struct attend_item item;
    const float *found;
    struct forward_batch batch = whole_batch(rig, &item);
    assert_ok(forward_run(rig->forward, &batch, &found, &rig->error), rig->error);
    take_logits(rig, &batch, found, rig->logits[0]);
}

static void check_stored(struct rig *rig) {
    const struct model_config *config = &rig->model->config;
    float k[2][32], v[2][32];
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t head = 0; head < config->kv_head_count; head++)
            for (size_t row = 0; row < rig->prefix + rig->row_count; row++) {
                for (size_t i = 0; i < 2; i++) {
                    const void *chunk =
                        span_memory(kv_sequence_chunk(rig->sequences[i], layer, head, row / KV_CHUNK_TOKENS));
                    rig->kernels.attention.load(kv_cache_layout(rig->cache), chunk, row % KV_CHUNK_TOKENS,
                                                k[i], v[i]);
                }
                assert_memory_equal(k[0], k[1], sizeof k[0]);
                assert_memory_equal(v[0], v[1], sizeof v[0]);
            }
}

static void test_blocks_are_batches(void **state) {
    (void)state;
    uint64_t seed = test_seed(20261121);
    for (size_t round = 0; round < ROUNDS; round++) {
        if (!test_takes_next()) continue;
        struct rig rig;
        rig_open(&rig, seed + round);
        for (size_t i = 0; i < 2; i++) run_prefix(&rig, i);
        run_one_by_one(&rig);
        run_in_blocks(&rig);
        if (memcmp(rig.logits[0], rig.logits[1], ROWS_MAX * rig.width * sizeof(float)) != 0)
            fail_msg("seed %llu: %zu rows in blocks of %zu behind %zu: other logits",
                     (unsigned long long)(seed + round), rig.row_count, rig.block_rows, rig.prefix);
        check_stored(&rig);
        rig_close(&rig);
    }
}

/* ---- observers ---- */

/* What the observers saw, per layer in the order of the rows. */
struct seen {
    size_t hidden_size, attended_size;
    size_t hidden_rows[4], attended_rows[4];
    float *hidden, *attended; /* [layer][ROWS_MAX][..._size] */
};

static void see_hidden(void *context, size_t layer, const float *hidden, size_t row_count) {
    struct seen *seen = context;
    size_t at = layer * ROWS_MAX + seen->hidden_rows[layer];
    memcpy(seen->hidden + at * seen->hidden_size, hidden, row_count * seen->hidden_size * sizeof *hidden);
    seen->hidden_rows[layer] += row_count;
}

static void see_attention(void *context, const struct attention_event *event) {
    struct seen *seen = context;
    size_t layer = event->layer_index, at = layer * ROWS_MAX + seen->attended_rows[layer];
    memcpy(seen->attended + at * seen->attended_size, event->attended,
           event->row_count * seen->attended_size * sizeof(float));
    assert_int_equal(event->positions[0], event->items[0].position_first);
    seen->attended_rows[layer] += event->row_count;
}

static void test_observers_see_the_same(void **state) {
    (void)state;
    test_skip_part();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct rig rig;
        rig_open(&rig, seed);
        const struct model_config *config = &rig.model->config;
        struct seen seen[2];
        for (size_t i = 0; i < 2; i++) {
            run_prefix(&rig, i);
            seen[i] = (struct seen){.hidden_size = config->hidden_size,
                                    .attended_size = config->head_count * config->v_dimension};
            seen[i].hidden = calloc(4 * ROWS_MAX * seen[i].hidden_size, sizeof(float));
            seen[i].attended = calloc(4 * ROWS_MAX * seen[i].attended_size, sizeof(float));
        }
        for (size_t i = 0; i < 2; i++) {
            forward_set_observer(rig.forward, see_hidden, &seen[i]);
            forward_set_attention_observer(rig.forward, see_attention, &seen[i]);
            if (i == 0)
                run_in_blocks(&rig);
            else
                run_one_by_one(&rig);
            for (size_t layer = 0; layer < config->layer_count; layer++) {
                assert_int_equal(seen[i].hidden_rows[layer], rig.row_count);
                assert_int_equal(seen[i].attended_rows[layer], rig.row_count);
            }
            forward_set_observer(rig.forward, NULL, NULL);
            forward_set_attention_observer(rig.forward, NULL, NULL);
        }
        assert_memory_equal(rig.logits[0], rig.logits[1], ROWS_MAX * rig.width * sizeof(float));
        assert_memory_equal(seen[0].hidden, seen[1].hidden,
                            4 * ROWS_MAX * seen[0].hidden_size * sizeof(float));
        assert_memory_equal(seen[0].attended, seen[1].attended,
                            4 * ROWS_MAX * seen[0].attended_size * sizeof(float));
        for (size_t i = 0; i < 2; i++) free(seen[i].hidden), free(seen[i].attended);
        rig_close(&rig);
    }
}

/* ---- layers and blocks in order ---- */

struct order {
    struct rig *rig;
    size_t count;
    size_t layer, row; /* where the next call must be */
};

/* Layer by layer, block by block, each with the views of its layer. */
static void check_order(void *context, const struct attention_event *event) {
    struct order *order = context;
    const struct rig *rig = order->rig;
    size_t rows = min_size(rig->row_count - order->row, rig->block_rows);
    assert_int_equal(event->layer_index, order->layer);
    assert_int_equal(event->item_count, 1);
    assert_int_equal(event->row_count, rows);
    assert_int_equal(event->items[0].row_first, 0);
    assert_int_equal(event->items[0].row_count, rows);
    assert_int_equal(event->items[0].position_first, rig->prefix + order->row);
    const struct kv_view *view = &event->items[0].view;
    assert_ptr_equal(span_memory(kv_pools_chunk(view->pools, span_place(view->chunks, 0))),
                     span_memory(kv_sequence_chunk(rig->sequences[0], order->layer, 0, 0)));
    order->count++;
    order->row += rows;
    if (order->row < rig->row_count) return;
    order->layer++;
    order->row = 0;
}

static void test_blocks_come_layer_by_layer(void **state) {
    (void)state;
    test_skip_part();
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct rig rig;
        rig_open(&rig, seed);
        run_prefix(&rig, 0);
        struct order order = {.rig = &rig};
        forward_set_attention_observer(rig.forward, check_order, &order);
        run_in_blocks(&rig);
        size_t blocks = (rig.row_count + rig.block_rows - 1) / rig.block_rows;
        assert_int_equal(order.count, blocks * rig.model->config.layer_count);
        rig_close(&rig);
    }
}

/* A step of two sequences is one block with two items. */
static void check_step(void *context, const struct attention_event *event) {
    size_t *calls = context;
    assert_int_equal(event->layer_index, (*calls)++);
    assert_int_equal(event->item_count, 2);
    for (size_t i = 0; i < 2; i++) assert_int_equal(event->items[i].row_first, i);
}

static void test_a_step_is_one_block(void **state) {
    (void)state;
    test_skip_part();
    struct rig rig;
    rig_open(&rig, 5);
    size_t calls = 0;
    for (size_t i = 0; i < 2; i++) run_prefix(&rig, i);
    forward_set_attention_observer(rig.forward, check_step, &calls);
    uint64_t positions[2] = {rig.prefix, rig.prefix};
    struct attend_item items[2] = {{.row_count = 1, .position_first = rig.prefix},
                                   {.row_first = 1, .row_count = 1, .position_first = rig.prefix}};
    const struct forward_batch batch = {.tokens = (const int32_t[]){3, 4},
                                        .positions = positions,
                                        .row_count = 2,
                                        .sequences = rig.sequences,
                                        .items = items,
                                        .item_count = 2,
                                        .logit_rows = (const uint32_t[]){0, 1},
                                        .logit_row_count = 2};
    assert_ok(forward_run(rig.forward, &batch, NULL, &rig.error), rig.error);
    assert_int_equal(calls, rig.model->config.layer_count);
    rig_close(&rig);
}

/* ---- a layer that fails ---- */

enum { FAIL_ROWS = 1000, FAIL_BLOCK = 240, FAIL_CONTEXT = 1024 };

/* KV in RAM within a budget, and no disk: what has a slot keeps it. */
struct tier_rig {
    struct device *device;
    const struct device_operations *operations; /* the device's own */
    struct model *model;
    struct kv_cache *cache;
    struct kv_sequence *sequence;
    struct attention *attention;
    struct forward *forward;
    size_t slots; /* for chunks of a KV head */
    int32_t tokens[FAIL_ROWS];
    uint64_t positions[FAIL_ROWS];
    float *logits; /* of the last row, when nothing failed */
    struct error error;
};

static void tier_rig_open(struct tier_rig *rig, uint64_t spare_bytes) {
    *rig = (struct tier_rig){0};
    const struct tiny_model tiny = tiny_model_default("llama");
    const struct device_options device = {.thread_count = 1, .mask = cpu_default()};
    tiny_model_load(&tiny, "failing", &device, &rig->device, &rig->model);
    rig->operations = rig->device->operations;
    const struct model_config *config = &rig->model->config;
    struct attention_options attention = {.kv_head_count = config->kv_head_count,
                                          .layer_count = config->layer_count,
                                          .head_count = config->head_count,
                                          .k_dimension = config->k_dimension,
                                          .sequence_capacity = 1,
                                          .context_size = FAIL_CONTEXT};
    struct kv_cache_config kv = {.layer_count = config->layer_count,
                                 .kv_head_count = config->kv_head_count,
                                 .k_dimension = config->k_dimension,
                                 .v_dimension = config->v_dimension,
                                 .token_capacity = FAIL_CONTEXT,
                                 .sequence_capacity = 1,
                                 .block_tokens = FAIL_BLOCK,
                                 .scratch_bytes = attention_bytes(&attention)};
    kv.host_bytes = kv_tier_bytes_min(&kv) + spare_bytes;
    rig->slots = kv_budget_slots(&kv, NULL, &(struct kv_residents){0}).plain;
    assert_ok(kv_tier_create(&rig->cache, rig->device, &kv, &rig->error), rig->error);
    assert_ok(kv_sequence_create(&rig->sequence, rig->cache, FAIL_CONTEXT, &rig->error), rig->error);
    attention.cache = rig->cache;
    assert_ok(attention_create(&rig->attention, rig->device, &attention, &rig->error), rig->error);
    const struct forward_options options = {.attention = rig->attention,
                                            .row_capacity = FAIL_ROWS,
                                            .block_capacity = FAIL_BLOCK,
                                            .logit_row_capacity = 1};
    assert_ok(forward_create(&rig->forward, rig->model, &options, &rig->error), rig->error);
    for (size_t i = 0; i < FAIL_ROWS; i++) {
        rig->tokens[i] = (int32_t)(i * i % tiny.vocabulary_size);
        rig->positions[i] = i;
    }
    rig->logits = calloc(tiny.vocabulary_size, sizeof *rig->logits);
}

static void tier_rig_close(struct tier_rig *rig) {
    forward_destroy(rig->forward);
    attention_destroy(rig->attention);
    kv_sequence_destroy(rig->sequence);
    kv_cache_destroy(rig->cache);
    model_destroy(rig->model);
    device_destroy(rig->device);
    free(rig->logits);
}

static void count_events(void *context, const struct attention_event *event) {
    (void)event;
    ++*(size_t *)context;
}

/* From an empty sequence; *events: blocks of layers that came to their end. */
static enum status tier_run(struct tier_rig *rig, size_t *events) {
    static const uint32_t last = FAIL_ROWS - 1;
    struct attend_item item = {.row_count = FAIL_ROWS};
    const struct forward_batch batch = {.tokens = rig->tokens,
                                        .positions = rig->positions,
                                        .row_count = FAIL_ROWS,
                                        .block_rows = FAIL_BLOCK,
                                        .sequences = &rig->sequence,
                                        .items = &item,
                                        .item_count = 1,
                                        .logit_rows = &last,
                                        .logit_row_count = 1};
    const float *found;
    kv_sequence_close_documents(rig->sequence); /* forgets the last run, and that it failed */
    assert_ok(kv_sequence_reserve(rig->sequence, FAIL_ROWS, &rig->error), rig->error);
    forward_set_attention_observer(rig->forward, count_events, events);
    *events = 0;
    enum status status = forward_run(rig->forward, &batch, &found, &rig->error);
    if (status == STATUS_OK) memcpy(rig->logits, found, rig->model->config.vocabulary_size * sizeof *found);
    return status;
}

/* Of the blocks of layers in their order, those for whose chunks there are slots. */
static size_t blocks_within(const struct tier_rig *rig) {
    const struct model_config *config = &rig->model->config;
    size_t blocks = 0;
    for (size_t layer = 0; layer < config->layer_count; layer++)
        for (size_t end = FAIL_BLOCK; end < FAIL_ROWS + FAIL_BLOCK; end += FAIL_BLOCK, blocks++)
            if (config->kv_head_count *
                    (layer * kv_chunks_of(FAIL_ROWS) + kv_chunks_of(min_size(end, FAIL_ROWS))) >
                rig->slots)
                return blocks;
    return blocks;
}

/* A block without slots fails at its begin: those before it were computed, nothing after it is. */
static void test_a_failed_begin_ends_the_run(void **state) {
    (void)state;
    test_skip_part();
    const size_t layers = tiny_model_default("llama").layer_count;
    size_t failures = 0, events;
    for (uint64_t spare = 0;; spare += 12 << 10) {
        struct tier_rig rig;
        tier_rig_open(&rig, spare);
        const size_t all = layers * ((FAIL_ROWS + FAIL_BLOCK - 1) / FAIL_BLOCK),
                     expected = blocks_within(&rig);
        const enum status status = tier_run(&rig, &events);
        assert_int_equal(events, expected);
        assert_int_equal(status, expected < all ? STATUS_MEMORY : STATUS_OK);
        failures += expected < all;
        tier_rig_close(&rig);
        if (expected == all) break;
    }
    assert_true(failures > 2);
}

/* The device breaks at a synchronization; there is one at each layer's end, before its chunks are written. */
static struct {
    const struct device_operations *operations;
    size_t calls, fail_at, events; /* events: seen when it broke */
    const size_t *seen;
} breaking;

static enum status break_at(struct stream *stream, struct error *error) {
    TRY(breaking.operations->stream_synchronize(stream, error));
    if (++breaking.calls != breaking.fail_at) return STATUS_OK;
    breaking.events = *breaking.seen;
    return error_set(error, STATUS_IO, "call %zu breaks", breaking.calls);
}

static void test_a_failed_end_ends_the_run(void **state) {
    (void)state;
    test_skip_part();
    struct tier_rig rig;
    size_t events, all, at_ends = 0;
    tier_rig_open(&rig, 4 << 20);
    assert_ok(tier_run(&rig, &all), rig.error);
    const size_t width = rig.model->config.vocabulary_size;
    float *expected = malloc(width * sizeof *expected);
    memcpy(expected, rig.logits, width * sizeof *expected);
    struct device_operations operations = *rig.operations;
    operations.stream_synchronize = break_at;
    rig.device->operations = &operations;
    for (size_t fail_at = 1;; fail_at++) {
        breaking.operations = rig.operations;
        breaking.calls = 0, breaking.fail_at = fail_at, breaking.seen = &events;
        const enum status status = tier_run(&rig, &events);
        if (breaking.calls < fail_at) { /* nothing broke */
            assert_ok(status, rig.error);
            break;
        }
        assert_int_equal(status, STATUS_IO);
        assert_non_null(strstr(rig.error.message, "breaks"));
        assert_int_equal(events, breaking.events); /* nothing after it */
        at_ends += events < all;
        breaking.fail_at = 0;
        assert_ok(tier_run(&rig, &events), rig.error); /* as if nothing had been */
        assert_memory_equal(rig.logits, expected, width * sizeof *expected);
    }
    assert_true(at_ends >= all);
    rig.device->operations = rig.operations;
    free(expected);
    tier_rig_close(&rig);
}

static void test_sizes(void **state) {
    (void)state;
    test_skip_part();
    struct rig rig;
    struct forward *forward;
    struct attend_item item;
    rig_open(&rig, 7);
    const size_t refused[][2] = {{10, 20}, {(size_t)1 << 30, 20}, {8192, 8192}};
    for (size_t i = 0; i < 3; i++) {
        const struct forward_options options = options_of(&rig, refused[i][0], refused[i][1], 1);
        assert_int_equal(forward_create(&forward, rig.model, &options, &rig.error), STATUS_USAGE);
    }
    struct forward_batch batch = batch_of(&rig, 0, 0, ROWS_MAX, &item); /* as one block: too large */
    memset(rig.tokens, 0, sizeof rig.tokens);
    for (size_t i = 0; i < ROWS_MAX; i++) rig.positions[i] = i;
    assert_int_equal(forward_run(rig.forward, &batch, NULL, &rig.error), STATUS_USAGE);
    batch.block_rows = BLOCK_MAX + 1;
    assert_int_equal(forward_run(rig.forward, &batch, NULL, &rig.error), STATUS_USAGE);
    batch.block_rows = BLOCK_MAX;
    assert_ok(forward_run(rig.forward, &batch, NULL, &rig.error), rig.error);
    rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_batches),
        cmocka_unit_test(test_observers_see_the_same),
        cmocka_unit_test(test_blocks_come_layer_by_layer),
        cmocka_unit_test(test_a_step_is_one_block),
        cmocka_unit_test(test_a_failed_begin_ends_the_run),
        cmocka_unit_test(test_a_failed_end_ends_the_run),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
