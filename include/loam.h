/* loam: run a GGUF language model from C.
 *
 *   struct loam_error error;
 *   struct loam_model *model;
 *   struct loam_session *session;
 *   loam_model_open(&model, "model.gguf", NULL, &error);
 *   loam_session_create(&session, model, NULL, &error);
 *   loam_session_feed(session, ids, count, &error);
 *   while (loam_session_next(session, &token, &error) == LOAM_OK && !loam_token_is_end(model, token)) ...
 *
 * Every function that can fail returns a status and fills *error (NULL: not wanted); what it was to make is
 * then NULL.  The library never prints and never exits, but for a model file that is truncated while it is
 * mapped.  Thread: one at a time for a model and all its sessions; different models are independent.
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
    LOAM_INTERRUPTED = 130,
};

struct loam_error {
    enum loam_status status;
    char message[400]; /* one line */
};

struct loam_model;   /* a mapped model file and the device it runs on */
struct loam_session; /* one sequence of tokens with its KV cache and sampler */

struct loam_model_options {
    size_t thread_count;  /* 0: one per processor */
    const char *cpu_mask; /* "ref", "avx2", "avx512", "amx", "neon", "all"; NULL: all */
    bool force_pre;       /* accept a pre-tokenizer that loam does not know */
};

struct loam_session_options {
    uint64_t context_size; /* tokens; 0: the model's */
    size_t batch_size;     /* tokens of a prefill block; 0: 512 */
    bool q8_kv;            /* K and V as int8 instead of half precision; or set = "codec=q8" */
    /* What sampled tokens attend to, as the command line's options of these names (docs/command_line.md); tokens that
     * are fed attend to everything.  The texts are not needed after loam_session_create. */
    const char *preset;   /* "full", "streaming", "quest", "hata", "h2o", "infinigen", "leoam"; NULL: full */
    const char *set;      /* "select=meanstd,bits=256,dense=0": axes and numbers changed; NULL: none */
    const char *keep;     /* "2048", "8K", "10%" of the tokens, per KV head; NULL: the preset's */
    float temperature;    /* 0: greedy */
    uint32_t top_k;       /* 0: off */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off */
    uint32_t repeat_last;
    uint64_t seed;
    /* True stops a feed; of a long prompt multiples of some thousand tokens stay.  NULL: none */
    bool (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
};

LOAM_API struct loam_model_options loam_model_options_default(void);
LOAM_API struct loam_session_options loam_session_options_default(void); /* llama.cpp's sampling, seed 0 */

/* options NULL: the defaults. */
LOAM_API enum loam_status loam_model_open(struct loam_model **model, const char *path,
                                          const struct loam_model_options *options, struct loam_error *error);
LOAM_API void loam_model_close(struct loam_model *model); /* after its sessions; NULL allowed */
LOAM_API const char *loam_model_name(const struct loam_model *model);
LOAM_API uint64_t loam_model_context_length(const struct loam_model *model); /* trained tokens */
LOAM_API size_t loam_model_vocabulary_size(const struct loam_model *model);

/* Ids of text[length]: *count is how many there are, of which at most capacity are written to ids.
 * add_special puts BOS where the model wants it; control tokens in the text are only text. */
LOAM_API enum loam_status loam_tokenize(const struct loam_model *model, const char *text, size_t length,
                                        bool add_special, int32_t *ids, size_t capacity, size_t *count,
                                        struct loam_error *error);
/* The bytes of one token, not zero-terminated: returns how many, writes at most capacity. */
LOAM_API size_t loam_token_text(const struct loam_model *model, int32_t token, char *buffer, size_t capacity);
LOAM_API bool loam_token_is_end(const struct loam_model *model, int32_t token); /* ends an answer */

LOAM_API enum loam_status loam_session_create(struct loam_session **session, struct loam_model *model,
                                              const struct loam_session_options *options,
                                              struct loam_error *error);
LOAM_API void loam_session_destroy(struct loam_session *session); /* NULL allowed */
/* Appends tokens.  When stopped or failed, whole blocks before that stay in the session. */
LOAM_API enum loam_status loam_session_feed(struct loam_session *session, const int32_t *tokens, size_t count,
                                            struct loam_error *error);
/* Samples the next token and appends it.  LOAM_USAGE before anything was fed, or when the context is full. */
LOAM_API enum loam_status loam_session_next(struct loam_session *session, int32_t *token,
                                            struct loam_error *error);
/* Tokens read of those there were, over the layers and KV heads of the steps so far: 1 where all was read. */
LOAM_API double loam_session_kept_ratio(const struct loam_session *session);
/* What the selection could not have, and what was taken instead (random hash codes for want of a calibration beside the
 * model), a line for the user; NULL: nothing. */
LOAM_API const char *loam_session_note(const struct loam_session *session);
LOAM_API uint64_t loam_session_length(const struct loam_session *session); /* tokens fed and sampled */
/* Forgets the tokens from length on; feed before the next sample. */
LOAM_API void loam_session_truncate(struct loam_session *session, uint64_t length);

LOAM_API const char *loam_version(void);

#ifdef __cplusplus
}
#endif

#endif
