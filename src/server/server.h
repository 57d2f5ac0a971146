/* server: `loam serve` behind its command line: listens, then answers with a service.
 *
 *   server_create (listens; every request is answered 503) -> server_begin (a model is there) -> server_stop
 *     -> server_destroy
 *
 * Routes are those of OpenAI, Anthropic and llama-server; docs/server.md lists them.  Thread-safe where said.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "generate/sampler.h"
#include "model/model.h"
#include "server/request_log.h"
#include "server/service.h"
#include "token/chat_template.h"
#include "token/tokenizer.h"

struct server;

/* All borrowed until server_destroy. */
struct server_options {
    const char *host;        /* NULL: nothing listens; requests come by server_ask */
    uint16_t port;           /* 0: any that is free */
    size_t network_max;      /* connections from one address (front.h) */
    bool counts_local;       /* from this machine, too */
    const char *const *keys; /* [key_count] */
    size_t key_count;
    const char *const *origins; /* [origin_count]: pages that may ask */
    size_t origin_count;
    bool shares_documents; /* saved documents are everybody's, not each key's */
    bool has_vllm_metrics; /* /metrics under vLLM's names, too */
    const char *version;   /* of loam */
    struct request_log log;
};

struct server_model {
    const char *id;   /* as /v1/models names it */
    const char *path; /* of the file */
    const struct model *model;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* NULL: the model has none */
    const char *chat_text;            /* [chat_text_length] tokenizer.chat_template; NULL: none */
    size_t chat_text_length;
    uint64_t parameter_count, size_bytes;
    struct service *service;
    struct sampler_options sampling; /* for what a request does not say */
    float about_documents;           /* the temperature of one with documents, the same way */
    bool has_seed;                   /* sampling.seed too; else each request gets a new one */
    const char *documents;           /* the folder of saved documents; NULL: none */
    bool in_tiers;                   /* of KV a part is in RAM */
};

/* STATUS_USAGE: an address beyond loopback without a key. */
enum status server_create(struct server **server, const struct server_options *options, struct error *error)
    STATUS_CHECKED;
uint16_t server_port(const struct server *server); /* of one that listens */
/* *model is copied. */
void server_begin(struct server *server, const struct server_model *model);

/* A request of this process, without HTTP: POST path with this JSON, not streamed.  ready comes once, on any thread,
 * also before server_ask returns, with locks held: it tells another thread, which takes the answer. */
struct server_question {
    const char *path, *body;
    size_t length;
    void (*ready)(void *context);
    void *context;
};
struct server_answer {
    unsigned http_status;
    const char *id; /* of the request, borrowed until server_forget */
    char *bytes;    /* the caller's; JSON */
    size_t length;
};
struct server_asked;
/* NULL: no memory, and nothing was asked. */
struct server_asked *server_ask(struct server *server, const struct server_question *question);
/* Once, after ready. */
struct server_answer server_take_answer(struct server_asked *asked);
void server_forget(struct server_asked *asked); /* a request that still runs is cancelled */

/* Closes the listener and lets running requests go on for `seconds`.  Then their clients get an error, and it waits
 * a little for them to read it. */
void server_stop(struct server *server, double seconds);
void server_destroy(struct server *server); /* before the service and the model; NULL: allowed */
