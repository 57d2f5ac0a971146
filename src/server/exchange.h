/* exchange: one HTTP request and its response, between the thread that speaks HTTP and those that do the work.
 *
 *   worker:   exchange_reply (a whole body), or exchange_stream_begin, exchange_write ..., exchange_stream_end
 *   HTTP:     waits (the connection is suspended), then sends what is there
 *   watcher:  exchange_leave when the client closed its connection; exchange_probe when it only sends no more
 *
 * What is written is kept until the client takes it.  Beyond EXCHANGE_BUFFER_BYTES exchange_write says so: its caller
 * pauses the work, and struct exchange_work.resume goes on once the client has taken half of it.  Writing after the
 * client left does nothing.  Counted references; thread-safe.  No callback is called with a lock held.
 *
 * Files go through it in parts, either way, and the thread that carries one may wait: exchange_want_body and
 * exchange_read_body for a body that the work reads as it comes; exchange_file_begin and exchange_write_file.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/api_error.h"
#include "server/head.h"
#include "server/request_log.h"

enum { EXCHANGE_BUFFER_BYTES = 64 << 10, EXCHANGE_BLOCKED_SECONDS = 30, EXCHANGE_BEAT_SECONDS = 10 };
enum { EXCHANGE_BODY_BUFFER_BYTES = 256 << 10 }; /* of a body that is read as it comes */

/* Of a request's number, an unsigned long long. */
#define EXCHANGE_ID_FORMAT "req_%016llx"

struct exchange;

/* What the owner of the work is told.  Called on any thread, never after exchange_set_work(NULL). */
struct exchange_work {
    void *context;
    void (*leave)(void *context);  /* the client is gone: nobody reads what follows; once */
    void (*resume)(void *context); /* the client took what made exchange_write say stop */
    void (*beat)(void *context);   /* nothing was written for EXCHANGE_BEAT_SECONDS; streams only */
    bool streams;                  /* the answer will be a stream */
};

/* How the HTTP side wakes a connection that it suspended. */
typedef void exchange_wake(void *connection);

/* head is copied as far as the functions below give it. */
struct exchange *exchange_create(const struct head *head, uint32_t key, uint64_t number);
/* The log gets its line when the last reference is released. */
void exchange_set_log(struct exchange *exchange, const struct request_log *log);
void exchange_note_tokens(struct exchange *exchange, const struct request_tokens *tokens);
void exchange_acquire(struct exchange *exchange);
void exchange_release(struct exchange *exchange);

enum http_method exchange_method(const struct exchange *exchange);
const char *exchange_path(const struct exchange *exchange);
const char *exchange_query(const struct exchange *exchange); /* "": none */
uint32_t exchange_key(const struct exchange *exchange);      /* guard_check's */
const char *exchange_id(const struct exchange *exchange);    /* for x-request-id */
/* The ETag that the client has; "": none. */
const char *exchange_if_none_match(const struct exchange *exchange);
/* The origin of a page from elsewhere that may read the response; "": none. */
void exchange_allow_origin(struct exchange *exchange, struct head_text origin);
const char *exchange_origin(const struct exchange *exchange);

/* ---- the body, on the HTTP thread until the work begins ---- */

/* false: no memory, or more than GUARD_BODY_BYTES_MAX. */
bool exchange_append_body(struct exchange *exchange, const char *bytes, size_t length);
const char *exchange_body(const struct exchange *exchange, size_t *length);
/* Gives the body's memory back. */
void exchange_drop_body(struct exchange *exchange);
uint64_t exchange_body_bytes_total(void); /* of all exchanges */

/* ---- a body that the work reads as it comes: the work's functions, which wait ---- */

/* Whether it is one; *bytes: that it will have. */
bool exchange_streams_body(const struct exchange *exchange, uint64_t *bytes);
/* Lets it come.  Whoever replies before that saves a client that waits for leave (Expect) from sending it. */
void exchange_want_body(struct exchange *exchange);
/* The next bytes; *read 0: that was all.  false: the client is gone, or has its answer. */
bool exchange_read_body(struct exchange *exchange, void *memory, size_t bytes, size_t *read);

/* ---- the response, on any thread; the first reply or stream counts ---- */

/* Takes bytes (malloc). */
void exchange_reply(struct exchange *exchange, unsigned http_status, const char *content_type, char *bytes,
                    size_t length);
struct exchange_header {
    const char *name, *value;
};
/* The same with headers[header_count], which live as long as the server. */
void exchange_reply_with(struct exchange *exchange, unsigned http_status, const char *content_type, char *bytes,
                         size_t length, const struct exchange_header *headers, size_t header_count);
/* Takes the value; NULL (no memory) becomes 503. */
void exchange_reply_json(struct exchange *exchange, unsigned http_status, json_t *value);
void exchange_reply_error(struct exchange *exchange, const struct api_error *error);
void exchange_reply_failure(struct exchange *exchange, const struct error *reason); /* api_error_from */
void exchange_refuse(struct exchange *exchange, unsigned http_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Status 200, text/event-stream. */
void exchange_stream_begin(struct exchange *exchange);
/* true: enough for now; the caller pauses until resume. */
bool exchange_write(struct exchange *exchange, const char *bytes, size_t length);
void exchange_stream_end(struct exchange *exchange);
bool exchange_is_stream(struct exchange *exchange);

/* Status 200, a file of so many bytes.  etag: what identifies them; name: for who saves it.  Both are cut to
 * EXCHANGE_NAME_MAX and have no quotes. */
enum { EXCHANGE_NAME_MAX = 64 };
void exchange_file_begin(struct exchange *exchange, uint64_t bytes, const char *etag, const char *name);
/* Waits while the buffer is full.  false: the client is gone, or the file was cut. */
bool exchange_write_file(struct exchange *exchange, const char *bytes, size_t length);
/* Instead of exchange_stream_end: the connection is closed, so that the client sees that something is missing. */
void exchange_cut(struct exchange *exchange);
bool exchange_has_left(struct exchange *exchange); /* the client */
/* Since when, by clock_ns, a file's client could have sent or taken a byte and has not.  0: it need not. */
uint64_t exchange_waits_since(struct exchange *exchange);

/* work NULL: none any more.  If the client has left already, leave is called at once. */
void exchange_set_work(struct exchange *exchange, const struct exchange_work *work);

/* ---- the HTTP side and the watcher ---- */

/* EXCHANGE_BEGINS: status 200 and application/json, as of exchange_probe; the body follows by exchange_read. */
enum exchange_progress { EXCHANGE_WAITS, EXCHANGE_HAS_REPLY, EXCHANGE_HAS_STREAM, EXCHANGE_BEGINS, EXCHANGE_LEFT };
enum { EXCHANGE_READ_END = -1, EXCHANGE_READ_LEFT = -2 };

struct exchange_reply_view {
    unsigned http_status;
    const char *content_type; /* borrowed */
    char *bytes;              /* the caller's now */
    size_t length;
    unsigned retry_after_seconds;
    bool never_retry;
    const struct exchange_header *headers; /* [header_count] borrowed */
    size_t header_count;
};

/* Before anything else: the body, of so many bytes, is read as it comes. */
void exchange_stream_body(struct exchange *exchange, uint64_t bytes);
/* EXCHANGE_HAS_STREAM: the body is wanted.  EXCHANGE_WAITS: as below. */
enum exchange_progress exchange_await_want(struct exchange *exchange, void *connection,
                                           void (*suspend)(void *connection), exchange_wake *wake);
/* How many bytes of the body were taken: after a reply all of them, which nobody reads.  Fewer than there are: there is
 * no room, and the connection is suspended as below; never of the body's last part, as a connection that wakes is read
 * from before it is asked again, and its client may have ended.  EXCHANGE_READ_LEFT: the client is gone. */
int64_t exchange_put_body(struct exchange *exchange, const char *bytes, size_t length, void *connection,
                          void (*suspend)(void *connection), exchange_wake *wake);
void exchange_end_body(struct exchange *exchange);

/* What exchange_file_begin was given; NULL: the stream is of events. */
struct exchange_file {
    uint64_t bytes;
    char etag[EXCHANGE_NAME_MAX], name[EXCHANGE_NAME_MAX];
};
const struct exchange_file *exchange_get_file(const struct exchange *exchange);

/* Where the exchange stands.  EXCHANGE_WAITS: `connection` was noted as asleep before this returns, after calling
 * suspend, and is woken once. */
enum exchange_progress exchange_await(struct exchange *exchange, void *connection, void (*suspend)(void *connection),
                                      exchange_wake *wake);
struct exchange_reply_view exchange_take_reply(struct exchange *exchange);
/* Bytes copied; 0: none yet, and the connection is suspended as above. */
int64_t exchange_read(struct exchange *exchange, char *buffer, size_t capacity, void *connection,
                      void (*suspend)(void *connection), exchange_wake *wake);
/* The client is gone, or has taken nothing for too long. */
void exchange_leave(struct exchange *exchange);
/* The client sends no more, since ended_ns: it has closed its socket, or waits for the answer with that side of it
 * shut.  Which of both, the system tells once something is sent to it: a comment in a stream, else the head of the
 * answer, ahead of its body.  false: there is nothing to send yet. */
bool exchange_probe(struct exchange *exchange, uint64_t ended_ns);
/* Once a second: sends beats.  true: the client has taken nothing for EXCHANGE_BLOCKED_SECONDS. */
bool exchange_tick(struct exchange *exchange, uint64_t now_ns);
