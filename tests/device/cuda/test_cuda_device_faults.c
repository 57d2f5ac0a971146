/* What can happen to a card while the cuda device works: one line, no crash, no hang; and without an error the right
 * result. */
#include "../host_turns.h"
#include "twin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "card.h"
#include "device/cuda/fake/fake_control.h"
#include "device/cuda/images.h"
#include "device/device_open.h"

enum { ROWS = 20, COLUMNS = 256, OUTPUTS = 40, STUCK_LIMIT_NS = 200000000, END_SECONDS = 60 };

struct work {
    float x[ROWS * COLUMNS], w[OUTPUTS * COLUMNS], y[ROWS * OUTPUTS];
    struct device *device;
    struct stream *stream;
    struct weight weight;
    struct buffer memory, shared;
    bool waits; /* for a ticket, before it synchronises */
};

static enum status work_make(struct work *work, struct error *error) {
    const struct device_operations *operations = work->device->operations;
    const size_t x_bytes = sizeof work->x, y_bytes = sizeof work->y;
    TRY(operations->stream_create(work->device, &work->stream, error));
    TRY(operations->weight_load(work->device, &work->weight, error));
    TRY(operations->allocate(work->device, MEMORY_DEVICE, x_bytes + y_bytes, &work->memory, error));
    return operations->allocate(work->device, MEMORY_SHARED, y_bytes, &work->shared, error);
}

static void work_put(struct work *work) {
    const struct device_operations *operations = work->device->operations;
    const size_t x_bytes = sizeof work->x, y_bytes = sizeof work->y;
    const struct span x = span_of(&work->memory, 0), y = span_behind(x, x_bytes);
    struct matmul_operation operation = {.x = x,
                                         .x_stride = COLUMNS,
                                         .row_count = ROWS,
                                         .weight_count = 1,
                                         .weights = {&work->weight},
                                         .y = {y},
                                         .y_stride = {OUTPUTS}};
    operations->upload(work->stream, x, work->x, x_bytes);
    operations->matmul(work->stream, &operation);
    operation.row_count = 3;
    operations->matmul(work->stream, &operation); /* these rows once more, by matvec */
    operations->copy(work->stream, span_of(&work->shared, 0), y, y_bytes);
}

static enum status work_run(struct work *work, struct error *error) {
    const struct device_operations *operations = work->device->operations;
    work_put(work);
    if (work->waits) TRY(operations->ticket_wait(operations->ticket(work->stream), error));
    operations->download(work->stream, work->y, span_of(&work->shared, 0), sizeof work->y);
    return operations->stream_synchronize(work->stream, error);
}

/* y: of so many rows of x. */
static void rows_check(const struct work *work, const float *y, size_t first, size_t count, const char *settings) {
    for (size_t r = 0; r < count; r++)
        for (size_t o = 0; o < OUTPUTS; o++) {
            const float *x = work->x + (first + r) * COLUMNS, *w = work->w + o * COLUMNS;
            double want = 0, magnitude = 0;
            for (size_t c = 0; c < COLUMNS; c++) {
                want += (double)x[c] * (double)w[c];
                magnitude += fabs((double)x[c] * (double)w[c]);
            }
            check_near(y[r * OUTPUTS + o], want, magnitude * 0x1p-10, "%s: row %zu, output %zu", settings, first + r,
                       o);
        }
}

static void work_check(const struct work *work, const char *settings) {
    rows_check(work, work->y, 0, ROWS, settings);
}

static void work_init(struct work *work) {
    struct random random;
    random_init(&random, test_seed(1));
    *work = (struct work){.device = NULL};
    fill_normal(&random, work->x, ROWS * COLUMNS, 1);
    fill_normal(&random, work->w, OUTPUTS * COLUMNS, 1);
    work->weight.matrix = (struct matrix){TENSOR_F32, work->w, OUTPUTS, COLUMNS, COLUMNS * sizeof(float)};
}

static void work_deinit(struct work *work) {
    if (work->device == NULL) return;
    const struct device_operations *operations = work->device->operations;
    operations->release(work->device, &work->shared);
    operations->release(work->device, &work->memory);
    operations->weight_release(work->device, &work->weight);
    if (work->stream != NULL) operations->stream_destroy(work->stream);
    device_destroy(work->device);
}

/* The device is made, works, and is gone again. */
static enum status with_limit(const char *settings, uint64_t wait_limit_ns, struct error *error) {
    static struct work work;
    static size_t runs;
    const struct cuda_device_options options = {
        .driver_file = FAKE_LIBRARY, .thread_count = 1, .wait_limit_ns = wait_limit_ns};
    *error = (struct error){.status = STATUS_OK};
    (void)setenv("FAKE_CUDA", settings, 1);
    work_init(&work);
    work.waits = runs++ % 2 == 1;
    enum status status = device_cuda_create(&work.device, &options, error);
    if (status == STATUS_OK)
        status = work_make(&work, error);
    else
        work.device = NULL;
    if (status == STATUS_OK) status = work_run(&work, error);
    if (status == STATUS_OK) work_check(&work, settings);
    /* What fails, and is no lack of memory, has broken it. */
    const bool works = work.device != NULL && device_state(work.device, NULL) == STATUS_OK;
    if (work.device != NULL && works != (status == STATUS_OK || status == STATUS_MEMORY))
        fail_msg("FAKE_CUDA=%s: %s, and the device works: %d", settings, status_name(status), works);
    work_deinit(&work);
    return status;
}

static enum status with_settings(const char *settings, struct error *error) {
    return with_limit(settings, 0, error);
}

static void expect_line(const char *settings, enum status expected, const char *text) {
    struct error error;
    const enum status status = with_settings(settings, &error);
    if (status != expected) fail_msg("FAKE_CUDA=%s: %s: %s", settings, status_name(status), error.message);
    if (strstr(error.message, text) == NULL || strchr(error.message, '\n') != NULL)
        fail_msg("FAKE_CUDA=%s: \"%s\", expected one line with \"%s\"", settings, error.message, text);
}

/* Each call once: it is either noticed, or makes no difference. */
static void test_calls(void **state) {
    (void)state;
    struct error error;
    size_t failed = 0;
    assert_ok(with_settings("capability=90", &error), error);
    for (int number = 1; number < 400; number += number < 60 ? 1 : 7) {
        char settings[80];
        snprintf(settings, sizeof settings, "seed=%d,fail=any:%d:%d", number, number, number % 2 ? 1 : 999);
        const enum status status = with_settings(settings, &error);
        failed += status != STATUS_OK;
        if (status != STATUS_OK &&
            (strstr(error.message, "cuda: ") == NULL || strchr(error.message, '\n') != NULL))
            fail_msg("FAKE_CUDA=%s: \"%s\"", settings, error.message);
    }
    assert_true(failed > 50);
}

/* What loam counts for weights is what they take. */
static void test_bytes(void **state) {
    enum { SIZES = 3 };
    static const uint64_t elements[SIZES] = {4096 * 64, 1024 * 1024, 3 * 1024 * 1024};
    (void)state;
    struct device *device;
    struct error error;
    const struct cuda_device_options options = {.driver_file = FAKE_LIBRARY, .thread_count = 1};
    (void)setenv("FAKE_CUDA", "memory=64M", 1);
    assert_ok(device_cuda_create(&device, &options, &error), error);
    for (size_t i = 0; i < SIZES; i++) {
        struct buffer buffer;
        const uint64_t bytes = elements[i] / 32 * 34, before = device_memory_free(device);
        assert_ok(device->operations->allocate(device, MEMORY_DEVICE, bytes, &buffer, &error), error);
        assert_int_equal(before - device_memory_free(device), device_card_bytes(TENSOR_Q8_0, elements[i]));
        device->operations->release(device, &buffer);
    }
    device_destroy(device);
}

static void test_card(void **state) {
    (void)state;
    expect_line("memory=16K", STATUS_MEMORY,
                "cuda: 16.00 KiB of 16.00 KiB are free, device memory of 1.00 MiB"); /* a stream's ring */
    expect_line("memory=2064K", STATUS_MEMORY,
                "weights: cuda: 16.00 KiB of 2.02 MiB are free, device memory of 40.00 KiB");
    expect_line("memory=2128K", STATUS_MEMORY, "are free, device memory of 1.00 MiB"); /* scratch */
    expect_line("fail=cuMemAlloc_v2:4:2", STATUS_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY");
    for (int n = 2; n < 5; n++) {
        char settings[40];
        snprintf(settings, sizeof settings, "fail=cuMemAlloc_v2:%d:719", n);
        expect_line(settings, STATUS_FAILED, "CUDA_ERROR_LAUNCH_FAILED");
    }
    expect_line("fail=cuLaunchKernelEx:2:719", STATUS_FAILED,
                "launching matmul_f32: CUDA_ERROR_LAUNCH_FAILED");
    expect_line("fail=kernel:2:700", STATUS_FAILED, "CUDA_ERROR_ILLEGAL_ADDRESS");
    expect_line("capability=90,fail=cuTensorMapEncodeTiled:1:1", STATUS_FAILED,
                "a tensor map: CUDA_ERROR_INVALID_VALUE"); /* never by mma.sync instead: other bits */
    expect_line("fail=cuModuleLoadDataEx:2:218", STATUS_FAILED, "loading kernel matvec_f32_1 of matvec_float");
    expect_line("capability=75", STATUS_UNSUPPORTED, "has compute capability 7.5, expected 8.0 or newer");
    expect_line("devices=0", STATUS_UNSUPPORTED, "no NVIDIA GPU was found");
}

/* One that lacks memory is told so, once: what was put behind it is dropped, but for changes of page tables, and what
 * comes after it runs. */
static void test_lack(void **state) {
    (void)state;
    enum { PLACES = 70000, /* more changes than the ring has room for */
           READS = 6 };
    static const char *const FAULTS[] = {"cuMemAlloc_v2:4:2", "cuLaunchKernelEx:1:2", "cuLaunchKernelEx:3:2",
                                         "cuTensorMapEncodeTiled:1:2",
                                         "cuLaunchKernelEx:5:2", /* of the second part of the changes */
                                         "cuMemcpyAsync:5:2"};
    static struct work work;
    static struct place_delta deltas[PLACES];
    static uint32_t read[PLACES];
    for (uint32_t i = 0; i < PLACES; i++) deltas[i] = (struct place_delta){i, 3 * i + 1};
    for (size_t fault = 0; fault < sizeof FAULTS / sizeof *FAULTS; fault++) {
        const struct cuda_device_options options = {.driver_file = FAKE_LIBRARY, .thread_count = 1};
        struct error error = {.status = STATUS_OK};
        struct buffer table;
        char settings[80];
        snprintf(settings, sizeof settings, "capability=90,seed=%zu,fail=%s", fault + 1, FAULTS[fault]);
        (void)setenv("FAKE_CUDA", settings, 1);
        work_init(&work);
        assert_ok(device_cuda_create(&work.device, &options, &error), error);
        const struct device_operations *operations = work.device->operations;
        assert_ok(work_make(&work, &error), error);
        assert_ok(operations->allocate(work.device, MEMORY_SHARED, PLACES * 4, &table, &error), error);
        work_put(&work);
        operations->update_places(work.stream,
                                  &(struct update_places_operation){
                                      .table = span_of(&table, 0), .deltas = deltas, .count = PLACES});
        for (size_t i = 0; i < fault % 2 * READS; i++) /* more than is on its way at once: the device waits within */
            operations->download(work.stream, read, span_of(&table, 0), sizeof read);
        const enum status status = operations->stream_synchronize(work.stream, &error);
        if (status != STATUS_MEMORY) fail_msg("%s: %s: %s", settings, status_name(status), error.message);
        for (uint32_t i = 0; i < PLACES; i++) assert_int_equal(((uint32_t *)table.host)[i], 3 * i + 1);
        assert_ok(work_run(&work, &error), error);
        work_check(&work, settings);
        operations->release(work.device, &table);
        work_deinit(&work);
    }
}

/* What one stream lacks, that one is told, whatever another one of the same device does in between; the other one has
 * its results.  Returns whether the first one made as many calls. */
static bool lack_of_one_stream(const char *symbol, size_t n, bool ticket_last, size_t *told) {
    static struct work works[2];
    const struct cuda_device_options options = {.driver_file = FAKE_LIBRARY, .thread_count = 1};
    struct error error = {.status = STATUS_OK};
    fake_count_from_here_function *count_from_here;
    fake_call_count_function *counted;
    char setting[60];
    snprintf(setting, sizeof setting, "seed=%zu,capability=90", n);
    (void)setenv("FAKE_CUDA", setting, 1);
    for (size_t i = 0; i < 2; i++) work_init(&works[i]);
    assert_ok(device_cuda_create(&works[0].device, &options, &error), error);
    works[1].device = works[0].device;
    for (size_t i = 0; i < 2; i++) assert_ok(work_make(&works[i], &error), error);
    void *library = dlopen(FAKE_LIBRARY, RTLD_NOW);
    assert_non_null(library);
    *(void **)&count_from_here = dlsym(library, "fake_count_from_here");
    *(void **)&counted = dlsym(library, "fake_call_count");
    snprintf(setting, sizeof setting, "fail=%s:%zu:2", symbol, n);
    count_from_here(setting);
    const struct device_operations *operations = works[0].device->operations;
    struct work *work = &works[0];
    work_put(work);
    struct ticket ticket = operations->ticket(work->stream);
    operations->download(work->stream, work->y, span_of(&work->shared, 0), sizeof work->y);
    if (ticket_last) ticket = operations->ticket(work->stream);
    const bool is_reached = counted(strcmp(symbol, "any") == 0 ? NULL : symbol) >= n;
    if (is_reached) { /* else the fault is still to come */
        if (work_run(&works[1], &error) != STATUS_OK) fail_msg("%s: the other one: %s", setting, error.message);
        work_check(&works[1], setting);
    }
    (void)operations->ticket_wait(ticket, NULL);
    const enum status status = operations->stream_synchronize(work->stream, &error);
    if (status == STATUS_OK) work_check(work, setting);
    if (status != STATUS_OK && status != STATUS_MEMORY) fail_msg("%s: %s", setting, error.message);
    *told += is_reached && status == STATUS_MEMORY;
    if (is_reached) {
        assert_ok(work_run(work, &error), error);
        work_check(work, setting);
    }
    (void)dlclose(library);
    operations->release(work->device, &works[1].shared);
    operations->release(work->device, &works[1].memory);
    operations->weight_release(work->device, &works[1].weight);
    operations->stream_destroy(works[1].stream);
    work_deinit(work);
    return is_reached;
}

static void test_lack_of_one_stream(void **state) {
    (void)state;
    static const struct {
        const char *symbol;
        size_t told; /* at least */
    } faults[] = {
        {"cuMemcpyAsync", 3}, {"cuLaunchKernelEx", 2}, {"cuEventRecord", 1}, {"cuMemAlloc_v2", 1}, {"any", 8}};
    for (size_t i = 0; i < 2 * sizeof faults / sizeof *faults; i++) {
        size_t told = 0, n = 1;
        while (lack_of_one_stream(faults[i / 2].symbol, n, i % 2 > 0, &told)) n++;
        printf("%s: %zu of %zu lacks were told\n", faults[i / 2].symbol, told, n - 1);
        assert_in_range(told, faults[i / 2].told, n - 1);
    }
}

/* Memory of work that nobody waits for is given back: that waits within the limit, and the device says why it broke. */
static enum status release_under_work(struct error *error) {
    static struct work work;
    const struct cuda_device_options options = {
        .driver_file = FAKE_LIBRARY, .thread_count = 1, .wait_limit_ns = STUCK_LIMIT_NS};
    (void)setenv("FAKE_CUDA", "stuck=2", 1);
    work_init(&work);
    TRY(device_cuda_create(&work.device, &options, error));
    TRY(work_make(&work, error));
    work_put(&work);
    work.device->operations->release(work.device, &work.memory);
    const enum status status = device_state(work.device, error);
    work_deinit(&work);
    return status;
}

static enum status wait_for_work(struct error *error) { return with_limit("stuck=2", STUCK_LIMIT_NS, error); }

/* A kernel that never ends, in a process of its own, which ends with the card in that state. */
static void test_stuck(void **state) {
    (void)state;
    enum status (*const ways[])(struct error *error) = {wait_for_work, release_under_work};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        fflush(stdout);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct error error;
            end_at_failure();
            (void)alarm(END_SECONDS);
            const enum status status = ways[i](&error);
            const bool is_told = status == STATUS_FAILED && strstr(error.message, "no progress for") != NULL;
            const bool has_driver = dlopen(FAKE_LIBRARY, RTLD_NOW | RTLD_NOLOAD) != NULL; /* that works on */
            _exit(is_told && has_driver ? 0 : 1);
        }
        int end = 0;
        assert_int_equal(waitpid(child, &end, 0), child);
        assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
    }
}

/* ---- the host's turns ---- */

enum { TURN_LIMIT_NS = 20000000 };

struct turns_rig {
    struct device *device;
    struct stream *stream;
    struct host_turns turns[2];
    fake_count_from_here_function *count_from_here;
    void *library;
};

static void turns_open(struct turns_rig *rig, uint64_t seed) {
    const struct cuda_device_options options = {
        .driver_file = FAKE_LIBRARY, .thread_count = 1, .wait_limit_ns = TURN_LIMIT_NS};
    struct error error;
    char settings[40];
    snprintf(settings, sizeof settings, "seed=%llu,capability=90", (unsigned long long)seed);
    (void)setenv("FAKE_CUDA", settings, 1);
    assert_ok(device_cuda_create(&rig->device, &options, &error), error);
    assert_ok(rig->device->operations->stream_create(rig->device, &rig->stream, &error), error);
    for (size_t i = 0; i < 2; i++) host_turns_open(&rig->turns[i], rig->device, rig->stream);
    assert_ok(rig->device->operations->stream_synchronize(rig->stream, &error), error);
    rig->library = dlopen(FAKE_LIBRARY, RTLD_NOW);
    assert_non_null(rig->library);
    *(void **)&rig->count_from_here = dlsym(rig->library, "fake_count_from_here");
}

static void turns_close(struct turns_rig *rig) {
    rig->count_from_here("");
    for (size_t i = 0; i < 2; i++) host_turns_close(&rig->turns[i]);
    rig->device->operations->stream_destroy(rig->stream);
    device_destroy(rig->device);
    (void)dlclose(rig->library);
}

/* Both graphs with a fault: no hang, one line, no turn behind it, and those before it were right.  How many there
 * were. */
static size_t turns_with(const char *setting, uint64_t seed, const char *text) {
    struct turns_rig rig;
    struct error error = {.status = STATUS_OK};
    turns_open(&rig, seed);
    const struct device_operations *operations = rig.device->operations;
    rig.count_from_here(setting);
    for (size_t i = 0; i < 2; i++) host_turns_launch(&rig.turns[i]);
    const enum status status = operations->stream_synchronize(rig.stream, &error);
    const size_t taken = rig.turns[0].taken + rig.turns[1].taken;
    if (status == STATUS_OK) {
        for (size_t i = 0; i < 2; i++) host_turns_check(&rig.turns[i]);
    } else {
        if (strstr(error.message, text) == NULL || strchr(error.message, '\n') != NULL)
            fail_msg("%s: \"%s\", expected one line with \"%s\"", setting, error.message, text);
        host_turns_launch(&rig.turns[1]);
        assert_int_equal(operations->stream_synchronize(rig.stream, NULL), STATUS_FAILED);
        assert_int_equal(rig.turns[1].taken, 0);
        assert_int_equal(device_state(rig.device, NULL), STATUS_FAILED);
    }
    turns_close(&rig);
    return status == STATUS_OK ? SIZE_MAX : taken;
}

static void turns_end(void **state) {
    (void)state;
    char setting[60];
    for (size_t n = 1; n <= 4 * TURNS; n += 4) { /* the word that asks, of every other turn; the others lower one */
        snprintf(setting, sizeof setting, "lose=%zu", n);
        assert_int_equal(turns_with(setting, n, "no progress for"), (n - 1) / 2);
    }
    for (size_t n = 1; n <= 6 * TURNS; n += 5) { /* three kernels a turn, the first in front of it */
        snprintf(setting, sizeof setting, "fail=kernel:%zu:700", n);
        assert_int_equal(turns_with(setting, n, "CUDA_ERROR_ILLEGAL_ADDRESS"), (n + 1) / 3);
    }
    assert_int_equal(turns_with("fail=cuGraphLaunch:2:719", 3, "launching a recorded step"), TURNS);
    size_t failed = 0;
    for (size_t n = 1; n < 40; n += 2) { /* a card that is gone, at any call */
        snprintf(setting, sizeof setting, "fail=any:%zu:719", n);
        failed += turns_with(setting, n, "cuda: ") != SIZE_MAX;
    }
    assert_true(failed > 10);
}

/* A turn that takes longer than a card may be without progress, and a host that comes to it late. */
static void turns_take_their_time(void **state) {
    (void)state;
    enum { ASKS = 1200 };
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct turns_rig rig;
        turns_open(&rig, seed);
        rig.turns[0].pause_ns = 3 * TURN_LIMIT_NS / 2;
        host_turns_launch(&rig.turns[0]);
        const struct ticket ticket = rig.device->operations->ticket(rig.stream);
        for (size_t i = 0; i < ASKS; i++) {
            assert_false(rig.device->operations->ticket_done(ticket));
            if (i % (ASKS / 4) == 0) (void)nanosleep(&(struct timespec){.tv_nsec = TURN_LIMIT_NS}, NULL);
        }
        host_turns_check(&rig.turns[0]);
        turns_close(&rig);
    }
}

/* A card whose streams cannot wait has none. */
static void turns_need_waits(void **state) {
    (void)state;
    struct device *device;
    struct error error;
    const struct cuda_device_options options = {.driver_file = FAKE_LIBRARY, .thread_count = 1};
    (void)setenv("FAKE_CUDA", "waits=0", 1);
    assert_ok(device_cuda_create(&device, &options, &error), error);
    assert_null(device->operations->host_turn);
    device_destroy(device);
}

/* ---- graphs ---- */

enum { GRAPH_ROWS = 3, GRAPH_PLACES = 300, GRAPHS = 2 };

/* Products of other rows and other changes of a page table: the second graph is the first one, changed. */
static enum status graph_run(struct work *work, const struct buffer *table, struct graph **graph, size_t number,
                             struct error *error) {
    const struct device_operations *operations = work->device->operations;
    struct place_delta deltas[GRAPH_PLACES];
    for (uint32_t i = 0; i < GRAPH_PLACES; i++) deltas[i] = (struct place_delta){i, 5 * i + (uint32_t)number};
    TRY(operations->graph_begin(work->stream, error));
    const struct span y[] = {span_of(&work->memory, sizeof work->x), span_of(&work->shared, 0)};
    for (size_t i = 0; i < 2; i++) /* the second one may start early; what is read afterwards is its own */
        operations->matmul(
            work->stream,
            &(struct matmul_operation){.x = span_of(&work->memory, number * 7 * COLUMNS * sizeof(float)),
                                       .x_stride = COLUMNS,
                                       .row_count = GRAPH_ROWS,
                                       .weight_count = 1,
                                       .weights = {&work->weight},
                                       .y = {y[i]},
                                       .y_stride = {OUTPUTS}});
    operations->update_places(
        work->stream,
        &(struct update_places_operation){.table = span_of(table, 0), .deltas = deltas, .count = GRAPH_PLACES});
    TRY(operations->graph_end(work->stream, graph, error));
    operations->graph_launch(work->stream, *graph);
    return operations->stream_synchronize(work->stream, error);
}

static void graph_check(const struct work *work, const struct buffer *table, size_t number, const char *setting) {
    rows_check(work, work->shared.host, 7 * number, GRAPH_ROWS, setting);
    for (uint32_t i = 0; i < GRAPH_PLACES; i++)
        assert_int_equal(((const uint32_t *)table->host)[i], 5 * i + (uint32_t)number);
}

struct graph_outcome {
    bool is_reached;
    enum status status; /* the first error */
    struct device_counts counts;
};

/* Two graphs with a fault: of either one line, or the right values.  One that lacked memory is then right, the device
 * that broke is broken.  symbol NULL: any call. */
static struct graph_outcome graphs_with(const char *symbol, size_t n, int fault) {
    static struct work work;
    const struct cuda_device_options options = {.driver_file = FAKE_LIBRARY, .thread_count = 1};
    struct graph_outcome outcome = {.status = STATUS_OK};
    struct error error = {.status = STATUS_OK};
    struct buffer table;
    struct graph *graph = NULL;
    char setting[80];
    snprintf(setting, sizeof setting, "seed=%zu,capability=90", n);
    (void)setenv("FAKE_CUDA", setting, 1);
    work_init(&work);
    assert_ok(device_cuda_create(&work.device, &options, &error), error);
    const struct device_operations *operations = work.device->operations;
    assert_ok(work_make(&work, &error), error);
    assert_ok(operations->allocate(work.device, MEMORY_SHARED, GRAPH_PLACES * 4, &table, &error), error);
    operations->upload(work.stream, span_of(&work.memory, 0), work.x, sizeof work.x);
    assert_ok(operations->stream_synchronize(work.stream, &error), error);
    void *library = dlopen(FAKE_LIBRARY, RTLD_NOW);
    assert_non_null(library);
    fake_count_from_here_function *count_from_here;
    fake_call_count_function *counted;
    *(void **)&count_from_here = dlsym(library, "fake_count_from_here");
    *(void **)&counted = dlsym(library, "fake_call_count");
    snprintf(setting, sizeof setting, "fail=%s:%zu:%d", symbol != NULL ? symbol : "any", n, fault);
    count_from_here(setting);
    for (size_t i = 0; i < GRAPHS; i++) {
        enum status status = graph_run(&work, &table, &graph, i, &error);
        if (status != STATUS_OK && (strstr(error.message, "cuda: ") == NULL || strchr(error.message, '\n') != NULL))
            fail_msg("%s: \"%s\"", setting, error.message);
        if (outcome.status == STATUS_OK) outcome.status = status;
        if (status == STATUS_MEMORY) status = graph_run(&work, &table, &graph, i, &error);
        if (status == STATUS_OK) graph_check(&work, &table, i, setting);
        if ((status == STATUS_OK) != (device_state(work.device, NULL) == STATUS_OK))
            fail_msg("%s: graph %zu: %s, and what the device is in: %s", setting, i, status_name(status),
                     status_name(device_state(work.device, NULL)));
    }
    outcome.is_reached = counted(symbol) >= n;
    outcome.counts = device_counts(work.device);
    count_from_here("");
    operations->graph_destroy(graph);
    operations->release(work.device, &table);
    (void)dlclose(library);
    work_deinit(&work);
    return outcome;
}

static void graphs_fail(void **state) {
    (void)state;
    static const char changes[] = "cuGraphExecKernelNodeSetParams_v2";
    static const char *const symbols[] = {"cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2",
                                          "cuGraphInstantiateWithFlags", "cuGraphLaunch"};
    static const int faults[] = {2, 719, 999};
    const struct graph_outcome whole = graphs_with(NULL, 1000, 2);
    assert_false(whole.is_reached);
    assert_true(whole.status == STATUS_OK && whole.counts.captures == 1 && whole.counts.changes == 1);
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        const enum status owed = faults[f] == 2 ? STATUS_MEMORY : STATUS_FAILED;
        for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
            const struct graph_outcome outcome = graphs_with(symbols[i], 1, faults[f]);
            if (!outcome.is_reached || outcome.status != owed)
                fail_msg("%s:1:%d: reached: %d; %s", symbols[i], faults[f], outcome.is_reached,
                         status_name(outcome.status));
        }
        for (size_t n = 1; n <= 3; n++) { /* a change that lacks memory is a capture in its place */
            const struct graph_outcome outcome = graphs_with(changes, n, faults[f]);
            assert_true(outcome.is_reached);
            assert_int_equal(outcome.status, faults[f] == 2 ? STATUS_OK : STATUS_FAILED);
            if (faults[f] == 2) assert_true(outcome.counts.captures == 2 && outcome.counts.changes == 0);
        }
        struct graph_outcome outcome = {.is_reached = true};
        size_t n = 0, told = 0;
        while (outcome.is_reached) {
            outcome = graphs_with(NULL, ++n, faults[f]);
            told += outcome.status != STATUS_OK;
        }
        printf("%d: %zu of %zu calls told\n", faults[f], told, n - 1);
        assert_in_range(told, 8, n);
    }
}

static int begin(void **state) {
    (void)state;
    card_start_anew(FAKE_LIBRARY);
    return 0;
}

int main(void) {
    if (cuda_image_count == 0) {
        printf("skipped: %s\n", cuda_images_missing);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_calls, begin),
        cmocka_unit_test_setup(test_bytes, begin),
        cmocka_unit_test_setup(test_card, begin),
        cmocka_unit_test_setup(test_lack, begin),
        cmocka_unit_test_setup(test_lack_of_one_stream, begin),
        cmocka_unit_test_setup(graphs_fail, begin),
        cmocka_unit_test_setup(turns_end, begin),
        cmocka_unit_test_setup(turns_take_their_time, begin),
        cmocka_unit_test_setup(turns_need_waits, begin),
        cmocka_unit_test_setup(test_stuck, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
