#include "device/cuda/fake/cuda_programs.h"

#include <dlfcn.h>
#include <string.h>

#include "base/random.h"
#include "device/cuda/fake/fake_control.h"
#include "device/cuda/fake/fake_examples.h"

/* The host has more slots than the device, so that it is not the host's waits that keep the device's apart. */
enum { COUNT = 96, SLOTS = 2, HOST_SLOTS = 4, BYTES = COUNT * sizeof(uint32_t), MAP_COLUMNS = 64 /* halves */ };

const char *const program_symbols[PROGRAM_SYMBOL_COUNT] = {
#define CALL(member, symbol, parameters) [PROGRAM_SYMBOL_##symbol] = #symbol,
    CUDA_DRIVER_CALLS(CALL) CUDA_DRIVER_CALLS_OPTIONAL(CALL)
#undef CALL
};

struct program {
    const struct program_options *options;
    struct random chance;
    struct cuda_driver driver;
    struct cuda_context context;
    struct cuda_modules modules;
    struct cuda_kernel add, sum;
    struct cuda_stream streams[3];
    struct cuda_flag page_ready, answer_ready;
    struct cuda_graph graph;
    struct cuda_buffer block; /* pinned: the addend of a round, a word a slot */
    struct cuda_buffer input[HOST_SLOTS], output[HOST_SLOTS];   /* pinned */
    struct cuda_buffer x[SLOTS], y[SLOTS], addend, total, page; /* of the device */
    struct cuda_buffer total_out;                               /* pinned */
    struct cuda_buffer turn; /* pinned: what the host's turn writes, a word; what the step made of it */
    uint64_t ticket;         /* of the replay */
    bool is_right;
};

static bool has(const struct program *program, enum bug bug) { return program->options->bug == bug; }

static int rounds_of(const struct program *program) {
    return program->options->rounds == 0 ? PROGRAM_ROUNDS : program->options->rounds;
}

/* ---- life ---- */

static const struct cuda_image images[] = {{"examples", 80, EXAMPLE_PTX},
                                           {"examples_sm90a", 90, EXAMPLE_PTX_90}};

static enum status buffers_create(struct program *program, struct error *error) {
    struct cuda_context *context = &program->context;
    for (int i = 0; i < HOST_SLOTS; i++) {
        TRY(cuda_buffer_create_host(&program->input[i], context, BYTES, error));
        TRY(cuda_buffer_create_host(&program->output[i], context, BYTES, error));
    }
    for (int i = 0; i < SLOTS; i++) {
        TRY(cuda_buffer_create(&program->x[i], context, BYTES, error));
        TRY(cuda_buffer_create(&program->y[i], context, BYTES, error));
    }
    TRY(cuda_buffer_create_host(&program->block, context, HOST_SLOTS * sizeof(uint32_t), error));
    TRY(cuda_buffer_create_host(&program->total_out, context, HOST_SLOTS * sizeof(uint32_t), error));
    TRY(cuda_buffer_create_host(&program->turn, context, 2 * sizeof(uint32_t), error));
    TRY(cuda_buffer_create(&program->addend, context, SLOTS * sizeof(uint32_t), error));
    TRY(cuda_buffer_create(&program->page, context, BYTES, error));
    TRY(cuda_buffer_create(&program->total, context, SLOTS * sizeof(uint32_t), error));
    struct tensor_map map; /* that no kernel here reads: for the call */
    (void)cuda_tensor_map(context, &map, program->page.address, MAP_COLUMNS, BYTES / 2 / MAP_COLUMNS, 1);
    return cuda_context_status(context, error);
}

static enum status program_open(struct program *program, struct error *error) {
    const struct cuda_options options = {.wait_limit_ns = program->options->wait_limit_ns};
    TRY(cuda_driver_open(&program->driver, program->options->driver_file, error));
    if (program->options->no_edges) program->driver.cuGraphAddDependencies = NULL;
    TRY(cuda_context_open(&program->context, &program->driver, 0, &options, error));
    TRY(cuda_modules_open(&program->modules, &program->context, images, 2, error));
    TRY(cuda_kernel_find(&program->add, &program->modules, "example_add", 0, error));
    TRY(cuda_kernel_find(&program->sum, &program->modules, "example_sum", 90 << 10, error));
    for (int i = 0; i < 3; i++) TRY(cuda_stream_create(&program->streams[i], &program->context, error));
    TRY(cuda_flag_create(&program->page_ready, &program->context, error));
    TRY(cuda_flag_create(&program->answer_ready, &program->context, error));
    return buffers_create(program, error);
}

static uint64_t leaks_read(const struct cuda_driver *driver) {
    void *address = dlsym(driver->handle, "fake_leak_count");
    fake_leak_count_function *count;
    memcpy(&count, &address, sizeof count);
    return count();
}

static void calls_read(const struct cuda_driver *driver, uint64_t calls[PROGRAM_SYMBOL_COUNT]) {
    void *address = dlsym(driver->handle, "fake_call_count");
    fake_call_count_function *count;
    memcpy(&count, &address, sizeof count);
    for (int i = 0; i < PROGRAM_SYMBOL_COUNT; i++) calls[i] = count(program_symbols[i]);
}

/* Work may be under way where an error ended the program: it is waited for first, as every user must. */
static void program_close(struct program *program, struct program_result *result) {
    for (int i = 0; i < 3; i++) cuda_stream_drain(&program->streams[i]);
    cuda_graph_destroy(&program->graph);
    struct cuda_buffer *buffers[] = {&program->block, &program->addend,    &program->total,
                                     &program->page,  &program->total_out, &program->turn};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) cuda_buffer_destroy(buffers[i]);
    for (int i = 0; i < HOST_SLOTS; i++) {
        cuda_buffer_destroy(&program->input[i]);
        cuda_buffer_destroy(&program->output[i]);
    }
    for (int i = 0; i < SLOTS; i++) {
        cuda_buffer_destroy(&program->x[i]);
        cuda_buffer_destroy(&program->y[i]);
    }
    cuda_flag_destroy(&program->page_ready);
    cuda_flag_destroy(&program->answer_ready);
    for (int i = 0; i < 3; i++) cuda_stream_destroy(&program->streams[i]);
    cuda_modules_close(&program->modules);
    result->counts = program->context.counts;
    result->was_stuck = program->context.is_stuck;
    if (program->driver.handle == NULL) return;
    const bool was_open = program->context.handle != NULL;
    cuda_context_close(&program->context);
    if (was_open && !result->was_stuck) result->leak_count = leaks_read(&program->driver);
    calls_read(&program->driver, result->calls);
    if (!result->was_stuck) cuda_driver_close(&program->driver);
}

/* ---- shared by both ---- */

static uint32_t *words(const struct cuda_buffer *buffer) { return buffer->host; }

static uint64_t word_of(const struct cuda_buffer *buffer, int index) {
    return buffer->address + (uint64_t)index * sizeof(uint32_t);
}

static void add_launch(struct program *program, struct cuda_stream *stream, uint64_t x, uint64_t y,
                       uint64_t addend, bool is_early) {
    const struct example_add_arguments arguments = {.x = x,
                                                    .y = y,
                                                    .addend = addend,
                                                    .count = COUNT,
                                                    .is_careful = !has(program, BUG_NO_DEPENDENCY_WAIT)};
    const uint32_t blocks = COUNT / EXAMPLE_THREADS - has(program, BUG_GRID_TOO_SHORT);
    cuda_stream_launch(stream, &(struct cuda_launch){.kernel = &program->add,
                                                     .grid = {blocks, 1, 1},
                                                     .block = {EXAMPLE_THREADS, 1, 1},
                                                     .arguments = &arguments,
                                                     .is_early = is_early});
}

static void sum_launch(struct program *program, struct cuda_stream *stream, uint64_t x, uint64_t y,
                       bool is_early) {
    const struct example_sum_arguments arguments = {
        .x = x, .y = y, .count = COUNT, .is_careful = !has(program, BUG_NO_DEPENDENCY_WAIT)};
    cuda_stream_launch(stream, &(struct cuda_launch){.kernel = &program->sum,
                                                     .grid = {1, 1, 1},
                                                     .block = {EXAMPLE_THREADS, 1, 1},
                                                     .shared_bytes = 64 << 10,
                                                     .arguments = &arguments,
                                                     .is_early = is_early});
}

static void input_write(struct program *program, uint32_t *input) {
    for (int i = 0; i < COUNT; i++) input[i] = (uint32_t)random_next(&program->chance);
}

/* ---- pipeline: y = x + addend, and the sum of y ---- */

enum { UPLOAD, COMPUTE, DOWNLOAD };

struct rounds { /* what each round of the last HOST_SLOTS was given and has on its way */
    uint32_t input[HOST_SLOTS][COUNT], addend[HOST_SLOTS];
    uint64_t uploaded[HOST_SLOTS], computed[HOST_SLOTS], downloaded[HOST_SLOTS];
};

/* The round that had this one's slot of the device before. */
static int round_before(int round) { return (round + HOST_SLOTS - SLOTS) % HOST_SLOTS; }

static void pipeline_upload(struct program *program, struct rounds *rounds, int round) {
    struct cuda_stream *upload = &program->streams[UPLOAD];
    const int slot = round % SLOTS, at = round % HOST_SLOTS;
    size_t bytes = BYTES;
    if (round >= SLOTS && !has(program, BUG_SLOT_EVICTED))
        cuda_stream_wait(upload, &program->streams[COMPUTE], rounds->computed[round_before(round)]);
    if (has(program, BUG_TICKET_TOO_EARLY)) rounds->uploaded[at] = cuda_stream_mark(upload);
    if (has(program, BUG_COPY_TOO_SHORT)) bytes -= sizeof(uint32_t);
    if (has(program, BUG_BEYOND_THE_END)) bytes += sizeof(uint32_t);
    uint32_t on_stack[COUNT];
    uint64_t source = program->input[at].address;
    if (has(program, BUG_COPY_FROM_STACK)) {
        memcpy(on_stack, program->input[at].host, BYTES);
        source = (uint64_t)(uintptr_t)on_stack;
    }
    cuda_stream_copy(upload, program->x[slot].address, source, bytes);
    cuda_stream_copy(upload, word_of(&program->addend, slot), word_of(&program->block, at), 4);
    if (!has(program, BUG_TICKET_TOO_EARLY)) rounds->uploaded[at] = cuda_stream_mark(upload);
}

static void pipeline_compute(struct program *program, struct rounds *rounds, int round) {
    struct cuda_stream *compute = &program->streams[COMPUTE];
    struct cuda_stream *waiting =
        has(program, BUG_WAIT_ON_WRONG_STREAM) ? &program->streams[DOWNLOAD] : compute;
    const int slot = round % SLOTS, at = round % HOST_SLOTS,
              read = has(program, BUG_WRONG_SLOT) ? 1 - slot : slot;
    if (!has(program, BUG_UPLOAD_NOT_AWAITED))
        cuda_stream_wait(waiting, &program->streams[UPLOAD], rounds->uploaded[at]);
    if (round >= SLOTS && !has(program, BUG_OUTPUT_OVERWRITTEN))
        cuda_stream_wait(compute, &program->streams[DOWNLOAD], rounds->downloaded[round_before(round)]);
    add_launch(program, compute, program->x[read].address, program->y[slot].address,
               word_of(&program->addend, slot), false);
    if (!has(program, BUG_NOT_CLEARED)) cuda_stream_fill(compute, word_of(&program->total, slot), 0, 4);
    sum_launch(program, compute, program->y[slot].address, word_of(&program->total, slot), true);
    rounds->computed[at] = cuda_stream_mark(compute);
}

static void pipeline_download(struct program *program, struct rounds *rounds, int round) {
    struct cuda_stream *download = &program->streams[DOWNLOAD];
    const int slot = round % SLOTS, at = round % HOST_SLOTS;
    if (!has(program, BUG_KERNEL_NOT_AWAITED))
        cuda_stream_wait(download, &program->streams[COMPUTE], rounds->computed[at]);
    cuda_stream_copy(download, program->output[at].address, program->y[slot].address, BYTES);
    cuda_stream_copy(download, word_of(&program->total_out, at), word_of(&program->total, slot), 4);
    rounds->downloaded[at] = cuda_stream_mark(download);
}

static enum status pipeline_check(struct program *program, const struct rounds *rounds, int round,
                                  struct error *error) {
    const int slot = round % SLOTS, at = round % HOST_SLOTS;
    const uint64_t ticket = rounds->downloaded[at] - has(program, BUG_TICKET_OF_ANOTHER);
    uint32_t total = 0;
    if (!has(program, BUG_RESULT_READ_EARLY))
        TRY(cuda_ticket_wait(&program->streams[DOWNLOAD], ticket, error));
    const uint32_t *output = has(program, BUG_HOST_TOUCHES_DEVICE)
                                 ? (const uint32_t *)(uintptr_t)program->y[slot].address
                                 : words(&program->output[at]);
    for (int i = 0; i < COUNT; i++) {
        const uint32_t expected = rounds->input[at][i] + rounds->addend[at];
        if (output[i] != expected) program->is_right = false;
        total += expected;
    }
    if (words(&program->total_out)[at] != total) program->is_right = false;
    return STATUS_OK;
}

static enum status pipeline_run(struct program *program, struct error *error) {
    struct rounds rounds = {0};
    for (int round = 0; round < rounds_of(program) && program->is_right; round++) {
        const int at = round % HOST_SLOTS;
        if (round >= HOST_SLOTS) TRY(pipeline_check(program, &rounds, round - HOST_SLOTS, error));
        if (round == HOST_SLOTS && has(program, BUG_FREED_TOO_EARLY)) {
            struct cuda_buffer freed = program->x[0]; /* and its address stays in use */
            cuda_buffer_destroy(&freed);
        }
        input_write(program, rounds.input[at]);
        rounds.addend[at] = (uint32_t)random_next(&program->chance);
        memcpy(program->input[at].host, rounds.input[at], BYTES);
        words(&program->block)[at] = rounds.addend[at];
        pipeline_upload(program, &rounds, round);
        if (has(program, BUG_INPUT_OVERWRITTEN)) {
            memset(program->input[at].host, 0, BYTES); /* as if the next round's came already */
            words(&program->block)[at] = 0;
        }
        pipeline_compute(program, &rounds, round);
        pipeline_download(program, &rounds, round);
    }
    for (int round = rounds_of(program) - HOST_SLOTS; round < rounds_of(program) && program->is_right;
         round++)
        TRY(pipeline_check(program, &rounds, round, error));
    return STATUS_OK;
}

/* ---- step: a page comes from the host, is added to twice, and summed beside ---- */

static uint32_t turn_word(const struct program *program) { return words(&program->total_out)[0] * 7 + 1; }

static void turn_take(void *context) {
    struct program *program = context;
    struct cuda_stream *stream = &program->streams[0];
    if (has(program, BUG_TURN_ANSWERED_EARLY)) cuda_flag_raise(&stream->turns.answered, 1);
    for (int i = 0; i < 8; i++) (void)cuda_ticket_done(stream, program->ticket); /* the disk takes its time */
    words(&program->turn)[0] = turn_word(program);
}

static void step_turn(const struct program *program, struct cuda_stream *stream) {
    struct cuda_turns *turns = &stream->turns;
    struct cuda_context *context = stream->context;
    if (!has(program, BUG_TURN_NOT_AWAITED) && !has(program, BUG_TURN_NOT_LOWERED)) {
        cuda_stream_turn(stream);
        return;
    }
    if (turns->asked.context == NULL && (cuda_flag_create(&turns->asked, context, &context->error) != STATUS_OK ||
                                         cuda_flag_create(&turns->answered, context, &context->error) != STATUS_OK))
        return;
    cuda_stream_flag_raise(stream, &turns->asked, 1);
    if (has(program, BUG_TURN_NOT_LOWERED)) cuda_stream_flag_wait(stream, &turns->answered, 1);
}

static void step_record(struct program *program, uint64_t addend) {
    struct cuda_stream *main_stream = &program->streams[0], *side = &program->streams[1];
    const uint64_t x = program->page.address, y = program->y[0].address, z = program->y[1].address;
    cuda_stream_copy(main_stream, program->addend.address, program->block.address, 4);
    cuda_stream_fill(main_stream, program->total.address, 0, 4);
    if (has(program, BUG_FLAG_NOT_LOWERED))
        cuda_stream_flag_wait(main_stream, &program->page_ready, 1);
    else if (!has(program, BUG_FLAG_NOT_AWAITED))
        cuda_stream_flag_take(main_stream, &program->page_ready);
    cuda_stream_copy(main_stream, x, program->input[0].address, BYTES);
    add_launch(program, main_stream, x, y, addend, true); /* behind a copy: an ordinary edge */
    if (has(program, BUG_FORK_NOT_AWAITED)) {
        const struct cuda_needed before = main_stream->needed;
        main_stream->needed.count = 0;
        cuda_stream_wait(side, main_stream, cuda_stream_mark(main_stream));
        main_stream->needed = before;
    } else {
        cuda_stream_wait(side, main_stream, cuda_stream_mark(main_stream));
    }
    sum_launch(program, side, y, program->total.address, false);
    add_launch(program, main_stream, y, z, addend, true);
    add_launch(program, main_stream, z, program->x[0].address, addend, true);
    if (!has(program, BUG_JOIN_NOT_AWAITED)) cuda_stream_wait(main_stream, side, cuda_stream_mark(side));
    if (has(program, BUG_ANSWER_FLAG_EARLY)) cuda_stream_flag_raise(main_stream, &program->answer_ready, 1);
    cuda_stream_copy(main_stream, program->output[0].address, program->x[0].address, BYTES);
    cuda_stream_copy(main_stream, program->total_out.address, program->total.address, 4);
    if (!has(program, BUG_ANSWER_FLAG_EARLY) && !has(program, BUG_ANSWER_FLAG_MISSING))
        cuda_stream_flag_raise(main_stream, &program->answer_ready, 1);
    step_turn(program, main_stream);
    cuda_stream_copy(main_stream, word_of(&program->turn, 1), word_of(&program->turn, 0), 4);
}

/* The host looks for the answer's flag while it asks for progress, as a program does that has other things to do. */
static enum status answer_await(struct program *program, uint64_t ticket, struct error *error) {
    struct cuda_stream *stream = &program->streams[0];
    while (cuda_flag_value(&program->answer_ready) == 0)
        if (cuda_ticket_done(stream, ticket) || cuda_flag_value(&stream->turns.asked) != 0) break;
    TRY(cuda_context_status(&program->context, error));
    if (cuda_flag_value(&program->answer_ready) == 0) program->is_right = false;
    cuda_flag_lower(&program->answer_ready);
    return STATUS_OK;
}

static enum status step_replay(struct program *program, struct error *error) {
    struct cuda_stream *stream = &program->streams[0];
    uint32_t input[COUNT], total = 0;
    input_write(program, input);
    const uint32_t addend = (uint32_t)random_next(&program->chance);
    words(&program->block)[0] = addend;
    const int launches = has(program, BUG_NOT_REPLAYED) ? 0 : has(program, BUG_FLAG_NEVER_RAISED) ? 3 : 1;
    cuda_stream_turns_expect(stream, (size_t)launches, turn_take, program);
    for (int i = 0; i < launches; i++) cuda_graph_launch(&program->graph, stream);
    const uint64_t ticket = program->ticket = cuda_stream_mark(stream);
    if (has(program, BUG_FLAG_RAISED_EARLY)) cuda_flag_raise(&program->page_ready, 1);
    if (has(program, BUG_BLOCK_OVERWRITTEN)) words(&program->block)[0] = 0;
    for (int i = 0; i < 8; i++) (void)cuda_ticket_done(stream, ticket); /* the disk takes its time */
    memcpy(program->input[0].host, input, BYTES);
    if (!has(program, BUG_FLAG_RAISED_EARLY) && !has(program, BUG_FLAG_NEVER_RAISED))
        cuda_flag_raise(&program->page_ready, 1);
    if (has(program, BUG_FLAG_NEVER_RAISED)) TRY(cuda_ticket_wait(stream, ticket, error));
    TRY(answer_await(program, ticket, error));
    for (int i = 0; i < COUNT; i++) {
        if (words(&program->output[0])[i] != input[i] + 3 * addend) program->is_right = false;
        total += input[i] + addend;
    }
    if (words(&program->total_out)[0] != total) program->is_right = false;
    memset(program->output[0].host, 0, BYTES);
    TRY(cuda_ticket_wait(stream, ticket, error));
    if (words(&program->turn)[1] != turn_word(program)) program->is_right = false;
    return STATUS_OK;
}

static enum status step_make(struct program *program, uint64_t addend, struct error *error) {
    TRY(cuda_graph_begin(&program->graph, &program->streams[0], error));
    step_record(program, addend);
    return cuda_graph_end(&program->graph, error);
}

/* Made for another addend at first, and changed, or, where the driver refuses, made anew. */
static enum status step_run(struct program *program, struct error *error) {
    TRY(step_make(program, program->total.address, error));
    TRY(cuda_graph_begin_change(&program->graph, &program->streams[0], error));
    step_record(program, program->addend.address);
    TRY(cuda_graph_end(&program->graph, error));
    if (program->graph.differs) {
        cuda_graph_destroy(&program->graph);
        TRY(step_make(program, program->addend.address, error));
    }
    for (int round = 0; round < rounds_of(program) && program->is_right; round++)
        TRY(step_replay(program, error));
    return STATUS_OK;
}

/* ---- either ---- */

static enum status program_run(const struct program_options *options, struct program_result *result,
                               enum status (*run)(struct program *program, struct error *error),
                               struct error *error) {
    struct program program = {.options = options, .is_right = true};
    *result = (struct program_result){.is_right = false};
    random_init(&program.chance, options->seed);
    enum status status = program_open(&program, error);
    if (status == STATUS_OK) status = run(&program, error);
    result->is_right = program.is_right && status == STATUS_OK;
    result->early_count = program.graph.early_count;
    program_close(&program, result);
    return status;
}

enum status program_pipeline(const struct program_options *options, struct program_result *result,
                             struct error *error) {
    return program_run(options, result, pipeline_run, error);
}

enum status program_step(const struct program_options *options, struct program_result *result,
                         struct error *error) {
    return program_run(options, result, step_run, error);
}
