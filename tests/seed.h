/* seed: what a randomised test draws from: a fixed number, so that a test says the same on every run, or the one that
 * LOAM_TEST_SEED gives.  `./do fuzz` gives every such test many.  A test that uses it says SEEDED in its loam_test. */
#ifndef LOAM_TESTS_SEED_H
#define LOAM_TESTS_SEED_H

#ifndef LOAM_TEST_SEEDED
#error "a test that draws from a seed says SEEDED in its loam_test, so that ./do fuzz runs it"
#endif

#include "testing.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Printed once, at once: what follows may end the process. */
static inline uint64_t test_seed(uint64_t fixed) {
    static bool is_said;
    const char *given = getenv("LOAM_TEST_SEED");
    char *end = NULL;
    uint64_t seed = given != NULL ? strtoull(given, &end, 0) : fixed;
    if (given != NULL && (end == given || *end != '\0')) {
        printf("LOAM_TEST_SEED=%s is no number\n", given);
        exit(2);
    }
    if (is_said) return seed;
    is_said = true;
    printf("seed %llu%s\n", (unsigned long long)seed, given != NULL ? " (LOAM_TEST_SEED)" : "");
    fflush(stdout);
    return seed;
}

#endif
