/* bench_kernels: each kernel at the shapes of real models, beside what the machine can do at most.
 *
 *   bench_kernels [--op NAME] [--type NAME] [--threads N] [--inputs N] [--mask WORD] [--shape ROWSxCOLUMNS]
 *                 [--buffer MIB] [--seconds S] [--csv]
 *
 * Memory-bound kernels: GB/s of weights beside the read bandwidth, measured before and after each case on the
 * same buffer, alternating with the kernel; the ratio of medians is what counts on a noisy machine.  The
 * weights are cycled through a buffer larger than the caches. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/pool.h"

static void usage(void) {
    fprintf(stderr,
            "usage: bench_kernels [--op matvec|matmul|attention|selection|codec] [--type T] [--threads N] "
            "[--inputs N] [--mask WORD]\n"
            "                     [--shape ROWSxCOLUMNS] [--buffer MIB] [--seconds S] [--csv]\n");
    exit(2);
}

static const char *argument(int argc, char **argv, int *i) {
    if (*i + 1 >= argc) usage();
    return argv[++*i];
}

int bench_pools(const struct bench_options *options,
                void (*run)(const struct bench_options *options, struct pool *pool, void *context),
                void *context) {
    size_t first = options->threads ? options->threads : 1,
           last = options->threads ? options->threads : cpu_count();
    for (size_t threads = first; threads <= last; threads = threads < last ? last : last + 1) {
        struct pool *pool;
        struct error error;
        if (pool_create(&pool, threads, &error) != STATUS_OK) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        run(options, pool, context);
        pool_destroy(pool);
    }
    return 0;
}

int main(int argc, char **argv) {
    struct bench_options options = {.mask = cpu_features(), .seconds = 0.5, .inputs = 1};
    struct error error;
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i];
        if (strcmp(flag, "--csv") == 0) {
            options.csv = true;
        } else if (strcmp(flag, "--op") == 0) {
            options.op = argument(argc, argv, &i);
        } else if (strcmp(flag, "--type") == 0) {
            options.type = argument(argc, argv, &i);
        } else if (strcmp(flag, "--threads") == 0) {
            options.threads = strtoul(argument(argc, argv, &i), NULL, 10);
        } else if (strcmp(flag, "--inputs") == 0) {
            options.inputs = strtoul(argument(argc, argv, &i), NULL, 10);
        } else if (strcmp(flag, "--buffer") == 0) {
            options.buffer_mib = strtoul(argument(argc, argv, &i), NULL, 10);
        } else if (strcmp(flag, "--seconds") == 0) {
            options.seconds = strtod(argument(argc, argv, &i), NULL);
        } else if (strcmp(flag, "--shape") == 0) {
            if (sscanf(argument(argc, argv, &i), "%zux%zu", &options.rows, &options.columns) != 2) usage();
        } else if (strcmp(flag, "--mask") == 0) {
            if (cpu_mask_parse(argument(argc, argv, &i), &options.mask, &error) != STATUS_OK) {
                fprintf(stderr, "%s\n", error.message);
                return 2;
            }
        } else {
            usage();
        }
    }
    if (options.op != NULL && strcmp(options.op, "matmul") == 0) return bench_matmul(&options);
    if (options.op != NULL && strcmp(options.op, "attention") == 0) return bench_attention(&options);
    if (options.op != NULL && strcmp(options.op, "selection") == 0) return bench_selection(&options);
    if (options.op != NULL && strcmp(options.op, "codec") == 0) return bench_codec(&options);
    if (options.op == NULL || strcmp(options.op, "matvec") == 0) return bench_matvec(&options);
    usage();
}
