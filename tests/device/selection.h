/* selection: the operations of a selection as its tests run them: choose (or lists that are given), attend_rows, and
 * what follows from its scores and sums: add_mass, mass_bound. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/random.h"
#include "device/device.h"
#include "host_span.h"
#include "testing.h"

/* Nearly normal, 3.5 at most: four numbers of 16 bits, for the rows of long sequences. */
static inline float random_bell(struct random *random) {
    const uint64_t x = random_next(random);
    const int32_t sum = (int32_t)((x & 65535) + (x >> 16 & 65535) + (x >> 32 & 65535) + (x >> 48));
    return (float)(sum - 2 * 65535) * (1.7320508F / 65536);
}

struct selection {
    const float *q;
    size_t q_stride;
    float *out; /* NULL: choose only, or for the mass alone */
    size_t out_stride;
    size_t head_count, kv_head_count;
    float scale, softcap;
    const float *sinks; /* [head_count]; NULL: none */
    const struct key_index_layout *layout;
    const uint16_t *weights;
    float mass_weight; /* 0: no mass is added */
    enum tree_level tree_start;
    struct tree_counts *tree_counts;
    const struct select_item *items;
    size_t item_count;
    const uint32_t *given; /* [item_count][kv_head_count][stride]; NULL: choose */
    uint32_t *chosen;      /* out, of the same shape; or NULL */
    size_t stride;
    double *mass_bounds; /* out: mass bounds, or NULL */
};

enum { SELECTION_GUARD = 0x6a4d6a4d, SELECTION_GUARDS = 16 };

/* The lists of entries [first list of item 0, ...), in rows that are the caller's to free. */
static inline uint32_t *selection_choose(const struct selection *s, struct device *device,
                                         struct stream *stream, struct row_list *lists) {
    size_t total = 0, entries = s->item_count * s->kv_head_count;
    for (size_t i = 0; i < entries; i++)
        total += select_item_kept(&s->items[i / s->kv_head_count], i % s->kv_head_count);
    uint32_t *rows = calloc(total + SELECTION_GUARDS, sizeof *rows);
    for (size_t i = 0; i < SELECTION_GUARDS; i++) rows[total + i] = SELECTION_GUARD;
    device->operations->choose(stream, &(struct choose_operation){.q = host_span(s->q),
                                                                  .q_stride = s->q_stride,
                                                                  .head_count = s->head_count,
                                                                  .kv_head_count = s->kv_head_count,
                                                                  .scale = s->scale,
                                                                  .layout = s->layout,
                                                                  .weights = host_span(s->weights),
                                                                  .tree_start = s->tree_start,
                                                                  .tree_counts = s->tree_counts,
                                                                  .items = s->items,
                                                                  .item_count = s->item_count,
                                                                  .attends_next = s->out != NULL,
                                                                  .rows = host_span(rows),
                                                                  .lists = lists});
    for (size_t i = 0; i < SELECTION_GUARDS; i++) assert_int_equal(rows[total + i], SELECTION_GUARD);
    for (size_t i = 0; i < entries && s->chosen != NULL; i++)
        memcpy(s->chosen + i * s->stride, row_list_host(&lists[i]), lists[i].count * sizeof *rows);
    return rows;
}

static inline void selection_attend(const struct selection *s, struct device *device, struct stream *stream,
                                    const struct rows_item *items, size_t longest) {
    const size_t heads = s->item_count * s->head_count;
    struct softmax_sum *sums = calloc(heads, sizeof *sums);
    float *scores = calloc(heads * longest, sizeof *scores);
    const bool adds = s->mass_weight > 0;
    const struct attend_rows_operation rows = {.q = host_span(s->q),
                                               .q_stride = s->q_stride,
                                               .out = host_span(s->out),
                                               .out_stride = s->out_stride,
                                               .head_count = s->head_count,
                                               .kv_head_count = s->kv_head_count,
                                               .scale = s->scale,
                                               .softcap = s->softcap,
                                               .sinks = host_span(s->sinks),
                                               .items = items,
                                               .item_count = s->item_count,
                                               .sums =
                                                   host_span(adds || s->mass_bounds != NULL ? sums : NULL),
                                               .scores = host_span(adds ? scores : NULL),
                                               .scores_stride = longest};
    device->operations->attend_rows(stream, &rows);
    if (adds)
        device->operations->add_mass(stream,
                                     &(struct add_mass_operation){.rows = &rows, .weight = s->mass_weight});
    if (s->mass_bounds != NULL)
        device->operations->mass_bound(stream, &(struct mass_bound_operation){.rows = &rows,
                                                                              .layout = s->layout,
                                                                              .mass_bounds = s->mass_bounds});
    free(sums), free(scores);
}

static inline void selection_run(const struct selection *s, struct device *device, struct stream *stream) {
    const size_t entries = s->item_count * s->kv_head_count;
    struct row_list *lists = calloc(entries, sizeof *lists);
    struct rows_item *items = calloc(s->item_count, sizeof *items);
    uint32_t *rows = NULL;
    size_t longest = 0;
    if (s->given == NULL) rows = selection_choose(s, device, stream, lists);
    for (size_t i = 0; i < entries; i++) {
        size_t kept = select_item_kept(&s->items[i / s->kv_head_count], i % s->kv_head_count);
        if (s->given != NULL) lists[i] = (struct row_list){host_span(s->given + i * s->stride), kept};
        assert_int_equal(lists[i].count, kept);
        longest = max_size(longest, kept);
    }
    for (size_t i = 0; i < s->item_count; i++)
        items[i] = (struct rows_item){.view = s->items[i].view,
                                      .row = s->items[i].row,
                                      .position = s->items[i].position,
                                      .lists = lists + i * s->kv_head_count};
    if (s->out != NULL || s->mass_weight > 0) selection_attend(s, device, stream, items, longest);
    struct error error;
    assert_ok(device->operations->stream_synchronize(stream, &error), error);
    free(lists), free(items), free(rows);
}
