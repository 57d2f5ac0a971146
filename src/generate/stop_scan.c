#include "generate/stop_scan.h"

#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/checked.h"

enum status stop_scan_push(struct stop_scan *scan, const char *piece, size_t length, size_t *ready, bool *found,
                           struct error *error) {
    if (!text_append(&scan->held, piece, length))
        return error_set(error, STATUS_MEMORY, "no memory for the answer's text");
    size_t begin = scan->held.length, end = SIZE_MAX; /* of the stop string that is complete first */
    *ready = scan->held.length;
    for (size_t at = 0; at < scan->held.length; at++)
        for (size_t i = 0; i < scan->stop_count; i++) {
            size_t stop_length = strlen(scan->stops[i]), rest = scan->held.length - at;
            if (memcmp(scan->held.bytes + at, scan->stops[i], min_size(rest, stop_length)) != 0) continue;
            if (stop_length > rest) {
                *ready = min_size(*ready, at); /* it may begin here */
            } else if (at + stop_length < end) {
                begin = at;
                end = at + stop_length;
                scan->found = i;
            }
        }
    *found = end != SIZE_MAX;
    if (*found) *ready = scan->held.length = begin;
    return STATUS_OK;
}

void stop_scan_drop(struct stop_scan *scan, size_t count) {
    ASSERT(count <= scan->held.length);
    text_drop(&scan->held, count);
}

void stop_scan_deinit(struct stop_scan *scan) {
    text_deinit(&scan->held);
    *scan = (struct stop_scan){0};
}
