/* testing: what every test file includes: cmocka with the headers it wants first. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* cmocka's assert_true with the message of a struct error. */
#define assert_ok(expression, error)                                                     \
    do {                                                                                 \
        if ((expression) != STATUS_OK) fail_msg("%s: %s", #expression, (error).message); \
    } while (0)

/* In a child: a failed assertion, and a signal that cmocka catches, end it.  cmocka would go on with the next test. */
static inline void end_at_failure(void) { (void)setenv("CMOCKA_TEST_ABORT", "1", 1); }
