/* What io_queue reads and writes per second, beside fio on the same file at the same block size and depth.
 *
 *     bench_io [--file PATH] [--size MIB] [--seconds S] [--backend io_uring|threads] [--no-fio] [--rounds N]
 *
 * Random reads of 4, 16, 32 and 256 KiB at depth 1, 8 and 32, and a sequential write of 1 MiB blocks at depth 8, all
 * with O_DIRECT.  Each row is measured in turns (loam, fio, loam, ...), medians of the rounds; fio runs with
 * io_uring at the same depth.  Prints CSV to standard output; the file is made when it is not there, and left
 * there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/random.h"
#include "platform/clock.h"
#include "platform/cpu.h"
#include "platform/io_queue.h"

enum { ROUNDS_MAX = 15, DEPTH_LARGEST = 32, MIB = 1 << 20, LAY_BYTES = 1 << 20 };

struct settings {
    char folder[256], name[128];
    uint64_t size_bytes;
    double seconds;
    enum io_backend backend;
    bool with_fio;
    size_t rounds;
};

static void fail(const char *what) {
    fprintf(stderr, "bench_io: %s\n", what);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

struct run {
    struct io_queue *queue;
    struct io_file *file;
    uint8_t *memory; /* [DEPTH_LARGEST][block] */
    uint64_t size_bytes;
};

/* Keeps `depth` requests in flight for so many seconds; bytes per second. */
static double run_loam(const struct run *run, enum io_operation operation, size_t block, size_t depth,
                       double seconds, uint64_t seed) {
    struct random random;
    random_init(&random, seed);
    struct io_completion done[DEPTH_LARGEST];
    struct error error;
    uint64_t blocks = run->size_bytes / block, next = 0, moved = 0;
    uint64_t begin = clock_ns(), end = begin + (uint64_t)(seconds * 1e9);
    size_t slots[DEPTH_LARGEST], free_count = depth;
    for (size_t i = 0; i < depth; i++) slots[i] = i;
    for (;;) {
        bool more = clock_ns() < end;
        while (more && free_count > 0) {
            size_t slot = slots[--free_count];
            uint64_t at = operation == IO_READ ? random_below(&random, blocks) : next++ % blocks;
            struct io_request request = {operation, run->file, at * block, run->memory + slot * block,
                                         block,     slot};
            ASSERT(io_queue_submit(run->queue, &request) == STATUS_OK);
        }
        if (!more && free_count == depth) break;
        size_t count = io_queue_wait(run->queue, done, depth, 1);
        for (size_t i = 0; i < count; i++) {
            if (io_completion_error(&done[i], &error) != STATUS_OK) fail(error.message);
            slots[free_count++] = done[i].request.tag;
            moved += block;
        }
    }
    return (double)moved / ((double)(clock_ns() - begin) * 1e-9);
}

/* fio's bytes per second, or 0. */
static double run_fio(const struct settings *settings, enum io_operation operation, size_t block,
                      size_t depth, unsigned seed) {
    char command[1024], line[4096];
    snprintf(
        command, sizeof command,
        "fio --name=t --filename='%s/%s' --size=%llu --rw=%s --bs=%zu --iodepth=%zu --ioengine=io_uring "
        "--direct=1 "
        "--time_based --runtime=%.0fms --norandommap --randseed=%u --output-format=terse --terse-version=3 "
        "2>/dev/null",
        settings->folder, settings->name, (unsigned long long)settings->size_bytes,
        operation == IO_READ ? "randread" : "write", block, depth, settings->seconds * 1e3, seed);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL) return 0;
    double bandwidth = 0; /* field 7 of the terse line (from 1): read KiB/s; field 48: write KiB/s */
    while (fgets(line, sizeof line, pipe) != NULL) {
        char *field = line;
        for (int number = 1; field != NULL; number++) {
            char *rest = strchr(field, ';');
            if (number == (operation == IO_READ ? 7 : 48)) bandwidth = strtod(field, NULL) * 1024;
            field = rest == NULL ? NULL : rest + 1;
        }
    }
    return pclose(pipe) == 0 ? bandwidth : 0;
}

static void measure(const struct settings *settings, const struct run *run, enum io_operation operation,
                    size_t block, size_t depth) {
    double loam[ROUNDS_MAX], fio[ROUNDS_MAX];
    for (size_t i = 0; i < settings->rounds; i++) {
        loam[i] = run_loam(run, operation, block, depth, settings->seconds, i + 1);
        fio[i] = settings->with_fio ? run_fio(settings, operation, block, depth, (unsigned)i + 100) : 0;
    }
    double ours = median(loam, settings->rounds), theirs = median(fio, settings->rounds);
    printf("%s,%s,%zu,%zu,%.0f,%.1f,%.1f,%.1f,", operation == IO_READ ? "random read" : "sequential write",
           io_queue_backend(run->queue) == IO_BACKEND_URING ? "io_uring" : "threads", block, depth,
           ours / (double)block, ours * 1e-6, loam[0] * 1e-6, loam[settings->rounds - 1] * 1e-6);
    if (theirs > 0)
        printf("%.1f,%.3f\n", theirs * 1e-6, ours / theirs);
    else
        printf(",\n");
    fflush(stdout);
}

/* Real data over the whole file: reading a hole measures nothing. */
static void lay(struct io_file *file, uint64_t size_bytes, uint8_t *memory) {
    struct error error;
    uint64_t have;
    if (io_file_size(file, &have, &error) != STATUS_OK) fail(error.message);
    struct random random;
    random_init(&random, 1);
    for (size_t i = 0; i < LAY_BYTES; i += 8) memcpy(memory + i, &(uint64_t){random_next(&random)}, 8);
    for (uint64_t at = have / LAY_BYTES * LAY_BYTES; at < size_bytes; at += LAY_BYTES)
        if (io_file_write(file, at, memory, LAY_BYTES, &error) != STATUS_OK) fail(error.message);
    if (io_file_sync(file, &error) != STATUS_OK) fail(error.message);
}

static void parse(struct settings *settings, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--no-fio") == 0) {
            settings->with_fio = false;
            continue;
        }
        i++;
        if (strcmp(name, "--file") == 0) {
            const char *slash = strrchr(value, '/');
            if (slash != NULL)
                snprintf(settings->folder, sizeof settings->folder, "%.*s", (int)(slash - value), value);
            snprintf(settings->name, sizeof settings->name, "%s", slash != NULL ? slash + 1 : value);
        } else if (strcmp(name, "--size") == 0)
            settings->size_bytes = strtoull(value, NULL, 0) * MIB;
        else if (strcmp(name, "--seconds") == 0)
            settings->seconds = strtod(value, NULL);
        else if (strcmp(name, "--backend") == 0)
            settings->backend = strcmp(value, "threads") == 0 ? IO_BACKEND_THREADS : IO_BACKEND_URING;
        else if (strcmp(name, "--rounds") == 0)
            settings->rounds = strtoull(value, NULL, 0);
        else
            fail("usage: bench_io [--file PATH] [--size MIB] [--seconds S] [--backend io_uring|threads] "
                 "[--no-fio] "
                 "[--rounds N]");
    }
    if (settings->rounds < 1 || settings->rounds > ROUNDS_MAX || settings->size_bytes < MIB)
        fail("rounds or size");
}

int main(int argc, char **argv) {
    struct settings settings = {".", "bench_io.data", (uint64_t)1024 * MIB, 1, IO_BACKEND_AUTOMATIC, true, 3};
    parse(&settings, argc, argv);
    struct error error;
    struct io_folder folder;
    struct io_file file;
    struct run run = {.file = &file, .size_bytes = settings.size_bytes};
    run.memory = aligned_alloc(IO_ALIGNMENT, (size_t)DEPTH_LARGEST * MIB);
    if (run.memory == NULL) fail("out of memory");
    memset(run.memory, 1, (size_t)DEPTH_LARGEST * MIB);
    if (io_folder_open(&folder, settings.folder, IO_FOLDER_READ, NULL, &error) != STATUS_OK)
        fail(error.message);
    enum io_file_mode mode =
        faccessat(folder.fd, settings.name, F_OK, 0) == 0 ? IO_FILE_UPDATE : IO_FILE_CREATE;
    if (io_file_open(&file, &folder, settings.name, mode, true, &error) != STATUS_OK) fail(error.message);
    if (!file.direct) fprintf(stderr, "bench_io: no O_DIRECT here: this measures the page cache\n");
    lay(&file, settings.size_bytes, run.memory);
    const struct io_queue_options options = {.backend = settings.backend, .depth = DEPTH_LARGEST};
    if (io_queue_create(&run.queue, &options, &error) != STATUS_OK) fail(error.message);
    bool registered = io_queue_register_memory(run.queue, run.memory, (size_t)DEPTH_LARGEST * MIB);
    printf("# %s; %llu MiB, %g s a run, %zu rounds in turns, buffers %sregistered\n", cpu_model_name(),
           (unsigned long long)(settings.size_bytes / MIB), settings.seconds, settings.rounds,
           registered ? "" : "not ");
    printf(
        "what,backend,block,depth,loam_iops,loam_mb_per_s,loam_least,loam_most,fio_mb_per_s,ratio_to_fio\n");
    static const size_t blocks[] = {4096, 16384, 32768, 262144}, depths[] = {1, 8, 32};
    for (size_t b = 0; b < 4; b++)
        for (size_t d = 0; d < 3; d++) measure(&settings, &run, IO_READ, blocks[b], depths[d]);
    measure(&settings, &run, IO_WRITE, MIB, 8);
    io_queue_destroy(run.queue);
    io_file_close(&file);
    io_folder_close(&folder);
    free(run.memory);
    return 0;
}
