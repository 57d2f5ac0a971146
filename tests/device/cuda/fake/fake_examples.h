/* fake_examples: three kernels by which the fake driver itself is tested, on any machine and without clang's PTX. */
#pragma once

#include <stdint.h>

enum { EXAMPLE_THREADS = 32 };

/* example_add: y[i] = x[i] + *addend; a thread an element */
struct example_add_arguments {
    uint64_t x, y;   /* uint32_t [count] */
    uint64_t addend; /* uint32_t */
    uint32_t count;
    uint32_t is_careful; /* it waits for the kernel in front of it before it reads */
};

/* example_sum: *y += the sum of x; one thread */
struct example_sum_arguments {
    uint64_t x, y;
    uint32_t count, is_careful;
};

#define EXAMPLE_ADD                                                                                         \
    ".visible .entry example_add(\n.param .align 8 .b8 example_add_param_0[32]\n)\n{ griddepcontrol.wait; " \
    "ret; }\n"
#define EXAMPLE_SUM                                                                                         \
    ".visible .entry example_sum(\n.param .align 8 .b8 example_sum_param_0[24]\n)\n{ griddepcontrol.wait; " \
    "ret; }\n"
#define EXAMPLE_PTX    ".version 7.5\n.target sm_80\n.address_size 64\n" EXAMPLE_ADD EXAMPLE_SUM
#define EXAMPLE_PTX_90 ".version 8.0\n.target sm_90a\n.address_size 64\n" EXAMPLE_SUM
