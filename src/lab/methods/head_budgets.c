#include "lab/methods/head_budgets.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "attention/select.h"
#include "cache/kv_groups.h"

/* What is above HEAD_BUDGET_MAX goes to those below it, in proportion.  Whether anything was above. */
static bool level_off(double *budgets, size_t count) {
    double over = 0, below = 0;
    for (size_t i = 0; i < count; i++)
        if (budgets[i] > HEAD_BUDGET_MAX) {
            over += budgets[i] - HEAD_BUDGET_MAX;
            budgets[i] = HEAD_BUDGET_MAX;
        } else if (budgets[i] < HEAD_BUDGET_MAX)
            below += budgets[i];
    for (size_t i = 0; i < count && below > 0; i++)
        if (budgets[i] < HEAD_BUDGET_MAX) budgets[i] *= 1 + over / below;
    return over > 0 && below > 0;
}

void head_budgets_divide(double *budgets, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += budgets[i];
    for (size_t i = 0; i < count; i++)
        budgets[i] = sum > 0 ? HEAD_BUDGET_BASE + (1 - HEAD_BUDGET_BASE) * budgets[i] * (double)count / sum : 1;
    for (size_t round = 0; round < count && level_off(budgets, count); round++) {} /* each fills at least one */
}

uint64_t head_budget_keep(uint64_t keep, uint64_t visible, double budget) {
    if (keep >= visible) return keep;
    double kept = (double)visible * (1 - pow(1 - (double)keep / (double)visible, budget));
    return (uint64_t)(kept + 1e-6); /* a budget of 1 is keep, whatever was rounded */
}

/* A KV head's importance is that of the most important of the `group` query heads that share its choice. */
static double kv_head_importance(const float *layer, size_t group, size_t kv_head) {
    double importance_max = 0;
    for (size_t i = 0; i < group; i++) importance_max = fmax(importance_max, (double)layer[kv_head * group + i]);
    return importance_max;
}

static enum status load(double **budgets, const struct select_shape *shape, size_t layer_first,
                        const struct select_calibration *calibration, const char **fallback, struct error *error) {
    const size_t layers = shape->layer_count;
    if (layer_first >= layers) return STATUS_OK;
    if (calibration == NULL || calibration->head_importance == NULL) {
        if (*fallback == NULL)
            *fallback = "heads=importance: no calibration of this model was found; every head keeps as much";
        return STATUS_OK;
    }
    const size_t lanes = kv_layer_lane(shape->groups, shape->kv_head_count, layers, 0),
                 first = kv_layer_lane(shape->groups, shape->kv_head_count, layer_first, 0);
    *budgets = calloc(lanes, sizeof **budgets);
    if (*budgets == NULL) return error_set(error, STATUS_MEMORY, "select: out of memory");
    for (size_t layer = layer_first; layer < layers; layer++) {
        const size_t heads = kv_layer_heads(shape->groups, shape->kv_head_count, layer),
                     lane = kv_layer_lane(shape->groups, shape->kv_head_count, layer, 0);
        for (size_t head = 0; head < heads; head++)
            (*budgets)[lane + head] = kv_head_importance(calibration->head_importance + layer * shape->head_count,
                                                         shape->head_count / heads, head);
    }
    head_budgets_divide(*budgets + first, lanes - first);
    return STATUS_OK;
}

__attribute__((constructor)) static void add(void) {
    static const struct select_division by_importance = {load, head_budget_keep, HEAD_BUDGET_MAX};
    select_division = &by_importance;
}
