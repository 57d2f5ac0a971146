#include "server/http.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "platform/clock.h"
#include "server/front.h"
#include "server/workers.h"

enum { CONNECTION_MEMORY = 48 << 10, IDLE_SECONDS = 60, WORKER_COUNT = 4 };
enum { STREAM_BLOCK = 8 << 10, FILE_BLOCK = 64 << 10 };

struct http {
    struct http_options options;
    struct front *front;
    struct workers *workers;
    struct MHD_Daemon *daemon;
};

/* What libmicrohttpd keeps for a request. */
struct http_request {
    struct exchange *exchange; /* a reference */
    struct MHD_Connection *connection;
    int socket;
    bool was_handed_over, is_too_large, has_no_room; /* for its body; the second: at the moment */
    bool takes_file, has_begun;                      /* its file: the body is wanted, or there is a reply already */
    bool reads_no_more;                              /* libmicrohttpd, behind the body */
};

static int socket_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info != NULL ? info->connect_fd : -1;
}

static void suspend(void *connection) { MHD_suspend_connection(connection); }
static void wake(void *connection) { MHD_resume_connection(connection); }

/* ---- the response ---- */

/* Ends a connection in the midst of its response.  One whose reader reports an error libmicrohttpd (0.9.75) marks as
 * closed, and keeps its descriptor until it has something else to do, for up to IDLE_SECONDS.  One that it cannot write
 * to it closes at once: so it gets a byte to write, which nobody sees. */
static ssize_t end_by_write(const struct http_request *request, char *buffer) {
    (void)shutdown(request->socket, SHUT_RDWR);
    buffer[0] = ' ';
    return 1;
}

static ssize_t read_stream(void *context, uint64_t position, char *buffer, size_t capacity) {
    struct http_request *request = context;
    (void)position;
    const int64_t count = exchange_read(request->exchange, buffer, capacity, request->connection, suspend, wake);
    if (count == EXCHANGE_READ_END) return MHD_CONTENT_READER_END_OF_STREAM;
    return count == EXCHANGE_READ_LEFT ? end_by_write(request, buffer) : (ssize_t)count;
}

static void add_headers(struct MHD_Response *response, const struct exchange *exchange, const char *content_type) {
    (void)MHD_add_response_header(response, "Content-Type", content_type);
    (void)MHD_add_response_header(response, "Connection", "close");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(response, "x-request-id", exchange_id(exchange));
    const char *origin = exchange_origin(exchange);
    if (origin[0] == '\0') return;
    (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
    (void)MHD_add_response_header(response, "Vary", "Origin");
    (void)MHD_add_response_header(response, "Access-Control-Expose-Headers", "*");
    if (exchange_method(exchange) != HTTP_OPTIONS) return;
    (void)MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, PUT, DELETE");
    /* "*" does not stand for authorization; OpenAI's and Anthropic's JavaScript send a dozen of their own. */
    (void)MHD_add_response_header(response, "Access-Control-Allow-Headers", "authorization, *");
    (void)MHD_add_response_header(response, "Access-Control-Max-Age", "600");
}

static enum MHD_Result send_response(struct MHD_Connection *connection, unsigned http_status,
                                     struct MHD_Response *response) {
    if (response == NULL) return MHD_NO;
    const enum MHD_Result queued = MHD_queue_response(connection, http_status, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result send_whole(struct http_request *request) {
    const struct exchange_reply_view reply = exchange_take_reply(request->exchange);
    struct MHD_Response *response = MHD_create_response_from_buffer(reply.length, reply.bytes, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(reply.bytes);
        return MHD_NO;
    }
    add_headers(response, request->exchange, reply.content_type);
    for (size_t i = 0; i < reply.header_count; i++)
        (void)MHD_add_response_header(response, reply.headers[i].name, reply.headers[i].value);
    if (reply.header_count == 0) (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    if (reply.retry_after_seconds > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", reply.retry_after_seconds);
        (void)MHD_add_response_header(response, "Retry-After", seconds);
    }
    if (reply.never_retry) (void)MHD_add_response_header(response, "x-should-retry", "false");
    return send_response(request->connection, reply.http_status, response);
}

static enum MHD_Result send_file(struct http_request *request, const struct exchange_file *file) {
    char text[EXCHANGE_NAME_MAX + 64];
    struct MHD_Response *response =
        MHD_create_response_from_callback(file->bytes, FILE_BLOCK, read_stream, request, NULL);
    if (response == NULL) return MHD_NO;
    add_headers(response, request->exchange, "application/octet-stream");
    (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    snprintf(text, sizeof text, "\"%s\"", file->etag);
    (void)MHD_add_response_header(response, "ETag", text);
    snprintf(text, sizeof text, "attachment; filename=\"%s\"", file->name);
    (void)MHD_add_response_header(response, "Content-Disposition", text);
    return send_response(request->connection, 200, response);
}

static enum MHD_Result send_stream(struct http_request *request, const char *content_type) {
    const struct exchange_file *file = exchange_get_file(request->exchange);
    if (file != NULL) return send_file(request, file);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, request, NULL);
    if (response == NULL) return MHD_NO;
    add_headers(response, request->exchange, content_type);
    (void)MHD_add_response_header(response, "Cache-Control", "no-store");
    (void)MHD_add_response_header(response, "X-Accel-Buffering", "no");
    return send_response(request->connection, 200, response);
}

/* ---- the request ---- */

static struct http_request *request_create(struct http *http, struct MHD_Connection *connection) {
    struct http_request *request = calloc(1, sizeof *request);
    if (request == NULL) return NULL;
    request->connection = connection;
    request->socket = socket_of(connection);
    request->exchange = front_exchange(http->front, request->socket);
    uint64_t ignored;
    if (request->exchange != NULL) {
        request->takes_file = exchange_streams_body(request->exchange, &ignored);
        return request;
    }
    free(request);
    return NULL;
}

/* What cannot be kept is read to its end all the same, so that the client hears why. */
static void take_body(struct http_request *request, const char *bytes, size_t length) {
    if (request->is_too_large || request->has_no_room) return;
    request->is_too_large = !exchange_append_body(request->exchange, bytes, length);
    request->has_no_room = exchange_body_bytes_total() > FRONT_BODY_BYTES_MAX;
    if (request->is_too_large || request->has_no_room) exchange_drop_body(request->exchange);
}

static void hand_over(struct http *http, struct http_request *request) {
    request->was_handed_over = true;
    struct api_error error;
    if (request->has_no_room) {
        (void)front_has_no_room(&error);
        exchange_reply_error(request->exchange, &error);
    } else if (request->is_too_large) {
        exchange_refuse(request->exchange, 413, "the body has more than %d bytes, or there is no memory for it",
                        GUARD_BODY_BYTES_MAX);
    } else if (!workers_submit(http->workers, request->exchange)) {
        exchange_refuse(request->exchange, 503, "no memory");
    }
}

static enum MHD_Result send_answer(struct http_request *request) {
    switch (exchange_await(request->exchange, request->connection, suspend, wake)) {
    case EXCHANGE_WAITS: return MHD_YES;
    case EXCHANGE_HAS_REPLY: return send_whole(request);
    case EXCHANGE_HAS_STREAM: return send_stream(request, "text/event-stream");
    case EXCHANGE_BEGINS: return send_stream(request, "application/json");
    case EXCHANGE_LEFT: break;
    }
    return MHD_NO;
}

/* Behind the body.  libmicrohttpd reads from a connection that wakes if it would have read when that fell asleep, and
 * takes the end of a client that has shut its sending side alone for one that has left (decision 0081).  Once it has
 * asked for an answer and got neither that nor a sleeper, it would not read: so it gets neither the first time, and
 * asks again at once. */
static enum MHD_Result await_answer(struct http_request *request) {
    const bool may_sleep = request->reads_no_more;
    request->reads_no_more = true;
    return may_sleep ? send_answer(request) : MHD_YES;
}

/* A client that waits for leave to send its file is refused before it does. */
static bool awaits_leave(const struct http_request *request) {
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, "Expect") != NULL;
}

/* A request for which a file comes: handed over first; then its bytes; then its end. */
static enum MHD_Result answer_file(struct http *http, struct http_request *request, const char *body,
                                   size_t *body_length) {
    if (!request->was_handed_over) hand_over(http, request);
    if (*body_length > 0) {
        const int64_t taken =
            exchange_put_body(request->exchange, body, *body_length, request->connection, suspend, wake);
        if (taken == EXCHANGE_READ_LEFT) return MHD_NO;
        *body_length -= (size_t)taken;
        if (taken > 0) front_file_moves(http->front, request->socket, (size_t)taken);
        if (*body_length > 0) front_file_moves(http->front, request->socket, 0);
        return MHD_YES;
    }
    if (request->has_begun) {
        exchange_end_body(request->exchange);
        front_body_complete(http->front, request->socket);
        return await_answer(request);
    }
    if (awaits_leave(request)) { /* else the body comes, and its client's end may be behind it */
        const enum exchange_progress progress =
            exchange_await_want(request->exchange, request->connection, suspend, wake);
        if (progress == EXCHANGE_WAITS) return MHD_YES;
        if (progress == EXCHANGE_LEFT) return MHD_NO;
        if (progress == EXCHANGE_HAS_REPLY) {
            front_body_complete(http->front, request->socket);
            return send_answer(request);
        }
    }
    request->has_begun = true;
    return MHD_YES;
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *body, size_t *body_length, void **request_slot) {
    struct http *http = context;
    struct http_request *request = *request_slot;
    (void)url, (void)method, (void)version;
    if (request == NULL) {
        *request_slot = request = request_create(http, connection);
        if (request == NULL || !request->takes_file) return request != NULL ? MHD_YES : MHD_NO;
    }
    if (request->takes_file) return answer_file(http, request, body, body_length);
    if (*body_length > 0) {
        take_body(request, body, *body_length);
        *body_length = 0;
        return MHD_YES;
    }
    if (!request->was_handed_over) {
        front_body_complete(http->front, request->socket);
        hand_over(http, request);
    }
    return await_answer(request);
}

static void completed(void *context, struct MHD_Connection *connection, void **request_slot,
                      enum MHD_RequestTerminationCode code) {
    struct http_request *request = *request_slot;
    (void)context, (void)connection;
    if (request == NULL) return;
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) exchange_leave(request->exchange);
    exchange_release(request->exchange);
    free(request);
    *request_slot = NULL;
}

static void connection_changes(void *context, struct MHD_Connection *connection, void **socket_context,
                               enum MHD_ConnectionNotificationCode code) {
    struct http *http = context;
    (void)socket_context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) front_forget(http->front, socket_of(connection));
}

/* Paths are compared as they came: nothing is unescaped. */
static size_t keep_escaped(void *context, struct MHD_Connection *connection, char *text) {
    (void)context, (void)connection;
    return strlen(text);
}

static bool adopt(void *context, int socket, const struct sockaddr *address, socklen_t length) {
    struct http *http = context;
    return MHD_add_connection(http->daemon, socket, address, length) == MHD_YES;
}

/* ---- opening and closing ---- */

enum status http_create(struct http **result, const struct http_options *options, struct error *error) {
    struct http *http = *result = calloc(1, sizeof *http);
    if (http == NULL) return error_set(error, STATUS_MEMORY, "no memory for the server");
    http->options = *options;
    const struct front_options front = {.host = options->host,
                                        .port = options->port,
                                        .network_max = options->network_max,
                                        .counts_local = options->counts_local,
                                        .log = options->log,
                                        .guard = options->guard,
                                        .has_route = options->has_route,
                                        .takes_file = options->takes_file,
                                        .adopt = adopt,
                                        .context = http};
    return front_create(&http->front, &front, error);
}

enum status http_start(struct http *http, struct error *error) {
    TRY(workers_create(&http->workers, WORKER_COUNT, http->options.handle, http->options.context, error));
    http->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET, 0, NULL,
                         NULL, answer, http, MHD_OPTION_NOTIFY_COMPLETED, completed, http, MHD_OPTION_NOTIFY_CONNECTION,
                         connection_changes, http, MHD_OPTION_CONNECTION_LIMIT, (unsigned)FRONT_CONNECTIONS_MAX,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)IDLE_SECONDS, MHD_OPTION_UNESCAPE_CALLBACK, keep_escaped, NULL, MHD_OPTION_END);
    if (http->daemon == NULL) return error_set(error, STATUS_FAILED, "libmicrohttpd does not start");
    return front_start(http->front, error);
}

uint16_t http_port(const struct http *http) { return front_port(http->front); }

void http_close_listener(struct http *http) { front_close_listener(http->front); }

bool http_wait_idle(struct http *http, double seconds) {
    const double until = clock_seconds() + seconds;
    while (front_connections(http->front) > 0) {
        if (clock_seconds() > until) return false;
        usleep(10000);
    }
    return true;
}

void http_destroy(struct http *http) {
    if (http == NULL) return;
    if (http->front != NULL) front_stop(http->front);
    if (http->daemon != NULL) {
        front_leave_all(http->front);
        MHD_stop_daemon(http->daemon);
    }
    workers_destroy(http->workers);
    front_destroy(http->front);
    free(http);
}
