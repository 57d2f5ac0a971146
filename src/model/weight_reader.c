#include "model/weight_reader.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/checked.h"
#include "platform/io_queue.h"

enum {
    COMPLETIONS = 64,
    READERS = 4, /* reads at the same time: 2.5 GB/s with 4, with 8 and with 16, bench/weights.sh */
};

struct weight_source {
    struct io_file file;
    uint8_t *tail;       /* owned; the bytes behind the last whole block */
    uint64_t tail_first; /* their offset */
    size_t tail_bytes;
};

bool weight_find(const struct gguf *gguf, const void *data, uint32_t *file, uint64_t *offset) {
    const uint8_t *first = data;
    for (uint32_t i = 0; first != NULL && i < gguf->file_count; i++) {
        const struct file_map *map = &gguf->maps[i];
        if (first < map->data || first >= map->data + map->size_bytes) continue;
        *file = i;
        *offset = (uint64_t)(first - map->data);
        return true;
    }
    return false;
}

struct weight_run weight_run_around(uint32_t file, uint64_t offset, uint64_t bytes) {
    const uint64_t begin = offset & ~(uint64_t)(IO_ALIGNMENT - 1);
    return (struct weight_run){file, begin, align_up(offset + bytes, IO_ALIGNMENT) - begin};
}

/* ---- opening ---- */

static enum status open_source(struct weight_source *source, const struct file_map *map, const struct io_faults *faults,
                               struct error *error) {
    struct io_file buffered;
    struct stat now;
    TRY(io_file_open_path(&source->file, map->path, true, faults, error));
    if (fstat(source->file.fd, &now) != 0) return error_set(error, STATUS_IO, "%s: its size is not known", map->path);
    if (now.st_dev != map->before.st_dev || now.st_ino != map->before.st_ino)
        return error_set(error, STATUS_MODEL, "%s: another file is there now: start again", map->path);
    TRY(file_map_check(map, error));
    source->tail_first = map->size_bytes & ~(uint64_t)(IO_ALIGNMENT - 1);
    source->tail_bytes = (size_t)(map->size_bytes - source->tail_first);
    source->tail = calloc(1, IO_ALIGNMENT);
    if (source->tail == NULL) return error_set(error, STATUS_MEMORY, "no memory to read weights");
    TRY(io_file_open_path(&buffered, map->path, false, faults, error));
    enum status status = io_file_read(&buffered, source->tail_first, source->tail, source->tail_bytes, error);
    io_file_close(&buffered);
    return status;
}

enum status weight_reader_open(struct weight_reader *reader, const struct gguf *gguf, uint64_t piece_bytes,
                               const struct io_faults *faults, struct error *error) {
    /* Threads: io_uring's submission of so much blocks the caller, who is to compute meanwhile, until the device's
     * queue takes the last of it. */
    const struct io_queue_options options = {
        .backend = IO_BACKEND_THREADS, .depth = WEIGHT_REQUESTS_MAX, .thread_count = READERS};
    reader->piece_bytes = piece_bytes;
    reader->sources = calloc(gguf->file_count, sizeof *reader->sources);
    if (reader->sources == NULL) return error_set(error, STATUS_MEMORY, "no memory to read weights");
    reader->direct = true;
    for (uint32_t i = 0; i < gguf->file_count; i++) {
        reader->source_count++;
        TRY(open_source(&reader->sources[i], &gguf->maps[i], faults, error));
        reader->direct &= reader->sources[i].file.direct;
    }
    return io_queue_create(&reader->queue, &options, error);
}

void weight_reader_close(struct weight_reader *reader) {
    io_queue_destroy(reader->queue); /* waits for what is on its way */
    for (size_t i = 0; i < reader->source_count; i++) {
        io_file_close(&reader->sources[i].file);
        free(reader->sources[i].tail);
    }
    free(reader->sources);
}

/* ---- reading ---- */

/* Bytes of a run that O_DIRECT can read; the rest is in the source's tail. */
static uint64_t whole_bytes(const struct weight_source *source, const struct weight_run *run) {
    if (run->offset + run->bytes <= source->tail_first) return run->bytes;
    return run->offset < source->tail_first ? source->tail_first - run->offset : 0;
}

size_t weight_reader_submit(struct weight_reader *reader, const struct weight_run *run, uint8_t *memory, uint64_t tag) {
    struct weight_source *source = &reader->sources[run->file];
    const uint64_t whole = whole_bytes(source, run);
    size_t count = 0;
    if (whole < run->bytes) memcpy(memory + whole, source->tail, source->tail_bytes);
    for (uint64_t done = 0; done < whole; done += reader->piece_bytes, count++) {
        const uint64_t left = whole - done;
        const struct io_request request = {.operation = IO_READ,
                                           .file = &source->file,
                                           .offset = run->offset + done,
                                           .memory = memory + done,
                                           .bytes = left < reader->piece_bytes ? (size_t)left : reader->piece_bytes,
                                           .tag = tag};
        enum status status = io_queue_submit(reader->queue, &request);
        ASSERT(status == STATUS_OK); /* callers count what is on its way */
        reader->read_bytes += request.bytes;
    }
    return count;
}

void weight_reader_flush(struct weight_reader *reader) { io_queue_flush(reader->queue); }

size_t weight_reader_collect(struct weight_reader *reader, size_t count_min, struct weight_arrival *arrivals,
                             size_t capacity) {
    struct io_completion done[COMPLETIONS];
    capacity = min_size(capacity, COMPLETIONS);
    size_t count = count_min > 0 ? io_queue_wait(reader->queue, done, capacity, count_min)
                                 : io_queue_poll(reader->queue, done, capacity);
    for (size_t i = 0; i < count; i++) {
        arrivals[i] = (struct weight_arrival){done[i].request.tag, done[i].status != STATUS_OK};
        if (done[i].status != STATUS_OK && reader->failure.status == STATUS_OK)
            (void)io_completion_error(&done[i], &reader->failure);
    }
    return count;
}
