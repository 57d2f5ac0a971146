/* What loam.h's opaque structs are. */
#ifndef LOAM_API_API_INTERNAL_H
#define LOAM_API_API_INTERNAL_H

#include <stdatomic.h>
#include <stdio.h>

#include "generate/generate.h"
#include "loam.h"
#include "platform/trace.h"
#include "token/tokenizer.h"

struct loam_model {
    struct device *device;
    struct model *model;
    struct tokenizer *tokenizer;
};

struct loam_session {
    struct loam_model *model; /* borrowed */
    struct plan plan;         /* its folder is owned; document_name is ours */
    char *document_name;      /* owned */
    struct loam_session_options options;
    FILE *trace_file;      /* owned; NULL: none */
    struct trace *trace;   /* owned */
    struct engine *engine; /* owned; NULL: it could not be made again */
    struct generation generation;
    struct loam_sequence *sequences;                /* a list */
    const struct loam_generate_options *generating; /* during loam_generate */
    struct loam_receipt before; /* of engines that are gone: of the disk; kept and visible below */
    uint64_t kept, visible, reused;
    atomic_bool cancelled;
};

struct loam_sequence {
    struct loam_session *session;
    struct loam_sequence *next;
    struct answer answer;     /* answer.sequence NULL: the engine was made again, and this one is empty */
    struct token_list prompt; /* a view: of what is fed now */
    float *logits;            /* owned; [vocabulary_size]: after the last token, where has_logits */
    bool has_logits;
    bool counted;     /* what it reused, in the session's receipt */
    token_id pending; /* sampled, not yet in the sequence; TOKEN_NONE: none */
    size_t index;     /* among the prompts of loam_generate */
};

/* Into the public error, if there is one. */
enum loam_status api_report(enum status status, const struct error *error, struct loam_error *target);
/* given, a struct that begins with its size, into own[own_bytes]; what it does not have is zero.  NULL: zeros. */
enum status api_read_options(void *own, size_t own_bytes, const void *given, const char *name,
                             struct error *error) STATUS_CHECKED;
/* own into a struct of the caller's that begins with its size. */
enum status api_write(void *given, const void *own, size_t own_bytes, const char *name, struct error *error)
    STATUS_CHECKED;
/* count ids to a caller who has room for capacity. */
void api_copy_ids(const int32_t *from, size_t count, int32_t *ids, size_t capacity);

void session_note(const struct loam_session *session, const char *line);
/* The engine by the plan, in the place of the one there was; sequences are empty then. */
enum status session_make_engine(struct loam_session *session, bool found_damage, struct error *error)
    STATUS_CHECKED;
/* A sequence of the engine there is, for one that has none. */
enum status sequence_revive(struct loam_sequence *sequence, struct error *error) STATUS_CHECKED;

#endif
