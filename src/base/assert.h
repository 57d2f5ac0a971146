/* ASSERT: what only a bug of ours can break.  On in release, so keep it O(1).
 * Never for anything that a file, a flag or a request can cause. */
#pragma once

_Noreturn void assert_failed(const char *expression, const char *file, int line);

#define ASSERT(expression) \
    (__builtin_expect(!(expression), 0) ? assert_failed(#expression, __FILE__, __LINE__) : (void)0)
