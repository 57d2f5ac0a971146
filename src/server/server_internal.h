#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "cache/store/store.h"
#include "grammar/json_mask.h"
#include "server/exchange.h"
#include "server/guard.h"
#include "server/latencies.h"
#include "server/server.h"
#include "server/transfers.h"

struct http;

enum { SERVER_KEY_NAME_BYTES = 2 * STORE_FINGERPRINT_BYTES + 1 };
enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING };

struct server {
    struct server_options options;
    struct guard guard;
    struct server_model model; /* from SERVER_READY on */
    _Atomic int state;         /* enum server_state; release by server_begin, acquire by the routes */
    _Atomic uint64_t next_id;  /* of completions, tool calls ... */
    _Atomic int map_readers;   /* maps that are being read (map_route.c) */
    time_t started;
    struct latencies latencies;
    struct http *http;
    struct transfers transfers;
    pthread_mutex_t trie_mutex;
    struct token_trie *trie;                  /* owned; of the vocabulary, made when first needed */
    char (*key_names)[SERVER_KEY_NAME_BYTES]; /* [key_count] owned: what the keys' documents are marked with */
};

/* A new "prefix-0123456789abcdef"; buffer has SERVER_ID_BYTES. */
enum { SERVER_ID_BYTES = 48 };
const char *server_new_id(struct server *server, const char *prefix, char *buffer);

/* Whose prompts are reused for a request with this key; buffer has SERVICE_OWNER_MAX bytes. */
const char *server_owner(const struct server *server, uint32_t key, char *buffer);

/* A mask for one answer; mask->destroy frees it.  schema must live as long. */
enum status server_mask(struct server *server, const struct json_schema *schema, struct logit_mask *mask,
                        struct error *error) STATUS_CHECKED;

/* What the folder of --kv-disk has for this key, and whether there is one; takes data. */
void server_reply_list(const struct server *server, struct exchange *exchange, json_t *data);
void server_reply_deleted(struct exchange *exchange, const char *object, json_t *id); /* takes id */
/* Of the folder: 507 where it has no room. */
void server_reply_disk_failure(struct exchange *exchange, const struct error *reason);

/* Parses the body; false: replied. */
bool server_read_body(struct exchange *exchange, json_t **body);
/* The same.  Where the field `name` is a plain array of token ids, they are in *ids and the field is an empty array. */
bool server_read_body_with_ids(struct exchange *exchange, const char *name, json_t **body, struct token_list *ids);
