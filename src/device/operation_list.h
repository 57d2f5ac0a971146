/* operation_list: operations that are run later, or again and again.
 *
 * An operation that is added is a copy: of what it names in the host's memory, and of the buffers that its spans name.
 * So the caller may change all of that at once.  A graph of the cpu device is such a list. */
#pragma once

#include "device/device.h"

enum operation_kind {
    OPERATION_EMBED,
    OPERATION_MATMUL,
    OPERATION_NORM,
    OPERATION_ROPE_ANGLES,
    OPERATION_ROPE,
    OPERATION_ACTIVATION,
    OPERATION_ROUTE,
    OPERATION_MATMUL_EXPERTS,
    OPERATION_CONVOLVE,
    OPERATION_DELTA,
    OPERATION_GATE,
    OPERATION_UPDATE_PLACES,
    OPERATION_APPEND,
    OPERATION_ATTEND,
    OPERATION_GATHER,
    OPERATION_KEEP_ROWS,
    OPERATION_BESIDE,
    OPERATION_HOST_TURN,
    OPERATION_KEY_INDEX_BUILD,
    OPERATION_CHOOSE,
    OPERATION_COMPARE_LABELS,
    OPERATION_FETCH,
    OPERATION_ATTEND_ROWS,
};

/* Those that graphs have (device.h): X(kind, name). */
#define DENSE_OPERATIONS_OF_GRAPHS(X) \
    X(EMBED, embed)                   \
    X(MATMUL, matmul)                 \
    X(NORM, norm)                     \
    X(ROPE_ANGLES, rope_angles)       \
    X(ROPE, rope)                     \
    X(ACTIVATION, activation)         \
    X(ROUTE, route)                   \
    X(MATMUL_EXPERTS, matmul_experts) \
    X(CONVOLVE, convolve)             \
    X(DELTA, delta)                   \
    X(GATE, gate)                     \
    X(GATHER, gather)                 \
    X(UPDATE_PLACES, update_places)   \
    X(APPEND, append)                 \
    X(ATTEND, attend)
#define CHOOSING_OPERATIONS_OF_GRAPHS(X) \
    X(KEY_INDEX_BUILD, key_index_build)  \
    X(CHOOSE, choose)                    \
    X(ATTEND_ROWS, attend_rows)
#define OPERATIONS_OF_GRAPHS(X)      \
    DENSE_OPERATIONS_OF_GRAPHS(X)    \
    CHOOSING_OPERATIONS_OF_GRAPHS(X) \
    X(COMPARE_LABELS, compare_labels) X(FETCH, fetch)

struct operation {
    struct operation *next; /* in the order in which they were added */
    enum operation_kind kind;
    struct operation_copy *copies; /* owned: of what it names */
    union {
        struct embed_operation embed;
        struct matmul_operation matmul;
        struct norm_operation norm;
        struct rope_angles_operation rope_angles;
        struct rope_operation rope;
        struct activation_operation activation;
        struct route_operation route;
        struct matmul_experts_operation matmul_experts;
        struct convolve_operation convolve;
        struct delta_operation delta;
        struct gate_operation gate;
        struct update_places_operation update_places;
        struct append_operation append;
        struct attend_operation attend;
        struct gather_operation gather;
        struct keep_rows_operation keep_rows;
        struct beside_operation beside;
        struct host_turn_operation host_turn;
        struct key_index_build_operation key_index_build;
        struct choose_operation choose;
        struct compare_labels_operation compare_labels;
        struct fetch_operation fetch;
        struct attend_rows_operation attend_rows;
    } as;
};

/* Zeroed: empty. */
struct operation_list {
    struct operation *first, *last;
    bool failed; /* an operation found no memory: the list is of no use */
};

/* operation: the struct of its kind.  Of a choice the places of its lists are known when it returns. */
void operation_list_add(struct operation_list *list, enum operation_kind kind, const void *operation);
void operation_list_clear(struct operation_list *list);

/* Puts it on a stream, as its caller did. */
void operation_launch(const struct operation *operation, const struct device_operations *operations,
                      struct stream *stream);
/* The same for a device whose memory the caller reads (the cpu's), as a part of a graph: the items take their positions
 * from the rows of the step, where the operation has them. */
void operation_launch_now(struct operation *operation, const struct device_operations *operations,
                          struct stream *stream);
