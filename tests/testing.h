/* testing: what every test file includes: cmocka with the headers it wants first. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* cmocka's assert_true with the message of a struct error. */
#define assert_ok(expression, error)                                                     \
    do {                                                                                 \
        if ((expression) != STATUS_OK) fail_msg("%s: %s", #expression, (error).message); \
    } while (0)
