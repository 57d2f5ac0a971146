/* Any bytes as an HTTP request: its head, then, where the head is taken, its body by the routes of a server with a
 * small context.  Every request ends with one response, whose body is JSON or frames of it, and no prefix of a head
 * that is taken is refused or taken.  No answer is larger than its bound. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/assert.h"
#include "device/device.h"
#include "platform/cpu.h"
#include "server/routes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CONTEXT_TOKENS = 384, PATIENCE_MS = 200 };
/* Of an answer, for none and for each byte of its request. */
enum { ANSWER_BYTES = 16 << 20, ANSWER_BYTES_EACH = 256 };

#ifdef LOAM_FUZZ
/* For libFuzzer a byte that is new here is as new code is: it goes towards the largest answer for its bytes. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t answer_reached[256];
static void note_answer(size_t bytes, size_t request_bytes) {
    const size_t each = bytes / request_bytes;
    answer_reached[each < 255 ? each : 255] = 1;
}
#else
static void note_answer(size_t bytes, size_t request_bytes) { (void)bytes, (void)request_bytes; }
#endif

static void check_size(size_t bytes, size_t request_bytes) {
    ASSERT(bytes <= ANSWER_BYTES + ANSWER_BYTES_EACH * request_bytes);
    note_answer(bytes, request_bytes);
}

static struct server *open_server(void) {
    static struct sampler_options sampling;
    struct device *device;
    struct model *model;
    struct tokenizer *tokenizer;
    struct engine *engine;
    struct service *service;
    struct server *server;
    struct error error;
    const struct device_options options = {.thread_count = 1, .mask = cpu_default()};
    ASSERT(device_cpu_create(&device, &options, &error) == STATUS_OK);
    ASSERT(model_load(&model, LOAM_SOURCE_DIR "/models/loam-nano.gguf", device, &error) == STATUS_OK);
    ASSERT(tokenizer_create(&tokenizer, &model->gguf, false, &error) == STATUS_OK);
    const struct plan plan = {.context_size = CONTEXT_TOKENS, .sequence_capacity = 4};
    ASSERT(engine_create(&engine, model, &plan, &(struct engine_options){0}, &error) == STATUS_OK);
    const struct service_options service_options = {.engine = engine, .tokenizer = tokenizer, .parallel = 4};
    ASSERT(service_create(&service, &service_options, &error) == STATUS_OK);
    ASSERT(server_create(&server, &(struct server_options){.version = "fuzz"}, &error) == STATUS_OK);
    sampling = sampler_options_default();
    server_begin(server, &(struct server_model){.id = "fuzz",
                                                .path = "fuzz.gguf",
                                                .model = model,
                                                .tokenizer = tokenizer,
                                                .chat = chat_template_find("llama2"),
                                                .service = service,
                                                .sampling = sampling,
                                                .has_seed = true});
    return server;
}

/* ---- the exchange, waited for ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_awake;

static void suspend(void *context) {
    (void)context;
    pthread_mutex_lock(&mutex);
    is_awake = false;
    pthread_mutex_unlock(&mutex);
}

static void wake(void *context) {
    (void)context;
    pthread_mutex_lock(&mutex);
    is_awake = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&mutex);
}

/* false: it takes so long that the client leaves. */
static bool wait_until_awake(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PATIENCE_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&mutex);
    int waited = 0;
    while (!is_awake && waited == 0) waited = pthread_cond_timedwait(&changed, &mutex, &until);
    const bool awake = is_awake;
    pthread_mutex_unlock(&mutex);
    return awake;
}

static void check_json(const char *bytes, size_t length) {
    json_t *value = json_loadb(bytes, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    ASSERT(value != NULL);
    json_decref(value);
}

static void check_frames(char *text, size_t length) {
    ASSERT(length >= 2 && memcmp(text + length - 2, "\n\n", 2) == 0);
    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "event: ", 7) == 0 || strcmp(line, "data: [DONE]") == 0) continue;
        ASSERT(strncmp(line, "data: ", 6) == 0);
        check_json(line + 6, strlen(line + 6));
    }
}

static void read_stream(struct exchange *exchange, int *connection, size_t request_bytes) {
    size_t length = 0, capacity = 1 << 16;
    char *text = malloc(capacity + 1);
    for (;;) {
        const int64_t count =
            exchange_read(exchange, text + length, capacity - length, connection, suspend, wake);
        if (count < 0) break;
        if (count == 0 && !wait_until_awake()) exchange_leave(exchange);
        length += (size_t)count;
        if (length == capacity) text = realloc(text, (capacity *= 2) + 1);
    }
    text[length] = '\0';
    check_size(length, request_bytes);
    if (length > 0) check_frames(text, length);
    free(text);
}

static void read_response(struct exchange *exchange, size_t request_bytes) {
    int connection = 0;
    enum exchange_progress progress;
    while ((progress = exchange_await(exchange, &connection, suspend, wake)) == EXCHANGE_WAITS)
        if (!wait_until_awake()) exchange_leave(exchange);
    if (progress == EXCHANGE_LEFT) return;
    if (progress == EXCHANGE_HAS_STREAM) {
        read_stream(exchange, &connection, request_bytes);
        return;
    }
    const struct exchange_reply_view reply = exchange_take_reply(exchange);
    ASSERT(reply.http_status >= 200 && reply.http_status < 600);
    ASSERT(reply.http_status != 500);
    check_size(reply.length, request_bytes);
    if (strcmp(reply.content_type, "application/json") == 0) check_json(reply.bytes, reply.length);
    free(reply.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct server *server;
    if (server == NULL) server = open_server();
    static const struct guard guard = {.host = "127.0.0.1", .is_loopback = true};
    const char *bytes = (const char *)data;
    const char *end = memmem(bytes, size, "\r\n\r\n", 4);
    const size_t head_length = end != NULL ? (size_t)(end - bytes) + 4 : size;
    struct head head;
    struct api_error error;
    uint32_t key;
    if (head_read(bytes, head_length, &head, &error) != HEAD_OK) return 0;
    for (size_t i = 0; i < head_length; i += 1 + i / 8) {
        struct head prefix;
        ASSERT(head_read(bytes, i, &prefix, &error) == HEAD_INCOMPLETE);
    }
    if (!guard_check(&guard, &head, routes_take_file(&head), &key, &error) || !routes_have(&head, &error)) return 0;
    struct exchange *exchange = exchange_create(&head, key, 1);
    ASSERT(exchange != NULL && exchange_append_body(exchange, bytes + head_length, size - head_length));
    routes_handle(server, exchange);
    const bool leaves = size % 8 == 7; /* some clients do not wait */
    if (leaves)
        exchange_leave(exchange);
    else
        read_response(exchange, size);
    exchange_release(exchange);
    return 0;
}
