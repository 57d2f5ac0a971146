/* seed: what a randomised test draws from: a fixed number, so that a test says the same on every run, or the one that
 * LOAM_TEST_SEED gives.  `./do fuzz` gives every such test many.  A test that uses it says SEEDED in its loam_test.
 *
 * With LOAM_TEST_DIVISOR=N a long test runs one of N of its rounds for each seed, another one for another seed, and
 * skips what draws nothing: many seeds then cost hours, not days. */
#pragma once

#ifndef LOAM_TEST_SEEDED
#error "a test that draws from a seed says SEEDED in its loam_test, so that ./do fuzz runs it"
#endif

#include "testing.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static inline uint64_t test_number(const char *name, uint64_t otherwise) {
    const char *given = getenv(name);
    char *end = NULL;
    if (given == NULL) return otherwise;
    uint64_t number = strtoull(given, &end, 0);
    if (end == given || *end != '\0') {
        printf("%s=%s is no number\n", name, given);
        exit(2);
    }
    return number;
}

/* Without a word, for what a test only lies on. */
static inline uint64_t test_seed_unsaid(uint64_t fixed) { return test_number("LOAM_TEST_SEED", fixed); }

/* Printed once, at once: what follows may end the process. */
static inline uint64_t test_seed(uint64_t fixed) {
    static bool is_said;
    const bool given = getenv("LOAM_TEST_SEED") != NULL;
    const uint64_t seed = test_seed_unsaid(fixed);
    if (is_said) return seed;
    is_said = true;
    printf("seed %llu%s\n", (unsigned long long)seed, given ? " (LOAM_TEST_SEED)" : "");
    fflush(stdout);
    return seed;
}

static inline uint64_t test_divisor(void) {
    const uint64_t divisor = test_number("LOAM_TEST_DIVISOR", 1);
    return divisor > 0 ? divisor : 1;
}

/* Whether this seed's part has the round. */
static inline bool test_takes(uint64_t seed, uint64_t round) {
    return round % test_divisor() == seed % test_divisor();
}

/* Whether it has the next of this program's independent cases. */
static inline bool test_takes_next(void) {
    static uint64_t next;
    return test_takes(test_number("LOAM_TEST_SEED", 0), next++);
}

/* So many of independent cases; at least 1. */
static inline uint64_t test_part(uint64_t cases) {
    return cases > test_divisor() ? cases / test_divisor() : 1;
}

/* In a long test that draws nothing. */
static inline void test_skip_part(void) {
    if (test_divisor() > 1) skip();
}

/* Chance must have met what a test is about, or nothing was tested.  With the fixed seed it does, on every run; with
 * others that is luck. */
static inline bool test_is_fixed(void) { return getenv("LOAM_TEST_SEED") == NULL && test_divisor() == 1; }
#define assert_met(condition)                        \
    do {                                             \
        if (test_is_fixed()) assert_true(condition); \
    } while (0)
