/* Random reads of a file by size and depth, and writing it. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/random.h"
#include "measure/measure_internal.h"
#include "platform/clock.h"
#include "platform/io_queue.h"

/* The median round counts: a disk is shared with others for longer than a measurement takes, so its usual rate is what
 * steps get, not its best one. */
enum { DEPTH_MAX = 64, READS_MIN = 8, ROUNDS = 5 };
static const uint64_t FILE_BYTES = (uint64_t)192 << 20, FILE_BYTES_SHORT = (uint64_t)16 << 20,
                      READ_NS = 10000000;
static const size_t WRITE_BYTES = 4 << 20;

struct disk {
    struct io_folder folder;
    struct io_file file;
    struct io_queue *queue;
    struct device *device;
    struct buffer shared; /* owned MEMORY_SHARED */
    uint8_t *memory;      /* its; [DEPTH_MAX] places of the largest request */
    uint64_t bytes;       /* of the file */
    struct random random;
};

static size_t memory_bytes(void) { return DEPTH_MAX * (size_t)machine_disk_bytes[MACHINE_DISK_SIZES - 1]; }

static enum status write_file(struct disk *disk, double *rate, struct error *error) {
    for (size_t i = 0; i < WRITE_BYTES; i += sizeof(uint64_t)) /* what a disk cannot compress */
        *(uint64_t *)(void *)(disk->memory + i) = random_next(&disk->random);
    const uint64_t began = clock_ns();
    for (uint64_t done = 0; done < disk->bytes; done += WRITE_BYTES)
        TRY(io_file_write(&disk->file, done, disk->memory, WRITE_BYTES, error));
    TRY(io_file_sync(&disk->file, error));
    *rate = (double)disk->bytes * 1e9 / (double)(clock_ns() - began);
    return STATUS_OK;
}

static void submit(struct disk *disk, size_t bytes, size_t place) {
    const struct io_request request = {.operation = IO_READ,
                                       .file = &disk->file,
                                       .offset = random_below(&disk->random, disk->bytes / bytes) * bytes,
                                       .memory =
                                           disk->memory + place * machine_disk_bytes[MACHINE_DISK_SIZES - 1],
                                       .bytes = bytes,
                                       .tag = place};
    enum status status = io_queue_submit(disk->queue, &request);
    ASSERT(status == STATUS_OK); /* as deep as there are places */
}

static enum status read_rate(struct disk *disk, size_t bytes, size_t depth, double *rate,
                             struct error *error) {
    const uint64_t began = clock_ns();
    size_t asked = 0, done = 0;
    for (; asked < depth; asked++) submit(disk, bytes, asked);
    while (io_queue_in_flight(disk->queue) > 0) {
        struct io_completion completions[DEPTH_MAX];
        const size_t count = io_queue_wait(disk->queue, completions, DEPTH_MAX, 1);
        for (size_t i = 0; i < count; i++, done++) {
            TRY(io_completion_error(&completions[i], error));
            if (asked >= READS_MIN && clock_ns() - began >= READ_NS) continue;
            submit(disk, bytes, (size_t)completions[i].request.tag);
            asked++;
        }
    }
    *rate = (double)(done * bytes) * 1e9 / (double)(clock_ns() - began);
    return STATUS_OK;
}

/* A file without a name: it is gone however we end. */
static enum status open_file(struct disk *disk, const char *directory, struct error *error) {
    const struct io_queue_options options = {.depth = DEPTH_MAX};
    char name[40];
    snprintf(name, sizeof name, "measure-%ld", (long)getpid());
    TRY(io_folder_open(&disk->folder, directory, IO_FOLDER_CREATE, NULL, error));
    TRY(io_folder_remove(&disk->folder, name, error));
    TRY(io_file_open(&disk->file, &disk->folder, name, IO_FILE_CREATE, true, error));
    TRY(io_folder_remove(&disk->folder, name, error));
    /* The tier's kind of memory: with small pages a read of 1 MiB is 256 pieces, at half the speed on some disks. */
    TRY(disk->device->operations->allocate(disk->device, MEMORY_SHARED, memory_bytes(), &disk->shared,
                                           error));
    disk->memory = disk->shared.host;
    return io_queue_create(&disk->queue, &options, error);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* In turns, so that what else the disk does is not in one of the numbers alone. */
static enum status read_rates(struct disk *disk, struct machine *machine, struct error *error) {
    double rates[MACHINE_DISK_SIZES][MACHINE_DISK_DEPTHS][ROUNDS];
    TRY(write_file(disk, &machine->disk_write, error));
    for (size_t round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
            for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++)
                TRY(read_rate(disk, machine_disk_bytes[i], machine_disk_depths[j], &rates[i][j][round],
                              error));
    for (size_t i = 0; i < MACHINE_DISK_SIZES; i++)
        for (size_t j = 0; j < MACHINE_DISK_DEPTHS; j++) {
            qsort(rates[i][j], ROUNDS, sizeof rates[i][j][0], by_size);
            machine->disk_read[i][j] = rates[i][j][ROUNDS / 2];
        }
    return STATUS_OK;
}

enum status measure_disk(struct measurement *measurement, struct error *error) {
    struct disk disk = {.device = measurement->device,
                        .folder = {.fd = -1},
                        .file = {.fd = -1},
                        .bytes = measurement->options->is_short ? FILE_BYTES_SHORT : FILE_BYTES};
    TRY(measure_part(measurement, "disk", error));
    random_init(&disk.random, 1);
    enum status status = open_file(&disk, measurement->folder.path, error);
    if (status == STATUS_OK) status = read_rates(&disk, measurement->machine, error);
    io_queue_destroy(disk.queue); /* first: it may have reads under way */
    io_file_close(&disk.file);
    io_folder_close(&disk.folder);
    disk.device->operations->release(disk.device, &disk.shared);
    return status;
}
