/* Graphs: nodes in the order in which they were added, with edges from earlier ones. */
#include <stdlib.h>
#include <string.h>

#include "device/cuda/fake/fake_internal.h"

/* ---- streams ---- */

static void needed_add(struct fake_needed **needed, size_t *count, struct fake_needed more) {
    *needed = realloc(*needed, (*count + 1) * sizeof **needed);
    if (*needed == NULL) abort();
    (*needed)[(*count)++] = more;
}

void fake_stream_need(struct cu_stream *stream, uint64_t task) {
    if (!fake_task_is_done(task))
        needed_add(&stream->needed, &stream->needed_count, (struct fake_needed){task, false});
}

uint64_t fake_stream_add(struct cu_stream *stream, struct fake_work *work, bool is_early) {
    if (stream->last != 0)
        needed_add(&stream->needed, &stream->needed_count,
                   (struct fake_needed){stream->last, is_early && stream->needed_count == 0 &&
                                                          fake_task_is_kernel(stream->last)});
    stream->last = fake_task_add(work, stream->needed, stream->needed_count, stream->lane);
    free(stream->needed);
    stream->needed = NULL;
    stream->needed_count = 0;
    return stream->last;
}

/* ---- graphs ---- */

enum cu_result fake_graph_add(struct cu_graph_node **node, struct cu_graph *graph,
                              struct cu_graph_node *const *needed, size_t needed_count,
                              struct fake_work *work) {
    struct cu_graph_node *made = calloc(1, sizeof *made);
    if (made == NULL) abort();
    made->graph = graph;
    made->index = graph->node_count++;
    made->work = *work;
    for (size_t i = 0; i < needed_count; i++)
        needed_add(&made->needed, &made->needed_count, (struct fake_needed){needed[i]->index, false});
    if (graph->last == NULL)
        graph->first = made;
    else
        graph->last->next = made;
    graph->last = made;
    *node = made;
    return CU_SUCCESS;
}

enum cu_result fake_graph_edges(struct cu_graph *graph, struct cu_graph_node *const *from,
                                struct cu_graph_node *const *to, const struct cu_edge *edges, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const bool is_early = edges != NULL && edges[i].type == CU_EDGE_PROGRAMMATIC;
        const bool are_kernels =
            from[i]->work.kind == FAKE_TASK_KERNEL && to[i]->work.kind == FAKE_TASK_KERNEL;
        if (from[i]->graph != graph || to[i]->graph != graph || from[i]->index >= to[i]->index)
            return CU_INVALID_VALUE;
        if (edges != NULL &&
            (edges[i].from_port != (is_early ? CU_PORT_PROGRAMMATIC : 0) || edges[i].to_port != 0))
            return CU_INVALID_VALUE;
        if (is_early && (!are_kernels || fake_settings.capability < 90)) return CU_INVALID_VALUE;
        needed_add(&to[i]->needed, &to[i]->needed_count, (struct fake_needed){from[i]->index, is_early});
    }
    return CU_SUCCESS;
}

void fake_graph_free(struct cu_graph *graph) {
    while (graph->first != NULL) {
        struct cu_graph_node *node = graph->first;
        graph->first = node->next;
        fake_work_free(&node->work);
        free(node->needed);
        free(node);
    }
    graph->last = NULL;
}

void fake_exec_free(struct cu_graph_exec *exec) {
    if (exec->graph == NULL) return;
    fake_graph_free(exec->graph);
    free(exec->graph);
    exec->graph = NULL;
}

enum cu_result fake_graph_instantiate(struct cu_graph_exec **exec, const struct cu_graph *graph) {
    struct cu_graph_exec *made = fake_object_create(FAKE_EXEC, sizeof *made);
    made->graph = calloc(1, sizeof *made->graph);
    if (made->graph == NULL) abort();
    for (const struct cu_graph_node *node = graph->first; node != NULL; node = node->next) {
        struct fake_work work;
        struct cu_graph_node *copy = NULL;
        fake_work_copy(&work, &node->work);
        (void)fake_graph_add(&copy, made->graph, NULL, 0, &work);
        for (size_t i = 0; i < node->needed_count; i++)
            needed_add(&copy->needed, &copy->needed_count, node->needed[i]);
    }
    *exec = made;
    return CU_SUCCESS;
}

/* A kernel of a graph that was made ready does other work from the next launch on. */
enum cu_result fake_graph_change(struct cu_graph_exec *exec, const struct cu_graph_node *node,
                                 struct fake_work *work) {
    struct cu_graph_node *own = exec->graph->first;
    while (own != NULL && own->index != node->index) own = own->next;
    if (own == NULL || !fake_object_is(node->graph, FAKE_GRAPH) || own->work.kind != FAKE_TASK_KERNEL) {
        fake_work_free(work);
        return CU_INVALID_VALUE;
    }
    fake_work_free(&own->work);
    own->work = *work;
    return CU_SUCCESS;
}

/* Writes in front of a wait are done while it waits. */
static uint32_t writes_before_wait(const struct fake_work *work) {
    if (work->kind != FAKE_TASK_OPERATIONS) return 0;
    for (uint32_t i = 0; i < work->operation_count; i++)
        if (work->operations[i].operation == CU_OPERATION_WAIT_VALUE_32) return i;
    return 0;
}

static uint64_t node_add(struct fake_work *work, const struct fake_needed *needed, size_t needed_count,
                         uint32_t lane) {
    const uint32_t before = writes_before_wait(work);
    if (before == 0) return fake_task_add(work, needed, needed_count, lane);
    struct fake_work writes = *work;
    writes.operation_count = before;
    work->operation_count -= before;
    memmove(work->operations, work->operations + before, work->operation_count * sizeof *work->operations);
    const uint64_t first = fake_task_add(&writes, needed, needed_count, lane);
    return fake_task_add(work, &(struct fake_needed){first, false}, 1, lane);
}

/* Every node comes after what the stream has and after the last launch of this graph; the stream goes on after all. */
void fake_graph_launch(struct cu_graph_exec *exec, struct cu_stream *stream) {
    fake_memory_note_launch();
    const size_t count = exec->graph->node_count;
    size_t needed_max = count;
    for (const struct cu_graph_node *node = exec->graph->first; node != NULL; node = node->next)
        if (node->needed_count > needed_max) needed_max = node->needed_count;
    if (exec->last != 0)
        needed_add(&stream->needed, &stream->needed_count, (struct fake_needed){exec->last, false});
    struct fake_work nothing = {.kind = FAKE_TASK_EMPTY};
    const uint64_t begin = fake_stream_add(stream, &nothing, false);
    uint64_t *numbers = calloc(count + 1, sizeof *numbers);
    struct fake_needed *needed = calloc(needed_max + 1, sizeof *needed);
    if (numbers == NULL || needed == NULL) abort();
    for (const struct cu_graph_node *node = exec->graph->first; node != NULL; node = node->next) {
        struct fake_work work;
        fake_work_copy(&work, &node->work);
        needed[0] = (struct fake_needed){begin, false};
        for (size_t i = 0; i < node->needed_count; i++)
            needed[i + 1] = (struct fake_needed){numbers[node->needed[i].task], node->needed[i].is_early};
        numbers[node->index] = node_add(&work, needed, node->needed_count + 1, (uint32_t)node->index);
    }
    for (size_t i = 0; i < count; i++) needed[i] = (struct fake_needed){numbers[i], false};
    exec->last = stream->last = fake_task_add(&nothing, needed, count, stream->lane);
    free(numbers);
    free(needed);
}
