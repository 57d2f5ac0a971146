#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/clock.h"
#include "server/http.h"
#include "server/routes.h"

enum { AFTERWORD_SECONDS = 2 }; /* for clients to read their error */

static enum status check_options(const struct server_options *options, struct error *error) {
    if (options->host == NULL) return STATUS_OK;
    if (options->key_count == 0 && !guard_is_loopback(options->host) && !guard_is_file(options->host))
        return error_set(error, STATUS_USAGE,
                         "--host %s: other machines can reach this address: give --api-key KEY as well", options->host);
    for (size_t i = 0; i < options->key_count; i++)
        if (options->keys[i][0] == '\0' || strlen(options->keys[i]) > GUARD_KEY_BYTES_MAX)
            return error_set(error, STATUS_USAGE, "--api-key: expected 1 to %d bytes", GUARD_KEY_BYTES_MAX);
    return STATUS_OK;
}

/* A key's documents stay its own whatever other keys come and go, so they are marked with the key's checksum. */
static enum status name_keys(struct server *server, struct error *error) {
    const size_t count = server->options.key_count;
    server->key_names = calloc(count + 1, sizeof *server->key_names);
    if (server->key_names == NULL) return error_set(error, STATUS_MEMORY, "no memory for the server");
    for (size_t i = 0; i < count; i++) {
        uint8_t sum[STORE_FINGERPRINT_BYTES] = {0};
        store_fingerprint_add(sum, server->options.keys[i], strlen(server->options.keys[i]));
        for (size_t b = 0; b < sizeof sum; b++) snprintf(server->key_names[i] + 2 * b, 3, "%02x", sum[b]);
    }
    return STATUS_OK;
}

enum status server_create(struct server **result, const struct server_options *options, struct error *error) {
    *result = NULL;
    TRY(check_options(options, error));
    struct server *server = *result = calloc(1, sizeof *server);
    if (server == NULL) return error_set(error, STATUS_MEMORY, "no memory for the server");
    server->options = *options;
    server->started = time(NULL);
    pthread_mutex_init(&server->trie_mutex, NULL);
    transfers_init(&server->transfers);
    atomic_store(&server->state, SERVER_LOADING);
    atomic_store(&server->next_id, clock_ns());
    TRY(name_keys(server, error));
    if (options->host == NULL) return STATUS_OK;
    server->guard = (struct guard){.keys = options->keys,
                                   .key_count = options->key_count,
                                   .origins = options->origins,
                                   .origin_count = options->origin_count,
                                   .host = options->host,
                                   .is_loopback = guard_is_loopback(options->host),
                                   .is_file = guard_is_file(options->host)};
    const struct http_options http = {.host = options->host,
                                      .port = options->port,
                                      .network_max = options->network_max,
                                      .counts_local = options->counts_local,
                                      .guard = &server->guard,
                                      .log = options->log,
                                      .has_route = routes_have,
                                      .takes_file = routes_take_file,
                                      .handle = routes_handle,
                                      .context = server};
    TRY(http_create(&server->http, &http, error));
    return http_start(server->http, error);
}

uint16_t server_port(const struct server *server) { return http_port(server->http); }

void server_begin(struct server *server, const struct server_model *model) {
    server->model = *model;
    atomic_store(&server->state, SERVER_READY);
}

void server_stop(struct server *server, double seconds) {
    const bool was_ready = atomic_exchange(&server->state, SERVER_DRAINING) == SERVER_READY;
    if (server->http != NULL) http_close_listener(server->http);
    const double until = clock_seconds() + seconds;
    if (was_ready) {
        service_drain(server->model.service, seconds);
        (void)service_wait(server->model.service, seconds + AFTERWORD_SECONDS);
        (void)transfers_wait(&server->transfers, until > clock_seconds() ? until - clock_seconds() : 0);
    }
    if (server->http != NULL) (void)http_wait_idle(server->http, AFTERWORD_SECONDS);
}

void server_destroy(struct server *server) {
    if (server == NULL) return;
    http_destroy(server->http);
    while (!transfers_wait(&server->transfers, 60)) continue; /* their clients are gone: they end */
    if (atomic_load(&server->state) != SERVER_LOADING && server->model.service != NULL) {
        service_drain(server->model.service, 0);
        (void)service_wait(server->model.service, 60); /* asks that use the server */
    }
    token_trie_destroy(server->trie);
    transfers_deinit(&server->transfers);
    pthread_mutex_destroy(&server->trie_mutex);
    free(server->key_names);
    free(server);
}
