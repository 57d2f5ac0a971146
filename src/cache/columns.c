#include "cache/columns.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/layout.h"

static void place(struct columns *columns, struct layout *layout) {
    columns->free_list = layout_take(layout, (size_t)columns->count, sizeof *columns->free_list);
    columns->users = layout_take(layout, (size_t)columns->count, sizeof *columns->users);
}

uint64_t columns_bytes(uint64_t count) {
    struct columns columns = {.count = count};
    struct layout layout = {0};
    place(&columns, &layout);
    return layout.used;
}

bool columns_init(struct columns *columns, uint64_t count) {
    *columns = (struct columns){.count = count};
    /* Touched only where they are used (the heap gives such sizes fresh pages). */
    struct layout layout = {.memory = calloc(1, max_size((size_t)columns_bytes(count), 1))};
    if (layout.memory == NULL) return false;
    place(columns, &layout);
    return true;
}

void columns_deinit(struct columns *columns) {
    free(columns->free_list);
    *columns = (struct columns){.count = 0};
}

void columns_renew(struct columns *columns) {
    ASSERT(columns->used == 0);
    columns->fresh_first = columns->free_count = 0;
}

uint64_t columns_free_count(const struct columns *columns) {
    const uint64_t count = columns->count - columns->fresh_first + columns->free_count;
    ASSERT(count + columns->used == columns->count); /* kv_cache.h, invariants 1 and 2 */
    return count;
}

/* Given-back columns first: they are in memory already. */
uint64_t columns_take(struct columns *columns) {
    const uint64_t column =
        columns->free_count > 0 ? columns->free_list[--columns->free_count] : columns->fresh_first++;
    ASSERT(column < columns->count && columns->users[column] == 0);
    columns->users[column] = 1;
    columns->used++;
    return column;
}

void columns_share(struct columns *columns, uint64_t column) {
    ASSERT(columns->users[column] > 0 && columns->users[column] < UINT8_MAX);
    columns->users[column]++;
}

void columns_give_back(struct columns *columns, uint64_t column) {
    ASSERT(column < columns->fresh_first && columns->users[column] > 0);
    if (--columns->users[column] > 0) return;
    ASSERT(columns->free_count < columns->count);
    columns->free_list[columns->free_count++] = column;
    columns->used--;
}
