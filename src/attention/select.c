/* select: the axis over the device's operations.  See select.h. */
#include "attention/select.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "attention/dense.h"
#include "attention/head_shares.h"
#include "attention/select_internal.h"
#include "attention/tree_density.h"
#include "platform/clock.h"

/* What the rows of one operation come to: they see everything, or choose. */
struct select_room {
    size_t row_capacity;
    struct attend_item *dense;          /* owned, [row_capacity]: rows that attend to everything */
    struct select_item *chosen;         /* owned, [row_capacity] */
    uint64_t *picks;                    /* owned, [row_capacity][kv_head_count]: of chosen */
    size_t *dense_items, *chosen_items; /* owned, [row_capacity]: the operation's item each is of */
    uint32_t *lists;                    /* owned; rows of choices made apart; NULL until there are some */
    size_t lists_capacity;              /* entries */
};

struct select {
    struct device *device; /* borrowed */
    struct select_shape shape;
    struct select_options options;
    struct metadata_layout layout;
    uint16_t *weights; /* owned device memory, [layer from dense_layers][layer_weights]; NULL: none */
    size_t layer_weights, weights_bytes;
    uint32_t weights_digest;
    double *head_shares; /* owned, [layer][kv_head]: of keep, 1 on average; NULL: all alike */
    const char *fallback;
    struct tree_density *densities; /* owned, [layer]; NULL: no tree */
    struct select_room room;
    struct select_room
        guesses; /* takes the place of room for a guess; empty until lists are reserved for some */
    struct select_statistics statistics;
    select_observer *observer;
    void *observer_context;
    double
        *certified; /* owned, [room.row_capacity][head_count]: of the last operation; NULL: none is wanted */
    uint32_t *event_rows; /* owned, for the observer; [kv_head_count][event_stride] */
    size_t event_stride;
    size_t *event_counts; /* owned, [kv_head_count] */
    float *event_q;       /* owned, [head_count][k_dimension] */
};

/* ---- methods and options ---- */

const struct select_method *const select_methods[] = {&select_all,     &select_window, &select_quest,
                                                      &select_meanstd, &select_hash,   &select_h2o,
                                                      &select_lowrank, &select_tree,   &select_exact};
const size_t select_method_count = sizeof select_methods / sizeof select_methods[0];

const struct select_method *select_method_find(const char *name) {
    for (size_t i = 0; i < select_method_count; i++)
        if (strcmp(select_methods[i]->name, name) == 0) return select_methods[i];
    return NULL;
}

enum status select_layout_none(struct metadata_layout *layout, const struct select_shape *shape,
                               const struct select_options *options, struct error *error) {
    (void)layout, (void)shape, (void)options, (void)error;
    return STATUS_OK;
}

enum { PAGE_DEFAULT = 16 }; /* of methods that rank pages */

static enum status check_page(const struct select_options *options, size_t page, struct error *error) {
    if (page == 8 || page == 16 || page == 32 || page == 64) return STATUS_OK;
    return error_set(error, STATUS_USAGE, "select=%s: page=%zu, expected 8, 16, 32 or 64",
                     options->method->name, page);
}

enum status select_layout_tokens(struct metadata_layout *layout, const struct select_options *options,
                                 struct error *error) {
    layout->unit_tokens = options->page > 1 ? options->page : 1;
    return options->page > 1 ? check_page(options, options->page, error) : STATUS_OK;
}

enum status select_layout_pages(struct metadata_layout *layout, const struct select_shape *shape,
                                const struct select_options *options, enum abstract_kind kind,
                                struct error *error) {
    size_t page = options->page != 0 ? options->page : PAGE_DEFAULT;
    TRY(check_page(options, page, error));
    layout->kind = METADATA_ABSTRACT;
    layout->abstract_kind = kind;
    layout->aggregate = SCORE_MAX;
    layout->unit_tokens = page;
    layout->bounds_apart = kind != ABSTRACT_MIN_MAX && options->certify;
    layout->has_bounds = kind == ABSTRACT_MIN_MAX || layout->bounds_apart;
    abstract_layout_init(&layout->abstract, page, shape->k_dimension, layout->has_bounds,
                         kind == ABSTRACT_MEAN_DEVIATION);
    layout->bounds_offset = layout->abstract.offset[ABSTRACT_MIN_MAX];
    layout->bytes = layout->abstract.bytes;
    return STATUS_OK;
}

const uint16_t *select_calibration_find(const struct select_calibration *calibration, const char *kind,
                                        size_t layer_index, size_t *columns) {
    if (calibration == NULL || calibration->find == NULL) return NULL;
    return calibration->find(calibration->context, kind, layer_index, columns);
}

struct select_options select_options_default(void) {
    return (struct select_options){.method = &select_all,
                                   .keep = select_keep_all(),
                                   .sinks = 4,
                                   .recent = 64,
                                   .dense_layers = 2,
                                   .bits = 128,
                                   .leaf = 8,
                                   .norms = true};
}

/* What --set takes beside axes, and what help lists: numbers and flags by where they are, and words. */
static const struct setting {
    const char *name;
    const char *words; /* for people; NULL: a number */
    size_t offset;
    bool is_flag;
} settings[] = {
    {"sinks", NULL, offsetof(struct select_options, sinks), false},
    {"recent", NULL, offsetof(struct select_options, recent), false},
    {"dense", NULL, offsetof(struct select_options, dense_layers), false},
    {"page", NULL, offsetof(struct select_options, page), false},
    {"bits", NULL, offsetof(struct select_options, bits), false},
    {"norms", NULL, offsetof(struct select_options, norms), true},
    {"columns", NULL, offsetof(struct select_options, columns), false},
    {"leaf", NULL, offsetof(struct select_options, leaf), false},
    {"rank", "bound or meanstd", 0, false},
    {"certify", NULL, offsetof(struct select_options, certify), true},
    {"heads", "even or importance", 0, false},
    {"scan", NULL, offsetof(struct select_options, scan), true},
};
enum { SETTING_COUNT = sizeof settings / sizeof settings[0] };

const char *select_setting_name(size_t index, const char **words) {
    if (index >= SETTING_COUNT) return NULL;
    *words = settings[index].words;
    return settings[index].name;
}

static const struct setting *setting_find(const char *name) {
    for (size_t i = 0; i < SETTING_COUNT; i++)
        if (strcmp(settings[i].name, name) == 0) return &settings[i];
    return NULL;
}

bool select_option_set(struct select_options *options, const char *name, uint64_t value) {
    const struct setting *setting = setting_find(name);
    if (setting == NULL || setting->words != NULL) return false;
    unsigned char *target = (unsigned char *)options + setting->offset;
    size_t number = (size_t)value;
    bool flag = value != 0;
    if (setting->is_flag)
        memcpy(target, &flag, sizeof flag);
    else
        memcpy(target, &number, sizeof number);
    return true;
}

bool select_option_set_word(struct select_options *options, const char *name, const char *word,
                            const char **words) {
    const struct setting *setting = setting_find(name);
    bool rank = strcmp(name, "rank") == 0, heads = strcmp(name, "heads") == 0;
    *words = setting != NULL ? setting->words : NULL;
    if (rank && strcmp(word, "bound") == 0)
        options->rank = TREE_BOUND;
    else if (rank && strcmp(word, "meanstd") == 0)
        options->rank = TREE_MEAN_DEVIATION;
    else if (heads && strcmp(word, "even") == 0)
        options->heads = SELECT_HEADS_EVEN;
    else if (heads && strcmp(word, "importance") == 0)
        options->heads = SELECT_HEADS_IMPORTANCE;
    else
        return false;
    return true;
}

enum status select_keep_parse(struct select_keep *keep, const char *text, struct error *error) {
    char *end;
    double number = strtod(text, &end);
    bool whole = strcspn(text, ".eExXnN%") == strlen(text);
    *keep = (struct select_keep){0};
    if (end != text && number > 0 && isfinite(number)) {
        double scale = *end == 'K' || *end == 'k' ? 0x1p10 : *end == 'M' || *end == 'm' ? 0x1p20 : 1;
        if (strcmp(end, "%") == 0 && number <= 100)
            keep->ratio = number / 100;
        else if (*end == '\0' && !whole && number <= 1)
            keep->ratio = number;
        else if (whole && end[scale != 1] == '\0' && number * scale <= 0x1p62)
            keep->tokens = (uint64_t)(number * scale);
    }
    if (keep->ratio == 1) *keep = select_keep_all();
    if (keep->ratio > 0 || keep->tokens > 0) return STATUS_OK;
    return error_set(error, STATUS_USAGE,
                     "--keep: found '%.40s', expected a number of tokens (2048, 8K) or a share (10%%, 0.1)",
                     text);
}

const char *select_keep_text(struct select_keep keep, char *buffer, size_t buffer_bytes) {
    if (keep.ratio > 0)
        snprintf(buffer, buffer_bytes, "%.4g%%", keep.ratio * 100);
    else if (keep.tokens == UINT64_MAX)
        snprintf(buffer, buffer_bytes, "100%%");
    else
        snprintf(buffer, buffer_bytes, "%" PRIu64, keep.tokens);
    return buffer;
}

struct select_rule select_rule_of(const struct select_options *options) {
    bool everything = options->keep.ratio == 0 && options->keep.tokens == UINT64_MAX;
    return (struct select_rule){.dense =
                                    options->method == &select_all || (everything && !options->gather_all),
                                .window_only = options->method->recent_share == 1,
                                .keep = options->keep};
}

static uint64_t keep_tokens(struct select_keep keep, uint64_t visible) {
    if (keep.ratio > 0) return (uint64_t)ceil(keep.ratio * (double)visible);
    return keep.tokens;
}

static enum status make_layout(struct metadata_layout *layout, const struct select_options *options,
                               const struct select_shape *shape, struct error *error) {
    *layout = (struct metadata_layout){.unit_tokens = 1};
    TRY(options->method->layout(layout, shape, options, error));
    layout->bytes = align_up(layout->bytes, 64);
    if (!options->certify || layout->has_bounds || options->method == &select_all) return STATUS_OK;
    return error_set(error, STATUS_USAGE,
                     "select=%s: certify=1 needs bounds of keys, which quest, meanstd and tree have",
                     options->method->name);
}

enum status select_options_metadata_bytes(const struct select_options *options,
                                          const struct select_shape *shape, size_t *bytes,
                                          struct error *error) {
    struct metadata_layout layout;
    TRY(make_layout(&layout, options, shape, error));
    *bytes = layout.bytes;
    return STATUS_OK;
}

/* As plan_row has it: the best, or the window alone, which reaches back to the unit before it. */
enum status select_options_kept_most(const struct select_options *options, const struct select_shape *shape,
                                     uint64_t context_size, uint64_t *kept, struct error *error) {
    struct metadata_layout layout;
    TRY(make_layout(&layout, options, shape, error));
    struct select_rule rule = select_rule_of(options);
    uint64_t unit = rule.window_only ? 1 : layout.unit_tokens, sinks = align_up(options->sinks, unit);
    uint64_t keep = keep_tokens(options->keep, context_size), recent = options->recent;
    if (keep > context_size || options->gather_all) keep = context_size;
    uint64_t share = rule.window_only ? (keep > sinks ? keep - sinks : 0)
                                      : (uint64_t)(options->method->recent_share * (double)keep);
    uint64_t window = sinks + (share > recent ? share : recent) + unit - 1;
    if (options->heads == SELECT_HEADS_IMPORTANCE)
        keep = head_share_keep(keep, context_size, HEAD_SHARE_MOST) + unit;
    *kept = rule.dense ? 0 : keep > window ? keep : window;
    if (*kept > context_size) *kept = context_size;
    return STATUS_OK;
}

/* ---- life ---- */

static uint32_t digest_of(const uint16_t *weights, size_t count) {
    uint64_t digest = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (size_t i = 0; i < count; i++) digest = (digest ^ weights[i]) * UINT64_C(0x100000001b3);
    return (uint32_t)(digest >> 32);
}

static enum status load_weights(struct select *select, const struct select_calibration *calibration,
                                struct error *error) {
    const struct select_method *method = select->options.method;
    size_t first = select->options.dense_layers, layers = select->shape.layer_count;
    size_t columns = select->layout.kind == METADATA_HASH ? select->layout.hash.bits : select->layout.columns;
    if (method->weights == NULL || first >= layers) return STATUS_OK;
    const struct device_operations *operations = select->device->operations;
    select->layer_weights = select->shape.kv_head_count * select->shape.k_dimension * columns;
    select->weights_bytes = (layers - first) * select->layer_weights * sizeof *select->weights;
    void *weights;
    TRY(operations->allocate(select->device, MEMORY_DEVICE, select->weights_bytes, &weights, error));
    select->weights = weights;
    void *host = NULL;
    struct stream *stream = NULL;
    enum status status =
        operations->allocate(select->device, MEMORY_HOST, select->weights_bytes, &host, error);
    if (status == STATUS_OK) status = operations->stream_create(select->device, &stream, error);
    for (size_t layer = first; status == STATUS_OK && layer < layers; layer++)
        status = method->weights((uint16_t *)host + (layer - first) * select->layer_weights, layer,
                                 &select->shape, &select->options, calibration, &select->fallback, error);
    if (status == STATUS_OK) {
        select->weights_digest = digest_of(host, select->weights_bytes / sizeof(uint16_t));
        operations->copy(stream, weights, host, select->weights_bytes);
        status = operations->stream_synchronize(stream, error);
    }
    if (stream != NULL) operations->stream_destroy(stream);
    if (host != NULL) operations->release(select->device, MEMORY_HOST, host, select->weights_bytes);
    return status;
}

/* A KV head's importance is that of the most important of its query heads, who share its choice. */
static double kv_head_importance(const struct select_shape *shape, const float *layer, size_t kv_head) {
    size_t group = shape->head_count / shape->kv_head_count;
    double most = 0;
    for (size_t i = 0; i < group; i++) most = fmax(most, (double)layer[kv_head * group + i]);
    return most;
}

static enum status load_shares(struct select *select, const struct select_calibration *calibration,
                               struct error *error) {
    size_t heads = select->shape.kv_head_count, layers = select->shape.layer_count;
    size_t first = select->options.dense_layers;
    if (select->options.heads != SELECT_HEADS_IMPORTANCE || first >= layers) return STATUS_OK;
    if (calibration == NULL || calibration->head_importance == NULL) {
        if (select->fallback == NULL)
            select->fallback =
                "heads=importance: no calibration of this model was found; every head keeps as much";
        return STATUS_OK;
    }
    select->head_shares = calloc(layers * heads, sizeof *select->head_shares);
    if (select->head_shares == NULL) return error_set(error, STATUS_MEMORY, "select: out of memory");
    for (size_t layer = first; layer < layers; layer++)
        for (size_t head = 0; head < heads; head++)
            select->head_shares[layer * heads + head] = kv_head_importance(
                &select->shape, calibration->head_importance + layer * select->shape.head_count, head);
    head_shares_divide(select->head_shares + first * heads, (layers - first) * heads);
    return STATUS_OK;
}

static void room_deinit(struct select_room *room) {
    free(room->dense);
    free(room->chosen);
    free(room->picks);
    free(room->dense_items);
    free(room->chosen_items);
    free(room->lists);
    *room = (struct select_room){0};
}

static enum status room_init(struct select_room *room, size_t rows, size_t kv_head_count,
                             struct error *error) {
    room->row_capacity = rows;
    room->dense = calloc(rows, sizeof *room->dense);
    room->chosen = calloc(rows, sizeof *room->chosen);
    room->picks = calloc(rows * kv_head_count, sizeof *room->picks);
    room->dense_items = calloc(rows, sizeof *room->dense_items);
    room->chosen_items = calloc(rows, sizeof *room->chosen_items);
    if (room->dense == NULL || room->chosen == NULL || room->picks == NULL || room->dense_items == NULL ||
        room->chosen_items == NULL)
        return error_set(error, STATUS_MEMORY, "select: no memory for %zu rows", rows);
    return STATUS_OK;
}

static enum status room_reserve_lists(struct select_room *room, size_t entries, struct error *error) {
    free(room->lists);
    room->lists_capacity = 0;
    room->lists = calloc(max_size(entries, 1), sizeof *room->lists);
    if (room->lists == NULL)
        return error_set(error, STATUS_MEMORY, "select: no memory for lists of %zu rows", entries);
    room->lists_capacity = entries;
    return STATUS_OK;
}

static enum status init(struct select *select, size_t row_capacity,
                        const struct select_calibration *calibration, struct error *error) {
    TRY(make_layout(&select->layout, &select->options, &select->shape, error));
    TRY(load_weights(select, calibration, error));
    TRY(load_shares(select, calibration, error));
    TRY(room_init(&select->room, row_capacity, select->shape.kv_head_count, error));
    bool has_tree = select->layout.kind == METADATA_TREE;
    bool certifies = select->options.certify && select->layout.has_bounds;
    if (certifies)
        select->certified = calloc(row_capacity * select->shape.head_count, sizeof *select->certified);
    if (has_tree) select->densities = calloc(select->shape.layer_count, sizeof *select->densities);
    select->event_counts = calloc(select->shape.kv_head_count, sizeof *select->event_counts);
    if (select->event_counts == NULL || (has_tree && select->densities == NULL) ||
        (certifies && select->certified == NULL))
        return error_set(error, STATUS_MEMORY, "select: no memory for %zu rows", row_capacity);
    return STATUS_OK;
}

enum status select_create(struct select **result, struct device *device, const struct select_shape *shape,
                          const struct select_options *options, const struct select_calibration *calibration,
                          size_t row_capacity, struct error *error) {
    *result = NULL;
    struct select *select = calloc(1, sizeof *select);
    if (select == NULL) return error_set(error, STATUS_MEMORY, "select: out of memory");
    *select = (struct select){.device = device, .shape = *shape, .options = *options};
    enum status status = init(select, row_capacity, calibration, error);
    if (status != STATUS_OK) {
        select_destroy(select);
        return status;
    }
    *result = select;
    return STATUS_OK;
}

void select_destroy(struct select *select) {
    if (select == NULL) return;
    if (select->weights != NULL)
        select->device->operations->release(select->device, MEMORY_DEVICE, select->weights,
                                            select->weights_bytes);
    free(select->densities);
    free(select->head_shares);
    room_deinit(&select->room);
    room_deinit(&select->guesses);
    free(select->certified);
    free(select->event_rows);
    free(select->event_q);
    free(select->event_counts);
    free(select);
}

const struct select_options *select_get_options(const struct select *select) { return &select->options; }
size_t select_metadata_bytes(const struct select *select) { return select->layout.bytes; }

void select_metadata_kind(const struct select *select, char kind[SELECT_KIND_BYTES]) {
    const struct select_options *options = &select->options;
    size_t parameter = metadata_scores_tokens(&select->layout) ? 1 : select->layout.unit_tokens;
    if (select->layout.kind == METADATA_HASH) parameter = options->bits;
    if (select->layout.kind == METADATA_PARTIAL) parameter = select->layout.columns;
    bool spreads = select->layout.kind == METADATA_TREE && options->rank == TREE_MEAN_DEVIATION;
    snprintf(kind, SELECT_KIND_BYTES, "%s%s%s.%zu.%zu-%08" PRIx32, options->method->name,
             spreads ? "-meanstd" : "", select->layout.bounds_apart ? "-bounds" : "", parameter,
             options->dense_layers, select->weights_digest);
}

const char *select_fallback(const struct select *select) { return select->fallback; }

void select_set_observer(struct select *select, select_observer *observer, void *context) {
    select->observer = observer;
    select->observer_context = context;
}

struct select_statistics select_statistics(const struct select *select) {
    return select->statistics;
}
void select_reset_statistics(struct select *select) { select->statistics = (struct select_statistics){0}; }

/* ---- a step ---- */

static bool layer_selects(const struct select *select, size_t layer_index) {
    return layer_index >= select->options.dense_layers;
}

bool select_layer_chooses(const struct select *select, size_t layer_index) {
    return layer_selects(select, layer_index);
}

bool select_scans(const struct select *select) {
    return select->options.scan || select->options.method->reads_keys;
}

static const uint16_t *weights_of(const struct select *select, size_t layer_index) {
    if (select->weights == NULL) return NULL;
    return select->weights + (layer_index - select->options.dense_layers) * select->layer_weights;
}

void select_append(struct select *select, struct stream *stream, size_t layer_index,
                   const struct attend_item *items, size_t item_count) {
    if (select->layout.bytes == 0 || !layer_selects(select, layer_index)) return;
    select->device->operations->metadata_build(
        stream, &(struct metadata_operation){.layout = &select->layout,
                                             .weights = weights_of(select, layer_index),
                                             .kv_head_count = select->shape.kv_head_count,
                                             .items = items,
                                             .item_count = item_count});
}

/* The row's candidates, and how many of them its KV heads may pick where all keep as much; false: it sees all, by the
 * dense path. */
static bool plan_row(const struct select *select, const struct select_rule *rule, uint64_t position,
                     struct select_item *item, uint64_t *pick_count) {
    const struct select_options *options = &select->options;
    uint64_t visible = position + 1, keep = keep_tokens(rule->keep, visible);
    if (rule->dense || (keep >= visible && !options->gather_all)) return false;
    if (keep > visible) keep = visible;
    uint64_t unit = rule->window_only ? 1 : select->layout.unit_tokens;
    uint64_t sinks = align_up(options->sinks, unit), recent = options->recent;
    uint64_t share = rule->window_only ? (keep > sinks ? keep - sinks : 0)
                                       : (uint64_t)(options->method->recent_share * (double)keep);
    if (share > recent) recent = share;
    item->position = position;
    item->candidate_begin = sinks;
    item->candidate_end = visible > recent ? (visible - recent) / unit * unit : 0;
    if (item->candidate_end <= sinks) { /* all of it is window */
        if (!options->gather_all) return false;
        item->candidate_begin = item->candidate_end = 0;
    }
    uint64_t candidates = item->candidate_end - item->candidate_begin, window = visible - candidates;
    *pick_count = keep > window && !rule->window_only ? (keep - window) / unit * unit : 0;
    ASSERT(*pick_count <= candidates);
    return true;
}

/* The same with what each KV head of a layer picks, [kv_head_count]. */
static bool plan_heads(const struct select *select, const struct select_rule *rule, size_t layer_index,
                       uint64_t position, struct select_item *item, uint64_t *picks) {
    uint64_t even, visible = position + 1, keep = keep_tokens(rule->keep, visible);
    if (!plan_row(select, rule, position, item, &even)) return false;
    uint64_t unit = select->layout.unit_tokens;
    uint64_t window = visible - (item->candidate_end - item->candidate_begin);
    item->picks = picks;
    for (size_t head = 0; head < select->shape.kv_head_count; head++) {
        picks[head] = even;
        if (select->head_shares == NULL || rule->window_only || keep >= visible) continue;
        uint64_t own = head_share_keep(keep, visible,
                                       select->head_shares[layer_index * select->shape.kv_head_count + head]);
        picks[head] = own > window ? (own - window) / unit * unit : window == 0 ? unit : 0;
    }
    return true;
}

uint64_t select_rule_kept_tokens(const struct select *select, const struct select_rule *rule,
                                 uint64_t position) {
    struct select_item item = {0};
    uint64_t picks;
    if (!plan_row(select, rule, position, &item, &picks)) return position + 1;
    return position + 1 - (item.candidate_end - item.candidate_begin) + picks;
}

uint64_t select_kept_tokens(const struct select *select, uint64_t position) {
    struct select_rule rule = select_rule_of(&select->options);
    return select_rule_kept_tokens(select, &rule, position);
}

/* A tree counts for itself what it evaluated. */
static void count_chosen(struct select *select, const struct select_item *item, size_t head_first,
                         size_t head_count) {
    uint64_t candidates = item->candidate_end - item->candidate_begin;
    for (size_t head = head_first; head < head_first + head_count; head++) {
        uint64_t picks = select_item_picks(item, head);
        select->statistics.kept += select_item_kept(item, head);
        if (picks > 0 && picks < candidates && select->layout.kind != METADATA_TREE)
            select->statistics.evaluated +=
                candidates / (metadata_scores_tokens(&select->layout) ? 1 : select->layout.unit_tokens);
    }
}

/* Splits the operation's rows into those that choose and those that do not. */
static void plan_rows(struct select *select, size_t layer_index, const struct attend_operation *operation,
                      const struct select_rule *const *rules, size_t *dense_count, size_t *chosen_count) {
    size_t heads = operation->kv_head_count;
    *dense_count = *chosen_count = 0;
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        for (size_t row = 0; row < item->row_count; row++) {
            ASSERT(*dense_count + *chosen_count < select->room.row_capacity);
            uint64_t position = item->position_first + row;
            struct select_item chosen = {.view = item->view, .row = item->row_first + row};
            select->statistics.visible += (position + 1) * heads;
            if (plan_heads(select, rules[i], layer_index, position, &chosen,
                           select->room.picks + *chosen_count * heads)) {
                select->room.chosen_items[*chosen_count] = i;
                select->room.chosen[(*chosen_count)++] = chosen;
                count_chosen(select, &chosen, 0, heads);
                continue;
            }
            select->statistics.kept += (position + 1) * heads;
            select->room.dense_items[*dense_count] = i;
            select->room.dense[(*dense_count)++] = (struct attend_item){.view = item->view,
                                                                        .row_first = item->row_first + row,
                                                                        .row_count = 1,
                                                                        .position_first = position};
        }
    }
}

static void observe(struct select *select, struct stream *stream, size_t layer_index,
                    struct attend_selected_operation *operation, const struct select_item *item) {
    size_t heads = select->shape.kv_head_count, kept = (size_t)select_item_kept_most(item, heads);
    if (kept > select->event_stride) {
        free(select->event_rows);
        select->event_stride = kept + kept / 2;
        select->event_rows = calloc(heads * select->event_stride, sizeof *select->event_rows);
    }
    size_t q_size = select->shape.head_count * select->shape.k_dimension;
    if (select->event_q == NULL) select->event_q = calloc(q_size, sizeof *select->event_q);
    ASSERT(select->event_rows != NULL && select->event_q != NULL); /* only while somebody measures */
    operation->chosen = select->event_rows;
    operation->chosen_stride = select->event_stride;
    select->device->operations->attend_selected(stream, operation);
    for (size_t head = 0; head < heads; head++)
        select->event_counts[head] = (size_t)select_item_kept(item, head);
    struct error error;
    if (device_read(select->device, stream, select->event_q, operation->q + item->row * operation->q_stride,
                    q_size * sizeof *select->event_q, &error) != STATUS_OK)
        return;
    select->observer(select->observer_context, &(struct select_event){.layer_index = layer_index,
                                                                      .row = item->row,
                                                                      .position = item->position,
                                                                      .q = select->event_q,
                                                                      .view = item->view,
                                                                      .device = select->device,
                                                                      .stream = stream,
                                                                      .rows = select->event_rows,
                                                                      .row_counts = select->event_counts,
                                                                      .row_stride = select->event_stride,
                                                                      .certified = select->certified});
}

static struct attend_selected_operation selected_operation(struct select *select, size_t layer_index,
                                                           const struct attend_operation *operation) {
    return (struct attend_selected_operation){.q = operation->q,
                                              .q_stride = operation->q_stride,
                                              .out = operation->out,
                                              .out_stride = operation->out_stride,
                                              .head_count = operation->head_count,
                                              .kv_head_count = operation->kv_head_count,
                                              .scale = operation->scale,
                                              .softcap = operation->softcap,
                                              .layout = &select->layout,
                                              .weights = weights_of(select, layer_index),
                                              .mass_weight = 1,
                                              .certified = select->certified,
                                              .times = &select->statistics.times};
}

static void count_certified(struct select *select, const struct attend_selected_operation *operation) {
    if (operation->certified != NULL)
        certificates_add(&select->statistics.certified, operation->certified,
                         operation->item_count * operation->head_count);
}

/* One device operation over the rows of a batch, or one of them. */
static void attend_chosen(struct select *select, struct stream *stream, size_t layer_index,
                          struct attend_selected_operation *operation, bool observed) {
    struct tree_counts counts = {0};
    enum tree_level leaf = select->layout.tree.leaf;
    if (select->densities != NULL) {
        operation->tree_start = tree_density_start(&select->densities[layer_index], leaf, layer_index);
        operation->tree_counts = &counts;
    }
    if (observed)
        observe(select, stream, layer_index, operation, operation->items);
    else
        select->device->operations->attend_selected(stream, operation);
    count_certified(select, operation);
    if (counts.searches == 0) return;
    tree_density_add(&select->densities[layer_index], leaf, layer_index, operation->tree_start, &counts);
    tree_counts_add(&select->statistics.tree, &counts);
    for (enum tree_level level = 0; level < TREE_LEVEL_COUNT; level++)
        select->statistics.evaluated += counts.evaluated[level];
    select->statistics.evaluated += counts.lower;
}

/* Rows of a layer that everybody attends to. */
static void count_dense(struct select *select, const struct attend_operation *operation) {
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        for (size_t row = 0; row < item->row_count; row++) {
            uint64_t seen = (item->position_first + row + 1) * operation->kv_head_count;
            select->statistics.visible += seen;
            select->statistics.kept += seen;
        }
    }
}

enum status select_reserve_lists(struct select *select, size_t row_count, size_t guess_count,
                                 uint64_t kept_most, struct error *error) {
    size_t row_entries = select->shape.kv_head_count * (size_t)kept_most;
    TRY(room_reserve_lists(&select->room, row_count * row_entries, error));
    room_deinit(&select->guesses);
    if (guess_count == 0) return STATUS_OK;
    TRY(room_init(&select->guesses, guess_count, select->shape.kv_head_count, error));
    return room_reserve_lists(&select->guesses, guess_count * row_entries, error);
}

static enum status choose(struct select *select, struct stream *stream, size_t layer_index,
                          const struct attend_operation *operation, const struct select_rule *const *rules,
                          struct select_choice *choice, struct error *error) {
    size_t heads = operation->kv_head_count;
    choice->dense = select->room.dense;
    choice->dense_items = select->room.dense_items;
    choice->chosen = select->room.chosen;
    choice->chosen_items = select->room.chosen_items;
    plan_rows(select, layer_index, operation, rules, &choice->dense_count, &choice->chosen_count);
    for (size_t i = 0; i < choice->chosen_count; i++)
        choice->row_stride =
            max_size(choice->row_stride, (size_t)select_item_kept_most(&choice->chosen[i], heads));
    size_t entries = choice->chosen_count * heads * choice->row_stride;
    if (entries > select->room.lists_capacity)
        return error_set(error, STATUS_MEMORY, "select: lists of %zu rows, there is memory for %zu", entries,
                         select->room.lists_capacity);
    struct attend_selected_operation selected = selected_operation(select, layer_index, operation);
    selected.out = NULL;
    selected.certified = NULL;
    selected.mass_weight = 0;
    selected.items = select->room.chosen;
    selected.item_count = choice->chosen_count;
    selected.chosen = select->room.lists;
    selected.chosen_stride = choice->row_stride;
    if (choice->chosen_count > 0) attend_chosen(select, stream, layer_index, &selected, false);
    choice->rows = select->room.lists;
    return select->device->operations->stream_synchronize(stream, error);
}

enum status select_choose(struct select *select, struct stream *stream, size_t layer_index,
                          const struct attend_operation *operation, const struct select_rule *const *rules,
                          struct select_choice *choice, struct error *error) {
    *choice =
        (struct select_choice){.everything = operation->window != 0 || !layer_selects(select, layer_index)};
    if (!choice->everything) return choose(select, stream, layer_index, operation, rules, choice, error);
    count_dense(select, operation);
    return STATUS_OK;
}

enum status select_guess(struct select *select, struct stream *stream, size_t layer_index,
                         const struct attend_operation *operation, const struct select_rule *const *rules,
                         struct select_choice *choice, struct error *error) {
    *choice =
        (struct select_choice){.everything = operation->window != 0 || !layer_selects(select, layer_index)};
    if (choice->everything) return STATUS_OK;
    struct select_room own = select->room;
    struct select_statistics statistics = select->statistics;
    struct tree_density density = {0};
    if (select->densities != NULL) density = select->densities[layer_index];
    select->room = select->guesses;
    enum status status = choose(select, stream, layer_index, operation, rules, choice, error);
    select->room = own;
    if (select->densities != NULL) select->densities[layer_index] = density;
    select->statistics = statistics;
    return status;
}

/* The operation for some KV heads of one row, whose item becomes that of these heads. */
static struct attend_selected_operation selected_heads(struct select *select, size_t layer_index,
                                                       const struct attend_operation *operation,
                                                       struct select_item *item, size_t kv_head_first,
                                                       size_t kv_head_count) {
    size_t group = operation->head_count / operation->kv_head_count;
    struct attend_selected_operation selected = selected_operation(select, layer_index, operation);
    selected.q += kv_head_first * group * item->view.layout->k_dimension;
    selected.out += kv_head_first * group * item->view.layout->v_dimension;
    selected.head_count = group * kv_head_count;
    selected.kv_head_count = kv_head_count;
    if (selected.weights != NULL)
        selected.weights += select->layer_weights / select->shape.kv_head_count * kv_head_first;
    selected.mass_weight = 0;
    selected.items = item;
    selected.item_count = 1;
    if (item->picks != NULL) item->picks += kv_head_first;
    item->view.chunks += kv_head_first * item->view.chunk_stride;
    if (item->view.packed != NULL) item->view.packed += kv_head_first * item->view.chunk_stride;
    if (item->view.metadata != NULL) item->view.metadata += kv_head_first * item->view.chunk_stride;
    return selected;
}

void select_attend_chosen(struct select *select, struct stream *stream,
                          const struct attend_operation *operation, const struct select_choice *choice,
                          size_t index, size_t kv_head_first, size_t kv_head_count) {
    struct select_item heads = choice->chosen[index];
    struct attend_selected_operation selected =
        selected_heads(select, select->options.dense_layers, operation, &heads, kv_head_first, kv_head_count);
    selected.weights = NULL;
    selected.given = choice->rows + (index * operation->kv_head_count + kv_head_first) * choice->row_stride;
    selected.chosen_stride = choice->row_stride;
    select->device->operations->attend_selected(stream, &selected);
    count_certified(select, &selected);
}

bool select_attend_heads(struct select *select, struct stream *stream, size_t layer_index,
                         const struct attend_operation *operation, const struct select_rule *rule,
                         size_t kv_head_first, size_t kv_head_count) {
    const struct attend_item *item = &operation->items[0];
    struct select_item chosen = {.view = item->view, .row = item->row_first};
    ASSERT(operation->item_count == 1 && item->row_count == 1 && operation->window == 0);
    select->statistics.visible += (item->position_first + 1) * kv_head_count;
    if (!plan_heads(select, rule, layer_index, item->position_first, &chosen, select->room.picks)) {
        select->statistics.kept += (item->position_first + 1) * kv_head_count;
        return false;
    }
    chosen.view.packed = NULL; /* all of them are rows */
    count_chosen(select, &chosen, kv_head_first, kv_head_count);
    struct attend_selected_operation selected =
        selected_heads(select, layer_index, operation, &chosen, kv_head_first, kv_head_count);
    attend_chosen(select, stream, layer_index, &selected, false);
    return true;
}

void select_attend(struct select *select, struct stream *stream, size_t layer_index,
                   const struct attend_operation *operation, const struct select_rule *const *rules) {
    const struct device_operations *operations = select->device->operations;
    uint64_t began = clock_ns();
    if (operation->window != 0 || !layer_selects(select, layer_index)) {
        count_dense(select, operation);
        operations->attend(stream, operation);
        select->statistics.dense_ns += clock_ns() - began;
        return;
    }
    size_t dense_count, chosen_count;
    plan_rows(select, layer_index, operation, rules, &dense_count, &chosen_count);
    if (dense_count > 0) {
        struct attend_operation dense = *operation;
        dense.items = select->room.dense;
        dense.item_count = dense_count;
        operations->attend(stream, &dense);
        select->statistics.dense_ns += clock_ns() - began;
    }
    struct attend_selected_operation selected = selected_operation(select, layer_index, operation);
    /* One by one where somebody looks, and where a row's choice changes what the next one of its sequence sees. */
    bool several = operation->item_count < dense_count + chosen_count;
    size_t step =
        select->observer != NULL || (select->layout.kind == METADATA_MASS && several) ? 1 : chosen_count;
    for (size_t i = 0; i < chosen_count; i += step) {
        selected.items = select->room.chosen + i;
        selected.item_count = step;
        attend_chosen(select, stream, layer_index, &selected, select->observer != NULL);
    }
}

bool select_watches_prefill(const struct select *select) { return select->options.method->watches_prefill; }

void select_watch_prefill(struct select *select, struct stream *stream, size_t layer_index,
                          const struct attend_operation *operation) {
    if (!select_watches_prefill(select) || operation->window != 0 || !layer_selects(select, layer_index))
        return;
    struct attend_selected_operation selected = selected_operation(select, layer_index, operation);
    selected.out = NULL;
    selected.certified = NULL;
    selected.times = NULL;
    selected.mass_weight = SELECT_WATCH_INTERVAL;
    for (size_t i = 0; i < operation->item_count; i++) {
        const struct attend_item *item = &operation->items[i];
        for (size_t row = 0; row < item->row_count; row++) {
            uint64_t position = item->position_first + row;
            if (position % SELECT_WATCH_INTERVAL != SELECT_WATCH_INTERVAL - 1) continue;
            struct select_item whole = {
                .view = item->view, .row = item->row_first + row, .position = position};
            selected.items = &whole;
            selected.item_count = 1;
            select->device->operations->attend_selected(stream, &selected);
        }
    }
}
