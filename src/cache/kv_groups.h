/* kv_groups: the geometry of each layer's KV.  Layers of equal geometry form a group; lanes are the KV heads of all
 * layers, one layer's after another's. */
#ifndef LOAM_CACHE_KV_GROUPS_H
#define LOAM_CACHE_KV_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_GROUPS_MAX = 4, KV_GROUPS_LAYERS_MAX = 1024 };

struct kv_geometry {
    size_t kv_head_count, k_dimension, v_dimension;
};

struct kv_group {
    struct kv_geometry geometry;
    size_t layer_count;
};

/* Made once (kv_groups_init), and read by all. */
struct kv_groups {
    size_t layer_count, group_count;
    struct kv_group list[KV_GROUPS_MAX];     /* in the order of their first layers */
    uint8_t of_layer[KV_GROUPS_LAYERS_MAX];  /* a layer's group, */
    uint16_t in_group[KV_GROUPS_LAYERS_MAX]; /* and its number there */
    uint32_t lane_first[KV_GROUPS_LAYERS_MAX +
                        1]; /* the first of a layer's lanes; behind the last: how many there are */
};

/* layers: [layer_count], at least one and at most KV_GROUPS_LAYERS_MAX.  false: more than KV_GROUPS_MAX geometries. */
bool kv_groups_init(struct kv_groups *groups, const struct kv_geometry *layers, size_t layer_count);
size_t kv_groups_heads_max(const struct kv_groups *groups); /* of any layer */
size_t kv_groups_layer(const struct kv_groups *groups, size_t lane);

#endif
