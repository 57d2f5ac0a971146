#include "server/exchange.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "platform/clock.h"
#include "server/guard.h"
#include "server/json_text.h"

enum response_state { RESPONSE_NONE, RESPONSE_WHOLE, RESPONSE_STREAM, RESPONSE_ENDED };

struct exchange {
    enum http_method method;
    uint32_t key;
    char path[256], query[256], id[24], origin[256], if_none_match[80];
    char *body; /* owned */
    size_t body_length, body_capacity;
    bool streams_body;
    uint64_t body_expected, body_received; /* of a streamed one */
    struct exchange_file file;
    bool is_file;

    uint64_t begun_ns;
    struct request_log log;

    pthread_mutex_t mutex; /* of what follows */
    struct request_tokens tokens;
    bool has_tokens;
    /* Of a body that streams: [body_start, body_length) has come and was not read. */
    size_t body_start;
    bool wants_body, has_body, is_cut;
    pthread_cond_t moved;    /* bytes of the body or of the response, or the client left, or has its answer */
    uint64_t moved_ns;       /* of such a body: when a byte last came, or was read */
    unsigned references;
    enum response_state state;
    unsigned http_status, retry_after_seconds;
    bool never_retry, begins; /* begins: the head of a whole response goes ahead of it */
    bool owes_blank;          /* likewise, before its JSON: whoever has closed since is found */
    const char *content_type;
    const struct exchange_header *headers; /* [header_count] borrowed */
    size_t header_count;
    char *out; /* owned; [out_start, out_end) is to be sent */
    size_t out_start, out_end, out_capacity;
    bool has_left, is_full;
    bool misses_some; /* of the response, when it left */
    uint64_t written_ns, taken_ns; /* the last time that something was */
    void *asleep;                  /* the suspended connection; NULL: awake */
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
    exchange->method = head->method;
    exchange->key = key;
    copy_text(exchange->path, sizeof exchange->path, head->path);
    copy_text(exchange->query, sizeof exchange->query, head->query);
    copy_text(exchange->if_none_match, sizeof exchange->if_none_match, head->if_none_match);
    snprintf(exchange->id, sizeof exchange->id, EXCHANGE_ID_FORMAT, (unsigned long long)number);
    exchange->begun_ns = exchange->written_ns = exchange->taken_ns = clock_ns();
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
    const struct request_record record = {.method = exchange->method,
                                          .path = {.text = exchange->path, .length = strlen(exchange->path)},
                                          .id = exchange->id,
                                          .http_status = exchange->http_status,
                                          .has_left = exchange->misses_some,
                                          .has_tokens = exchange->has_tokens,
                                          .tokens = exchange->tokens,
                                          .seconds = (double)(clock_ns() - exchange->begun_ns) * 1e-9};
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
    free(exchange->out);
    pthread_cond_destroy(&exchange->calls_done);
    pthread_cond_destroy(&exchange->moved);
    pthread_mutex_destroy(&exchange->mutex);
    free(exchange);
}

enum http_method exchange_method(const struct exchange *exchange) { return exchange->method; }
const char *exchange_path(const struct exchange *exchange) { return exchange->path; }
const char *exchange_query(const struct exchange *exchange) { return exchange->query; }
uint32_t exchange_key(const struct exchange *exchange) { return exchange->key; }
const char *exchange_id(const struct exchange *exchange) { return exchange->id; }

const char *exchange_if_none_match(const struct exchange *exchange) { return exchange->if_none_match; }

bool exchange_is_anthropic(const struct exchange *exchange) {
    return api_error_is_anthropic(exchange->path, strlen(exchange->path));
}

void exchange_allow_origin(struct exchange *exchange, struct head_text origin) {
    copy_text(exchange->origin, sizeof exchange->origin, origin);
}

const char *exchange_origin(const struct exchange *exchange) { return exchange->origin; }

/* ---- the body ---- */

bool exchange_append_body(struct exchange *exchange, const char *bytes, size_t length) {
    if (length > GUARD_BODY_BYTES_MAX - exchange->body_length) return false;
    if (length == 0) return true;
    if (exchange->body_length + length > exchange->body_capacity) {
        const size_t capacity = 2 * exchange->body_capacity + length + 1024;
        char *grown = realloc(exchange->body, capacity);
        if (grown == NULL) return false;
        atomic_fetch_add(&body_bytes_total, capacity - exchange->body_capacity);
        exchange->body = grown;
        exchange->body_capacity = capacity;
    }
    memcpy(exchange->body + exchange->body_length, bytes, length);
    exchange->body_length += length;
    return true;
}

const char *exchange_body(const struct exchange *exchange, size_t *length) {
    *length = exchange->body_length;
    return exchange->body != NULL ? exchange->body : "";
}

void exchange_drop_body(struct exchange *exchange) {
    atomic_fetch_sub(&body_bytes_total, exchange->body_capacity);
    free(exchange->body);
    exchange->body = NULL;
    exchange->body_length = exchange->body_capacity = 0;
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
    while (work == NULL && exchange->work_calls > 0)
        pthread_cond_wait(&exchange->calls_done, &exchange->mutex);
    if (exchange->has_left) call_work(exchange, exchange->work.leave);
    pthread_mutex_unlock(&exchange->mutex);
}

/* The mutex is held. */
static void leave(struct exchange *exchange) {
    if (exchange->has_left) return;
    exchange->has_left = true;
    exchange->misses_some = exchange->state == RESPONSE_NONE || exchange->state == RESPONSE_STREAM ||
                            exchange->out_end > exchange->out_start;
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
static bool append(struct exchange *exchange, const char *bytes, size_t length) {
    if (exchange->out_start > 0) {
        memmove(exchange->out, exchange->out + exchange->out_start, exchange->out_end - exchange->out_start);
        exchange->out_end -= exchange->out_start;
        exchange->out_start = 0;
    }
    if (exchange->out_end + length > exchange->out_capacity) {
        const size_t capacity = 2 * exchange->out_capacity + length + 512;
        char *grown = realloc(exchange->out, capacity);
        if (grown == NULL) return false;
        exchange->out = grown;
        exchange->out_capacity = capacity;
    }
    memcpy(exchange->out + exchange->out_end, bytes, length);
    if (exchange->out_end == 0) exchange->taken_ns = clock_ns(); /* the client can begin to take it */
    exchange->out_end += length;
    return true;
}

/* The mutex is held. */
static void begin_stream(struct exchange *exchange) {
    exchange->state = RESPONSE_STREAM;
    exchange->http_status = 200;
    exchange->content_type = "text/event-stream";
    exchange->written_ns = clock_ns();
    wake_connection(exchange);
}

bool exchange_probe(struct exchange *exchange, uint64_t ended_ns) {
    static const char comment[] = ":\n\n"; /* which readers of events pass over */
    bool is_known = true;
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->state == RESPONSE_STREAM && exchange->written_ns < ended_ns && !exchange->is_file) {
        (void)append(exchange, comment, sizeof comment - 1);
        wake_connection(exchange);
    } else if (exchange->state == RESPONSE_NONE) {
        /* Work has begun: what could be wrong with the request was told before.  A file has a head of its own. */
        is_known = exchange->has_work && exchange->method == HTTP_POST && !exchange->streams_body;
        exchange->begins = is_known && !exchange->work.streams;
        if (is_known && exchange->work.streams) begin_stream(exchange);
        exchange->written_ns = clock_ns();
        if (exchange->begins) wake_connection(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
    return is_known;
}

/* Takes bytes. */
static void reply(struct exchange *exchange, unsigned http_status, const char *content_type, char *bytes,
                  size_t length, const struct api_error *error, const struct exchange_header *headers,
                  size_t header_count) {
    pthread_mutex_lock(&exchange->mutex);
    const bool counts = exchange->state == RESPONSE_NONE;
    if (counts) {
        exchange->state = RESPONSE_WHOLE;
        exchange->http_status = http_status;
        exchange->content_type = content_type;
        exchange->headers = headers;
        exchange->header_count = header_count;
        exchange->out = bytes;
        exchange->out_start = 0;
        exchange->out_end = exchange->out_capacity = length;
        exchange->is_cut = exchange->begins && http_status != 200; /* its client was told 200 */
        if (error != NULL) {
            exchange->retry_after_seconds = error->retry_after_seconds;
            exchange->never_retry = error->never_retry;
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

void exchange_reply_with(struct exchange *exchange, unsigned http_status, const char *content_type,
                         char *bytes, size_t length, const struct exchange_header *headers,
                         size_t header_count) {
    reply(exchange, http_status, content_type, bytes, length, NULL, headers, header_count);
}

static void reply_json(struct exchange *exchange, unsigned http_status, json_t *value,
                       const struct api_error *error) {
    size_t length;
    char *text = json_line(value, &length);
    json_decref(value);
    reply(exchange, text != NULL ? http_status : 503, "application/json", text, length, error, NULL, 0);
}

void exchange_reply_json(struct exchange *exchange, unsigned http_status, json_t *value) {
    reply_json(exchange, http_status, value, NULL);
}

void exchange_reply_error(struct exchange *exchange, const struct api_error *error) {
    const bool anthropic = exchange_is_anthropic(exchange);
    json_t *body = api_error_json(error, anthropic);
    if (anthropic) json_put(body, "request_id", json_string(exchange->id));
    reply_json(exchange, error->http_status, body, error);
}

void exchange_stream_begin(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->state == RESPONSE_NONE) begin_stream(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_write(struct exchange *exchange, const char *bytes, size_t length) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->state == RESPONSE_STREAM && !exchange->has_left) {
        if (!append(exchange, bytes, length)) exchange->state = RESPONSE_ENDED;
        exchange->written_ns = clock_ns();
        if (exchange->out_end - exchange->out_start > EXCHANGE_BUFFER_BYTES) exchange->is_full = true;
        wake_connection(exchange);
    }
    const bool full = exchange->is_full;
    pthread_mutex_unlock(&exchange->mutex);
    return full;
}

void exchange_stream_end(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->state == RESPONSE_STREAM) exchange->state = RESPONSE_ENDED;
    wake_connection(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_is_stream(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    const bool is = exchange->state == RESPONSE_STREAM || exchange->state == RESPONSE_ENDED;
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
    const bool owes = exchange->wants_body && !exchange->has_body && exchange->state == RESPONSE_NONE &&
                      exchange->body_start == exchange->body_length;
    uint64_t since_ns = exchange->is_file && exchange->is_full ? exchange->taken_ns : 0;
    if (owes) since_ns = exchange->moved_ns;
    pthread_mutex_unlock(&exchange->mutex);
    return since_ns;
}

void exchange_file_begin(struct exchange *exchange, uint64_t bytes, const char *etag, const char *name) {
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->state == RESPONSE_NONE) {
        exchange->state = RESPONSE_STREAM;
        exchange->http_status = 200;
        exchange->content_type = "application/octet-stream";
        exchange->is_file = true;
        exchange->file.bytes = bytes;
        snprintf(exchange->file.etag, sizeof exchange->file.etag, "%s", etag);
        snprintf(exchange->file.name, sizeof exchange->file.name, "%s", name);
        wake_connection(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
}

const struct exchange_file *exchange_get_file(const struct exchange *exchange) {
    return exchange->is_file ? &exchange->file : NULL; /* set before the connection was woken */
}

bool exchange_write_file(struct exchange *exchange, const char *bytes, size_t length) {
    (void)exchange_write(exchange, bytes, length);
    pthread_mutex_lock(&exchange->mutex);
    while (exchange->is_full && !exchange->has_left && !exchange->is_cut && exchange->state == RESPONSE_STREAM)
        pthread_cond_wait(&exchange->moved, &exchange->mutex);
    const bool goes_on = !exchange->has_left && !exchange->is_cut && exchange->state == RESPONSE_STREAM;
    pthread_mutex_unlock(&exchange->mutex);
    return goes_on;
}

void exchange_cut(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->is_cut = true;
    pthread_cond_broadcast(&exchange->moved);
    wake_connection(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_streams_body(const struct exchange *exchange, uint64_t *bytes) {
    *bytes = exchange->body_expected;
    return exchange->streams_body;
}

void exchange_want_body(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->wants_body = true;
    exchange->moved_ns = clock_ns();
    wake_connection(exchange);
    pthread_mutex_unlock(&exchange->mutex);
}

bool exchange_read_body(struct exchange *exchange, void *memory, size_t bytes, size_t *read) {
    pthread_mutex_lock(&exchange->mutex);
    while (exchange->body_start == exchange->body_length && !exchange->has_body && !exchange->has_left &&
           exchange->state == RESPONSE_NONE)
        pthread_cond_wait(&exchange->moved, &exchange->mutex);
    const bool is_there = !exchange->has_left && exchange->state == RESPONSE_NONE;
    const size_t there = exchange->body_length - exchange->body_start;
    *read = !is_there ? 0 : there < bytes ? there : bytes;
    if (*read > 0) memcpy(memory, exchange->body + exchange->body_start, *read);
    exchange->body_start += *read;
    exchange->moved_ns = clock_ns();
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

enum exchange_progress exchange_await(struct exchange *exchange, void *connection,
                                      void (*suspend)(void *connection), exchange_wake *wake) {
    enum exchange_progress progress = EXCHANGE_WAITS;
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->has_left)
        progress = EXCHANGE_LEFT;
    else if (exchange->begins)
        progress = EXCHANGE_BEGINS;
    else if (exchange->state == RESPONSE_WHOLE)
        progress = EXCHANGE_HAS_REPLY;
    else if (exchange->state != RESPONSE_NONE)
        progress = EXCHANGE_HAS_STREAM;
    else
        fall_asleep(exchange, connection, suspend, wake);
    pthread_mutex_unlock(&exchange->mutex);
    return progress;
}

void exchange_stream_body(struct exchange *exchange, uint64_t bytes) {
    exchange->streams_body = true;
    exchange->body_expected = bytes;
}

enum exchange_progress exchange_await_want(struct exchange *exchange, void *connection,
                                           void (*suspend)(void *connection), exchange_wake *wake) {
    enum exchange_progress progress = EXCHANGE_WAITS;
    pthread_mutex_lock(&exchange->mutex);
    if (exchange->has_left)
        progress = EXCHANGE_LEFT;
    else if (exchange->state != RESPONSE_NONE)
        progress = EXCHANGE_HAS_REPLY;
    else if (exchange->wants_body)
        progress = EXCHANGE_HAS_STREAM;
    else
        fall_asleep(exchange, connection, suspend, wake);
    pthread_mutex_unlock(&exchange->mutex);
    return progress;
}

/* Room behind what has come, for `bytes` at least; false: there is no memory for it. */
static bool make_body_room(struct exchange *exchange, size_t bytes) {
    if (exchange->body_start > 0) {
        exchange->body_length -= exchange->body_start;
        memmove(exchange->body, exchange->body + exchange->body_start, exchange->body_length);
        exchange->body_start = 0;
    }
    const size_t wanted = max_size(exchange->body_length + bytes, EXCHANGE_BODY_BUFFER_BYTES);
    if (wanted <= exchange->body_capacity) return true;
    char *grown = realloc(exchange->body, wanted);
    if (grown == NULL) return false;
    atomic_fetch_add(&body_bytes_total, wanted - exchange->body_capacity);
    exchange->body = grown;
    exchange->body_capacity = wanted;
    return true;
}

int64_t exchange_put_body(struct exchange *exchange, const char *bytes, size_t length, void *connection,
                          void (*suspend)(void *connection), exchange_wake *wake) {
    int64_t result = (int64_t)length;
    pthread_mutex_lock(&exchange->mutex);
    const bool is_last = exchange->body_received + length >= exchange->body_expected;
    if (exchange->has_left ||
        (exchange->state == RESPONSE_NONE && !make_body_room(exchange, is_last ? length : 0))) {
        result = EXCHANGE_READ_LEFT;
    } else if (exchange->state == RESPONSE_NONE) {
        const size_t taken = min_size(length, exchange->body_capacity - exchange->body_length);
        memcpy(exchange->body + exchange->body_length, bytes, taken);
        exchange->body_length += taken;
        result = (int64_t)taken;
        if (taken < length) fall_asleep(exchange, connection, suspend, wake);
        pthread_cond_broadcast(&exchange->moved);
    }
    if (result > 0) {
        exchange->body_received += (uint64_t)result;
        exchange->moved_ns = clock_ns();
    }
    pthread_mutex_unlock(&exchange->mutex);
    return result;
}

void exchange_end_body(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    exchange->has_body = true;
    pthread_cond_broadcast(&exchange->moved);
    pthread_mutex_unlock(&exchange->mutex);
}

struct exchange_reply_view exchange_take_reply(struct exchange *exchange) {
    pthread_mutex_lock(&exchange->mutex);
    struct exchange_reply_view view = {
        .http_status = exchange->http_status,
        .content_type = exchange->content_type,
        .bytes = exchange->out,
        .length = exchange->out_end - exchange->out_start,
        .retry_after_seconds = exchange->retry_after_seconds,
        .never_retry = exchange->never_retry,
        .headers = exchange->headers,
        .header_count = exchange->header_count,
    };
    exchange->out = NULL;
    exchange->out_start = exchange->out_end = exchange->out_capacity = 0;
    pthread_mutex_unlock(&exchange->mutex);
    return view;
}

int64_t exchange_read(struct exchange *exchange, char *buffer, size_t capacity, void *connection,
                      void (*suspend)(void *connection), exchange_wake *wake) {
    int64_t result = 0;
    pthread_mutex_lock(&exchange->mutex);
    const size_t there = exchange->out_end - exchange->out_start;
    if (exchange->has_left || exchange->is_cut) {
        result = EXCHANGE_READ_LEFT;
    } else if (there > 0) {
        const size_t taken = there < capacity ? there : capacity;
        memcpy(buffer, exchange->out + exchange->out_start, taken);
        exchange->out_start += taken;
        exchange->taken_ns = clock_ns();
        result = (int64_t)taken;
        if (exchange->is_full && there - taken <= EXCHANGE_BUFFER_BYTES / 2) {
            exchange->is_full = false;
            pthread_cond_broadcast(&exchange->moved);
            call_work(exchange, exchange->work.resume);
        }
    } else if (exchange->state == RESPONSE_ENDED || exchange->state == RESPONSE_WHOLE) {
        result = EXCHANGE_READ_END;
    } else if (exchange->owes_blank) {
        exchange->owes_blank = false;
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
    const bool waits = exchange->out_end > exchange->out_start; /* the client has something to take */
    const bool streams = exchange->state == RESPONSE_STREAM;
    const bool blocked = waits && (streams || exchange->state == RESPONSE_ENDED) &&
                         now_ns > exchange->taken_ns + EXCHANGE_BLOCKED_SECONDS * second;
    if (streams && !waits && !exchange->has_left &&
        now_ns > exchange->written_ns + EXCHANGE_BEAT_SECONDS * second) {
        exchange->written_ns = now_ns;
        call_work(exchange, exchange->work.beat);
    }
    if (exchange->begins && exchange->state == RESPONSE_NONE &&
        now_ns > exchange->written_ns + EXCHANGE_BEAT_SECONDS * second) {
        exchange->written_ns = now_ns;
        exchange->owes_blank = true;
        wake_connection(exchange);
    }
    pthread_mutex_unlock(&exchange->mutex);
    return blocked;
}
