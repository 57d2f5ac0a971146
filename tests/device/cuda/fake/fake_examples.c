/* The example kernels.  Blocks run in random order; a block's threads one after another. */
#include "device/cuda/fake/fake_examples.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "device/cuda/fake/fake_internal.h"

struct fake_kernel {
    const char *name;
    size_t argument_bytes;
    void (*run)(const void *arguments, uint64_t thread);
};

static void (*preceding)(void *context); /* NULL: done, or there was nothing */
static void *preceding_context;

static void preceding_wait(void) {
    void (*work)(void *) = preceding;
    preceding = NULL;
    if (work != NULL) work(preceding_context);
}

static uint32_t *words(uint64_t address) { return (uint32_t *)(uintptr_t)address; }

static void add_run(const void *arguments, uint64_t thread) {
    const struct example_add_arguments *add = arguments;
    if (add->is_careful) preceding_wait();
    if (thread < add->count) words(add->y)[thread] = words(add->x)[thread] + *words(add->addend);
}

static void sum_run(const void *arguments, uint64_t thread) {
    const struct example_sum_arguments *sum = arguments;
    if (sum->is_careful) preceding_wait();
    for (uint32_t i = 0; thread == 0 && i < sum->count; i++) *words(sum->y) += words(sum->x)[i];
}

static const struct fake_kernel kernels[] = {{"example_add", sizeof(struct example_add_arguments), add_run},
                                             {"example_sum", sizeof(struct example_sum_arguments), sum_run}};

const struct fake_kernel *fake_kernel_find(const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

size_t fake_kernel_arguments(const struct fake_kernel *kernel) { return kernel->argument_bytes; }

void fake_kernel_launch(const struct fake_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                        uint32_t shared_bytes, const void *arguments, uint64_t seed,
                        void (*precede)(void *context), void *context) {
    (void)shared_bytes;
    void (*outer)(void *) = preceding;
    void *outer_context = preceding_context;
    preceding = precede;
    preceding_context = context;
    struct random chance;
    random_init(&chance, seed);
    uint32_t *order = calloc(grid[0], sizeof *order);
    if (order == NULL) abort();
    for (uint32_t i = 0; i < grid[0]; i++) {
        const uint32_t other = (uint32_t)random_below(&chance, i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    for (uint32_t i = 0; i < grid[0]; i++)
        for (uint32_t t = 0; t < block[0]; t++) kernel->run(arguments, (uint64_t)order[i] * block[0] + t);
    free(order);
    preceding_wait(); /* at the latest at its end */
    preceding = outer;
    preceding_context = outer_context;
}
