/* The executor's interface (executor.h) by a driver, so that tests of kernels run on a card as they are.
 *
 * Such a test has everything in its own memory: arrays on the stack, static ones, guarded mappings.  A card reads it in
 * place: by itself where it can (HMM); else, and for tensor maps, of which nobody promises it, all writable memory of
 * the process is registered before each launch and unregistered behind it, but for what the driver has mapped for
 * itself.  Outside of it a kernel faults, as on the host. */
#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/buffer.h"
#include "device/cuda/card.h"
#include "device/cuda/executor.h"
#include "device/cuda/stream.h"

enum { REGIONS_MAX = 4096, KERNELS_MAX = 200, CU_PAGEABLE_MEMORY_ACCESS = 88 };

struct regions {
    struct region {
        uintptr_t begin, end;
    } list[REGIONS_MAX];
    size_t count;
};

static struct {
    bool is_open, reads_all; /* without that memory is registered */
    struct cuda_driver driver;
    struct cuda_context context;
    struct cuda_modules modules;
    struct cuda_stream stream;
    struct executor_kernel kernels[KERNELS_MAX];
    struct cuda_kernel found[KERNELS_MAX];
    size_t shared_bytes[KERNELS_MAX], kernel_count;
    struct regions before, of_driver, now;
} card;

/* ---- the process's memory ---- */

static void regions_read(struct regions *regions) {
    char line[600];
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    regions->count = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long begin, end;
        char rights[8], path[400] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %399s", &begin, &end, rights, path) < 3) continue;
        if (strncmp(rights, "rw", 2) != 0 || strncmp(path, "/dev/", 5) == 0 || strncmp(path, "[v", 2) == 0)
            continue;
        assert_true(regions->count < REGIONS_MAX);
        regions->list[regions->count++] = (struct region){begin, end};
    }
    fclose(maps);
}

static bool regions_have(const struct regions *regions, const struct region *region) {
    for (size_t i = 0; i < regions->count; i++)
        if (regions->list[i].begin <= region->begin && regions->list[i].end >= region->end) return true;
    return false;
}

/* What has come while the driver was opened is the driver's. */
static void of_driver_find(void) {
    regions_read(&card.now);
    for (size_t i = 0; i < card.now.count; i++) {
        const struct region *region = &card.now.list[i];
        bool is_new = true; /* grown: the heap */
        for (size_t k = 0; k < card.before.count && is_new; k++)
            is_new = region->begin >= card.before.list[k].end || region->end <= card.before.list[k].begin;
        if (is_new) card.of_driver.list[card.of_driver.count++] = *region;
    }
}

/* One that the driver refuses is not of a test: a thread's guard, memory that it has pinned itself. */
static void memory_register(void) {
    size_t kept = 0;
    regions_read(&card.now);
    for (size_t i = 0; i < card.now.count; i++) {
        const struct region region = card.now.list[i];
        if (regions_have(&card.of_driver, &region)) continue;
        if (card.driver.cuMemHostRegister((void *)region.begin, region.end - region.begin,
                                          CU_HOST_PORTABLE | CU_HOST_DEVICE_MAPPED) == CU_SUCCESS)
            card.now.list[kept++] = region;
    }
    card.now.count = kept;
}

static void memory_unregister(void) {
    for (size_t i = 0; i < card.now.count; i++)
        (void)card.driver.cuMemHostUnregister((void *)card.now.list[i].begin);
}

/* ---- the card ---- */

static void require(enum status status, const struct error *error) {
    if (status != STATUS_OK) fail_msg("%s", error->message);
}

static void card_close(void) {
    cuda_stream_destroy(&card.stream);
    cuda_modules_close(&card.modules);
    cuda_context_close(&card.context);
    cuda_driver_close(&card.driver);
}

static void card_open(void) {
    struct error error;
    int32_t pageable = 0;
    if (cuda_image_count == 0) skip(); /* a build without clang-19 */
    regions_read(&card.before);
    require(cuda_driver_open(&card.driver, card_driver(NULL), &error), &error);
    require(
        cuda_context_open(&card.context, &card.driver, 0, &(struct cuda_options){.wait_limit_ns = 0}, &error),
        &error);
    require(cuda_modules_open(&card.modules, &card.context, cuda_images, cuda_image_count, &error), &error);
    require(cuda_stream_create(&card.stream, &card.context, &error), &error);
    card.is_open = true;
    (void)atexit(card_close);
    card.reads_all =
        card.driver.cuDeviceGetAttribute(&pageable, (enum cu_device_attribute)CU_PAGEABLE_MEMORY_ACCESS,
                                         card.context.device) == CU_SUCCESS &&
        pageable != 0;
    printf("on %s, which reads memory %s\n", card.context.properties.name,
           card.reads_all ? "of this process" : "that is registered");
    of_driver_find();
}

/* Kernels by wgmma are for such a card alone. */
static void wgmma_need(void) {
    if (!card.is_open) card_open();
    if (card.context.properties.capability != 90) skip();
}

const struct executor_kernel *executor_find(const char *name) {
    size_t i = 0;
    if (strstr(name, "_wgmma_") != NULL) wgmma_need();
    while (i < card.kernel_count && strcmp(card.kernels[i].name, name) != 0) i++;
    assert_true(i < KERNELS_MAX);
    if (i == card.kernel_count) card.kernels[card.kernel_count++].name = strdup(name);
    return &card.kernels[i];
}

void executor_launch(const struct executor_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                     size_t shared_bytes, const void *args, uint64_t seed) {
    const size_t i = (size_t)(kernel - card.kernels);
    struct error error;
    (void)seed; /* the card has its own order */
    if (!card.is_open) card_open();
    if (card.found[i].function == NULL || card.shared_bytes[i] < shared_bytes) {
        require(cuda_kernel_find(&card.found[i], &card.modules, kernel->name, shared_bytes, &error), &error);
        card.shared_bytes[i] = shared_bytes;
    }
    const struct cuda_launch launch = {.kernel = &card.found[i],
                                       .grid = {grid[0], grid[1], grid[2]},
                                       .block = {block[0], block[1], block[2]},
                                       .shared_bytes = (uint32_t)shared_bytes,
                                       .arguments = args};
    const bool reads_all = card.reads_all && strstr(kernel->name, "_wgmma_") == NULL;
    if (!reads_all) memory_register();
    cuda_stream_launch(&card.stream, &launch);
    const enum status status = cuda_ticket_wait(&card.stream, cuda_stream_mark(&card.stream), &error);
    if (!reads_all) memory_unregister();
    if (status != STATUS_OK) fail_msg("%s: %s", kernel->name, error.message);
}

void executor_tensor_map(void *map, const void *halves, uint32_t columns, uint32_t rows, uint32_t box_rows) {
    struct error error = {0};
    wgmma_need();
    memory_register(); /* a driver may ask for memory that the card reaches */
    const bool made = cuda_tensor_map(&card.context, map, (uintptr_t)halves, columns, rows, box_rows);
    memory_unregister();
    if (!made) require(cuda_context_status(&card.context, &error), &error);
}

/* In front of the next launch, to its end. */
void executor_precede(void (*work)(void *context), void *context) { work(context); }
