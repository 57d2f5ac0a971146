/* What select's options mean before there is a select: the methods, their settings, and the layout of the key index
 * that follows from them.  See select.h. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "attention/select_method.h"
#include "device/key_sample.h"

const struct select_division *select_division;

/* ---- methods ---- */

const struct select_method *select_methods[SELECT_METHODS_MAX] = {&select_all, &select_window, &select_meanstd,
                                                                  &select_hash, &select_tree};
size_t select_method_count = 5;

void select_method_add(const struct select_method *method) {
    ASSERT(select_method_count < SELECT_METHODS_MAX);
    select_methods[select_method_count++] = method;
}

const char *select_method_names(char *buffer, size_t buffer_bytes) {
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < select_method_count && used < buffer_bytes; i++)
        used +=
            (size_t)snprintf(buffer + used, buffer_bytes - used, "%s%s", i > 0 ? ", " : "", select_methods[i]->name);
    return buffer;
}

const struct select_method *select_method_find(const char *name) {
    for (size_t i = 0; i < select_method_count; i++)
        if (strcmp(select_methods[i]->name, name) == 0) return select_methods[i];
    return NULL;
}

/* ---- settings ---- */

struct select_options select_options_default(void) {
    return (struct select_options){.method = &select_all,
                                   .keep = select_keep_all(),
                                   .sinks = 4,
                                   .recent = 64,
                                   .dense_layers = 2,
                                   .units_min = 11,
                                   .partitions = 2,
                                   .codebook = 1024,
                                   .leaf = 8,
                                   .listed = 1,
                                   .estimate = true,
                                   .sampled_keys = 4,
                                   .norms = true,
                                   .reuse = reuse_options_default()};
}

/* The settings of --set that are not axes, as parsing and help need them: numbers, flags and words. */
static const struct select_setting settings[] = {
    {"sinks", NULL, offsetof(struct select_options, sinks), false},
    {"recent", NULL, offsetof(struct select_options, recent), false},
    {"dense", NULL, offsetof(struct select_options, dense_layers), false},
    {"units_min", NULL, offsetof(struct select_options, units_min), false},
    {"exact_below", NULL, offsetof(struct select_options, exact_below), false},
    {"page", NULL, offsetof(struct select_options, page), false},
    {"bits", NULL, offsetof(struct select_options, bits), false},
    {"planes", NULL, offsetof(struct select_options, planes), false},
    {"leaf", NULL, offsetof(struct select_options, leaf), false},
    {"rank", "bound or meanstd", 0, false},
    {"receipt", NULL, offsetof(struct select_options, receipt), true},
    {"group", "max, sum or softmax", 0, false},
    {"code", "sign or level", 0, false},
    {"age", NULL, offsetof(struct select_options, reuse.age), false},
    {"labels", "speculated or exact", 0, false},
};
/* Numbers with a fraction. */
static const struct select_real real_settings[] = {
    {"loss", offsetof(struct select_options, loss), 0, 1, "a share of the attention, 0 to 1; 0: keep decides"},
    {"reused", offsetof(struct select_options, reuse.reused), 0, 1, "a fraction of the lists, 0 to 1"},
};
static const struct select_word setting_words[] = {
    {"rank", "bound", offsetof(struct select_options, rank), TREE_BOUND},
    {"rank", "meanstd", offsetof(struct select_options, rank), TREE_MEAN_DEVIATION},
    {"group", "max", offsetof(struct select_options, group), SELECT_GROUP_MAX},
    {"group", "sum", offsetof(struct select_options, group), SELECT_GROUP_SUM},
    {"group", "softmax", offsetof(struct select_options, group), SELECT_GROUP_SOFTMAX},
    {"code", "sign", offsetof(struct select_options, code), SELECT_CODE_SIGN},
    {"code", "level", offsetof(struct select_options, code), SELECT_CODE_LEVEL},
    {"labels", "speculated", offsetof(struct select_options, reuse.labels), REUSE_SPECULATED},
    {"labels", "exact", offsetof(struct select_options, reuse.labels), REUSE_EXACT},
};

/* loam's, and those that a program adds. */
static const struct select_settings *tables[] = {
    &(const struct select_settings){settings, real_settings, setting_words, sizeof settings / sizeof *settings,
                                    sizeof real_settings / sizeof *real_settings,
                                    sizeof setting_words / sizeof *setting_words},
    NULL};
enum { TABLES = sizeof tables / sizeof *tables };

void select_settings_add(const struct select_settings *more) {
    ASSERT(tables[TABLES - 1] == NULL);
    tables[TABLES - 1] = more;
}

const char *select_setting_name(size_t index, const char **words) {
    *words = NULL;
    for (size_t t = 0; t < TABLES && tables[t] != NULL; t++) {
        const struct select_settings *table = tables[t];
        if (index < table->setting_count) {
            *words = table->settings[index].words;
            return table->settings[index].name;
        }
        index -= table->setting_count;
        if (index < table->real_count) return table->reals[index].name;
        index -= table->real_count;
    }
    return NULL;
}

static const struct select_setting *setting_find(const char *name) {
    for (size_t t = 0; t < TABLES && tables[t] != NULL; t++)
        for (size_t i = 0; i < tables[t]->setting_count; i++)
            if (strcmp(tables[t]->settings[i].name, name) == 0) return &tables[t]->settings[i];
    return NULL;
}

bool select_setting_is_flag(const char *name) {
    const struct select_setting *setting = setting_find(name);
    return setting != NULL && setting->is_flag;
}

bool select_option_set(struct select_options *options, const char *name, uint64_t value) {
    const struct select_setting *setting = setting_find(name);
    if (setting == NULL || setting->words != NULL) return false;
    unsigned char *target = (unsigned char *)options + setting->offset;
    size_t number = (size_t)value;
    bool flag = value != 0;
    if (setting->is_flag)
        memcpy(target, &flag, sizeof flag);
    else
        memcpy(target, &number, sizeof number);
    /* Two ways to give a code's length: the later one counts, as a user's behind a preset's. */
    if (strcmp(name, "bits") == 0) options->planes = 0;
    if (strcmp(name, "planes") == 0) options->bits = 0;
    return true;
}

bool select_option_set_real(struct select_options *options, const char *name, double value, const char **bounds) {
    *bounds = NULL;
    for (size_t t = 0; t < TABLES && tables[t] != NULL; t++)
        for (size_t i = 0; i < tables[t]->real_count; i++) {
            const struct select_real *setting = &tables[t]->reals[i];
            if (strcmp(setting->name, name) != 0) continue;
            *bounds = setting->bounds;
            if (!(value >= setting->min && value <= setting->max)) return false;
            memcpy((unsigned char *)options + setting->offset, &value, sizeof value);
            return true;
        }
    return false;
}

bool select_option_set_word(struct select_options *options, const char *name, const char *word, const char **words) {
    const struct select_setting *setting = setting_find(name);
    *words = setting != NULL ? setting->words : NULL;
    for (size_t t = 0; t < TABLES && tables[t] != NULL; t++)
        for (size_t i = 0; i < tables[t]->word_count; i++) {
            const struct select_word *row = &tables[t]->words[i];
            if (strcmp(row->name, name) != 0 || strcmp(row->word, word) != 0) continue;
            memcpy((unsigned char *)options + row->offset, &row->value, sizeof row->value);
            return true;
        }
    return false;
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
                     "--keep: found '%.40s', expected a number of tokens (2048, 8K) or a fraction (10%%, 0.1)", text);
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

/* ---- what they come to ---- */

struct select_rule select_rule_of(const struct select_options *options) {
    bool everything = options->keep.ratio == 0 && options->keep.tokens == UINT64_MAX;
    return (struct select_rule){.dense = options->method == &select_all ||
                                         (everything && !options->gather_all && options->loss == 0),
                                .window_only = options->method->recent_fraction == 1,
                                .keep = options->keep};
}

uint64_t select_keep_tokens(struct select_keep keep, uint64_t visible) {
    if (keep.ratio > 0) return (uint64_t)ceil(keep.ratio * (double)visible);
    return keep.tokens;
}

enum { SAMPLED_KEYS_LIMIT = 16 };

static enum status add_samples(struct key_index_layout *layout, const struct select_options *options,
                               const struct select_shape *shape, struct error *error) {
    if (options->loss > 0 && select_recent_fraction(options) > 0)
        return error_set(error, STATUS_USAGE,
                         "select=%s: loss= needs a method that picks all its tokens by a score, and "
                         "recent_fraction=0; quest, "
                         "meanstd, hash, lowrank, tree, cluster, pq and exact are such methods",
                         options->method->name);
    if ((!options->receipt && options->loss == 0) || options->method == &select_all) return STATUS_OK;
    if (options->sampled_keys == 0 || options->sampled_keys > SAMPLED_KEYS_LIMIT)
        return error_set(error, STATUS_USAGE, "sampled_keys=%zu, expected 1 to %d of each 64", options->sampled_keys,
                         SAMPLED_KEYS_LIMIT);
    layout->sample_count = options->sampled_keys;
    layout->sample_offset = layout->bytes;
    layout->bytes += align_up(key_sample_bytes(layout->sample_count, shape->k_dimension), 64);
    return STATUS_OK;
}

/* What alpha compares must be products of query and key. */
static enum status check_alpha(const struct select_options *options, const struct key_index_layout *layout,
                               struct error *error) {
    const bool by_product = layout->kind == KEY_INDEX_PARTIAL || layout->kind == KEY_INDEX_LEVEL ||
                            layout->kind == KEY_INDEX_PRODUCT || layout->kind == KEY_INDEX_KEYS;
    if (options->alpha == 0 || (by_product && layout->aggregate != SCORE_SUM)) return STATUS_OK;
    return error_set(error, STATUS_USAGE,
                     "select=%s: alpha=%g needs scores that are products of query and key, of lowrank, pq, exact or "
                     "hash with code=level, by group=max or softmax",
                     options->method->name, options->alpha);
}

static enum status layout_of(struct key_index_layout *layout, const struct select_options *options,
                             const struct select_shape *shape, struct error *error) {
    *layout = (struct key_index_layout){.unit_tokens = 1};
    TRY(options->method->layout(layout, shape, options, error));
    TRY(check_alpha(options, layout, error));
    layout->bytes = align_up(layout->bytes, 64);
    TRY(add_samples(layout, options, shape, error));
    if (!options->mass_bound || layout->has_bounds || options->method == &select_all) return STATUS_OK;
    return error_set(error, STATUS_USAGE,
                     "select=%s: mass_bound=1 needs bounds of keys, which quest, meanstd and tree have",
                     options->method->name);
}

enum status select_options_layouts(struct key_index_layout layouts[KV_GROUPS_MAX], size_t *count,
                                   const struct select_options *options, const struct select_shape *shape,
                                   struct error *error) {
    *count = shape->groups != NULL ? shape->groups->group_count : 1;
    for (size_t i = 0; i < *count; i++) {
        const struct select_shape own = select_group_shape(shape, i);
        TRY(layout_of(&layouts[i], options, &own, error));
        if (layouts[i].kind != layouts[0].kind)
            return error_set(error, STATUS_UNSUPPORTED,
                             "select=%s: layers with keys of %zu and of %zu numbers would have key indexes of "
                             "two kinds: try --set code=sign",
                             options->method->name, select_group_shape(shape, 0).k_dimension, own.k_dimension);
    }
    return STATUS_OK;
}

enum status select_options_run_on(const struct select_options *options, const struct select_shape *shape,
                                  const struct device *device, struct error *error) {
    struct key_index_layout layouts[KV_GROUPS_MAX];
    size_t count;
    if (device == NULL || options->method == NULL || options->method == &select_all) return STATUS_OK;
    TRY(select_options_layouts(layouts, &count, options, shape, error));
    const char *instead = "";
    for (size_t i = 0; i < count && instead[0] == '\0'; i++) {
        const bool has_kind = (device->key_indexes >> layouts[i].kind & 1) != 0;
        if (!has_kind)
            instead = "--preset full";
        else if (device->chooses_by != NULL)
            instead = device->chooses_by(&layouts[i], (float)options->alpha);
    }
    if (instead[0] == '\0') return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED, "select=%s: the %s device cannot choose so: try %s",
                     options->method->name, device->name, instead);
}

enum status select_options_unit(const struct select_options *options, const struct select_shape *shape, uint64_t *unit,
                                struct error *error) {
    struct key_index_layout layouts[KV_GROUPS_MAX];
    size_t count;
    TRY(select_options_layouts(layouts, &count, options, shape, error));
    *unit = layouts[0].unit_tokens;
    return STATUS_OK;
}

size_t select_layouts_bytes(const struct key_index_layout *layouts, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) bytes = max_size(bytes, layouts[i].bytes);
    return bytes;
}

enum status select_options_key_index_bytes(const struct select_options *options, const struct select_shape *shape,
                                           size_t *bytes, struct error *error) {
    struct key_index_layout layouts[KV_GROUPS_MAX];
    size_t count;
    TRY(select_options_layouts(layouts, &count, options, shape, error));
    *bytes = select_layouts_bytes(layouts, count);
    return STATUS_OK;
}

/* As plan_row has it: the best, or the window alone, which reaches back to the unit before it.  A list that is reused
 * is longer. */
enum status select_options_kept_max(const struct select_options *options, const struct select_shape *shape,
                                    uint64_t context_size, uint64_t *kept, struct error *error) {
    struct key_index_layout layouts[KV_GROUPS_MAX];
    size_t count;
    TRY(select_options_layouts(layouts, &count, options, shape, error));
    const struct key_index_layout *layout = &layouts[0]; /* of all, what follows is the same */
    struct select_rule rule = select_rule_of(options);
    uint64_t unit = rule.window_only ? 1 : layout->unit_tokens, sinks = align_up(options->sinks, unit);
    uint64_t keep = select_keep_tokens(options->keep, context_size), recent = options->recent;
    if (keep > context_size || options->gather_all) keep = context_size;
    uint64_t width = rule.window_only ? (keep > sinks ? keep - sinks : 0)
                                      : (uint64_t)(select_recent_fraction(options) * (double)keep);
    if (key_index_needs_full_chunks(layout) && recent < KV_CHUNK_TOKENS) recent = KV_CHUNK_TOKENS;
    uint64_t window = sinks + (width > recent ? width : recent) + unit - 1;
    const uint64_t pick_min = options->units_min * select_piece_tokens(layout);
    if (select_has_units_min(options, &rule) && keep < window + pick_min) keep = window + pick_min;
    if (keep > context_size) keep = context_size;
    if (options->heads == SELECT_HEADS_IMPORTANCE)
        keep = select_division->keep(keep, context_size, select_division->budget_max) + unit;
    *kept = rule.dense ? 0 : keep > window ? keep : window;
    if (options->reuse.kind == REUSE_SIMILARITY && *kept > 0) /* its window grows; without an age by a chunk at most */
        *kept += options->reuse.age > 0 ? options->reuse.age : KV_CHUNK_TOKENS;
    if (*kept > context_size) *kept = context_size;
    return STATUS_OK;
}
