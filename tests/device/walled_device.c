#include "walled_device.h"

#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"

enum { AREAS_MAX = 64, WEIGHTS_BYTES = 64 << 20 };

struct area {
    void *address;
    size_t bytes; /* of whole pages */
    enum memory_kind kind;
};

/* Results that have not reached the host yet. */
struct late {
    uint8_t *target, *result; /* result: owned */
    size_t bytes;
    struct tree_counts *sum; /* the target is added to; NULL: it is written */
};

struct walled_device {
    struct device device; /* first */
    struct late *late;    /* owned; [late_count] */
    size_t late_count;
    struct device *inner; /* owned */
    struct device_operations operations;
    struct area areas[AREAS_MAX];
    size_t area_count;
    struct buffer weights; /* an area of WEIGHTS_BYTES; or none was loaded */
    size_t weights_used;
    void (*overlap)(void *context); /* NULL: none is waiting */
    void *overlap_context;
    bool is_open;
};

struct stream {
    struct walled_device *device;
    void *inner; /* the cpu device's */
};

/* ---- walls ---- */

static size_t whole_pages(size_t bytes) {
    return align_up(max_size(bytes, 1), (size_t)sysconf(_SC_PAGESIZE));
}

static void protect(const struct walled_device *device, int protection) {
    for (size_t i = 0; i < device->area_count; i++)
        if (device->areas[i].kind == MEMORY_DEVICE)
            assert_int_equal(mprotect(device->areas[i].address, device->areas[i].bytes, protection), 0);
}

/* Host work is done before the walls open, so that it cannot pass through them. */
static void run_overlap(struct walled_device *device) {
    void (*work)(void *context) = device->overlap;
    device->overlap = NULL;
    if (work != NULL) work(device->overlap_context);
}

static void enter(struct walled_device *device) {
    run_overlap(device);
    ASSERT(!device->is_open);
    device->is_open = true;
    protect(device, PROT_READ | PROT_WRITE);
}

static void leave(struct walled_device *device) {
    protect(device, PROT_NONE);
    device->is_open = false;
}

/* ---- memory ---- */

static enum status walled_allocate(struct device *base, enum memory_kind kind, size_t size_bytes,
                                   struct buffer *buffer, struct error *error) {
    struct walled_device *device = (struct walled_device *)base;
    size_t bytes = whole_pages(size_bytes);
    int protection = kind == MEMORY_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    assert_true(device->area_count < AREAS_MAX);
    void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return error_set(error, STATUS_MEMORY, "walled device: %zu bytes", bytes);
    device->areas[device->area_count++] = (struct area){memory, bytes, kind};
    *buffer = (struct buffer){.device = base,
                              .kind = kind,
                              .address = (uintptr_t)memory,
                              .host = kind == MEMORY_SHARED ? memory : NULL,
                              .bytes = size_bytes};
    return STATUS_OK;
}

static void walled_release(struct device *base, struct buffer *buffer) {
    struct walled_device *device = (struct walled_device *)base;
    if (!buffer_exists(buffer)) return;
    assert_ptr_equal(buffer->device, base);
    size_t i = 0;
    while (i < device->area_count && (uintptr_t)device->areas[i].address != buffer->address) i++;
    assert_true(i < device->area_count);
    assert_true(device->areas[i].kind == buffer->kind &&
                device->areas[i].bytes == whole_pages(buffer->bytes));
    assert_int_equal(munmap(device->areas[i].address, device->areas[i].bytes), 0);
    device->areas[i] = device->areas[--device->area_count];
    *buffer = (struct buffer){.device = NULL};
}

/* A copy behind the wall, as on a device that operations do not leave for the model's file. */
static enum status walled_weight_load(struct device *base, struct weight *weight, struct error *error) {
    struct walled_device *device = (struct walled_device *)base;
    const struct matrix *matrix = &weight->matrix;
    const size_t bytes = matrix->rows * matrix->row_bytes;
    TRY(device->inner->operations->weight_load(device->inner, weight, error));
    if (!buffer_exists(&device->weights))
        TRY(walled_allocate(base, MEMORY_DEVICE, WEIGHTS_BYTES, &device->weights, error));
    assert_true(align_up(bytes, 64) <= WEIGHTS_BYTES - device->weights_used);
    weight->memory = (struct buffer){.device = base,
                                     .kind = MEMORY_DEVICE,
                                     .address = device->weights.address + device->weights_used,
                                     .bytes = bytes};
    device->weights_used += align_up(bytes, 64);
    enter(device);
    memcpy((void *)(uintptr_t)weight->memory.address, matrix->data, bytes);
    leave(device);
    return STATUS_OK;
}

static void walled_weight_release(struct device *base, struct weight *weight) {
    assert_ptr_equal(buffer_exists(&weight->memory) ? weight->memory.device : base, base);
    weight->memory = (struct buffer){.device = NULL};
}

/* ---- streams ---- */

static const struct device_operations *inner_of(const struct stream *stream) {
    return stream->device->inner->operations;
}

static enum status walled_stream_create(struct device *base, struct stream **stream, struct error *error) {
    struct walled_device *device = (struct walled_device *)base;
    struct stream *inner;
    TRY(device->inner->operations->stream_create(device->inner, &inner, error));
    *stream = malloc(sizeof **stream);
    assert_non_null(*stream);
    **stream = (struct stream){device, inner};
    return STATUS_OK;
}

static void walled_stream_destroy(struct stream *stream) {
    inner_of(stream)->stream_destroy(stream->inner);
    free(stream);
}

/* Memory for a result, and the memory that the host sees until it arrives. */
static void *late_result(struct walled_device *device, void *target, size_t bytes, struct tree_counts *sum) {
    device->late = realloc(device->late, (device->late_count + 1) * sizeof *device->late);
    uint8_t *result = calloc(1, max_size(bytes, 1));
    assert_true(device->late != NULL && result != NULL);
    device->late[device->late_count++] = (struct late){target, result, bytes, sum};
    if (sum == NULL) memset(target, 0xff, bytes);
    return result;
}

static void late_results_come(struct walled_device *device) {
    for (size_t i = 0; i < device->late_count; i++) {
        struct late *late = &device->late[i];
        if (late->sum != NULL)
            tree_counts_add(late->sum, (const struct tree_counts *)(const void *)late->result);
        else
            memcpy(late->target, late->result, late->bytes);
        free(late->result);
    }
    device->late_count = 0;
}

static enum status walled_stream_synchronize(struct stream *stream, struct error *error) {
    run_overlap(stream->device);
    late_results_come(stream->device);
    return inner_of(stream)->stream_synchronize(stream->inner, error);
}

static void walled_overlap(struct stream *stream, void (*work)(void *context), void *context) {
    ASSERT(stream->device->overlap == NULL);
    stream->device->overlap = work;
    stream->device->overlap_context = context;
}

static void walled_copy(struct stream *stream, struct span target, struct span source, size_t size_bytes) {
    enter(stream->device);
    inner_of(stream)->copy(stream->inner, target, source, size_bytes);
    leave(stream->device);
}

static void walled_upload(struct stream *stream, struct span target, const void *source, size_t size_bytes) {
    enter(stream->device);
    inner_of(stream)->upload(stream->inner, target, source, size_bytes);
    leave(stream->device);
}

static void walled_download(struct stream *stream, void *target, struct span source, size_t size_bytes) {
    run_overlap(stream->device);
    void *result = late_result(stream->device, target, size_bytes, NULL);
    enter(stream->device);
    inner_of(stream)->download(stream->inner, result, source, size_bytes);
    leave(stream->device);
}

/* ---- operations ---- */

#define WALLED(name)                                                                             \
    static void walled_##name(struct stream *stream, const struct name##_operation *operation) { \
        enter(stream->device);                                                                   \
        inner_of(stream)->name(stream->inner, operation);                                        \
        leave(stream->device);                                                                   \
    }

WALLED(embed)
WALLED(matmul)
WALLED(norm)
WALLED(rope_angles)
WALLED(rope)
WALLED(activation)
WALLED(append)
WALLED(attend)
WALLED(gather)

static void walled_choose(struct stream *stream, const struct choose_operation *operation) {
    struct choose_operation own = *operation;
    run_overlap(stream->device);
    if (operation->tree_counts != NULL)
        own.tree_counts = late_result(stream->device, NULL, sizeof *own.tree_counts, operation->tree_counts);
    enter(stream->device);
    inner_of(stream)->choose(stream->inner, &own);
    leave(stream->device);
}

WALLED(attend_rows)
WALLED(add_mass)
WALLED(attend_rest)

/* One result for each query head of each row. */
#define WALLED_RESULTS(name, results)                                                                       \
    static void walled_##name(struct stream *stream, const struct name##_operation *operation) {            \
        struct name##_operation own = *operation;                                                           \
        run_overlap(stream->device);                                                                        \
        own.results = late_result(stream->device, own.results,                                              \
                                  own.rows->item_count * own.rows->head_count * sizeof *own.results, NULL); \
        enter(stream->device);                                                                              \
        inner_of(stream)->name(stream->inner, &own);                                                        \
        leave(stream->device);                                                                              \
    }

WALLED_RESULTS(mass_bound, mass_bounds)
WALLED_RESULTS(sample_mass, estimates)

static void walled_key_index_build(struct stream *stream, const struct key_index_operation *operation) {
    enter(stream->device);
    inner_of(stream)->key_index_build(stream->inner, operation);
    leave(stream->device);
}

/* ---- life ---- */

static struct pool *walled_pool(struct device *base) {
    return device_pool(((struct walled_device *)base)->inner);
}

static void walled_destroy(struct device *base) {
    struct walled_device *device = (struct walled_device *)base;
    walled_release(base, &device->weights);
    assert_int_equal(device->area_count, 0); /* all was released */
    assert_int_equal(device->late_count, 0); /* somebody waited for all results */
    free(device->late);
    device_destroy(device->inner);
    free(device);
}

static const struct device_operations OPERATIONS = {
    .destroy = walled_destroy,
    .pool = walled_pool,
    .allocate = walled_allocate,
    .release = walled_release,
    .weight_load = walled_weight_load,
    .weight_release = walled_weight_release,
    .stream_create = walled_stream_create,
    .stream_destroy = walled_stream_destroy,
    .stream_synchronize = walled_stream_synchronize,
    .overlap = walled_overlap,
    .copy = walled_copy,
    .upload = walled_upload,
    .download = walled_download,
    .embed = walled_embed,
    .matmul = walled_matmul,
    .norm = walled_norm,
    .rope_angles = walled_rope_angles,
    .rope = walled_rope,
    .activation = walled_activation,
    .append = walled_append,
    .attend = walled_attend,
    .gather = walled_gather,
    .key_index_build = walled_key_index_build,
    .choose = walled_choose,
    .attend_rows = walled_attend_rows,
    .add_mass = walled_add_mass,
    .mass_bound = walled_mass_bound,
    .attend_rest = walled_attend_rest,
    .sample_mass = walled_sample_mass,
};

struct device *walled_device_create(const struct device_options *options) {
    struct error error;
    struct walled_device *device = calloc(1, sizeof *device);
    assert_non_null(device);
    assert_ok(device_cpu_create(&device->inner, options, &error), error);
    device->operations = OPERATIONS;
    device->device = (struct device){
        .operations = &device->operations, .name = "walled", .key_indexes = DEVICE_KEY_INDEXES_ALL};
    return &device->device;
}
