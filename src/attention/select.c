/* select: the axis over the device's operations.  See select.h. */
#include "attention/select.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "attention/choice.h"
#include "attention/dial.h"
#include "attention/reuse_thresholds.h"
#include "attention/select_method.h"
#include "base/checked.h"
#include "cache/kv_tier.h"
#include "platform/clock.h"

/* Keys of a KV head and row that are looked at for what it left out: docs/decisions has what they cost. */
enum { SAMPLED_KEYS_MAX = 80 };

struct select {
    struct device *device; /* borrowed */
    struct select_shape shape;
    struct select_options options;
    struct key_index_layout layouts[KV_GROUPS_MAX]; /* of each group of layers, of one kind */
    size_t layout_count;
    struct buffer weights; /* owned MEMORY_DEVICE, uint16_t: of the layers from dense_layers on; or none */
    size_t *weights_first; /* owned, [layer]: where the layer's begin; NULL: there are none */
    uint32_t digest;       /* of the weights, and of layouts that differ */
    float *importance;     /* owned, [layer][head]: for reuse; NULL: not known, or not wanted */
    double *thresholds;    /* owned, [lane]: for reuse, measured; NULL: the same */
    double *head_budgets;  /* owned, [lane]: of keep, 1 on average; NULL: all alike */
    const char *fallback;
    size_t row_capacity;
    struct buffer sums;   /* owned MEMORY_DEVICE, struct softmax_sum [row_capacity][head_count]; or none */
    struct buffer scores; /* owned MEMORY_DEVICE; of a method that attends itself */
    bool bounds_mass;
    /* Owned, [row_capacity][head_count]: mass bounds of the rows that attended last; or NULL */
    double *mass_bounds;
    struct dial *dial;               /* owned; NULL: heads keep what their rules say */
    struct mass_estimate *estimates; /* owned, [row_capacity][head_count]: the same of what they left out */
};

/* ---- layers ---- */

static size_t group_of(const struct select *select, size_t layer) {
    return select->shape.groups != NULL ? select->shape.groups->of_layer[layer] : 0;
}
static size_t lane_of(const struct select *select, size_t layer, size_t kv_head) {
    return kv_layer_lane(select->shape.groups, select->shape.kv_head_count, layer, kv_head);
}
/* With a key index: of the others they are. */
static size_t stored_layers(const struct select *select) {
    return select->shape.groups != NULL ? select->shape.groups->stored_count : select->shape.layer_count;
}
static const struct key_index_layout *layout_of(const struct select *select, size_t layer) {
    return &select->layouts[group_of(select, layer)];
}
/* Where they are alike: what kind it is, and in which units it chooses. */
static const struct key_index_layout *layout_any(const struct select *select) { return &select->layouts[0]; }

/* Weights of a KV head of a layer. */
static size_t head_weights(const struct select *select, size_t layer) {
    const size_t dimension = select_group_shape(&select->shape, group_of(select, layer)).k_dimension;
    return dimension * key_index_weight_columns(layout_of(select, layer), dimension);
}

/* ---- life ---- */

/* FNV-1a. */
static uint64_t digest_add(uint64_t digest, uint64_t number) { return (digest ^ number) * UINT64_C(0x100000001b3); }

/* What layouts that differ depend on, beside the shapes of their layers and what the first one shows in the name. */
static uint64_t digest_layouts(const struct select *select, uint64_t digest) {
    for (size_t i = 1; i < select->layout_count; i++) {
        const struct key_index_layout *layout = &select->layouts[i];
        digest = digest_add(digest, layout->bytes);
        digest = digest_add(digest, layout->kind == KEY_INDEX_LEVEL  ? layout->level.planes
                                    : layout->kind == KEY_INDEX_HASH ? layout->hash.bits
                                                                     : layout->columns);
    }
    return digest;
}

/* Where each layer's weights begin; returns how many there are. */
static size_t place_weights(struct select *select) {
    size_t count = 0;
    for (size_t layer = select->options.dense_layers; layer < stored_layers(select); layer++) {
        select->weights_first[layer] = count;
        count += (lane_of(select, layer + 1, 0) - lane_of(select, layer, 0)) * head_weights(select, layer);
    }
    return count;
}

static enum status fill_weights(struct select *select, uint16_t *host, const struct select_calibration *calibration,
                                struct error *error) {
    const uint16_t *alike[KV_GROUPS_MAX] = {NULL};
    for (size_t layer = select->options.dense_layers; layer < stored_layers(select); layer++) {
        const size_t group = group_of(select, layer);
        if (kv_layer_heads(select->shape.groups, select->shape.kv_head_count, layer) == 0) continue;
        const struct select_shape shape = select_group_shape(&select->shape, group);
        uint16_t *own = host + select->weights_first[layer];
        TRY(select->options.method->weights(own, layer, alike[group], &shape, &select->options, calibration,
                                            &select->fallback, error));
        alike[group] = own;
    }
    return STATUS_OK;
}

static enum status load_weights(struct select *select, const struct select_calibration *calibration,
                                struct error *error) {
    size_t first = select->options.dense_layers, layers = stored_layers(select);
    uint64_t digest = digest_layouts(select, UINT64_C(0xcbf29ce484222325));
    if (select->options.method->weights == NULL || first >= layers) {
        select->digest = select->layout_count > 1 ? (uint32_t)(digest >> 32) : 0;
        return STATUS_OK;
    }
    const struct device_operations *operations = select->device->operations;
    select->weights_first = calloc(layers, sizeof *select->weights_first);
    if (select->weights_first == NULL) return error_set(error, STATUS_MEMORY, "select: out of memory");
    const size_t count = place_weights(select), bytes = count * sizeof(uint16_t);
    TRY(operations->allocate(select->device, MEMORY_DEVICE, bytes, &select->weights, error));
    uint16_t *host = malloc(bytes);
    struct stream *stream = NULL;
    enum status status = host != NULL ? operations->stream_create(select->device, &stream, error)
                                      : error_set(error, STATUS_MEMORY, "select: no memory for its weights");
    if (status == STATUS_OK) status = fill_weights(select, host, calibration, error);
    if (status == STATUS_OK) {
        for (size_t i = 0; i < count; i++) digest = digest_add(digest, host[i]);
        select->digest = (uint32_t)(digest >> 32);
        operations->upload(stream, span_of(&select->weights, 0), host, bytes);
        status = operations->stream_synchronize(stream, error);
    }
    if (stream != NULL) operations->stream_destroy(stream);
    free(host);
    return status;
}

static enum status load_importance(struct select *select, const struct select_calibration *calibration,
                                   struct error *error) {
    const size_t count = select->shape.layer_count * select->shape.head_count;
    if (select->options.reuse.kind != REUSE_SIMILARITY || select->options.reuse.power == 0) return STATUS_OK;
    if (calibration == NULL || calibration->head_importance == NULL) {
        select->fallback = select->fallback != NULL
                               ? "no calibration of this model was found: hash codes are of random hyperplanes, "
                                 "and every head is held to the same eta"
                               : "reuse=similarity: no calibration of this model was found; every head is held "
                                 "to the same eta";
        return STATUS_OK;
    }
    select->importance = malloc(count * sizeof *select->importance);
    if (select->importance == NULL) return error_set(error, STATUS_MEMORY, "select: out of memory");
    memcpy(select->importance, calibration->head_importance, count * sizeof *select->importance);
    return STATUS_OK;
}

/* Layers that do not choose have nothing to reuse. */
static enum status load_thresholds(struct select *select, const struct select_calibration *calibration,
                                   struct error *error) {
    const size_t layers = select->shape.layer_count, count = lane_of(select, layers, 0),
                 first = lane_of(select, min_size(select->options.dense_layers, layers), 0);
    if (select->options.reuse.kind != REUSE_SIMILARITY || !(select->options.reuse.reused > 0) ||
        !(select->options.reuse.eta <= 1)) /* nothing is reused */
        return STATUS_OK;
    /* One similarity for all heads has no value that is safe on every model (decision 0035). */
    if (calibration == NULL || calibration->reuse_curves == NULL)
        return error_set(error, STATUS_USAGE,
                         "reused=%g keeps lists by what loam-lab calibrate measured that reuse loses, and %s: try "
                         "loam-lab calibrate MODEL TEXT, --preset hata or, unmeasured, --set reused=0",
                         select->options.reuse.reused,
                         calibration != NULL && calibration->head_importance != NULL
                             ? "this model's calibration was made before that was measured"
                             : "there is no calibration of this model");
    select->thresholds = calloc(count, sizeof *select->thresholds);
    if (select->thresholds == NULL) return error_set(error, STATUS_MEMORY, "select: out of memory");
    (void)reuse_thresholds_divide(select->thresholds + first, calibration->reuse_curves + first * REUSE_CURVE_POINTS,
                                  count - first, select->options.reuse.reused);
    return STATUS_OK;
}

/* Of attention to what is chosen: what follows needs its sums. */
static bool wants_sums(const struct select *select) {
    return select->bounds_mass || layout_any(select)->sample_count > 0 || layout_any(select)->estimates_rest ||
           select->options.method->attend != NULL;
}

static enum status init(struct select *select, const struct select_setup *setup, struct error *error) {
    const struct select_calibration *calibration = setup->calibration;
    const size_t row_capacity = setup->row_capacity;
    TRY(select_options_run_on(&select->options, &select->shape, select->device, error));
    TRY(select_options_layouts(select->layouts, &select->layout_count, &select->options, &select->shape, error));
    TRY(load_weights(select, calibration, error));
    if (select->options.heads == SELECT_HEADS_IMPORTANCE)
        TRY(select_division->load(&select->head_budgets, &select->shape, select->options.dense_layers, calibration,
                                  &select->fallback, error));
    TRY(load_importance(select, calibration, error));
    TRY(load_thresholds(select, calibration, error));
    select->row_capacity = row_capacity;
    select->bounds_mass = select->options.mass_bound && layout_any(select)->has_bounds;
    const size_t heads = row_capacity * select->shape.head_count;
    if (select->bounds_mass) {
        select->mass_bounds = calloc(heads, sizeof *select->mass_bounds);
        if (select->mass_bounds == NULL)
            return error_set(error, STATUS_MEMORY, "select: no memory for %zu rows", row_capacity);
    }
    if (layout_any(select)->sample_count > 0) {
        select->estimates = calloc(heads, sizeof *select->estimates);
        if (select->estimates == NULL)
            return error_set(error, STATUS_MEMORY, "select: no memory for %zu rows", row_capacity);
    }
    if (select->options.loss > 0) {
        const struct dial_shape dial = {.layer_count = select->shape.layer_count,
                                        .kv_head_count = select->shape.kv_head_count,
                                        .groups = select->shape.groups,
                                        .sequence_capacity = setup->sequence_capacity,
                                        .loss = select->options.loss};
        TRY(dial_create(&select->dial, &dial, error));
    }
    if (!wants_sums(select)) return STATUS_OK;
    return select->device->operations->allocate(select->device, MEMORY_DEVICE, heads * sizeof(struct softmax_sum),
                                                &select->sums, error);
}

enum status select_create(struct select **result, struct device *device, const struct select_setup *setup,
                          struct error *error) {
    *result = NULL;
    struct select *select = calloc(1, sizeof *select);
    if (select == NULL) return error_set(error, STATUS_MEMORY, "select: out of memory");
    *select = (struct select){.device = device, .shape = *setup->shape, .options = *setup->options};
    select->options.dense_layers = select_layer_first(setup->options, setup->shape);
    enum status status = init(select, setup, error);
    if (status != STATUS_OK) {
        select_destroy(select);
        return status;
    }
    *result = select;
    return STATUS_OK;
}

void select_destroy(struct select *select) {
    if (select == NULL) return;
    const struct device_operations *operations = select->device->operations;
    operations->release(select->device, &select->weights);
    operations->release(select->device, &select->sums);
    operations->release(select->device, &select->scores);
    free(select->weights_first);
    free(select->importance);
    free(select->thresholds);
    free(select->head_budgets);
    free(select->mass_bounds);
    free(select->estimates);
    dial_destroy(select->dial);
    free(select);
}

size_t select_layer_first(const struct select_options *options, const struct select_shape *shape) {
    if (shape->groups == NULL && shape->windows == NULL) return options->dense_layers;
    return kv_full_layer_behind(shape->groups, shape->windows, shape->layer_count, options->dense_layers);
}

const struct select_options *select_get_options(const struct select *select) { return &select->options; }
size_t select_key_index_bytes(const struct select *select) {
    return select_layouts_bytes(select->layouts, select->layout_count);
}

void select_key_index_kind(const struct select *select, char kind[SELECT_KIND_BYTES]) {
    const struct select_options *options = &select->options;
    const struct key_index_layout *layout = layout_any(select);
    const struct level_layout *level = &layout->level;
    const struct product_layout *product = &layout->product;
    size_t parameter = key_index_scored_tokens(layout);
    const bool by_level = layout->kind == KEY_INDEX_LEVEL || layout->kind == KEY_INDEX_NESTED;
    char codebook[24] = "";
    if (by_level) parameter = level->planes * level->dimension;
    if (layout->kind == KEY_INDEX_HASH) parameter = layout->hash.bits;
    if (layout->kind == KEY_INDEX_PRODUCT) {
        parameter = product->partitions;
        snprintf(codebook, sizeof codebook, "-%zux%zu", product->codebook_chunks, product->centroids);
    }
    if (layout->kind == KEY_INDEX_PARTIAL) parameter = layout->columns;
    if (layout->kind == KEY_INDEX_CLUSTER) parameter = layout->cluster_count;
    bool spreads = layout->kind == KEY_INDEX_TREE && options->rank == TREE_MEAN_DEVIATION;
    const char *name = options->method->name; /* leaves of a tree that is not searched are pages */
    if (layout->kind == KEY_INDEX_ABSTRACT)
        name = layout->abstract_kind == ABSTRACT_MIN_MAX ? "quest" : select_meanstd.name;
    const int used =
        snprintf(kind, SELECT_KIND_BYTES, "%s%s%s%s%s.%zu.%zu-%08" PRIx32, name, spreads ? "-meanstd" : "",
                 by_level ? level->spread_offset != 0 ? "-spread" : "-mean" : "", layout->bounds_apart ? "-bounds" : "",
                 codebook, parameter, options->dense_layers, select->digest);
    ASSERT(used > 0 && used < SELECT_KIND_BYTES - 8);
    if (layout->sample_count > 0)
        snprintf(kind + used, SELECT_KIND_BYTES - (size_t)used, "-keys%zu", layout->sample_count);
}

static bool searches_trees(const struct select *select) {
    return layout_any(select)->kind == KEY_INDEX_TREE && !select->device->scores_leaves;
}
size_t select_tree_layers(const struct select *select) {
    return searches_trees(select) ? select->shape.layer_count : 0;
}
bool select_goes_row_by_row(const struct select *select) {
    return select->options.method->attend != NULL || select->dial != NULL;
}
const double *select_mass_bounds(const struct select *select) { return select->mass_bounds; }
const struct mass_estimate *select_mass_estimates(const struct select *select) { return select->estimates; }
const char *select_fallback(const struct select *select) { return select->fallback; }
const float *select_head_importance(const struct select *select) { return select->importance; }
const double *select_reuse_thresholds(const struct select *select) { return select->thresholds; }

/* ---- a step ---- */

bool select_layer_chooses(const struct select *select, size_t layer_index) {
    return kv_layer_source(select->shape.groups, layer_index) >= select->options.dense_layers &&
           kv_layer_heads(select->shape.groups, select->shape.kv_head_count, layer_index) > 0 &&
           !kv_layer_slides(select->shape.groups, select->shape.windows, layer_index);
}

size_t select_unit_tokens(const struct select *select) { return layout_any(select)->unit_tokens; }
size_t select_scored_tokens(const struct select *select) { return key_index_scored_tokens(layout_any(select)); }

bool select_scans(const struct select *select) { return select->options.scan || select->options.method->reads_keys; }

/* Of a layer's KV heads from one on: what the key index that it scores by is built with. */
static struct span weights_of(const struct select *select, size_t reading_layer, size_t kv_head) {
    if (!buffer_exists(&select->weights)) return (struct span){.buffer = NULL};
    const size_t layer_index = kv_layer_source(select->shape.groups, reading_layer);
    return span_of(&select->weights,
                   (select->weights_first[layer_index] + kv_head * head_weights(select, layer_index)) *
                       sizeof(uint16_t));
}

static struct span sums_of(const struct select *select) {
    return buffer_exists(&select->sums) ? span_of(&select->sums, 0) : (struct span){.buffer = NULL};
}

void select_append(struct select *select, struct stream *stream, size_t layer_index, const struct attend_item *items,
                   size_t item_count, struct span step) {
    if (layout_any(select)->bytes == 0 || !select_layer_chooses(select, layer_index)) return;
    const size_t heads = kv_layer_heads(select->shape.groups, select->shape.kv_head_count, layer_index);
    select->device->operations->key_index_build(
        stream, &(struct key_index_build_operation){.layout = layout_of(select, layer_index),
                                                    .weights = weights_of(select, layer_index, 0),
                                                    .layer_index = layer_index,
                                                    .kv_head_count = heads,
                                                    .items = items,
                                                    .item_count = item_count,
                                                    .step = step});
}

/* The row's candidates, and how many of them its KV heads may pick where all keep as much; false: it sees all, by the
 * dense path. */
static bool plan_row(const struct select *select, const struct select_rule *rule, uint64_t position,
                     struct select_item *item, uint64_t *pick_count) {
    const struct select_options *options = &select->options;
    uint64_t visible = position + 1, keep = select_keep_tokens(rule->keep, visible);
    if (rule->dense || visible < options->exact_below) return false;
    if (keep >= visible && !options->gather_all && select->dial == NULL) return false;
    if (keep > visible) keep = visible;
    uint64_t unit = rule->window_only && !select->device->lacks_tokens ? 1 : layout_any(select)->unit_tokens;
    uint64_t sinks = align_up(options->sinks, unit), recent = options->recent;
    uint64_t width = rule->window_only ? (keep > sinks ? keep - sinks : 0)
                                       : (uint64_t)(select_recent_fraction(options) * (double)keep);
    if (width > recent) recent = width;
    item->position = position;
    item->candidate_begin = sinks;
    item->candidate_end = visible > recent ? (visible - recent) / unit * unit : 0;
    /* Clusters and product codes: full without the row's own token, which is not there yet when a layer is expected. */
    const bool from_keys =
        layout_any(select)->kind == KEY_INDEX_CLUSTER || layout_any(select)->kind == KEY_INDEX_PRODUCT;
    const uint64_t stored = from_keys ? position : visible;
    const uint64_t complete = stored / KV_CHUNK_TOKENS * KV_CHUNK_TOKENS;
    if (key_index_needs_full_chunks(layout_any(select)) && item->candidate_end > complete && !rule->window_only)
        item->candidate_end = complete; /* the others have no codes yet */
    if (item->candidate_end <= sinks) { /* all of it is window */
        if (!options->gather_all) return false;
        item->candidate_begin = item->candidate_end = 0;
    }
    uint64_t candidates = item->candidate_end - item->candidate_begin, window = visible - candidates;
    *pick_count = keep > window && !rule->window_only ? (keep - window) / unit * unit : 0;
    const uint64_t pick_min = options->units_min * select_piece_tokens(layout_any(select));
    if (select_has_units_min(options, rule) && *pick_count < pick_min) *pick_count = pick_min;
    if (*pick_count > candidates) *pick_count = candidates;
    ASSERT(*pick_count <= candidates);
    return true;
}

/* Where the dial says how much each KV head picks, up to what its rule says. */
static void plan_dial(const struct select *select, const struct choice_query *query, size_t slot, uint64_t position,
                      uint64_t candidates, uint64_t picks_max, uint64_t *picks) {
    const uint64_t unit = layout_any(select)->unit_tokens;
    for (size_t head = 0; head < query->operation->kv_head_count; head++) {
        const struct dial_choice now = {.slot = slot,
                                        .layer_index = query->layer_index,
                                        .kv_head = query->kv_head_first + head,
                                        .position = position,
                                        .candidates = candidates};
        const uint64_t wanted = dial_picks(select->dial, &now, unit);
        picks[head] = wanted < picks_max ? wanted : picks_max;
    }
}

/* The same with what each KV head of the query's picks, [kv_head_count]. */
static bool plan_heads(const struct select *select, const struct choice_query *query, const struct select_rule *rule,
                       size_t slot, struct select_item *item, uint64_t *picks) {
    uint64_t even, visible = item->position + 1, keep = select_keep_tokens(rule->keep, visible);
    if (!plan_row(select, rule, item->position, item, &even)) return false;
    uint64_t unit = layout_any(select)->unit_tokens;
    uint64_t window = visible - (item->candidate_end - item->candidate_begin);
    if (even > 0 && keep < window + even) keep = window + even; /* units_min */
    item->picks = picks;
    if (select->dial != NULL && query->sequences != NULL && !rule->window_only) {
        plan_dial(select, query, slot, item->position, visible - window, even, picks);
        return true;
    }
    for (size_t head = 0; head < query->operation->kv_head_count; head++) {
        picks[head] = even;
        if (select->head_budgets == NULL || rule->window_only || keep >= visible) continue;
        const size_t lane = lane_of(select, query->layer_index, query->kv_head_first + head);
        uint64_t own = select_division->keep(keep, visible, select->head_budgets[lane]);
        picks[head] = own > window ? (own - window) / unit * unit : window == 0 ? unit : 0;
    }
    return true;
}

uint64_t select_rule_kept_tokens(const struct select *select, const struct select_rule *rule, uint64_t position) {
    struct select_item item = {0};
    uint64_t picks;
    if (!plan_row(select, rule, position, &item, &picks)) return position + 1;
    return position + 1 - (item.candidate_end - item.candidate_begin) + picks;
}

bool select_row_sees_all(const struct select *select, const struct select_rule *rule, uint64_t position) {
    struct select_item item = {0};
    uint64_t picks;
    return !plan_row(select, rule, position, &item, &picks);
}

uint64_t select_kept_tokens(const struct select *select, uint64_t position) {
    struct select_rule rule = select_rule_of(&select->options);
    return select_rule_kept_tokens(select, &rule, position);
}

/* ---- a choice ---- */

/* A search counts for itself what it evaluated, and with alpha the stream how long the lists are. */
static void count_chosen(const struct select *select, const struct select_item *item, size_t kv_head_count,
                         struct select_statistics *statistics) {
    uint64_t candidates = item->candidate_end - item->candidate_begin;
    for (size_t head = 0; head < kv_head_count; head++) {
        uint64_t picks = select_item_picks(item, head);
        if (select->options.alpha == 0) statistics->kept += select_item_kept(item, head);
        if (picks > 0 && picks < candidates && !searches_trees(select))
            statistics->evaluated += candidates / key_index_scored_tokens(layout_any(select));
    }
}

/* Rows of a layer that everybody attends to. */
static void count_dense(const struct attend_operation *operation, struct select_statistics *statistics) {
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        for (size_t row = 0; row < item->row_count; row++) {
            uint64_t seen = (item->position_first + row + 1) * operation->kv_head_count;
            statistics->visible += seen;
            statistics->kept += seen;
        }
    }
}

/* A row of item `index` of the query's operation: it chooses, or it sees everything. */
static void plan_item_row(const struct select *select, const struct choice_query *query, size_t index, size_t row,
                          struct choice *choice) {
    const size_t heads = query->operation->kv_head_count;
    const struct attend_item *item = &query->operation->items[index];
    const uint64_t position = item->position_first + row;
    ASSERT(choice->dense_count + choice->chosen_count < choice->row_capacity);
    struct select_item *candidates = &choice->candidates[choice->chosen_count];
    *candidates = (struct select_item){.view = item->view, .row = item->row_first + row, .position = position};
    choice->statistics.visible += (position + 1) * heads;
    choice->slots[choice->chosen_count] = choice->has_slots ? dial_slot(select->dial, query->sequences[index]) : 0;
    uint64_t *picks = choice->picks + choice->chosen_count * heads;
    const bool chooses =
        plan_heads(select, query, query->rules[index], choice->slots[choice->chosen_count], candidates, picks);
    if (!chooses && choice->lists_everything) {
        memset(picks, 0, heads * sizeof *picks);
        candidates->candidate_begin = candidates->candidate_end = 0;
        candidates->picks = picks;
    }
    if (chooses || choice->lists_everything) {
        choice->chosen_items[choice->chosen_count] = index;
        choice->chosen[choice->chosen_count] =
            (struct rows_item){.view = item->view,
                               .row = candidates->row,
                               .position = position,
                               .lists = choice->lists + choice->chosen_count * heads};
        choice->chosen_count++;
        return;
    }
    choice->statistics.kept += (position + 1) * heads;
    choice->dense_items[choice->dense_count] = index;
    choice->dense[choice->dense_count++] = (struct attend_item){
        .view = item->view, .row_first = candidates->row, .row_count = 1, .position_first = position};
}

/* Where the key index is on disk, a layer that scores by it has it in memory first, and one whose receipts read it. */
static enum status load_key_index(const struct select *select, struct stream *stream, const struct choice_query *query,
                                  const struct choice *choice, struct error *error) {
    const size_t heads = query->operation->kv_head_count;
    for (size_t i = 0; i < choice->chosen_count && query->sequences != NULL; i++) {
        bool reads = wants_sums(select);
        for (size_t head = 0; head < heads && !reads; head++)
            reads = select_item_picks(&choice->candidates[i], head) > 0;
        if (reads)
            TRY(kv_sequence_load_key_index(query->sequences[choice->chosen_items[i]], stream, query->layer_index,
                                           error));
    }
    return STATUS_OK;
}

/* Where the search of the layer's tree starts, by what steps before it counted. */
static void search_from(const struct select *select, size_t layer_index, struct choice *choice,
                        struct choose_operation *choose) {
    struct tree_layer *tree = &choice->trees[layer_index];
    if (tree->step != choice->step) choice_collect_tree(choice, layer_index);
    tree->step = choice->step;
    tree->leaf = tree->start = layout_any(select)->tree.leaf;
    if (layout_any(select)->aggregate != SCORE_SOFTMAX)
        tree->start = tree_density_start(&tree->density, tree->leaf, layer_index);
    choose->tree_start = tree->start;
    choose->tree_counts = &tree->counts;
}

/* Fills the lists of what is chosen. */
static enum status choose_rows(const struct select *select, struct stream *stream, const struct choice_query *query,
                               struct choice *choice, struct error *error) {
    const struct attend_operation *operation = query->operation;
    const size_t heads = operation->kv_head_count;
    size_t rows = 0;
    for (size_t i = 0; i < choice->chosen_count; i++)
        for (size_t head = 0; head < heads; head++)
            rows +=
                choice->list_stride != 0 ? choice->list_stride : (size_t)select_item_kept(&choice->candidates[i], head);
    TRY(choice_reserve(choice, stream, rows, error));
    TRY(load_key_index(select, stream, query, choice, error));
    struct choose_operation choose = {.q = operation->q,
                                      .q_stride = operation->q_stride,
                                      .head_count = operation->head_count,
                                      .kv_head_count = heads,
                                      .scale = operation->scale,
                                      .layout = layout_of(select, query->layer_index),
                                      .weights = weights_of(select, query->layer_index, query->kv_head_first),
                                      .alpha = (float)select->options.alpha,
                                      .list_rows = select->options.alpha > 0 ? &choice->statistics.kept : NULL,
                                      .items = choice->candidates,
                                      .item_count = choice->chosen_count,
                                      .attends_next = query->attends_next,
                                      .rows = span_of(choice->rows, 0),
                                      .list_stride = choice->list_stride,
                                      .at = choice_step_lists(choice),
                                      .lists = choice->lists,
                                      .times = &choice->statistics.times};
    if (choice->trees != NULL) search_from(select, query->layer_index, choice, &choose);
    select->device->operations->choose(stream, &choose);
    if (choice->trees == NULL || !choice->host_reads) return STATUS_OK;
    TRY(select->device->operations->stream_synchronize(stream, error)); /* as the host is about to, anyway */
    choice_collect_tree(choice, query->layer_index);
    return STATUS_OK;
}

void select_plan(const struct select *select, const struct choice_query *query, struct choice *choice) {
    const struct attend_operation *operation = query->operation;
    choice->dense_count = choice->chosen_count = 0;
    choice->places = (struct span){.buffer = NULL};
    choice->layer_index = query->layer_index;
    choice->kv_head_first = query->kv_head_first;
    choice->kv_head_count = operation->kv_head_count;
    ASSERT(choice->kv_head_count <= choice->kv_heads_max);
    choice->has_slots = select->dial != NULL && query->sequences != NULL;
    choice->everything = operation->window != 0 || !select_layer_chooses(select, query->layer_index);
    if (choice->everything) {
        count_dense(operation, &choice->statistics);
        return;
    }
    for (size_t i = 0; i < operation->item_count; i++)
        for (size_t row = 0; row < operation->items[i].row_count; row++) plan_item_row(select, query, i, row, choice);
}

enum status select_pick(const struct select *select, struct stream *stream, const struct choice_query *query,
                        struct choice *choice, struct error *error) {
    if (choice->chosen_count == 0) return STATUS_OK;
    for (size_t i = 0; i < choice->chosen_count; i++)
        count_chosen(select, &choice->candidates[i], query->operation->kv_head_count, &choice->statistics);
    return choose_rows(select, stream, query, choice, error);
}

bool select_fits_graphs(const struct select *select) {
    return !wants_sums(select) && !searches_trees(select) && select->options.alpha == 0 && select->dial == NULL &&
           !select_scans(select);
}

struct step_list select_item_limits(const struct select_item *item, size_t kv_head) {
    return (struct step_list){.count = (uint32_t)select_item_kept(item, kv_head),
                              .candidate_begin = (uint32_t)item->candidate_begin,
                              .candidate_end = (uint32_t)item->candidate_end,
                              .picks = (uint32_t)select_item_picks(item, kv_head)};
}

bool select_limits(const struct select *select, const struct choice_query *query, struct choice *choice,
                   struct step_list *limits) {
    const size_t heads = query->operation->kv_head_count;
    bool looks = false;
    select_plan(select, query, choice);
    for (size_t i = 0; i < choice->chosen_count; i++) {
        const struct select_item *item = &choice->candidates[i];
        count_chosen(select, item, heads, &choice->statistics);
        for (size_t head = 0; head < heads; head++) {
            const struct step_list limit = select_item_limits(item, head);
            const uint64_t candidates = limit.candidate_end - limit.candidate_begin;
            if (key_index_looks(layout_of(select, query->layer_index), candidates, limit.picks) > 0) looks = true;
            limits[choice->chosen_items[i] * heads + head] = limit;
        }
    }
    return looks;
}

enum status select_choose(const struct select *select, struct stream *stream, const struct choice_query *query,
                          struct choice *choice, struct error *error) {
    select_plan(select, query, choice);
    return select_pick(select, stream, query, choice, error);
}

/* ---- attention to it ---- */

static enum status bound_mass(struct select *select, struct stream *stream, const struct attend_rows_operation *rows,
                              const struct key_index_layout *layout, struct mass_bounds *bounds, struct error *error) {
    select->device->operations->mass_bound(
        stream, &(struct mass_bound_operation){.rows = rows, .layout = layout, .mass_bounds = select->mass_bounds});
    TRY(select->device->operations->stream_synchronize(stream, error));
    for (size_t i = 0; i < rows->item_count * rows->head_count; i++) {
        const double mass = select->mass_bounds[i];
        if (bounds->count++ == 0 || mass < bounds->min) bounds->min = mass;
        bounds->sum += mass;
    }
    return STATUS_OK;
}

/* hits: [row] of hit_stride: KV heads whose lists are of an earlier step. */
static enum status estimate_mass(struct select *select, struct stream *stream, const struct attend_rows_operation *rows,
                                 const struct key_index_layout *layout, const bool *hits, size_t hit_stride,
                                 struct select_statistics *statistics, struct error *error) {
    struct mass_receipt *receipt = &statistics->receipt;
    const size_t count = rows->item_count * rows->head_count, group = rows->head_count / rows->kv_head_count;
    const uint64_t began = clock_ns();
    select->device->operations->sample_mass(
        stream, &(struct sample_mass_operation){
                    .rows = rows, .layout = layout, .key_max = SAMPLED_KEYS_MAX, .estimates = select->estimates});
    TRY(select->device->operations->stream_synchronize(stream, error));
    mass_receipt_add(receipt, select->estimates, count, group);
    reuse_counts_add_estimates(&statistics->reuse, &(struct hit_estimates){.estimates = select->estimates,
                                                                           .hits = hits,
                                                                           .hit_stride = hit_stride,
                                                                           .row_count = rows->item_count,
                                                                           .kv_head_count = rows->kv_head_count,
                                                                           .group = group});
    receipt->time_ns += clock_ns() - began;
    return STATUS_OK;
}

/* The estimates of the rows from choice->chosen[first] on, for the next steps of their heads. */
static void turn_dial(struct select *select, const struct choice *choice, size_t first,
                      const struct attend_rows_operation *rows, size_t kv_head_first) {
    const size_t group = rows->head_count / rows->kv_head_count;
    for (size_t i = 0; i < rows->item_count; i++)
        for (size_t head = 0; head < rows->kv_head_count; head++) {
            const struct select_item *item = &choice->candidates[first + i];
            const struct dial_choice now = {.slot = choice->slots[first + i],
                                            .layer_index = choice->layer_index,
                                            .kv_head = choice->kv_head_first + kv_head_first + head,
                                            .position = item->position,
                                            .candidates = item->candidate_end - item->candidate_begin};
            dial_add(select->dial, &now, select->estimates + i * rows->head_count + head * group, group);
        }
}

/* What is done with rows that have attended, and said of them, by their sums: of choice->chosen from first on, KV heads
 * from kv_head_first on. */
static enum status account(struct select *select, struct stream *stream, const struct attend_rows_operation *rows,
                           struct choice *choice, size_t first, size_t kv_head_first, struct error *error) {
    const struct key_index_layout *layout = layout_of(select, choice->layer_index);
    if (layout->estimates_rest)
        select->device->operations->attend_rest(stream,
                                                &(struct attend_rest_operation){.rows = rows, .layout = layout});
    if (select->bounds_mass) TRY(bound_mass(select, stream, rows, layout, &choice->statistics.mass_bound, error));
    if (layout->sample_count == 0) return STATUS_OK;
    TRY(estimate_mass(select, stream, rows, layout, choice->hits + first * choice->kv_head_count + kv_head_first,
                      choice->kv_head_count, &choice->statistics, error));
    if (choice->has_slots) turn_dial(select, choice, first, rows, kv_head_first);
    return STATUS_OK;
}

static struct attend_rows_operation rows_operation(const struct attend_operation *operation) {
    return (struct attend_rows_operation){.q = operation->q,
                                          .q_stride = operation->q_stride,
                                          .out = operation->out,
                                          .out_stride = operation->out_stride,
                                          .head_count = operation->head_count,
                                          .kv_head_count = operation->kv_head_count,
                                          .scale = operation->scale,
                                          .softcap = operation->softcap,
                                          .sinks = operation->sinks};
}

enum status select_attend_chosen(struct select *select, struct stream *stream, const struct attend_operation *operation,
                                 struct choice *choice, struct error *error) {
    struct attend_rows_operation rows = rows_operation(operation);
    rows.items = choice->chosen;
    rows.item_count = choice->chosen_count;
    rows.places = choice->places;
    rows.at = choice_step_lists(choice);
    rows.place_stride = choice->place_stride;
    rows.times = &choice->statistics.times;
    if (wants_sums(select)) rows.sums = sums_of(select);
    if (select->options.method->attend != NULL)
        TRY(select->options.method->attend(select->device, stream, &rows, 1, &select->scores, error));
    else
        select->device->operations->attend_rows(stream, &rows);
    return account(select, stream, &rows, choice, 0, 0, error);
}

enum status select_attend_heads(struct select *select, struct stream *stream, const struct attend_operation *operation,
                                struct choice *choice, const struct chosen_heads *part, struct error *error) {
    const struct select_rows_source *source = part->source;
    const size_t group = operation->head_count / operation->kv_head_count, kv_head_first = part->kv_head_first;
    struct rows_item heads = choice->chosen[part->index], copies;
    struct attend_rows_operation rows = rows_operation(operation);
    ASSERT(select->options.method->attend == NULL); /* what it sums up changes with every token: not of KV in tiers */
    rows.q = span_floats(rows.q, kv_head_first * group * heads.view.layout->k_dimension);
    rows.out = span_floats(rows.out, kv_head_first * group * heads.view.layout->v_dimension);
    rows.sinks = span_floats(rows.sinks, kv_head_first * group);
    rows.head_count = group * part->kv_head_count;
    rows.kv_head_count = part->kv_head_count;
    heads.view = kv_view_heads(&heads.view, kv_head_first);
    heads.lists += kv_head_first;
    rows.items = &heads;
    rows.item_count = 1;
    rows.times = &choice->statistics.times;
    if (wants_sums(select)) rows.sums = sums_of(select);
    if (source == NULL && span_exists(choice->places)) {
        const size_t before = part->index * choice->kv_head_count + kv_head_first;
        rows.places = span_behind(choice->places, before * choice->place_stride * sizeof(uint64_t));
        rows.place_stride = choice->place_stride;
    }
    if (source != NULL) {
        copies = heads;
        copies.view = source->view;
        copies.lists = source->lists;
        rows.items = &copies;
    }
    select->device->operations->attend_rows(stream, &rows);
    rows.items = &heads;
    return account(select, stream, &rows, choice, part->index, kv_head_first, error);
}

/* ---- prompts that are watched ---- */

bool select_watches_prefill(const struct select *select) { return select->options.method->watches_prefill; }

/* The row attends to everything once more, for the mass that it gives. */
static enum status watch_row(struct select *select, struct stream *stream, const struct choice_query *query,
                             const struct attend_item *item, size_t row, struct choice *choice, struct error *error) {
    struct attend_rows_operation rows = rows_operation(query->operation);
    choice->candidates[0] =
        (struct select_item){.view = item->view, .row = item->row_first + row, .position = item->position_first + row};
    choice->chosen[0] = (struct rows_item){.view = item->view,
                                           .row = item->row_first + row,
                                           .position = item->position_first + row,
                                           .lists = choice->lists};
    choice->chosen_count = 1;
    TRY(choose_rows(select, stream, query, choice, error));
    rows.out = (struct span){.buffer = NULL};
    rows.items = choice->chosen;
    rows.item_count = 1;
    rows.sums = sums_of(select);
    return select->options.method->attend(select->device, stream, &rows, SELECT_WATCH_INTERVAL, &select->scores, error);
}

enum status select_watch_prefill(struct select *select, struct stream *stream, size_t layer_index,
                                 const struct attend_operation *operation, struct choice *choice, struct error *error) {
    const struct choice_query query = {.layer_index = layer_index, .operation = operation};
    if (!select_watches_prefill(select) || operation->window != 0 || !select_layer_chooses(select, layer_index))
        return STATUS_OK;
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        for (size_t row = 0; row < item->row_count; row++)
            if ((item->position_first + row) % SELECT_WATCH_INTERVAL == SELECT_WATCH_INTERVAL - 1)
                TRY(watch_row(select, stream, &query, item, row, choice, error));
    }
    return STATUS_OK;
}
