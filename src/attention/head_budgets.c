#include "attention/head_budgets.h"

#include <math.h>
#include <stdbool.h>

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
        budgets[i] =
            sum > 0 ? HEAD_BUDGET_BASE + (1 - HEAD_BUDGET_BASE) * budgets[i] * (double)count / sum : 1;
    for (size_t round = 0; round < count && level_off(budgets, count); round++) {
    } /* each fills at least one */
}

uint64_t head_budget_keep(uint64_t keep, uint64_t visible, double budget) {
    if (keep >= visible) return keep;
    double kept = (double)visible * (1 - pow(1 - (double)keep / (double)visible, budget));
    return (uint64_t)(kept + 1e-6); /* a budget of 1 is keep, whatever was rounded */
}
