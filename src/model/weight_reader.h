/* weight_reader: parts of a model's files read into memory, many at a time, by O_DIRECT where the file system has it.
 *
 *   weight_reader_open -> (weight_reader_submit ..., weight_reader_collect ...) ... -> weight_reader_close
 *
 * The bytes behind a file's last whole block are read once, when it is opened.
 *
 * Thread: the model's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/gguf.h"
#include "platform/io_file.h"

enum {
    WEIGHT_PIECE_BYTES = 1 << 20, /* of a request, at least */
    WEIGHT_REQUESTS_MAX = 1024,   /* on their way at the same time */
};

/* Whole blocks of a file. */
struct weight_run {
    uint32_t file;
    uint64_t offset, bytes; /* multiples of IO_ALIGNMENT */
};

struct weight_reader {
    struct io_queue *queue;        /* owned */
    struct weight_source *sources; /* owned; [source_count] */
    size_t source_count;
    size_t piece_bytes;   /* of a request */
    struct error failure; /* the first read that failed since the caller has cleared it */
    uint64_t read_bytes;  /* so far */
    bool direct;          /* O_DIRECT */
};

/* Where mapped data lies; false: in no file of the model. */
bool weight_find(const struct gguf *gguf, const void *data, uint32_t *file, uint64_t *offset);
/* So many bytes at an offset, as whole blocks. */
struct weight_run weight_run_around(uint32_t file, uint64_t offset, uint64_t bytes);

/* Of a zeroed reader, which is to be closed after a failure, too.  piece_bytes: a multiple of IO_ALIGNMENT.
 * STATUS_MODEL: another file is there now. */
enum status weight_reader_open(struct weight_reader *reader, const struct gguf *gguf, uint64_t piece_bytes,
                               const struct io_faults *faults, struct error *error) STATUS_CHECKED;
void weight_reader_close(struct weight_reader *reader); /* waits for what is on its way */

/* Begins to read a run into memory; returns the requests that will arrive with this tag.  At most
 * WEIGHT_REQUESTS_MAX may be on their way. */
size_t weight_reader_submit(struct weight_reader *reader, const struct weight_run *run, uint8_t *memory, uint64_t tag);
void weight_reader_flush(struct weight_reader *reader);

struct weight_arrival {
    uint64_t tag;
    bool failed;
};
/* What has arrived since; waits for at least count_min.  Returns how many were stored. */
size_t weight_reader_collect(struct weight_reader *reader, size_t count_min, struct weight_arrival *arrivals,
                             size_t capacity);
