/* planted_runs: kernels with bugs, apart from the test: a bug may end the program. */
#pragma once

#include "seed.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cuda/executor.h"
#include "device/cuda/planted_text.h"

/* ThreadSanitizer sees the races of these bugs as well, and would fail the test for them: here they are known by what
 * they compute.  test_races.c has those that it must name. */
#ifndef RACES_ARE_NAMED
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void) { return "report_bugs=0"; }
#endif

enum { SEEDS = 20 };
/* Of a seed: a bug that one order in five shows is missed by none of 20 seeds, but for one time in 10,000. */
enum { ORDERS = 64 };
extern uint32_t planted_bug;

/* What it returns, or -1 if it fails or a signal ends it, and what it says, of a child of this process. */
static inline int run_apart(int (*work)(int bug, uint64_t seed), int bug, uint64_t seed, char *text,
                            size_t text_bytes) {
    int ends[2], result;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        end_at_failure();
        _exit(work(bug, seed));
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], text + length, text_bytes - 1 - length)) > 0;)
        length += (size_t)got;
    text[length] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFEXITED(result) ? WEXITSTATUS(result) : -1;
}

/* One child for all seeds, or, where a bug ends it, for those that follow: a fork takes longer than a small kernel. */
static struct {
    int (*work)(int bug, uint64_t seed); /* 0: what it gives is right */
    uint64_t *done;                      /* seeds; shared with the child */
} seeds;
static inline int seeds_are_wrong(int bug, uint64_t seed) {
    while (*seeds.done < SEEDS && seeds.work(bug, seed + *seeds.done) != 0) ++*seeds.done;
    return *seeds.done == SEEDS;
}

/* Each of [begin, end), and no bug, with all seeds. */
static inline void bugs_of_text_are_seen(int (*work)(int bug, uint64_t seed), int begin, int end, uint64_t seed) {
    char text[4096];
    seeds.work = work;
    seeds.done = mmap(NULL, sizeof *seeds.done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(seeds.done != MAP_FAILED);
    for (uint64_t i = 0; i < SEEDS; i++)
        if (work(TEXT_RIGHT, seed + i) != 0) fail_msg("no bug, seed %llu", (unsigned long long)(seed + i));
    for (int bug = begin; bug < end; bug++)
        for (*seeds.done = 0; *seeds.done < SEEDS; ++*seeds.done) /* of the one that ended a child, too */
            if (run_apart(seeds_are_wrong, bug, seed, text, sizeof text) == 0)
                fail_msg("bug %d with seed %llu: %s", bug, (unsigned long long)(seed + *seeds.done), text);
    munmap(seeds.done, sizeof *seeds.done);
}
