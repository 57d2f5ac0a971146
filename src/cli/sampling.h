/* sampling: the options of run and chat that decide which token comes next and where an answer ends. */
#pragma once

#include "cli/option.h"
#include "format/gguf.h"
#include "generate/sampler.h"

struct sampling {
    struct sampler_options options; /* its biases are those below; seed: -s, or a new one when that is -1 */
    struct token_bias biases[OPTION_LIST_MAX];
    const char *stops[OPTION_LIST_MAX]; /* [stop_count], borrowed from the options */
    size_t stop_count;
    float about_documents; /* the temperature of questions about documents; of sampling_take_model */
};

enum status sampling_read(struct sampling *sampling, const struct options *options, struct error *error) STATUS_CHECKED;
/* What the model's file says in general.sampling.* counts where the command line says nothing.  Where neither says a
 * temperature, it is 0.3 with -f: an answer is what a document says.  STATUS_MODEL: a value of another type, or out of
 * range. */
enum status sampling_take_model(struct sampling *sampling, const struct options *options, const struct gguf *gguf,
                                struct error *error) STATUS_CHECKED;
