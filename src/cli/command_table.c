/* The commands, in the order of help. */
#include "cli/command.h"

const struct command command_table[COMMAND_COUNT] = {
    [COMMAND_RUN] =
        {.id = COMMAND_RUN,
         .name = "run",
         .usage = "[-m MODEL] [-f FILE] [-p TEXT] [options]",
         .summary = "ask a model about documents, or complete a text",
         .description = "With a model that has a chat template, each -f is a document and -p the question about them.  "
                        "With --raw, or a model without a template, continues their text (or the tokens of --ids).  "
                        "Streams the answer to standard output.  Ctrl-C stops it, a second one leaves at once.",
         .run = run_command},
    [COMMAND_CHAT] = {.id = COMMAND_CHAT,
                      .name = "chat",
                      .usage = "[-m MODEL] [-f FILE] [options]",
                      .summary = "talk with a model, also about documents",
                      .description =
                          "Asks for a line and answers it, turn by turn; a turn prefills only what is new.  "
                          "Where standard input is no terminal every line of it is a turn.  /help lists what "
                          "else can be typed.  Ctrl-C stops an answer, twice leaves.",
                      .run = chat_command},
    [COMMAND_SERVE] =
        {.id = COMMAND_SERVE,
         .name = "serve",
         .usage = "[-m MODEL] [--port PORT] [--api-key KEY] [options]",
         .summary = "answer requests of OpenAI's and Anthropic's clients over HTTP",
         .description =
             "Listens on --host and --port and answers /v1/chat/completions, /v1/completions, /v1/messages, "
             "/v1/responses and llama-server's own routes; docs/server.md describes them.  Requests are answered "
             "together, up to -np at once.  With --kv-disk, prompts and answers are saved, and what was read "
             "once is not read again.  Ctrl-C or SIGTERM ends it once running requests are answered, at the "
             "latest after 30 s; a second one leaves at once.",
         .run = serve_command},
    [COMMAND_BATCH] = {.id = COMMAND_BATCH,
                       .name = "batch",
                       .usage = "-i REQUESTS -o ANSWERS [-m MODEL] [options]",
                       .summary = "answer a file of requests, many at once",
                       .description =
                           "Requests and answers are lines of JSON as in OpenAI's batches; the routes are those of "
                           "serve.  After Ctrl-C or a kill the same command goes on: a request that has an answer is "
                           "not asked again.  A request that is refused has an answer with the error; one that failed "
                           "for another reason has none, and exit code 1 says so.  With --weights-host the model may "
                           "be larger than RAM.",
                       .run = batch_command},
    [COMMAND_EXPLAIN] =
        {.id = COMMAND_EXPLAIN,
         .name = "explain",
         .usage = "-f FILE -p TEXT [-m MODEL] [options]",
         .summary = "answer a question, and show the sentences that the answer attended to",
         .description =
             "Answers as run does, with full attention and all KV in RAM, and adds up the attention that the "
             "answer's tokens gave to each sentence of the documents.  Shows those that got most compared with what "
             "is usual at their place.  Attention says what was read, not why.",
         .run = explain_command},
    [COMMAND_BENCH] = {.id = COMMAND_BENCH,
                       .name = "bench",
                       .usage = "[-m MODEL] [options]",
                       .summary = "measure prefill and decode speed",
                       .description =
                           "The tests of llama-bench: ppN prefills N tokens, tgN decodes N, both at each depth -d, and "
                           "-npl decodes several sequences together.  Lists are by comma; every combination of -t, -b, "
                           "-ub, -ctk and -ctv is run.  Mean and standard deviation of -r repetitions.",
                       .run = bench_command},
    [COMMAND_INSPECT] =
        {.id = COMMAND_INSPECT,
         .name = "inspect",
         .usage = "[FILE] [--json]",
         .summary = "what a model file holds, and the memory that running it takes",
         .description =
             "Prints the metadata and the tensors of a GGUF file (one with only a vocabulary works too), the "
             "bytes of KV cache per token, and the memory that 8K, 32K, 128K and 1M tokens of context need.",
         .positionals_max = 1,
         .run = inspect_command},
    [COMMAND_TOKENIZE] = {.id = COMMAND_TOKENIZE,
                          .name = "tokenize",
                          .usage = "[-m MODEL] [-f FILE] [-p TEXT] [--json]",
                          .summary = "text to token ids",
                          .description = "Prints each token's id and text, or with --json {\"ids\":[...]}.  "
                                         "A GGUF file that holds only a vocabulary is enough.",
                          .run = tokenize_command},
    [COMMAND_DETOKENIZE] = {.id = COMMAND_DETOKENIZE,
                            .name = "detokenize",
                            .usage = "[-m MODEL] [--ids LIST | -f FILE]",
                            .summary = "token ids to text",
                            .description =
                                "Prints the text of the ids, byte for byte.  Of a file every number is read "
                                "and the rest skipped, so that the output of `loam tokenize --json` will do.",
                            .run = detokenize_command},
    [COMMAND_IMPORT] =
        {.id = COMMAND_IMPORT,
         .name = "import",
         .usage = "FILE --kv-disk DIR",
         .summary = "an exported document into a folder of saved documents",
         .description =
             "A document that loam export wrote becomes one of that folder, and prompts that begin like it do "
             "not compute it.  FILE is checked before anything is stored.  (A Hugging Face folder becomes a GGUF "
             "file by loam-lab import.)",
         .positionals_min = 1,
         .positionals_max = 2,
         .run = import_command},
    [COMMAND_PLAN] =
        {.id = COMMAND_PLAN,
         .name = "plan",
         .usage = "[-m MODEL] [-c N] [--kv-host SIZE] [--kv-disk DIR] [options]",
         .summary = "which settings are the quickest for a model, a context and a machine",
         .description =
             "Predicts every preset that fits the budgets from what this machine was measured to do, and "
             "prints the choice, the next five, what each tier holds, seconds to the first token, tokens a "
             "second, and what they are limited by.  The first time it measures what the model uses, for "
             "some seconds, and keeps the figures in $XDG_CACHE_HOME/loam/machine.json (or ~/.cache); "
             "--measure does it again, without -m for all models; --machine FILE plans for another machine.  "
             "The choice is exact unless a loss is allowed.  Only the model's header is read.",
         .run = plan_command},
    [COMMAND_LS] = {.id = COMMAND_LS,
                    .name = "ls",
                    .usage = "--kv-disk DIR [--json]",
                    .summary = "list the saved documents",
                    .description = "Every document in the folder, oldest first: number, name, tokens, bytes "
                                   "on disk, when it was last opened, whether it is ready, in use, damaged "
                                   "or empty (nothing committed yet), and the model that computed it.  Below "
                                   "them, how many conversations of the server's page the folder keeps.",
                    .run = ls_command},
    [COMMAND_SHOW] = {.id = COMMAND_SHOW,
                      .name = "show",
                      .usage = "ID --kv-disk DIR [--json]",
                      .summary = "all that is known of a saved document",
                      .description = "What ls prints, with the reason where it is damaged, the number of "
                                     "commits, the layout of its pages and the model's fingerprint.",
                      .positionals_min = 1,
                      .positionals_max = 1,
                      .run = show_command},
    [COMMAND_RM] = {.id = COMMAND_RM,
                    .name = "rm",
                    .usage = "ID... --kv-disk DIR",
                    .summary = "remove saved documents",
                    .description =
                        "Removes the documents with these numbers and their files. A document that another process has "
                        "open stays.",
                    .positionals_min = 1,
                    .positionals_max = 64,
                    .run = rm_command},
    [COMMAND_VERIFY] = {.id = COMMAND_VERIFY,
                        .name = "verify",
                        .usage = "[ID...] --kv-disk DIR [--json]",
                        .summary = "read saved documents and check every byte",
                        .description = "Reads the documents (without numbers: all of them) and compares "
                                       "every page with its checksum.  What is damaged is flagged, so that "
                                       "it is not used again, and stays where it is; the exit code is 4.",
                        .positionals_max = 64,
                        .run = verify_command},
    [COMMAND_EXPORT] = {.id = COMMAND_EXPORT,
                        .name = "export",
                        .usage = "ID OUT --kv-disk DIR [--force]",
                        .positionals = {POSITIONAL_WORD, POSITIONAL_OUTPUT},
                        .summary = "write a saved document into one file, for another machine",
                        .description =
                            "OUT holds all of the document, with checksums: loam import OUT --kv-disk DIR makes it a "
                            "document of another folder.  Every page is verified as it is read.  OUT appears whole or "
                            "not at all, and a file that is there is not replaced without --force.",
                        .positionals_min = 2,
                        .positionals_max = 2,
                        .run = export_command},
    [COMMAND_PULL] = {.id = COMMAND_PULL,
                      .name = "pull",
                      .usage = "NAME|hf:ORG/REPO[:FILE]|URL [--sha256 HEX]",
                      .summary = "bring a model into the folder of models; -m then takes its name",
                      .description =
                          "NAME is one that loam models lists; hf: a file of Hugging Face's, by its name or what "
                          "only its name has (Q4_K_M); of a split model, any file stands for all.  What was "
                          "interrupted goes on where it ended.  The file is checked by the registry's SHA-256 "
                          "where it says one, or by --sha256.  HF_TOKEN: a token; HF_ENDPOINT: another registry; "
                          "LOAM_MODELS: the folder.  Needs the program curl.",
                      .positionals_min = 1,
                      .positionals_max = 1,
                      .run = pull_command},
    [COMMAND_MODELS] = {.id = COMMAND_MODELS,
                        .name = "models",
                        .usage = "[--json]",
                        .summary = "the models that were pulled, and those that pull knows by name",
                        .description = "Sizes, contexts, licences.  A model is removed by removing its file.",
                        .run = models_command},
    [COMMAND_DEVICES] = {.id = COMMAND_DEVICES,
                         .name = "devices",
                         .usage = "[--json]",
                         .summary = "what this machine has to compute with",
                         .description = "The processor, and each card of NVIDIA's that the driver shows: memory, free "
                                        "and all, what it can, and why it cannot be used.  Without cards, a line "
                                        "says what is missing.",
                         .run = devices_command},
    [COMMAND_HELP] = {.id = COMMAND_HELP,
                      .name = "help",
                      .usage = "[COMMAND] [--as FORM]",
                      .summary = "list the commands, or describe one",
                      .description = "Everything that `loam COMMAND --help` prints.",
                      .positionals_max = 1,
                      .run = help_command},
    [COMMAND_VERSION] = {.id = COMMAND_VERSION,
                         .name = "version",
                         .usage = "[--verbose]",
                         .summary = "version of this binary",
                         .description = "With --verbose also the build, the processor and the instruction sets in use.",
                         .run = version_command},
    /* loam-lab has these; here one line says so. */
    [COMMAND_PERPLEXITY] = {.id = COMMAND_PERPLEXITY, .name = "perplexity"},
    [COMMAND_EVAL] = {.id = COMMAND_EVAL, .name = "eval"},
    [COMMAND_QUANTIZE] = {.id = COMMAND_QUANTIZE, .name = "quantize"},
    [COMMAND_CALIBRATE] = {.id = COMMAND_CALIBRATE, .name = "calibrate"},
    [COMMAND_TRACE] = {.id = COMMAND_TRACE, .name = "trace"},
};
