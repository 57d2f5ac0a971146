/* ask: the answers of one HTTP request, from the service to the exchange.
 *
 *   ask_route -> family's read -> the service -> family's other callbacks -> freed by itself
 *
 * A request has `prompts` x n choices; each is a request of the service.  The callbacks of a family come on the
 * service's thread, one at a time:
 *
 *   begin (the first choice has a slot), text, choice_ends, ..., end (all choices have ended)
 *
 * or fail, instead of end.  A family writes frames to the exchange in a stream, or replies once in end.  A client that
 * leaves cancels all choices.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "grammar/json_schema.h"
#include "server/answer_parser.h"
#include "server/ask_options.h"
#include "server/exchange.h"
#include "server/server_internal.h"

struct ask_token {
    token_id id;
    float log_probability;
    bool has_log_probability;
    struct token_probability top[ASK_TOP_MAX];
    size_t top_count;
};

struct ask_call {
    char id[SERVER_ID_BYTES];
    char *name, *arguments; /* owned */
};

/* A run of the answer that is of one kind, in the order in which they came. */
struct ask_item {
    enum answer_part_kind kind;
    size_t begin, end; /* of content or reasoning; of a tool call, begin is its index */
    char id[SERVER_ID_BYTES];
};

struct ask_tokens {
    struct ask_token *items; /* [count] owned */
    size_t count, capacity;
};

/* How far a stream has come. */
struct ask_sent {
    size_t tokens, content, characters, items;
    size_t events; /* guarded by the ask's mutex */
};

struct ask_choice {
    struct ask *ask;
    size_t index;
    service_ticket ticket;
    struct token_list prompt; /* shared by the n choices of a prompt; owned by the first */
    size_t reasoning_tokens;  /* of the answer's, those of its thoughts and their end */
    struct text content, reasoning;
    struct ask_call *calls; /* [call_count] owned */
    size_t call_count;
    struct ask_item *items; /* [item_count] owned */
    size_t item_count;
    struct answer_parser parser;
    struct ask_tokens tokens; /* of the prompt, too, where that is wanted */
    struct ask_sent sent;
    bool has_ended;
    enum stop_reason stop;
    size_t stop_index;
    struct service_figures figures;
    uint64_t document;
    char notice[400]; /* why nothing was saved or reused; "": no notice */
};

/* Any may be NULL but read and end. */
struct ask_family {
    const char *id_prefix;   /* of the answer's id */
    const char *call_prefix; /* of the ids of tool calls; NULL: "call_" */
    const char *ids_field;   /* of the body, which may be token ids (ask->ids); NULL: none */
    bool (*read)(struct ask *ask, struct api_error *error); /* of the body, on the route's thread: ask_set_prompts */
    void (*begin)(struct ask *ask, const struct service_admission *admission);
    void (*progress)(struct ask *ask, size_t done, size_t total);
    void (*part)(struct ask *ask, struct ask_choice *choice, const struct answer_part *part);
    /* After the parts of each token, where log probabilities are wanted. */
    void (*token)(struct ask *ask, struct ask_choice *choice);
    void (*choice_ends)(struct ask *ask, struct ask_choice *choice);
    void (*end)(struct ask *ask);
    /* In a stream, after begin. */
    void (*fail)(struct ask *ask, const struct api_error *error);
    void (*beat)(struct ask *ask); /* any thread */
    void (*destroy)(void *data);
};

/* What the answer is made of. */
struct ask_form {
    bool lists_prompt, echoes; /* of completions: the prompt's tokens, its text in front */
    bool parses_tools, parses_reasoning;
    bool thinks;                   /* the prompt ends in <think> */
    enum chat_syntax syntax;       /* of calls */
    bool must_call;                /* it is a tool call, whose tag ends the prompt; schema is set */
    struct json_schema *schema;    /* owned: what it must be; NULL: any text */
    const struct logit_mask *mask; /* the family's own, instead of a schema's, as its data; NULL: none */
};

/* Of the reading of the prompts. */
struct ask_progress {
    bool has_begun;       /* service thread */
    _Atomic bool is_open; /* the family has begun its stream: beats may follow */
    struct service_admission admission;
    uint64_t admitted_ns, told_ns; /* told_ns: when progress last was */
    _Atomic size_t done, total;
};

struct ask_end {
    pthread_mutex_t mutex; /* of what follows, of tickets and of choices' events */
    bool has_left, has_failed;
    struct api_error failure;
    size_t pending; /* choices that have not ended, and the submitter */
};

struct ask {
    struct server *server;
    struct exchange *exchange; /* a reference */
    const struct ask_family *family;
    void *data;            /* the family's */
    json_t *body;          /* owned; what options borrow from */
    struct token_list ids; /* owned: of the family's ids_field, if it is a plain array of them */
    struct ask_options options;
    struct ask_form form;
    size_t turn_end;   /* of a conversation's prompt (sequence_set_turn); 0: not known */
    bool drops_answer; /* the next turn does not go on with the answer's tokens */
    char id[SERVER_ID_BYTES];
    char document_name[SERVICE_NAME_MAX];
    int64_t created;                  /* seconds since 1970 */
    struct service_observer observer; /* of its steps; zeros: none */
    struct ask_choice *choices;       /* [choice_count] owned */
    size_t choice_count;
    bool is_full; /* service thread */
    struct ask_progress progress;
    struct ask_end end;
};

/* The request of an exchange, from its body to its reply. */
void ask_route(struct server *server, struct exchange *exchange, const struct ask_family *family);
/* Makes the choices: prompts[prompt_count], taken.  Without a schema: that of the form that is wanted. */
bool ask_set_prompts(struct ask *ask, struct token_list *prompts, size_t prompt_count, struct api_error *error);

/* For a request without a seed. */
uint64_t ask_seed(const struct ask *ask);
/* Sums over the choices. */
struct ask_usage {
    uint64_t prompt_tokens, reused_tokens, answer_tokens;
    uint64_t reasoning_tokens;
};
struct ask_usage ask_usage(const struct ask *ask);
/* What llama.cpp's page shows; of the first choice. */
json_t *ask_timings(const struct ask *ask);
