/* stream_checks: what streams and memory promise, on a twin: copies, host work beside an operation, memory
 * that is zeros, memory that the device reads too. */
#pragma once

#include "twin.h"

#include "device/cuda/cuda_device_internal.h"

/* Larger than what is staged at once, both ways; and results come with the synchronisation. */
static inline void transfers_match(struct twin *twin) {
    const struct device_operations *operations = twin_operations(twin, TWIN_CUDA);
    struct stream *stream = twin->stream[TWIN_CUDA];
    enum { COUNT = 900000, PARTS = 60 };
    struct twin_floats x, y;
    struct error error;
    twin_floats_make(twin, &x, MEMORY_DEVICE, COUNT, 1);
    twin_floats_make(twin, &y, MEMORY_SHARED, COUNT, 1);
    operations->copy(stream, twin_span(&y, TWIN_CUDA), twin_span(&x, TWIN_CUDA), COUNT * sizeof(float));
    const struct ticket ticket = operations->ticket(stream);
    assert_ok(operations->ticket_wait(ticket, &error), error);
    assert_true(operations->ticket_done(ticket));
    assert_memory_equal(y.on[TWIN_CUDA].host, x.before, COUNT * sizeof(float));
    twin_floats_read(twin, &x);
    assert_memory_equal(x.after[TWIN_CUDA], x.before, COUNT * sizeof(float));

    float small[PARTS][3], parts[PARTS][3];
    for (size_t i = 0; i < PARTS; i++) {
        for (size_t k = 0; k < 3; k++) small[i][k] = (float)(i * 3 + k), parts[i][k] = -1;
        operations->upload(stream, span_floats(twin_span(&x, TWIN_CUDA), i * 5), small[i], sizeof small[i]);
        memset(small[i], 0x7f, sizeof small[i]); /* it has been read */
        operations->download(stream, parts[i], span_floats(twin_span(&x, TWIN_CUDA), i * 5), sizeof parts[i]);
    }
    assert_ok(operations->stream_synchronize(stream, &error), error);
    for (size_t i = 0; i < PARTS; i++)
        for (size_t k = 0; k < 3; k++) assert_true(parts[i][k] == (float)(i * 3 + k));
    twin_floats_free(twin, &x), twin_floats_free(twin, &y);
}

static inline void count_one(void *context) { ++*(int *)context; }

static inline void overlap_is_done_once(struct twin *twin) {
    const struct device_operations *operations = twin_operations(twin, TWIN_CUDA);
    struct stream *stream = twin->stream[TWIN_CUDA];
    struct twin_floats x;
    struct error error;
    int count = 0;
    twin_floats_make(twin, &x, MEMORY_DEVICE, 100, 1);
    operations->overlap(stream, count_one, &count);
    assert_int_equal(count, 0);
    operations->copy(stream, twin_span(&x, TWIN_CUDA), span_floats(twin_span(&x, TWIN_CUDA), 50), 40);
    assert_int_equal(count, 1);
    operations->overlap(stream, count_one, &count);
    assert_ok(operations->stream_synchronize(stream, &error), error);
    assert_int_equal(count, 2);
    assert_ok(operations->stream_synchronize(stream, &error), error);
    assert_int_equal(count, 2);
    twin_floats_free(twin, &x);
}

static inline void memory_is_zeros(struct twin *twin) {
    const struct device_operations *operations = twin_operations(twin, TWIN_CUDA);
    for (size_t bytes = 1; bytes < 300000; bytes = bytes * 7 + 3) {
        struct buffer buffer;
        struct error error;
        uint8_t *read = malloc(bytes);
        assert_ok(operations->allocate(twin->device[TWIN_CUDA], MEMORY_DEVICE, bytes, &buffer, &error),
                  error);
        assert_null(buffer.host);
        assert_ok(device_read(twin->device[TWIN_CUDA], twin->stream[TWIN_CUDA], read, span_of(&buffer, 0),
                              bytes, &error),
                  error);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(read[i], 0);
        operations->release(twin->device[TWIN_CUDA], &buffer);
        assert_false(buffer_exists(&buffer));
        free(read);
    }
}

/* Above what a kernel has unasked: a launch by itself, one with more, one with less; of no rows. */
static inline void shared_memory_grows(struct twin *twin) {
    static const size_t bytes[] = {50 << 10, 60 << 10, 55 << 10};
    const struct cuda_add_args nothing = {.row_count = 0};
    struct stream *stream = twin->stream[TWIN_CUDA];
    struct error error;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        cuda_device_enter(stream->device);
        cuda_work_launch(stream, "add", (struct cuda_shape){1, 1, 1, 256, bytes[i]}, &nothing);
        assert_ok(twin_operations(twin, TWIN_CUDA)->stream_synchronize(stream, &error), error);
    }
}

static inline void streams_work(struct twin *twin) {
    memory_is_zeros(twin);
    shared_memory_grows(twin);
    transfers_match(twin);
    overlap_is_done_once(twin);
}

/* ---- runs ---- */
