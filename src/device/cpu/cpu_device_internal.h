/* cpu_device: the processor as a device, over a pool of threads.
 *
 * Every operation is one function on the engine's thread: it plans (what is to be done, in units that
 * do not depend on the number of threads), reserves what scratch it needs, and runs the units either on
 * the pool or, where waking threads costs more than the work, on the caller alone.
 *
 *   1  A unit's result depends on the operation only, never on which thread computes it or on how many
 *      there are: results are bit-identical for any thread count.
 *   2  Units write disjoint memory; what one phase reads of another lies behind a barrier.
 *   3  Scratch is one area that only grows, so after the largest shapes have been seen once an
 *      operation makes no system call and no allocation (scratch_growths counts them).
 *   4  An operation that cannot get scratch does nothing, and the device remembers why.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/layout.h"
#include "base/status.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "platform/pool.h"

enum { GROUP_MAX = 64 }; /* query heads of a KV head */

struct cpu_device {
    struct device device; /* first: a struct device * is a struct cpu_device * */
    struct pool *pool;    /* owned */
    size_t thread_count;
    struct error error; /* the first error; status OK while the device works */
    struct buffer scratch;
    uint64_t scratch_growths;
    void (*overlap)(void *context); /* the caller's work before its part of the next run; NULL: none */
    void *overlap_context;
    bool runs_overlap; /* the caller is in a run of the pool */
    /* By weight type: up to how many inputs go through matvec; more go through matmul, and up to how many of these
     * through matmul_kernels.few (0: none). */
    uint16_t matvec_inputs[MATVEC_TYPES], few_inputs[MATVEC_TYPES];
    struct kernels kernels;
};

struct stream {
    struct cpu_device *device; /* borrowed */
    struct graph *graph;       /* owned: that is captured; NULL: operations run */
};

/* The scratch area: at least size_bytes, 64-byte aligned, contents undefined, valid until the next call.  NULL: out
 * of memory, and the device is broken. */
uint8_t *cpu_scratch_reserve(struct cpu_device *device, size_t size_bytes);

enum status cpu_allocate(struct device *device, enum memory_kind kind, size_t size_bytes, struct buffer *buffer,
                         struct error *error);
void cpu_release(struct device *device, struct buffer *buffer);

/* Where a span is; NULL: nowhere. */
static inline void *cpu_address(struct span span) {
    return span.buffer == NULL ? NULL : (void *)(uintptr_t)(span.buffer->address + span.offset);
}
static inline float *cpu_floats(struct span span) { return cpu_address(span); }
static inline uint16_t *cpu_halves(struct span span) { return cpu_address(span); }
static inline struct softmax_sum *cpu_sums(struct span span) { return cpu_address(span); }
static inline const struct step_row *cpu_step(struct span span) { return cpu_address(span); }
static inline const uint32_t *cpu_places(struct span table) { return cpu_address(table); }
/* NULL: nowhere. */
static inline void *cpu_chunk(const struct kv_pools *pools, uint32_t place) {
    return cpu_address(kv_pools_chunk(pools, place));
}
static inline uint32_t *cpu_rows(struct row_list list) { return cpu_address(list.rows); }
/* Of a unit of a chunk in 4 bits fetch leaves the chunk's address with this mark and the unit's number in the chunk. */
enum { CPU_Q4_UNIT = 8, CPU_Q4_MARKS = 15 };
/* The weight as kernels take it. */
static inline struct matrix cpu_matrix(const struct weight *weight) {
    struct matrix matrix = weight->matrix;
    matrix.data = (const void *)(uintptr_t)weight->memory.address;
    return matrix;
}

/* Runs the task on every thread, or, with `alone`, on the caller as the only worker, without a pool: such a task may
 * call pool_range, cpu_ticket and cpu_barrier, but neither tickets nor barriers of the pool. */
void cpu_run(struct cpu_device *device, bool alone, pool_task *task, void *context);
/* The run of a task that needs no more than its operation. */
struct operation_run {
    const struct kernels *kernels;
    const void *operation;
};
static inline void cpu_run_operation(struct stream *stream, const void *operation, bool alone, pool_task *task) {
    struct operation_run run = {&stream->device->kernels, operation};
    cpu_run(stream->device, alone, task, &run);
}
/* Does the caller's pending work now, if there is any. */
void cpu_run_overlap(struct cpu_device *device);

/* What looks again at the lists that attend_rows has attended to.  A unit of work is one KV head of one item. */
struct heads_run {
    struct cpu_device *device;
    const void *operation; /* the caller's, behind: */
    const struct attend_rows_operation *rows;
    const struct kv_layout *kv; /* of the items */
    size_t group;               /* query heads of a KV head */
};
struct head_unit {
    const struct rows_item *item;
    struct row_list list;
    const uint32_t *places;         /* of the key index */
    size_t head_first;              /* of the group, among all items' query heads, */
    size_t head;                    /* and among the item's own */
    const float *q;                 /* [group][k_dimension] */
    const struct softmax_sum *sums; /* [group] */
};
typedef void head_function(const struct heads_run *run, const struct head_unit *unit, struct layout *scratch);
/* rows: with items, which have a key index. */
struct heads_run cpu_heads_of(struct stream *stream, const void *operation, const struct attend_rows_operation *rows);
/* scratch_bytes: of a thread. */
void cpu_run_heads(const struct heads_run *run, size_t scratch_bytes, bool alone, head_function *function);
static inline void cpu_barrier(const struct pool_worker *worker) {
    if (worker->pool != NULL) pool_barrier(worker);
}
/* `alone_next` is the run's own counter, for the worker without a pool. */
static inline size_t cpu_ticket(const struct pool_worker *worker, size_t *alone_next) {
    return worker->pool != NULL ? pool_ticket(worker) : (*alone_next)++;
}
/* Whether a thread that begins a unit should draw its next one now, so that this unit can prefetch for it at its end.
 * Not near the end, where another thread would wait for the drawn unit. */
static inline bool cpu_draws_early(const struct pool_worker *worker, size_t unit, size_t unit_count) {
    return unit + 2 * worker->count < unit_count;
}

/* Rows that one query attends to.  Cuts depend only on their number: partials over the ranges are merged in order. */
struct cpu_ranges {
    uint64_t rows; /* of each but the last */
    size_t count;
};
struct cpu_ranges cpu_ranges_of(uint64_t row_count);
/* Of a group's heads: m[group], s[group], o[group][dimension] (kernels/attention/attention.h). */
struct cpu_partial {
    float *m, *s, *o;
};
/* Merges the heads' sinks, [group] or NULL, into a partial. */
void cpu_merge_sinks(const struct attention_kernels *kernels, const float *sinks, size_t group, size_t dimension,
                     struct cpu_partial partial);

/* The table of every cpu device.  What no method of loam's asks for is NULL, until a program adds it before main. */
extern struct device_operations cpu_operations;

/* Fills matvec_inputs and few_inputs for the device's kernels. */
void cpu_matmul_init(struct cpu_device *device, cpu_mask mask);
/* How so many inputs multiply with a weight of this type; NULL: through matvec. */
const struct matmul_method *cpu_matmul_method(const struct cpu_device *device, enum tensor_type type,
                                              size_t input_count);
/* A matrix times prepared inputs; method NULL: through matvec, whose inputs are input_bytes apart. */
void cpu_multiply(const struct cpu_device *device, const struct matmul_method *method, size_t input_bytes,
                  const struct matmul_args *args);
void cpu_matmul(struct stream *stream, const struct matmul_operation *operation);
void cpu_update_places(struct stream *stream, const struct update_places_operation *operation);
/* The addresses of what `count` places name, NULL of PLACE_NOWHERE. */
void cpu_find_chunks(const struct kv_pools *pools, const uint32_t *places, size_t count, void **chunks);
void cpu_append(struct stream *stream, const struct append_operation *operation);
void cpu_attend(struct stream *stream, const struct attend_operation *operation);
void cpu_embed(struct stream *stream, const struct embed_operation *operation);
void cpu_norm(struct stream *stream, const struct norm_operation *operation);
void cpu_rope_angles(struct stream *stream, const struct rope_angles_operation *operation);
void cpu_rope(struct stream *stream, const struct rope_operation *operation);
void cpu_activation(struct stream *stream, const struct activation_operation *operation);
void cpu_route(struct stream *stream, const struct route_operation *operation);
void cpu_matmul_experts(struct stream *stream, const struct matmul_experts_operation *operation);
void cpu_convolve(struct stream *stream, const struct convolve_operation *operation);
void cpu_delta(struct stream *stream, const struct delta_operation *operation);
void cpu_gate(struct stream *stream, const struct gate_operation *operation);
void cpu_gather(struct stream *stream, const struct gather_operation *operation);
void cpu_key_index_build(struct stream *stream, const struct key_index_build_operation *operation);
void cpu_compare_labels(struct stream *stream, const struct compare_labels_operation *operation);
void cpu_choose(struct stream *stream, const struct choose_operation *operation);
void cpu_fetch(struct stream *stream, const struct fetch_operation *operation);
void cpu_attend_rows(struct stream *stream, const struct attend_rows_operation *operation);
void cpu_sample_mass(struct stream *stream, const struct sample_mass_operation *operation);
