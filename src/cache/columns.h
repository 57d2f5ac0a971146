/* columns: numbers of a slab's columns: which are free, and how many sequences have each.  See kv_cache.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct columns {
    uint64_t count;
    uint64_t fresh_first; /* columns from here on have never been used */
    uint64_t *free_list;  /* owned, users behind it; stack of [free_count], room for count */
    uint64_t free_count;
    uint8_t *users; /* [count]: sequences that have it */
    uint64_t used;  /* in sequences */
};

/* All are free.  false: no memory, and there are none. */
bool columns_init(struct columns *columns, uint64_t count);
uint64_t columns_bytes(uint64_t count); /* that it takes */
void columns_deinit(struct columns *columns);
/* Of columns that nobody has: none was ever used. */
void columns_renew(struct columns *columns);
uint64_t columns_free_count(const struct columns *columns);
/* One that is free. */
uint64_t columns_take(struct columns *columns);
/* One more sequence has it; and one less. */
void columns_share(struct columns *columns, uint64_t column);
void columns_give_back(struct columns *columns, uint64_t column);
