/* guard: who may ask, and from where.  Decided from a request's head alone, before its body is read.
 *
 * - Keys are compared in time that depends on their number only, not on their text.
 * - On a loopback address without keys the Host header must name this machine: a page that a browser loaded from
 *   elsewhere and whose name was then pointed at 127.0.0.1 (DNS rebinding) is refused.
 * - A request with a foreign Origin is refused unless --cors-origins names it.
 * - A body is JSON, or a file for the routes that take one, and says so: a browser cannot send either elsewhere without
 *   asking first.  A file has a length; how long it may be is its route's to say.
 * Thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/head.h"

enum { GUARD_KEY_BYTES_MAX = 255, GUARD_BODY_BYTES_MAX = 32 << 20 };

struct guard {
    const char *const *keys; /* [key_count], borrowed; none: everybody may ask */
    size_t key_count;
    const char *const *origins; /* [origin_count], borrowed; "*": any */
    size_t origin_count;
    const char *host; /* what the server listens on */
    bool is_loopback;
    bool is_file; /* a socket of the file system: no browser reaches it but through a proxy */
};

/* Whether an address is loopback: 127.*, ::1 or localhost. */
bool guard_is_loopback(const char *host);
/* Whether it is a socket of the file system, as llama-server has them: PATH.sock. */
bool guard_is_file(const char *host);

/* *key: 1 + the index of the request's key; 0: none is needed.  takes_file: the route's body is a file.  false:
 * refused. */
bool guard_check(const struct guard *guard, const struct head *head, bool takes_file, uint32_t *key,
                 struct api_error *error);

/* Whether a page of this origin may read the response. */
bool guard_allows_origin(const struct guard *guard, const struct head *head);
