/* head_budgets: how much of what a step keeps goes to each KV head.
 *
 * A head that loses nothing by its window alone need not choose at all, and what it would choose is worth more to a
 * head that retrieves.  The importance of a head (0..1) is what a calibration found: the gates of DuoAttention and CLO
 * (Eq. 15), or the layer-local surrogate (docs/calibration.md).  A head of importance a has the budget
 *
 *   HEAD_BUDGET_BASE + (1 - HEAD_BUDGET_BASE) a / mean(a)       at most HEAD_BUDGET_MAX, the rest divided again
 *
 * of an even part, and goes without the power `budget` of what it would go without evenly:
 *
 *   kept = visible (1 - (1 - keep / visible)^budget)
 *
 * That is budget * keep where keep is small, everything where keep is everything, and, being concave in the budget, on
 * average at most keep.  Ada-KV divides a layer's budget by attention weights in the prompt; this one needs no prompt
 * and divides that of all layers.  decision 0017.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HEAD_BUDGET_BASE 0.2
#define HEAD_BUDGET_MAX  2.0

/* budgets: [count], in: importance, none below 0; out: budgets, 1 on average.  Nothing important: all alike. */
void head_budgets_divide(double *budgets, size_t count);
/* Tokens, of visible ones, that a head with this budget keeps where an even division gives `keep` to each. */
uint64_t head_budget_keep(uint64_t keep, uint64_t visible, double budget);
