/* literals: the texts of enum, const, true, false and null, and the keys of an object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "grammar/grammar_internal.h"

/* The first of items[low, high) whose byte at offset is at least `limit`. */
static uint32_t lower_bound(const struct literal_table *table, uint32_t low, uint32_t high, uint32_t offset,
                            unsigned limit) {
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (table->items[middle].bytes[offset] < limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool literals_narrow(const struct literal_table *table, uint32_t *begin, uint32_t *end, uint32_t offset, uint8_t byte) {
    uint32_t low = *begin;
    if (low < *end && table->items[low].length <= offset) low++; /* it ends here; there is one at most */
    *begin = lower_bound(table, low, *end, offset, byte);
    *end = lower_bound(table, *begin, *end, offset, byte + 1U);
    return *begin < *end;
}

static int compare(const void *left, const void *right) {
    const struct literal *a = left, *b = right;
    const int order = memcmp(a->bytes, b->bytes, min_size(a->length, b->length));
    if (order != 0) return order;
    return a->length < b->length ? -1 : a->length > b->length;
}

void literals_sort(struct literal_table *table) {
    if (table->count < 2) return;
    qsort(table->items, table->count, sizeof *table->items, compare);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < table->count; i++)
        if (compare(&table->items[kept - 1], &table->items[i]) != 0) table->items[kept++] = table->items[i];
    table->count = kept;
}

/* jansson writes 0.1 with 17 digits: the shortest text of the same number is what a model writes. */
static size_t shortest_precision(double number) {
    char text[64];
    for (int precision = 1; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, number);
        if (strtod(text, NULL) == number) return (size_t)precision;
    }
    return 17;
}

static size_t precision_of(const json_t *value) {
    size_t largest = 1, i;
    const char *key;
    json_t *item;
    if (json_is_real(value)) return shortest_precision(json_real_value(value));
    if (json_is_array(value)) {
        json_array_foreach(value, i, item) largest = max_size(largest, precision_of(item));
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, item) largest = max_size(largest, precision_of(item));
    }
    return largest;
}

uint32_t json_height(const json_t *value) {
    uint32_t highest = 0;
    size_t i;
    const char *key;
    json_t *item;
    if (json_is_array(value)) {
        json_array_foreach(value, i, item) highest = (uint32_t)max_size(highest, json_height(item));
    } else if (json_is_object(value)) {
        json_object_foreach((json_t *)value, key, item) highest = (uint32_t)max_size(highest, json_height(item));
    } else {
        return 0;
    }
    return highest + 1;
}

enum status literal_of(struct arena *arena, const json_t *value, struct literal *literal, struct error *error) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(precision_of(value)));
    if (text == NULL) return error_set(error, STATUS_MEMORY, "no memory for a value of the schema");
    const size_t length = strlen(text);
    literal->bytes = (const uint8_t *)arena_text(arena, text, length);
    literal->length = (uint32_t)length;
    free(text);
    return literal->bytes != NULL ? STATUS_OK : error_set(error, STATUS_MEMORY, "no memory for a value of the schema");
}
