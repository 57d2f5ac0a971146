/* The server's deadlines over HTTP, by a clock that the test moves: heads, bodies, beats, clients that take nothing,
 * and the end of a server whose requests have none.  Exactly at a deadline nothing has happened; after it, it has. */
#include "testing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "http_client.h"
#include "server/front.h"
#include "server/http.h"
#include "server/server.h"
#include "service_rig.h"

#define SECOND UINT64_C(1000000000)

/* ---- the clock: linked with --wrap=clock_gettime, so that loam's code calls this one ---- */

int __real_clock_gettime(clockid_t id, struct timespec *now);
int __wrap_clock_gettime(clockid_t id, struct timespec *now);

static _Atomic uint64_t skipped_ns, stopped_ns; /* stopped_ns 0: it runs */

int __wrap_clock_gettime(clockid_t id, struct timespec *now) {
    const int failed = __real_clock_gettime(id, now);
    if (failed != 0 || id != CLOCK_MONOTONIC) return failed;
    const uint64_t stopped = atomic_load(&stopped_ns);
    const uint64_t ns = atomic_load(&skipped_ns) +
                        (stopped > 0 ? stopped : (uint64_t)now->tv_sec * SECOND + (uint64_t)now->tv_nsec);
    now->tv_sec = (time_t)(ns / SECOND);
    now->tv_nsec = (long)(ns % SECOND);
    return 0;
}

static void clock_skip(uint64_t ns) { atomic_fetch_add(&skipped_ns, ns); }

static void wait_for(const _Atomic size_t *count, size_t wanted) {
    for (int waited = 0; atomic_load(count) < wanted && waited < HTTP_CLIENT_PATIENCE_MS; waited++)
        usleep(1000);
    assert_int_equal(atomic_load(count), wanted);
}

/* ---- HTTP with streams of the test's own, and a clock that stands still but for skips ---- */

enum { FLOOD_BYTES = 4 << 20, SMALL_BUFFER = 4096 };
/* Less than the time after which a client that takes nothing is given up. */
enum { DRAIN_SECONDS = 20 };

static const char head[] = "POST /reverse HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           "Content-Length: 6\r\nExpect: 100-continue\r\n\r\n";
static const char stream_request[] = "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
                  flood_request[] = "GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n";

/* One stream at a time. */
struct stream {
    struct exchange *exchange; /* a reference */
    _Atomic size_t beats, left, flooded;
    _Atomic size_t file_bytes; /* of all files, that were read */
};

static void stream_left(void *context) {
    struct stream *stream = context;
    atomic_fetch_add(&stream->left, 1);
}

static void stream_resumes(void *context) { (void)context; }

static void stream_beats(void *context) {
    struct stream *stream = context;
    (void)exchange_write(stream->exchange, "data: beat\n\n", 12);
    atomic_fetch_add(&stream->beats, 1);
}

/* Waits for a file on the worker's thread, as the server's own thread for it does. */
static void read_file(struct stream *stream, struct exchange *exchange) {
    char bytes[1000];
    size_t read = 1;
    exchange_want_body(exchange);
    while (read > 0 && exchange_read_body(exchange, bytes, sizeof bytes, &read))
        atomic_fetch_add(&stream->file_bytes, read);
    exchange_reply(exchange, 200, "text/plain", strdup("stored"),
                   6); /* a client that left does not hear it */
}

static void handle(void *context, struct exchange *exchange) {
    struct stream *stream = context;
    if (strcmp(exchange_path(exchange), "/file") == 0) {
        read_file(stream, exchange);
        return;
    }
    if (strcmp(exchange_path(exchange), "/reverse") == 0) {
        exchange_reply(exchange, 200, "text/plain", strdup("answered"), 8);
        return;
    }
    const struct exchange_work work = {stream, stream_left, stream_resumes, stream_beats};
    exchange_acquire(exchange);
    stream->exchange = exchange;
    exchange_stream_begin(exchange);
    if (strcmp(exchange_path(exchange), "/flood") == 0) {
        char *bytes = calloc(1, FLOOD_BYTES);
        assert_non_null(bytes);
        assert_true(exchange_write(exchange, bytes, FLOOD_BYTES));
        free(bytes);
        exchange_set_work(exchange, &work);
        atomic_store(&stream->flooded, 1);
        return;
    }
    exchange_set_work(exchange, &work);
    (void)exchange_write(exchange, "data: begun\n\n", 13);
}

static bool has_route(const struct head *found, struct api_error *error) {
    (void)found, (void)error;
    return true;
}

static bool takes_file(const struct head *found) { return head_text_is(found->path, "/file"); }

static void open_http(struct http **http, struct stream *stream) {
    static const struct guard guard = {.host = "127.0.0.1", .is_loopback = true};
    const struct http_options options = {.host = "127.0.0.1",
                                         .guard = &guard,
                                         .has_route = has_route,
                                         .takes_file = takes_file,
                                         .handle = handle,
                                         .context = stream};
    struct error error;
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    *stream = (struct stream){.exchange = NULL};
    atomic_store(&stopped_ns, (uint64_t)now.tv_sec * SECOND);
    assert_ok(http_create(http, &options, &error), error);
    assert_ok(http_start(*http, &error), error);
}

static void close_stream(struct stream *stream) {
    exchange_set_work(stream->exchange, NULL);
    exchange_stream_end(stream->exchange);
    exchange_release(stream->exchange);
    stream->exchange = NULL;
}

static void assert_answers(const struct http *http) {
    char text[1000] = "";
    const int client = http_client_post(http_port(http), "/reverse", "{}");
    http_client_read(client, text, sizeof text, NULL);
    assert_non_null(strstr(text, "answered"));
    close(client);
}

/* Whoever connected before has been accepted, as the queue of a listening socket is in order; and after a skip the
 * front has looked at every deadline: it does so behind the events among which the first of these two requests is. */
static void front_looks(const struct http *http) {
    assert_answers(http);
    assert_answers(http);
}

static void close_http(struct http *http) {
    http_destroy(http);
    atomic_store(&stopped_ns, 0);
    atomic_store(&skipped_ns, 0);
}

/* Clients that send no whole head, and one that does at the last moment. */
static void test_heads(void **state) {
    struct http *http;
    struct stream stream;
    char text[1000] = "";
    (void)state;
    open_http(&http, &stream);
    const int slow[2] = {http_client_connect(http_port(http), 0), http_client_connect(http_port(http), 0)};
    const int late = http_client_connect(http_port(http), 0);
    http_client_send(slow[0], "GET /heal");
    http_client_send(late, "POST /reverse HTTP/1.1\r\n");
    front_looks(http);
    clock_skip((uint64_t)FRONT_HEAD_SECONDS * SECOND);
    front_looks(http);
    http_client_send(late,
                     "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
    http_client_read(late, text, sizeof text, NULL);
    assert_non_null(strstr(text, "answered"));
    close(late);
    clock_skip(SECOND);
    for (size_t i = 0; i < 2; i++) {
        char refused[1000] = "";
        http_client_read(slow[i], refused, sizeof refused, NULL);
        assert_non_null(strstr(refused, "HTTP/1.1 408"));
        assert_non_null(strstr(refused, "10 s"));
        close(slow[i]);
    }
    assert_answers(http);
    close_http(http);
}

/* The same of bodies. */
static void test_bodies(void **state) {
    struct http *http;
    struct stream stream;
    char text[2][2000] = {"", ""};
    int clients[2];
    (void)state;
    open_http(&http, &stream);
    for (size_t i = 0; i < 2; i++) {
        clients[i] = http_client_connect(http_port(http), 0);
        http_client_send(clients[i], head);
        http_client_read(clients[i], text[i], sizeof text[i], "100 Continue\r\n\r\n"); /* its time runs */
        http_client_send(clients[i], "{\"a\"");
    }
    clock_skip((uint64_t)FRONT_BODY_SECONDS * SECOND);
    front_looks(http);
    http_client_send(clients[0], ":1");
    http_client_read(clients[0], text[0], sizeof text[0], NULL);
    assert_non_null(strstr(text[0], "answered"));
    clock_skip(SECOND);
    text[1][0] = '\0';
    http_client_read(clients[1], text[1], sizeof text[1], NULL);
    assert_string_equal(text[1], ""); /* closed without a word */
    assert_answers(http);
    for (size_t i = 0; i < 2; i++) close(clients[i]);
    close_http(http);
}

/* A file has as long as it takes while it comes; one that hardly does is given up. */
static void test_files(void **state) {
    enum { STEPS = 4, LITTLE = 1000 };
    static char step[FRONT_FILE_STEP + 1];
    struct http *http;
    struct stream stream;
    char request[400], text[2][1000] = {"", ""};
    int clients[2];
    (void)state;
    memset(step, 'x', sizeof step - 1);
    open_http(&http, &stream);
    snprintf(request, sizeof request,
             "POST /file HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
             "Content-Length: %d\r\nExpect: 100-continue\r\n\r\n",
             STEPS * FRONT_FILE_STEP);
    for (size_t i = 0; i < 2; i++) {
        clients[i] = http_client_connect(http_port(http), 0);
        http_client_send(clients[i], request);
        http_client_read(clients[i], text[i], sizeof text[i], "100 Continue\r\n\r\n");
    }
    step[LITTLE] = '\0';
    http_client_send(clients[1], step); /* and no more */
    step[LITTLE] = 'x';
    for (size_t i = 0; i < STEPS; i++) {
        http_client_send(clients[0], step);
        wait_for(&stream.file_bytes, LITTLE + (i + 1) * FRONT_FILE_STEP);
        if (i == STEPS - 1) break;
        clock_skip(i == 1 ? 2 * SECOND : (FRONT_BODY_SECONDS - 1) * SECOND);
        front_looks(http);
        if (i != 1) continue;
        text[1][0] = '\0'; /* of the other one, 61 s are over */
        http_client_read(clients[1], text[1], sizeof text[1], NULL);
        assert_string_equal(text[1], "");
    }
    http_client_read(clients[0], text[0], sizeof text[0], NULL);
    assert_non_null(strstr(text[0], "stored"));
    for (size_t i = 0; i < 2; i++) close(clients[i]);
    close_http(http);
}

/* A stream in which nothing happens says so. */
static void test_beats(void **state) {
    enum { BEATS = 3 };
    struct http *http;
    struct stream stream;
    char text[1000] = "";
    const char *beat = text;
    (void)state;
    open_http(&http, &stream);
    const int client = http_client_connect(http_port(http), 0);
    http_client_send(client, stream_request);
    http_client_read(client, text, sizeof text, "begun\n\n");
    for (size_t i = 1; i <= BEATS; i++) {
        clock_skip((uint64_t)EXCHANGE_BEAT_SECONDS * SECOND);
        front_looks(http);
        assert_int_equal(atomic_load(&stream.beats), i - 1);
        clock_skip(SECOND);
        wait_for(&stream.beats, i);
    }
    close_stream(&stream);
    http_client_read(client, text, sizeof text, NULL);
    for (size_t i = 0; i < BEATS; i++) {
        beat = strstr(beat, "data: beat\n\n");
        assert_non_null(beat);
        beat++;
    }
    assert_int_equal(atomic_load(&stream.left), 0);
    close(client);
    close_http(http);
}

/* A client that takes nothing of what waits for it.  What the system's buffers hold is taken at some moment after the
 * request, so its time begins then. */
static void test_blocked_clients(void **state) {
    struct http *http;
    struct stream stream;
    (void)state;
    open_http(&http, &stream);
    const int client = http_client_connect(http_port(http), SMALL_BUFFER);
    http_client_send(client, flood_request);
    wait_for(&stream.flooded, 1);
    clock_skip((uint64_t)EXCHANGE_BLOCKED_SECONDS * SECOND);
    front_looks(http);
    assert_int_equal(atomic_load(&stream.left), 0);
    for (int i = 0; i < 100 && atomic_load(&stream.left) == 0; i++) {
        clock_skip((uint64_t)EXCHANGE_BLOCKED_SECONDS * SECOND + 1);
        front_looks(http);
    }
    assert_int_equal(atomic_load(&stream.left), 1);
    assert_int_equal(atomic_load(&stream.beats), 0);
    close_stream(&stream);
    close(client);
    close_http(http);
}

/* ---- the whole server, and a clock that runs ---- */

static void *stop_server(void *context) {
    server_stop(context, DRAIN_SECONDS);
    return NULL;
}

static bool is_paused(const struct service_statistics *now) { return now->paused > 0; }
static bool is_draining(const struct service_statistics *now) { return now->draining; }

static void wait_until(struct service *service, bool (*holds)(const struct service_statistics *now)) {
    struct service_statistics now = service_get_statistics(service);
    for (int waited = 0; !holds(&now) && waited < HTTP_CLIENT_PATIENCE_MS; waited++) {
        usleep(1000);
        now = service_get_statistics(service);
    }
    assert_true(holds(&now));
}

/* A request that never ends, as its client takes nothing: it is cut, and its client finds an error behind the text. */
static void test_requests_at_the_end(void **state) {
    static const struct service_rig_options rig_options = {
        .parallel = 1, .sequences = 1, .context_size = 4096};
    static const char body[] = "{\"prompt\":\"x\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true,"
                               "\"temperature\":0,\"logprobs\":5}";
    static char text[16 << 20];
    struct service_rig rig;
    struct server *server;
    struct error error;
    pthread_t stopping;
    char request[600];
    (void)state;
    service_rig_open(&rig, &rig_options);
    assert_ok(
        server_create(&server, &(struct server_options){.host = "127.0.0.1", .version = "test"}, &error),
        error);
    server_begin(server, &(struct server_model){.id = "nano",
                                                .path = "",
                                                .model = rig.model,
                                                .tokenizer = rig.tokenizer,
                                                .service = rig.service,
                                                .sampling = {.top_p = 1, .repeat_penalty = 1}});
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    const int client = http_client_connect(server_port(server), SMALL_BUFFER);
    http_client_send(client, request);
    wait_until(rig.service, is_paused);
    assert_int_equal(pthread_create(&stopping, NULL, stop_server, server), 0);
    wait_until(rig.service, is_draining);
    clock_skip(DRAIN_SECONDS * SECOND);
    text[0] = '\0';
    http_client_read(client, text, sizeof text, NULL);
    const char *told = strstr(text, "data: {\"error\":{");
    assert_non_null(told);
    assert_non_null(strstr(told, "the server is stopping"));
    assert_null(strstr(text, "\"finish_reason\":\"length\""));
    assert_null(strstr(text, "[DONE]"));
    assert_int_equal(pthread_join(stopping, NULL), 0);
    close(client);
    server_destroy(server);
    service_rig_close(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),           cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_files),           cmocka_unit_test(test_beats),
        cmocka_unit_test(test_blocked_clients), cmocka_unit_test(test_requests_at_the_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
