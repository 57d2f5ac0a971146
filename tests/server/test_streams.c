/* 1,000 streams that are open and idle, beside clients that work: right answers, a bound on memory, and every stream
 * has an end.  The HTTP of the server with streams of the test's own. */
#include "testing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "http_client.h"
#include "loopback_http.h"

enum { STREAMS = 1000, LEAVING = 300, WORKS = 200, FILES = 2 * STREAMS + 200 };
/* 48 KiB of libmicrohttpd for each, and what an exchange takes.  ThreadSanitizer keeps several times as much beside
 * it. */
#ifdef __SANITIZE_THREAD__
enum { GROWTH_KIB_MAX = 8 * (64 << 10) };
#else
enum { GROWTH_KIB_MAX = 64 << 10 };
#endif

static const char first_frame[] = "data: begun\n\n", last_frame[] = "data: [DONE]\n\n";

/* ---- the server's side: streams that stay open until the test ends them ---- */

struct idle_streams {
    pthread_mutex_t mutex;
    struct exchange *exchanges[STREAMS]; /* references */
    size_t count, left;
};

static void stream_left(void *context) {
    struct idle_streams *streams = context;
    pthread_mutex_lock(&streams->mutex);
    streams->left++;
    pthread_mutex_unlock(&streams->mutex);
}

static void stream_goes_on(void *context) { (void)context; }

static void open_stream(struct idle_streams *streams, struct exchange *exchange) {
    const struct exchange_work work = {
        .context = streams, .leave = stream_left, .resume = stream_goes_on, .beat = stream_goes_on};
    exchange_acquire(exchange);
    pthread_mutex_lock(&streams->mutex);
    assert_true(streams->count < STREAMS);
    streams->exchanges[streams->count++] = exchange;
    pthread_mutex_unlock(&streams->mutex);
    exchange_stream_begin(exchange);
    exchange_set_work(exchange, &work);
    (void)exchange_write(exchange, first_frame, strlen(first_frame));
}

static void handle(void *context, struct exchange *exchange) {
    if (strcmp(exchange_path(exchange), "/stream") == 0) {
        open_stream(context, exchange);
        return;
    }
    size_t length;
    const char *body = exchange_body(exchange, &length);
    char *answer = malloc(length + 1);
    assert_non_null(answer);
    for (size_t i = 0; i < length; i++) answer[i] = body[length - 1 - i];
    exchange_reply(exchange, 200, "text/plain", answer, length);
}

static size_t left_count(struct idle_streams *streams) {
    pthread_mutex_lock(&streams->mutex);
    const size_t count = streams->left;
    pthread_mutex_unlock(&streams->mutex);
    return count;
}

/* ---- the clients' ---- */

static void assert_works(uint16_t port, size_t number) {
    char body[40], reversed[40] = {0}, text[2000] = "";
    snprintf(body, sizeof body, "\"request %zu\"", number);
    for (size_t i = 0, length = strlen(body); i < length; i++) reversed[i] = body[length - 1 - i];
    const int client = http_client_post(port, "/work", body);
    http_client_read(client, text, sizeof text, NULL);
    assert_non_null(strstr(text, "\r\n\r\n"));
    assert_string_equal(strstr(text, "\r\n\r\n") + 4, reversed);
    close(client);
}

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &pages, &resident), 2);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void test_idle_streams(void **state) {
    static struct idle_streams streams = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    static int clients[STREAMS];
    (void)state;
    struct http *http = loopback_http_start((struct http_options){
        .handle = handle, .context = &streams, .network_max = 10 /* not of this machine's */});
    const uint16_t port = http_port(http);
    assert_works(port, 0);
    const long before = resident_kib();
    for (size_t i = 0; i < STREAMS; i++) clients[i] = http_client_post(port, "/stream", "{}");
    for (size_t i = 0; i < STREAMS; i++) {
        char text[2000] = "";
        http_client_read(clients[i], text, sizeof text, "begun");
    }
    for (size_t i = 1; i <= WORKS; i++) assert_works(port, i);
    const long growth = resident_kib() - before;
    printf("%d idle streams: %ld KiB more in memory\n", STREAMS, growth);
    if (growth > GROWTH_KIB_MAX) fail_msg("%ld KiB, and at most %d are expected", growth, GROWTH_KIB_MAX);

    for (size_t i = 0; i < LEAVING; i++) close(clients[i]);
    for (int waited = 0; left_count(&streams) < LEAVING && waited < HTTP_CLIENT_PATIENCE_MS; waited++) usleep(1000);
    assert_int_equal(left_count(&streams), LEAVING);
    for (size_t i = 0; i < STREAMS; i++) {
        exchange_set_work(streams.exchanges[i], NULL);
        (void)exchange_write(streams.exchanges[i], last_frame, strlen(last_frame));
        exchange_stream_end(streams.exchanges[i]);
        exchange_release(streams.exchanges[i]);
    }
    for (size_t i = LEAVING; i < STREAMS; i++) {
        char text[2000] = "";
        http_client_read(clients[i], text, sizeof text, NULL);
        assert_non_null(strstr(text, last_frame));
        close(clients[i]);
    }
    assert_true(http_wait_idle(http, HTTP_CLIENT_PATIENCE_MS / 1000));
    http_destroy(http);
}

int main(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FILES && limit.rlim_max >= FILES) {
        limit.rlim_cur = FILES;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < FILES) {
        printf("skipped: %d open files are needed (ulimit -n)\n", FILES);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_idle_streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
