/* Places of files over HTTP, by a clock that the test moves: files that move hold theirs, others give them away. */
#include "testing.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http_client.h"
#include "loopback_http.h"
#include "moved_clock.h"
#include "server/transfers.h"

enum { FILE_BYTES = 2000, HALF = FILE_BYTES / 2, SENT_BYTES = 4 << 20, SMALL_BUFFER = 4096 };

struct files {
    struct http *http;
    struct transfers transfers;
    _Atomic size_t read, begun, cut; /* bytes of files that came; files that are sent; of them, those that were cut */
};

static void carry_in(void *context, struct exchange *exchange) {
    struct files *files = context;
    char bytes[FILE_BYTES];
    size_t read = 1;
    exchange_want_body(exchange);
    while (read > 0 && exchange_read_body(exchange, bytes, sizeof bytes, &read)) atomic_fetch_add(&files->read, read);
    exchange_reply(exchange, 200, "text/plain", strdup("stored"), 6); /* no answer where there is one */
}

static void carry_out(void *context, struct exchange *exchange) {
    struct files *files = context;
    char *bytes = calloc(1, SENT_BYTES);
    assert_non_null(bytes);
    exchange_file_begin(exchange, SENT_BYTES, "0", "file");
    atomic_fetch_add(&files->begun, 1);
    if (!exchange_write_file(exchange, bytes, SENT_BYTES)) atomic_fetch_add(&files->cut, 1);
    free(bytes);
    exchange_cut(exchange);
}

static void handle(void *context, struct exchange *exchange) {
    struct files *files = context;
    const bool is_in = exchange_method(exchange) == HTTP_POST;
    (void)transfers_begin(&files->transfers, exchange, is_in ? carry_in : carry_out, files);
}

static bool takes_file(const struct head *found) { return head_text_is(found->path, "/in"); }

static void open_files(struct files *files) {
    *files = (struct files){.http = NULL};
    transfers_init(&files->transfers);
    stop_clock();
    files->http =
        loopback_http_start((struct http_options){.takes_file = takes_file, .handle = handle, .context = files});
}

static void close_files(struct files *files) {
    assert_true(transfers_wait(&files->transfers, 60));
    http_destroy(files->http);
    transfers_deinit(&files->transfers);
    start_clock();
}

static void send_more(int client, size_t bytes) {
    char more[HALF + 1];
    memset(more, 'x', bytes);
    more[bytes] = '\0';
    http_client_send(client, more);
}

static int begin_file(const struct files *files) {
    char request[200];
    const int client = http_client_connect(http_port(files->http), 0);
    snprintf(request, sizeof request,
             "POST /in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
             "Content-Length: %d\r\n\r\n",
             FILE_BYTES);
    http_client_send(client, request);
    send_more(client, HALF);
    return client;
}

static void assert_file_ends(int client, size_t bytes, const char *status, const char *words) {
    char text[1000] = "";
    send_more(client, bytes);
    http_client_read(client, text, sizeof text, NULL);
    assert_non_null(strstr(text, status));
    assert_non_null(strstr(text, words));
    close(client);
}

/* Of the files that have all places one moves.  The others give their places to the next three, and no sooner than they
 * may; the fourth finds none. */
static void test_places_of_files(void **state) {
    enum { FILES = 2 * TRANSFERS_MAX - 1 };
    struct files files;
    int clients[FILES];
    size_t bytes = 0;
    (void)state;
    open_files(&files);
    for (size_t i = 0; i < TRANSFERS_MAX; i++) {
        clients[i] = begin_file(&files);
        wait_for(&files.read, bytes += HALF);
    }
    clock_skip((TRANSFERS_STALL_SECONDS - 1) * SECOND);
    send_more(clients[0], HALF / 2);
    wait_for(&files.read, bytes += HALF / 2);
    clock_skip(SECOND);
    assert_file_ends(begin_file(&files), HALF, "HTTP/1.1 429", "try again later");
    clock_skip(1);
    for (size_t i = TRANSFERS_MAX; i < FILES; i++) {
        clients[i] = begin_file(&files);
        wait_for(&files.read, bytes += HALF);
    }
    assert_file_ends(begin_file(&files), HALF, "HTTP/1.1 429", "try again later");
    for (size_t i = 1; i < TRANSFERS_MAX; i++)
        assert_file_ends(clients[i], HALF, "HTTP/1.1 408", "moved for 5 s");
    for (size_t i = TRANSFERS_MAX; i < FILES; i++)
        assert_file_ends(clients[i], HALF, "HTTP/1.1 200", "stored");
    assert_file_ends(clients[0], HALF / 2, "HTTP/1.1 200", "stored");
    close_files(&files);
}

/* The same of files that are sent, to clients that take nothing.  What the system's buffers hold is taken at some
 * moment after the request, so their time begins then. */
static void test_places_of_sent_files(void **state) {
    struct files files;
    int clients[TRANSFERS_MAX];
    bool is_stored = false;
    (void)state;
    open_files(&files);
    for (size_t i = 0; i < TRANSFERS_MAX; i++) {
        clients[i] = http_client_connect(http_port(files.http), SMALL_BUFFER);
        http_client_send(clients[i], "GET /out HTTP/1.1\r\nHost: localhost\r\n\r\n");
        wait_for(&files.begun, i + 1);
    }
    for (int i = 0; i < 100 && !is_stored; i++) {
        char text[1000] = "";
        const int client = begin_file(&files);
        send_more(client, HALF);
        http_client_read(client, text, sizeof text, NULL);
        is_stored = strstr(text, "stored") != NULL;
        assert_true(is_stored || strstr(text, "HTTP/1.1 429") != NULL);
        assert_true(i > 0 || !is_stored);
        close(client);
        clock_skip(TRANSFERS_STALL_SECONDS * SECOND + 1);
    }
    assert_true(is_stored);
    wait_for(&files.cut, 1); /* one file was cut, and no more than one */
    for (size_t i = 0; i < TRANSFERS_MAX; i++) close(clients[i]);
    close_files(&files);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places_of_files),
                                       cmocka_unit_test(test_places_of_sent_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
