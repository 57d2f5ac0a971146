#include "server/exchange.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "platform/clock.h"
#include "server/guard.h"
#include "server/json_text.h"

enum response_state { RESPONSE_NONE, RESPONSE_WHOLE, RESPONSE_STREAM, RESPONSE_ENDED };

struct exchange_bytes {
    char *data; /* owned; [start, end) is to be taken */
    size_t start, end, capacity;
};

/* Of the head: written before anybody else has the exchange. */
struct exchange_request {
    enum http_method method;
    uint32_t key;
    char path[256], query[256], id[24], origin[256], if_none_match[80];
    uint64_t begun_ns;
};

struct exchange_body {
    struct exchange_bytes bytes;
    bool streams;
    uint64_t expected, received; /* of a streamed one */
    bool is_wanted, is_whole;
    uint64_t moved_ns; /* when a byte of a streamed one last came, or was read */
};

struct exchange_response {
    enum response_state state;
    unsigned http_status, retry_after_seconds;
    bool never_retry;
    bool begins;     /* the head of a whole response goes ahead of it */
    bool owes_blank; /* likewise, before its JSON: whoever has closed since is found */
    const char *content_type;
    const struct exchange_header *headers; /* [header_count] borrowed */
    size_t header_count;
    struct exchange_file file;
    bool is_file;
    struct exchange_bytes bytes;
    bool is_full, is_cut;
    bool misses_some;              /* when the client left */
    uint64_t written_ns, taken_ns; /* the last time that something was */
};

struct exchange {
    struct exchange_request request;
    struct request_log log;

    pthread_mutex_t mutex; /* of what follows */
    struct request_tokens tokens;
    bool has_tokens;
    unsigned references;
    struct exchange_body body; /* without the mutex until the work begins, unless it streams */
    struct exchange_response response;
    bool has_left;
    pthread_cond_t moved; /* bytes of the body or of the response, or the client left, or has its answer */
    void *asleep;         /* the suspended connection; NULL: awake */
    exchange_wake *wake;
    struct exchange_work work;
    bool has_work;
    unsigned work_calls;       /* callbacks that run now */
    pthread_cond_t calls_done; /* work_calls is 0 */
};

static _Atomic uint64_t body_bytes_total;

uint64_t exchange_body_bytes_total(void) { return atomic_load(&body_bytes_total); }

static void copy_text(char *buffer, size_t capacity, struct head_text text) {
    const size_t length = text.length < capacity ? text.length : capacity - 1;
    if (text.text != NULL) memcpy(buffer, text.text, length);
    buffer[text.text != NULL ? length : 0] = '\0';
}

struct exchange *exchange_create(const struct head *head, uint32_t key, uint64_t number) {
    struct exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL) return NULL;
    pthread_mutex_init(&exchange->mutex, NULL);
    pthread_cond_init(&exchange->calls_done, NULL);
    pthread_cond_init(&exchange->moved, NULL);
    exchange->references = 1;
    exchange->request.method = head->method;
    exchange->request.key = key;
    copy_text(exchange->request.path, sizeof exchange->request.path, head->path);
    copy_text(exchange->request.query, sizeof exchange->request.query, head->query);
    copy_text(exchange->request.if_none_match, sizeof exchange->request.if_none_match, head->if_none_match);
    snprintf(exchange->request.id, sizeof exchange->request.id, EXCHANGE_ID_FORMAT, (unsigned long long)number);
    exchange->request.begun_ns = exchange->response.written_ns = exchange->response.taken_ns = clock_ns();
    return exchange;
}

void exchange_set_log(struct exchange *exchange, const struct request_log *log) { exchange->log = *log; }

void exchange_note_tokens(struct exchange *exchange, const struct request_tokens *tokens) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->tokens = *tokens;
    exchange->has_tokens = true;
    pthread_mutex_unlock(&exchange->mutex);
}

/* Nobody else has it any more. */
static void write_log(const struct exchange *exchange) {
    if (exchange->log.write == NULL) return;
    const struct request_record record = {
        .method = exchange->request.method,
        .path = {.text = exchange->request.path, .length = strlen(exchange->request.path)},
        .id = exchange->request.id,
        .http_status = exchange->response.http_status,
        .has_left = exchange->response.misses_some,
        .has_tokens = exchange->has_tokens,
        .tokens = exchange->tokens,
        .seconds = (double)(clock_ns() - exchange->request.begun_ns) * 1e-9};
    exchange->log.write(exchange->log.context, &record);
}

void exchange_acquire(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->references++;
    pthread_mutex_unlock(&exchange->mutex);
}

void exchange_release(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    const unsigned left = --exchange->references;
    pthread_mutex_unlock(&exchange->mutex);
    if (left > 0) return;
    write_log(exchange);
    exchange_drop_body(exchange);
    free(exchange->response.bytes.data);
    pthread_cond_destroy(&exchange->calls_done);
    pthread_cond_destroy(&exchange->moved);
    pthread_mutex_destroy(&exchange->mutex);
    free(exchange);
}

enum http_method exchange_method(const struct exchange *exchange) { return exchange->request.method; }
const char *exchange_path(const struct exchange *exchange) { return exchange->request.path; }
const char *exchange_query(const struct exchange *exchange) { return exchange->request.query; }
uint32_t exchange_key(const struct exchange *exchange) { return exchange->request.key; }
const char *exchange_id(const struct exchange *exchange) { return exchange->request.id; }

const char *exchange_if_none_match(const struct exchange *exchange) { return exchange->request.if_none_match; }

static bool is_anthropic(const struct exchange *exchange) {
    return api_error_is_anthropic(exchange->request.path, strlen(exchange->request.path));
}

void exchange_allow_origin(struct exchange *exchange, struct head_text origin) {
    copy_text(exchange->request.origin, sizeof exchange->request.origin, origin);
}

const char *exchange_origin(const struct exchange *exchange) { return exchange->request.origin; }

/* ---- the body ---- */

static size_t held_bytes(const struct exchange_bytes *bytes) { return bytes->end - bytes->start; }

/* Moves what is held to the front, of memory for at least so many bytes.  false: no memory. */
static bool reserve(struct exchange_bytes *bytes, size_t capacity) {
    if (bytes->start > 0) {
        bytes->end -= bytes->start;
        memmove(bytes->data, bytes->data + bytes->start, bytes->end);
        bytes->start = 0;
    }
    if (capacity <= bytes->capacity) return true;
    char *grown = realloc(bytes->data, capacity);
    if (grown == NULL) return false;
    bytes->data = grown;
    bytes->capacity = capacity;
    return true;
}

/* false: no memory. */
static bool append(struct exchange_bytes *to, const char *bytes, size_t length) {
    const bool fits = held_bytes(to) + length <= to->capacity;
    if (!reserve(to, fits ? 0 : 2 * to->capacity + length + 1024)) return false;
    memcpy(to->data + to->end, bytes, length);
    to->end += length;
    return true;
}

static void take(struct exchange_bytes *from, void *memory, size_t length) {
    if (length > 0) memcpy(memory, from->data + from->start, length);
    from->start += length;
}

bool exchange_append_body(struct exchange *exchange, const char *bytes, size_t length) {
    struct exchange_bytes *body = &exchange->body.bytes;
    const size_t before = body->capacity;
    if (length > GUARD_BODY_BYTES_MAX - body->end) return false;
    if (length == 0) return true;
    if (!append(body, bytes, length)) return false;
    atomic_fetch_add(&body_bytes_total, body->capacity - before);
    return true;
}

const char *exchange_body(const struct exchange *exchange, size_t *length) {
    *length = exchange->body.bytes.end;
    return exchange->body.bytes.data != NULL ? exchange->body.bytes.data : "";
}

void exchange_drop_body(struct exchange *exchange) {
    atomic_fetch_sub(&body_bytes_total, exchange->body.bytes.capacity);
    free(exchange->body.bytes.data);
    exchange->body.bytes = (struct exchange_bytes){0};
}

/* ---- callbacks of the work ---- */

/* With the mutex held, which is free while the callback runs. */
static void call_work(struct exchange *exchange, void (*function)(void *context)) {
    if (!exchange->has_work || function == NULL) return;
    void *context = exchange->work.context;
    exchange->work_calls++;
    pthread_mutex_unlock(&exchange->mutex);
    function(context);
    pthread_mutex_lock(&exchange->mutex);
    if (--exchange->work_calls == 0) pthread_cond_broadcast(&exchange->calls_done);
}

/* The mutex is held. */
static void wake_connection(struct exchange *exchange) {
    void *connection = exchange->asleep;
    exchange->asleep = NULL;
    if (connection != NULL) exchange->wake(connection);
}

void exchange_set_work(struct exchange *exchange, const struct exchange_work *work) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->has_work = work != NULL;
    if (work != NULL) exchange->work = *work;
    while (work == NULL && exchange->work_calls > 0) pthread_cond_wait(&exchange->calls_done, &exchange->mutex);
    if (exchange->has_left) call_work(exchange, exchange->work.leave);
    pthread_mutex_unlock(&exchange->mutex);
}

/* The mutex is held. */
static void leave(struct exchange *exchange) {
    if (exchange->has_left) return;
    exchange->has_left = true;
    exchange->response.misses_some = exchange->response.state == RESPONSE_NONE ||
                                     exchange->response.state == RESPONSE_STREAM ||
                                     held_bytes(&exchange->response.bytes) > 0;
    pthread_cond_broadcast(&exchange->moved);
    wake_connection(exchange);
    call_work(exchange, exchange->work.leave);
}

void exchange_leave(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    leave(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

/* ---- the response ---- */

/* The mutex is held.  false: no memory. */
static bool append_response(struct exchange *exchange, const char *bytes, size_t length) {
    struct exchange_response *response = &exchange->response;
    /* The client can begin to take it. */
    if (held_bytes(&response->bytes) == 0) response->taken_ns = clock_ns();
    return append(&response->bytes, bytes, length);
}

/* The mutex is held. */
static void begin_stream(struct exchange *exchange) {
    exchange->response.state = RESPONSE_STREAM;
    exchange->response.http_status = 200;
    exchange->response.content_type = "text/event-stream";
    exchange->response.written_ns = clock_ns();
    wake_connection(exchange);
}

bool exchange_probe(struct exchange *exchange, uint64_t ended_ns) {
    static const char comment[] = ":\n\n"; /* which readers of events pass over */
    bool is_known = true;
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->response.state == RESPONSE_STREAM && exchange->response.written_ns < ended_ns &&
        !exchange->response.is_file) {
        (void)append_response(exchange, comment, sizeof comment - 1);
        wake_connection(exchange);
    } else if (exchange->response.state == RESPONSE_NONE) {
        /* Work has begun: what could be wrong with the request was told before.  A file has a head of its own. */
        is_known = exchange->has_work && exchange->request.method == HTTP_POST && !exchange->body.streams;
        exchange->response.begins = is_known && !exchange->work.streams;
        if (is_known && exchange->work.streams) begin_stream(exchange);
        exchange->response.written_ns = clock_ns();
        if (exchange->response.begins) wake_connection(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
    return is_known;
}

/* Takes bytes. */
static void reply(struct exchange *exchange, unsigned http_status, const char *content_type, char *bytes, size_t length,
                  const struct api_error *error, const struct exchange_header *headers, size_t header_count) {
    struct exchange_response *response = &exchange->response;
    pthread_mutex_lock(&exchange->mutex);
    const bool counts = response->state == RESPONSE_NONE;
    if (counts) {
        response->state = RESPONSE_WHOLE;
        response->http_status = http_status;
        response->content_type = content_type;
        response->headers = headers;
        response->header_count = header_count;
        response->bytes = (struct exchange_bytes){.data = bytes, .end = length, .capacity = length};
        response->is_cut = response->begins && http_status != 200; /* its client was told 200 */
        if (error != NULL) {
            response->retry_after_seconds = error->retry_after_seconds;
            response->never_retry = error->never_retry;
        }
        pthread_cond_broadcast(&exchange->moved); /* who reads the body need not */
        wake_connection(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
    if (!counts) free(bytes);
}

void exchange_reply(struct exchange *exchange, unsigned http_status, const char *content_type, char *bytes,
                    size_t length) {
    reply(exchange, http_status, content_type, bytes, length, NULL, NULL, 0);
}

void exchange_reply_with(struct exchange *exchange, unsigned http_status, const char *content_type, char *bytes,
                         size_t length, const struct exchange_header *headers, size_t header_count) {
    reply(exchange, http_status, content_type, bytes, length, NULL, headers, header_count);
}

static void reply_json(struct exchange *exchange, unsigned http_status, json_t *value, const struct api_error *error) {
    size_t length;
    char *text = json_line(value, &length);
    json_decref(value);
    reply(exchange, text != NULL ? http_status : 503, "application/json", text, length, error, NULL, 0);
}

void exchange_reply_json(struct exchange *exchange, unsigned http_status, json_t *value) {
    reply_json(exchange, http_status, value, NULL);
}

void exchange_reply_error(struct exchange *exchange, const struct api_error *error) {
    const bool anthropic = is_anthropic(exchange);
    json_t *body = api_error_json(error, anthropic);
    if (anthropic) json_put(body, "request_id", json_string(exchange->request.id));
    reply_json(exchange, error->http_status, body, error);
}

void exchange_reply_failure(struct exchange *exchange, const struct error *reason) {
    struct api_error error;
    api_error_from(&error, reason);
    exchange_reply_error(exchange, &error);
}

void exchange_refuse(struct exchange *exchange, unsigned http_status, const char *format, ...) {
    struct api_error error;
    char message[sizeof error.message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    api_error_set(&error, http_status, NULL, "%s", message);
    exchange_reply_error(exchange, &error);
}

void exchange_stream_begin(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->response.state == RESPONSE_NONE) begin_stream(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_write(struct exchange *exchange, const char *bytes, size_t length) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->response.state == RESPONSE_STREAM && !exchange->has_left) {
        if (!append_response(exchange, bytes, length)) exchange->response.state = RESPONSE_ENDED;
        exchange->response.written_ns = clock_ns();
        if (held_bytes(&exchange->response.bytes) > EXCHANGE_BUFFER_BYTES) exchange->response.is_full = true;
        wake_connection(exchange);
    }
    const bool full = exchange->response.is_full;
    pthread_mutex_unlock(&exchange->mutex);
    return full;
}

void exchange_stream_end(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->response.state == RESPONSE_STREAM) exchange->response.state = RESPONSE_ENDED;
    wake_connection(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_is_stream(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    const bool is = exchange->response.state == RESPONSE_STREAM || exchange->response.state == RESPONSE_ENDED;
    pthread_mutex_unlock(&exchange->mutex);
    return is;
}

/* ---- files: the thread that carries one waits ---- */

bool exchange_has_left(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    const bool has_left = exchange->has_left;
    pthread_mutex_unlock(&exchange->mutex);
    return has_left;
}

uint64_t exchange_waits_since(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    const bool owes = exchange->body.is_wanted && !exchange->body.is_whole &&
                      exchange->response.state == RESPONSE_NONE && held_bytes(&exchange->body.bytes) == 0;
    uint64_t since_ns = exchange->response.is_file && exchange->response.is_full ? exchange->response.taken_ns : 0;
    if (owes) since_ns = exchange->body.moved_ns;
    pthread_mutex_unlock(&exchange->mutex);
    return since_ns;
}

void exchange_file_begin(struct exchange *exchange, uint64_t bytes, const char *etag, const char *name) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->response.state == RESPONSE_NONE) {
        exchange->response.state = RESPONSE_STREAM;
        exchange->response.http_status = 200;
        exchange->response.content_type = "application/octet-stream";
        exchange->response.is_file = true;
        exchange->response.file.bytes = bytes;
        snprintf(exchange->response.file.etag, sizeof exchange->response.file.etag, "%s", etag);
        snprintf(exchange->response.file.name, sizeof exchange->response.file.name, "%s", name);
        wake_connection(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
}

const struct exchange_file *exchange_get_file(const struct exchange *exchange) {
    return exchange->response.is_file ? &exchange->response.file : NULL; /* set before the connection was woken */
}

bool exchange_write_file(struct exchange *exchange, const char *bytes, size_t length) {
    (void)exchange_write(exchange, bytes, length);
    pthread_mutex_lock(&exchange->mutex);
    while (exchange->response.is_full && !exchange->has_left && !exchange->response.is_cut &&
           exchange->response.state == RESPONSE_STREAM)
        pthread_cond_wait(&exchange->moved, &exchange->mutex);
    const bool goes_on =
        !exchange->has_left && !exchange->response.is_cut && exchange->response.state == RESPONSE_STREAM;
    pthread_mutex_unlock(&exchange->mutex);
    return goes_on;
}

void exchange_cut(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->response.is_cut = true;
    pthread_cond_broadcast(&exchange->moved);
    wake_connection(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_streams_body(const struct exchange *exchange, uint64_t *bytes) {
    *bytes = exchange->body.expected;
    return exchange->body.streams;
}

void exchange_want_body(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->body.is_wanted = true;
    exchange->body.moved_ns = clock_ns();
    wake_connection(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_read_body(struct exchange *exchange, void *memory, size_t bytes, size_t *read) {
    struct exchange_bytes *body = &exchange->body.bytes;
    pthread_mutex_lock(&exchange->mutex);
    while (held_bytes(body) == 0 && !exchange->body.is_whole && !exchange->has_left &&
           exchange->response.state == RESPONSE_NONE)
        pthread_cond_wait(&exchange->moved, &exchange->mutex);
    const bool is_there = !exchange->has_left && exchange->response.state == RESPONSE_NONE;
    const size_t there = held_bytes(body);
    *read = !is_there ? 0 : there < bytes ? there : bytes;
    take(body, memory, *read);
    exchange->body.moved_ns = clock_ns();
    if (there - *read <= EXCHANGE_BODY_BUFFER_BYTES / 2) wake_connection(exchange);
    pthread_mutex_unlock(&exchange->mutex);
    return is_there;
}

/* ---- the HTTP side ---- */

static void fall_asleep(struct exchange *exchange, void *connection, void (*suspend)(void *connection),
                        exchange_wake *wake) {
    exchange->asleep = connection;
    exchange->wake = wake;
    suspend(connection);
}

enum exchange_progress exchange_await(struct exchange *exchange, void *connection, void (*suspend)(void *connection),
                                      exchange_wake *wake) {
    enum exchange_progress progress = EXCHANGE_WAITS;
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->has_left)
        progress = EXCHANGE_LEFT;
    else if (exchange->response.begins)
        progress = EXCHANGE_BEGINS;
    else if (exchange->response.state == RESPONSE_WHOLE)
        progress = EXCHANGE_HAS_REPLY;
    else if (exchange->response.state != RESPONSE_NONE)
        progress = EXCHANGE_HAS_STREAM;
    else
        fall_asleep(exchange, connection, suspend, wake);
    pthread_mutex_unlock(&exchange->mutex);
    return progress;
}

void exchange_stream_body(struct exchange *exchange, uint64_t bytes) {
    exchange->body.streams = true;
    exchange->body.expected = bytes;
}

enum exchange_progress exchange_await_want(struct exchange *exchange, void *connection,
                                           void (*suspend)(void *connection), exchange_wake *wake) {
    enum exchange_progress progress = EXCHANGE_WAITS;
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->has_left)
        progress = EXCHANGE_LEFT;
    else if (exchange->response.state != RESPONSE_NONE)
        progress = EXCHANGE_HAS_REPLY;
    else if (exchange->body.is_wanted)
        progress = EXCHANGE_HAS_STREAM;
    else
        fall_asleep(exchange, connection, suspend, wake);
    pthread_mutex_unlock(&exchange->mutex);
    return progress;
}

int64_t exchange_put_body(struct exchange *exchange, const char *bytes, size_t length, void *connection,
                          void (*suspend)(void *connection), exchange_wake *wake) {
    struct exchange_bytes *body = &exchange->body.bytes;
    int64_t result = (int64_t)length;
    pthread_mutex_lock(&exchange->mutex);
    const bool is_last = exchange->body.received + length >= exchange->body.expected;
    const bool goes_on = exchange->response.state == RESPONSE_NONE;
    const size_t before = body->capacity;
    const size_t wanted = max_size(held_bytes(body) + (is_last ? length : 0), EXCHANGE_BODY_BUFFER_BYTES);
    if (exchange->has_left || (goes_on && !reserve(body, wanted))) {
        result = EXCHANGE_READ_LEFT;
    } else if (goes_on) {
        atomic_fetch_add(&body_bytes_total, body->capacity - before);
        const size_t taken = min_size(length, body->capacity - body->end);
        (void)append(body, bytes, taken); /* it fits */
        result = (int64_t)taken;
        if (taken < length) fall_asleep(exchange, connection, suspend, wake);
        pthread_cond_broadcast(&exchange->moved);
    }
    if (result > 0) {
        exchange->body.received += (uint64_t)result;
        exchange->body.moved_ns = clock_ns();
    }
    pthread_mutex_unlock(&exchange->mutex);
    return result;
}

void exchange_end_body(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->body.is_whole = true;
    pthread_cond_broadcast(&exchange->moved);
    pthread_mutex_unlock(&exchange->mutex);
}

struct exchange_reply_view exchange_take_reply(struct exchange *exchange) {
    struct exchange_response *response = &exchange->response;
    pthread_mutex_lock(&exchange->mutex);
    struct exchange_reply_view view = {
        .http_status = response->http_status,
        .content_type = response->content_type,
        .bytes = response->bytes.data,
        .length = held_bytes(&response->bytes),
        .retry_after_seconds = response->retry_after_seconds,
        .never_retry = response->never_retry,
        .headers = response->headers,
        .header_count = response->header_count,
    };
    response->bytes = (struct exchange_bytes){0};
    pthread_mutex_unlock(&exchange->mutex);
    return view;
}

int64_t exchange_read(struct exchange *exchange, char *buffer, size_t capacity, void *connection,
                      void (*suspend)(void *connection), exchange_wake *wake) {
    struct exchange_response *response = &exchange->response;
    int64_t result = 0;
    pthread_mutex_lock(&exchange->mutex);
    const size_t there = held_bytes(&response->bytes);
    if (exchange->has_left || response->is_cut) {
        result = EXCHANGE_READ_LEFT;
    } else if (there > 0) {
        const size_t taken = there < capacity ? there : capacity;
        take(&response->bytes, buffer, taken);
        response->taken_ns = clock_ns();
        result = (int64_t)taken;
        if (response->is_full && there - taken <= EXCHANGE_BUFFER_BYTES / 2) {
            response->is_full = false;
            pthread_cond_broadcast(&exchange->moved);
            call_work(exchange, exchange->work.resume);
        }
    } else if (response->state == RESPONSE_ENDED || response->state == RESPONSE_WHOLE) {
        result = EXCHANGE_READ_END;
    } else if (response->owes_blank) {
        response->owes_blank = false;
        buffer[0] = ' ';
        result = 1;
    } else {
        fall_asleep(exchange, connection, suspend, wake);
    }
    pthread_mutex_unlock(&exchange->mutex);
    return result;
}

bool exchange_tick(struct exchange *exchange, uint64_t now_ns) {
    static const uint64_t second = 1000000000;
    pthread_mutex_lock(&exchange->mutex);
    const bool waits = held_bytes(&exchange->response.bytes) > 0; /* the client has something to take */
    const bool streams = exchange->response.state == RESPONSE_STREAM;
    const bool blocked = waits && (streams || exchange->response.state == RESPONSE_ENDED) &&
                         now_ns > exchange->response.taken_ns + EXCHANGE_BLOCKED_SECONDS * second;
    if (streams && !waits && !exchange->has_left &&
        now_ns > exchange->response.written_ns + EXCHANGE_BEAT_SECONDS * second) {
        exchange->response.written_ns = now_ns;
        call_work(exchange, exchange->work.beat);
    }
    if (exchange->response.begins && exchange->response.state == RESPONSE_NONE &&
        now_ns > exchange->response.written_ns + EXCHANGE_BEAT_SECONDS * second) {
        exchange->response.written_ns = now_ns;
        exchange->response.owes_blank = true;
        wake_connection(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
    return blocked;
}
