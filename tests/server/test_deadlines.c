/* The server's deadlines over HTTP, by a clock that the test moves: heads, bodies, beats, clients that take nothing,
 * and the end of a server whose requests have none.  Exactly at a deadline nothing has happened; after it, it has. */
#include "testing.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "cache/kv_tier_internal.h"
#include "http_client.h"
#include "loopback_http.h"
#include "moved_clock.h"
#include "server/front.h"
#include "server/http.h"
#include "server/server.h"
#include "service_rig.h"
#include "token/chat_template.h"

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
    _Atomic bool holds_files;  /* none is read */
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
    atomic_store(&stream->flooded, 1);
    while (atomic_load(&stream->holds_files)) usleep(1000);
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
    const struct exchange_work work = {.context = stream,
                                       .leave = stream_left,
                                       .resume = stream_resumes,
                                       .beat = stream_beats};
    exchange_acquire(exchange);
    stream->exchange = exchange;
    if (strcmp(exchange_path(exchange), "/held") == 0) {
        exchange_set_work(exchange, &work);
        atomic_store(&stream->flooded, 1);
        return;
    }
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

static bool takes_file(const struct head *found) { return head_text_is(found->path, "/file"); }

static void open_http(struct http **http, struct stream *stream) {
    *stream = (struct stream){.exchange = NULL};
    stop_clock();
    *http = loopback_http_start((struct http_options){.takes_file = takes_file, .handle = handle, .context = stream});
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
    start_clock();
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

static size_t count_files(void) {
    size_t count = 0;
    DIR *files = opendir("/proc/self/fd");
    assert_non_null(files);
    while (readdir(files) != NULL) count++;
    closedir(files);
    return count;
}

/* Of a client that leaves a stream between two of its frames the descriptor is closed at once, though nothing else
 * happens in the server.  Another one is sending its body: libmicrohttpd looks at the connection that rests for longest
 * whatever happens. */
static void test_a_stream_that_is_left_is_closed(void **state) {
    static const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    struct http *http;
    struct stream stream;
    char text[1000] = "", other_text[1000] = "";
    (void)state;
    open_http(&http, &stream);
    const int other = http_client_connect(http_port(http), 0);
    http_client_send(other, head);
    http_client_read(other, other_text, sizeof other_text, "100 Continue\r\n\r\n");
    const size_t before = count_files();
    const int client = http_client_connect(http_port(http), 0);
    http_client_send(client, stream_request);
    http_client_read(client, text, sizeof text, "begun\n\n");
    assert_int_equal(setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close(client);
    wait_for(&stream.left, 1);
    for (int waited = 0; count_files() > before && waited < 20000; waited++) usleep(1000);
    assert_int_equal(count_files(), before);
    close(other);
    close_stream(&stream);
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

/* A client that has shut its sending side has the head of its answer, then a blank of its JSON now and then; one that
 * has closed since is gone by the second of them: the system tells after the first.  Beside it another one is sending
 * its body, so that libmicrohttpd looks at the socket before it asks for the answer. */
static void half_closed_client(bool leaves) {
    struct http *http;
    struct stream stream;
    char text[1000] = "", rest[1000] = "", other_text[1000] = "";
    open_http(&http, &stream);
    const int other = http_client_connect(http_port(http), 0);
    http_client_send(other, head);
    http_client_read(other, other_text, sizeof other_text, "100 Continue\r\n\r\n");
    const int client = http_client_post(http_port(http), "/held", "{}");
    assert_int_equal(shutdown(client, SHUT_WR), 0);
    wait_for(&stream.flooded, 1);
    ssize_t count = -1;
    for (int tries = 0; count < 0 && tries < 500; tries++) { /* its end may be noticed later */
        front_looks(http);
        if (tries % 20 == 0) clock_skip(SECOND / 8); /* slowly: what is not sent in time is given up */
        usleep(10000);
        count = recv(client, text, 1, MSG_DONTWAIT);
    }
    assert_int_equal(count, 1);
    http_client_read(client, text, sizeof text, "\r\n\r\n");
    assert_non_null(strstr(text, "200 OK"));
    if (leaves) close(client);
    clock_skip((EXCHANGE_BEAT_SECONDS + 1) * SECOND);
    front_looks(http);
    if (leaves) {
        wait_for(&stream.left, 1);
    } else {
        http_client_read(client, rest, sizeof rest, " \r\n");
        assert_int_equal(atomic_load(&stream.left), 0);
        exchange_reply(stream.exchange, 200, "application/json", strdup("{\"a\": 1}"), 8);
        http_client_read(client, rest, sizeof rest, NULL);
        assert_non_null(strstr(rest, "{\"a\": 1}\r\n0\r\n"));
        close(client);
    }
    close(other);
    exchange_set_work(stream.exchange, NULL);
    exchange_release(stream.exchange);
    close_http(http);
}

/* The same of a file, which is read when all of it has come that there is room for, and its client has ended. */
static void half_closed_file(size_t bytes) {
    struct http *http;
    struct stream stream;
    char request[400], text[1000] = "", other_text[1000] = "";
    char *file = malloc(bytes + 1);
    assert_non_null(file);
    memset(file, 'x', bytes);
    file[bytes] = '\0';
    open_http(&http, &stream);
    atomic_store(&stream.holds_files, true);
    const int other = http_client_connect(http_port(http), 0);
    http_client_send(other, head);
    http_client_read(other, other_text, sizeof other_text, "100 Continue\r\n\r\n");
    const int client = http_client_connect(http_port(http), 0);
    snprintf(request, sizeof request,
             "POST /file HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
             "Content-Length: %zu\r\n\r\n",
             bytes);
    http_client_send(client, request);
    http_client_send(client, file);
    assert_int_equal(shutdown(client, SHUT_WR), 0);
    wait_for(&stream.flooded, 1);
    for (int i = 0; i < 20; i++) { /* what comes does so meanwhile */
        front_looks(http);
        usleep(1000);
    }
    atomic_store(&stream.holds_files, false);
    http_client_read(client, text, sizeof text, NULL);
    assert_non_null(strstr(text, "stored"));
    assert_int_equal(atomic_load(&stream.file_bytes), bytes);
    close(client);
    close(other);
    free(file);
    close_http(http);
}

static void test_half_closed_clients(void **state) {
    (void)state;
    half_closed_client(false);
    half_closed_client(true);
    half_closed_file(6);
    half_closed_file(EXCHANGE_BODY_BUFFER_BYTES + 6);
}

/* ---- the whole server, and a clock that runs ---- */

static void begin_server(struct server *server, const struct service_rig *rig) {
    server_begin(server, &(struct server_model){.id = "nano",
                                                .path = "",
                                                .model = rig->model,
                                                .tokenizer = rig->tokenizer,
                                                .chat = chat_template_find("llama2"),
                                                .service = rig->service,
                                                .sampling = {.top_p = 1, .repeat_penalty = 1}});
}

static void *stop_server(void *context) {
    server_stop(context, DRAIN_SECONDS);
    return NULL;
}

static bool all_run(const struct service_statistics *now) {
    return now->levels.prefilling + now->levels.decoding + now->levels.paused == 4;
}
static bool is_paused(const struct service_statistics *now) { return now->levels.paused > 0; }
static bool is_draining(const struct service_statistics *now) { return now->levels.draining; }

static void wait_until(struct service *service, bool (*holds)(const struct service_statistics *now)) {
    struct service_statistics now = service_get_statistics(service);
    for (int waited = 0; !holds(&now) && waited < HTTP_CLIENT_PATIENCE_MS; waited++) {
        usleep(1000);
        now = service_get_statistics(service);
    }
    assert_true(holds(&now));
}

/* Requests that have no end, in each family, one of them as its client takes nothing: they are cut, and each client
 * finds an error behind the text, in its family's form, and no end of an answer. */
static void test_requests_at_the_end(void **state) {
    enum { FAMILIES = 4 };
    static const struct service_rig_options rig_options = {
        .parallel = FAMILIES, .sequences = FAMILIES, .context_size = 4096};
    static const struct {
        const char *path, *body, *error, *type, *end;
    } families[FAMILIES] = {
        {"/v1/completions",
         "{\"prompt\":\"x\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true,\"temperature\":0,"
         "\"logprobs\":5}",
         "data: {\"error\":{", "\"type\":\"unavailable_error\"", "[DONE]"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":4000,\"ignore_eos\":true,"
         "\"stream\":true}",
         "data: {\"error\":{", "\"type\":\"unavailable_error\"", "[DONE]"},
        {"/v1/messages",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":4000,\"ignore_eos\":true,"
         "\"stream\":true}",
         "event: error\ndata: {\"type\":\"error\",\"error\":{", "\"type\":\"overloaded_error\"", "message_stop"},
        {"/v1/responses", "{\"input\":\"x\",\"max_output_tokens\":4000,\"ignore_eos\":true,\"stream\":true}",
         "event: error\ndata: {", "\"type\":\"error\"", "response.incomplete"}};
    static char text[16 << 20];
    struct service_rig rig;
    struct server *server;
    struct error error;
    pthread_t stopping;
    int clients[FAMILIES];
    (void)state;
    service_rig_open(&rig, &rig_options);
    assert_ok(
        server_create(&server, &(struct server_options){.host = "127.0.0.1", .version = "test"}, &error),
        error);
    begin_server(server, &rig);
    for (size_t i = 0; i < FAMILIES; i++) {
        clients[i] = http_client_connect(server_port(server), SMALL_BUFFER);
        http_client_send_post(clients[i], families[i].path, families[i].body);
    }
    wait_until(rig.service, all_run);
    wait_until(rig.service, is_paused);
    assert_int_equal(pthread_create(&stopping, NULL, stop_server, server), 0);
    wait_until(rig.service, is_draining);
    clock_skip(DRAIN_SECONDS * SECOND);
    for (size_t i = 0; i < FAMILIES; i++) {
        text[0] = '\0';
        http_client_read(clients[i], text, sizeof text, NULL);
        const char *told = strstr(text, families[i].error);
        assert_non_null(told);
        assert_non_null(strstr(told, "the server is stopping"));
        assert_non_null(strstr(told, families[i].type));
        assert_null(strstr(text, "\"finish_reason\":\"length\""));
        assert_null(strstr(text, families[i].end));
        close(clients[i]);
    }
    assert_int_equal(pthread_join(stopping, NULL), 0);
    server_destroy(server);
    service_rig_close(&rig);
    start_clock();
}

/* ---- families of routes, while nothing happens ---- */

/* Holds the service's thread. */
struct gate {
    struct service *service;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_held, opens;
};

static void hold(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct gate *gate = context;
    (void)engine, (void)live, (void)live_count;
    pthread_mutex_lock(&gate->mutex);
    gate->is_held = true;
    pthread_cond_broadcast(&gate->changed);
    while (!gate->opens) pthread_cond_wait(&gate->changed, &gate->mutex);
    pthread_mutex_unlock(&gate->mutex);
}

static void *hold_service(void *context) {
    struct gate *gate = context;
    struct error error;
    return service_call(gate->service, hold, gate, &error) == STATUS_OK ? gate : NULL;
}

/* Behind the count-th place where it is. */
static char *read_nth(int client, char *text, size_t capacity, const char *wanted, size_t count) {
    char *at = text;
    for (size_t i = 0; i < count; i++) {
        http_client_read(client, at, capacity - (size_t)(at - text), wanted);
        at = strstr(at, wanted) + strlen(wanted);
    }
    return at;
}

/* Each family's stream says that it is alive, in words that its clients take for data; before there is a model, that
 * one is being loaded. */
static void test_families_beat(void **state) {
    static const struct {
        const char *path, *body, *beat;
        size_t count; /* of `beat`, with what the stream began with */
    } families[] = {
        {"/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}",
         "\"prompt_progress\"", 1},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":4000,\"ignore_eos\":true,"
         "\"stream\":true}",
         "\"prompt_progress\"", 1},
        {"/v1/messages",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":4000,\"ignore_eos\":true,"
         "\"stream\":true}",
         "event: ping\n", 2},
        {"/v1/responses", "{\"input\":\"x\",\"max_output_tokens\":4000,\"ignore_eos\":true,\"stream\":true}",
         "event: response.in_progress\n", 2}};
    static char text[4][8 << 20];
    struct gate gate = {.is_held = false};
    struct service_rig rig;
    struct server *server;
    struct error error;
    pthread_t holder;
    int clients[4];
    void *held;
    (void)state;
    service_rig_open(&rig,
                     &(struct service_rig_options){.parallel = 4, .sequences = 4, .context_size = 4096});
    assert_ok(
        server_create(&server, &(struct server_options){.host = "127.0.0.1", .version = "test"}, &error),
        error);
    text[0][0] = '\0';
    clients[0] = http_client_post(server_port(server), families[0].path, families[0].body);
    http_client_read(clients[0], text[0], sizeof text[0], NULL);
    assert_non_null(strstr(text[0], "HTTP/1.1 503"));
    assert_non_null(strstr(text[0], "Retry-After: 1\r\n"));
    assert_non_null(strstr(text[0], "Loading model"));
    close(clients[0]);
    begin_server(server, &rig);
    for (size_t i = 0; i < 4; i++)
        clients[i] = http_client_post(server_port(server), families[i].path, families[i].body);
    wait_until(rig.service, all_run);
    gate.service = rig.service;
    pthread_mutex_init(&gate.mutex, NULL);
    pthread_cond_init(&gate.changed, NULL);
    assert_int_equal(pthread_create(&holder, NULL, hold_service, &gate), 0);
    pthread_mutex_lock(&gate.mutex);
    while (!gate.is_held) pthread_cond_wait(&gate.changed, &gate.mutex);
    pthread_mutex_unlock(&gate.mutex);

    clock_skip((EXCHANGE_BEAT_SECONDS + 1) * SECOND);
    for (size_t i = 0; i < 4; i++) {
        text[i][0] = '\0';
        char *end = read_nth(clients[i], text[i], sizeof text[i], families[i].beat, families[i].count);
        http_client_read(clients[i], end, sizeof text[i] - (size_t)(end - text[i]), "\n\n");
        const char *frame = end; /* back to where it begins */
        while (frame > text[i] && strncmp(frame, "\n\n", 2) != 0) frame--;
        assert_non_null(strstr(frame, i == 0 ? "\"text\":\"\"" : i == 1 ? "\"delta\":{}" : "\"type\":\""));
    }
    /* Events are numbered in the order in which they come. */
    const char *at = text[3];
    for (unsigned long number = 0; (at = strstr(at, "\"sequence_number\":")) != NULL; number++) {
        at += strlen("\"sequence_number\":");
        assert_int_equal(strtoul(at, NULL, 10), number);
    }
    for (size_t i = 0; i < 4; i++) close(clients[i]);
    pthread_mutex_lock(&gate.mutex);
    gate.opens = true;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.mutex);
    assert_int_equal(pthread_join(holder, &held), 0);
    assert_ptr_equal(held, &gate);
    server_stop(server, DRAIN_SECONDS);
    server_destroy(server);
    service_rig_close(&rig);
    pthread_cond_destroy(&gate.changed);
    pthread_mutex_destroy(&gate.mutex);
    start_clock();
}

/* ---- a slot that changes hands ---- */

enum { WAIT_SECONDS = 10, RUN_SECONDS = 60 }; /* of preemption: service.h's defaults */

static void do_nothing(void *context, struct engine *engine, const struct service_live *live,
                       size_t live_count) {
    (void)context, (void)engine, (void)live, (void)live_count;
}

/* After a whole turn of its loop. */
static struct service_statistics after_a_turn(struct service *service) {
    struct error error;
    for (size_t i = 0; i < 2; i++) assert_ok(service_call(service, do_nothing, NULL, &error), error);
    return service_get_statistics(service);
}

/* An answer that has decoded for a minute lets one go first that has waited for ten seconds, and is what it would have
 * been: its own client has read up to token `paused_at`. */
static void change_hands(struct service_rig *rig, size_t number) {
    enum { ANSWER = 24, SHORT = 3 };
    struct client undisturbed, running, waiting;
    struct token_list prompt =
                          rig_tokens(rig, "The river ran past the mill, and nobody saw it.", 70 + 7 * number),
                      other = rig_tokens(rig, "Snow lay on the roofs of the harbour.", 66);
    prompt.ids[0] = 300 + (token_id)number; /* no two begin alike */
    other.ids[0] = 400 + (token_id)number;
    struct service_request request = rig_request(&prompt, ANSWER), asked = rig_request(&other, SHORT);
    request.owner = "another"; /* whose prompt and answer are nobody else's */
    client_init(&undisturbed, rig);
    client_ask(&undisturbed, &request);
    request.owner = NULL;

    const struct service_statistics before = after_a_turn(rig->service);
    client_init(&running, rig);
    client_init(&waiting, rig);
    running.pause_at = 1 + number;
    client_submit(&running, &request);
    client_wait_tokens(&running, 1 + number);
    const bool waits_first = number % 4 < 2; /* of the two conditions, the one that is met first */
    if (!waits_first) clock_skip(RUN_SECONDS * SECOND);
    client_submit(&waiting, &asked);
    if (waits_first) clock_skip(WAIT_SECONDS * SECOND);
    assert_int_equal(after_a_turn(rig->service).preemptions, before.preemptions);
    clock_skip((waits_first ? RUN_SECONDS : WAIT_SECONDS) * SECOND);
    (void)after_a_turn(rig->service);
    client_wait(&waiting);
    assert_int_equal(waiting.done.reason, STOP_LENGTH);
    pthread_mutex_lock(&running.mutex);
    assert_int_equal(running.done_count, 0);
    running.pause_at = 0;
    pthread_mutex_unlock(&running.mutex);
    service_resume(rig->service, running.ticket);
    client_wait(&running);
    assert_int_equal(running.done.reason, STOP_LENGTH);
    assert_int_equal(running.done.figures.preemptions, 1);
    assert_same_tokens(&undisturbed.tokens, &running.tokens);
    const struct service_statistics after = after_a_turn(rig->service);
    assert_int_equal(after.preemptions - before.preemptions, 1);
    assert_in_range(after.tokens.recomputed - before.tokens.recomputed, 0, KV_CHUNK_TOKENS);
    client_deinit(&undisturbed);
    client_deinit(&running);
    client_deinit(&waiting);
    token_list_deinit(&prompt);
    token_list_deinit(&other);
}

/* With a place in memory for one that gave up its slot, and without. */
static void test_a_slot_changes_hands(void **state) {
    enum { CASES = 20 };
    struct service_rig rig;
    (void)state;
    for (size_t sequences = 1; sequences <= 2; sequences++) {
        service_rig_open(
            &rig, &(struct service_rig_options){
                      .parallel = 1,
                      .sequences = sequences,
                      .context_size = 512,
                      .host_bytes = 64 << 20,
                      .service = {.unread_ms = UINT32_MAX}}); /* a client that pauses stands for a slow model */
        for (size_t i = sequences - 1; i < CASES; i += 2) change_hands(&rig, i);
        service_rig_close(&rig);
    }
    start_clock();
}

static size_t token_count(struct client *client) {
    pthread_mutex_lock(&client->mutex);
    const size_t count = client->tokens.count;
    pthread_mutex_unlock(&client->mutex);
    return count;
}

/* A device that breaks between two turns, which the next one finds as it saves: until there is another engine. */
static struct {
    struct device_operations table;
    const struct service_rig *rig;
} broken;
static enum status broken_state(const struct device *device, struct error *error) {
    (void)device;
    return broken.rig->engines_made > 0 ? STATUS_OK : error_set(error, STATUS_FAILED, "the device is gone");
}
static void device_breaks(void *context, struct engine *engine, const struct service_live *live, size_t live_count) {
    struct service_rig *rig = context;
    struct error error;
    (void)engine;
    assert_int_equal(live_count, 1);
    broken.rig = rig;
    broken.table = *rig->device->operations;
    broken.table.state = broken_state;
    rig->device->operations = &broken.table;
    (void)broken_state(rig->device, &error);
    kv_tier_fail(sequence_kv(live->sequence)->cache->tier, &error);
}

/* A client that does not read gives its slot to the one that waits, within seconds, and has the same answer once it
 * reads; while it does not, the slot stays free, and nothing turns.  Saved or not, or on a device that breaks. */
static void test_unread_answers_give_way(void **state) {
    enum { ANSWER = 24, PAUSE = 5 };
    (void)state;
    for (int turn = 0; turn < 3; turn++) {
        const bool saves = turn > 0, breaks = turn == 2;
        struct service_rig rig;
        struct error error;
        struct client undisturbed, running, waiting, later;
        service_rig_open(&rig, &(struct service_rig_options){.parallel = 1,
                                                             .sequences = 1,
                                                             .context_size = 512,
                                                             .host_bytes = saves ? 64 << 20 : 0});
        struct token_list prompt = rig_tokens(&rig, "The river ran past the mill.", 90),
                          other = rig_tokens(&rig, "Snow lay on the roofs.", 66);
        struct service_request request = rig_request(&prompt, ANSWER), asked = rig_request(&other, 3);
        request.owner = "another";
        client_init(&undisturbed, &rig);
        client_ask(&undisturbed, &request);
        request.owner = NULL;
        client_init(&running, &rig);
        client_init(&waiting, &rig);
        client_init(&later, &rig);
        running.pause_at = PAUSE;
        client_submit(&running, &request);
        client_wait_tokens(&running, PAUSE);
        const uint64_t before = after_a_turn(rig.service).preemptions;
        clock_skip(100 * SECOND); /* nobody waits */
        assert_int_equal(after_a_turn(rig.service).preemptions, before);
        if (breaks) assert_ok(service_call(rig.service, device_breaks, &rig, &error), error);
        client_submit(&waiting, &asked);
        client_wait(&waiting);
        assert_int_equal(waiting.done.reason, STOP_LENGTH);
        assert_int_equal(after_a_turn(rig.service).preemptions, before + 1);
        client_ask(&later, &asked); /* nor does it come back before it reads */
        assert_int_equal(after_a_turn(rig.service).preemptions, before + 1);
        assert_int_equal(token_count(&running), PAUSE);
        pthread_mutex_lock(&running.mutex);
        running.pause_at = 0;
        pthread_mutex_unlock(&running.mutex);
        service_resume(rig.service, running.ticket);
        client_wait(&running);
        assert_int_equal(running.done.reason, STOP_LENGTH);
        assert_int_equal(after_a_turn(rig.service).recoveries, breaks);
        assert_same_tokens(&undisturbed.tokens, &running.tokens);
        client_deinit(&undisturbed);
        client_deinit(&running);
        client_deinit(&waiting);
        client_deinit(&later);
        token_list_deinit(&prompt);
        token_list_deinit(&other);
        service_rig_close(&rig);
    }
    start_clock();
}

/* Each step takes a second. */
static void skip_a_second(void *context, const struct attention_event *event) {
    (void)context;
    if (event->layer_index == 0) clock_skip(SECOND);
}

static bool nothing_more(void *context, struct sequence *sequence, bool (*pauses)(void *), void *pauses_context) {
    (void)context, (void)sequence, (void)pauses, (void)pauses_context;
    return false;
}

/* ---- turns of keys ---- */

/* Prompts that come at the same moment, three of one key and one of another. */
enum { READERS = 4, READER_LENGTH = 320 };
struct reader {
    struct reader *all;
    struct service *service;
    struct service_request request;
    size_t slices, slices_at_end[READERS]; /* of all, when this one's prompt is read */
};

/* A slice is over at each place where it can end. */
static void reader_progress(void *context, size_t done, size_t total) {
    struct reader *reader = context;
    if (done == 0) return;
    reader->slices++;
    clock_skip(SECOND);
    for (size_t i = 0; i < READERS && done == total; i++) reader->slices_at_end[i] = reader->all[i].slices;
}

static void submit_readers(void *context, struct engine *engine, const struct service_live *live,
                           size_t live_count) {
    struct reader *readers = context;
    struct error error;
    service_ticket ticket;
    (void)engine, (void)live, (void)live_count;
    for (size_t i = 0; i < READERS; i++) {
        const struct service_listener listener = {.context = &readers[i], .progress = reader_progress};
        assert_ok(service_submit(readers[i].service, &readers[i].request, &listener, &ticket, &error), error);
    }
}

/* Slices take turns by key, however many prompts a key has: when the one prompt of the second key is read, the first
 * key had no more slices than that.  It is not the last one, though it came last. */
static void test_keys_take_turns(void **state) {
    struct service_rig rig;
    struct reader readers[READERS] = {{.slices = 0}};
    struct token_list prompts[READERS];
    struct error error;
    (void)state;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = READERS,
                                                         .sequences = READERS,
                                                         .context_size = 512,
                                                         .batch_size = 32});
    stop_clock();
    for (size_t i = 0; i < READERS; i++) {
        prompts[i] = rig_tokens(&rig, "The river ran past the mill.", READER_LENGTH);
        prompts[i].ids[0] = 300 + (token_id)i;
        readers[i] = (struct reader){.all = readers, .service = rig.service, .request = rig_request(&prompts[i], 1)};
        readers[i].request.owner = i + 1 < READERS ? "one" : "another";
    }
    assert_ok(service_call(rig.service, submit_readers, readers, &error), error);
    assert_true(service_wait(rig.service, 600));
    const size_t *at_end = readers[READERS - 1].slices_at_end;
    assert_true(at_end[READERS - 1] > 2);
    assert_in_range(at_end[0] + at_end[1] + at_end[2], at_end[READERS - 1] - 1, at_end[READERS - 1] + 1);
    for (size_t i = 0; i < READERS; i++) token_list_deinit(&prompts[i]);
    service_rig_close(&rig);
    start_clock();
}

/* ---- two that change places ---- */

/* Two requests that come at the same moment. */
enum { RIVALS = 2 };
struct rivals {
    struct client clients[RIVALS];
    struct service_request requests[RIVALS];
};

/* In the service's thread. */
static void submit_rivals(void *context, struct engine *engine, const struct service_live *live,
                          size_t live_count) {
    struct rivals *rivals = context;
    (void)engine, (void)live, (void)live_count;
    for (size_t i = 0; i < RIVALS; i++) client_submit(&rivals->clients[i], &rivals->requests[i]);
}

/* Steps that last longer than anybody may decode: two answers change places over one slot.  Both are behind the same
 * document, of which they are too small a part to be saved, so that what one had is computed again.  Still each stay
 * brings new tokens: when one has ended, the other is not where it was. */
static void test_every_stay_brings_an_answer_on(void **state) {
    enum { DOCUMENT = 320, QUESTION = 6, ANSWER = 24 };
    struct service_rig rig;
    struct client reader;
    struct rivals rivals;
    struct token_list prompts[RIVALS];
    struct error error;
    size_t least = 0;
    (void)state;
    service_rig_open(&rig, &(struct service_rig_options){.parallel = 1,
                                                         .sequences = 1,
                                                         .context_size = 512,
                                                         .host_bytes = 64 << 20,
                                                         .service = {.preempt_wait_ms = 1, .preempt_run_ms = 1}});
    for (size_t i = 0; i < RIVALS; i++) {
        prompts[i] = rig_tokens(&rig, "The river ran past the mill.", DOCUMENT + QUESTION);
        prompts[i].ids[DOCUMENT] = 300 + (token_id)i;
        rivals.requests[i] = rig_request(&prompts[i], ANSWER);
        rivals.requests[i].observer = (struct service_observer){.note = skip_a_second, .work = nothing_more};
        client_init(&rivals.clients[i], &rig);
    }
    struct service_request request = rig_request(&prompts[0], 1);
    request.prompt_count = DOCUMENT;
    client_init(&reader, &rig);
    client_ask(&reader, &request);
    client_deinit(&reader);
    assert_ok(service_call(rig.service, submit_rivals, &rivals, &error), error);
    while (least < ANSWER) {
        (void)after_a_turn(rig.service);
        const size_t counts[RIVALS] = {token_count(&rivals.clients[0]), token_count(&rivals.clients[1])};
        least = min_size(counts[0], counts[1]);
        if (counts[0] + counts[1] > ANSWER) assert_true(least >= ANSWER / 6);
    }
    for (size_t i = 0; i < RIVALS; i++) {
        client_wait(&rivals.clients[i]);
        assert_int_equal(rivals.clients[i].done.reason, STOP_LENGTH);
        assert_true(rivals.clients[i].done.figures.preemptions > 0);
        client_deinit(&rivals.clients[i]);
        token_list_deinit(&prompts[i]);
    }
    service_rig_close(&rig);
    start_clock();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads),
                                       cmocka_unit_test(test_bodies),
                                       cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_beats),
                                       cmocka_unit_test(test_a_stream_that_is_left_is_closed),
                                       cmocka_unit_test(test_blocked_clients),
                                       cmocka_unit_test(test_half_closed_clients),
                                       cmocka_unit_test(test_requests_at_the_end),
                                       cmocka_unit_test(test_families_beat),
                                       cmocka_unit_test(test_keys_take_turns),
                                       cmocka_unit_test(test_a_slot_changes_hands),
                                       cmocka_unit_test(test_unread_answers_give_way),
                                       cmocka_unit_test(test_every_stay_brings_an_answer_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
