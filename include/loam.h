/* loam: runs GGUF language models with contexts that are larger than memory.
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
 * A model is a mapped file.  A session has a budget for KV, a method to read it, and optionally a folder to save it.  A
 * sequence is a list of tokens with their KV.  docs/library.md explains; examples/ has programs.
 *
 * Every function that can fail returns a status and fills *error (may be NULL); an object to be created is then NULL.
 * The library never prints and never exits.  A model file that changes or is cut short while it is mapped is
 * LOAM_BAD_MODEL of the next call that computes; for that the first model installs a handler of SIGBUS, which leaves
 * faults elsewhere to the handler that was there.
 *
 * A NULL that a function cannot use is LOAM_USAGE, with the argument's name; functions without a status return "", 0 or
 * NULL for it.
 *
 * Option structs: zeros are the defaults, and so is NULL instead of the struct.  Set `size` to the struct's sizeof:
 * later versions can then add members.  Texts need not outlive the call unless stated.  Sizes are in bytes.
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
    LOAM_USAGE = 2, /* an invalid argument, or more tokens than the context holds */
    LOAM_BAD_MODEL = 3,
    LOAM_DOCUMENT = 4, /* a saved document is damaged or cannot be used */
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
    size_t thread_count;  /* 0: one per processor, unless the first session's preset "auto" chooses fewer */
    const char *cpu_mask; /* "ref", "avx2", "avx512", "amx", "neon", "all"; NULL: all but amx */
    bool force_pre;       /* accept a pre-tokenizer that loam does not know */
    /* Weights in RAM; the others are read from the model file for each pass.  0: all are mapped, unless the first
     * session's preset "auto" chooses less; by default it does where they are larger than the memory.  UINT64_MAX:
     * all. */
    uint64_t weights_host_bytes;
    /* "cpu"; "cuda", NVIDIA's first card, or "cuda:N" (docs/cuda.md has the presets that run there); "auto": the first
     * card whose free memory holds the weights, else cpu.  NULL: cpu. */
    const char *device;
    /* Weights of the last so many layers in the card's memory; it reads the others in RAM, over its bus.  0: all. */
    size_t device_layers;
    /* The context of a model whose file scales no positions becomes so many tokens, by YaRN: --rope-scaling yarn -c N.
     * Answers get worse, those to short texts too; documents that are saved with it are its own.  0: as the file says.
     * LOAM_USAGE: the file has a scaling, or as many tokens already. */
    uint64_t yarn_context;
};

LOAM_API enum loam_status loam_model_open(struct loam_model **model, const char *path,
                                          const struct loam_model_options *options, struct loam_error *error);
LOAM_API void loam_model_close(struct loam_model *model); /* destroy its sessions first; NULL allowed */
LOAM_API const char *loam_model_name(const struct loam_model *model);
/* In tokens, as trained or stretched. */
LOAM_API uint64_t loam_model_context_length(const struct loam_model *model);
/* Weights that each pass reads from the file, of experts what a pass that uses all of them may read; 0: all are in RAM,
 * or mapped. */
LOAM_API uint64_t loam_model_pass_bytes(const struct loam_model *model);
LOAM_API size_t loam_model_vocabulary_size(const struct loam_model *model);

enum loam_tokenize_flags {
    LOAM_TOKENIZE_BEGIN = 1,   /* adds BOS (and EOS) if the model expects them around a text */
    LOAM_TOKENIZE_CONTROL = 2, /* the text of a control token becomes that token; unsafe for user text */
};

/* Tokenizes text[length].  *count: number of tokens; at most capacity of them are written to ids.  flags: enum
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

/* Tokenizes a conversation in the model's chat template, ready for the assistant's answer.  Nothing in a text becomes a
 * control token.  Put a long document at the beginning of the first user message: all questions about it then share its
 * KV.  template_name: "chatml", "llama3", ...; NULL: the model's.  LOAM_FAILED: the model has none. */
LOAM_API enum loam_status loam_chat_tokens(const struct loam_model *model, const char *template_name,
                                           const struct loam_message *messages, size_t message_count,
                                           int32_t *ids, size_t capacity, size_t *count,
                                           struct loam_error *error);

/* UTF-8.  The library reads no files: what a PDF, an EPUB or a page says is its caller's to find (`loam run -f` does).
 * A form feed ends a page, as pdftotext writes it. */
struct loam_text {
    const char *bytes; /* [length]; NULL: there is none */
    size_t length;
};

/* Documents and a question about them, as in `loam run -f a -f b -p QUESTION`: in the model's chat template, or as raw
 * text if the model has none.  Documents come first, so all questions about them begin with the same tokens. */
struct loam_question {
    size_t size;
    const struct loam_text *documents; /* [document_count] */
    size_t document_count;
    struct loam_text question, system;
    const char *template_name; /* NULL: the model's, if it has one */
    bool raw;                  /* no template: the model continues the text */
};
LOAM_API enum loam_status loam_question_tokens(const struct loam_model *model,
                                               const struct loam_question *question, int32_t *ids,
                                               size_t capacity, size_t *count, struct loam_error *error);

/* Writes at most capacity bytes of one token's text, not zero-terminated.  Returns the text's length. */
LOAM_API size_t loam_token_text(const struct loam_model *model, int32_t token, char *buffer, size_t capacity);
LOAM_API bool loam_token_is_end(const struct loam_model *model, int32_t token); /* ends an answer */

/* ---- sessions: memory, disk and selection ---- */

enum loam_kv_type { LOAM_KV_F16, LOAM_KV_Q8 };

/* As many sequences as preset "auto" chooses, for the most tokens a second of all together. */
#define LOAM_SEQUENCES_AUTO ((size_t)-1)

/* How the suffix of a prompt, its tokens behind a saved document, attends.  DEFAULT, DENSE: to everything, so that an
 * answer does not depend on what is saved.  SELECT: by the preset, as answers do.  AUTO: whichever reads less. */
enum loam_suffix { LOAM_SUFFIX_DEFAULT, LOAM_SUFFIX_DENSE, LOAM_SUFFIX_SELECT, LOAM_SUFFIX_AUTO };

struct loam_session_options {
    size_t size;
    uint64_t context_size;    /* tokens per sequence; 0: the model's, or what the budget holds */
    size_t sequence_capacity; /* max sequences at once, up to 64; 0: 1; or LOAM_SEQUENCES_AUTO */
    size_t batch_size;        /* tokens of a prefill block; 0: 512 */
    /* Tokens of a prompt that become durable together, in whole blocks; 0: up to 8,192. */
    size_t segment_size;
    enum loam_kv_type k_type, v_type;

    /* Which parts of the context a sampled token reads: the command line's options of these names
     * (docs/command_line.md).  Prompt tokens attend to everything. */
    /* "full", "flexgen", "kvpr", "meanstd", "hata", "leoam", "clo".  "auto": what is quickest on this machine
     * (docs/planner.md), exact unless set is "loss=SHARE" or "kld=NATS"; the first such session on a machine measures
     * it, for some five seconds.  The first session of a model also chooses its threads and weights, where the model's
     * options are 0.  NULL: auto, which is full, and measures nothing, unless set is such a loss; full where set or
     * keep change anything else. */
    const char *preset;
    const char *set;  /* changes to the preset, "select=meanstd,bits=256,dense=0"; NULL: none */
    const char *keep; /* "2048", "8K", "10%" of the tokens, per KV head; NULL: the preset's */

    /* Budgets for KV; 0: none.  On a CPU both are the same memory and are added.  Without a disk the context must fit;
     * with a disk, the KV that exceeds the budget is there. */
    uint64_t kv_device_bytes, kv_host_bytes;
    /* Prompts are saved in this folder and opened again.  Created if it is missing.  NULL: none. */
    const char *disk_directory;
    uint64_t disk_bytes;       /* max size of the folder; 0: no limit */
    const char *document_name; /* a name for people, given to what is saved; NULL: none */
    /* Tokens of prompt and answer, if known.  In a read-only folder a prompt is rejected early if RAM cannot hold them.
     */
    uint64_t wanted_tokens;
    enum loam_suffix suffix;

    /* A file for a timeline of the work (Chrome's trace events).  It is complete after loam_session_destroy, which
     * reports a failure by note.  NULL: none. */
    const char *trace_path;

    void *context; /* passed to the callbacks; each callback may be NULL */
    /* Called during a prefill: done of total tokens.  true stops it; the sequence keeps its complete segments. */
    bool (*progress)(void *context, uint64_t done, uint64_t total);
    bool (*cancels)(void *context);                /* called before every step; true stops */
    void (*note)(void *context, const char *line); /* a line for the user: why a document was not used, ... */

    /* RAM for KV and weights together, which preset "auto" divides; 0: 15/16 of what the system has available. */
    uint64_t memory_bytes;
};

LOAM_API enum loam_status loam_session_create(struct loam_session **session, struct loam_model *model,
                                              const struct loam_session_options *options,
                                              struct loam_error *error);
/* Destroy its sequences first.  NULL allowed. */
LOAM_API void loam_session_destroy(struct loam_session *session);
LOAM_API uint64_t loam_session_context_size(const struct loam_session *session);
LOAM_API size_t loam_session_sequence_capacity(const struct loam_session *session);
LOAM_API size_t loam_session_thread_count(const struct loam_session *session); /* the model's */
/* A line for the user about a fallback of the selection (random hash codes, because there is no calibration beside the
 * model); NULL: none. */
LOAM_API const char *loam_session_note(const struct loam_session *session);
/* Stops the running call of the session, which returns LOAM_INTERRUPTED. */
LOAM_API void loam_session_cancel(struct loam_session *session);

/* What a session has done since it was created. */
struct loam_receipt {
    size_t size;             /* set by the caller */
    uint64_t prefill_tokens; /* computed */
    uint64_t reused_tokens;  /* taken from saved documents, not computed */
    uint64_t decode_tokens;
    /* wait_seconds: idle time, waiting for the disk. */
    double prefill_seconds, decode_seconds, wait_seconds;
    uint64_t read_bytes, read_pages, write_bytes; /* disk traffic */
    uint64_t cache_hits, cache_misses;            /* needed chunks that were in RAM, and that were not */
    uint64_t host_bytes;                          /* max RAM so far for KV, key index, tables and buffers */
    /* Tokens read / tokens in the context, over layers, KV heads and steps; 1: all were read. */
    double kept_ratio;
    /* With set="receipt=1": the share of the attention that was left out, estimated from a sample of the keys: the
     * mean over query heads of layers and steps that chose, its error, the largest mean of a step, and the largest of a
     * head.  left_out_count 0: nothing was estimated.  mass_caught_min: 0, as only loam-lab bounds it. */
    uint64_t left_out_count;
    double left_out, left_out_error, left_out_worst_step, left_out_worst_head;
    double mass_caught_min;
};
LOAM_API enum loam_status loam_session_receipt(const struct loam_session *session,
                                               struct loam_receipt *receipt, struct loam_error *error);

/* ---- sequences: answers ---- */

struct loam_token_bias {
    int32_t id;
    float bias; /* added to the token's logit; -INFINITY: the token is never sampled */
};

/* Zeros: greedy. */
struct loam_sampling {
    float temperature;    /* 0: greedy */
    uint32_t top_k;       /* 0: off */
    float top_p;          /* 0 or 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 0 or 1: off */
    uint32_t repeat_last; /* tokens looked back at */
    uint64_t seed;        /* the same seed gives the same tokens */
    /* Subtracted from the logit of a token that occurs n > 0 times among those looked back at: presence_penalty +
     * n * frequency_penalty.  0: off */
    float presence_penalty, frequency_penalty;
    const struct loam_token_bias *biases; /* [bias_count], copied */
    size_t bias_count;
};
LOAM_API struct loam_sampling loam_sampling_default(void); /* llama.cpp's defaults, seed 0 */

/* sampling NULL: greedy.  LOAM_MEMORY: the session already has sequence_capacity sequences. */
LOAM_API enum loam_status loam_sequence_create(struct loam_sequence **sequence, struct loam_session *session,
                                               const struct loam_sampling *sampling,
                                               struct loam_error *error);
LOAM_API void loam_sequence_destroy(struct loam_sequence *sequence);          /* NULL allowed */
LOAM_API uint64_t loam_sequence_length(const struct loam_sequence *sequence); /* tokens */

/* The whole text for a sequence to continue.  The sequence keeps the KV of the prefix it shares with the prompt. */
struct loam_prompt {
    struct loam_sequence *sequence;
    const int32_t *tokens;
    size_t token_count;
};

struct loam_generate_options {
    size_t size;
    uint64_t token_max; /* per answer; 0: until the model ends it or the context is full */
    bool ignore_end;    /* continues behind the model's end token */
    size_t top_count;   /* likeliest tokens recorded for each sampled one; max 100 */
    void *context;      /* passed to text */
    /* Called with whole UTF-8 characters of the answer to prompts[index], as they are sampled.  true stops all answers.
     * NULL: none. */
    bool (*text)(void *context, size_t index, const char *bytes, size_t length);
    /* [stop_count]: an answer ends before the first of these strings in its text.  The tokens that spell it stay in the
     * answer. */
    const char *const *stops;
    size_t stop_count;
    /* A JSON Schema: each answer is JSON that is valid against it, unless token_max cuts it.  A keyword that loam does
     * not know is LOAM_USAGE.  NULL: any text. */
    const char *json_schema;
};

/* Answers all prompts, one step for all of them at a time.  If a saved document turns out to be damaged, everything is
 * recomputed: that costs time, not the answers.  `note` reports it, and other sequences of the session are then empty.
 */
LOAM_API enum loam_status loam_generate(struct loam_session *session, const struct loam_prompt *prompts,
                                        size_t prompt_count, const struct loam_generate_options *options,
                                        struct loam_error *error);

enum loam_stop {
    LOAM_STOP_NONE,        /* no answer was generated */
    LOAM_STOP_END,         /* the model ended its answer */
    LOAM_STOP_LENGTH,      /* token_max was reached */
    LOAM_STOP_CONTEXT,     /* the context is full */
    LOAM_STOP_INTERRUPTED, /* a callback or loam_session_cancel stopped it */
    LOAM_STOP_FAILED,
    LOAM_STOP_STRING, /* the answer's text reached a stop string */
    LOAM_STOP_LOOP,   /* the answer repeats 1 to 128 tokens without end; not with ignore_end */
};

struct loam_likely_token {
    int32_t id; /* -1: no more tokens */
    float log_probability;
};

/* The last answer of loam_generate. */
struct loam_answer {
    size_t size; /* set by the caller */
    enum loam_stop stop;
    const int32_t *tokens; /* with the end token, if any; valid until the sequence is used again */
    size_t token_count;
    const struct loam_likely_token *top; /* [token_count][top_count]; NULL: top_count was 0 */
    uint64_t reused_tokens;              /* tokens of the first prompt taken from a saved document */
};
LOAM_API enum loam_status loam_sequence_answer(const struct loam_sequence *sequence,
                                               struct loam_answer *answer, struct loam_error *error);

/* Generation token by token.  feed appends tokens.  next samples a token for each of several sequences of a session and
 * appends it.  A stop or failure keeps the complete segments before it.  LOAM_USAGE: nothing was fed, or the context is
 * full.  LOAM_DOCUMENT: a saved document is damaged; loam_generate recovers from this, these two do not. */
LOAM_API enum loam_status loam_sequence_feed(struct loam_sequence *sequence, const int32_t *tokens,
                                             size_t token_count, struct loam_error *error);
LOAM_API enum loam_status loam_session_next(struct loam_session *session,
                                            struct loam_sequence *const *sequences, size_t sequence_count,
                                            int32_t *tokens, struct loam_error *error);
/* Keeps the first length tokens and drops the rest.  Feed before the next sample.  Where layers of the model keep a
 * state (lfm2, qwen35 and those like them), or attend to windows (gemma3, gpt-oss), it keeps as many as a state or the
 * windows are there for, which loam_sequence_length then says: feed those behind again. */
LOAM_API void loam_sequence_truncate(struct loam_sequence *sequence, uint64_t length);

/* ---- documents: KV saved in a folder ---- */

/* Waits until all tokens fed so far are durable; LOAM_OK without a disk.  On failure nothing is saved from that point
 * on.  With disk_directory every prompt is saved as it is computed, and a prompt that shares a saved prefix reuses its
 * KV. */
LOAM_API enum loam_status loam_sequence_save(struct loam_sequence *sequence, struct loam_error *error);

struct loam_document {
    uint64_t id, token_count, bytes;
    int64_t created, used;             /* seconds since 1970 */
    const char *name, *model, *layout; /* valid during the call */
    const char *damage;                /* a description of known damage; NULL: none known */
    bool in_use;                       /* a process has it open */
    bool is_other;                     /* of a version that this loam does not read: it is not used, and stays */
};

/* Calls see for every document of a folder, oldest first; true stops. */
LOAM_API enum loam_status loam_documents_list(const char *directory,
                                              bool (*see)(void *context,
                                                          const struct loam_document *document),
                                              void *context, struct loam_error *error);
/* Reads a document's tokens: a prompt that begins with them reuses its KV.  *count as in loam_tokenize. */
LOAM_API enum loam_status loam_document_tokens(const char *directory, uint64_t id, int32_t *ids,
                                               size_t capacity, size_t *count, struct loam_error *error);
/* LOAM_FAILED: a process has it open. */
LOAM_API enum loam_status loam_document_remove(const char *directory, uint64_t id, struct loam_error *error);
/* Reads and checks the whole document.  LOAM_DOCUMENT: the message names the damage; the document is flagged and no
 * longer used. */
LOAM_API enum loam_status loam_document_verify(const char *directory, uint64_t id, struct loam_error *error);

#ifdef __cplusplus
}
#endif

#endif
