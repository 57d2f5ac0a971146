#include "loopback_http.h"

#include "testing.h"

#include <unistd.h>

#include "http_client.h"

static bool has_route(const struct head *found, struct api_error *error) {
    (void)found, (void)error;
    return true;
}

struct http *loopback_http_start(struct http_options options) {
    static const struct guard guard = {.host = "127.0.0.1", .is_loopback = true};
    struct http *http;
    struct error error;
    options.host = guard.host;
    options.guard = &guard;
    options.has_route = has_route;
    assert_ok(http_create(&http, &options, &error), error);
    assert_ok(http_start(http, &error), error);
    return http;
}

void wait_for(const _Atomic size_t *count, size_t wanted) {
    for (int waited = 0; atomic_load(count) < wanted && waited < HTTP_CLIENT_PATIENCE_MS; waited++) usleep(1000);
    assert_int_equal(atomic_load(count), wanted);
}
