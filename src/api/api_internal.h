/* The opaque structs of loam.h. */
#pragma once

#include <stdatomic.h>
#include <stdio.h>

#include "generate/generate.h"
#include "loam.h"
#include "platform/cpu.h"
#include "platform/trace.h"
#include "token/chat_template.h"
#include "token/tokenizer.h"

struct loam_model {
    struct device *device;
    struct model *model;
    struct tokenizer *tokenizer;
    const struct chat_template *chat; /* the file's; NULL: chat_error says why not */
    struct error chat_error;
    size_t thread_count;         /* as given; 0: the first session's plan says */
    uint64_t weights_host_bytes; /* the same */
    bool is_settled;             /* a session has been there: threads and weights stay as they are */
    cpu_mask mask;
};

struct loam_session {
    struct loam_model *model; /* borrowed */
    struct plan plan;         /* its folder is owned; document_name is the session's */
    char *document_name;      /* owned */
    struct loam_session_options options;
    FILE *trace_file;      /* owned; NULL: none */
    struct trace *trace;   /* owned */
    struct engine *engine; /* owned; NULL: it could not be recreated */
    struct generation generation;
    struct loam_sequence *sequences;                /* a list */
    const struct loam_generate_options *generating; /* during loam_generate */
    struct kv_tier_statistics tier;                 /* of earlier engines, as is select */
    struct select_statistics select;
    uint64_t reused;
    atomic_bool cancelled;
};

struct loam_sequence {
    struct loam_session *session;
    struct loam_sequence *next;
    struct answer answer;     /* answer.sequence NULL: the engine was recreated, and this sequence is empty */
    struct token_list prompt; /* borrowed tokens: those fed now */
    float *logits;            /* owned; [vocabulary_size]: after the last token, if has_logits */
    bool has_logits;
    bool counted;     /* its reused tokens are in the session's receipt */
    token_id pending; /* sampled, not yet in the sequence; TOKEN_NONE: none */
    size_t index;     /* of its prompt in loam_generate */
};

/* Copies the error to the public one, if target is not NULL. */
enum loam_status api_report(enum status status, const struct error *error, struct loam_error *target);
/* LOAM_USAGE, with the function and the argument that must not be NULL. */
enum loam_status api_refuse_null(const char *function, const char *argument, struct loam_error *target);
#define API_NEED(pointer, error)                                                  \
    do {                                                                          \
        if ((pointer) == NULL) return api_refuse_null(__func__, #pointer, error); \
    } while (0)
/* Copies given, a struct that begins with its size, to own[own_bytes].  Members that given lacks are zero.  given NULL:
 * all zeros. */
enum status api_read_options(void *own, size_t own_bytes, const void *given, const char *name, struct error *error)
    STATUS_CHECKED;
/* Copies own to the caller's struct, which begins with its size. */
enum status api_write(void *given, const void *own, size_t own_bytes, const char *name, struct error *error)
    STATUS_CHECKED;
/* Copies at most capacity of count ids to the caller. */
void api_copy_ids(const int32_t *from, size_t count, int32_t *ids, size_t capacity);
