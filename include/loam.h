/* loam: run a GGUF language model, with contexts that are larger than memory.
 *
 *   struct loam_model *model;
 *   struct loam_session *session;
 *   struct loam_sequence *sequence;
 *   struct loam_error error;
 *   loam_model_open(&model, "model.gguf", NULL, &error);
 *   loam_session_create(&session, model, NULL, &error);
 *   loam_sequence_create(&sequence, session, NULL, &error);
 *   loam_generate(session, &(struct loam_prompt){sequence, ids, count}, 1, &options, &error);
 *
 * A model is a mapped file.  A session is a budget for KV, a way to read it, and perhaps a folder where it is saved.  A
 * sequence is tokens with their KV.  docs/library.md explains, examples/ shows.
 *
 * Every function that can fail returns a status and fills *error (NULL: not wanted); what it was to make is then NULL.
 * The library never prints and never exits, but for a model file that is truncated while it is mapped.
 *
 * Option structs: zeros are the defaults.  `size` is sizeof the struct, so that later versions can add members; NULL
 * instead of a struct is the defaults.  Texts are not needed after the call unless said so.  Sizes are in bytes.
 *
 * Thread: one at a time for a model and all its sessions; different models are independent.  loam_session_cancel may be
 * called from any thread and from a signal handler.  Callbacks are called on the thread that called the library, and
 * must not call it, but for loam_session_cancel and what takes only a model.
 */
#ifndef LOAM_H
#define LOAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOAM_API __attribute__((visibility("default")))

/* The values are the command line's exit codes. */
enum loam_status {
    LOAM_OK = 0,
    LOAM_FAILED = 1,
    LOAM_USAGE = 2, /* an argument, or more tokens than the context holds */
    LOAM_BAD_MODEL = 3,
    LOAM_DOCUMENT = 4, /* a saved document */
    LOAM_MEMORY = 5,
    LOAM_IO = 6,
    LOAM_INTERRUPTED = 130, /* a callback or loam_session_cancel stopped it */
};

struct loam_error {
    enum loam_status status;
    char message[400]; /* one line */
};

struct loam_model;
struct loam_session;
struct loam_sequence;

LOAM_API const char *loam_version(void);

/* ---- models and text ---- */

struct loam_model_options {
    size_t size;
    size_t thread_count;  /* 0: one per processor */
    const char *cpu_mask; /* "ref", "avx2", "avx512", "amx", "neon", "all"; NULL: all */
    bool force_pre;       /* accept a pre-tokenizer that loam does not know */
};

LOAM_API enum loam_status loam_model_open(struct loam_model **model, const char *path,
                                          const struct loam_model_options *options, struct loam_error *error);
LOAM_API void loam_model_close(struct loam_model *model); /* after its sessions; NULL allowed */
LOAM_API const char *loam_model_name(const struct loam_model *model);
LOAM_API uint64_t loam_model_context_length(const struct loam_model *model); /* trained tokens */
LOAM_API size_t loam_model_vocabulary_size(const struct loam_model *model);

enum loam_tokenize_flags {
    LOAM_TOKENIZE_BEGIN = 1,   /* BOS (and EOS) where the model wants them around a text */
    LOAM_TOKENIZE_CONTROL = 2, /* the text of a control token becomes that token: not for what users type */
};

/* Ids of text[length]: *count is how many there are, of which at most capacity are written to ids.  flags: of enum
 * loam_tokenize_flags. */
LOAM_API enum loam_status loam_tokenize(const struct loam_model *model, const char *text, size_t length,
                                        unsigned flags, int32_t *ids, size_t capacity, size_t *count,
                                        struct loam_error *error);

enum loam_role { LOAM_SYSTEM, LOAM_USER, LOAM_ASSISTANT };

struct loam_message {
    enum loam_role role;
    const char *text;
    size_t length;
};

/* The same for a conversation, laid out by the model's chat template and open for the assistant's answer; nothing in a
 * text becomes a control token.  A long document belongs at the beginning of the first user message: then every
 * question about it shares its KV.  template_name ("chatml", "llama3", ...) NULL: the model's; LOAM_FAILED: it has
 * none. */
LOAM_API enum loam_status loam_chat_tokens(const struct loam_model *model, const char *template_name,
                                           const struct loam_message *messages, size_t message_count,
                                           int32_t *ids, size_t capacity, size_t *count,
                                           struct loam_error *error);

struct loam_text {
    const char *bytes; /* [length]; NULL: there is none */
    size_t length;
};

/* Documents and a question about them, as `loam run -f a -f b -p QUESTION` asks it: in the model's chat template, or
 * raw where the model has none.  The documents come first, so every question about them begins with the same tokens. */
struct loam_question {
    size_t size;
    const struct loam_text *documents; /* [document_count] */
    size_t document_count;
    struct loam_text question, system;
    const char *template_name; /* NULL: the model's, if it has one */
    bool raw;                  /* no template: the text goes on */
};
LOAM_API enum loam_status loam_question_tokens(const struct loam_model *model,
                                               const struct loam_question *question, int32_t *ids,
                                               size_t capacity, size_t *count, struct loam_error *error);

/* The bytes of one token, not zero-terminated: returns how many, writes at most capacity. */
LOAM_API size_t loam_token_text(const struct loam_model *model, int32_t token, char *buffer, size_t capacity);
LOAM_API bool loam_token_is_end(const struct loam_model *model, int32_t token); /* ends an answer */

/* ---- sessions: memory, disk, and what of the context is read ---- */

enum loam_kv_type { LOAM_KV_F16, LOAM_KV_Q8 };

/* How a prompt's tokens behind a saved document attend: to all of it, as answers do, or (auto) by what reads less. */
enum loam_suffix { LOAM_SUFFIX_AUTO, LOAM_SUFFIX_DENSE, LOAM_SUFFIX_SELECT };

struct loam_session_options {
    size_t size;
    uint64_t context_size;    /* tokens of a sequence; 0: the model's, or what the budget holds */
    size_t sequence_capacity; /* sequences at once; 0: 1, at most 64 */
    size_t batch_size;        /* tokens of a prefill block; 0: 512 */
    size_t
        segment_size; /* tokens of a prompt that become durable together, in whole blocks; 0: up to 8,192 */
    enum loam_kv_type k_type, v_type;

    /* Which parts of the context a token reads, as the command line's options of these names (docs/command_line.md);
     * tokens that are fed attend to everything. */
    const char *preset; /* "full", "streaming", "quest", "hata", "h2o", "infinigen", "leoam"; NULL: full */
    const char *set;    /* "select=meanstd,bits=256,dense=0": axes and numbers changed; NULL: none */
    const char *keep;   /* "2048", "8K", "10%" of the tokens, per KV head; NULL: the preset's */

    /* Budgets for KV; 0: none given.  On a CPU both are of one memory and add up.  Without a disk the context must fit;
     * with one, what RAM does not hold lies there. */
    uint64_t kv_device_bytes, kv_host_bytes;
    const char
        *disk_directory; /* made if it is not there; prompts are saved in it and opened again; NULL: none */
    uint64_t disk_bytes; /* of the folder at most; 0: no limit */
    const char *document_name; /* of what is saved, for people; NULL: none */
    uint64_t wanted_tokens;    /* prompt and answer, where they are known: refused early if memory is short */
    enum loam_suffix suffix;

    /* A timeline of the work (Chrome's trace events), whole after loam_session_destroy, which tells a failure by note;
     * NULL: none. */
    const char *trace_path;

    void *context; /* of the callbacks, each of which may be NULL */
    /* Tokens of a prompt that are done; true stops, and of a long prompt multiples of some thousand tokens stay. */
    bool (*progress)(void *context, uint64_t done, uint64_t total);
    bool (*cancels)(void *context);                /* asked before every step; true stops */
    void (*note)(void *context, const char *line); /* for the user: why a saved document was not used, ... */
};

LOAM_API enum loam_status loam_session_create(struct loam_session **session, struct loam_model *model,
                                              const struct loam_session_options *options,
                                              struct loam_error *error);
/* After its sequences; NULL allowed. */
LOAM_API void loam_session_destroy(struct loam_session *session);
LOAM_API uint64_t loam_session_context_size(const struct loam_session *session);
/* What the selection could not have, and what was taken instead (random hash codes for want of a calibration beside the
 * model), a line for the user; NULL: nothing. */
LOAM_API const char *loam_session_note(const struct loam_session *session);
/* Stops what the session is doing; LOAM_INTERRUPTED there. */
LOAM_API void loam_session_cancel(struct loam_session *session);

/* What a session did since it was created. */
struct loam_receipt {
    size_t size;             /* set by the caller */
    uint64_t prefill_tokens; /* computed */
    uint64_t reused_tokens;  /* of saved documents: not computed */
    uint64_t decode_tokens;
    double prefill_seconds, decode_seconds,
        wait_seconds;                             /* the last: for the disk, with nothing to compute */
    uint64_t read_bytes, read_pages, write_bytes; /* of the disk */
    uint64_t cache_hits, cache_misses;            /* chunks that were in RAM, or not, when they were wanted */
    uint64_t host_bytes;                          /* RAM for KV and all that belongs to it, at most so far */
    double
        kept_ratio; /* tokens read of those there were, over layers, KV heads and steps: 1 where all was read */
};
LOAM_API enum loam_status loam_session_receipt(const struct loam_session *session,
                                               struct loam_receipt *receipt, struct loam_error *error);

/* ---- sequences: answers ---- */

/* Zeros: greedy. */
struct loam_sampling {
    float temperature;    /* 0: greedy */
    uint32_t top_k;       /* 0: off */
    float top_p;          /* 0 or 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 0 or 1: off */
    uint32_t repeat_last; /* tokens looked back at */
    uint64_t seed;        /* the same seed gives the same tokens */
};
LOAM_API struct loam_sampling loam_sampling_default(void); /* llama.cpp's, seed 0 */

/* sampling NULL: greedy.  LOAM_MEMORY: sequence_capacity of them are there. */
LOAM_API enum loam_status loam_sequence_create(struct loam_sequence **sequence, struct loam_session *session,
                                               const struct loam_sampling *sampling,
                                               struct loam_error *error);
LOAM_API void loam_sequence_destroy(struct loam_sequence *sequence);          /* NULL allowed */
LOAM_API uint64_t loam_sequence_length(const struct loam_sequence *sequence); /* tokens */

/* The whole text that a sequence is to answer: of what it holds, what begins like the prompt is kept. */
struct loam_prompt {
    struct loam_sequence *sequence;
    const int32_t *tokens;
    size_t token_count;
};

struct loam_generate_options {
    size_t size;
    uint64_t token_max; /* of each answer; 0: until the model ends it or the context is full */
    bool ignore_end;    /* goes on behind the model's end */
    size_t top_count;   /* likeliest tokens noted beside each one; at most 100 */
    void *context;      /* of text */
    /* Whole UTF-8 characters of the answer to prompts[index], as they come; true stops all answers.  NULL: none. */
    bool (*text)(void *context, size_t index, const char *bytes, size_t length);
};

/* Answers all prompts, one step for all of them.  A saved document that turns out to be damaged costs time and not the
 * answers: everything is computed anew, and told by `note`; other sequences of the session are then empty. */
LOAM_API enum loam_status loam_generate(struct loam_session *session, const struct loam_prompt *prompts,
                                        size_t prompt_count, const struct loam_generate_options *options,
                                        struct loam_error *error);

enum loam_stop {
    LOAM_STOP_NONE,        /* nothing was asked */
    LOAM_STOP_END,         /* the model ended its answer */
    LOAM_STOP_LENGTH,      /* token_max */
    LOAM_STOP_CONTEXT,     /* the context is full */
    LOAM_STOP_INTERRUPTED, /* a callback, or loam_session_cancel */
    LOAM_STOP_FAILED,
};

struct loam_likely_token {
    int32_t id; /* -1: there are no more */
    float log_probability;
};

/* The last answer of loam_generate. */
struct loam_answer {
    size_t size; /* set by the caller */
    enum loam_stop stop;
    const int32_t *tokens; /* an end token included; valid until the sequence is used again */
    size_t token_count;
    const struct loam_likely_token *top; /* [token_count][top_count]; NULL: not asked for */
    uint64_t reused_tokens;              /* of the sequence's first prompt: from a saved document */
};
LOAM_API enum loam_status loam_sequence_answer(const struct loam_sequence *sequence,
                                               struct loam_answer *answer, struct loam_error *error);

/* Token by token: appends tokens; samples the next token of each of several sequences of a session and appends it.
 * When stopped or failed, whole segments before that stay.  LOAM_USAGE: nothing was fed, or the context is full.
 * LOAM_DOCUMENT: a saved document is damaged; loam_generate recovers from that, these do not. */
LOAM_API enum loam_status loam_sequence_feed(struct loam_sequence *sequence, const int32_t *tokens,
                                             size_t token_count, struct loam_error *error);
LOAM_API enum loam_status loam_session_next(struct loam_session *session,
                                            struct loam_sequence *const *sequences, size_t sequence_count,
                                            int32_t *tokens, struct loam_error *error);
/* Forgets the tokens from length on; feed before the next sample. */
LOAM_API void loam_sequence_truncate(struct loam_sequence *sequence, uint64_t length);

/* ---- documents: KV that was saved in a folder ---- */

/* With disk_directory every prompt is saved as it is computed, and a prompt that begins like a saved one takes that KV
 * over.  Waits until what was fed is durable; LOAM_OK without a disk.  Failed: from there on nothing was saved. */
LOAM_API enum loam_status loam_sequence_save(struct loam_sequence *sequence, struct loam_error *error);

struct loam_document {
    uint64_t id, token_count, bytes;
    int64_t created, used;             /* seconds since 1970 */
    const char *name, *model, *layout; /* valid during the call */
    const char *damage;                /* what is wrong with it; NULL: nothing known */
    bool in_use;                       /* some process has it open */
};

/* Every document of a folder, oldest first; see returns true to stop. */
LOAM_API enum loam_status loam_documents_list(const char *directory,
                                              bool (*see)(void *context,
                                                          const struct loam_document *document),
                                              void *context, struct loam_error *error);
/* Opens one: a prompt that begins with its tokens takes its KV.  *count as in loam_tokenize. */
LOAM_API enum loam_status loam_document_tokens(const char *directory, uint64_t id, int32_t *ids,
                                               size_t capacity, size_t *count, struct loam_error *error);
/* LOAM_FAILED: some process has it open. */
LOAM_API enum loam_status loam_document_remove(const char *directory, uint64_t id, struct loam_error *error);
/* Reads all of it.  LOAM_DOCUMENT names what is damaged; it is flagged and not used any more. */
LOAM_API enum loam_status loam_document_verify(const char *directory, uint64_t id, struct loam_error *error);

#ifdef __cplusplus
}
#endif

#endif
