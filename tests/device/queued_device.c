/* The host's part: records are made, and put in line; it draws what is run, hands that to the worker and waits.  The
 * worker's: it runs what it is handed.  What either reads of the other is ordered by a record's launch and by the
 * synchronisation of its stream, and by nothing else that ThreadSanitizer sees (turns): a host that touches what an
 * operation still works on is a race, whatever was drawn. */
#include "queued_device.h"

#include "testing.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/checked.h"
#include "base/random.h"
#include "device/operation_list.h"
#include "platform/clock.h"
#include "platform/pool.h"

enum { AREAS_MAX = 256, WEIGHTS_BYTES = 1 << 30, TURN_MAX = 64, EAGERNESS_MAX = 8 };

struct area {
    void *address;
    size_t bytes; /* of whole pages */
    enum memory_kind kind;
};

/* What an operation has for the host: the device's copy, until the stream is synchronised. */
struct result {
    struct result *next;      /* of its stream, the next one */
    uint8_t *target, *memory; /* memory: owned */
    size_t bytes;
    size_t users;   /* records that name it, and one until it is delivered */
    bool is_listed; /* later operations may be given the target */
    void (*deliver)(const struct result *result);
};

/* The device's copy of what a record names. */
struct staged {
    struct staged *next;
    max_align_t bytes[];
};

struct use {
    struct use *next;
    struct result *result;
};

struct copy_operation {
    struct span target, source;
    size_t size_bytes;
};

/* From or to the device's copy of the host's memory. */
struct transfer_operation {
    struct span span;
    uint8_t *memory;
    size_t size_bytes;
};

/* What was launched. */
struct record {
    struct record *next; /* of its stream, the next one */
    struct stream *stream;
    void (*run)(const struct record *record); /* NULL: the host's turn, in which it waits for the stream */
    struct staged *staged; /* owned */
    struct use *uses;      /* owned */
    uint64_t call;         /* that launched it */
    bool is_ready; /* release by the host, acquire by the worker: all of the above and below is there */
    struct operation_list list; /* owned: a dense operation, or nothing */
    struct operation *listed;   /* in the list, or a graph's */
    union {
        struct key_index_build_operation key_index_build;
        struct choose_operation choose;
        struct attend_rows_operation attend_rows;
        struct add_mass_operation add_mass;
        struct mass_bound_operation mass_bound;
        struct attend_rest_operation attend_rest;
        struct sample_mass_operation sample_mass;
        struct copy_operation copy;
        struct transfer_operation transfer;
    } operation;
};

struct queued_device {
    struct device device; /* first */
    struct device *inner; /* owned */
    struct pool *pool;    /* owned: of the host's work; the inner one is the worker's */
    struct device_operations operations;
    struct area areas[AREAS_MAX];
    size_t area_count;
    struct buffer weights; /* an area of WEIGHTS_BYTES; or no weight was loaded */
    size_t weights_used;
    void (*overlap)(void *context); /* NULL: none is waiting */
    void *overlap_context;
    struct stream *streams; /* owned by their users */
    struct random random;
    bool maps_weights;
    uint64_t eagerness; /* in how many of EAGERNESS_MAX calls something is run */
    uint64_t call;      /* calls so far */
    struct queued_device_counts counts;
    pthread_t worker;
    uint32_t turn; /* enum turn, a futex */
    struct record *in_turn[TURN_MAX];
    size_t turn_count;
};

struct graph {
    struct operation_list list;
};

struct stream {
    struct queued_device *device; /* borrowed */
    struct graph *graph;          /* that is captured; NULL: operations are queued */
    struct stream *inner;         /* owned: the cpu device's */
    struct stream *next;          /* of the device */
    struct record *first, **last; /* not run yet */
    struct record *run;           /* or about to be; freed when the stream is synchronised */
    struct result *results, **last_result;
    uint64_t launched, taken;
    uint64_t done; /* release by the worker, acquire by the host */
};

static const struct device_operations *inner_of(const struct stream *stream) {
    return stream->device->inner->operations;
}

/* ---- turns ---- */

enum turn { TURN_HOST, TURN_WORKER, TURN_END };

/* Unknown to ThreadSanitizer: whose turn it is orders nothing. */
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))

UNSEEN static void turn_give(uint32_t *turn, enum turn whose) {
    __atomic_store_n(turn, (uint32_t)whose, __ATOMIC_SEQ_CST);
    (void)syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

UNSEEN static enum turn turn_wait(uint32_t *turn, enum turn not_this) {
    uint32_t now;
    while ((now = __atomic_load_n(turn, __ATOMIC_SEQ_CST)) == (uint32_t)not_this)
        (void)syscall(SYS_futex, turn, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
    return (enum turn)now;
}

static void *worker_main(void *context) {
    struct queued_device *device = context;
    while (turn_wait(&device->turn, TURN_HOST) == TURN_WORKER) {
        const size_t count = __atomic_load_n(&device->turn_count, __ATOMIC_RELAXED);
        for (size_t i = 0; i < count; i++) {
            const struct record *record = __atomic_load_n(&device->in_turn[i], __ATOMIC_RELAXED);
            ASSERT(__atomic_load_n(&record->is_ready, __ATOMIC_ACQUIRE));
            record->run(record);
            __atomic_fetch_add(&record->stream->done, 1, __ATOMIC_RELEASE);
        }
        turn_give(&device->turn, TURN_HOST);
    }
    return NULL;
}

static void protect_area(void *address, size_t bytes, int protection) {
    ASSERT(mprotect(address, bytes, protection) == 0);
}

/* All of MEMORY_DEVICE but the weights. */
static void protect(const struct queued_device *device, int protection) {
    for (size_t i = 0; i < device->area_count; i++)
        if (device->areas[i].kind == MEMORY_DEVICE &&
            (uintptr_t)device->areas[i].address != device->weights.address)
            protect_area(device->areas[i].address, device->areas[i].bytes, protection);
}

/* The worker runs what was taken, and the host waits. */
static void turn_run(struct queued_device *device) {
    if (device->turn_count == 0) return;
    protect(device, PROT_READ | PROT_WRITE);
    turn_give(&device->turn, TURN_WORKER);
    (void)turn_wait(&device->turn, TURN_WORKER);
    protect(device, PROT_NONE);
    __atomic_store_n(&device->turn_count, 0, __ATOMIC_RELAXED);
}

static struct record *next_leaves(struct stream *stream) {
    struct record *record = stream->first;
    stream->first = record->next;
    if (stream->first == NULL) stream->last = &stream->first;
    record->next = stream->run;
    stream->run = record;
    stream->taken++;
    return record;
}

/* The stream's next record is run in this turn. */
static void take(struct stream *stream) {
    struct queued_device *device = stream->device;
    if (device->turn_count == TURN_MAX) turn_run(device);
    struct record *record = next_leaves(stream);
    device->counts.late += record->call < device->call;
    __atomic_store_n(&device->in_turn[device->turn_count], record, __ATOMIC_RELAXED);
    __atomic_store_n(&device->turn_count, device->turn_count + 1, __ATOMIC_RELAXED);
}

static bool is_host_turn(const struct record *record) { return record->run == NULL; }

/* The host waits for the stream, whose next record is its turn.  The worker sees what it has written by the record
 * behind this one. */
static void host_takes(struct stream *stream) {
    const struct host_turn_operation *turn = &stream->first->listed->as.host_turn;
    const uint64_t launched = stream->launched;
    turn_run(stream->device);
    ASSERT(__atomic_load_n(&stream->done, __ATOMIC_ACQUIRE) == stream->taken);
    turn->take(turn->context, turn->number);
    ASSERT(stream->launched == launched && &stream->first->listed->as.host_turn == turn);
    (void)next_leaves(stream);
    __atomic_fetch_add(&stream->done, 1, __ATOMIC_RELEASE);
    if (stream->first != NULL) __atomic_store_n(&stream->first->is_ready, true, __ATOMIC_RELEASE);
}

/* ---- what is run, and when ---- */

/* One of the streams that can run something, as drawn; NULL: none can. */
static struct stream *draw_stream(struct queued_device *device) {
    struct stream *drawn = NULL;
    uint64_t seen = 0;
    for (struct stream *s = device->streams; s != NULL; s = s->next)
        if (s->first != NULL && !is_host_turn(s->first) && random_below(&device->random, ++seen) == 0) drawn = s;
    return drawn;
}

static bool draw_eager(struct queued_device *device) {
    return random_below(&device->random, EAGERNESS_MAX) < device->eagerness;
}

/* At the end of every call. */
static void run_some(struct queued_device *device) {
    uint64_t waiting = 0;
    for (const struct stream *s = device->streams; s != NULL; s = s->next) waiting += s->launched - s->taken;
    if (waiting == 0 || !draw_eager(device)) return;
    for (uint64_t count = 1 + random_below(&device->random, waiting); count > 0; count--) {
        struct stream *stream = draw_stream(device);
        if (stream == NULL) break;
        take(stream);
    }
    turn_run(device);
}

/* So much of the stream is run, and of others as drawn. */
static void run_up_to(struct ticket ticket) {
    struct stream *stream = ticket.stream;
    struct queued_device *device = stream->device;
    while (stream->taken < ticket.value) {
        struct stream *other = draw_eager(device) ? draw_stream(device) : NULL;
        if (other == NULL && is_host_turn(stream->first))
            host_takes(stream);
        else
            take(other != NULL ? other : stream);
    }
    turn_run(device);
}

/* ---- records ---- */

static struct record *record_create(struct stream *stream, void (*run)(const struct record *record)) {
    ASSERT(stream->graph == NULL); /* only dense operations are captured */
    struct record *record = calloc(1, sizeof *record);
    ASSERT(record != NULL);
    record->stream = stream;
    record->run = run;
    return record;
}

static void run_overlap(struct queued_device *device) {
    void (*work)(void *context) = device->overlap;
    device->overlap = NULL;
    if (work != NULL) work(device->overlap_context);
}

static void launch(struct record *record) {
    struct stream *stream = record->stream;
    struct queued_device *device = stream->device;
    record->call = ++device->call;
    __atomic_store_n(&record->is_ready, true, __ATOMIC_RELEASE);
    *stream->last = record;
    stream->last = &record->next;
    stream->launched++;
    device->counts.launched++;
    run_overlap(device);
    run_some(device);
}

static void *stage_room(struct record *record, size_t bytes) {
    struct staged *staged = malloc(sizeof *staged + bytes);
    ASSERT(staged != NULL);
    staged->next = record->staged;
    record->staged = staged;
    return staged->bytes;
}

static void *stage(struct record *record, const void *source, size_t bytes) {
    return source != NULL ? memcpy(stage_room(record, bytes), source, bytes) : NULL;
}

static void result_leave(struct result *result) {
    if (--result->users > 0) return;
    free(result->memory);
    free(result);
}

static void result_use(struct record *record, struct result *result) {
    struct use *use = malloc(sizeof *use);
    ASSERT(use != NULL);
    *use = (struct use){record->uses, result};
    record->uses = use;
    result->users++;
}

static void record_destroy(struct record *record) {
    operation_list_clear(&record->list);
    for (struct staged *staged = record->staged, *next; staged != NULL; staged = next) {
        next = staged->next;
        free(staged);
    }
    for (struct use *use = record->uses, *next; use != NULL; use = next) {
        next = use->next;
        result_leave(use->result);
        free(use);
    }
    free(record);
}

/* ---- results ---- */

static struct result *result_create(struct record *record, void *target, size_t bytes,
                                    void (*deliver)(const struct result *result)) {
    struct stream *stream = record->stream;
    struct result *result = calloc(1, sizeof *result);
    ASSERT(result != NULL);
    *result = (struct result){.target = target,
                              .memory = calloc(1, max_size(bytes, 1)),
                              .bytes = bytes,
                              .deliver = deliver,
                              .users = 1};
    ASSERT(result->memory != NULL);
    *stream->last_result = result;
    stream->last_result = &result->next;
    return result;
}

static void deliver_bytes(const struct result *result) {
    memcpy(result->target, result->memory, result->bytes);
}

static void deliver_times(const struct result *result) {
    struct select_times *target = (void *)result->target;
    const struct select_times *times = (const void *)result->memory;
    target->score_ns += times->score_ns;
    target->top_k_ns += times->top_k_ns;
    target->attend_ns += times->attend_ns;
}

static void deliver_tree_counts(const struct result *result) {
    tree_counts_add((void *)result->target, (const void *)result->memory);
}

static void deliver_list_rows(const struct result *result) {
    *(uint64_t *)(void *)result->target += *(const uint64_t *)(const void *)result->memory;
}

static void deliver_list_counts(const struct result *result) {
    struct row_list *lists = (void *)result->target;
    const struct row_list *own = (const void *)result->memory;
    for (size_t i = 0; i < result->bytes / sizeof *lists; i++) lists[i].count = own[i].count;
}

/* What is written there, which holds other bytes until then. */
static void *result_bytes(struct record *record, void *target, size_t bytes) {
    struct result *result = result_create(record, target, bytes, deliver_bytes);
    result->is_listed = true;
    memset(target, 0xff, bytes);
    return result->memory;
}

static struct select_times *result_times(struct record *record, struct select_times *times) {
    if (times == NULL) return NULL;
    return (void *)result_create(record, times, sizeof *times, deliver_times)->memory;
}

/* The latest one that will be written there; NULL: the host has it. */
static struct result *result_at(const struct queued_device *device, const void *address) {
    const uint8_t *at = address;
    struct result *found = NULL;
    for (const struct stream *s = device->streams; s != NULL; s = s->next)
        for (struct result *r = s->results; r != NULL; r = r->next)
            if (r->is_listed && at >= r->target && at < r->target + r->bytes) found = r;
    return found;
}

static void results_come(struct stream *stream) {
    while (stream->results != NULL) {
        struct result *result = stream->results;
        stream->results = result->next;
        result->deliver(result);
        result_leave(result);
    }
    stream->last_result = &stream->results;
    while (stream->run != NULL) {
        struct record *record = stream->run;
        stream->run = record->next;
        record_destroy(record);
    }
}

/* ---- memory ---- */

static size_t whole_pages(size_t bytes) {
    return align_up(max_size(bytes, 1), (size_t)sysconf(_SC_PAGESIZE));
}

static enum status queued_allocate(struct device *base, enum memory_kind kind, size_t size_bytes,
                                   struct buffer *buffer, struct error *error) {
    struct queued_device *device = (struct queued_device *)base;
    size_t bytes = whole_pages(size_bytes);
    int protection = kind == MEMORY_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    ASSERT(device->area_count < AREAS_MAX);
    void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return error_set(error, STATUS_MEMORY, "queued device: %zu bytes", bytes);
    device->areas[device->area_count++] = (struct area){memory, bytes, kind};
    *buffer = (struct buffer){.device = base,
                              .kind = kind,
                              .address = (uintptr_t)memory,
                              .host = kind == MEMORY_SHARED ? memory : NULL,
                              .bytes = size_bytes};
    return STATUS_OK;
}

static void queued_release(struct device *base, struct buffer *buffer) {
    struct queued_device *device = (struct queued_device *)base;
    if (!buffer_exists(buffer)) return;
    ASSERT(buffer->device == base);
    size_t i = 0;
    while (i < device->area_count && (uintptr_t)device->areas[i].address != buffer->address) i++;
    ASSERT(i < device->area_count);
    ASSERT(device->areas[i].kind == buffer->kind && device->areas[i].bytes == whole_pages(buffer->bytes));
    ASSERT(munmap(device->areas[i].address, device->areas[i].bytes) == 0);
    device->areas[i] = device->areas[--device->area_count];
    *buffer = (struct buffer){.device = NULL};
}

/* A copy out of the host's reach. */
static enum status queued_weight_load(struct device *base, struct weight *weight, struct error *error) {
    struct queued_device *device = (struct queued_device *)base;
    const struct matrix *matrix = &weight->matrix;
    const size_t bytes = matrix->rows * matrix->row_bytes;
    TRY(device->inner->operations->weight_load(device->inner, weight, error));
    weight->memory.device = base;
    if (device->maps_weights) return STATUS_OK;
    if (!buffer_exists(&device->weights))
        TRY(queued_allocate(base, MEMORY_DEVICE, WEIGHTS_BYTES, &device->weights, error));
    ASSERT(align_up(bytes, 64) <= WEIGHTS_BYTES - device->weights_used);
    weight->memory = (struct buffer){.device = base,
                                     .kind = MEMORY_DEVICE,
                                     .address = device->weights.address + device->weights_used,
                                     .bytes = bytes};
    device->weights_used += align_up(bytes, 64);
    void *weights = (void *)(uintptr_t)device->weights.address;
    protect_area(weights, WEIGHTS_BYTES, PROT_READ | PROT_WRITE);
    memcpy((void *)(uintptr_t)weight->memory.address, matrix->data, bytes);
    protect_area(weights, WEIGHTS_BYTES, PROT_READ);
    return STATUS_OK;
}

static void queued_weight_release(struct device *base, struct weight *weight) {
    ASSERT(!buffer_exists(&weight->memory) || weight->memory.device == base);
    weight->memory = (struct buffer){.device = NULL};
}

/* ---- streams ---- */

static enum status queued_stream_create(struct device *base, struct stream **result, struct error *error) {
    struct queued_device *device = (struct queued_device *)base;
    struct stream *inner, *stream = calloc(1, sizeof *stream);
    ASSERT(stream != NULL);
    TRY(device->inner->operations->stream_create(device->inner, &inner, error));
    *stream = (struct stream){.device = device, .inner = inner, .next = device->streams};
    stream->last = &stream->first;
    stream->last_result = &stream->results;
    device->streams = stream;
    *result = stream;
    return STATUS_OK;
}

static void queued_stream_destroy(struct stream *stream) {
    ASSERT(stream->first == NULL && stream->run == NULL && stream->results == NULL);
    struct stream **at = &stream->device->streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    inner_of(stream)->stream_destroy(stream->inner);
    free(stream);
}

static enum status queued_stream_synchronize(struct stream *stream, struct error *error) {
    ASSERT(stream->graph == NULL);
    stream->device->call++;
    stream->device->counts.waits++;
    run_overlap(stream->device);
    run_up_to((struct ticket){stream, stream->launched});
    ASSERT(__atomic_load_n(&stream->done, __ATOMIC_ACQUIRE) == stream->launched);
    results_come(stream);
    return inner_of(stream)->stream_synchronize(stream->inner, error);
}

static struct ticket queued_ticket(struct stream *stream) {
    return (struct ticket){stream, stream->launched};
}

static bool is_done(struct ticket ticket) {
    return __atomic_load_n(&ticket.stream->done, __ATOMIC_ACQUIRE) >= ticket.value;
}

/* A host that asks again and again is answered at last. */
static bool queued_ticket_done(struct ticket ticket) {
    if (ticket.stream == NULL || is_done(ticket)) return true;
    struct queued_device *device = ticket.stream->device;
    device->call++;
    run_some(device);
    struct stream *stream = is_done(ticket) ? NULL : draw_stream(device);
    if (stream != NULL) take(stream);
    turn_run(device);
    return is_done(ticket);
}

static enum status queued_ticket_wait(struct ticket ticket, struct error *error) {
    if (ticket.stream == NULL) return STATUS_OK;
    ticket.stream->device->call++;
    ticket.stream->device->counts.waits++;
    run_overlap(ticket.stream->device);
    run_up_to(ticket);
    ASSERT(is_done(ticket));
    return inner_of(ticket.stream)->stream_synchronize(ticket.stream->inner, error);
}

static void queued_overlap(struct stream *stream, void (*work)(void *context), void *context) {
    ASSERT(stream->device->overlap == NULL);
    stream->device->overlap = work;
    stream->device->overlap_context = context;
}

/* ---- what operations name ---- */

/* The device's copy of count elements that a member points to. */
#define STAGE(record, member, count) (member) = stage(record, member, (count) * sizeof *(member))

/* The place as it is now: its buffer may become another one before the operation runs. */
static void stage_span(struct record *record, struct span *span) {
    span->buffer = stage(record, span->buffer, sizeof *span->buffer);
}

static void stage_view(struct record *record, struct kv_view *view) {
    STAGE(record, view->layout, 1);
    STAGE(record, view->pools, 1);
    stage_span(record, &view->chunks);
    stage_span(record, &view->quantized);
    stage_span(record, &view->key_index);
}

static const struct attend_item *stage_items(struct record *record, const struct attend_item *items,
                                             size_t count) {
    struct attend_item *own = stage(record, items, count * sizeof *own);
    for (size_t i = 0; i < count; i++) stage_view(record, &own[i].view);
    return own;
}

/* A row's lists, as the device has them. */
static const struct row_list *stage_lists(struct record *record, const struct row_list *lists,
                                          size_t kv_head_count) {
    const struct queued_device *device = record->stream->device;
    struct result *result = result_at(device, lists);
    if (result != NULL) {
        result_use(record, result);
        return (const void *)(result->memory + ((const uint8_t *)lists - result->target));
    }
    struct row_list *own = stage(record, lists, kv_head_count * sizeof *own);
    for (size_t head = 0; head < kv_head_count; head++) stage_span(record, &own[head].rows);
    return own;
}

static void stage_rows(struct record *record, struct attend_rows_operation *rows) {
    struct rows_item *items = stage(record, rows->items, rows->item_count * sizeof *items);
    for (size_t i = 0; i < rows->item_count; i++) {
        stage_view(record, &items[i].view);
        items[i].lists = stage_lists(record, items[i].lists, rows->kv_head_count);
    }
    rows->items = items;
    rows->times = result_times(record, rows->times);
    stage_span(record, &rows->q);
    stage_span(record, &rows->out);
    stage_span(record, &rows->places);
    stage_span(record, &rows->sums);
    stage_span(record, &rows->scores);
}

/* An attend_rows that was there before, for the operation that shows it. */
static const struct attend_rows_operation *stage_shown(struct record *record,
                                                       const struct attend_rows_operation *rows) {
    struct attend_rows_operation *own = stage(record, rows, sizeof *own);
    own->times = NULL;
    stage_rows(record, own);
    return own;
}

/* The lists' places are known when the call returns, and without alpha their lengths. */
static void stage_choose(struct record *record, struct choose_operation *own) {
    const size_t heads = own->kv_head_count, list_count = own->item_count * heads;
    struct select_item *items = stage(record, own->items, own->item_count * sizeof *items);
    struct row_list *lists = own->lists;
    struct span rows = own->rows;
    for (size_t i = 0; i < own->item_count; i++) {
        stage_view(record, &items[i].view);
        STAGE(record, items[i].picks, heads);
        struct kept_list *taken = stage(record, items[i].kept, heads * sizeof *taken);
        for (size_t head = 0; head < heads && taken != NULL; head++) stage_span(record, &taken[head].rows);
        items[i].kept = taken;
        for (size_t head = 0; head < heads; head++) {
            const size_t kept = (size_t)select_item_kept(&items[i], head);
            lists[i * heads + head] = (struct row_list){.rows = rows, .count = kept};
            rows = span_behind(rows, kept * sizeof(uint32_t));
        }
    }
    own->items = items;
    STAGE(record, own->layout, 1);
    stage_span(record, &own->q);
    stage_span(record, &own->weights);
    stage_span(record, &own->rows);
    own->lists = stage_room(record, list_count * sizeof *own->lists);
    if (own->alpha > 0) {
        struct result *result = result_create(record, lists, list_count * sizeof *lists, deliver_list_counts);
        result->is_listed = true;
        own->lists = (void *)result->memory;
        for (size_t i = 0; i < list_count; i++) lists[i].count = SIZE_MAX;
    }
    own->times = result_times(record, own->times);
    if (own->list_rows != NULL)
        own->list_rows =
            (void *)result_create(record, own->list_rows, sizeof *own->list_rows, deliver_list_rows)->memory;
    if (own->tree_counts != NULL)
        own->tree_counts =
            (void *)result_create(record, own->tree_counts, sizeof *own->tree_counts, deliver_tree_counts)
                ->memory;
}

/* ---- dense operations, and graphs of them ---- */

static void run_listed(const struct record *record) {
    operation_launch_now(record->listed, inner_of(record->stream), record->stream->inner);
}

static void queue_listed(struct stream *stream, enum operation_kind kind, const void *operation) {
    struct record *record = record_create(stream, run_listed);
    operation_list_add(&record->list, kind, operation);
    ASSERT(!record->list.failed);
    record->listed = record->list.first;
    launch(record);
}

/* Dense: what a graph may have. */
#define DENSE(KIND, name)                                                                        \
    static void queued_##name(struct stream *stream, const struct name##_operation *operation) { \
        if (stream->graph != NULL)                                                               \
            operation_list_add(&stream->graph->list, OPERATION_##KIND, operation);               \
        else                                                                                     \
            queue_listed(stream, OPERATION_##KIND, operation);                                   \
    }

DENSE_OPERATIONS_OF_GRAPHS(DENSE)
DENSE(COMPARE_LABELS, compare_labels)
DENSE(FETCH, fetch)

static void queued_host_turn(struct stream *stream, const struct host_turn_operation *operation) {
    ASSERT(stream->graph != NULL);
    operation_list_add(&stream->graph->list, OPERATION_HOST_TURN, operation);
}

static enum status queued_graph_begin(struct stream *stream, struct error *error) {
    (void)error;
    ASSERT(stream->graph == NULL);
    stream->graph = calloc(1, sizeof *stream->graph);
    ASSERT(stream->graph != NULL);
    return STATUS_OK;
}

static void queued_graph_destroy(struct graph *graph) {
    if (graph == NULL) return;
    operation_list_clear(&graph->list);
    free(graph);
}

static enum status queued_graph_end(struct stream *stream, struct graph **graph, struct error *error) {
    (void)error;
    ASSERT(!stream->graph->list.failed);
    queued_graph_destroy(*graph);
    *graph = stream->graph;
    stream->graph = NULL;
    stream->device->counts.graphs++;
    return STATUS_OK;
}

/* Each operation is queued by itself: others' may run between them. */
static void queued_graph_launch(struct stream *stream, struct graph *graph) {
    ASSERT(stream->graph == NULL);
    stream->device->counts.graph_launches++;
    for (struct operation *operation = graph->list.first; operation != NULL; operation = operation->next) {
        struct record *record =
            record_create(stream, operation->kind == OPERATION_HOST_TURN ? NULL : run_listed);
        record->listed = operation;
        launch(record);
    }
}

/* ---- other operations ---- */

/* stages: what it names in the host's memory; own is the record's copy of the operation. */
#define QUEUED(name, stages)                                                                     \
    static void run_##name(const struct record *record) {                                        \
        inner_of(record->stream)->name(record->stream->inner, &record->operation.name);          \
    }                                                                                            \
    static void queued_##name(struct stream *stream, const struct name##_operation *operation) { \
        struct record *record = record_create(stream, run_##name);                               \
        struct name##_operation *own = &record->operation.name;                                  \
        *own = *operation;                                                                       \
        stages;                                                                                  \
        launch(record);                                                                          \
    }

/* A result for each query head of each row. */
#define STAGE_RESULTS(results)                        \
    own->results = result_bytes(record, own->results, \
                                own->rows->item_count * own->rows->head_count * sizeof *own->results)
#define STAGE_ITEMS() own->items = stage_items(record, own->items, own->item_count)
#define STAGE_SHOWN() own->rows = stage_shown(record, own->rows)

#define SPAN(member) stage_span(record, &own->member)

QUEUED(key_index_build, STAGE_ITEMS(); STAGE(record, own->layout, 1); SPAN(weights))
QUEUED(choose, stage_choose(record, own))
QUEUED(attend_rows, stage_rows(record, own))
QUEUED(add_mass, STAGE_SHOWN())

#define CAPTURED(KIND, name)                                                                       \
    static void captured_##name(struct stream *stream, const struct name##_operation *operation) { \
        if (stream->graph != NULL)                                                                 \
            operation_list_add(&stream->graph->list, OPERATION_##KIND, operation);                 \
        else                                                                                       \
            queued_##name(stream, operation);                                                      \
    }
CHOOSING_OPERATIONS_OF_GRAPHS(CAPTURED)

QUEUED(mass_bound, STAGE_SHOWN(); STAGE(record, own->layout, 1); STAGE_RESULTS(mass_bounds))
QUEUED(attend_rest, STAGE_SHOWN(); STAGE(record, own->layout, 1))
QUEUED(sample_mass, STAGE_SHOWN(); STAGE(record, own->layout, 1); STAGE_RESULTS(estimates))

static void run_copy(const struct record *record) {
    const struct copy_operation *copy = &record->operation.copy;
    inner_of(record->stream)->copy(record->stream->inner, copy->target, copy->source, copy->size_bytes);
}

static void queued_copy(struct stream *stream, struct span target, struct span source, size_t size_bytes) {
    struct record *record = record_create(stream, run_copy);
    stage_span(record, &target);
    stage_span(record, &source);
    record->operation.copy = (struct copy_operation){target, source, size_bytes};
    launch(record);
}

static void run_upload(const struct record *record) {
    const struct transfer_operation *upload = &record->operation.transfer;
    inner_of(record->stream)->upload(record->stream->inner, upload->span, upload->memory, upload->size_bytes);
}

static void queued_upload(struct stream *stream, struct span target, const void *source, size_t size_bytes) {
    struct record *record = record_create(stream, run_upload);
    stage_span(record, &target);
    record->operation.transfer =
        (struct transfer_operation){target, stage(record, source, size_bytes), size_bytes};
    launch(record);
}

static void run_download(const struct record *record) {
    const struct transfer_operation *download = &record->operation.transfer;
    inner_of(record->stream)
        ->download(record->stream->inner, download->memory, download->span, download->size_bytes);
}

static void queued_download(struct stream *stream, void *target, struct span source, size_t size_bytes) {
    struct record *record = record_create(stream, run_download);
    stage_span(record, &source);
    record->operation.transfer =
        (struct transfer_operation){source, result_bytes(record, target, size_bytes), size_bytes};
    launch(record);
}

/* ---- life ---- */

static struct pool *queued_pool(struct device *base) { return ((struct queued_device *)base)->pool; }

static void queued_destroy(struct device *base) {
    struct queued_device *device = (struct queued_device *)base;
    queued_release(base, &device->weights);
    ASSERT(device->area_count == 0 && device->streams == NULL); /* all was released */
    turn_give(&device->turn, TURN_END);
    ASSERT(pthread_join(device->worker, NULL) == 0);
    device_destroy(device->inner);
    pool_destroy(device->pool);
    free(device);
}

static const struct device_operations OPERATIONS = {
    .destroy = queued_destroy,
    .pool = queued_pool,
    .allocate = queued_allocate,
    .release = queued_release,
    .weight_load = queued_weight_load,
    .weight_release = queued_weight_release,
    .stream_create = queued_stream_create,
    .stream_destroy = queued_stream_destroy,
    .stream_synchronize = queued_stream_synchronize,
    .ticket = queued_ticket,
    .ticket_done = queued_ticket_done,
    .ticket_wait = queued_ticket_wait,
    .overlap = queued_overlap,
    .graph_begin = queued_graph_begin,
    .graph_end = queued_graph_end,
    .graph_launch = queued_graph_launch,
    .graph_destroy = queued_graph_destroy,
    .copy = queued_copy,
    .upload = queued_upload,
    .download = queued_download,
    .embed = queued_embed,
    .matmul = queued_matmul,
    .norm = queued_norm,
    .rope_angles = queued_rope_angles,
    .rope = queued_rope,
    .activation = queued_activation,
    .route = queued_route,
    .matmul_experts = queued_matmul_experts,
    .convolve = queued_convolve,
    .delta = queued_delta,
    .gate = queued_gate,
    .update_places = queued_update_places,
    .append = queued_append,
    .attend = queued_attend,
    .gather = queued_gather,
    .host_turn = queued_host_turn,
    .key_index_build = captured_key_index_build,
    .compare_labels = queued_compare_labels,
    .choose = captured_choose,
    .fetch = queued_fetch,
    .attend_rows = captured_attend_rows,
    .add_mass = queued_add_mass,
    .mass_bound = queued_mass_bound,
    .attend_rest = queued_attend_rest,
    .sample_mass = queued_sample_mass,
};

struct device *queued_device_create(const struct device_options *options, uint64_t seed) {
    struct error error;
    struct queued_device *device = calloc(1, sizeof *device);
    assert_non_null(device);
    assert_ok(device_cpu_create(&device->inner, options, &error), error);
    assert_ok(pool_create(&device->pool, options->thread_count, &error), error);
    device->operations = OPERATIONS;
    device->device = (struct device){
        .operations = &device->operations, .name = "queued", .key_indexes = device->inner->key_indexes};
    random_init(&device->random, seed);
    device->eagerness = random_below(&device->random, EAGERNESS_MAX + 1);
    assert_int_equal(pthread_create(&device->worker, NULL, worker_main, device), 0);
    return &device->device;
}

void queued_device_map_weights(struct device *base) { ((struct queued_device *)base)->maps_weights = true; }

struct queued_device_counts queued_device_counts(const struct device *device) {
    return ((const struct queued_device *)device)->counts;
}
