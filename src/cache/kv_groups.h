/* kv_groups: the geometry of each layer's KV, and whose KV it is.  Layers of equal geometry form a group; lanes are the
 * KV heads of all layers, one layer's after another's.  A layer that attends to the KV of another one has a lane for
 * each head, as it chooses by queries of its own, and stores nothing: such layers are the last ones. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_GROUPS_MAX = 4, KV_GROUPS_LAYERS_MAX = 1024 };

struct kv_geometry {
    size_t kv_head_count, k_dimension, v_dimension;
};

struct kv_group {
    struct kv_geometry geometry;
    size_t layer_count; /* that store KV */
};

/* Made once (kv_groups_init), and read by all. */
struct kv_groups {
    size_t layer_count, stored_count, group_count; /* stored_count: the first ones have KV of their own */
    struct kv_group list[KV_GROUPS_MAX];           /* in the order of their first layers */
    uint8_t of_layer[KV_GROUPS_LAYERS_MAX];        /* a layer's group, */
    uint16_t in_group[KV_GROUPS_LAYERS_MAX];       /* and its number there, */
    uint16_t source[KV_GROUPS_LAYERS_MAX];         /* of those that store: the layer whose KV it attends to */
    uint32_t
        lane_first[KV_GROUPS_LAYERS_MAX + 1]; /* the first of a layer's lanes; behind the last: how many there are */
};

/* layers: [layer_count], at least one and at most KV_GROUPS_LAYERS_MAX.  sources: [layer_count], each layer itself, or
 * one before it of the same geometry, and then in all layers that follow; NULL: each itself.  false: more than
 * KV_GROUPS_MAX geometries. */
bool kv_groups_init(struct kv_groups *groups, const struct kv_geometry *layers, const size_t *sources,
                    size_t layer_count);
size_t kv_groups_heads_max(const struct kv_groups *groups); /* of any layer */
/* Groups of layers that have K and V; groups NULL: 1. */
size_t kv_groups_with_heads(const struct kv_groups *groups);
size_t kv_groups_layer(const struct kv_groups *groups, size_t lane);

/* The first layer with K and V behind so many of those (groups NULL: all are); or how many layers there are. */
size_t kv_layer_behind(const struct kv_groups *groups, size_t layer_count, size_t count);

/* Of layers that differ, by groups, or, groups NULL, that all have kv_head_count heads: KV heads of a layer; and a
 * head's lane (layer may be how many layers there are). */
static inline size_t kv_layer_heads(const struct kv_groups *groups, size_t kv_head_count, size_t layer) {
    return groups != NULL ? groups->list[groups->of_layer[layer]].geometry.kv_head_count : kv_head_count;
}
/* Whose KV it attends to. */
static inline size_t kv_layer_source(const struct kv_groups *groups, size_t layer) {
    return groups != NULL ? groups->source[layer] : layer;
}
static inline size_t kv_layer_lane(const struct kv_groups *groups, size_t kv_head_count, size_t layer, size_t kv_head) {
    return (groups != NULL ? groups->lane_first[layer] : layer * kv_head_count) + kv_head;
}
