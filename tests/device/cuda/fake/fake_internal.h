/* fake: a driver without a card.  docs/fake_driver.md describes it.
 *
 *   fake_settings.c  FAKE_CUDA; which call fails
 *   fake_memory.c    allocations, and when the host may touch them
 *   fake_queue.c     tasks, and which one runs next
 *   fake_graph.c     recorded graphs
 *   fake_module.c    PTX and its kernels
 *   fake_api.c       the driver's calls
 * One lock is held through every call, so all of it is one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cuda/driver.h"

/* ---- kernels: fake_examples.c or fake_executor.c has them ---- */

struct fake_kernel;
const struct fake_kernel *fake_kernel_find(const char *name);
size_t fake_kernel_arguments(const struct fake_kernel *kernel); /* bytes of its struct */
/* Runs all of it.  precede (NULL: there is none) is run when one of its threads first waits for what is in front of it,
 * at the latest at its end. */
void fake_kernel_launch(const struct fake_kernel *kernel, const uint32_t grid[3], const uint32_t block[3],
                        uint32_t shared_bytes, const void *arguments, uint64_t seed,
                        void (*precede)(void *context), void *context);

/* ---- settings ---- */

enum { FAKE_FAULTS_MAX = 4, FAKE_DROPS_MAX = 8 };

struct fake_fault {
    char symbol[48]; /* "any": whatever is called; "kernel": not a call but a kernel that runs */
    uint64_t number; /* the n-th, from 1 */
    enum cu_result result;
};

struct fake_settings {
    uint64_t seed, memory_bytes;
    int32_t version, device_count, capability;
    bool has_waits, is_integrated;
    uint64_t can_register; /* 2: the card says so, and the driver refuses */
    uint64_t stuck; /* the n-th kernel never ends; 0: none */
    uint64_t lose;  /* the n-th write of a stream is lost; 0: none */
    struct fake_fault faults[FAKE_FAULTS_MAX];
    size_t fault_count;
    char drops[FAKE_DROPS_MAX][48]; /* kernels that do nothing */
    size_t drop_count;
    char held[200]; /* a file for what is held at most; "": none */
};

extern struct fake_settings fake_settings;
void fake_settings_read(void); /* of the environment; calls are counted anew */
void fake_settings_add(const char *given); /* the same, beside those there are */
void fake_settings_heal(void);                  /* no fault is left */
/* Counts the call, and whether it is one that fails. */
enum cu_result fake_fault_of(const char *symbol);
/* The same for a kernel that is about to run. */
enum cu_result fake_fault_of_kernel(void);
bool fake_is_dropped(const char *kernel);
/* Errors after which a context answers nothing else. */
bool fake_is_fatal(enum cu_result result);

/* ---- memory ---- */

enum fake_memory_kind { FAKE_DEVICE, FAKE_HOST, FAKE_REGISTERED };

enum cu_result fake_memory_create(enum fake_memory_kind kind, void *address, size_t size_bytes,
                                  void **result);
enum cu_result fake_memory_destroy(enum fake_memory_kind kind, void *address);
/* Whether the card reaches all these bytes, within one allocation.  If not, a line on stderr says of whom. */
bool fake_memory_reaches(uint64_t address, size_t size_bytes, const char *who);
bool fake_memory_is_host(const void *address);
uint64_t fake_memory_free_bytes(void);
void fake_memory_open(void); /* device memory may be touched; may be nested */
void fake_memory_close(void);
uint64_t fake_memory_forget(void); /* all of it; how many there were */
void fake_memory_note_launch(void); /* of a graph */

/* ---- tasks ---- */

enum fake_task_kind {
    FAKE_TASK_KERNEL,
    FAKE_TASK_COPY,
    FAKE_TASK_FILL,
    FAKE_TASK_OPERATIONS,
    FAKE_TASK_EMPTY
};

enum { FAKE_OPERATIONS_MAX = 4 };

/* What there is to do; also a node of a graph. */
struct fake_work {
    enum fake_task_kind kind;
    const struct fake_kernel *kernel;
    uint32_t grid[3], block[3], shared_bytes;
    void *arguments; /* owned, malloc */
    bool is_dropped; /* it takes its turn and does nothing */
    bool can_wait;   /* for what is in front of it: its PTX has the word */
    uint64_t target, source;
    size_t size_bytes;
    uint8_t value;
    struct cu_memory_operation operations[FAKE_OPERATIONS_MAX];
    uint32_t operation_count;
};

struct fake_needed {
    uint64_t task;
    bool is_early; /* a programmatic edge */
};

void fake_work_copy(struct fake_work *target, const struct fake_work *source);
void fake_work_free(struct fake_work *work);
enum cu_result fake_work_check(const struct fake_work *work);

/* Takes the work over.  Task numbers rise from 1; 0 is one that is done.  A lane (a stream, or every fourth node of a
 * graph) may be left behind by the others for a while. */
enum { FAKE_LANES = 4 };
uint64_t fake_task_add(struct fake_work *work, const struct fake_needed *needed, size_t needed_count,
                       uint32_t lane);
bool fake_task_is_done(uint64_t task);
bool fake_task_is_kernel(uint64_t task); /* false: done */
uint64_t fake_random(uint64_t bound);
/* Runs some tasks or none.  awaited: the host asks whether that one is done; 0: it asks for nothing. */
void fake_progress(uint64_t awaited);
/* Runs all; a line on stderr and the end of the process where that never ends. */
void fake_drain(const char *why);
void fake_queue_count_anew(void);
void fake_queue_forget(void);
extern enum cu_result fake_error; /* the fatal one that the context met, or CU_SUCCESS */

/* ---- objects ---- */

enum fake_kind { FAKE_CONTEXT, FAKE_STREAM, FAKE_EVENT, FAKE_MODULE, FAKE_FUNCTION, FAKE_GRAPH, FAKE_EXEC };

struct fake_object { /* first in every one; none is freed before the driver starts again */
    enum fake_kind kind;
    bool is_alive;
    struct fake_object *next;
};

void *fake_object_create(enum fake_kind kind, size_t size_bytes);
bool fake_object_is(const void *object, enum fake_kind kind);
void fake_object_destroy(void *object);
uint64_t fake_objects_forget(void); /* frees all; how many were alive, functions aside */

struct cu_stream {
    struct fake_object object;
    uint64_t last; /* task */
    uint32_t lane;
    struct fake_needed *needed; /* what the next task comes after, beside `last`; owned */
    size_t needed_count;
};

struct cu_event {
    struct fake_object object;
    uint64_t task; /* 0: it was not recorded, or the stream was empty */
};

struct cu_module {
    struct fake_object object;
    char *ptx; /* owned */
};

struct cu_function {
    struct fake_object object;
    const struct fake_kernel *kernel;
    bool is_dropped, can_wait;
    uint32_t shared_bytes_max, threads_max;
};

enum cu_result fake_module_load(struct cu_module **module, const char *ptx, char *log, size_t log_bytes);
enum cu_result fake_module_function(struct cu_function **function, const struct cu_module *module,
                                    const char *name);

/* Puts work on a stream, behind what is on it. */
uint64_t fake_stream_add(struct cu_stream *stream, struct fake_work *work, bool is_early);
/* The next work also comes after that task. */
void fake_stream_need(struct cu_stream *stream, uint64_t task);

struct cu_graph_node {
    struct cu_graph *graph;
    size_t index;
    struct fake_work work;
    struct fake_needed *needed; /* owned; task: the index of a node that was added before */
    size_t needed_count;
    struct cu_graph_node *next; /* the one added after it */
};

struct cu_graph {
    struct fake_object object;
    struct cu_graph_node *first, *last; /* owned */
    size_t node_count;
};

struct cu_graph_exec {
    struct fake_object object;
    struct cu_graph *graph; /* owned: a copy, not an object of its own */
    uint64_t last;          /* the end of its last launch */
};

enum cu_result fake_graph_add(struct cu_graph_node **node, struct cu_graph *graph,
                              struct cu_graph_node *const *needed, size_t needed_count,
                              struct fake_work *work);
enum cu_result fake_graph_edges(struct cu_graph *graph, struct cu_graph_node *const *from,
                                struct cu_graph_node *const *to, const struct cu_edge *edges, size_t count);
enum cu_result fake_graph_instantiate(struct cu_graph_exec **exec, const struct cu_graph *graph);
enum cu_result fake_graph_change(struct cu_graph_exec *exec, const struct cu_graph_node *node,
                                 struct fake_work *work); /* takes it over */
void fake_graph_launch(struct cu_graph_exec *exec, struct cu_stream *stream);
void fake_graph_free(struct cu_graph *graph); /* what it owns */
void fake_exec_free(struct cu_graph_exec *exec);

/* A line on stderr. */
void fake_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
