#include "cache/kv_groups.h"

#include "base/assert.h"

bool kv_groups_init(struct kv_groups *groups, const struct kv_geometry *layers, const size_t *sources,
                    size_t layer_count) {
    ASSERT(layer_count > 0 && layer_count <= KV_GROUPS_LAYERS_MAX);
    *groups = (struct kv_groups){.layer_count = layer_count};
    for (size_t i = 0; i < layer_count; i++) {
        const struct kv_geometry *geometry = &layers[i];
        size_t number = 0;
        for (; number < groups->group_count; number++) {
            const struct kv_geometry *its = &groups->list[number].geometry;
            if (its->kv_head_count == geometry->kv_head_count && its->k_dimension == geometry->k_dimension &&
                its->v_dimension == geometry->v_dimension)
                break;
        }
        if (number == KV_GROUPS_MAX) return false;
        struct kv_group *group = &groups->list[number];
        if (number == groups->group_count) {
            group->geometry = *geometry;
            groups->group_count++;
        }
        const size_t source = sources != NULL ? sources[i] : i;
        ASSERT(source == i ? groups->stored_count == i
                           : source < groups->stored_count && groups->of_layer[source] == number);
        groups->of_layer[i] = (uint8_t)number;
        groups->source[i] = (uint16_t)source;
        groups->in_group[i] = source == i ? (uint16_t)group->layer_count++ : groups->in_group[source];
        groups->stored_count += source == i;
        groups->lane_first[i + 1] = groups->lane_first[i] + (uint32_t)geometry->kv_head_count;
    }
    return true;
}

size_t kv_groups_heads_max(const struct kv_groups *groups) {
    size_t heads = 0;
    for (size_t i = 0; i < groups->group_count; i++)
        if (groups->list[i].geometry.kv_head_count > heads) heads = groups->list[i].geometry.kv_head_count;
    return heads;
}

size_t kv_groups_with_heads(const struct kv_groups *groups) {
    size_t count = groups == NULL;
    for (size_t i = 0; groups != NULL && i < groups->group_count; i++)
        count += groups->list[i].geometry.kv_head_count > 0;
    return count;
}

/* The last layer that begins at the lane or before it. */
size_t kv_groups_layer(const struct kv_groups *groups, size_t lane) {
    size_t first = 0, end = groups->layer_count;
    while (end - first > 1) {
        const size_t middle = first + (end - first) / 2;
        if (groups->lane_first[middle] <= lane)
            first = middle;
        else
            end = middle;
    }
    return first;
}

size_t kv_layer_behind(const struct kv_groups *groups, size_t layer_count, size_t count) {
    size_t layer = 0;
    if (groups == NULL) return count < layer_count ? count : layer_count;
    for (; layer < layer_count; layer++)
        if (kv_layer_heads(groups, 0, layer) > 0 && count-- == 0) break;
    return layer;
}
