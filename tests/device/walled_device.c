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
    uint8_t *weights; /* an area of WEIGHTS_BYTES; NULL: no weight was adopted */
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

static void protect(const struct walled_device *device, enum memory_kind kind, int protection) {
    for (size_t i = 0; i < device->area_count; i++)
        if (device->areas[i].kind == kind)
            assert_int_equal(mprotect(device->areas[i].address, device->areas[i].bytes, protection), 0);
}

/* Host work is done before the walls open, so that it cannot pass through them. */
static void run_overlap(struct walled_device *device) {
    void (*work)(void *context) = device->overlap;
    device->overlap = NULL;
    if (work != NULL) work(device->overlap_context);
}

static void enter(struct walled_device *device, bool copies) {
    run_overlap(device);
    ASSERT(!device->is_open);
    device->is_open = true;
    protect(device, MEMORY_DEVICE, PROT_READ | PROT_WRITE);
    if (!device->device.reaches_host && !copies) protect(device, MEMORY_HOST, PROT_NONE);
}

static void leave(struct walled_device *device) {
    protect(device, MEMORY_DEVICE, PROT_NONE);
    if (!device->device.reaches_host) protect(device, MEMORY_HOST, PROT_READ | PROT_WRITE);
    device->is_open = false;
}

/* ---- memory ---- */

static enum status walled_allocate(struct device *base, enum memory_kind kind, size_t size_bytes,
                                   void **address, struct error *error) {
    struct walled_device *device = (struct walled_device *)base;
    size_t bytes = whole_pages(size_bytes);
    int protection = kind == MEMORY_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    assert_true(device->area_count < AREAS_MAX);
    void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return error_set(error, STATUS_MEMORY, "walled device: %zu bytes", bytes);
    device->areas[device->area_count++] = (struct area){memory, bytes, kind};
    *address = memory;
    return STATUS_OK;
}

static void walled_release(struct device *base, enum memory_kind kind, void *address, size_t size_bytes) {
    struct walled_device *device = (struct walled_device *)base;
    if (address == NULL) return;
    size_t i = 0;
    while (i < device->area_count && device->areas[i].address != address) i++;
    assert_true(i < device->area_count);
    assert_true(device->areas[i].kind == kind && device->areas[i].bytes == whole_pages(size_bytes));
    assert_int_equal(munmap(address, device->areas[i].bytes), 0);
    device->areas[i] = device->areas[--device->area_count];
}

/* A copy behind the wall, as on a device that operations do not leave for the model's file. */
static enum status walled_adopt_weight(struct device *base, struct matrix *matrix, struct error *error) {
    struct walled_device *device = (struct walled_device *)base;
    const size_t bytes = align_up(matrix->rows * matrix->row_bytes, 64);
    TRY(device->inner->operations->adopt_weight(device->inner, matrix, error));
    if (device->weights == NULL) {
        void *memory;
        TRY(walled_allocate(base, MEMORY_DEVICE, WEIGHTS_BYTES, &memory, error));
        device->weights = memory;
    }
    assert_true(bytes <= WEIGHTS_BYTES - device->weights_used);
    enter(device, true);
    matrix->data =
        memcpy(device->weights + device->weights_used, matrix->data, matrix->rows * matrix->row_bytes);
    leave(device);
    device->weights_used += bytes;
    return STATUS_OK;
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

/* The list as the device has it. */
static struct row_list late_list(const struct walled_device *device, struct row_list list) {
    const uint8_t *rows = (const uint8_t *)list.rows;
    for (size_t i = device->late_count; i > 0; i--) { /* the latest one */
        const struct late *late = &device->late[i - 1];
        if (late->sum == NULL && rows >= late->target && rows < late->target + late->bytes) {
            list.rows = (const uint32_t *)(const void *)(late->result + (rows - late->target));
            break;
        }
    }
    return list;
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

static void walled_copy(struct stream *stream, void *target, const void *source, size_t size_bytes) {
    enter(stream->device, true);
    inner_of(stream)->copy(stream->inner, target, source, size_bytes);
    leave(stream->device);
}

static enum status walled_event_create(struct device *base, struct event **event, struct error *error) {
    struct device *inner = ((struct walled_device *)base)->inner;
    return inner->operations->event_create(inner, event, error);
}

static void walled_event_record(struct event *event, struct stream *stream) {
    inner_of(stream)->event_record(event, stream->inner);
}

static void walled_event_wait(struct event *event, struct stream *stream) {
    inner_of(stream)->event_wait(event, stream->inner);
}

static enum status walled_flag_create(struct device *base, struct flag **flag, struct error *error) {
    struct device *inner = ((struct walled_device *)base)->inner;
    return inner->operations->flag_create(inner, flag, error);
}

static void walled_flag_raise(struct device *base, struct flag *flag, uint32_t value) {
    struct device *inner = ((struct walled_device *)base)->inner;
    inner->operations->flag_raise(inner, flag, value);
}

static void walled_flag_signal(struct stream *stream, struct flag *flag, uint32_t value) {
    inner_of(stream)->flag_signal(stream->inner, flag, value);
}

static void walled_flag_wait(struct stream *stream, struct flag *flag, uint32_t value) {
    inner_of(stream)->flag_wait(stream->inner, flag, value);
}

/* ---- operations ---- */

#define WALLED(name)                                                                             \
    static void walled_##name(struct stream *stream, const struct name##_operation *operation) { \
        enter(stream->device, false);                                                            \
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
    struct row_list *lists = operation->lists;
    size_t count = 0, list_count = operation->item_count * operation->kv_head_count;
    for (size_t i = 0; i < list_count; i++)
        count += (size_t)select_item_kept(&operation->items[i / operation->kv_head_count],
                                          i % operation->kv_head_count);
    run_overlap(stream->device);
    own.rows = late_result(stream->device, operation->rows, count * sizeof *own.rows, NULL);
    if (operation->tree_counts != NULL)
        own.tree_counts = late_result(stream->device, NULL, sizeof *own.tree_counts, operation->tree_counts);
    enter(stream->device, false);
    inner_of(stream)->choose(stream->inner, &own);
    leave(stream->device);
    for (size_t i = 0; i < list_count; i++) lists[i].rows = operation->rows + (lists[i].rows - own.rows);
}

/* The operation with items whose lists are as the device has them. */
struct own_rows {
    struct attend_rows_operation operation;
    struct rows_item *items; /* owned */
    struct row_list *lists;  /* owned */
};

static struct own_rows own_rows(const struct walled_device *device,
                                const struct attend_rows_operation *rows) {
    const size_t heads = rows->kv_head_count;
    struct own_rows own = {.operation = *rows,
                           .items = calloc(rows->item_count + 1, sizeof *own.items),
                           .lists = calloc(rows->item_count * heads + 1, sizeof *own.lists)};
    assert_true(own.items != NULL && own.lists != NULL);
    own.operation.items = own.items;
    for (size_t i = 0; i < rows->item_count; i++) {
        own.items[i] = rows->items[i];
        own.items[i].lists = own.lists + i * heads;
        for (size_t head = 0; head < heads; head++)
            own.lists[i * heads + head] = late_list(device, rows->items[i].lists[head]);
    }
    return own;
}

static void own_rows_free(struct own_rows *own) {
    free(own->items);
    free(own->lists);
}

static void walled_attend_rows(struct stream *stream, const struct attend_rows_operation *operation) {
    run_overlap(stream->device);
    struct own_rows own = own_rows(stream->device, operation);
    enter(stream->device, false);
    inner_of(stream)->attend_rows(stream->inner, &own.operation);
    leave(stream->device);
    own_rows_free(&own);
}

/* What follows an attend_rows, and shows it; more: what else changes in the call. */
#define WALLED_BEHIND_ROWS(name, more)                                                           \
    static void walled_##name(struct stream *stream, const struct name##_operation *operation) { \
        struct name##_operation call = *operation;                                               \
        run_overlap(stream->device);                                                             \
        struct own_rows own = own_rows(stream->device, operation->rows);                         \
        call.rows = &own.operation;                                                              \
        more;                                                                                    \
        enter(stream->device, false);                                                            \
        inner_of(stream)->name(stream->inner, &call);                                            \
        leave(stream->device);                                                                   \
        own_rows_free(&own);                                                                     \
    }

/* One result for each query head of each row. */
#define LATE(results)                                        \
    call.results = late_result(stream->device, call.results, \
                               call.rows->item_count * call.rows->head_count * sizeof *call.results, NULL)

WALLED_BEHIND_ROWS(add_mass, )
WALLED_BEHIND_ROWS(attend_rest, )
WALLED_BEHIND_ROWS(mass_bound, LATE(mass_bounds))
WALLED_BEHIND_ROWS(sample_mass, LATE(estimates))

static void walled_key_index_build(struct stream *stream, const struct key_index_operation *operation) {
    enter(stream->device, false);
    inner_of(stream)->key_index_build(stream->inner, operation);
    leave(stream->device);
}

/* ---- life ---- */

static struct pool *walled_pool(struct device *base) {
    return device_pool(((struct walled_device *)base)->inner);
}

static void walled_destroy(struct device *base) {
    struct walled_device *device = (struct walled_device *)base;
    if (device->weights != NULL) walled_release(base, MEMORY_DEVICE, device->weights, WEIGHTS_BYTES);
    assert_int_equal(device->area_count, 0); /* all was released */
    assert_int_equal(device->late_count, 0); /* somebody waited for all results */
    free(device->late);
    device_destroy(device->inner);
    free(device);
}

/* Events and flags are the cpu device's own, so the calls that take nothing else are filled in from its table. */
static const struct device_operations OPERATIONS = {
    .destroy = walled_destroy,
    .pool = walled_pool,
    .allocate = walled_allocate,
    .release = walled_release,
    .adopt_weight = walled_adopt_weight,
    .stream_create = walled_stream_create,
    .stream_destroy = walled_stream_destroy,
    .stream_synchronize = walled_stream_synchronize,
    .overlap = walled_overlap,
    .copy = walled_copy,
    .event_create = walled_event_create,
    .event_record = walled_event_record,
    .event_wait = walled_event_wait,
    .flag_create = walled_flag_create,
    .flag_raise = walled_flag_raise,
    .flag_signal = walled_flag_signal,
    .flag_wait = walled_flag_wait,
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

struct device *walled_device_create(const struct device_options *options, bool reaches_host) {
    struct error error;
    struct walled_device *device = calloc(1, sizeof *device);
    assert_non_null(device);
    assert_ok(device_cpu_create(&device->inner, options, &error), error);
    device->operations = OPERATIONS;
    device->operations.event_destroy = device->inner->operations->event_destroy;
    device->operations.event_done = device->inner->operations->event_done;
    device->operations.flag_destroy = device->inner->operations->flag_destroy;
    device->operations.flag_value = device->inner->operations->flag_value;
    device->device =
        (struct device){.operations = &device->operations, .name = "walled", .reaches_host = reaches_host};
    return &device->device;
}
