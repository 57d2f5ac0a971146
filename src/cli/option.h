/* option: one table of every option of every command.
 *
 * Parsing, `--help`, the LOAM_ARG_* environment, the nearest name for a typo, the manual page, the lists in docs/ and
 * the completions of shells all come from option_table: an option exists because it has a row.  Names are llama.cpp's
 * where they exist.
 *
 *   argument beats environment beats the row's default.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/size.h"
#include "base/status.h"

enum command_id {
    COMMAND_RUN,
    COMMAND_CHAT,
    COMMAND_SERVE,
    COMMAND_BATCH,
    COMMAND_EXPLAIN,
    COMMAND_BENCH,
    COMMAND_INSPECT,
    COMMAND_TOKENIZE,
    COMMAND_DETOKENIZE,
    COMMAND_IMPORT,
    COMMAND_PLAN,
    COMMAND_LS,
    COMMAND_SHOW,
    COMMAND_RM,
    COMMAND_VERIFY,
    COMMAND_EXPORT,
    COMMAND_PULL,
    COMMAND_MODELS,
    COMMAND_DEVICES,
    COMMAND_HELP,
    COMMAND_VERSION,
    /* Of loam-lab; here as they share options with loam's. */
    COMMAND_PERPLEXITY,
    COMMAND_EVAL,
    COMMAND_QUANTIZE,
    COMMAND_CALIBRATE,
    COMMAND_TRACE,
    COMMAND_COUNT
};

enum option_id {
    OPTION_MODEL,
    OPTION_PROMPT,
    OPTION_FILE,
    OPTION_ENCODING,
    OPTION_IDS,
    OPTION_SYSTEM,
    OPTION_RAW,
    OPTION_PREDICT,
    OPTION_IGNORE_EOS,
    OPTION_DRAFT_MAX,
    OPTION_SPECIAL,
    OPTION_BOS,
    OPTION_CHAT_TEMPLATE,
    OPTION_REASONING,
    OPTION_FORCE_PRE,
    OPTION_CONTEXT,
    OPTION_ROPE_SCALING,
    OPTION_BATCH,
    OPTION_UBATCH,
    OPTION_THREADS,
    OPTION_PARALLEL,
    OPTION_CACHE_K,
    OPTION_CACHE_V,
    OPTION_CPU_MASK,
    OPTION_DEVICE,
    OPTION_GPU_LAYERS,
    OPTION_WEIGHTS_HOST,
    OPTION_KV_DEVICE,
    OPTION_KV_HOST,
    OPTION_KV_DISK,
    OPTION_READ_LIMIT,
    OPTION_SEGMENT,
    OPTION_SUFFIX,
    OPTION_PRESET,
    OPTION_SET,
    OPTION_KEEP,
    OPTION_LOSS,
    OPTION_KLD,
    OPTION_RECEIPT,
    OPTION_MACHINE,
    OPTION_MEASURE,
    OPTION_MEASURE_DISK,
    OPTION_SEED,
    OPTION_TEMPERATURE,
    OPTION_TOP_K,
    OPTION_TOP_P,
    OPTION_MIN_P,
    OPTION_REPEAT_PENALTY,
    OPTION_PRESENCE_PENALTY,
    OPTION_FREQUENCY_PENALTY,
    OPTION_REPEAT_LAST,
    OPTION_LOGIT_BIAS,
    OPTION_STOP,
    OPTION_JSON_SCHEMA,
    OPTION_JSON_SCHEMA_FILE,
    OPTION_BENCH_PROMPT,
    OPTION_BENCH_GENERATE,
    OPTION_BENCH_BOTH,
    OPTION_BENCH_DEPTH,
    OPTION_BENCH_PARALLEL,
    OPTION_REPETITIONS,
    OPTION_FILL_RANDOM,
    OPTION_REPLAY,
    OPTION_FLOOR,
    OPTION_NO_WARMUP,
    OPTION_OUTPUT,
    OPTION_HOST,
    OPTION_PORT,
    OPTION_API_KEY,
    OPTION_API_KEY_FILE,
    OPTION_SHARED_DOCUMENTS,
    OPTION_CORS_ORIGINS,
    OPTION_ADDRESS_CONNECTIONS,
    OPTION_ALIAS,
    OPTION_EXPLAIN_SPANS,
    OPTION_BATCH_INPUT,
    OPTION_BATCH_OUTPUT,
    OPTION_VLLM_METRICS,
    OPTION_LOG,
    OPTION_IDLE_UNLOAD,
    OPTION_FORCE,
    OPTION_SHA256,
    OPTION_JSON_FILE,
    OPTION_TRACE,
    OPTION_JSON,
    OPTION_TOP_LOGPROBS,
    OPTION_QUIET,
    OPTION_VERBOSE,
    OPTION_AS,
    OPTION_HELP,
    OPTION_COUNT,
    OPTION_LIMIT = OPTION_COUNT + 32 /* those behind OPTION_COUNT are a program's own */
};

enum { ROPE_BY_FILE, ROPE_BY_YARN }; /* choices of OPTION_ROPE_SCALING */

enum argument_kind {
    ARGUMENT_NONE,    /* a flag */
    ARGUMENT_TEXT,    /* any text */
    ARGUMENT_TEXTS,   /* any text; given again, it is appended after a comma */
    ARGUMENT_FILES,   /* any text; given again, it is one more */
    ARGUMENT_WORD,    /* one of `choices` */
    ARGUMENT_WORDS,   /* several of `choices`, by comma */
    ARGUMENT_COUNT,   /* an unsigned number; takes K, M, G (1024) */
    ARGUMENT_COUNTS,  /* several, by comma */
    ARGUMENT_INTEGER, /* a signed number; takes K, M, G */
    ARGUMENT_NUMBER,  /* a real number */
};

enum option_group {
    GROUP_INPUT,
    GROUP_OUTPUT,
    GROUP_MACHINE,
    GROUP_CACHE,
    GROUP_SAMPLING,
    GROUP_TEST,
    GROUP_GENERAL,
    GROUP_COUNT
};

struct option_spec {
    unsigned id;            /* an enum option_id, or a program's own */
    const char *name;       /* "--name"; LOAM_ARG_NAME in the environment */
    const char *short_name; /* "-ub"; NULL: none */
    const char *alias;      /* a second long name; NULL: none */
    enum argument_kind kind;
    const char *argument;     /* what help calls the argument: "FILE" */
    const char *default_text; /* parsed like an argument; NULL: not given */
    const char *choices;      /* "f16|q8_0", for words; of a count: those that stand for no bound */
    double min, max;          /* of numbers; both 0: any */
    uint32_t commands;        /* bits 1 << enum command_id */
    uint32_t lists;           /* those of them that take several values, by comma */
    enum option_group group;  /* the heading in help */
    /* Of files, for output_check.h: as what the file is written ("--json"), or read ("the questions"). */
    const char *writes, *reads;
    const char *help; /* one line or more, wrapped when printed; {presets}, {settings}: from their tables */
};

extern const struct option_spec option_table[]; /* loam's */
extern const size_t option_table_count;

enum option_source { SOURCE_DEFAULT, SOURCE_ENVIRONMENT, SOURCE_ARGUMENT };

enum { OPTION_LIST_MAX = 64 };

struct option_value {
    bool present; /* from any source */
    enum option_source source;
    const char *text;                   /* borrowed: argv, the environment, the table, or joined */
    char *joined;                       /* owned */
    const char *texts[OPTION_LIST_MAX]; /* of ARGUMENT_FILES: [list_count] borrowed; text is the first */
    union {
        uint64_t count;
        int64_t integer;
        double number;
    };
    uint64_t list[OPTION_LIST_MAX]; /* numbers, or indices into choices */
    size_t list_count;
};

struct command;
struct program;

struct options {
    const struct program *program; /* whose command line it is */
    const struct command *command; /* the one of this command line */
    struct option_value values[OPTION_LIMIT];
    const char **positionals; /* [positional_count], owned array of borrowed texts */
    size_t positional_count;
};

/* argv[0] is the command's name.  STATUS_USAGE with one
 * line that names the option and, for a typo, the nearest one. */
enum status options_parse(struct options *options, const struct program *program, enum command_id id, int argc,
                          char *const *argv, struct error *error) STATUS_CHECKED;
void options_deinit(struct options *options);

/* Reading.  Asking a kind of value that the row does not have is a bug. */
bool option_flag(const struct options *options, unsigned id);
bool option_given(const struct options *options, unsigned id);       /* argument or environment */
const char *option_text(const struct options *options, unsigned id); /* NULL: absent */
/* All that were given; of an option that takes only one, that one. */
size_t option_texts(const struct options *options, unsigned id, const char *texts[OPTION_LIST_MAX]);
uint64_t option_count(const struct options *options, unsigned id);
int64_t option_integer(const struct options *options, unsigned id);
double option_number(const struct options *options, unsigned id);
const struct option_value *option_list(const struct options *options, unsigned id);

/* The environment's name of an option: "LOAM_ARG_CTX_SIZE". */
const char *option_environment_name(const struct option_spec *spec, char *buffer, size_t buffer_bytes);

/* Edits (insert, delete, replace, swap neighbours) between two words of at most 63 characters. */
size_t edit_distance(const char *a, const char *b);
