/* A disk by random reads, as the host tier reads its pages: direct, many at once. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "platform/clock.h"
#include "platform/memory.h"
#include "rates/rates.h"

static const size_t WRITE_BYTES = 4 << 20;

struct disk_probe {
    struct disk_probe_options options;
    struct io_file file;
    struct io_queue *queue;
    uint8_t *memory; /* [DISK_PROBE_DEPTH] places, in huge pages: with small ones a large read is cut into pieces */
    uint64_t bytes;  /* of the file */
    struct random random;
};

static size_t memory_bytes(const struct disk_probe *probe) { return DISK_PROBE_DEPTH * probe->options.place_bytes; }

static enum status write_file(struct disk_probe *probe, double *seconds, struct error *error) {
    const size_t place = probe->options.place_bytes,
                 block = min_size(max_size(WRITE_BYTES / place * place, place), memory_bytes(probe));
    const uint64_t bytes = probe->options.bytes / place * place;
    ASSERT(bytes > 0);
    for (size_t i = 0; i < block; i += sizeof(uint64_t)) /* what a disk cannot compress */
        *(uint64_t *)(void *)(probe->memory + i) = random_next(&probe->random);
    const uint64_t began = clock_ns();
    const uint64_t most = probe->options.write_ns != 0 ? probe->options.write_ns : UINT64_MAX;
    while (probe->bytes < bytes && (probe->bytes == 0 || clock_ns() - began < most)) {
        const size_t part = bytes - probe->bytes < block ? (size_t)(bytes - probe->bytes) : block;
        TRY(io_file_write(&probe->file, probe->bytes, probe->memory, part, error));
        probe->bytes += part;
    }
    TRY(io_file_sync(&probe->file, error));
    if (seconds != NULL) *seconds = (double)(clock_ns() - began) * 1e-9 / (double)probe->bytes;
    return STATUS_OK;
}

static void submit(struct disk_probe *probe, size_t bytes, size_t place) {
    const struct io_request request = {.operation = IO_READ,
                                       .file = &probe->file,
                                       .offset = random_below(&probe->random, probe->bytes / bytes) * bytes,
                                       .memory = probe->memory + place * probe->options.place_bytes,
                                       .bytes = bytes,
                                       .tag = place};
    enum status status = io_queue_submit(probe->queue, &request);
    ASSERT(status == STATUS_OK); /* as deep as there are places */
}

enum status disk_probe_read(struct disk_probe *probe, const struct disk_probe_round *round, struct rate *rate,
                            struct error *error) {
    const uint64_t began = clock_ns();
    size_t asked = 0, done = 0;
    ASSERT(round->depth <= DISK_PROBE_DEPTH && round->bytes <= probe->options.place_bytes);
    for (; asked < round->depth; asked++) submit(probe, round->bytes, asked);
    while (io_queue_in_flight(probe->queue) > 0) {
        struct io_completion completions[DISK_PROBE_DEPTH];
        const size_t count = io_queue_wait(probe->queue, completions, DISK_PROBE_DEPTH, 1);
        for (size_t i = 0; i < count; i++, done++) {
            TRY(io_completion_error(&completions[i], error));
            if (asked >= round->reads_min && clock_ns() - began >= round->ns_min) continue;
            submit(probe, round->bytes, (size_t)completions[i].request.tag);
            asked++;
        }
    }
    rate_note(rate, (double)done, (double)(clock_ns() - began) * 1e-9);
    return STATUS_OK;
}

/* A file without a name: it is gone however we end. */
static enum status open_file(struct disk_probe *probe, struct error *error) {
    struct io_folder *folder = probe->options.folder;
    const struct io_queue_options options = {.backend = probe->options.backend, .depth = DISK_PROBE_DEPTH};
    char name[40];
    snprintf(name, sizeof name, "measure-%ld", (long)getpid());
    TRY(io_folder_remove(folder, name, error)); /* of a process of that number that was killed here */
    TRY(io_file_open(&probe->file, folder, name, IO_FILE_CREATE, true, error));
    TRY(io_folder_remove(folder, name, error));
    probe->memory = memory_area_create(memory_bytes(probe));
    if (probe->memory == NULL) return error_set(error, STATUS_MEMORY, "measuring the disk: out of memory");
    return io_queue_create(&probe->queue, &options, error);
}

enum status disk_probe_open(struct disk_probe **result, const struct disk_probe_options *options, double *write_seconds,
                            struct error *error) {
    struct disk_probe *probe = calloc(1, sizeof *probe);
    *result = NULL;
    if (probe == NULL) return error_set(error, STATUS_MEMORY, "measuring the disk: out of memory");
    probe->options = *options;
    probe->file.fd = -1;
    random_init(&probe->random, clock_ns());
    enum status status = open_file(probe, error);
    if (status == STATUS_OK) status = write_file(probe, write_seconds, error);
    if (status != STATUS_OK)
        disk_probe_close(probe);
    else
        *result = probe;
    return status;
}

void disk_probe_close(struct disk_probe *probe) {
    if (probe == NULL) return;
    io_queue_destroy(probe->queue); /* first: it may have reads under way */
    io_file_close(&probe->file);
    memory_area_destroy(probe->memory, memory_bytes(probe));
    free(probe);
}
