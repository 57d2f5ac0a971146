#include "measure/bandwidth.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "platform/clock.h"
#include "platform/memory.h"

enum { LANES = 8 };

typedef uint64_t words __attribute__((vector_size(16))); /* a register on every target machine */

struct reading {
    const words *data;
    size_t word_count;         /* of 16 bytes */
    _Atomic uint64_t checksum; /* keeps the compiler from removing the reads */
};

static void read_range(void *context, const struct pool_worker *worker) {
    struct reading *reading = context;
    struct range range = pool_range(worker, reading->word_count, 128);
    /* Eight sums, so that no addition waits for the previous one.  They have names so that they stay in registers. */
    words a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
    for (size_t i = range.begin; i + LANES <= range.end; i += LANES) {
        const words *data = reading->data + i;
        a += data[0];
        b += data[1];
        c += data[2];
        d += data[3];
        e += data[4];
        f += data[5];
        g += data[6];
        h += data[7];
    }
    words sum = a + b + c + d + e + f + g + h;
    reading->checksum += sum[0] + sum[1];
}

static void fill_range(void *context, const struct pool_worker *worker) {
    struct reading *reading = context;
    struct range range = pool_range(worker, reading->word_count, 128);
    memset((void *)(uintptr_t)(reading->data + range.begin), 1, (range.end - range.begin) * sizeof(words));
}

static struct reading reading_of(const struct bandwidth *bandwidth) {
    return (struct reading){.data = bandwidth->memory, .word_count = bandwidth->size_bytes / sizeof(words)};
}

size_t bandwidth_beyond_caches(size_t times, size_t most) {
    const uint64_t cache = memory_cache_bytes("");
    return cache == 0 ? most : min_size(max_size(times * cache, most / 4), most);
}

enum status bandwidth_open(struct bandwidth *bandwidth, struct pool *pool, size_t size_bytes, struct error *error) {
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return error_set_os(error, STATUS_MEMORY, errno, "%zu bytes to measure bandwidth with", size_bytes);
    (void)madvise(memory, size_bytes, MADV_HUGEPAGE); /* a hint */
    bandwidth->memory = memory;
    bandwidth->size_bytes = size_bytes;
    struct reading reading = reading_of(bandwidth);
    pool_run(pool, fill_range, &reading);
    return STATUS_OK;
}

uint64_t bandwidth_pass_ns(const struct bandwidth *bandwidth, struct pool *pool) {
    struct reading reading = reading_of(bandwidth);
    uint64_t began = clock_ns();
    pool_run(pool, read_range, &reading);
    return clock_ns() - began;
}

void bandwidth_close(struct bandwidth *bandwidth) {
    if (bandwidth->memory != NULL) munmap(bandwidth->memory, bandwidth->size_bytes);
    bandwidth->memory = NULL;
}
