#include "generate/stop_scan.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"

static enum status append(struct stop_scan *scan, const char *piece, size_t length, struct error *error) {
    if (length > scan->capacity - scan->count) {
        size_t capacity = 2 * (scan->count + length) + 64;
        char *bigger = realloc(scan->held, capacity);
        if (bigger == NULL) return error_set(error, STATUS_MEMORY, "no memory for the answer's text");
        scan->held = bigger;
        scan->capacity = capacity;
    }
    if (length > 0) memcpy(scan->held + scan->count, piece, length);
    scan->count += length;
    return STATUS_OK;
}

enum status stop_scan_push(struct stop_scan *scan, const char *piece, size_t length, size_t *ready, bool *found,
                           struct error *error) {
    TRY(append(scan, piece, length, error));
    size_t begin = scan->count, end = SIZE_MAX; /* of the stop string that is complete first */
    *ready = scan->count;
    for (size_t at = 0; at < scan->count; at++)
        for (size_t i = 0; i < scan->stop_count; i++) {
            size_t stop_length = strlen(scan->stops[i]), rest = scan->count - at;
            if (memcmp(scan->held + at, scan->stops[i], min_size(rest, stop_length)) != 0) continue;
            if (stop_length > rest) {
                *ready = min_size(*ready, at); /* it may begin here */
            } else if (at + stop_length < end) {
                begin = at;
                end = at + stop_length;
                scan->found = i;
            }
        }
    *found = end != SIZE_MAX;
    if (*found) *ready = scan->count = begin;
    return STATUS_OK;
}

void stop_scan_drop(struct stop_scan *scan, size_t count) {
    ASSERT(count <= scan->count);
    if (count == 0) return;
    memmove(scan->held, scan->held + count, scan->count - count);
    scan->count -= count;
}

void stop_scan_deinit(struct stop_scan *scan) {
    free(scan->held);
    *scan = (struct stop_scan){0};
}
