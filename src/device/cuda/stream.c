#include "device/cuda/stream.h"

#include <stdio.h>
#include <time.h>

#include "base/assert.h"
#include "device/cuda/graph.h"
#include "platform/clock.h"

static const uint64_t DRAIN_LIMIT_NS = 2000000000u;
/* Before a limit counts: a process that was stopped for a while has asked once in that time. */
enum { ASKS_MIN = 500 };

static uint64_t min_ns(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- work ---- */

void cuda_stream_launch(struct cuda_stream *stream, const struct cuda_launch *launch) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context)) return;
    if (stream->graph != NULL) {
        cuda_graph_add_launch(stream, launch);
        return;
    }
    struct cu_launch_attribute early = {.id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.allowed = 1};
    void *parameters[] = {(void *)(uintptr_t)launch->arguments};
    const struct cu_launch_config config = {
        .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
        .block = {launch->block[0], launch->block[1], launch->block[2]},
        .shared_bytes = launch->shared_bytes,
        .stream = stream->handle,
        .attributes = &early,
        .attribute_count = launch->is_early && cuda_starts_early(context) ? 1 : 0,
    };
    enum cu_result result = context->driver->cuLaunchKernelEx(&config, launch->kernel->function, parameters, NULL);
    if (result != CU_SUCCESS) {
        char what[120];
        snprintf(what, sizeof what, "launching %s", launch->kernel->name);
        (void)cuda_context_check(context, result, what);
        return;
    }
    context->counts.launches++;
}

void cuda_stream_copy(struct cuda_stream *stream, uint64_t target, uint64_t source, size_t size_bytes) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context) || size_bytes == 0) return;
    if (stream->graph != NULL) {
        cuda_graph_add_copy(stream, target, source, size_bytes);
        return;
    }
    enum cu_result result = context->driver->cuMemcpyAsync(target, source, size_bytes, stream->handle);
    if (!cuda_context_check(context, result, "a copy")) return;
    context->counts.copies++;
    context->counts.copied_bytes += size_bytes;
}

void cuda_stream_fill(struct cuda_stream *stream, uint64_t target, uint8_t value, size_t size_bytes) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context) || size_bytes == 0) return;
    if (stream->graph != NULL) {
        cuda_graph_add_fill(stream, target, value, size_bytes);
        return;
    }
    enum cu_result result = context->driver->cuMemsetD8Async(target, value, size_bytes, stream->handle);
    (void)cuda_context_check(context, result, "a fill");
}

/* ---- tickets ---- */

static struct cu_event *event_of(const struct cuda_stream *stream, uint64_t ticket) {
    return stream->events[ticket % CUDA_TICKETS_MAX];
}

/* To a question, which uses no memory: one that lacks some is asked again. */
static bool is_no_answer(enum cu_result result) { return result == CU_NOT_READY || result == CU_OUT_OF_MEMORY; }

/* Asks the driver.  One that fails breaks the context and ends the wait. */
static bool ticket_query(struct cuda_stream *stream, uint64_t ticket) {
    if (ticket <= stream->done) return true;
    ASSERT(ticket <= stream->last);
    enum cu_result result = stream->context->driver->cuEventQuery(event_of(stream, ticket));
    if (is_no_answer(result)) return false;
    if (cuda_context_check(stream->context, result, "waiting for the device")) stream->done = ticket;
    return true;
}

static void limit_passed(struct cuda_context *context, uint64_t waited_ns) {
    const double seconds = (double)waited_ns * 1e-9;
    uint32_t found = 0, expected = 0;
    if (cuda_flags_raise_all(context, &found, &expected))
        error_set(&context->error, STATUS_FAILED, "cuda: no progress for %.1f s: a flag is at %u, expected %u", seconds,
                  found, expected);
    else
        error_set(&context->error, STATUS_FAILED, "cuda: no progress for %.1f s: the device does not answer", seconds);
}

/* Most waits are short, and the driver's answer takes about a microsecond: asks at once for the first rounds. */
static void wait_a_little(uint64_t round) {
    enum { ROUNDS_AT_ONCE = 1000, PAUSE_NS = 20000 };
    if (round >= ROUNDS_AT_ONCE) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* ---- the host's turns ---- */

static struct cu_memory_operation operation_of(uint32_t operation, const struct cuda_flag *flag, uint32_t value) {
    return (struct cu_memory_operation){.operation = operation, .address = cuda_flag_address(flag), .value = value};
}

static bool turn_is_asked(const struct cuda_stream *stream) {
    return stream->turns.left > 0 && cuda_flag_value(&stream->turns.asked) != 0;
}

/* Whether there was one. */
static bool turn_take(struct cuda_stream *stream) {
    struct cuda_turns *turns = &stream->turns;
    ASSERT(!turns->is_taking); /* else it waits for itself */
    if (!cuda_context_works(stream->context) || !turn_is_asked(stream)) return false;
    turns->left--;
    cuda_flag_lower(&turns->asked);
    turns->is_taking = true;
    turns->take(turns->context);
    turns->is_taking = false;
    cuda_flag_raise(&turns->answered, 1);
    stream->asked_ns = 0;
    return true;
}

void cuda_stream_turns_expect(struct cuda_stream *stream, size_t count, void (*take)(void *context), void *context) {
    struct cuda_turns *turns = &stream->turns;
    if (turns->left > 0) cuda_stream_drain(stream);
    turns->left = count;
    turns->take = take;
    turns->context = context;
}

void cuda_stream_turn(struct cuda_stream *stream) {
    struct cuda_context *context = stream->context;
    struct cuda_turns *turns = &stream->turns;
    if (!cuda_context_works(context)) return;
    ASSERT(stream->graph != NULL && context->has_stream_waits);
    if (turns->asked.context == NULL && cuda_flag_create(&turns->asked, context, &context->error) != STATUS_OK) return;
    if (turns->answered.context == NULL && cuda_flag_create(&turns->answered, context, &context->error) != STATUS_OK)
        return;
    cuda_flag_await(&turns->answered, 1);
    struct cu_memory_operation all[] = {operation_of(CU_OPERATION_WRITE_VALUE_32, &turns->asked, 1),
                                        operation_of(CU_OPERATION_WAIT_VALUE_32, &turns->answered, 1),
                                        operation_of(CU_OPERATION_WRITE_VALUE_32, &turns->answered, 0)};
    cuda_graph_add_operations(stream, all, 3);
}

/* ---- waiting ---- */

/* The flags are raised again and again: several replays of a step may wait for the same one. */
void cuda_stream_drain(struct cuda_stream *stream) {
    struct cuda_context *context = stream->context;
    uint64_t since_ns = clock_ns();
    uint64_t asked = 0;
    uint32_t found, expected;
    while (stream->handle != NULL && !context->is_stuck) {
        if (turn_take(stream)) {
            since_ns = clock_ns();
            asked = 0;
        }
        enum cu_result result = context->driver->cuStreamQuery(stream->handle);
        if (!is_no_answer(result)) { /* with an error of the device nothing runs any more */
            (void)cuda_context_check(context, result, "waiting for the device");
            return;
        }
        const uint64_t now_ns = clock_ns(), waited_ns = now_ns - since_ns;
        if (!cuda_context_works(context)) {
            (void)cuda_flags_raise_all(context, &found, &expected);
            context->is_stuck = asked >= ASKS_MIN && waited_ns > min_ns(DRAIN_LIMIT_NS, context->wait_limit_ns);
        } else if (asked >= ASKS_MIN && waited_ns > context->wait_limit_ns) {
            limit_passed(context, waited_ns);
            since_ns = now_ns;
            asked = 0;
        }
        wait_a_little(asked++);
    }
}

bool cuda_ticket_done(struct cuda_stream *stream, uint64_t ticket) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context)) return true;
    const uint64_t seen = stream->done;
    if (ticket_query(stream, ticket)) {
        stream->asked_ns = 0;
        return true;
    }
    (void)ticket_query(stream, stream->done + 1); /* progress, though not to the end */
    const uint64_t now_ns = clock_ns();
    if (stream->asked_ns == 0 || stream->done > seen || turn_is_asked(stream)) {
        stream->asked_ns = now_ns;
        stream->asked_count = 0;
    }
    if (++stream->asked_count < ASKS_MIN || now_ns - stream->asked_ns <= context->wait_limit_ns) return false;
    limit_passed(context, now_ns - stream->asked_ns);
    cuda_stream_drain(stream);
    return true;
}

enum status cuda_ticket_wait(struct cuda_stream *stream, uint64_t ticket, struct error *error) {
    for (uint64_t round = 0; !cuda_ticket_done(stream, ticket); round++) {
        if (turn_take(stream)) round = 0;
        wait_a_little(round);
    }
    return cuda_context_status(stream->context, error);
}

uint64_t cuda_stream_mark(struct cuda_stream *stream) {
    struct cuda_context *context = stream->context;
    if (stream->graph != NULL) {
        stream->marks[++stream->recorded % CUDA_TICKETS_MAX] = stream->needed;
        stream->marks[stream->recorded % CUDA_TICKETS_MAX].is_kernel = false; /* to another stream it is no kernel */
        return stream->recorded;
    }
    if (!cuda_context_works(context)) return stream->last;
    if (stream->last - stream->done >= CUDA_TICKETS_MAX && /* its event is the oldest ticket's */
        cuda_ticket_wait(stream, stream->last + 1 - CUDA_TICKETS_MAX, NULL) != STATUS_OK)
        return stream->last;
    struct cu_event *event = event_of(stream, stream->last + 1);
    if (cuda_context_check(context, context->driver->cuEventRecord(event, stream->handle), "a ticket")) stream->last++;
    return stream->last;
}

static void needed_add(struct cuda_needed *needed, const struct cuda_needed *more) {
    for (size_t i = 0; i < more->count; i++) {
        size_t at = 0;
        while (at < needed->count && needed->nodes[at] != more->nodes[i]) at++;
        if (at < needed->count) continue;
        ASSERT(needed->count < CUDA_NEEDED_MAX);
        needed->nodes[needed->count++] = more->nodes[i];
        needed->is_kernel = false;
    }
}

void cuda_stream_wait(struct cuda_stream *stream, const struct cuda_stream *other, uint64_t ticket) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context)) return;
    if (other->graph != NULL) {
        ASSERT(ticket >= 1 && ticket <= other->recorded && ticket + CUDA_TICKETS_MAX > other->recorded);
        if (stream->graph == NULL) cuda_graph_join(other->graph, stream);
        ASSERT(stream->graph == other->graph);
        needed_add(&stream->needed, &other->marks[ticket % CUDA_TICKETS_MAX]);
        return;
    }
    ASSERT(stream->graph == NULL && ticket <= other->last);
    if (ticket <= other->done) return;
    (void)cuda_context_check(context, context->driver->cuStreamWaitEvent(stream->handle, event_of(other, ticket), 0),
                             "waiting for another stream");
}

/* ---- life ---- */

void cuda_stream_destroy(struct cuda_stream *stream) {
    if (stream->context == NULL) return;
    const struct cuda_driver *driver = stream->context->driver;
    ASSERT(stream->graph == NULL);
    cuda_stream_drain(stream);
    cuda_flag_destroy(&stream->turns.asked);
    cuda_flag_destroy(&stream->turns.answered);
    if (!stream->context->is_stuck) {
        for (size_t i = 0; i < CUDA_TICKETS_MAX; i++)
            if (stream->events[i] != NULL) (void)driver->cuEventDestroy(stream->events[i]);
        if (stream->handle != NULL) (void)driver->cuStreamDestroy(stream->handle);
    }
    *stream = (struct cuda_stream){.context = NULL};
}

enum status cuda_stream_create(struct cuda_stream *stream, struct cuda_context *context, struct error *error) {
    *stream = (struct cuda_stream){.context = context};
    TRY(cuda_context_status(context, error));
    const struct cuda_driver *driver = context->driver;
    enum cu_result result = driver->cuStreamCreate(&stream->handle, CU_STREAM_NON_BLOCKING);
    if (result != CU_SUCCESS) stream->handle = NULL;
    for (size_t i = 0; i < CUDA_TICKETS_MAX && result == CU_SUCCESS; i++) {
        result = driver->cuEventCreate(&stream->events[i], CU_EVENT_DISABLE_TIMING);
        if (result != CU_SUCCESS) stream->events[i] = NULL;
    }
    if (result == CU_SUCCESS) return STATUS_OK;
    cuda_stream_destroy(stream);
    return cuda_driver_error(driver, result, error, "a stream");
}

/* ---- flags ---- */

/* Whether the stream can do it.  If not, the host does it in its place, but not within a recording. */
static bool stream_has_flags(const struct cuda_stream *stream) {
    struct cuda_context *context = stream->context;
    if (!context->has_stream_waits && stream->graph != NULL)
        error_set(&context->error, STATUS_UNSUPPORTED, "cuda: %s: a recorded step cannot wait for the host",
                  context->properties.name);
    return context->has_stream_waits;
}

static void host_waits(struct cuda_context *context, const struct cuda_flag *flag, uint32_t value) {
    const uint64_t begin_ns = clock_ns();
    for (uint64_t round = 0; cuda_flag_value(flag) < value; round++) {
        const uint64_t waited_ns = clock_ns() - begin_ns;
        if (round >= ASKS_MIN && waited_ns > context->wait_limit_ns) {
            limit_passed(context, waited_ns);
            return;
        }
        wait_a_little(round);
    }
}

void cuda_stream_flag_wait(struct cuda_stream *stream, const struct cuda_flag *flag, uint32_t value) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context)) return;
    cuda_flag_await(flag, value);
    if (!stream_has_flags(stream)) {
        if (cuda_context_works(context)) host_waits(context, flag, value);
        return;
    }
    struct cu_memory_operation wait = operation_of(CU_OPERATION_WAIT_VALUE_32, flag, value);
    if (stream->graph != NULL) {
        cuda_graph_add_operations(stream, &wait, 1);
        return;
    }
    enum cu_result result =
        context->driver->cuStreamWaitValue32(stream->handle, wait.address, value, CU_STREAM_WAIT_VALUE_GEQ);
    if (cuda_context_check(context, result, "waiting for a flag")) context->counts.waits++;
}

void cuda_stream_flag_raise(struct cuda_stream *stream, const struct cuda_flag *flag, uint32_t value) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context)) return;
    if (!stream_has_flags(stream)) {
        if (cuda_context_works(context) && cuda_ticket_wait(stream, cuda_stream_mark(stream), NULL) == STATUS_OK)
            cuda_flag_raise(flag, value);
        return;
    }
    struct cu_memory_operation write = operation_of(CU_OPERATION_WRITE_VALUE_32, flag, value);
    if (stream->graph != NULL) {
        cuda_graph_add_operations(stream, &write, 1);
        return;
    }
    (void)cuda_context_check(context, context->driver->cuStreamWriteValue32(stream->handle, write.address, value, 0),
                             "raising a flag");
}

void cuda_stream_flag_take(struct cuda_stream *stream, const struct cuda_flag *flag) {
    struct cuda_context *context = stream->context;
    if (!cuda_context_works(context)) return;
    if (stream->graph == NULL || !context->has_stream_waits) {
        cuda_stream_flag_wait(stream, flag, 1);
        if (context->has_stream_waits)
            cuda_stream_flag_raise(stream, flag, 0);
        else if (cuda_context_works(context))
            cuda_flag_lower(flag);
        return;
    }
    cuda_flag_await(flag, 1);
    struct cu_memory_operation both[] = {operation_of(CU_OPERATION_WAIT_VALUE_32, flag, 1),
                                         operation_of(CU_OPERATION_WRITE_VALUE_32, flag, 0)};
    cuda_graph_add_operations(stream, both, 2);
}
