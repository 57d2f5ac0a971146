#include "server/front.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "platform/clock.h"
#include "server/chunks.h"
#include "server/client_network.h"
#include "server/json_text.h"
#include "server/listener.h"

enum { SOCKETS_MAX = 4 * FRONT_CONNECTIONS_MAX, EVENTS_MAX = 64, TICK_MS = 500, LINGER_SECONDS = 2 };
enum {
    PROBE_MS = 100, /* an answer that needs no model is there by then */
    QUIET_TICKS = 4 /* after which nothing of a body comes behind its client's end */
};
enum {
    SEND_BUFFER = 64 << 10,
    ROOM_SECONDS = 5 /* until bodies have likely been understood */
};

enum { ORIGIN_BYTES_MAX = 256 };

static const uint64_t second_ns = 1000000000;

enum connection_state { CONNECTION_HEAD, CONNECTION_BODY, CONNECTION_ADOPTED, CONNECTION_LINGERS };

struct connection {
    enum connection_state state;
    uint32_t generation;
    uint64_t deadline_ns;      /* 0: none */
    struct exchange *exchange; /* a reference; NULL before the head is complete */
    bool in_use;
    uint64_t ended_ns; /* since when its client sends no more, and whether it reads is not known; 0: no such */
    bool has_ended;    /* within the body */
    unsigned quiet;    /* ticks since then without anything to read */
    size_t awaited;    /* CONNECTION_BODY: bytes of the whole request, or, where it comes in chunks, of its head */
    size_t file_bytes; /* of a file, that came since its deadline was moved */
    struct sockaddr_storage address;
    socklen_t address_length;
};

struct front {
    struct front_options options;
    struct listener listener;
    int epoll, wake, spare; /* spare: a descriptor for refuse_one */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex; /* of what follows */
    bool stops, closes_listener;
    struct connection *connections; /* [SOCKETS_MAX], by socket */
    uint64_t *networks;             /* the same: where they come from (client_network.h); 0: none, or not counted */
    size_t count;
    bool has_ended; /* a client, and whether it reads is to be found out */
    uint32_t next_generation;
    uint64_t next_number; /* of requests */
    char peek[HEAD_BYTES_MAX];
};

/* ---- opening ---- */

static bool watch(struct front *front, int operation, int socket, uint32_t events, uint32_t generation) {
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)generation << 32 | (uint32_t)socket};
    return epoll_ctl(front->epoll, operation, socket, &event) == 0;
}

/* Every stream holds a socket: as many as the system allows. */
static void raise_socket_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= SOCKETS_MAX) return;
    limit.rlim_cur = limit.rlim_max < SOCKETS_MAX ? limit.rlim_max : SOCKETS_MAX;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

enum status front_create(struct front **result, const struct front_options *options, struct error *error) {
    struct front *front = *result = calloc(1, sizeof *front);
    if (front == NULL) return error_set(error, STATUS_MEMORY, "no memory for the server");
    front->options = *options;
    front->listener.socket = front->epoll = front->wake = front->spare = -1;
    pthread_mutex_init(&front->mutex, NULL);
    raise_socket_limit();
    front->connections = calloc(SOCKETS_MAX, sizeof *front->connections);
    front->networks = calloc(SOCKETS_MAX, sizeof *front->networks);
    if (front->connections == NULL || front->networks == NULL)
        return error_set(error, STATUS_MEMORY, "no memory for the server");
    front->epoll = epoll_create1(EPOLL_CLOEXEC);
    front->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    front->spare = eventfd(0, EFD_CLOEXEC);
    if (front->epoll < 0 || front->wake < 0 || front->spare < 0) return error_set_os(error, STATUS_IO, errno, "epoll");
    TRY(listener_open(&front->listener, options->host, options->port, error));
    if (!watch(front, EPOLL_CTL_ADD, front->listener.socket, EPOLLIN, 0) ||
        !watch(front, EPOLL_CTL_ADD, front->wake, EPOLLIN, 0))
        return error_set_os(error, STATUS_IO, errno, "epoll");
    return STATUS_OK;
}

uint16_t front_port(const struct front *front) { return front->listener.port; }

/* ---- one connection; the mutex is held ---- */

static void forget(struct front *front, struct connection *connection) {
    if (!connection->in_use) return;
    if (connection->exchange != NULL) exchange_release(connection->exchange);
    *connection = (struct connection){0};
    front->networks[connection - front->connections] = 0;
    front->count--;
}

static void close_connection(struct front *front, int socket) {
    forget(front, &front->connections[socket]);
    close(socket);
}

bool front_has_no_room(struct api_error *error) {
    api_error_set(error, 429, NULL, "the requests of all clients together are too large at the moment");
    error->retry_after_seconds = ROOM_SECONDS;
    return false;
}

/* Of a request, in its id. */
static uint64_t new_number(struct front *front) { return ++front->next_number ^ clock_ns() << 16; }

/* The head of a refusal.  A page from an allowed origin may read it, too. */
static int print_head(char *text, size_t capacity, const struct front *front, const struct head *head,
                      const struct api_error *error, size_t body_length, uint64_t number) {
    char retry[40] = "", origin[2 * ORIGIN_BYTES_MAX] = "";
    if (error->never_retry) snprintf(retry, sizeof retry, "x-should-retry: false\r\n");
    if (error->retry_after_seconds > 0)
        snprintf(retry, sizeof retry, "Retry-After: %u\r\n", error->retry_after_seconds);
    if (head->origin.length < ORIGIN_BYTES_MAX && guard_allows_origin(front->options.guard, head))
        snprintf(origin, sizeof origin, "Access-Control-Allow-Origin: %.*s\r\nVary: Origin\r\n",
                 (int)head->origin.length, head->origin.text);
    return snprintf(text, capacity,
                    "HTTP/1.1 %u Refused\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                    "Connection: close\r\nx-request-id: " EXCHANGE_ID_FORMAT "\r\n%s%s%s\r\n",
                    error->http_status, body_length, (unsigned long long)number, retry, origin,
                    error->http_status == 405 ? "Allow: GET, POST, PUT, DELETE\r\n" : "");
}

/* The error as a whole response, then the end; a client that still sends is read, else its system would throw the
 * response away.  head: as far as it was read. */
static void refuse(struct front *front, int socket, const struct head *refused, const struct api_error *error) {
    struct connection *connection = &front->connections[socket];
    const bool anthropic =
        refused->path.text != NULL && api_error_is_anthropic(refused->path.text, refused->path.length);
    const uint64_t number = new_number(front);
    json_t *value = api_error_json(error, anthropic);
    if (anthropic) json_put(value, "request_id", json_sprintf(EXCHANGE_ID_FORMAT, (unsigned long long)number));
    size_t length;
    char *body = json_line(value, &length), head[400 + 2 * ORIGIN_BYTES_MAX];
    json_decref(value);
    const int head_length = print_head(head, sizeof head, front, refused, error, length, number);
    bool sent = body != NULL &&
                send(socket, head, (size_t)head_length, MSG_NOSIGNAL | MSG_MORE) == (ssize_t)head_length &&
                send(socket, body, length, MSG_NOSIGNAL) == (ssize_t)length;
    free(body);
    char id[24];
    snprintf(id, sizeof id, EXCHANGE_ID_FORMAT, (unsigned long long)number);
    const struct request_record record = {
        .method = refused->method, .path = refused->path, .id = id, .http_status = error->http_status};
    if (front->options.log.write != NULL) front->options.log.write(front->options.log.context, &record);
    sent =
        sent && shutdown(socket, SHUT_WR) == 0 && watch(front, EPOLL_CTL_MOD, socket, EPOLLIN, connection->generation);
    connection->state = CONNECTION_LINGERS;
    connection->deadline_ns = clock_ns() + LINGER_SECONDS * second_ns;
    if (!sent) close_connection(front, socket);
}

static void linger(struct front *front, int socket) {
    for (int i = 0; i < 64; i++) {
        const ssize_t count = recv(socket, front->peek, sizeof front->peek, 0);
        if (count > 0) continue;
        if (count == 0 || (errno != EAGAIN && errno != EINTR)) close_connection(front, socket);
        return;
    }
}

/* The head is complete: whether the request is taken. */
static bool admit(struct front *front, struct connection *connection, const struct head *head,
                  struct api_error *error) {
    uint32_t key = 0;
    const bool takes_file = front->options.takes_file != NULL && front->options.takes_file(head);
    if (!guard_check(front->options.guard, head, takes_file, &key, error)) return false;
    if (!front->options.has_route(head, error)) return false;
    const uint64_t in_memory = takes_file ? EXCHANGE_BODY_BUFFER_BYTES : head->content_length;
    if (exchange_body_bytes_total() + in_memory > FRONT_BODY_BYTES_MAX) return front_has_no_room(error);
    connection->exchange = exchange_create(head, key, new_number(front));
    if (connection->exchange == NULL) return api_error_set(error, 503, NULL, "no memory");
    exchange_set_log(connection->exchange, &front->options.log);
    if (takes_file) exchange_stream_body(connection->exchange, head->content_length);
    if (guard_allows_origin(front->options.guard, head)) exchange_allow_origin(connection->exchange, head->origin);
    return true;
}

static size_t readable(int socket) {
    int bytes = 0;
    return ioctl(socket, FIONREAD, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

/* The connection is libmicrohttpd's from here on. */
static void give_away(struct front *front, int socket) {
    struct connection *connection = &front->connections[socket];
    connection->state = CONNECTION_ADOPTED;
    connection->deadline_ns = clock_ns() + FRONT_BODY_SECONDS * second_ns;
    if (!watch(front, EPOLL_CTL_MOD, socket, EPOLLRDHUP | EPOLLET, connection->generation)) {
        close_connection(front, socket);
        return;
    }
    const struct sockaddr_storage address = connection->address;
    const socklen_t length = connection->address_length;
    pthread_mutex_unlock(&front->mutex);
    const bool adopted =
        front->options.adopt(front->options.context, socket, (const struct sockaddr *)&address, length);
    pthread_mutex_lock(&front->mutex);
    if (!adopted) forget(front, connection);
}

/* why: what the body does. */
static void refuse_body(struct front *front, int socket, const struct head *head, unsigned http_status,
                        const char *why) {
    struct api_error error;
    api_error_set(&error, http_status, NULL, "HTTP: the body %s", why);
    refuse(front, socket, head, &error);
}

/* Whether it is in the socket before the connection is given away: a client that waits for leave sends none. */
static bool body_is_awaited(const struct front *front, const struct head *head) {
    const bool is_file = front->options.takes_file != NULL && front->options.takes_file(head);
    return !is_file && head->expect.text == NULL &&
           (head->is_chunked || (head->content_length > 0 && head->content_length <= FRONT_BODY_SHORT));
}

/* The body as far as it is among the count bytes that are peeked at: whether there is enough of it, or more than can be
 * seen.  why: what is wrong with it; NULL: nothing. */
static bool body_is_there(const struct front *front, const struct connection *connection, const struct head *head,
                          size_t count, int socket, const char **why) {
    *why = NULL;
    if (!head->is_chunked || connection->awaited == 0) return readable(socket) >= connection->awaited;
    const enum chunks_result result = chunks_read(front->peek + connection->awaited, count - connection->awaited, why);
    return result != CHUNKS_INCOMPLETE || count == sizeof front->peek;
}

/* Reads as far as the head goes, without taking it from the socket; and waits for a short body. */
static void read_head(struct front *front, int socket, bool has_ended) {
    struct connection *connection = &front->connections[socket];
    const ssize_t count = recv(socket, front->peek, sizeof front->peek, MSG_PEEK);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
        close_connection(front, socket);
        return;
    }
    struct head head;
    struct api_error error;
    const enum head_result result = head_read(front->peek, (size_t)count, &head, &error);
    if (result == HEAD_INCOMPLETE) {
        if (has_ended) close_connection(front, socket);
        return;
    }
    const bool is_new = connection->state == CONNECTION_HEAD;
    if (result == HEAD_REFUSED || (is_new && !admit(front, connection, &head, &error))) {
        refuse(front, socket, &head, &error);
        return;
    }
    if (is_new && body_is_awaited(front, &head)) {
        const char *end = memmem(front->peek, (size_t)count, "\r\n\r\n", 4);
        connection->awaited = (size_t)(end + 4 - front->peek) + (size_t)head.content_length;
    }
    const char *why;
    const bool is_there = body_is_there(front, connection, &head, (size_t)count, socket, &why);
    if (why != NULL) {
        refuse_body(front, socket, &head, 400, why);
    } else if (is_there) {
        give_away(front, socket);
    } else if (has_ended) {
        refuse_body(front, socket, &head, 400,
                    head.is_chunked ? "ends before its last chunk" : "is shorter than its Content-Length");
    } else if (is_new) {
        connection->state = CONNECTION_BODY;
        connection->deadline_ns = clock_ns() + FRONT_BODY_SECONDS * second_ns;
    }
}

/* ---- the loop; the mutex is held but while it waits ---- */

/* Whether one more may come from there. */
static bool has_place(const struct front *front, uint64_t network) {
    size_t count = 0;
    for (size_t i = 0; i < SOCKETS_MAX && network != 0; i++) count += front->networks[i] == network;
    return front->count < FRONT_CONNECTIONS_MAX && (network == 0 || count < front->options.network_max);
}

/* 0: they are not counted. */
static uint64_t network_of(const struct front *front, const struct sockaddr_storage *address) {
    bool is_local;
    const uint64_t network = client_network_of(address, &is_local);
    const bool counts = front->options.network_max > 0 && (!is_local || front->options.counts_local);
    return counts ? network : 0;
}

/* The process has no descriptor left.  A connection that nobody takes would be told again and again: it is taken with
 * the spare one, and closed. */
static void refuse_one(struct front *front) {
    if (front->spare >= 0) close(front->spare);
    const int socket = accept4(front->listener.socket, NULL, NULL, SOCK_CLOEXEC);
    if (socket >= 0) close(socket);
    front->spare = eventfd(0, EFD_CLOEXEC);
}

static void accept_all(struct front *front) {
    for (int i = 0; i < EVENTS_MAX; i++) {
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        const int on = 1, socket = accept4(front->listener.socket, (struct sockaddr *)&address, &length,
                                           SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (socket < 0 && (errno == EMFILE || errno == ENFILE)) {
            refuse_one(front);
            continue;
        }
        if (socket < 0) return;
        const uint64_t network = network_of(front, &address);
        if (socket >= SOCKETS_MAX || !has_place(front, network)) {
            close(socket);
            continue;
        }
        (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        /* A client that does not read pauses its request; the system would take 4 MB before it tells. */
        const int buffer = SEND_BUFFER;
        (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        struct connection *connection = &front->connections[socket];
        forget(front, connection); /* one that was closed without a word */
        *connection = (struct connection){.state = CONNECTION_HEAD,
                                          .generation = ++front->next_generation,
                                          .deadline_ns = clock_ns() + FRONT_HEAD_SECONDS * second_ns,
                                          .in_use = true,
                                          .address = address,
                                          .address_length = length};
        front->networks[socket] = network;
        front->count++;
        if (!watch(front, EPOLL_CTL_ADD, socket, EPOLLIN | EPOLLRDHUP | EPOLLET, connection->generation))
            close_connection(front, socket);
    }
}

/* The client of an adopted connection is gone. */
static void peer_left(struct front *front, int socket) {
    const struct connection *connection = &front->connections[socket];
    struct exchange *exchange = connection->exchange;
    const uint32_t generation = connection->generation;
    exchange_acquire(exchange);
    pthread_mutex_unlock(&front->mutex);
    exchange_leave(exchange);
    exchange_release(exchange);
    pthread_mutex_lock(&front->mutex);
    const bool waits_for_body =
        connection->in_use && connection->generation == generation && connection->deadline_ns != 0;
    if (waits_for_body) (void)shutdown(socket, SHUT_RDWR);
}

/* It sends no more.  Its body may be whole all the same, but for what the socket still holds. */
static void peer_ended(struct front *front, struct connection *connection) {
    connection->has_ended = connection->deadline_ns != 0;
    if (connection->has_ended) return;
    connection->ended_ns = clock_ns();
    front->has_ended = true;
}

/* libmicrohttpd does not notice an end that comes with the last bytes of a part of a body: its edge-triggered epoll
 * tells once, and it reads once. */
static bool body_is_cut(struct connection *connection, int socket) {
    if (!connection->has_ended || connection->deadline_ns == 0) return false;
    connection->quiet = readable(socket) == 0 ? connection->quiet + 1 : 0;
    return connection->quiet >= QUIET_TICKS;
}

/* Finds out of the clients that send no more whether they read. */
static void probe_all(struct front *front, uint64_t now_ns) {
    front->has_ended = false;
    for (int socket = 0; socket < SOCKETS_MAX; socket++) {
        struct connection *connection = &front->connections[socket];
        if (!connection->in_use || connection->state != CONNECTION_ADOPTED || connection->ended_ns == 0) continue;
        const uint64_t ended_ns = connection->ended_ns;
        const uint32_t generation = connection->generation;
        if (now_ns < ended_ns + PROBE_MS * UINT64_C(1000000)) {
            front->has_ended = true;
            continue;
        }
        struct exchange *exchange = connection->exchange;
        exchange_acquire(exchange);
        pthread_mutex_unlock(&front->mutex);
        const bool is_known = exchange_probe(exchange, ended_ns);
        exchange_release(exchange);
        pthread_mutex_lock(&front->mutex);
        if (!connection->in_use || connection->generation != generation) continue;
        if (is_known)
            connection->ended_ns = 0;
        else
            front->has_ended = true;
    }
}

static void handle_event(struct front *front, const struct epoll_event *event) {
    const int socket = (int)(uint32_t)event->data.u64;
    if (socket == front->wake) {
        eventfd_t ignored;
        (void)eventfd_read(front->wake, &ignored);
        return;
    }
    if (socket == front->listener.socket) {
        accept_all(front);
        return;
    }
    struct connection *connection = &front->connections[socket];
    if (!connection->in_use || connection->generation != (uint32_t)(event->data.u64 >> 32)) return;
    const bool is_gone = (event->events & (EPOLLHUP | EPOLLERR)) != 0;
    switch (connection->state) {
    case CONNECTION_HEAD:
    case CONNECTION_BODY: read_head(front, socket, is_gone || (event->events & EPOLLRDHUP) != 0); break;
    case CONNECTION_LINGERS: linger(front, socket); break;
    case CONNECTION_ADOPTED:
        if (is_gone)
            peer_left(front, socket);
        else
            peer_ended(front, connection);
        break;
    }
}

static void tick(struct front *front, uint64_t now_ns) {
    for (int socket = 0; socket < SOCKETS_MAX; socket++) {
        struct connection *connection = &front->connections[socket];
        if (!connection->in_use) continue;
        const uint32_t generation = connection->generation;
        bool gives_up = connection->deadline_ns != 0 && now_ns > connection->deadline_ns;
        if (gives_up && connection->state == CONNECTION_HEAD) {
            struct api_error error;
            api_error_set(&error, 408, NULL, "HTTP: the headers took longer than %d s", FRONT_HEAD_SECONDS);
            refuse(front, socket, &(struct head){.is_1_0 = false}, &error);
            continue;
        }
        if (gives_up && connection->state == CONNECTION_BODY) {
            refuse_body(front, socket, &(struct head){.is_1_0 = false}, 408, "took longer than 60 s");
            continue;
        }
        if (gives_up && connection->state == CONNECTION_LINGERS) {
            close_connection(front, socket);
            continue;
        }
        if (connection->state != CONNECTION_ADOPTED) continue;
        gives_up = body_is_cut(connection, socket) || gives_up;
        struct exchange *exchange = connection->exchange;
        exchange_acquire(exchange);
        pthread_mutex_unlock(&front->mutex);
        gives_up = exchange_tick(exchange, now_ns) || gives_up;
        if (gives_up) exchange_leave(exchange);
        exchange_release(exchange);
        pthread_mutex_lock(&front->mutex);
        if (gives_up && connection->in_use && connection->generation == generation) {
            connection->deadline_ns = 0;
            (void)shutdown(socket, SHUT_RDWR);
        }
    }
}

static void *front_thread(void *context) {
    struct front *front = context;
    struct epoll_event events[EVENTS_MAX];
    uint64_t ticked_ns = clock_ns();
    pthread_mutex_lock(&front->mutex);
    while (!front->stops) {
        const int wait_ms = front->has_ended ? PROBE_MS / 2 : TICK_MS;
        pthread_mutex_unlock(&front->mutex);
        const int count = epoll_wait(front->epoll, events, EVENTS_MAX, wait_ms);
        pthread_mutex_lock(&front->mutex);
        if (front->closes_listener) listener_close(&front->listener);
        for (int i = 0; i < count && !front->stops; i++) handle_event(front, &events[i]);
        const uint64_t now_ns = clock_ns();
        if (front->has_ended) probe_all(front, now_ns);
        if (now_ns - ticked_ns < (uint64_t)TICK_MS * 1000000) continue;
        ticked_ns = now_ns;
        tick(front, now_ns);
    }
    pthread_mutex_unlock(&front->mutex);
    return NULL;
}

enum status front_start(struct front *front, struct error *error) {
    const int failed = pthread_create(&front->thread, NULL, front_thread, front);
    if (failed != 0) return error_set_os(error, STATUS_MEMORY, failed, "a thread for the server");
    front->has_thread = true;
    return STATUS_OK;
}

void front_close_listener(struct front *front) {
    pthread_mutex_lock(&front->mutex);
    front->closes_listener = true;
    pthread_mutex_unlock(&front->mutex);
    (void)eventfd_write(front->wake, 1);
}

size_t front_connections(struct front *front) {
    pthread_mutex_lock(&front->mutex);
    const size_t count = front->count;
    pthread_mutex_unlock(&front->mutex);
    return count;
}

void front_leave_all(struct front *front) {
    pthread_mutex_lock(&front->mutex);
    for (int socket = 0; socket < SOCKETS_MAX; socket++)
        if (front->connections[socket].in_use && front->connections[socket].state == CONNECTION_ADOPTED)
            peer_left(front, socket);
    pthread_mutex_unlock(&front->mutex);
}

void front_stop(struct front *front) {
    pthread_mutex_lock(&front->mutex);
    front->stops = true;
    pthread_mutex_unlock(&front->mutex);
    if (!front->has_thread) return;
    (void)eventfd_write(front->wake, 1);
    pthread_join(front->thread, NULL);
    front->has_thread = false;
}

void front_destroy(struct front *front) {
    if (front == NULL) return;
    front_stop(front);
    for (int socket = 0; front->connections != NULL && socket < SOCKETS_MAX; socket++) {
        const bool is_ours = front->connections[socket].state != CONNECTION_ADOPTED;
        if (front->connections[socket].in_use && is_ours) close_connection(front, socket);
        forget(front, &front->connections[socket]);
    }
    listener_close(&front->listener);
    if (front->wake >= 0) close(front->wake);
    if (front->spare >= 0) close(front->spare);
    if (front->epoll >= 0) close(front->epoll);
    free(front->connections);
    free(front->networks);
    pthread_mutex_destroy(&front->mutex);
    free(front);
}

/* ---- for the one who adopts ---- */

struct exchange *front_exchange(struct front *front, int socket) {
    struct exchange *exchange = NULL;
    pthread_mutex_lock(&front->mutex);
    if (socket >= 0 && socket < SOCKETS_MAX && front->connections[socket].in_use)
        exchange = front->connections[socket].exchange;
    if (exchange != NULL) exchange_acquire(exchange);
    pthread_mutex_unlock(&front->mutex);
    return exchange;
}

void front_body_complete(struct front *front, int socket) {
    pthread_mutex_lock(&front->mutex);
    if (socket >= 0 && socket < SOCKETS_MAX) {
        struct connection *connection = &front->connections[socket];
        connection->deadline_ns = 0;
        if (connection->has_ended) {
            peer_ended(front, connection);
            (void)eventfd_write(front->wake, 1);
        }
    }
    pthread_mutex_unlock(&front->mutex);
}

void front_file_moves(struct front *front, int socket, size_t bytes) {
    pthread_mutex_lock(&front->mutex);
    if (socket >= 0 && socket < SOCKETS_MAX) {
        struct connection *connection = &front->connections[socket];
        connection->file_bytes += bytes;
        if (bytes == 0) {
            connection->deadline_ns = 0;
        } else if (connection->deadline_ns == 0 || connection->file_bytes >= FRONT_FILE_STEP) {
            connection->deadline_ns = clock_ns() + FRONT_BODY_SECONDS * second_ns;
            connection->file_bytes = 0;
        }
    }
    pthread_mutex_unlock(&front->mutex);
}

void front_forget(struct front *front, int socket) {
    pthread_mutex_lock(&front->mutex);
    if (socket >= 0 && socket < SOCKETS_MAX) forget(front, &front->connections[socket]);
    pthread_mutex_unlock(&front->mutex);
}
