/* sample_machine: the numbers of no machine, for tests: every one is there, and they are of a plausible size. */
#pragma once

#include <stdio.h>

#include "plan/machine.h"

static inline void sample_machine_selection(struct machine_selection *selection, double factor) {
    selection->seconds = 5e-6 * factor;
    selection->score = (struct machine_by_group){6e-10 * factor, 9e-10 * factor};
    selection->rows = (struct machine_by_group){8e-9 * factor, 1.2e-8 * factor};
}

/* Of steps, and of prefill blocks. */
static inline struct machine_threads sample_machine_threads(double step, double block) {
    return (struct machine_threads){.narrow = step,
                                    .wide = step,
                                    .block = block,
                                    .layer = step,
                                    .token = block,
                                    .attend = step,
                                    .attend_block = block,
                                    .select = step};
}

/* factor(context): each number is multiplied by its own. */
static inline struct machine sample_machine(double (*factor)(void *context), void *context) {
    struct machine machine;
    machine_init(&machine);
    snprintf(machine.processor, sizeof machine.processor, "sample");
    snprintf(machine.kernels, sizeof machine.kernels, "avx2");
    machine.thread_count = 4;
    machine.memory.all = 3e10 * factor(context);
    machine.memory.copy = 8e9 * factor(context);
    for (uint32_t i = 0; i < MACHINE_TYPES; i++)
        if (tensor_type_find(i) != NULL && tensor_type_find(i)->is_weight)
            machine.matrices[i] = (struct machine_matrix){1e10 * factor(context), 2e10 * factor(context),
                                                          3e11 * factor(context)};
    for (size_t i = 0; (1U << i) < machine.thread_count; i++) /* 1 and 2 of 4: a quarter and a half of the speed */
        machine.threads[i] = sample_machine_threads((double)(1U << i) / machine.thread_count * factor(context),
                                                    (double)(1U << i) / machine.thread_count * factor(context));
    machine.layer_seconds = 5e-6 * factor(context);
    machine.layer_token_seconds = 1e-6 * factor(context);
    machine.attend_f16 = (struct machine_by_group){3e10 * factor(context), 2e10 * factor(context)};
    machine.attend_q8 = (struct machine_by_group){2e10 * factor(context), 2e10 * factor(context)};
    machine.attend_block = 1e11 * factor(context);
    for (size_t i = 0; i < MACHINE_SELECTIONS_MAX; i++)
        if (machine.selections[i].name != NULL)
            sample_machine_selection(&machine.selections[i], factor(context));
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++)
            machine.disk.read[i][j] = 1e8 * (double)(1 + i) * (double)(1 + j) * factor(context);
    machine.disk.write = 8e8 * factor(context);
    machine.tier.page_seconds = 1e-6 * factor(context);
    return machine;
}
