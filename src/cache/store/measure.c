/* How long pages of this disk take to be read, as the host tier reads them: at random, many at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "cache/store/store_internal.h"
#include "platform/clock.h"
#include "platform/memory.h"

enum { DEPTH = 64, ROUNDS = 3, ALONE = 16 /* pages that are read one after another */ };
static const uint64_t ROUND_NS = 8000000;

struct measurement {
    struct io_file file;
    struct io_queue *queue;
    uint8_t *memory; /* [DEPTH] places of place_bytes */
    size_t place_bytes;
    uint64_t bytes; /* of the file */
    struct random random;
};

static enum status write_file(struct measurement *m, struct error *error) {
    size_t bytes = DEPTH * m->place_bytes;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) /* what a disk cannot compress */
        *(uint64_t *)(void *)(m->memory + i) = random_next(&m->random);
    for (uint64_t done = 0; done < m->bytes; done += bytes)
        TRY(io_file_write(&m->file, done, m->memory,
                          m->bytes - done < bytes ? (size_t)(m->bytes - done) : bytes, error));
    return io_file_sync(&m->file, error);
}

static void submit(struct measurement *m, size_t page_bytes, size_t place) {
    const struct io_request request = {.operation = IO_READ,
                                       .file = &m->file,
                                       .offset = random_below(&m->random, m->bytes / page_bytes) * page_bytes,
                                       .memory = m->memory + place * m->place_bytes,
                                       .bytes = page_bytes,
                                       .tag = place};
    enum status status = io_queue_submit(m->queue, &request);
    ASSERT(status == STATUS_OK); /* as deep as there are places */
}

/* Seconds per page, over at least pages_min pages and ns_min. */
static enum status read_pages(struct measurement *m, size_t page_bytes, size_t depth, uint64_t ns_min,
                              size_t pages_min, double *seconds, struct error *error) {
    uint64_t began = clock_ns();
    size_t asked = 0, done = 0;
    for (; asked < depth; asked++) submit(m, page_bytes, asked);
    while (io_queue_in_flight(m->queue) > 0) {
        struct io_completion completions[DEPTH];
        size_t count = io_queue_wait(m->queue, completions, DEPTH, 1);
        for (size_t i = 0; i < count; i++, done++) {
            TRY(io_completion_error(&completions[i], error));
            if (asked >= pages_min && clock_ns() - began >= ns_min) continue;
            submit(m, page_bytes, (size_t)completions[i].request.tag);
            asked++;
        }
    }
    *seconds = (double)(clock_ns() - began) * 1e-9 / (double)done;
    return STATUS_OK;
}

/* The minimum of several rounds, in turns: what else the disk does can only make one longer. */
static enum status measure(struct measurement *m, const struct geometry *geometry, struct store_rates *rates,
                           struct error *error) {
    const size_t sizes[] = {geometry->page_bytes, geometry->tail_page_bytes};
    double *const found[] = {&rates->page_seconds, &rates->tail_seconds}, seconds;
    *rates = (struct store_rates){0};
    TRY(write_file(m, error));
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < 2; i++) {
            TRY(read_pages(m, sizes[i], DEPTH, ROUND_NS, DEPTH, &seconds, error));
            if (round == 0 || seconds < *found[i]) *found[i] = seconds;
        }
    /* Less to read is no slower: what says otherwise was something else. */
    if (geometry->page_bytes <= geometry->tail_page_bytes && rates->page_seconds > rates->tail_seconds)
        rates->page_seconds = rates->tail_seconds;
    return read_pages(m, geometry->page_bytes, 1, 0, ALONE, &rates->alone_seconds, error);
}

/* A file without a name: it is gone however we end. */
static enum status open_file(struct store *store, struct io_file *file, struct error *error) {
    char name[40];
    snprintf(name, sizeof name, "measure-%ld", (long)getpid());
    TRY(io_folder_remove(&store->folder, name, error)); /* of a process of that number that was killed here */
    TRY(io_file_open(file, &store->folder, name, IO_FILE_CREATE, true, error));
    return io_folder_remove(&store->folder, name, error);
}

/* In a transaction: others that want to reserve space wait until the file is gone. */
static enum status measure_within(struct store *store, struct measurement *m, const struct geometry *geometry,
                                  struct store_rates *rates, struct error *error) {
    TRY(catalog_begin(&store->catalog, error));
    enum status status = store_check_space(store, m->bytes, error);
    if (status == STATUS_OK) status = open_file(store, &m->file, error);
    if (status == STATUS_OK) status = measure(m, geometry, rates, error);
    io_queue_destroy(m->queue); /* first: it may have reads under way */
    io_file_close(&m->file);
    m->queue = NULL;
    catalog_rollback(&store->catalog);
    return status;
}

enum status store_measure(struct store *store, const struct store_layout *layout, uint64_t token_capacity,
                          uint64_t bytes, struct store_rates *rates, struct error *error) {
    struct geometry geometry;
    struct measurement m = {.file = {.fd = -1}};
    struct store_layout smallest = *layout;
    smallest.fractions.later_count = 0;
    memset(smallest.fractions.sixteenths, PAGE_FRACTION_WHOLE, smallest.fractions.layer_count);
    geometry_init(&geometry, &smallest);
    uint64_t bytes_max = document_bytes_max(&geometry, token_capacity);
    TRY(store_make_space(store, bytes_max, error));
    m.place_bytes = max_size(geometry.page_bytes, geometry.tail_page_bytes);
    m.bytes = (bytes < bytes_max ? bytes : bytes_max) / m.place_bytes * m.place_bytes;
    ASSERT(m.bytes > 0);
    random_init(&m.random, clock_ns());
    const struct io_queue_options options = {.backend = store->options.backend, .depth = DEPTH};
    m.memory = memory_area_create(DEPTH * m.place_bytes);
    enum status status = m.memory == NULL
                             ? error_set(error, STATUS_MEMORY, "measuring the disk: out of memory")
                             : io_queue_create(&m.queue, &options, error);
    if (status == STATUS_OK) status = measure_within(store, &m, &geometry, rates, error);
    io_queue_destroy(m.queue);
    memory_area_destroy(m.memory, DEPTH * m.place_bytes);
    return status;
}
