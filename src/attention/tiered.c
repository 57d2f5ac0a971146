#include "attention/tiered.h"

#include <stdlib.h>

#include "attention/guess_gate.h"
#include "base/assert.h"
#include "base/checked.h"

/* One KV head of one row or item. */
struct job {
    struct kv_bring bring;
    size_t index; /* of the item, or of the choice */
};

struct jobs {
    struct job *list; /* owned; [capacity] */
    size_t count, begun, done;
    size_t layer_index;
    uint32_t *chunks; /* owned; the lists that brings borrow: [chunks_capacity of struct tiered] */
    size_t chunks_used;
};

enum { ROWS_LEAST = 8 }; /* that choose together: heads enough for the disk to be busy */

/* Rows that choose, or items that attend, at once. */
struct part {
    struct attend_item *items; /* owned; [row_capacity] */
    struct kv_sequence **sequences;
    const struct select_rule **rules;
    size_t count;
    bool is_last; /* of its layer's; rows of the next one want much of the same chunks */
};

struct tiered {
    struct device *device;  /* borrowed */
    struct kv_cache *cache; /* borrowed */
    size_t layer_count, kv_head_count, row_capacity, job_capacity, chunks_capacity;
    struct part part;
    struct jobs now;          /* the layer's */
    struct jobs next;         /* of the next layer, begun ahead; count 0: none */
    struct jobs held;         /* what was guessed for this layer: kept in memory until it has attended */
    struct guess_gate *gates; /* owned; [layer_count], by the layer that is guessed */
    struct choice prefetch;   /* what the next layer is expected to choose; apart from what this one chose */
    struct trace *trace;      /* borrowed; NULL: none */
    bool looks_ahead;
    bool failed;
    struct error failure;
};

static size_t rows_of(const struct tiered_options *options) {
    return max_size(options->sequence_capacity, ROWS_LEAST);
}

/* Chunks that the lists of a part lie in, at most. */
static size_t chunk_entries(const struct tiered_options *options) {
    uint64_t chunks = kv_chunks_of(options->context_size);
    return rows_of(options) * options->kv_head_count *
           (size_t)(options->kept_most < chunks ? options->kept_most : chunks);
}

uint64_t tiered_bytes(const struct tiered_options *options) {
    uint64_t rows = rows_of(options), heads = rows * options->kv_head_count;
    uint64_t jobs = 3 * (heads * sizeof(struct job) + chunk_entries(options) * sizeof(uint32_t));
    uint64_t part = rows * (sizeof(struct attend_item) + 2 * sizeof(void *));
    uint64_t lists = heads + (options->looks_ahead ? options->sequence_capacity * options->kv_head_count : 0);
    return jobs + part + lists * options->kept_most * sizeof(uint32_t);
}

static bool jobs_init(struct jobs *jobs, const struct tiered *tiered) {
    jobs->list = calloc(tiered->job_capacity, sizeof *jobs->list);
    jobs->chunks = calloc(max_size(tiered->chunks_capacity, 1), sizeof *jobs->chunks);
    return jobs->list != NULL && jobs->chunks != NULL;
}

static bool part_init(struct part *part, size_t rows) {
    part->items = calloc(rows, sizeof *part->items);
    part->sequences = calloc(rows, sizeof(struct kv_sequence *));
    part->rules = calloc(rows, sizeof(const struct select_rule *));
    return part->items != NULL && part->sequences != NULL && part->rules != NULL;
}

enum status tiered_create(struct tiered **result, struct device *device, struct kv_cache *cache,
                          struct select *select, const struct tiered_options *options, struct error *error) {
    struct tiered *tiered = calloc(1, sizeof *tiered);
    *result = tiered;
    if (tiered == NULL) return error_set(error, STATUS_MEMORY, "tiered attention: out of memory");
    *tiered = (struct tiered){.device = device,
                              .cache = cache,
                              .layer_count = kv_cache_get_config(cache)->layer_count,
                              .kv_head_count = options->kv_head_count,
                              .row_capacity = rows_of(options),
                              .job_capacity = rows_of(options) * options->kv_head_count,
                              .chunks_capacity = chunk_entries(options),
                              .looks_ahead = options->looks_ahead};
    enum status status = STATUS_OK;
    if (select != NULL)
        status =
            select_reserve(select, tiered->row_capacity, tiered->job_capacity * options->kept_most, error);
    if (status == STATUS_OK && select != NULL && options->looks_ahead && options->kept_most > 0)
        status = choice_init(
            &tiered->prefetch,
            &(struct choice_options){
                .row_capacity = options->sequence_capacity,
                .kv_head_count = options->kv_head_count,
                .list_rows = options->sequence_capacity * options->kv_head_count * options->kept_most,
                .tree_layers = select_own_choice(select)->densities != NULL ? tiered->layer_count : 0},
            error);
    tiered->gates = calloc(tiered->layer_count, sizeof *tiered->gates);
    for (size_t i = 0; tiered->gates != NULL && i < tiered->layer_count; i++)
        guess_gate_init(&tiered->gates[i]);
    if (status == STATUS_OK &&
        (tiered->gates == NULL || !jobs_init(&tiered->now, tiered) || !jobs_init(&tiered->next, tiered) ||
         !jobs_init(&tiered->held, tiered) || !part_init(&tiered->part, tiered->row_capacity)))
        status = error_set(error, STATUS_MEMORY, "tiered attention: out of memory");
    if (status == STATUS_OK) return STATUS_OK;
    tiered_destroy(tiered);
    *result = NULL;
    return status;
}

void tiered_destroy(struct tiered *tiered) {
    if (tiered == NULL) return;
    tiered_end_step(tiered);
    free(tiered->gates);
    choice_deinit(&tiered->prefetch);
    free(tiered->now.list);
    free(tiered->next.list);
    free(tiered->held.list);
    free(tiered->now.chunks);
    free(tiered->next.chunks);
    free(tiered->held.chunks);
    free(tiered->part.items);
    free(tiered->part.sequences);
    free(tiered->part.rules);
    free(tiered);
}

void tiered_set_trace(struct tiered *tiered, struct trace *trace) { tiered->trace = trace; }

static void fail(struct tiered *tiered, const struct error *error) {
    if (tiered->failed) return;
    tiered->failed = true;
    tiered->failure = *error;
}

static enum status failure(struct tiered *tiered, struct error *error) {
    TRY(kv_tier_failure(tiered->cache, error));
    if (!tiered->failed) return STATUS_OK;
    if (error != NULL) *error = tiered->failure;
    return tiered->failure.status;
}

/* ---- jobs ---- */

static void jobs_drop(struct jobs *jobs) {
    for (size_t i = jobs->done; i < jobs->count; i++) kv_bring_release(&jobs->list[i].bring);
    jobs->count = jobs->begun = jobs->done = 0;
    jobs->chunks_used = 0;
}

void tiered_end_step(struct tiered *tiered) {
    jobs_drop(&tiered->now);
    jobs_drop(&tiered->next);
    jobs_drop(&tiered->held);
    tiered->failed = false;
}

static struct job *job_add(struct tiered *tiered, struct jobs *jobs, struct kv_sequence *sequence,
                           size_t index, size_t kv_head) {
    ASSERT(jobs->count < tiered->job_capacity);
    struct job *job = &jobs->list[jobs->count++];
    *job =
        (struct job){.index = index,
                     .bring = {.sequence = sequence, .layer_index = jobs->layer_index, .kv_head = kv_head}};
    return job;
}

/* All chunks that rows [first, end) lie in. */
static void bring_all(struct kv_bring *bring, uint64_t first, uint64_t end) {
    bring->chunk_first = first / KV_CHUNK_TOKENS;
    bring->chunk_count = (size_t)((end + KV_CHUNK_TOKENS - 1) / KV_CHUNK_TOKENS - bring->chunk_first);
    bring->scan = true;
}

/* The oldest jobs have slots before the younger ones get any (but those that were begun a layer ahead have some).  No
 * more are begun when so many chunks are being read. */
static void begin_jobs_within(struct jobs *jobs, size_t room) {
    size_t first = jobs->begun, flush = first, read = 0;
    for (size_t i = 0; i < jobs->begun; i++) read += jobs->list[i].bring.missed;
    while (jobs->begun < jobs->count && read < room && kv_bring_begin(&jobs->list[jobs->begun].bring)) {
        read += jobs->list[jobs->begun].bring.missed;
        if (jobs->begun++ == flush) { /* the disk begins at once, and is told of twice as much each time */
            kv_bring_flush(&jobs->list[flush].bring);
            flush = jobs->begun + (jobs->begun - first);
        }
    }
    if (first < jobs->count) kv_bring_flush(&jobs->list[first].bring);
}

static void begin_jobs(struct jobs *jobs) { begin_jobs_within(jobs, SIZE_MAX); }

static enum status wait_for(struct tiered *tiered, struct kv_bring *bring, struct error *error) {
    if (tiered->trace == NULL || kv_bring_is_ready(bring)) return kv_bring_wait(bring, error);
    struct trace_span span = {.name = "wait",
                              .begin_ns = clock_ns(),
                              .track = TRACE_WAITS,
                              .layer = (uint32_t)bring->layer_index,
                              .kv_head = (uint32_t)bring->kv_head,
                              .chunk = TRACE_NONE,
                              .count = (uint32_t)(bring->pinned - bring->arrived)};
    enum status status = kv_bring_wait(bring, error);
    span.end_ns = clock_ns();
    trace_add(tiered->trace, &span);
    return status;
}

static bool all_arrived(struct jobs *jobs) {
    for (size_t i = jobs->done; i < jobs->count; i++)
        if (i >= jobs->begun || !kv_bring_is_ready(&jobs->list[i].bring)) return false;
    return true;
}

/* Guesses wait until what is needed now has come. */
static bool guesses_may_begin(struct tiered *tiered) {
    const struct jobs *next = &tiered->next;
    return next->begun < next->count && next->list[0].bring.ahead && all_arrived(&tiered->now);
}

static void begin_now(void *context) { begin_jobs(&((struct tiered *)context)->now); }
/* Of the guess as many heads as the disk has time for. */
static void begin_next(void *context) {
    struct tiered *tiered = context;
    begin_jobs_within(&tiered->next, guess_gate_room(&tiered->gates[tiered->next.layer_index]));
}

/* Jobs [*first, *end) of one item, of neighbouring heads, whose chunks are here; waits for at least one. */
static bool take_ready(struct tiered *tiered, struct jobs *jobs, size_t *end) {
    struct error error;
    size_t first = jobs->done;
    begin_jobs(jobs);
    if (jobs->begun == jobs->count && tiered->next.count > 0 && !tiered->next.list[0].bring.ahead)
        begin_jobs(&tiered->next); /* what will be needed for certain */
    if (jobs->begun == first) {    /* what holds the slots is ahead of its time */
        jobs_drop(&tiered->next);
        jobs_drop(&tiered->held);
        for (size_t i = first + 1; i < jobs->count; i++) kv_bring_release(&jobs->list[i].bring);
        begin_jobs(jobs);
    }
    if (jobs->begun == first) {
        if (kv_tier_failure(tiered->cache, &error) == STATUS_OK) (void)kv_tier_full(tiered->cache, &error);
        fail(tiered, &error);
        return false;
    }
    if (wait_for(tiered, &jobs->list[first].bring, &error) != STATUS_OK) {
        fail(tiered, &error);
        return false;
    }
    *end = first + 1;
    while (*end < jobs->begun && jobs->list[*end].index == jobs->list[first].index &&
           kv_bring_is_ready(&jobs->list[*end].bring))
        ++*end;
    return true;
}

static void release(struct jobs *jobs, size_t end) {
    for (; jobs->done < end; jobs->done++) kv_bring_release(&jobs->list[jobs->done].bring);
}

/* ---- everything ---- */

static uint64_t first_row(const struct attend_operation *operation, const struct attend_item *item) {
    uint64_t position = item->position_first;
    return operation->window > 0 && position + 1 > operation->window ? position + 1 - operation->window : 0;
}

static void plan_dense(struct tiered *tiered, struct jobs *jobs, size_t layer_index,
                       const struct attend_operation *operation, struct kv_sequence *const *sequences) {
    jobs->layer_index = layer_index;
    for (size_t i = 0; i < operation->item_count; i++)
        for (size_t head = 0; head < tiered->kv_head_count; head++) {
            const struct attend_item *item = &operation->items[i];
            uint64_t end = item->position_first + item->row_count;
            bring_all(&job_add(tiered, jobs, sequences[i], i, head)->bring, first_row(operation, item), end);
        }
}

/* The next layer's rows are not there yet: their chunk is in memory when it is attended to, and not before. */
static void plan_ahead(struct tiered *tiered, size_t layer_index, const struct attend_operation *operation,
                       struct kv_sequence *const *sequences) {
    if (layer_index + 1 >= tiered->layer_count || tiered->next.count > 0 || operation->window > 0) return;
    for (size_t i = 0; i < operation->item_count;
         i++) /* later blocks of a prompt: the next layer has not come so far */
        if (operation->items[i].row_count != 1 ||
            operation->items[i].position_first != kv_sequence_length(sequences[i]))
            return;
    plan_dense(tiered, &tiered->next, layer_index + 1, operation, sequences);
    for (size_t i = 0; i < tiered->next.count; i++) {
        struct kv_bring *bring = &tiered->next.list[i].bring;
        bring->chunk_count =
            (size_t)(operation->items[tiered->next.list[i].index].position_first / KV_CHUNK_TOKENS);
    }
}

/* One item of an operation, some of its KV heads: an operation of its own. */
struct heads_operation {
    struct attend_operation operation; /* whose item is: */
    struct attend_item item;
};

static void take_heads(struct heads_operation *heads, const struct attend_operation *operation,
                       const struct attend_item *item, size_t head_first, size_t head_count) {
    size_t group = operation->head_count / operation->kv_head_count;
    heads->item = *item;
    heads->item.view.chunks += head_first * item->view.chunk_stride;
    if (item->view.metadata != NULL) heads->item.view.metadata += head_first * item->view.chunk_stride;
    heads->item.view.packed = NULL; /* rows */
    heads->operation = *operation;
    heads->operation.q += head_first * group * item->view.layout->k_dimension;
    heads->operation.out += head_first * group * item->view.layout->v_dimension;
    heads->operation.head_count = group * head_count;
    heads->operation.kv_head_count = head_count;
    heads->operation.items = &heads->item;
    heads->operation.item_count = 1;
}

/* How heads attend whose chunks are all here: to everything, or by a choice made there and then. */
struct scan {
    struct select *select; /* NULL: to everything */
    const struct select_rule *const *rules;
    size_t layer_index;
};

static enum status scan_heads(struct stream *stream, const struct device *device, const struct scan *scan,
                              const struct attend_operation *operation, size_t index, size_t head_first,
                              size_t head_count, struct error *error) {
    struct heads_operation heads;
    take_heads(&heads, operation, &operation->items[index], head_first, head_count);
    if (scan->select == NULL) {
        device->operations->attend(stream, &heads.operation);
        return STATUS_OK;
    }
    const struct choice_query query = {.layer_index = scan->layer_index,
                                       .operation = &heads.operation,
                                       .rules = &scan->rules[index],
                                       .kv_head_first = head_first,
                                       .attends_next = true};
    struct choice *choice = select_own_choice(scan->select);
    const size_t row_count = heads.item.row_count;
    heads.item.row_count = 1;
    for (size_t row = 0; row < row_count; row++, heads.item.row_first++, heads.item.position_first++) {
        TRY(select_choose(scan->select, stream, &query, choice, error));
        if (choice->chosen_count > 0)
            TRY(select_attend_chosen(scan->select, stream, &heads.operation, choice, 0, 1, error));
        else
            device->operations->attend(stream, &heads.operation);
    }
    return STATUS_OK;
}

/* What was begun ahead becomes the layer's, and is completed by the chunk that has the new row. */
static void take_over(struct tiered *tiered, size_t layer_index, const struct attend_operation *operation) {
    struct jobs finished = tiered->now;
    tiered->now = tiered->next;
    tiered->next = finished;
    ASSERT(tiered->now.layer_index == layer_index && tiered->now.done == 0);
    for (size_t i = 0; i < tiered->now.count; i++) {
        const struct attend_item *item = &operation->items[tiered->now.list[i].index];
        tiered->now.list[i].bring.chunk_count = kv_chunks_of(item->position_first + item->row_count);
        tiered->now.list[i].bring.ahead = false;
    }
    tiered->now.begun = 0; /* begun once more, for the last chunk */
}

static void attend_items(struct tiered *tiered, struct stream *stream, size_t layer_index,
                         const struct attend_operation *operation, struct kv_sequence *const *sequences,
                         const struct scan *scan, bool ahead) {
    struct jobs *jobs = &tiered->now;
    jobs_drop(jobs);
    if (tiered->next.count > 0 && tiered->next.layer_index == layer_index)
        take_over(tiered, layer_index, operation);
    else {
        if (tiered->next.layer_index <= layer_index) jobs_drop(&tiered->next);
        plan_dense(tiered, jobs, layer_index, operation, sequences);
    }
    if (ahead) plan_ahead(tiered, layer_index, operation, sequences);
    while (jobs->done < jobs->count) {
        size_t end, first = jobs->done;
        if (!take_ready(tiered, jobs, &end)) return;
        struct error error;
        if (scan_heads(stream, tiered->device, scan, operation, jobs->list[first].index,
                       jobs->list[first].bring.kv_head, end - first, &error) != STATUS_OK) {
            fail(tiered, &error);
            return;
        }
        release(jobs, end);
    }
}

/* More items than a step has sequences come of prompts, row by row. */
static void attend_dense(struct tiered *tiered, struct stream *stream, size_t layer_index,
                         const struct attend_operation *operation, struct kv_sequence *const *sequences,
                         const struct scan *scan, bool ahead) {
    for (size_t first = 0; first < operation->item_count; first += tiered->row_capacity) {
        struct attend_operation part = *operation;
        struct scan part_scan = *scan;
        part.items += first;
        part.item_count = min_size(operation->item_count - first, tiered->row_capacity);
        if (scan->rules != NULL) part_scan.rules += first;
        attend_items(tiered, stream, layer_index, &part, sequences + first, &part_scan, ahead);
        if (tiered->failed) return;
    }
}

/* ---- a choice ---- */

/* The chunks that rows lie in, without repetition. */
static void bring_rows(struct jobs *jobs, struct kv_bring *bring, const struct row_list *list) {
    const uint32_t *rows = list->rows;
    const size_t count = list->count;
    uint32_t *chunks = jobs->chunks + jobs->chunks_used;
    size_t used = 0;
    for (size_t i = 0; i < count;) {
        uint32_t chunk = rows[i] / KV_CHUNK_TOKENS;
        if (used == 0 || chunks[used - 1] != chunk) chunks[used++] = chunk;
        bool whole = i + KV_CHUNK_TOKENS <= count && rows[i + KV_CHUNK_TOKENS - 1] / KV_CHUNK_TOKENS == chunk;
        i += whole ? KV_CHUNK_TOKENS : 1; /* rows ascend */
    }
    bring->chunks = chunks;
    bring->chunk_count = used;
    jobs->chunks_used += used;
}

static enum status plan_chosen(struct tiered *tiered, struct jobs *jobs, size_t layer_index,
                               const struct choice *choice, struct kv_sequence *const *sequences,
                               struct error *error) {
    size_t entries = 0;
    for (size_t i = 0; i < choice->chosen_count; i++)
        for (size_t head = 0; head < tiered->kv_head_count; head++)
            entries +=
                min_size(choice->chosen[i].lists[head].count, kv_chunks_of(choice->chosen[i].position + 1));
    if (entries > tiered->chunks_capacity)
        return error_set(error, STATUS_MEMORY,
                         "tiered attention: lists of %zu chunks, there is memory for %zu", entries,
                         tiered->chunks_capacity);
    jobs->layer_index = layer_index;
    for (size_t i = 0; i < choice->chosen_count; i++)
        for (size_t head = 0; head < tiered->kv_head_count; head++) {
            struct job *job = job_add(tiered, jobs, sequences[choice->chosen_items[i]], i, head);
            job->bring.packed = true;
            job->bring.stays = !tiered->part.is_last;
            bring_rows(jobs, &job->bring, &choice->chosen[i].lists[head]);
        }
    return STATUS_OK;
}

/* What was begun ahead becomes what is held for the layer that attends now. */
static void hold_guesses(struct tiered *tiered) {
    struct jobs guesses = tiered->next;
    jobs_drop(&tiered->held);
    tiered->next = tiered->held;
    tiered->held = guesses;
}

/* Reads of the guess for this layer are still under way. */
static bool guess_is_late(struct tiered *tiered) {
    for (size_t i = 0; i < tiered->held.begun; i++)
        if (!kv_bring_is_ready(&tiered->held.list[i].bring)) return true;
    return false;
}

/* What became of the guess for this layer. */
static void judge_guess(struct tiered *tiered, bool late) {
    struct guess_outcome outcome = {.late = late};
    if (tiered->held.count == 0 || tiered->held.layer_index != tiered->now.layer_index) return;
    for (size_t i = 0; i < tiered->held.count; i++) outcome.read += tiered->held.list[i].bring.missed;
    for (size_t i = 0; i < tiered->now.count; i++) outcome.used += tiered->now.list[i].bring.foreseen;
    guess_gate_add(&tiered->gates[tiered->now.layer_index], &outcome);
}

static enum status choose(struct tiered *tiered, struct stream *stream, const struct choice_query *query,
                          struct select *select, struct choice *choice, struct error *error) {
    uint64_t began = trace_clock(tiered->trace);
    TRY(select_choose(select, stream, query, choice, error));
    if (!choice->everything) TRY(tiered->device->operations->stream_synchronize(stream, error));
    if (tiered->trace == NULL) return STATUS_OK;
    trace_add(tiered->trace,
              &(struct trace_span){.name = choice == &tiered->prefetch ? "choose ahead" : "choose",
                                   .begin_ns = began,
                                   .end_ns = clock_ns(),
                                   .track = TRACE_CHOICE,
                                   .layer = (uint32_t)query->layer_index,
                                   .kv_head = TRACE_NONE,
                                   .chunk = TRACE_NONE,
                                   .count = (uint32_t)choice->chosen_count});
    return STATUS_OK;
}

/* The chunks with rows that are not there yet are in memory when the layer comes, and not wanted before. */
static void make_guesses(struct jobs *jobs, const struct choice *choice) {
    for (size_t i = 0; i < jobs->count; i++) {
        struct kv_bring *bring = &jobs->list[i].bring;
        uint64_t growing = choice->chosen[jobs->list[i].index].position / KV_CHUNK_TOKENS;
        bring->ahead = true;
        while (bring->chunk_count > 0 && bring->chunks[bring->chunk_count - 1] >= growing)
            bring->chunk_count--;
    }
}

/* Who chooses, and who guesses what comes after. */
struct chooser {
    struct select *select;
    const struct select_rule *const *rules;
    tiered_guess *guess;
    void *guess_context;
};

/* Plans what the next layer is guessed to choose, while this layer's reads are submitted. */
static enum status look_ahead(struct tiered *tiered, struct stream *stream, size_t layer_index,
                              const struct chooser *chooser, struct kv_sequence *const *sequences,
                              struct error *error) {
    struct attend_operation operation;
    const struct choice_query query = {
        .layer_index = layer_index, .operation = &operation, .rules = chooser->rules};
    if (chooser->guess == NULL || layer_index >= tiered->layer_count ||
        !guess_gate_opens(&tiered->gates[layer_index]))
        return STATUS_OK;
    tiered->device->operations->beside(stream, begin_now, tiered);
    if (!chooser->guess(chooser->guess_context, &operation))
        return tiered->device->operations->stream_synchronize(stream, error);
    TRY(choose(tiered, stream, &query, chooser->select, &tiered->prefetch, error));
    if (tiered->prefetch.everything) return STATUS_OK;
    TRY(plan_chosen(tiered, &tiered->next, layer_index, &tiered->prefetch, sequences, error));
    make_guesses(&tiered->next, &tiered->prefetch);
    return STATUS_OK;
}

static enum status attend_chosen(struct tiered *tiered, struct stream *stream, size_t layer_index,
                                 const struct attend_operation *operation,
                                 struct kv_sequence *const *sequences, const struct chooser *chooser,
                                 struct choice *choice, struct error *error) {
    struct jobs *jobs = &tiered->now;
    jobs_drop(jobs);
    TRY(plan_chosen(tiered, jobs, layer_index, choice, sequences, error));
    bool late = guess_is_late(tiered);
    TRY(look_ahead(tiered, stream, layer_index + 1, chooser, sequences, error));
    while (jobs->done < jobs->count) {
        size_t end, first = jobs->done;
        if (!take_ready(tiered, jobs, &end)) return failure(tiered, error);
        if (guesses_may_begin(tiered)) tiered->device->operations->beside(stream, begin_next, tiered);
        select_attend_heads(chooser->select, stream, operation, choice, jobs->list[first].index,
                            jobs->list[first].bring.kv_head, end - first);
        release(jobs, end);
    }
    judge_guess(tiered, late);
    jobs_drop(&tiered->held);
    return STATUS_OK;
}

/* Rows of the part, each of which chooses, or attends to everything because its context is short. */
static enum status attend_part(struct tiered *tiered, struct stream *stream, size_t layer_index,
                               const struct attend_operation *operation, const struct chooser *chooser,
                               struct error *error) {
    struct choice *choice = select_own_choice(chooser->select);
    const struct scan everything = {.select = NULL};
    struct attend_operation rows = *operation;
    rows.items = tiered->part.items;
    rows.item_count = tiered->part.count;
    const struct choice_query query = {
        .layer_index = layer_index, .operation = &rows, .rules = tiered->part.rules};
    TRY(choose(tiered, stream, &query, chooser->select, choice, error));
    for (size_t i = 0; i < choice->dense_count; i++) {
        struct attend_operation one = *operation;
        one.items = &choice->dense[i];
        one.item_count = 1;
        attend_dense(tiered, stream, layer_index, &one, &tiered->part.sequences[choice->dense_items[i]],
                     &everything, false);
    }
    return attend_chosen(tiered, stream, layer_index, &rows, tiered->part.sequences, chooser, choice, error);
}

static enum status attend_selected(struct tiered *tiered, struct stream *stream, size_t layer_index,
                                   const struct attend_operation *operation,
                                   struct kv_sequence *const *sequences, const struct chooser *chooser,
                                   struct error *error) {
    struct select *select = chooser->select;
    const struct scan everything = {.select = NULL};
    bool chooses = operation->window == 0 && select_layer_chooses(select, layer_index);
    if (select_scans(select) && chooses) {
        const struct scan scan = {select, chooser->rules, layer_index};
        attend_dense(tiered, stream, layer_index, operation, sequences, &scan, tiered->looks_ahead);
        return STATUS_OK;
    }
    if (tiered->next.count > 0 && tiered->next.layer_index == layer_index) hold_guesses(tiered);
    if (!chooses) {
        const struct choice_query query = {
            .layer_index = layer_index, .operation = operation, .rules = chooser->rules};
        TRY(choose(tiered, stream, &query, select, select_own_choice(select), error));
        attend_dense(tiered, stream, layer_index, operation, sequences, &everything, false);
        return STATUS_OK;
    }
    struct part *part = &tiered->part;
    struct chooser certain = *chooser;
    certain.guess = NULL; /* of rows in parts none knows what the next layer wants first */
    part->count = 0;
    for (size_t i = 0; i < operation->item_count; i++)
        for (size_t row = 0; row < operation->items[i].row_count; row++) {
            if (part->count == tiered->row_capacity) {
                part->is_last = false;
                TRY(attend_part(tiered, stream, layer_index, operation, &certain, error));
                part->count = 0;
            }
            struct attend_item *item = &part->items[part->count];
            *item = operation->items[i];
            item->row_first += row;
            item->position_first += row;
            item->row_count = 1;
            part->sequences[part->count] = sequences[i];
            part->rules[part->count++] = chooser->rules[i];
        }
    part->is_last = true;
    return part->count > 0 ? attend_part(tiered, stream, layer_index, operation, chooser, error) : STATUS_OK;
}

/* ---- a layer ---- */

enum status tiered_begin_layer(struct tiered *tiered, size_t layer_index,
                               struct kv_sequence *const *sequences, const struct attend_item *items,
                               size_t item_count, struct error *error) {
    for (size_t i = 0; i < item_count; i++) {
        enum status status = kv_sequence_open_rows(sequences[i], layer_index, items[i].position_first,
                                                   items[i].row_count, error);
        if (status == STATUS_MEMORY && tiered->next.count > 0) { /* the slots that were taken ahead */
            jobs_drop(&tiered->next);
            status = kv_sequence_open_rows(sequences[i], layer_index, items[i].position_first,
                                           items[i].row_count, error);
        }
        TRY(status);
    }
    return STATUS_OK;
}

void tiered_attend(struct tiered *tiered, struct stream *stream, size_t layer_index,
                   const struct attend_operation *operation, struct kv_sequence *const *sequences,
                   struct select *select, const struct select_rule *const *rules, tiered_guess *guess,
                   void *guess_context) {
    struct error error;
    const struct scan everything = {.select = NULL};
    const bool prefetches = tiered->looks_ahead && tiered->prefetch.row_capacity > 0; /* something is chosen */
    const struct chooser chooser = {select, rules, prefetches ? guess : NULL, guess_context};
    if (select == NULL || rules == NULL) {
        attend_dense(tiered, stream, layer_index, operation, sequences, &everything, select == NULL);
        return;
    }
    if (attend_selected(tiered, stream, layer_index, operation, sequences, &chooser, &error) != STATUS_OK)
        fail(tiered, &error);
}

enum status tiered_end_layer(struct tiered *tiered, size_t layer_index, struct kv_sequence *const *sequences,
                             const struct attend_item *items, size_t item_count, struct error *error) {
    TRY(failure(tiered, error));
    for (size_t i = 0; i < item_count; i++) {
        uint64_t end = items[i].position_first + items[i].row_count;
        enum status status = kv_sequence_write(sequences[i], layer_index, end, error);
        if (status != STATUS_OK && tiered->next.count > 0) { /* the slots that were taken ahead */
            jobs_drop(&tiered->next);
            status = kv_sequence_write(sequences[i], layer_index, end, error);
        }
        TRY(status);
    }
    return STATUS_OK;
}
