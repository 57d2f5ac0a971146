/* What a dependent launch costs: on a stream, as a node of a graph, where it may start early, and with a turn of the
 * host behind it.  Each adds 1 to the same floats, so that the sum tells how many have run, and in order. */
#include "card.h"

enum { COUNT = 256 };

struct launches {
    struct card *card;
    struct cuda_launch launch;
    size_t count;
    struct cuda_graph turns; /* each launch with a turn behind it */
    size_t taken;
};

static void launches_run(void *context) {
    const struct launches *l = context;
    for (size_t i = 0; i < l->count; i++) cuda_stream_launch(l->card->queue, &l->launch);
}

/* y is 0. */
static struct card_time way_measure(struct launches *l, bool is_graph, struct verdict *verdict) {
    struct card *card = l->card;
    struct cuda_graph graph;
    struct error error;
    if (!is_graph) return card_time(card, launches_run, l, l->count);
    card_require(card, cuda_graph_begin(&graph, card->queue, &error), &error);
    launches_run(l);
    card_require(card, cuda_graph_end(&graph, &error), &error);
    const uint64_t early = l->launch.is_early ? l->count - 1 : 0; /* programmatic edges */
    verdict_add(verdict, graph.early_count == early, "%llu early starts; ",
                (unsigned long long)graph.early_count);
    const struct card_time time = card_time_graph(card, &graph, 1, l->count);
    cuda_graph_destroy(&graph);
    return time;
}

static void way_bench(struct launches *l, const struct buffer *y, const char *what, bool is_graph) {
    struct card *card = l->card;
    struct verdict verdict = {.failed = false};
    float found[COUNT];
    cuda_stream_fill(card->queue, y->address, 0, y->bytes);
    const struct cuda_counts before = device_cuda_counts(card->device);
    const struct card_time time = way_measure(l, is_graph, &verdict);
    const size_t expected = card_rounds(card) * l->count;
    verdict_launches(&verdict, card, before, expected);
    card->operations->download(card->stream, found, span_of(y, 0), sizeof found);
    card_synchronize(card);
    for (size_t i = 0; i < COUNT; i++) verdict_near(&verdict, found[i], (double)expected, 0, "sum", i);
    card_line(card, what, "us", time.seconds * 1e6, time.spread, 0, &verdict);
}

static void turn_take(void *context) { ((struct launches *)context)->taken++; }

static void turns_run(void *context) {
    struct launches *l = context;
    cuda_stream_turns_expect(l->card->queue, l->count, turn_take, l);
    cuda_graph_launch(&l->turns, l->card->queue);
}

static void turns_bench(struct launches *l) {
    struct card *card = l->card;
    struct verdict verdict = {.failed = false};
    struct error error;
    card_require(card, cuda_graph_begin(&l->turns, card->queue, &error), &error);
    for (size_t i = 0; i < l->count; i++) {
        cuda_stream_launch(card->queue, &l->launch);
        cuda_stream_turn(card->queue);
    }
    card_require(card, cuda_graph_end(&l->turns, &error), &error);
    const struct cuda_counts before = device_cuda_counts(card->device);
    const struct card_time time = card_time(card, turns_run, l, l->count);
    const size_t expected = card_rounds(card) * l->count;
    verdict_add(&verdict, l->taken == expected, "%zu turns; ", l->taken);
    verdict_launches(&verdict, card, before, expected);
    card_line(card, "launch in a graph and a turn of the host", "us", time.seconds * 1e6, time.spread, 0, &verdict);
    cuda_graph_destroy(&l->turns);
}

void bench_launches(struct card *card) {
    float ones[COUNT];
    struct buffer x, y;
    for (size_t i = 0; i < COUNT; i++) ones[i] = 1;
    card_allocate(card, MEMORY_DEVICE, sizeof ones, &x);
    card_allocate(card, MEMORY_DEVICE, sizeof ones, &y);
    card->operations->upload(card->stream, span_of(&x, 0), ones, sizeof ones);
    const struct cuda_add_args args = {
        .x = x.address, .y = y.address, .row_count = 1, .x_stride = COUNT, .y_stride = COUNT, .count = COUNT};
    struct launches l = {.card = card,
                         .launch = {.kernel = cuda_device_kernel(card->cuda, "add", 0),
                                    .grid = {1, 1, 1},
                                    .block = {256, 1, 1},
                                    .arguments = &args},
                         .count = card->is_small ? 20 : 2000};
    card_synchronize(card); /* the kernel was found */
    way_bench(&l, &y, "launch on a stream", false);
    way_bench(&l, &y, "launch in a graph", true);
    if (card->cuda->context.properties.capability < 90 || card->cuda->driver.cuGraphAddDependencies == NULL) {
        card_left_out(card, "launches that start early", "this card or driver has none");
    } else {
        l.launch.is_early = true;
        way_bench(&l, &y, "launch on a stream starting early", false);
        way_bench(&l, &y, "launch in a graph starting early", true);
    }
    if (card->operations->host_turn == NULL)
        card_left_out(card, "a turn of the host", "streams of this card or driver do not wait for words");
    else
        turns_bench(&l);
    card->operations->release(card->device, &x);
    card->operations->release(card->device, &y);
}
