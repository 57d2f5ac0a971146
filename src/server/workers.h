/* workers: a few threads that read the bodies of requests (JSON, tokens), so that the HTTP thread only moves bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "server/exchange.h"

struct workers;

enum status workers_create(struct workers **workers, size_t thread_count,
                           void (*handle)(void *context, struct exchange *exchange), void *context, struct error *error)
    STATUS_CHECKED;
/* Acquires the exchange until it was handled.  false: no memory. */
bool workers_submit(struct workers *workers, struct exchange *exchange);
/* What is submitted is handled first.  NULL: allowed. */
void workers_destroy(struct workers *workers);
