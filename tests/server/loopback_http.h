/* loopback_http: the server of a test, on a port of the loopback address, with every route; and what its handler and
 * the test wait for. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>

#include "server/http.h"

/* Of the options what is the test's: who handles and takes files, and limits. */
struct http *loopback_http_start(struct http_options options);
/* Until so many have happened: exactly so many. */
void wait_for(const _Atomic size_t *count, size_t wanted);
