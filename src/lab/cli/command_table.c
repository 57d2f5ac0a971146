/* The commands of loam-lab: loam's, and its own. */
#include "lab/cli/lab.h"

#include <string.h>

static const struct command own[] = {
    {.id = COMMAND_PERPLEXITY,
     .name = "perplexity",
     .usage = "[-m MODEL] -f FILE [options]",
     .summary = "how well a model predicts a text; how far two settings differ",
     .description = "As llama-perplexity: windows of -c tokens, the second half of each scored.  With "
                    "--kl-divergence-base FILE the distributions are saved as well; with --kl-divergence they are "
                    "compared with those in FILE, over the text that FILE holds: mean KL divergence, how often the "
                    "likeliest token is the same, and by how much the right token's probability differs.",
     .output = perplexity_output,
     .run = perplexity_command},
    {.id = COMMAND_EVAL,
     .name = "eval",
     .usage = "ruler|kl|recall|ask [-m MODEL] [options]",
     .summary = "what approximate attention costs in accuracy",
     .description = "ruler asks the questions of RULER's thirteen tasks, with words and texts of our own, at "
                    "prompts of exact length, and counts the answers found.  kl reads a text and compares the "
                    "next-token distributions of each preset with those of full attention, by position.  recall "
                    "measures, per layer and head, how much of the attention mass and of the true top tokens a "
                    "selection caught.  ask reads one document and answers questions about it.  Several presets "
                    "answer the same samples, and each sample is prefilled once.",
     .positionals_min = 1,
     .positionals_max = 1,
     .run = eval_command},
    {.id = COMMAND_QUANTIZE,
     .name = "quantize",
     .usage = "IN.gguf OUT.gguf TYPE",
     .summary = "a model in another element type",
     .description = "Writes the matrices of IN in TYPE: F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K "
                    "Q6_K IQ4_NL IQ4_XS, or the mixes Q3_K_M Q4_K_M Q5_K_M.  OUT appears whole or not at all.",
     .positionals_min = 3,
     .positionals_max = 3,
     .positionals = {POSITIONAL_MODEL, POSITIONAL_OUTPUT, POSITIONAL_WORD},
     .run = quantize_command},
    {.id = COMMAND_CALIBRATE,
     .name = "calibrate",
     .usage = "MODEL TEXT... [-o FILE] [options]",
     .summary = "learn from a model what selecting parts of its context needs",
     .description = "Runs the texts through the model in windows and learns hash weights, skewing "
                    "matrices, how alike the queries of neighbouring tokens are, which heads need "
                    "the far context, and what rounding K and V costs.  The commands find the file as "
                    "MODEL.calib.gguf in the model's folder; it belongs to this model file only.  "
                    "Recall is measured on windows that nothing was learned from.",
     .positionals_min = 2,
     .positionals_max = 64,
     .positionals = {POSITIONAL_MODEL, POSITIONAL_TEXT, POSITIONAL_TEXT},
     .output = calibrate_output,
     .run = calibrate_command},
    {.id = COMMAND_TRACE,
     .name = "trace",
     .usage = "record [-m MODEL] -f FILE -o FILE [options]",
     .summary = "record a run's queries, keys and values for benchmarks",
     .description = "Reads -c tokens of a text with full attention and writes the queries (after "
                    "rotation), keys and values of some layers.  `loam-lab bench --replay FILE` fills its "
                    "context and decodes with them, so that what it measures of selection and of a "
                    "disk is that of text and not of random numbers.",
     .positionals_min = 1,
     .positionals_max = 1,
     .run = trace_command},
    {.id = COMMAND_IMPORT,
     .name = "import",
     .usage = "HF_DIR OUT.gguf [--type TYPE] | FILE --kv-disk DIR",
     .summary = "a Hugging Face folder as a GGUF file, or an exported document",
     .description = "Reads config.json, the safetensors and tokenizer.json of a llama, mistral, qwen2, "
                    "qwen3 or OPT model and writes one GGUF file; no Python needed.  A model that loam "
                    "cannot compute is rejected, and the message names the reason.  OUT appears whole or "
                    "not at all.  With one file and --kv-disk: a document that loam export wrote becomes one "
                    "of that folder, and prompts that begin like it do not compute it.  FILE is checked "
                    "before anything is stored.",
     .positionals_min = 1,
     .positionals_max = 2,
     .positionals = {POSITIONAL_FOLDER, POSITIONAL_OUTPUT},
     .run = lab_import_command},
};

const struct command *lab_commands(void) {
    static struct command commands[COMMAND_COUNT];
    memcpy(commands, command_table, sizeof commands);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) commands[own[i].id] = own[i];
    return commands;
}
