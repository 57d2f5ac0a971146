/* select_method: what a file of a method needs beside select.h. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "attention/select.h"
#include "base/assert.h"
#include "base/checked.h"

enum {
    SELECT_WATCH_INTERVAL = 16, /* of a prompt's queries, one in so many is watched */
    SELECT_PAGE = 16,           /* tokens of a page, unless options say */
};

/* A name of --set, of a number (size_t), a flag (bool) or one of a few words, at offset in struct select_options. */
struct select_setting {
    const char *name;
    const char *words; /* for people: "a or b"; NULL: a number */
    size_t offset;     /* of words: those of struct select_word count */
    bool is_flag;
};
/* Of a double within min and max; bounds: for people. */
struct select_real {
    const char *name;
    size_t offset;
    double min, max;
    const char *bounds;
};
/* A word that a name takes, and the enum's value that it stands for. */
struct select_word {
    const char *name, *word;
    size_t offset;
    unsigned value;
};
struct select_settings {
    const struct select_setting *settings; /* [setting_count] */
    const struct select_real *reals;       /* [real_count] */
    const struct select_word *words;       /* [word_count] */
    size_t setting_count, real_count, word_count;
};
/* Before main, once: a program's names beside loam's own. */
void select_settings_add(const struct select_settings *more);

/* No key index. */
enum status select_layout_none(struct key_index_layout *layout, const struct select_shape *shape,
                               const struct select_options *options, struct error *error) STATUS_CHECKED;
/* A score per token, of which `page` are picked together if that is given. */
enum status select_layout_tokens(struct key_index_layout *layout, const struct select_options *options,
                                 struct error *error) STATUS_CHECKED;
/* How scores are combined over a group: what the options say, or else the method's own. */
static inline enum score_aggregate select_aggregate(const struct select_options *options, enum score_aggregate own) {
    switch (options->group) {
    case SELECT_GROUP_OWN: break;
    case SELECT_GROUP_MAX: return SCORE_MAX;
    case SELECT_GROUP_SUM: return SCORE_SUM;
    case SELECT_GROUP_SOFTMAX: return SCORE_SOFTMAX;
    }
    return own;
}
/* An abstract of one kind per page. */
enum status select_layout_pages(struct key_index_layout *layout, const struct select_shape *shape,
                                const struct select_options *options, enum abstract_kind kind, struct error *error)
    STATUS_CHECKED;

enum status select_layout_abstracts(struct key_index_layout *layout, const struct select_shape *shape,
                                    const struct select_options *options, size_t page, enum abstract_kind kind,
                                    struct error *error) STATUS_CHECKED;

/* The layouts of the key index that the options come to, by group of layers (cache/kv_groups.h): of one kind, and
 * alike in what is not the dimension's.  Returns in *count how many there are, one where all layers are alike. */
enum status select_options_layouts(struct key_index_layout layouts[KV_GROUPS_MAX], size_t *count,
                                   const struct select_options *options, const struct select_shape *shape,
                                   struct error *error) STATUS_CHECKED;
/* Of a block beside a chunk that holds any of them. */
size_t select_layouts_bytes(const struct key_index_layout *layouts, size_t count);
/* The shape of a layer of such a group. */
static inline struct select_shape select_group_shape(const struct select_shape *shape, size_t group) {
    struct select_shape own = *shape;
    if (shape->groups == NULL) return own;
    const struct kv_geometry *geometry = &shape->groups->list[group].geometry;
    own.groups = NULL;
    own.kv_head_count = geometry->kv_head_count;
    own.k_dimension = geometry->k_dimension;
    own.v_dimension = geometry->v_dimension;
    return own;
}
/* Of keep that goes to the most recent tokens, if that is more than `recent`. */
static inline double select_recent_fraction(const struct select_options *options) {
    return options->recent_fraction > options->method->recent_fraction ? options->recent_fraction
                                                                       : options->method->recent_fraction;
}
/* Whether options.units_min counts. */
static inline bool select_has_units_min(const struct select_options *options, const struct select_rule *rule) {
    return rule->keep.ratio > 0 && !rule->window_only && options->units_min > 0;
}
/* Tokens of a unit of options.units_min: a page, a leaf, a single token, or as many as a cluster has on average, which
 * are ranked together. */
static inline uint64_t select_piece_tokens(const struct key_index_layout *layout) {
    return layout->kind == KEY_INDEX_CLUSTER ? KV_CHUNK_TOKENS / layout->cluster_count : layout->unit_tokens;
}
/* How many of the visible rows a rule keeps, before it is cut to those that there are. */
uint64_t select_keep_tokens(struct select_keep keep, uint64_t visible);

/* NULL: there is no calibration, or nothing of this kind in it for this layer. */
const uint16_t *select_calibration_find(const struct select_calibration *calibration, const char *kind,
                                        size_t layer_index, size_t *columns);
