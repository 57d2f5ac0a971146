#include "attention/choice.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/layout.h"

static void add_worst(struct reuse_counts *counts, const struct mass_estimate *estimate) {
    if (counts->estimated == 0 || estimate->left_out > counts->worst.left_out) counts->worst = *estimate;
}

void reuse_counts_add_estimates(struct reuse_counts *counts, const struct hit_estimates *more) {
    const struct mass_estimate *estimates = more->estimates;
    for (size_t row = 0; row < more->row_count; row++)
        for (size_t head = 0; head < more->kv_head_count; head++, estimates += more->group)
            for (size_t i = 0; i < more->group && more->hits[row * more->hit_stride + head]; i++) {
                add_worst(counts, &estimates[i]);
                counts->left_out += estimates[i].left_out;
                counts->estimated++;
            }
}

static void mass_bounds_merge(struct mass_bounds *sum, const struct mass_bounds *more) {
    if (more->count == 0) return;
    if (sum->count == 0 || more->min < sum->min) sum->min = more->min;
    sum->sum += more->sum;
    sum->count += more->count;
}

static void reuse_counts_merge(struct reuse_counts *sum, const struct reuse_counts *more) {
    if (more->estimated > 0) add_worst(sum, &more->worst);
    sum->hits += more->hits;
    sum->misses += more->misses;
    sum->rows += more->rows;
    sum->age_sum += more->age_sum;
    if (more->age_max > sum->age_max) sum->age_max = more->age_max;
    sum->estimated += more->estimated;
    sum->left_out += more->left_out;
}

#define ROW(UNIT, MEMBER, NAME, HELP) COUNTER_ROW(TOTAL, UNIT, struct select_statistics, MEMBER, NAME, HELP)
static const struct counter counter_rows[] = {
    ROW(ITEMS, kept, "attended_rows", "Rows of KV that answers attended to, where a preset selects."),
    ROW(ITEMS, visible, "visible_rows", "Of so many."),
    ROW(SECONDS, times.score_ns, "select_score_seconds", "Time of scoring the key index."),
    ROW(SECONDS, times.top_k_ns, "select_top_k_seconds", "Time of picking the best."),
    ROW(SECONDS, times.attend_ns, "select_attend_seconds", "Time of attending to what was picked."),
    ROW(SECONDS, dense_ns, "dense_attend_seconds", "Time of attending where nothing is picked."),
    ROW(ITEMS, evaluated, "select_evaluated", "Importances computed: of tokens, pages or nodes."),
    ROW(ITEMS, lists_read, "select_lists_read", "Lists that the host waited for."),
    ROW(ITEMS, verdicts_read, "select_verdicts_read", "Reuses of lists that the host waited to learn of."),
};
#undef ROW
const struct counter_table select_counters = COUNTER_TABLE("", struct select_statistics, counter_rows);

void select_statistics_add(struct select_statistics *sum, const struct select_statistics *more) {
    counters_add(&select_counters, sum, more);
    tree_counts_add(&sum->tree, &more->tree);
    mass_bounds_merge(&sum->mass_bound, &more->mass_bound);
    mass_receipt_merge(&sum->receipt, &more->receipt);
    reuse_counts_merge(&sum->reuse, &more->reuse);
}

static void place(struct choice *choice, struct layout *layout) {
    const size_t rows = choice->row_capacity, lists = rows * choice->kv_heads_max;
    choice->dense = layout_take(layout, rows, sizeof *choice->dense);
    choice->chosen = layout_take(layout, rows, sizeof *choice->chosen);
    choice->dense_items = layout_take(layout, rows, sizeof *choice->dense_items);
    choice->chosen_items = layout_take(layout, rows, sizeof *choice->chosen_items);
    choice->slots = layout_take(layout, rows, sizeof *choice->slots);
    choice->lists = layout_take(layout, lists, sizeof *choice->lists);
    choice->candidates = layout_take(layout, rows, sizeof *choice->candidates);
    choice->picks = layout_take(layout, lists, sizeof *choice->picks);
    choice->kept = layout_take(layout, lists, sizeof *choice->kept);
    choice->hits = layout_take(layout, lists, sizeof *choice->hits);
    choice->read_lists = layout_take(layout, choice->kv_heads_max, sizeof *choice->read_lists);
    choice->rows = layout_take(layout, 1, sizeof *choice->rows);
    if (choice->tree_layers > 0) choice->trees = layout_take(layout, choice->tree_layers, sizeof *choice->trees);
}

enum status choice_init(struct choice *choice, struct device *device, const struct choice_options *options,
                        struct error *error) {
    struct layout layout = {0};
    *choice = (struct choice){.device = device,
                              .row_capacity = options->row_capacity,
                              .kv_heads_max = options->kv_head_count,
                              .host_reads = options->host_reads,
                              .tree_layers = options->tree_layers,
                              .rows_max = options->list_rows != 0 ? (size_t)options->list_rows : SIZE_MAX};
    place(choice, &layout);
    layout = (struct layout){.memory = calloc(1, layout.used)};
    if (layout.memory == NULL)
        return error_set(error, STATUS_MEMORY, "select: no memory for %zu rows", options->row_capacity);
    place(choice, &layout);
    const enum status status = choice_reserve(choice, NULL, (size_t)options->list_rows, error);
    if (status != STATUS_OK) choice_deinit(choice);
    return status;
}

void choice_deinit(struct choice *choice) {
    if (choice->rows != NULL) choice->device->operations->release(choice->device, choice->rows);
    free(choice->read_rows);
    free(choice->dense); /* and all behind it */
    *choice = (struct choice){0};
}

enum status choice_reserve(struct choice *choice, struct stream *stream, size_t rows, struct error *error) {
    if (rows <= choice->rows_capacity) return STATUS_OK;
    if (rows > choice->rows_max)
        return error_set(error, STATUS_MEMORY, "select: lists of %zu rows, there is memory for %zu", rows,
                         choice->rows_capacity);
    /* Lists grow with their context, token by token. */
    size_t capacity = choice->rows_max == SIZE_MAX ? rows + rows / 2 : choice->rows_max;
    const struct device_operations *operations = choice->device->operations;
    const enum memory_kind kind = choice->host_reads ? MEMORY_SHARED : MEMORY_DEVICE;
    /* The lists of a layer before may still be written. */
    if (buffer_exists(choice->rows)) TRY(operations->stream_synchronize(stream, error));
    operations->release(choice->device, choice->rows);
    choice->rows_capacity = 0;
    if (operations->allocate(choice->device, kind, capacity * sizeof(uint32_t), choice->rows, NULL) != STATUS_OK) {
        TRY(device_state(choice->device, error));
        return error_set(error, STATUS_MEMORY, "select: no memory for lists of %zu rows", rows);
    }
    choice->rows_capacity = capacity;
    return STATUS_OK;
}

static struct span of_layer(const struct choice *choice, struct span limits) {
    if (!span_exists(limits)) return limits;
    return span_behind(limits,
                       choice->layer_index * choice->chosen_count * choice->kv_heads_max * sizeof(struct step_list));
}

struct step_lists choice_step_lists(const struct choice *choice) {
    struct step_lists lists = choice->captured;
    lists.limits = of_layer(choice, lists.limits);
    return lists;
}

struct span choice_told(const struct choice *choice) {
    return of_layer(choice, choice->told);
}

/* ---- for an observer ---- */

static enum status reserve_read(struct choice *choice, size_t rows, struct error *error) {
    if (rows <= choice->read_capacity) return STATUS_OK;
    free(choice->read_rows);
    choice->read_capacity = 0;
    choice->read_rows = malloc(rows * sizeof *choice->read_rows);
    if (choice->read_rows == NULL)
        return error_set(error, STATUS_MEMORY, "select: no memory to read lists of %zu rows", rows);
    choice->read_capacity = rows;
    return STATUS_OK;
}

enum status choice_read(struct choice *choice, struct stream *stream, size_t index, size_t kv_head_count,
                        const struct host_list **result, struct error *error) {
    const struct row_list *lists = choice->chosen[index].lists;
    size_t rows = 0; /* the lists lie one behind the other; some may be shorter than their room */
    ASSERT(kv_head_count <= choice->kv_heads_max);
    for (size_t head = 0; head < kv_head_count; head++)
        rows += (size_t)select_item_kept(&choice->candidates[index], head);
    TRY(reserve_read(choice, rows, error));
    TRY(device_read(choice->device, stream, choice->read_rows, lists[0].rows, rows * sizeof(uint32_t), error));
    for (size_t head = 0; head < kv_head_count; head++)
        choice->read_lists[head] = (struct host_list){
            .rows = choice->read_rows + (lists[head].rows.offset - lists[0].rows.offset) / sizeof(uint32_t),
            .count = lists[head].count};
    choice->statistics.lists_read += kv_head_count;
    *result = choice->read_lists;
    return STATUS_OK;
}

/* ---- what is counted ---- */

static void add_searches(struct select_statistics *sum, const struct tree_counts *counts) {
    tree_counts_add(&sum->tree, counts);
    for (enum tree_level level = 0; level < TREE_LEVEL_COUNT; level++) sum->evaluated += counts->evaluated[level];
    sum->evaluated += counts->lower;
}

void choice_collect_tree(struct choice *choice, size_t layer_index) {
    struct tree_layer *tree = &choice->trees[layer_index];
    if (tree->counts.searches == 0) return;
    tree_density_add(&tree->density, tree->leaf, layer_index, tree->start, &tree->counts);
    add_searches(&choice->statistics, &tree->counts);
    tree->counts = (struct tree_counts){0};
}

void choice_end_step(struct choice *choice) {
    choice->step++;
    mass_receipt_end_step(&choice->statistics.receipt);
}

struct select_statistics choice_statistics(const struct choice *choice) {
    struct select_statistics sum = choice->statistics;
    for (size_t layer = 0; layer < choice->tree_layers; layer++) add_searches(&sum, &choice->trees[layer].counts);
    return sum;
}

void choice_reset_statistics(struct choice *choice) {
    for (size_t layer = 0; layer < choice->tree_layers; layer++) choice_collect_tree(choice, layer);
    choice->statistics = (struct select_statistics){0};
}
